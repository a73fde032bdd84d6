"""Bayesian neural networks for NumPyro.

Everything public is reachable from here; each name is imported from its own file on first
use, so that ``import numpyro_bnn`` costs nothing beyond JAX and NumPyro (plots, ArviZ and
scikit-learn are loaded when a function that needs them is called).
"""

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The command line looks at its file before it loads JAX, which takes seconds.
if Path(sys.argv[0]).stem != "numpyro-bnn" and ("-m", "numpyro_bnn") not in zip(
    sys.orig_argv, sys.orig_argv[1:]
):
    # ArviZ leaves a stand-in for NumPyro that is loaded on first use: a part of it that is imported before
    # the whole would be loaded twice.
    from numpyro import __version__ as _numpyro_version

    from numpyro_bnn._handler_stack import separate_threads as _separate_threads

    _separate_threads()

_MODULES = {
    name: name
    for name in ("diagnostics", "likelihoods", "moves", "plots", "priors", "references", "scores")
}
_MODULES |= {
    name: f"samplers.sgmcmc.{name}" for name in ("gradients", "preconditioners", "schedules")
}
if TYPE_CHECKING:
    from numpyro_bnn import diagnostics, likelihoods, moves, plots, priors, references, scores
    from numpyro_bnn.approximations.laplace import laplace
    from numpyro_bnn.approximations.mean_field import mean_field
    from numpyro_bnn.approximations.modes import (
        deep_ensemble,
        map_estimate,
        optimize,
        randomized_map,
    )
    from numpyro_bnn.approximations.sgd_iterates import constant_sgd, swag
    from numpyro_bnn.compilation.program_identity import cache
    from numpyro_bnn.data.host_rows import OnHost
    from numpyro_bnn.diagnostics.diagnose import diagnose
    from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
    from numpyro_bnn.likelihoods.noisy_inputs import noisy_inputs
    from numpyro_bnn.models.integrated_output import integrate_output
    from numpyro_bnn.models.random_module import MLP, from_params, random_module, to_params
    from numpyro_bnn.models.ready import classification, regression
    from numpyro_bnn.posterior.archive import load, save
    from numpyro_bnn.posterior.arviz_export import from_inference_data, to_inference_data
    from numpyro_bnn.posterior.draws import Draws
    from numpyro_bnn.posterior.exported import export
    from numpyro_bnn.posterior.prediction_sites import prior_predictive
    from numpyro_bnn.posterior.predictions import predict
    from numpyro_bnn.posterior.predictive_draws import average
    from numpyro_bnn.posterior.stacking import stack, stacking_weights
    from numpyro_bnn.posterior.thinning import thin
    from numpyro_bnn.potential.potential import potential_of
    from numpyro_bnn.priors.hierarchical import parameterize
    from numpyro_bnn.samplers.gibbs.precision_gibbs import PrecisionGibbs, neal
    from numpyro_bnn.samplers.sgmcmc import gradients, preconditioners, schedules
    from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
    from numpyro_bnn.samplers.sgmcmc.named import (
        AMAGOLD,
        BAOAB,
        GGMC,
        MALA,
        MAMS,
        MCLMC,
        PSGLD,
        SGHMC,
        SGLD,
        SGNHT,
        RandomWalk,
        WindowedHMC,
    )
    from numpyro_bnn.samplers.tempering.kernel import ParallelTempering
    from numpyro_bnn.workflow.calibration import calibrate
    from numpyro_bnn.workflow.check_fit import check_fit
    from numpyro_bnn.workflow.compare import compare, second_opinion
    from numpyro_bnn.workflow.describe import describe
    from numpyro_bnn.workflow.estimators import BNNClassifier, BNNRegressor
    from numpyro_bnn.workflow.fit import fit
    from numpyro_bnn.workflow.mcmc import MCMC
    from numpyro_bnn.workflow.update import update, without


# The imports above are for type checkers; at run time they say where each name is.
_ORIGIN = {
    alias.name: node.module
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("numpyro_bnn.")
    for alias in node.names
    if alias.name not in _MODULES and not alias.asname
}

__all__ = sorted([*_ORIGIN, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _ORIGIN:
        value = getattr(import_module(str(_ORIGIN[name])), name)
    elif name in _MODULES:
        value = import_module(f"numpyro_bnn.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'numpyro_bnn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
