"""Exact moves, under the short name that models and notebooks import them by.

They live in :mod:`numpyro_bnn.samplers.gibbs`.
"""

from numpyro_bnn.samplers.gibbs.moves import (
    Bound,
    Interleaved,
    Move,
    PrecisionRedraw,
    RidgeScaling,
    UnitRefresh,
    UnitRescaling,
)
from numpyro_bnn.samplers.gibbs.output_layer import OutputLayerGibbs

__all__ = [
    "Bound",
    "Interleaved",
    "Move",
    "OutputLayerGibbs",
    "PrecisionRedraw",
    "RidgeScaling",
    "UnitRefresh",
    "UnitRescaling",
]
