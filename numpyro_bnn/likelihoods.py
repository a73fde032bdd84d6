"""Likelihoods that check what they are given, and complete models for people in a hurry.

The helpers (``gaussian``, ``heteroscedastic``, ``student_t``, ``categorical``, ``bernoulli``,
``survival``) go at the end of a model; :func:`regression` and :func:`classification` are whole models.
"""

from numpyro_bnn.families import (
    Precision,
    bernoulli,
    categorical,
    gaussian,
    heteroscedastic,
    student_t,
)
from numpyro_bnn.hazards import survival
from numpyro_bnn.ready import ReadyModel, Standardization, classification, regression

__all__ = [
    "Precision",
    "ReadyModel",
    "Standardization",
    "bernoulli",
    "categorical",
    "classification",
    "gaussian",
    "heteroscedastic",
    "regression",
    "student_t",
    "survival",
]
