"""The models of the reference posteriors, as a user of this package would write them.

Five are examples of R. M. Neal's software for flexible Bayesian modelling, described in *Bayesian Learning
for Neural Networks* (1996) and in the documentation of that software: one hidden layer of tanh units, a Gamma
precision over each group of parameters. The sixth is a network on the handwritten digits of scikit-learn, the
test set of E. Alpaydin and C. Kaynak (UCI, 1998).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_bnn import likelihoods, priors
from numpyro_bnn.models.random_module import MLP, random_module

Functions = Callable[[Mapping[str, Any], Any], Any]

_by_width = partial(priors.Hierarchical.width, group=0.5)
_NAMED = {
    "input to hidden": "net/Dense_0.kernel.precision",
    "hidden biases": "net/Dense_0.bias.precision",
    "hidden to output": "net/Dense_1.kernel.precision",
}


class Problem(NamedTuple):
    """A model ``model(x, y=None)``, and what of its draws is graded."""

    title: str  # what the data and the network are, in one line
    model: Callable
    # What is graded, (chain, draw, row, …), from the values of predictions and the targets
    functions: Functions
    scales: dict[str, str]  # site of the precisions behind each scale, by name
    # Differences below this do not count: the mean of a probability near 0 is made by few draws
    floor: float = 0.0


def _means(values: Mapping[str, Any], y: Any) -> Any:
    return values["mean"]


def _probs(values: Mapping[str, Any], y: Any) -> Any:
    return values["probs"]


def _true_class(values: Mapping[str, Any], y: Any) -> Any:
    return values["probs"][..., np.arange(len(y)), y]


def _second_class(values: Mapping[str, Any], y: Any) -> Any:
    return values["probs"][..., 1]


def _log_hazards(values: Mapping[str, Any], y: Any) -> Any:
    """Of a hazard that is constant in time: one over the mean time."""
    return -np.log(values["mean"][..., 0])


def _small(kernel: Any, output_bias: Any, by_width: Callable = _by_width) -> priors.ByPath:
    """The prior of Neal's networks of one hidden layer."""
    return priors.ByPath(
        {
            "Dense_0.kernel": kernel,
            "Dense_0.bias": by_width(0.05),
            "Dense_1.kernel": by_width(0.05, scale_by_fan_in=True),
            "Dense_1.bias": output_bias,
        }
    )


def _regression(x: jax.Array, y: jax.Array | None = None, *, case: float | None = None) -> None:
    """Gaussian noise, or with a precision for each case: t noise of `case` degrees of freedom."""
    prior = _small(_by_width(0.05), priors.Normal(100.0))
    net = random_module("net", MLP([8], 1), prior, x[:1])
    noise = likelihoods.Precision.width(0.05, common=0.5, case=case)
    likelihoods.gaussian(net(x).squeeze(-1), y, noise=noise)


def _bdata(x: jax.Array, y: jax.Array | None = None) -> None:
    prior = _small(_by_width(0.05), priors.Normal(100.0))
    net = random_module("net", MLP([15], 1), prior, x[:1])
    likelihoods.bernoulli(net(x).squeeze(-1), y)


def _cdata(x: jax.Array, y: jax.Array | None = None) -> None:
    prior = _small(_by_width(0.2, unit=1.0, scale_by_fan_in=True), _by_width(0.05))
    net = random_module("net", MLP([8], 3), prior, x[:1])
    likelihoods.categorical(net, y, x=x)


def _surv(x: jax.Array, y: jax.Array | None = None) -> None:
    by_width = partial(priors.Hierarchical.width, group=1.0)
    prior = _small(by_width(0.05), priors.Normal(100.0), by_width)
    net = random_module("net", MLP([8], 1), prior, x[:1])
    likelihoods.survival(net(x).squeeze(-1), y)


def _digits(x: jax.Array, y: jax.Array | None = None) -> None:
    net = random_module("net", MLP([16], 10), priors.Hierarchical(1.0, 1.0), x[:1])
    likelihoods.categorical(net, y, x=x)


PROBLEMS = {
    "rdata": Problem(
        "regression of one noisy function on 100 rows, network 1-8-1; two modes",
        _regression,
        _means,
        _NAMED | {"noise": "y.precision"},
    ),
    "cdata": Problem(
        "three classes from four inputs on 400 rows, network 4-8-3, a precision for each input",
        _cdata,
        _probs,
        _NAMED | {"each input": "net/Dense_0.kernel.unit_precision"},
        floor=0.005,
    ),
    "bdata": Problem(
        "two classes from two inputs on 300 rows, network 2-15-1",
        _bdata,
        _second_class,
        _NAMED,
        floor=0.005,
    ),
    "odata": Problem(
        "regression with outliers on 100 rows, t noise of 4 degrees of freedom, network 1-8-1",
        partial(_regression, case=4.0),
        _means,
        _NAMED | {"noise": "y.precision"},
    ),
    "surv": Problem(
        "censored times of 500 rows, the log of a hazard that is constant in time, network 1-8-1",
        _surv,
        _log_hazards,
        _NAMED,
    ),
    "digits": Problem(
        "ten classes of images of 8 × 8 pixels, 1437 rows, the probability of the true one, network 64-16-10",
        _digits,
        _true_class,
        _NAMED | {"output biases": "net/Dense_1.bias.precision"},
        floor=0.005,
    ),
}
NAMES = tuple(PROBLEMS)
