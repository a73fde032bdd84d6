"""NumPyro's automatic guides for the model that a variational fit really evaluates.

A fit evaluates the user's model at rows that it chooses itself, so a guide has to be made for that model, and
begin where the fit begins. A guide comes as a class, as an object made for the user's model, or as a function
that makes one from a model, such as ``functools.partial(AutoLowRankMultivariateNormal, rank=5)``.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoNormal,
    AutoSemiDAIS,
    AutoSurrogateLikelihoodDAIS,
)

from numpyro_bnn.data.arguments import innermost

GuideLike: TypeAlias = AutoGuide | type[AutoGuide] | Callable[[Callable], AutoGuide] | None
# These evaluate the model by themselves, on the data that they were set up with.
_ALL_ROWS = (AutoLaplaceApproximation, AutoDAIS, AutoSemiDAIS, AutoSurrogateLikelihoodDAIS)


def guide_for(
    given: GuideLike,
    model: Callable,
    on_rows: Callable,
    start: Mapping[str, jax.Array],
    init_scale: float,
    is_told: bool,
) -> AutoGuide:
    """The guide of a fit, from what the user gave; None stands for ``AutoNormal``."""
    given = AutoNormal if given is None else given
    begin = init_to_value(values=dict(start))
    if isinstance(given, type) and issubclass(given, AutoGuide):
        options = {"init_loc_fn": begin, "init_scale": init_scale}
        taken = inspect.signature(given).parameters
        return given(on_rows, **{name: v for name, v in options.items() if name in taken})
    if isinstance(given, AutoGuide):
        if innermost(given.model) is not innermost(model) and given.model != model:
            raise ValueError(
                f"mean_field: the guide {type(given).__name__} was made for another model than the one that "
                "is fitted. Give the class, or make the guide for this model."
            )
        guide = copy.copy(given)
        # The user's own object stays as it is, also where it was set up before.
        guide.model, guide.prototype_trace = on_rows, None
    else:
        guide = given(on_rows) if callable(given) and not isinstance(given, type) else given
        if not isinstance(guide, AutoGuide) or guide.model is not on_rows:
            raise TypeError(
                f"mean_field: guide must be an automatic guide of NumPyro, its class, or a function that "
                f"makes one for the model that it is given, got {given!r}. Write for example "
                "`guide=AutoMultivariateNormal`."
            )
    own = inspect.signature(type(guide)).parameters.get("init_loc_fn")
    if is_told or own is None or guide.init_loc_fn is own.default:
        guide.init_loc_fn = begin
    return guide


def refuse_minibatches(guide: AutoGuide, batch_size: int | None) -> None:
    """Refuse minibatches for a guide that evaluates the model on the rows it was set up with."""
    if batch_size is not None and isinstance(guide, _ALL_ROWS):
        raise ValueError(
            f"mean_field: {type(guide).__name__} evaluates the model on the rows that it was set up with, "
            f"and batch_size={batch_size} would set it up with one minibatch. Leave batch_size out."
        )


def sampled(
    guide: AutoGuide, key: jax.Array, params: Mapping[str, Any], *args: Any
) -> dict[str, jax.Array]:
    """Constrained values of the latent sites, drawn from a fitted guide."""
    drawn: dict[str, jax.Array] = guide.sample_posterior(key, dict(params), *args)
    return drawn
