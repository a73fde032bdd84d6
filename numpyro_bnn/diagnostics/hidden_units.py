"""Matches the hidden units of every draw to those of one draw, to tell relabelling from real differences.

Exchanging two hidden units with all their weights changes no prediction. Flipping the signs before and after
an odd activation changes none either, nor does scaling the weights into a relu and dividing those out of it
by the same number. Chains in such copies of one mode have a large R-hat in weight space although they agree.
:func:`find_hidden_layers` tries which of these symmetries leave the predictions of a network as they are;
:func:`align` undoes them, draw by draw, by optimal assignment of hidden units to those of a reference draw
(as Ainsworth et al. 2023, *Git Re-Basin*, section 3.2, match two networks). The differences between chains
that remain are real.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from numpyro_bnn._types import PyTree
from numpyro_bnn.posterior.draws import Draws, one_draw
from numpyro_bnn.posterior.prediction_sites import targets_without_draws
from numpyro_bnn.posterior.predictions import Predictor

Values = dict[str, np.ndarray]
_BLOCK = 256  # Draws at a time, for bounded memory.
_SWEEPS = 10
# Rounding error of an exact symmetry in float32, relative to the spread and to the size of the predictions.
_ROUNDING, _LAST_DIGITS = 1e-3, 1e-6
# Symmetries are tried at this many weights near the draw, and as many new ones.
_TRIALS = 2


class HiddenLayer(NamedTuple):
    """Hidden units that can be exchanged, and the weights that belong to them.

    - **incoming** - kernel whose last axis counts the units.
    - **vectors** - sites of one value a unit, such as the bias and the scale of a norm layer.
    - **outgoing** - kernel whose last axis but one counts the units, or the units at every
      position where a convolution was flattened.
    - **flips** - whether the sign of a unit can be flipped (odd activations).
    - **scales** - whether a unit can be scaled (relu).
    """

    incoming: str
    vectors: tuple[str, ...]
    outgoing: str
    flips: bool = False
    scales: bool = False


def _features(values: Values, layer: HiddenLayer) -> tuple[np.ndarray, np.ndarray]:
    """Incoming and outgoing weights of each unit, `(draw, unit, weights)` each."""
    kernel = values[layer.incoming]
    size = kernel.shape[-1]
    entering = [np.swapaxes(kernel.reshape(len(kernel), -1, size), 1, 2)]
    entering += [values[name][..., None] for name in layer.vectors]
    out = values[layer.outgoing]
    by_unit = out.reshape(len(out), -1, size, out.shape[-1])
    leaving = np.swapaxes(by_unit, 1, 2).reshape(len(out), size, -1)
    return np.concatenate(entering, axis=2), leaving


def _put_back(
    values: Values, layer: HiddenLayer, entering: np.ndarray, leaving: np.ndarray
) -> None:
    """Write into the sites what :func:`_features` has read from them."""
    kernel, out = values[layer.incoming], values[layer.outgoing]
    draws, size, _ = entering.shape
    rest = entering.shape[2] - len(layer.vectors)
    values[layer.incoming] = np.swapaxes(entering[:, :, :rest], 1, 2).reshape(kernel.shape)
    for k, name in enumerate(layer.vectors):
        values[name] = entering[:, :, rest + k]
    by_unit = leaving.reshape(draws, size, -1, out.shape[-1])
    values[layer.outgoing] = np.swapaxes(by_unit, 1, 2).reshape(out.shape)


def _moved(values: Values, layer: HiddenLayer, order: np.ndarray, factor: np.ndarray) -> Values:
    """Units in another order, incoming weights times a factor for each, outgoing weights over it."""
    moved = dict(values)
    entering, leaving = _features(moved, layer)
    by_unit = factor[:, None]
    _put_back(moved, layer, by_unit * entering[:, order], leaving[:, order] / by_unit)
    return moved


def _candidates(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[HiddenLayer]:
    """Pairs of kernels whose sizes fit, each with its bias alone and with norm layers."""
    kernels = [n for n, s in shapes.items() if n.endswith("kernel") and len(s) >= 2]
    owned = {n.removesuffix("kernel") for n in kernels}
    for incoming in kernels:
        size = shapes[incoming][-1]
        vectors = [n for n, s in shapes.items() if s == (size,)]
        own = tuple(n for n in vectors if n.startswith(incoming.removesuffix("kernel")))
        norms = tuple(n for n in vectors if not any(n.startswith(prefix) for prefix in owned))
        for outgoing in kernels:
            if outgoing == incoming or size < 2 or shapes[outgoing][-2] % size:
                continue
            for moving in dict.fromkeys([own, own + norms]):
                yield HiddenLayer(incoming, moving, outgoing)


def _trials(base: Values, sites: list[str]) -> list[Values]:
    """Values of the weights at which symmetries are tried, none of them special, `(1, ...)` each."""
    # A symmetry holds for every value, but a single one may hide what breaks it: units that are off, or
    # predictions that are sure. So some values lie near the draw, which suits the scale of the inputs, and
    # others have the scale of a new network, which is sure of nothing.
    rng = np.random.default_rng(0)
    found = []
    for trial in range(2 * _TRIALS):
        values = dict(base)
        for name in sites:
            own = base[name]
            noise = rng.normal(size=own.shape)
            if trial < _TRIALS:
                changed = own + noise * (own.std() + 0.1)
            else:
                changed = noise / np.sqrt(max(1, math.prod(own.shape[1:-1])))
            values[name] = changed.astype(own.dtype)
        found.append(values)
    return found


def _variants(base: Values, layer: HiddenLayer) -> list[Values]:
    """The incoming kernel alone in another order; then units exchanged, and one flipped, and scaled."""
    # Units that are mixed, as by a norm layer, could be flipped or scaled all together.
    size = base[layer.incoming].shape[-1]
    order, same = np.roll(np.arange(size), 1), np.arange(size)
    ones, flip, scale = (np.where(same == 0, factor, 1.0) for factor in (1.0, -1.0, 2.0))
    return [
        {**base, layer.incoming: base[layer.incoming][..., order]},
        *(_moved(base, layer, *change) for change in ((order, ones), (same, flip), (same, scale))),
    ]


def find_hidden_layers(
    draws: Draws, x: PyTree, model: Callable | None = None, site: str | None = None
) -> tuple[HiddenLayer, ...]:
    """The layers of a network whose hidden units can be exchanged.

    Every pair of kernels whose sizes fit is tried, at several values of the weights. The network predicts
    before and after its units are exchanged, flipped or scaled; a change that leaves all predictions of all
    targets as they are, everywhere, is a symmetry: units that two heads share have none by one head alone.
    So activations, norm layers, convolutions and skip connections need not be declared; units tied across
    several layers (the channels of a residual stage) are not found.

    :param draws: draws of the weights, with their model.
    :param x: inputs at which predictions are compared; some rows are enough.
    :param model: the model, where the draws carry none.
    :param site: a site that is predicted beside all targets, such as a deterministic one.
    :return: hidden layers; empty where the network has none that is found, or where a target cannot be
        predicted, such as one whose distribution has no mean or variance, or that is not by row.
    """
    base = {name: value[None] for name, value in one_draw(draws, 0, -1).items()}
    # Sites beside a weight (its precision, its standardised value) do not affect predictions.
    weights = [n for n in base if not any(n.startswith(f"{other}.") for other in base)]
    candidates = list(_candidates({name: base[name].shape[1:] for name in weights}))
    if not candidates:
        return ()
    vectors = {name for c in candidates for name in c.vectors}
    beside = tuple(n.removesuffix("kernel") for n in weights if n.endswith("kernel"))
    trials = _trials(base, [n for n in weights if n in vectors or n.startswith(beside)])
    tried = [
        values
        for trial in trials
        for values in (trial, *(v for layer in candidates for v in _variants(trial, layer)))
    ]
    stacked = {name: np.stack([values[name] for values in tried], axis=1) for name in base}
    try:
        predicted = _all_predictions(model, Draws(stacked, draws.model), x, site)
    except NotImplementedError:
        return ()
    unchanged = np.all([_unchanged(values[0], len(trials)) for values in predicted], axis=0)
    found: dict[str, HiddenLayer] = {}
    for layer, (kernel, exchanged, flipped, scaled) in zip(candidates, unchanged.reshape(-1, 4)):
        # If the kernel alone can be reordered, predictions do not depend on it.
        if exchanged and not kernel:
            known = layer._replace(flips=bool(flipped), scales=bool(scaled))
            found.setdefault(layer.incoming, known)
    return tuple(found.values())


def _all_predictions(
    model: Callable | None, draws: Draws, x: PyTree, site: str | None
) -> list[np.ndarray]:
    """Every parameter that predictions of every target have, `(chain, draw, row, ...)` each."""
    known: Any = draws.model if model is None else model
    predictor = Predictor(known, x)
    sites = dict.fromkeys(
        [*targets_without_draws(predictor.structure, draws), *([] if site is None else [site])]
    )
    found: list[np.ndarray] = []
    for name in sites:
        try:
            found += predictor.at_site(name)(draws).values.values()
        except (TypeError, ValueError) as error:
            if name == site or len(sites) == 1:
                raise
            # Another target, such as one that is not by row, may depend on the units.
            raise NotImplementedError from error
    return found


def _unchanged(values: np.ndarray, trials: int) -> np.ndarray:
    """Which variants after the first leave one parameter `(trial * variant, row, ...)` unchanged."""
    values = values.astype(np.float64).reshape(trials, len(values) // trials, -1)
    first = values[:, :1]
    # Some values may overflow, as a noise scale exp(f) does, or have no mean: these must stay what they are.
    known = np.where(np.isfinite(first), first, 0.0)
    largest = np.abs(known).max(axis=2, initial=1e-300)
    size = np.maximum(_ROUNDING * known.std(axis=2), _LAST_DIGITS * largest)
    with np.errstate(invalid="ignore"):
        change = np.abs(values - first)
    same = (values == first) | (np.isnan(values) & np.isnan(first))
    return (np.where(same, 0.0, change).max(axis=2) <= size)[:, 1:].all(axis=0)


def _canonical(values: Values, layers: tuple[HiddenLayer, ...]) -> None:
    """Scale units that can be scaled, so that incoming and outgoing weights have equal norm."""
    for layer in layers:
        if layer.scales:
            entering, leaving = _features(values, layer)
            norms = [np.linalg.norm(part, axis=2, keepdims=True) for part in (entering, leaving)]
            alive = (norms[0] > 0) & (norms[1] > 0)
            factor = np.sqrt(np.where(alive, norms[1], 1.0) / np.where(alive, norms[0], 1.0))
            _put_back(values, layer, entering * factor, leaving / factor)


def _match(values: Values, layer: HiddenLayer, target: np.ndarray) -> bool:
    """Permute the units of one layer to match the reference, in place; whether any unit moved."""
    entering, leaving = _features(values, layer)
    likeness = np.concatenate([entering, leaving], axis=2) @ target.T
    gain = np.abs(likeness) if layer.flips else likeness
    size = likeness.shape[1]
    order = np.stack([linear_sum_assignment(g.T, maximize=True)[1] for g in gain])
    rows = np.arange(len(order))[:, None]
    sign = np.ones(order.shape, entering.dtype)
    if layer.flips:
        sign = np.where(likeness[rows, order, np.arange(size)] < 0, -sign, sign)
    moved = bool((order != np.arange(size)).any() or (sign < 0).any())
    if moved:
        factor = sign[..., None]
        _put_back(values, layer, factor * entering[rows, order], factor * leaving[rows, order])
    return moved


def align(
    weights: Mapping[str, ArrayLike],
    layers: tuple[HiddenLayer, ...],
    reference: Mapping[str, ArrayLike] | None = None,
) -> Values:
    """Exchange, flip and scale hidden units so that every draw resembles a reference draw most.

    Layer by layer, the assignment of units that maximises the inner product of their incoming
    and outgoing weights with the reference's, repeated until no unit of any layer moves: the
    best for one hidden layer, a local optimum for several. Units that can be scaled get incoming
    and outgoing weights of equal norm first. No prediction changes.

    :param weights: draws by site, `(chain, draw, ...)`.
    :param layers: the result of :func:`find_hidden_layers`, or your own.
    :param reference: values by site, without axes of chains and draws; the last draw of the
        first chain where None.
    :return: draws of the same shapes.
    :raises KeyError: for a layer whose sites are absent.
    """
    given = {name: np.asarray(value) for name, value in weights.items()}
    sites = dict.fromkeys(n for la in layers for n in (la.incoming, *la.vectors, la.outgoing))
    if not layers:
        return given
    lead = next(iter(given.values())).shape[:2]
    flat = {name: given[name].reshape(-1, *given[name].shape[2:]) for name in sites}
    if reference is None:
        start = {name: value[lead[1] - 1 : lead[1]].copy() for name, value in flat.items()}
    else:
        start = {name: np.asarray(reference[name])[None] for name in sites}
    _canonical(start, layers)
    targets = [np.concatenate(_features(start, layer), axis=2)[0] for layer in layers]
    out = {name: np.empty_like(value) for name, value in flat.items()}
    for begin in range(0, lead[0] * lead[1], _BLOCK):
        some = {name: value[begin : begin + _BLOCK] for name, value in flat.items()}
        _canonical(some, layers)
        for _ in range(_SWEEPS if len(layers) > 1 else 1):
            moved = [_match(some, layer, t) for layer, t in zip(layers, targets)]
            if not any(moved):
                break
        for name, value in some.items():
            out[name][begin : begin + _BLOCK] = value
    return given | {name: value.reshape(given[name].shape) for name, value in out.items()}
