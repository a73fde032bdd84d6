"""The models of the reference posteriors, as a user of this package would write them.

All are examples of R. M. Neal's software for flexible Bayesian modelling, described in *Bayesian Learning for
Neural Networks* (1996) and in the documentation of that software: one hidden layer of tanh units, a Gamma
precision of shape 0.25 over each group of parameters.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from numpyro_bnn import likelihoods, priors
from numpyro_bnn.models.random_module import MLP, random_module

_by_width = partial(priors.Hierarchical.width, group=0.5)
_NAMED = {
    "input to hidden": "net/Dense_0.kernel.precision",
    "hidden biases": "net/Dense_0.bias.precision",
    "hidden to output": "net/Dense_1.kernel.precision",
}


class Problem(NamedTuple):
    """A model, and what of its draws is graded.

    - **title** - what the data and the network are, in one line
    - **model** - ``model(x, y=None)``
    - **function** - the values of predictions that are graded: ``"mean"`` or ``"probs"``
    - **scales** - site of the precisions behind each scale, by name
    - **floor** - differences of functions below this do not count: the mean of a probability near 0 or 1 is
      made by few draws, and its error is not that of a normal law
    """

    title: str
    model: Callable
    function: str
    scales: dict[str, str]
    floor: float = 0.0


def _rdata(x: jax.Array, y: jax.Array | None = None) -> None:
    prior = priors.ByPath(
        {
            "Dense_0.kernel": _by_width(0.05),
            "Dense_0.bias": _by_width(0.05),
            "Dense_1.kernel": _by_width(0.05, scale_by_fan_in=True),
            "Dense_1.bias": priors.Normal(100.0),
        }
    )
    net = random_module("net", MLP([8], 1), prior, x[:1])
    noise = likelihoods.Precision.width(0.05, common=0.5)
    likelihoods.gaussian(net(x).squeeze(-1), y, noise=noise)


def _cdata(x: jax.Array, y: jax.Array | None = None) -> None:
    prior = priors.ByPath(
        {
            "Dense_0.kernel": _by_width(0.2, unit=1.0, scale_by_fan_in=True),
            "Dense_0.bias": _by_width(0.05),
            "Dense_1.kernel": _by_width(0.05, scale_by_fan_in=True),
            "Dense_1.bias": _by_width(0.05),
        }
    )
    net = random_module("net", MLP([8], 3), prior, x[:1])
    likelihoods.categorical(net, y, x=x)


PROBLEMS = {
    "rdata": Problem(
        "regression of one noisy function on 100 rows, network 1-8-1; two modes",
        _rdata,
        "mean",
        _NAMED | {"noise": "y.precision"},
    ),
    "cdata": Problem(
        "three classes from four inputs on 400 rows, network 4-8-3, a precision for each input",
        _cdata,
        "probs",
        _NAMED | {"each input": "net/Dense_0.kernel.unit_precision"},
        floor=0.005,
    ),
}
NAMES = tuple(PROBLEMS)
