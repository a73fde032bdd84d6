"""Scores that compare predictive distributions, and the parts of their uncertainty.

No target is needed here: how similarly two posteriors predict (agreement, total variation,
Wasserstein distance), how much of the uncertainty is in the data and how much in the weights,
and whether uncertainty separates unfamiliar inputs from familiar ones. Shapes, predictions and `pointwise`
are as in :mod:`numpyro_bnn.scores`, through which all of these are reached.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy
from scipy.stats import rankdata, wasserstein_distance

from numpyro_bnn.data.units import row_blocks
from numpyro_bnn.scores import inputs
from numpyro_bnn.scores.inputs import Scored


def _pair(name: str, p: Scored, q: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Two tables of averaged probabilities, checked to have the same rows and classes."""
    first = inputs.mean_probabilities(name, p)
    second = inputs.mean_probabilities(name, q)
    if first.shape != second.shape:
        raise ValueError(
            f"scores.{name}: both predictions need the same rows and classes, got "
            f"{first.shape} and {second.shape}. Predict at the same inputs."
        )
    return first, second


def agreement(p: Scored, q: Scored, *, pointwise: bool = False) -> float | np.ndarray:
    """Share of inputs at which two predictive distributions name the same class.

    `1/n sum_i 1[argmax_c p_ic = argmax_c q_ic]` of the averages over draws: Izmailov et al.
    2021 (arXiv:2104.14421), "What are Bayesian neural network posteriors really like?",
    section on fidelity to HMC.

    :param p: `(..., n, classes)` probabilities, or predictions.
    :param q: probabilities or draws of the other posterior, like `p`; the number of draws may differ.
    :param pointwise: give 0/1 for each input.
    :return: a share between 0 and 1.
    :raises ValueError: for what are not probabilities, or other rows or classes.

    >>> agreement([[0.9, 0.1], [0.4, 0.6]], [[0.6, 0.4], [0.7, 0.3]])
    0.5
    """
    first, second = _pair("agreement", p, q)
    rows = (first.argmax(axis=1) == second.argmax(axis=1)).astype(np.float64)
    return rows if pointwise else float(rows.mean())


def total_variation(p: Scored, q: Scored, *, pointwise: bool = False) -> float | np.ndarray:
    """Total variation distance of two predictive distributions, mean over inputs.

    `1/n sum_i 1/2 sum_c |p_ic - q_ic|` of the averages over draws: Izmailov et al. 2021
    (arXiv:2104.14421).

    :param p: `(..., n, classes)` probabilities, or predictions.
    :param q: probabilities or draws of the other posterior, like `p`; the number of draws may differ.
    :param pointwise: give `(n,)` values in place of their mean.
    :return: a number between 0 and 1.
    :raises ValueError: for what are not probabilities, or other rows or classes.

    >>> round(total_variation([[0.9, 0.1]], [[0.6, 0.4]]), 6)
    0.3
    """
    first, second = _pair("total_variation", p, q)
    rows = 0.5 * np.abs(first - second).sum(axis=1)
    return rows if pointwise else float(rows.mean())


