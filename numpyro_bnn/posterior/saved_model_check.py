"""Tells whether a model is the one that stored draws are of, by what it predicts at made-up inputs.

Names and shapes of sites do not tell tanh from relu, or one likelihood from another: such a model would
take the draws, and all that it predicts would be wrong. So predictions of the first draw are stored with
the draws.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from numpyro_bnn._calls import result_or_error
from numpyro_bnn.data.probe_inputs import probe_inputs
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.prediction_sites import targets_without_draws
from numpyro_bnn.posterior.predictions import Predictor

# "of", the sum of all numbers of the draw; "targets", by target "probs", or "mean" and "scale", as lists.
Known = dict[str, Any]
# The same model differs by less between devices, in standard deviations or probabilities.
_TOLERANCE = 0.01


def known_predictions(draws: Draws) -> Known | None:
    """What the model predicts at probe inputs with the first draw; None where it cannot be called."""
    noted = draws.info.get("input_ranges")
    if draws.model is None or noted is None:
        return None
    first = _first(draws)
    found = result_or_error(partial(_predicted, draws.model, first, probe_inputs(noted)))
    if isinstance(found, Exception):
        return None
    if not all(np.isfinite(v).all() for values in found.values() for v in values.values()):
        return None
    targets = {n: {k: v.tolist() for k, v in of.items()} for n, of in found.items()}
    return {"of": _sum(first), "targets": targets}


def _first(draws: Draws) -> dict[str, np.ndarray]:
    """The first draw, with axes of one chain and one draw."""
    return {name: np.asarray(value[:1, :1]) for name, value in draws.items()}


def _sum(draw: Mapping[str, np.ndarray]) -> float:
    return sum(float(value.astype(np.float64).sum()) for value in draw.values())


def _predicted(
    model: Callable, draw: Mapping[str, np.ndarray], x: Any
) -> dict[str, dict[str, np.ndarray]]:
    predictor = Predictor(model, x)
    targets = targets_without_draws(predictor.structure, draw)
    if len(targets) == 1:
        found = {targets[0]: predictor(draw).values}
    else:
        found = {target: Predictor(model, x, site=target)(draw).values for target in targets}
    return {target: {k: v[0, 0] for k, v in values.items()} for target, values in found.items()}


def refuse_other_model(owner: str, draws: Draws, known: Known | None) -> None:
    """Refuse draws whose model predicts something else than :func:`known_predictions` had found."""
    noted = draws.info.get("input_ranges")
    if known is None or draws.model is None or noted is None:
        return
    first = _first(draws)
    # The first draw of a subset cannot be checked.
    if not np.isclose(_sum(first), known["of"], rtol=1e-5):
        return
    expected = {n: {k: np.asarray(v) for k, v in of.items()} for n, of in known["targets"].items()}
    found = result_or_error(partial(_predicted, draws.model, first, probe_inputs(noted)))
    if isinstance(found, Exception):
        text = _message(owner, f"with these draws it fails: {str(found).rstrip('.')}")
        raise ValueError(text) from found
    if set(found) != set(expected):
        named = f"its targets are {sorted(found)}, and were {sorted(expected)}"
        raise ValueError(_message(owner, named))
    for target, values in expected.items():
        if differs := _difference(target, values, found[target]):
            raise ValueError(_message(owner, differs))


def _difference(
    target: str, expected: dict[str, np.ndarray], found: dict[str, np.ndarray]
) -> str | None:
    """What differs between predictions of a target, in words; None where nothing does."""
    kinds = tuple({k: v.shape for k, v in sorted(of.items())} for of in (found, expected))
    if kinds[0] != kinds[1]:
        return f"it predicts {kinds[0]} for '{target}', where the draws' own predicted {kinds[1]}"
    for name, values in expected.items():
        size: Any = 1.0
        if name != "probs":
            noise = expected.get("scale", 0.0)
            # Rounding is in proportion to what varies and, much smaller, to the numbers themselves.
            size = np.mean(noise) + np.std(values) + 1e-3 * np.abs(values)
        apart = np.abs(found[name] - values)
        if (apart > _TOLERANCE * size).any():
            at = np.unravel_index(np.argmax(apart / size), values.shape)
            return (
                f"for '{target}' at made-up inputs the first draw has {name} {found[name][at]:.6g} under "
                f"it, and {values[at]:.6g} under the draws' own"
            )
    return None


def _message(owner: str, differs: str) -> str:
    return (
        f"{owner}: this model is not the one that the draws are of: {differs}. Give the model that was run: "
        "the same network with the same activation, the same likelihood and the same constants. If another "
        "is meant, load with the first and write `bnn.Draws(draws, other_model)`."
    )
