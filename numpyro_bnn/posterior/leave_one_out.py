"""Leave-one-out by Pareto-smoothed importance sampling (ArviZ), and draws for which it would be wrong.

It weights draws of the posterior by one over the density of the row that is left out. That is the posterior
without this row where each row counts once, the draws have the temperature 1, and the density is that given
all that was drawn and nothing else: ``check_fit`` refuses others, and ``to_inference_data`` warns of them.
"""

import warnings
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictions import Predictor

_DRAWS = ("chain", "draw")


class Smoothed(NamedTuple):
    """Importance weights of draws for the posterior without each row, and what they estimate."""

    # (chain, draw, row), smoothed; over all draws their exponentials add up to 1
    log_weights: np.ndarray
    elpd: float  # sum over rows of the leave-one-out log predictive densities, nats
    se: float  # its standard error over rows
    p_loo: float  # effective number of parameters: how much lower elpd is than with the rows
    by_row: np.ndarray  # leave-one-out log predictive densities, (row,)
    # Shape of the tail of the weights, (row,); weights above good_k are not reliable
    pareto_k: np.ndarray
    good_k: float  # depends on the number of draws, at most 0.7


def smoothed(log_likelihood: np.ndarray, relative_size: float) -> Smoothed:
    """What ArviZ's ``loo`` finds, and the weights that it found it with; in either generation of ArviZ."""
    # Vehtari, Simpson, Gelman, Yao and Gabry, *Pareto smoothed importance sampling* (2024). Rows whose
    # largest weights are all equal, as in chains that do not move, have no tail that a Pareto distribution
    # could be fitted to, and generations of ArviZ differ in what they do. Their weights stay as they are, and
    # k̂ is infinite; 0 for a row with one density under all draws: leaving it out changes nothing.
    log_likelihood = np.asarray(log_likelihood, np.float64)
    has_tail = _has_tail(log_likelihood, relative_size)
    if has_tail.all():
        return _of_arviz(log_likelihood, relative_size)
    plain = _not_smoothed(log_likelihood)
    if not has_tail.any():
        return plain
    found = _of_arviz(log_likelihood[..., has_tail], relative_size)
    for name in ("log_weights", "by_row", "pareto_k"):
        getattr(plain, name)[..., has_tail] = getattr(found, name)
    return _with_sums(plain, log_likelihood)


def _has_tail(log_likelihood: np.ndarray, relative_size: float) -> np.ndarray:
    """Whether the largest importance weights of a row, those of its lowest densities, differ, (row,)."""
    flat = log_likelihood.reshape(-1, log_likelihood.shape[-1])
    # As many as the tail has, by section 2.4 of the source.
    count = int(min(len(flat) / 5, 3 * np.sqrt(len(flat) / relative_size)))
    ordered = np.partition(flat, (0, count - 1), axis=0)
    return np.asarray(ordered[0] < ordered[count - 1])


def _not_smoothed(log_likelihood: np.ndarray) -> Smoothed:
    """Weights of one over the density of a row."""
    log_weights = -log_likelihood - logsumexp(-log_likelihood, axis=(0, 1))
    by_row = logsumexp(log_weights + log_likelihood, axis=(0, 1))
    k = np.where(np.ptp(log_likelihood, axis=(0, 1)) > 0, np.inf, 0.0)
    good_k = min(1 - 1 / np.log10(log_likelihood[..., 0].size), 0.7)
    return _with_sums(
        Smoothed(log_weights, np.nan, np.nan, np.nan, by_row, k, good_k), log_likelihood
    )


def _with_sums(rows: Smoothed, log_likelihood: np.ndarray) -> Smoothed:
    """The sums over rows, of what is known of each."""
    with_rows = logsumexp(log_likelihood, axis=(0, 1)) - np.log(log_likelihood[..., 0].size)
    elpd = float(rows.by_row.sum())
    se = float(np.sqrt(rows.by_row.size * rows.by_row.var()))
    return rows._replace(elpd=elpd, se=se, p_loo=float(with_rows.sum()) - elpd)


def _of_arviz(log_likelihood: np.ndarray, relative_size: float) -> Smoothed:
    # Imported here, because ArviZ takes a second or more to import. From its release 1 these are apart.
    az = import_module("arviz" if version("arviz").startswith("0.") else "arviz_stats")
    import xarray as xr

    data = xr.Dataset({"y": ((*_DRAWS, "row"), log_likelihood)})
    # ArviZ 1 warns at the old name and returns xarray's tree.
    own = vars(az).get("InferenceData")
    with warnings.catch_warnings():
        # Callers warn of rows with a large k.
        warnings.simplefilter("ignore")
        if own is None:
            tree = xr.DataTree.from_dict({"log_likelihood": data})
            found = az.loo(tree, pointwise=True, reff=relative_size)
            elpd, p_loo = found.elpd, found.p
            by_row, weights = found.elpd_i, found.log_weights
        else:
            found = az.loo(
                own(log_likelihood=data), pointwise=True, reff=relative_size, scale="log"
            )
            elpd, p_loo = found.elpd_loo, found.p_loo
            by_row, weights = found.loo_i, _weights(az.psislw, data["y"], relative_size)
    return Smoothed(
        weights.transpose(*_DRAWS, "row").values,
        float(elpd),
        float(found.se),
        float(p_loo),
        np.asarray(by_row.values),
        np.asarray(found.pareto_k.values),
        float(found.good_k),
    )


def _weights(psislw: Callable, log_likelihood: Any, relative_size: float) -> Any:
    """The smoothed weights, which ``loo`` of ArviZ 0.23 does not give."""
    stacked = log_likelihood.stack(__sample__=_DRAWS)
    return psislw(-stacked, relative_size)[0].unstack("__sample__")


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
