"""Leave-one-out by Pareto-smoothed importance sampling (ArviZ), and draws for which it would be wrong.

It weights draws of the posterior by one over the density of the row that is left out. That is the posterior
without this row where each row counts once, the draws have the temperature 1, and the density is that given
all that was drawn and nothing else: ``check_fit`` refuses others, and ``to_inference_data`` warns of them.
"""

import warnings
from collections.abc import Collection
from importlib import import_module
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictions import Predictor
from numpyro_bnn.scores.against_targets import lppd


class Smoothed(NamedTuple):
    """Importance weights of draws for the posterior without each row."""

    # (chain, draw, row), smoothed; over all draws their exponentials add up to 1
    log_weights: np.ndarray
    # Shape of the tail of the weights, (row,); weights above good_k are not reliable
    pareto_k: np.ndarray
    good_k: float  # depends on the number of draws, at most 0.7


def smoothed(log_likelihood: np.ndarray, relative_size: float) -> Smoothed:
    """Weights of one over the density of each row, the largest of them smoothed by ArviZ."""
    # Vehtari, Simpson, Gelman, Yao and Gabry, *Pareto smoothed importance sampling* (2024). Rows whose
    # largest weights are all equal, as in chains that do not move, have no tail that a Pareto distribution
    # could be fitted to, and generations of ArviZ differ in what they do. Their weights stay as they are, and
    # k̂ is infinite; 0 for a row with one density under all draws: leaving it out changes nothing.
    log_likelihood = np.asarray(log_likelihood, np.float64)
    log_mean = np.asarray(lppd(-log_likelihood, pointwise=True))
    log_weights = -log_likelihood - log_mean - np.log(log_likelihood[..., 0].size)
    pareto_k = np.where(np.ptp(log_likelihood, axis=(0, 1)) > 0, np.inf, 0.0)
    tail = _has_tail(log_likelihood, relative_size)
    if tail.any():
        found = _smoothed_by_arviz(log_likelihood[..., tail], relative_size)
        log_weights[..., tail], pareto_k[tail] = found
    good_k = min(1 - 1 / np.log10(log_likelihood[..., 0].size), 0.7)
    return Smoothed(log_weights, pareto_k, good_k)


def _has_tail(log_likelihood: np.ndarray, relative_size: float) -> np.ndarray:
    """Whether the largest importance weights of a row, those of its lowest densities, differ, (row,)."""
    flat = log_likelihood.reshape(-1, log_likelihood.shape[-1])
    # As many as the tail has, by section 2.4 of the source.
    count = int(min(len(flat) / 5, 3 * np.sqrt(len(flat) / relative_size)))
    ordered = np.partition(flat, (0, count - 1), axis=0)
    return np.asarray(ordered[0] < ordered[count - 1])


def _smoothed_by_arviz(
    log_likelihood: np.ndarray, relative_size: float
) -> tuple[np.ndarray, np.ndarray]:
    """Smoothed log weights, like the densities, and k̂ of each row."""
    flat = log_likelihood.reshape(-1, log_likelihood.shape[-1]).T
    # Imported here, because ArviZ takes a second or more to import. Callers warn of rows with a large k̂.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if version("arviz").startswith("0."):
            log_weights, k = import_module("arviz").psislw(-flat, relative_size)
        else:
            # From ArviZ 1 this takes log densities, not log weights.
            array_stats = import_module("arviz_stats.base").array_stats
            log_weights, k = array_stats.psislw(flat, relative_size)
    return log_weights.T.reshape(log_likelihood.shape), k


def why_not_the_posterior(draws: Draws) -> str | None:
    """Why draws are none of the posterior, and what to do; None where nothing is known against them."""
    if "weights" in draws.info:
        return (
            "these draws are of a stacked mixture of chains, which is no posterior: other rows would "
            "change the chains and their weights. Take the run itself, such as `fitted.mcmc`."
        )
    if "thinned" in draws.info:
        return (
            f"these are {draws.num_draws} draws chosen by `thin` for their average; they are no "
            "sample of the posterior. Take the run that they come from."
        )
    temperature = np.asarray(draws.stats.get("temperature", 1.0), np.float64)
    if not np.allclose(temperature, 1.0, rtol=0, atol=1e-6):
        return (
            f"these draws have temperature {np.ravel(temperature)[-1]:.3g}, and weights by densities of rows "
            "are for draws of the posterior, temperature 1. Run with `temperature=1`, or score rows that "
            "were held out (`bnn.scores.lppd`)."
        )
    return None


def why_rows_count_otherwise(site: str, weighted: Collection[str]) -> str | None:
    """Why the rows of an observed site do not count once each, and what to do; None where they do."""
    if site not in weighted:
        return None
    return (
        f"the rows of this run have weights: the log density of '{site}' is multiplied by "
        "them (`weights=`, `handlers.scale`). A row of weight w counts as w rows, of which leave-one-out "
        "would leave out one. Fit with equal weights, or score rows that were held out."
    )


def why_densities_are_of_priors(predictor: Predictor, draws: Draws, site: str) -> str | None:
    """Why the densities of rows under each draw are not those of what was sampled; None where they are."""
    # Their average over draws is still the posterior predictive density. Weights of one over them go
    # to values of the prior that do not fit the row.
    if predictor.structure.takes_keys:
        return (
            "the model draws random numbers that are no sites, as dropout does: the fit has one draw of "
            f"them, and densities of '{site}' would be those given others. Leave dropout out."
        )
    if not (found := predictor.sites_from_priors(draws)):
        return None
    return (
        f"there are no draws of the latent sites {found}, from which '{site}' is computed. Each draw would "
        "get values of them from their priors, and one over the density given such a value is no weight for "
        "the posterior without the row. Record these sites: run without `record=`, or let it keep them. A "
        "discrete site that NumPyro sums out has no draws: write the target as one distribution, "
        "`dist.MixtureSameFamily(dist.Categorical(…), …)`. A site that the fit observed: condition the model "
        "on its values."
    )
