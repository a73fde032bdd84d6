"""Draws and rows for which leave-one-out by importance sampling gives wrong numbers, and shows no sign of it.

It weights draws of the posterior by one over the density of the row that is left out. That is the posterior
without this row where each row counts once, the draws have the temperature 1, and the density is that given
all that was drawn and nothing else: ``check_fit`` refuses others, and ``to_inference_data`` warns of them.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictions import Predictor
from numpyro_bnn.posterior.training_data import TrainingData
from numpyro_bnn.potential.data_dependencies import Place


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


def sites_from_priors(
    draws: Draws, x: PyTree, others: Mapping[Place, PyTree], **options: Any
) -> list[str]:
    """Latent sites that the target is computed from and that have no draws; predictions draw them."""
    model: Any = draws.model
    return Predictor(model, x, others=others, **options).sites_from_priors(draws)


def why_densities_are_of_priors(
    draws: Draws, data: TrainingData, site: str, batch_size: int | None
) -> str | None:
    """Why the densities of rows under each draw are not those of what was sampled; None where they are."""
    # Their average over draws is still the posterior predictive density. Weights of one over them go
    # to values of the prior that do not fit the row.
    model: Any = draws.model
    predictor = Predictor(model, data.x, others=data.others, batch_size=batch_size, site=site)
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
