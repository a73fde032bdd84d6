"""Weights for chains, members or whole methods, by how well they predict held-out rows together.

Chains of a Bayesian neural network sit in different modes, and how many of them ended up in which
says nothing about the posterior. Stacking asks which mixture of their predictions is best: the
weights maximise the mean log score

    1/n Σ_i log Σ_k w_k p_k(y_i),    w_k ≥ 0, Σ_k w_k = 1,

of rows that were not trained on. The problem is concave, and solved by expectation maximisation,
w_k ← w_k · 1/n Σ_i p_k(y_i) / Σ_j w_j p_j(y_i), until the mean score is within a tolerance of the
optimum: no other mixture is better by more than max_k 1/n Σ_i p_k(y_i) / Σ_j w_j p_j(y_i) - 1.

Sources: Yao, Vehtari, Simpson and Gelman, *Using stacking to average Bayesian predictive
distributions* (2018), eq. 5, with held-out rows in place of leave-one-out densities; chains: Yao,
Vehtari and Gelman, *Stacking for non-mixing Bayesian computations* (2022).
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from numpyro_bnn._checks import check_key, check_whole
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import by_name, names_of
from numpyro_bnn.posterior.draws import Draws, Run, draws_of
from numpyro_bnn.posterior.prediction_sites import flat_draws
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.training_data import observed_targets

_MOST_STEPS = 200_000


def stacking_weights(log_scores: ArrayLike, tolerance: float = 1e-6) -> np.ndarray:
    """The mixture of predictions with the highest mean log score.

    :param log_scores: log densities of held-out rows in nats, (component, row), or with draws,
        (component, draw, row), which are averaged as densities. Leave-one-out log densities
        of the training rows, such as ArviZ's, serve as well; densities of rows that were trained
        on do not.
    :param tolerance: largest loss of mean score against the optimum, nats a row.
    :return: weights (component,), at least 0 and 1 in all.
    :raises ValueError: for NaN or plus infinity, or a row that every component holds impossible.

    >>> stacking_weights([[-1.0, -1.0, -5.0], [-5.0, -5.0, -5.0]]).round(3)
    array([1., 0.])
    """
    scores = np.asarray(log_scores, np.float64)
    if scores.ndim == 3:
        scores = logsumexp(scores, axis=1) - np.log(scores.shape[1])
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ValueError(
            "stacking_weights: log_scores must not be NaN or plus infinity; leave out the "
            f"components {sorted({int(k) for k in np.argwhere(~(scores < np.inf))[:, 0]})}."
        )
    impossible = np.flatnonzero(np.isneginf(scores).all(0))
    if impossible.size:
        raise ValueError(
            f"stacking_weights: every component holds row {impossible[0]} impossible, so that no "
            "mixture has a finite score. Leave the row out."
        )
    densities = np.exp(scores - scores.max(0))
    weights = np.full(len(scores), 1 / len(scores))
    for _ in range(_MOST_STEPS):
        gain = (densities / (weights @ densities)).mean(1)
        if gain.max() - 1 <= tolerance:
            break
        weights *= gain
    return weights / weights.sum()


def stack(
    run: Run,
    x: PyTree,
    y: ArrayLike,
    *,
    key: jax.Array,
    num_samples: int | None = None,
    **options: Any,
) -> Draws:
    """Draws from the stacked mixture of the chains (or members) of one run.

    For a mixture of different models give the log densities of their predictions to
    :func:`stacking_weights`.

    :param run: an ``MCMC`` after `run`, what `fit` returned, a fitted estimator, or draws, with a model.
    :param x: held-out inputs, not trained on.
    :param y: their targets, as the model takes them: it may observe their logarithm.
    :param key: random key, which draws are taken.
    :param num_samples: draws to take from all chains, in proportion to their weights (systematic
        resampling: each chain's share is right to one draw); as many as there are by default.
    :param options: options of :func:`numpyro_bnn.predict`, among them other arguments by row.
    :return: one chain: the draws of the first chain in their order, then those of the second, …;
        ``info["weights"]`` has the weight of each chain. They have no Monte Carlo error of their own: that is
        for the run, ``diagnose(run, x)``.
    :raises ValueError: if `num_samples` is not positive, or as :func:`stacking_weights`.
    """
    check_key("stack", key)
    draws = draws_of(run, owner="stack")
    chains, length = draws.num_chains, draws.num_draws
    count = chains * length if num_samples is None else num_samples
    count = check_whole("stack", "num_samples", count)
    predictions = predict(None, draws, x, **options)
    taken_by_model = names_of(draws.model)
    by_row: dict[int | str, Any] = {n: v for n, v in options.items() if n in taken_by_model}
    model = draws.bound_to(by_name(draws.model, by_row)).model
    observed = observed_targets("stack", run, model, x, y, options.get("site"))
    weights = stacking_weights(predictions.log_prob(observed))
    points = (np.arange(count) + float(jax.random.uniform(key))) / count
    ends = np.cumsum(weights)
    chain = np.minimum(np.searchsorted(ends, points, side="right"), chains - 1)
    # The points of one chain spread evenly over its draws.
    within = (points - (ends - weights)[chain]) / weights[chain] * length
    taken = chain * length + np.clip(within.astype(int), 0, length - 1)
    chosen = {name: flat_draws(np.asarray(value))[taken][None] for name, value in draws.items()}
    return Draws(chosen, draws.model, info=draws.info | {"weights": [float(w) for w in weights]})