def _wasserstein_rows(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Exact 1-d distances between `p (a, n)` and `q (b, n)`, one for each column."""
    if p.shape[0] == q.shape[0]:
        # Equal numbers of samples: the optimal plan pairs them in order.
        return np.abs(np.sort(p, axis=0) - np.sort(q, axis=0)).mean(axis=0)
    return np.array([wasserstein_distance(p[:, i], q[:, i]) for i in range(p.shape[1])])


def wasserstein(
    p: Scored,
    q: Scored,
    *,
    event_dim: int | None = None,
    num_projections: int = 64,
    seed: int = 0,
    pointwise: bool = False,
) -> float | np.ndarray:
    """1-Wasserstein distance between the draws of two predictions, mean over inputs.

    At each input the two sets of draws are compared as distributions, so two posteriors with
    the same average but other spread differ. One number a draw: exact. A vector a draw (class
    probabilities): sliced, the mean over random directions u on the sphere of the exact distance
    between `u . p_s` and `u . q_s` (Bonneel et al. 2015, with exponent 1). Several outputs or labels a row
    are compared one by one, and averaged within the row.

    :param p: draws `(..., n)`, or `(..., n, event)` with `event_dim=1`; or predictions, of
        which the class probabilities or else the means are compared, `(chain, draw, n, ...)`.
    :param q: probabilities or draws of the other posterior, like `p`; the number of draws may differ.
    :param event_dim: 0 or 1; for predictions it is known. Default: 0 for arrays.
    :param num_projections: directions of the sliced distance.
    :param seed: seed of the directions; the same directions serve every input and every call.
    :param pointwise: give `(n,)` values in place of their mean.
    :return: the distance in the units of the draws.
    :raises ValueError: for NaN, or other rows.

    >>> wasserstein([[0.0], [1.0]], [[2.0], [3.0]])
    2.0
    """
    known = next((x for x in (p, q) if inputs.is_predictions(x)), None)
    key = "mean"
    if known is not None:
        key = "probs" if "probs" in known.values else "mean"
        event_dim = 1 if key == "probs" else 0
    event_dim = 0 if event_dim is None else event_dim
    arrays = [inputs.values_of("wasserstein", x, key) for x in (p, q)]
    axes = 1 + event_dim
    if known is not None:
        # Predictions have two axes of draws, and all others are those of rows and their outputs.
        axes = known.values[key].ndim - 2
    tails = [array.shape[max(0, array.ndim - axes) :] for array in arrays]
    if tails[0] != tails[1] or len(tails[0]) != axes:
        raise ValueError(
            f"scores.wasserstein: both need the same inputs in the last {axes} axes, "
            f"got shapes {arrays[0].shape} and {arrays[1].shape}. Predict at the same inputs, "
            f"and say event_dim=1 when each draw is a vector."
        )
    like = np.zeros(tails[0])
    first, second = (inputs.draws_like("wasserstein", "draws", a, like) for a in arrays)
    # Each output of a row, or label, is compared by itself.
    entries = tails[0][: axes - event_dim]
    event = tails[0][axes - event_dim :]
    first, second = (a.reshape(len(a), -1, *event) for a in (first, second))
    found = np.zeros(first.shape[1])
    if event_dim == 0:
        for block in row_blocks(found.size, len(first) + len(second)):
            found[block] = _wasserstein_rows(
                first[:, block].astype(np.float64), second[:, block].astype(np.float64)
            )
    else:
        directions = np.random.default_rng(seed).normal(size=(num_projections, event[0]))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        for block in row_blocks(found.size, (len(first) + len(second)) * event[0]):
            for u in directions:
                found[block] += _wasserstein_rows(first[:, block] @ u, second[:, block] @ u)
        found /= num_projections
    rows = found.reshape(entries[0], -1).mean(axis=1)
    return rows if pointwise else float(rows.mean())


def _entropy_rows(probs: np.ndarray) -> np.ndarray:
    """Entropy over the last axis in nats; 0 log 0 = 0, and rounding below 0 counts as 0."""
    p = np.maximum(probs.astype(np.float64), 0.0)
    # The sum is subtracted from zero, because minus zero would print as -0.
    return 0.0 - xlogy(p, p).sum(axis=-1)


def entropy(probs: Scored) -> np.ndarray:
    """Entropy of the averaged class probabilities at each input: the total uncertainty.

    :param probs: `(..., n, classes)`, or predictions.
    :return: `(n,)` nats, from 0 to log(classes).
    :raises ValueError: for what are not probabilities.

    >>> entropy([[0.5, 0.5], [1.0, 0.0]]).round(6)
    array([0.693147, 0.      ])
    """
    return _entropy_rows(inputs.mean_probabilities("entropy", probs))


class Uncertainty(NamedTuple):
    """Uncertainty at each input and its two parts, `total = aleatoric + epistemic`.

    - **total** - entropy (nats) or variance (squared units) of the posterior predictive.
    - **aleatoric** - mean over draws of the uncertainty under each draw, which more data would not reduce.
    - **epistemic** - disagreement of the draws, which more data would reduce.
    """

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


def uncertainty(predictions: Scored, scale: ArrayLike | None = None) -> Uncertainty:
    """Total uncertainty of the predictive, split into aleatoric and epistemic.

    Classification, by entropies: `H[E p] = E H[p] + I`, where I is the mutual information of label
    and weights (Houlsby et al. 2011, arXiv:1112.5745, eq. 2). Regression, by variances:
    `Var y = E scale^2 + Var mean`, the total variance over the draws, with S in the
    denominator so that the parts sum exactly. Both in Depeweg et al. 2018 (arXiv:1710.07283).

    What predictions draw from a prior, such as latent values of single rows without draws, differs from draw
    to draw, and is counted as epistemic.

    :param predictions: probabilities `(..., n, classes)`; with `scale`, means
        `(..., n)`; or predictions of either kind.
    :param scale: standard deviations: one number, or an array with the axes of the means.
    :return: three arrays `(n,)`: nats, or squared units of the target; `(n, outputs)` for predictions of
        several outputs.
    :raises ValueError: for what are not probabilities, or a scale that is not positive.
    """
    if inputs.is_predictions(predictions) and "probs" not in predictions.values:
        scale = inputs.values_of("uncertainty", predictions, "scale")
    if scale is None:
        probs = inputs.probabilities("uncertainty", predictions)
        total = _entropy_rows(probs.mean(axis=0, dtype=np.float64))
        aleatoric = np.zeros(probs.shape[1])
        for block in row_blocks(probs.shape[1], probs.shape[0] * probs.shape[2]):
            aleatoric[block] = _entropy_rows(probs[:, block]).mean(axis=0)
        # It is not negative by Jensen's inequality, but rounding could make it -1e-17.
        return Uncertainty(total, aleatoric, np.maximum(total - aleatoric, 0.0))
    means = inputs.values_of("uncertainty", predictions, "mean")
    # Predictions know their axes of draws; arrays have one axis of rows after them.
    like = np.zeros(means.shape[2 if inputs.is_predictions(predictions) else -1 :])
    scales = inputs.scale_like("uncertainty", scale, means)
    means = inputs.draws_like("uncertainty", "mean", means, like)
    scales = inputs.draws_like("uncertainty", "scale", scales, like)
    aleatoric = np.square(scales, dtype=np.float64).mean(axis=0)
    epistemic = means.var(axis=0, dtype=np.float64)
    return Uncertainty(aleatoric + epistemic, aleatoric, epistemic)


def ood_auroc(scores_in: Scored, scores_out: Scored) -> float:
    """Area under the ROC curve of telling unfamiliar inputs from familiar ones.

    `P(score_out > score_in) + 1/2 P(equal)` of one random input of each kind (Hanley & McNeil
    1982): 1 separates them, 1/2 is chance. Higher scores must mean "unfamiliar".

    :param scores_in: `(n,)` scores of familiar inputs, or predictions of class probabilities: their entropy.
    :param scores_out: `(m,)` scores of unfamiliar ones, or predictions.
    :return: a number between 0 and 1.
    :raises ValueError: for other shapes, or NaN.

    >>> ood_auroc([0.1, 0.2, 0.3], [0.25, 0.9])
    0.8333333333333334
    """
    sides = []
    for what, given in (("scores_in", scores_in), ("scores_out", scores_out)):
        values = entropy(given) if inputs.is_predictions(given) else np.asarray(given)
        if values.ndim != 1 or values.size == 0 or np.isnan(values).any():
            raise ValueError(
                f"scores.ood_auroc: {what} must hold one number for each input and no NaN, got "
                f"shape {values.shape}. Pass e.g. scores.entropy(probs)."
            )
        sides.append(values)
    ranks = rankdata(np.concatenate(sides))
    num_in, num_out = sides[0].size, sides[1].size
    above = ranks[num_in:].sum() - num_out * (num_out + 1) / 2
    return float(above / (num_in * num_out))
