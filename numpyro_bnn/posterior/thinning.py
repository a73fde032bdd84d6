"""A small posterior that ships: the draws whose average predicts most like that of all draws."""

from typing import Any

import jax
import numpy as np

from numpyro_bnn._checks import check_whole
from numpyro_bnn._types import PyTree
from numpyro_bnn.posterior.draws import Draws, Run, draws_of
from numpyro_bnn.posterior.fitted import inputs_of
from numpyro_bnn.posterior.prediction_sites import flat_draws
from numpyro_bnn.posterior.predictions import predict_some
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.training_data import training_data

# Most rows at which predictions are compared, and parts of equal probability that a continuous
# predictive distribution is cut into.
_ROWS = 200
_BINS = 20
# Rounds in which each chosen draw may be exchanged for a better one.
_ROUNDS = 3


def thin(run: Run, k: int, x: PyTree = None, **by_row: PyTree) -> Draws:
    """Choose the `k` draws whose average is nearest to the average of all draws, as a single chain.

    Draws are taken one by one, each so that the mean of those taken comes nearest to the whole (kernel
    herding, Chen, Welling and Smola 2010, with the kernel of the predictions themselves), and then exchanged
    while that helps. Predictions are compared at `x`: probabilities of classes, or of 20 parts of the range
    of the target that are equally likely on average.

    The chosen draws serve to predict. Their spread in the weights is not that of the posterior, and neither
    R-hat nor a Monte Carlo error can be computed from them: diagnose the run.

    :param run: an ``MCMC`` after `run`, what `fit` returned, a fitted estimator, or draws with a model.
    :param k: how many draws to keep, at most as many as there are.
    :param x: inputs like those that will be predicted; default: the inputs of the run. Of more than 200 rows
        200 are used.
    :param by_row: further arguments of the model by name, such as an offset of each row of x; default: those
        of the run.
    :return: draws with axes (1, k); ``info["thinned"]`` has ``"draws"``, the number of them before,
        ``"total_variation"``, the mean over rows of the total variation between the two averages (for a
        continuous target over the 20 parts), and ``"total_variation_99"``, its 99 % quantile over rows.
    :raises ValueError: for a `k` out of range, or inputs that are not known.

    >>> small = bnn.thin(run, 20, x_new)                                    # doctest: +SKIP
    >>> small.info["thinned"]["total_variation"]                            # doctest: +SKIP
    """
    draws = draws_of(run, owner="thin")
    k = check_whole("thin", "k", k)
    count = draws.num_chains * draws.num_draws
    if k > count:
        raise ValueError(f"thin: k={k} draws of {count} were asked for. Give at most {count}.")
    others: dict[Any, PyTree] = dict(by_row)
    if x is None:
        x, others = inputs_of(run), {**training_data("thin", draws.model, run).others, **others}
    if x is None:
        raise ValueError(
            "thin: the inputs of these draws are not known. Give x, inputs like those to be predicted."
        )
    x = np.asarray(x) if isinstance(x, list) else x
    size = np.shape(jax.tree.leaves(x)[0])[0]
    rows = np.unique(np.linspace(0, size - 1, _ROWS).round().astype(int))
    parts = _probabilities(predict_some("thin", draws, x, others, rows))
    chosen = _chosen(parts.reshape(count, -1), k)
    # In double precision: sums of many draws need more digits.
    few, all_draws = (each.mean(0, dtype=np.float64) for each in (parts[chosen], parts))
    distance = 0.5 * np.abs(few - all_draws).sum(-1)
    told = {
        "draws": count,
        "total_variation": float(distance.mean()),
        "total_variation_99": float(np.quantile(distance, 0.99)),
    }
    values = {name: flat_draws(np.asarray(value))[chosen][None] for name, value in draws.items()}
    return Draws(values, draws.model, info={**draws.info, "thinned": told})


def _probabilities(predictions: Predictions) -> np.ndarray:
    """Probabilities of classes, or of parts of the range of the target: (draw, row, part)."""
    if "probs" in predictions.values:
        probs = predictions.probs
        return probs.reshape(-1, *probs.shape[2:])
    edges = predictions.quantiles(np.arange(1, _BINS) / _BINS)
    below = np.stack([predictions.cdf_at(edge) for edge in edges], -1)
    below = below.reshape(-1, *below.shape[2:])
    ends = np.concatenate([np.zeros_like(below[..., :1]), below, np.ones_like(below[..., :1])], -1)
    parts = np.diff(ends, axis=-1)
    if parts.ndim > 3:
        # An output that is the same in all draws and rows, such as "not censored", does not count.
        varies = np.ptp(parts, axis=0).any((0, -1))
        parts = parts[:, :, varies] if varies.any() else parts
    return parts


def _chosen(flat: np.ndarray, k: int) -> np.ndarray:
    """Numbers of the draws to keep: greedily, then by exchanges."""
    flat = flat - flat.mean(0, dtype=np.float64).astype(flat.dtype)
    squares = np.einsum("ij,ij->i", flat, flat)
    total = np.zeros(flat.shape[1], flat.dtype)
    free = np.ones(len(flat), bool)
    chosen: list[int] = []

    def nearest() -> int:
        # |total + p|² but for a constant.
        return int(np.argmin(np.where(free, squares + 2 * flat @ total, np.inf)))

    for _ in range(k):
        best = nearest()
        chosen.append(best)
        free[best] = False
        total += flat[best]
    for _ in range(_ROUNDS):
        before = list(chosen)
        for place, old in enumerate(chosen):
            total -= flat[old]
            free[old] = True
            chosen[place] = best = nearest()
            free[best] = False
            total += flat[best]
        if chosen == before:
            break
    return np.sort(chosen)
