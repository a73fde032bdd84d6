"""A ladder from a learned reference in place of the prior: distributions of precisions, and their effects.

The first rung draws precisions and noise from log-normal distributions q with the moments of a first short
run. The prior p of the model comes in as the factor p/q, which is tempered with the likelihood: posterior and
evidence are those of the model.

Source: N. Surjanovic, S. Syed, A. Bouchard-Côté and T. Campbell, *Parallel tempering with a variational
reference*, NeurIPS 2022. Here the path is linear, the distribution is learned once, and only of precisions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from numpyro_bnn.potential.potential import Values
from numpyro_bnn.samplers.gibbs.moves import Bound
from numpyro_bnn.samplers.gibbs.precision_gibbs import redrawn

# Mean and standard deviation of the logarithm, by name of a site.
Moments = Mapping[str, tuple[float, float]]
# A standard deviation that short runs cannot be trusted to be below.
_LEAST_DEVIATION = 0.05


def with_reference(model: Callable, moments: Moments) -> Callable:
    """The model with log-normal priors q in place of the priors p of some sites, and the factor p/q.

    At power 1 it is the model itself; at power 0 its prior is q. Tempering raises factors to the power of the
    likelihood, so that evidence remains that of the model. Without a target it is the model.

    :param model: a model of inputs and a target.
    :param moments: mean and standard deviation of the logarithm of each such site.
    """

    def tempered_from_reference(x: Any, y: Any = None) -> Any:
        if y is None:
            return model(x)
        replaced = _Replaced(moments)
        with replaced:
            value = model(x, y)
        numpyro.factor("reference.log_ratio", replaced.log_ratio)
        return value

    return tempered_from_reference


class _Replaced(Messenger):
    """Handler that draws scalar sites from log-normal distributions, and sums log p - log q there."""

    def __init__(self, moments: Moments) -> None:
        self.moments = moments
        self.priors: dict[str, dist.Distribution] = {}
        self.log_ratio = jnp.zeros(())
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["name"] not in self.moments:
            return
        self.priors[msg["name"]] = msg["fn"]
        msg["fn"] = dist.LogNormal(*self.moments[msg["name"]])
        # The Gamma conditionals of the model are not those of its rungs any more.
        msg["infer"] = {k: v for k, v in msg["infer"].items() if k != "hierarchy"}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.priors:
            logs = (q.log_prob(msg["value"]) for q in (self.priors[msg["name"]], msg["fn"]))
            self.log_ratio = self.log_ratio + next(logs) - next(logs)


class ReferenceRedraw:
    """A move that draws precisions anew given the weights, on the rungs of :func:`with_reference`.

    With r = log p - log q the density of a rung is p(τ) p(w | τ) exp(-(1 - b) r(τ)) times the likelihood's
    power: a draw from the conditional of the model is accepted by the last factor, each precision alone.

    :param model: the model without the reference.
    :param moments: those of the reference.
    """

    def __init__(self, model: Callable, moments: Moments) -> None:
        self.model = model
        self.moments = moments

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        """New constrained values of all latent sites."""
        plain = Bound(self.model, bound.args, bound.kwargs)
        levels = plain.levels("ReferenceRedraw", values)
        sites = plain.sites(values)
        key_draw, key_accept = jax.random.split(key)
        new, kept = redrawn(key_draw, levels, values), dict(values)
        for i, (name, level) in enumerate(levels.items()):
            if level.parent is not None or level.children:
                raise ValueError(f"ReferenceRedraw: '{name}' has precisions above or below it.")
            prior, reference = sites[name]["fn"], dist.LogNormal(*self.moments[name])
            before, after = (
                prior.log_prob(at[name]) - reference.log_prob(at[name]) for at in (values, new)
            )
            gain = (1 - bound.power) * (before - after)
            accepted = -jax.random.exponential(jax.random.fold_in(key_accept, i)) <= gain
            kept[name] = jnp.where(accepted, new[name], values[name])
        return kept


def log_moments(draws: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the logarithms of scalar sites, over all chains and draws."""
    logs = {name: np.log(np.asarray(draws[name], np.float64)) for name in names}
    return {
        name: (float(log.mean()), max(float(log.std()), _LEAST_DEVIATION))
        for name, log in logs.items()
    }
