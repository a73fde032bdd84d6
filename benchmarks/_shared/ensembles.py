"""Deep ensembles that are stopped early, and mixtures of their predictions with one noise."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from scipy.special import logsumexp
from scipy.stats import norm

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from numpyro_bnn.posterior.predictive_draws import Predictions

# Standard deviations of the noise that are tried, in units of the target.
NOISES = np.geomspace(1e-3, 1, 121)


def log_mixture(means: np.ndarray, noise: float, y: np.ndarray) -> np.ndarray:
    """Log density of targets under the average of members (member, row), all with the same noise."""
    return logsumexp(norm(means, noise).logpdf(y), 0) - np.log(len(means))


def fitted_noise(means: np.ndarray, y: np.ndarray) -> float:
    """The noise of :data:`NOISES` with the best log score of rows that no member was trained on."""
    return max(NOISES, key=lambda sd: log_mixture(means, sd, y).mean())


class Ensemble(NamedTuple):
    """What trained networks say of rows that they were not trained on."""

    predictions: Predictions  # of the test rows, with the noise that each network learned
    means: np.ndarray  # of the test rows, (member, row)
    noise: float  # of the networks together, the best for the rows held out
    own_noise: list[float]  # the same of each network alone


def stopped_early(
    hidden: tuple[int, ...],
    activation: Callable,
    split: Split,
    seed: int,
    num_members: int,
    num_steps: int,
) -> Ensemble:
    """Networks with N(0, 1) weights from different starts, stopped by a tenth of the rows, held out."""

    def model(x, y=None):
        module = MLPByFeatures(hidden, 1, activation)
        net = bnn.random_module("net", module, bnn.priors.Normal(1.0), x[:1])
        noise = dist.HalfNormal(1.0)
        bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=noise)

    x, y, x_test, _ = split
    fit = len(y) - max(2, len(y) // 10)
    members = bnn.deep_ensemble(
        model,
        jax.random.key(seed),
        x[:fit],
        y[:fit],
        validation=(x[fit:], y[fit:]),
        num_members=num_members,
        num_steps=num_steps,
        progress_bar=False,
    )
    predictions = bnn.predict(model, members, x_test)
    held_out, means = (
        np.asarray(found.mean, np.float64).reshape(num_members, -1)
        for found in (bnn.predict(model, members, x[fit:]), predictions)
    )
    own = [fitted_noise(mean[None], y[fit:]) for mean in held_out]
    return Ensemble(predictions, means, fitted_noise(held_out, y[fit:]), own)
