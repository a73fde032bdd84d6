"""Draws and rows for which leave-one-out by importance sampling gives wrong numbers, and shows no sign of it.

It weights draws of the posterior by one over the density of the row that is left out. That is the posterior
without this row where each row counts once and the draws have the temperature 1: ``check_fit`` refuses
others, and ``to_inference_data`` warns of them.
"""

from collections.abc import Collection

import numpy as np

from numpyro_bnn.posterior.draws import Draws


def why_not_the_posterior(draws: Draws) -> str | None:
    """Why draws are none of the posterior, and what to do; None where nothing is known against them.

    :param draws: draws of a run, of a file or of a mixture.
    """
    if "weights" in draws.info:
        return (
            "these draws are of a stacked mixture of chains, which is no posterior: leaving a row "
            "out would change the chains and their weights. Take the run itself, such as `fitted.mcmc`."
        )
    if "thinned" in draws.info:
        return (
            f"these are {draws.num_draws} draws chosen by `thin` for their average; they are no "
            "sample of the posterior. Take the run that they come from."
        )
    temperature = np.asarray(draws.stats.get("temperature", 1.0), np.float64)
    if not np.allclose(temperature, 1.0, rtol=0, atol=1e-6):
        return (
            f"these draws have temperature {np.ravel(temperature)[-1]:.3g}, and leave-one-out "
            "needs draws of the posterior, temperature 1. Run with `temperature=1`, or score rows that were "
            "held out (`bnn.scores.lppd`)."
        )
    return None


def why_rows_count_otherwise(site: str, weighted: Collection[str]) -> str | None:
    """Why the rows of an observed site do not count once each, and what to do; None where they do.

    :param site: the observed site.
    :param weighted: observed sites whose log density is multiplied by anything but 1.
    """
    if site not in weighted:
        return None
    return (
        f"the rows of this run have weights: the log density of '{site}' is multiplied by "
        "them (`weights=`, `handlers.scale`). A row of weight w counts as w rows, of which leave-one-out "
        "would leave out one. Fit with equal weights, or score rows that were held out."
    )
