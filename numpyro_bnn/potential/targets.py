"""Refuses targets whose values would be broadcast or counted several times, judged by shapes alone.

NumPyro broadcasts whatever can be broadcast. A target (N, 1) against predictions (N,) is an N×N
table of log densities; a single value, or a likelihood that was summed, counts once for every row
of the plate around it; a target that was not passed is sampled. All of these run, and sample another
posterior than intended. One rule finds the first three: the values of an observed site must have the shape of
their log densities, so that each counts once.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from math import prod

import jax
import numpy as np
from numpyro.util import find_stack_level

from numpyro_bnn.potential.sites import Site, Structure

Shape = tuple[int, ...]


def check_targets(structure: Structure) -> None:
    """Refuse observed sites with values that would be broadcast, or counted several times."""
    # Latent sites that a handler sets would get other values, and are refused too, as are
    # models without any.
    if not structure.latent:
        raise ValueError(
            "The model has no latent site to sample: every site is observed, fixed or integrated out. Give "
            "one of them a prior, or integrate out fewer."
        )
    if structure.preset:
        raise ValueError(
            f"`handlers.substitute` in the model sets the latent sites {sorted(structure.preset)}, and "
            "samplers and optimisers would put their own values in place of these. To hold a site at a value "
            "use `handlers.condition(model, {…})`."
        )
    for name in structure.observed:
        site = structure.sites[name]
        plates = _plates(site, structure)
        full = _together(site.shape, site.distribution_shape)
        if full is None:
            raise ValueError(
                f"The observed site '{name}' has values of shape {site.shape} and a distribution of "
                f"shape {site.distribution_shape}{plates}, which do not fit each other. Give as many "
                "targets as inputs, and the plate as many rows."
            )
        if not site.factor and not prod(full):
            raise ValueError(
                f"The observed site '{name}' has values of shape {site.shape}: there are none. Check "
                "what selected the rows."
            )
        repeats = prod(site.distribution_shape[:-1]) // max(1, prod(site.shape[:-1]))
        if site.factor and repeats != 1:
            raise ValueError(
                f"The factor '{name}' has shape {site.shape[:-1]}{plates}, which repeats it to "
                f"{site.distribution_shape[:-1]}. A likelihood summed into one factor would count {repeats} "
                "times. Give one value a row, or take the factor out of the plate."
            )
        if prod(site.shape) != prod(full):
            raise ValueError(_stretched(name, site, full, plates))
        _check_weights(name, site, full)


def _plates(site: Site, structure: Structure) -> str:
    """The plates around a site, as part of a sentence."""
    sizes = [f"'{name}' of {structure.plates[name].size}" for name in site.plates]
    return f" in the plate{'s' * (len(sizes) > 1)} {' and '.join(sizes)}" if sizes else ""


def _together(*shapes: Shape) -> Shape | None:
    """The shape to which several shapes broadcast, or None."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _stretched(name: str, site: Site, full: Shape, plates: str) -> str:
    what = (
        f"The observed site '{name}' has values of shape {site.shape} but a distribution of shape "
        f"{site.distribution_shape}{plates}: "
    )
    event = site.distribution_shape[len(site.distribution_shape) - site.event_dim :]
    if prod(site.shape) == 1:
        return what + (
            f"the one value would be compared with all {prod(full)} predictions. Give the target of "
            "every row, or observe a single one outside of the plate and with one prediction."
        )
    if site.shape == event and site.plates:
        return what + (
            f"the whole target is one event, which would count {prod(full) // prod(event)} times. Take the "
            "axis of the plate out of the event, `.to_event(…)`, or the site out of the plate."
        )
    what += "every value would be compared with every prediction. "
    if site.shape == (*site.distribution_shape, 1):
        return what + "Drop the last axis of the target: `y.squeeze(-1)`."
    if site.distribution_shape == (*site.shape, 1):
        return what + "Drop the last axis of the predictions: `f.squeeze(-1)`."
    return what + "Give both the same shape, for example with `f.squeeze(-1)`."


def _check_weights(name: str, site: Site, full: Shape) -> None:
    """Refuse weights of a log density (``handlers.scale``) that repeat it."""
    batch = full[: len(full) - site.event_dim]
    if _together(site.scale, batch) != batch:
        raise ValueError(
            f"The log density of the observed site '{name}' has shape {batch}, but it is scaled by weights "
            f"of shape {site.scale}, so that every row would count with every weight. Give one weight a row."
        )


def check_observed(structure: Structure, model: Callable, args: tuple, kwargs: dict) -> None:
    """Refuse a model with arguments but no observed site: the target was forgotten."""
    if structure.observed:
        return
    absent, on_purpose = _absent(model, args, kwargs)
    latent = [name for name in structure.latent if structure.sites[name].plates]
    if absent:
        sampled = f" and samples {latent} as latent values, one a row" if latent else ""
        raise ValueError(
            f"Nothing is observed: the model is called with {' and '.join(absent)}{sampled}. Pass "
            "the target too. For the prior on purpose, bind what is absent: "
            "`functools.partial(model, y=None)`, or use `bnn.prior_predictive`."
        )
    given = any(getattr(leaf, "shape", ()) for leaf in jax.tree.leaves((args, kwargs)))
    if given and not on_purpose:
        warnings.warn(
            "Nothing is observed: the model was given data, but none of its sites has `obs=`, so "
            f"that {latent or structure.latent} are drawn from the prior. Give the target to its "
            "site, `numpyro.sample(name, distribution, obs=y)`. For a density that has no data, "
            "bind its arguments: `functools.partial(model, …)`.",
            stacklevel=find_stack_level(),
        )


def _absent(model: Callable, args: tuple, kwargs: dict) -> tuple[list[str], bool]:
    """Arguments of a model that are None, and whether a ``partial`` binds one to it."""
    try:
        bound = inspect.signature(model).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return [], False
    bound.apply_defaults()
    none = [name for name, value in bound.arguments.items() if value is None]
    meant = model.keywords if isinstance(model, partial) else {}
    return [f"{n}=None" for n in none if n not in meant], any(n in meant for n in none)


def check_arguments(args: tuple, kwargs: Mapping[str, object]) -> None:
    """Refuse data without rows."""
    named = {f"argument {i + 1}": value for i, value in enumerate(args)} | dict(kwargs)
    for name, value in named.items():
        for leaf in jax.tree.leaves(value):
            shape = tuple(getattr(leaf, "shape", ()))
            if shape[:1] == (0,):
                raise ValueError(
                    f"The data are empty: {name} of the model has shape {shape}, expected at least "
                    "one row. Check what selected the rows."
                )
