"""What a fitted object holds: draws, the run behind them, training data, and the names of classes.

Whatever takes a run takes an ``MCMC`` after `run`, draws by site, or an object that was fitted. Such an
object has its draws as `draws` and the run behind them as `mcmc`, as :func:`numpyro_bnn.fit` returns it, or,
by the custom of scikit-learn, as `draws_` and `mcmc_`; an estimator of classes also has their names as
`classes_`.
The functions here and :func:`numpyro_bnn.posterior.draws.draws_of` are the only ones that know this.
"""

from collections.abc import Callable, Mapping
from typing import Any

from numpyro.infer import MCMC as NumPyroMCMC

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import inputs_of_call


def held_by(fitted: object, part: str) -> Any:
    """A part of a fitted object, ``"draws"`` or ``"mcmc"``; None where it has none, as after unpickling."""
    if isinstance(fitted, (NumPyroMCMC, Mapping)):
        return None
    found = getattr(fitted, part, None)
    found = getattr(fitted, f"{part}_", None) if found is None else found
    if found is None and hasattr(fitted, "get_params") and not hasattr(fitted, "draws_"):
        raise ValueError(f"This {type(fitted).__name__} is not fitted yet; call `fit` first.")
    return found


def is_finished(value: object) -> bool:
    """Whether a value stands for a finished run: an ``MCMC``, draws by site, or a fitted object."""
    return isinstance(value, (NumPyroMCMC, Mapping)) or isinstance(held_by(value, "draws"), Mapping)


def run_of(fitted: object) -> NumPyroMCMC | None:
    """The ``MCMC`` that draws come from; None where only the draws are kept."""
    run = fitted if isinstance(fitted, NumPyroMCMC) else held_by(fitted, "mcmc")
    return run if isinstance(run, NumPyroMCMC) else None


def arguments_of(fitted: object) -> tuple[tuple, dict[str, PyTree]]:
    """Arguments and keyword arguments that the model was fitted with; none where they are not kept."""
    run = held_by(fitted, "mcmc") or held_by(fitted, "draws") or fitted
    return getattr(run, "_args", None) or (), getattr(run, "_kwargs", None) or {}


def model_of(fitted: object) -> Any:
    """The model that a run samples; None where it is not known."""
    run = held_by(fitted, "mcmc") or held_by(fitted, "draws") or fitted
    return getattr(getattr(run, "sampler", None) or run, "model", None)


def inputs_of(fitted: object, model: Callable | None = None) -> PyTree:
    """The inputs that a run was fitted to, given by position or by name; None where they are not kept."""
    # The name is that of the first argument of `model`: the run's own model may have another argument first.
    found = inputs_of_call(model, *arguments_of(fitted))
    return inputs_of_call(model_of(fitted), *arguments_of(fitted)) if found is None else found
