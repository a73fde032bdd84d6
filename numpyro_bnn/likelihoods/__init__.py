"""Likelihoods that open the plate of the rows, check shapes and values, and observe the target.

``gaussian``, ``heteroscedastic``, ``student_t``, ``categorical``, ``bernoulli`` and ``survival`` go
at the end of a model; whole models are :func:`numpyro_bnn.regression` and
:func:`numpyro_bnn.classification`. Begin with ``families.py``; ``observe.py`` has the checks that
all of them share.
"""

from numpyro_bnn.likelihoods.families import (
    Precision,
    bernoulli,
    categorical,
    gaussian,
    heteroscedastic,
    student_t,
)
from numpyro_bnn.likelihoods.survival import survival

__all__ = [
    "Precision",
    "bernoulli",
    "categorical",
    "gaussian",
    "heteroscedastic",
    "student_t",
    "survival",
]
