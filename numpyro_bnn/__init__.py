"""Bayesian neural networks for NumPyro.

Everything public is reachable from here; each name is imported from its own file on first
use, so that ``import numpyro_bnn`` costs nothing beyond JAX and NumPyro (plots, ArviZ and
scikit-learn are loaded when a function that needs them is called).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# ArviZ leaves a stand-in for NumPyro that is loaded on first use: a part of it that is imported before
# the whole would be loaded twice.
from numpyro import __version__ as _numpyro_version

__version__ = "0.1.0"

_HOME = {
    "modules": ["MLP", "random_module"],
    "parameters": ["from_params", "to_params"],
    "hierarchy": ["parameterize"],
    "gibbs": ["PrecisionGibbs", "neal"],
    "host_rows": ["OnHost"],
    "potential": ["potential_of"],
    "optimization": ["optimize"],
    "approximate": ["deep_ensemble", "map_estimate", "randomized_map"],
    "gaussian_laplace": ["laplace"],
    "iterates": ["constant_sgd", "swag"],
    "sgmcmc.kernel": ["SGMCMC"],
    "sgmcmc.algorithms": [
        "AMAGOLD",
        "BAOAB",
        "GGMC",
        "MALA",
        "PSGLD",
        "SGHMC",
        "SGLD",
        "SGNHT",
        "RandomWalk",
    ],
    "sgmcmc.microcanonical": ["MAMS", "MCLMC"],
    "sgmcmc.windowed_hmc": ["WindowedHMC"],
    "tempering": ["ParallelTempering"],
    "mcmc": ["MCMC"],
    "predictions": ["average", "predict", "prior_predictive"],
    "diagnostics": ["diagnose"],
    "inference_data": ["from_inference_data", "to_inference_data"],
    "stacking": ["stack", "stacking_weights"],
    "variational": ["mean_field"],
    "ready": ["classification", "regression"],
    "draws": ["Draws"],
    "pipeline": ["compare", "second_opinion"],
    "recipe": ["fit"],
    "storage": ["load", "save"],
}
_MODULES = {
    name: name for name in ("diagnostics", "likelihoods", "moves", "plots", "priors", "scores")
}
_MODULES |= {name: f"sgmcmc.{name}" for name in ("gradients", "preconditioners", "schedules")}
_ORIGIN = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_ORIGIN, *_MODULES])

if TYPE_CHECKING:
    from numpyro_bnn import diagnostics, likelihoods, moves, plots, priors, scores
    from numpyro_bnn.approximate import deep_ensemble, map_estimate, randomized_map
    from numpyro_bnn.diagnostics import diagnose
    from numpyro_bnn.draws import Draws
    from numpyro_bnn.gaussian_laplace import laplace
    from numpyro_bnn.gibbs import PrecisionGibbs, neal
    from numpyro_bnn.hierarchy import parameterize
    from numpyro_bnn.host_rows import OnHost
    from numpyro_bnn.inference_data import from_inference_data, to_inference_data
    from numpyro_bnn.iterates import constant_sgd, swag
    from numpyro_bnn.mcmc import MCMC
    from numpyro_bnn.modules import MLP, random_module
    from numpyro_bnn.optimization import optimize
    from numpyro_bnn.parameters import from_params, to_params
    from numpyro_bnn.pipeline import compare, second_opinion
    from numpyro_bnn.potential import potential_of
    from numpyro_bnn.predictions import average, predict, prior_predictive
    from numpyro_bnn.ready import classification, regression
    from numpyro_bnn.recipe import fit
    from numpyro_bnn.sgmcmc import gradients, preconditioners, schedules
    from numpyro_bnn.sgmcmc.algorithms import (
        AMAGOLD,
        BAOAB,
        GGMC,
        MALA,
        PSGLD,
        SGHMC,
        SGLD,
        SGNHT,
        RandomWalk,
    )
    from numpyro_bnn.sgmcmc.kernel import SGMCMC
    from numpyro_bnn.sgmcmc.microcanonical import MAMS, MCLMC
    from numpyro_bnn.sgmcmc.windowed_hmc import WindowedHMC
    from numpyro_bnn.stacking import stack, stacking_weights
    from numpyro_bnn.storage import load, save
    from numpyro_bnn.tempering import ParallelTempering
    from numpyro_bnn.variational import mean_field


def __getattr__(name: str) -> Any:
    if name in _ORIGIN:
        value = getattr(import_module(f"numpyro_bnn.{_ORIGIN[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"numpyro_bnn.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'numpyro_bnn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
