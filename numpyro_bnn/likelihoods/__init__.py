"""Likelihoods that open the plate of the rows, check shapes and values, and observe the target.

``gaussian``, ``heteroscedastic``, ``student_t``, ``categorical``, ``bernoulli``, ``poisson``,
``negative_binomial``, ``quantile`` and ``survival`` go at the end of a model; whole models are
:func:`numpyro_bnn.regression` and :func:`numpyro_bnn.classification`. Begin with ``families.py``;
``observe.py`` has the checks that all of them share.
"""

from importlib import import_module
from typing import Any

from numpyro_bnn.likelihoods.families import (
    Precision,
    bernoulli,
    categorical,
    gaussian,
    heteroscedastic,
    negative_binomial,
    poisson,
    quantile,
    student_t,
)
from numpyro_bnn.likelihoods.survival import survival

__all__ = [
    "Precision",
    "bernoulli",
    "categorical",
    "gaussian",
    "heteroscedastic",
    "negative_binomial",
    "poisson",
    "quantile",
    "student_t",
    "survival",
]

# Ready models import the likelihoods, so they are imported when used.
_READY = ("ReadyModel", "Standardization", "classification", "regression")


def __getattr__(name: str) -> Any:
    if name in _READY:
        return getattr(import_module("numpyro_bnn.models.ready"), name)
    raise AttributeError(f"module 'numpyro_bnn.likelihoods' has no attribute {name!r}")
