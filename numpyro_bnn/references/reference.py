"""Reference posteriors: model, data, and what two independent routes found, with errors.

Five are examples of R. M. Neal's software for flexible Bayesian modelling, described in *Bayesian Learning
for Neural Networks* (1996) and in the documentation of that software: one hidden layer of tanh units, a Gamma
precision over each group of parameters. The sixth is a network on the handwritten digits of scikit-learn, the
test set of E. Alpaydin and C. Kaynak (UCI, 1998).
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_bnn import likelihoods, priors
from numpyro_bnn.diagnostics.compare_runs import limit_of_errors
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
        lambda values, y: values["mean"],
        _NAMED | {"noise": "y.precision"},
    ),
    "cdata": Problem(
        "three classes from four inputs on 400 rows, network 4-8-3, a precision for each input",
        _cdata,
        lambda values, y: values["probs"],
        _NAMED | {"each input": "net/Dense_0.kernel.unit_precision"},
        floor=0.005,
    ),
    "bdata": Problem(
        "two classes from two inputs on 300 rows, network 2-15-1",
        _bdata,
        lambda values, y: values["probs"][..., 1],
        _NAMED,
        floor=0.005,
    ),
    "odata": Problem(
        "regression with outliers on 100 rows, t noise of 4 degrees of freedom, network 1-8-1",
        partial(_regression, case=4.0),
        lambda values, y: values["mean"],
        _NAMED | {"noise": "y.precision"},
    ),
    "surv": Problem(
        "censored times of 500 rows, the log of a hazard that is constant in time, network 1-8-1",
        _surv,
        # A hazard that is constant in time is one over the mean time.
        lambda values, y: -np.log(values["mean"][..., 0]),
        _NAMED,
    ),
    "digits": Problem(
        "ten classes of images of 8 × 8 pixels, 1437 rows, the probability of the true one, network 64-16-10",
        _digits,
        lambda values, y: values["probs"][..., np.arange(len(y)), y],
        _NAMED | {"output biases": "net/Dense_1.bias.precision"},
        floor=0.005,
    ),
}
NAMES = tuple(PROBLEMS)


_FOLDER = Path(__file__).parent / "data"
# Differences of this many Monte Carlo errors of the reference can be graded.
_ERRORS = 10.0


class Quantities(NamedTuple):
    """Posterior means of several scalars by two routes, and of both together.

    - **names** - name of each scalar, or None for the functions at the rows of a test set
    - **sd** - posterior standard deviations (scalar, …)
    - **route_means** - means by route (route, scalar, …)
    - **route_errors** - their Monte Carlo errors, standard deviations (route, scalar, …)
    """

    names: tuple[str, ...] | None
    sd: np.ndarray
    route_means: np.ndarray
    route_errors: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Means of both routes, weighted by their inverse squared errors."""
        precision = self.route_errors**-2.0
        return (precision * self.route_means).sum(0) / precision.sum(0)

    @property
    def error(self) -> np.ndarray:
        """Monte Carlo error of `mean`."""
        return (self.route_errors**-2.0).sum(0) ** -0.5

    @property
    def z(self) -> np.ndarray:
        """Difference of the two routes in their joint Monte Carlo errors."""
        first, second = self.route_means
        return (first - second) / np.hypot(*self.route_errors)

    @property
    def resolution(self) -> np.ndarray:
        """Least difference that can be graded, in posterior sd: ten Monte Carlo errors of the reference."""
        return _ERRORS * self.error / self.sd


class Reference(NamedTuple):
    """A reference posterior, as :func:`load` gives it.

    - **name**, **title** - which posterior it is
    - **model** - ``model(x, y=None)``, to be sampled with `x` and `y`
    - **x**, **y** - training rows
    - **x_test**, **y_test** - rows at which functions are graded
    - **functions** - the function of the network, or the probabilities of the classes, at `x_test`
    - **log_scales** - logarithms of σ = τ^(-1/2) of the precisions τ
    - **draws** - some draws of the functions (draw, row, …), far apart in a long run, to 1/255 of their range
    - **masses** - posterior probability of a mode by name: mean and Monte Carlo error by route (route, 2)
    - **log_evidence** - log marginal likelihood and its error in nats; NaN where no route gives it
    - **routes** - how each of the two routes sampled
    """

    name: str
    title: str
    model: Callable
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    functions: Quantities
    log_scales: Quantities
    draws: np.ndarray
    masses: dict[str, np.ndarray]
    log_evidence: tuple[float, float]
    routes: tuple[str, ...]

    @property
    def certified(self) -> bool:
        """Whether the two routes agree: no scalar differs by more errors than chance explains."""
        z = np.concatenate([np.abs(self.functions.z).ravel(), np.abs(self.log_scales.z)])
        return bool(z.max() <= limit_of_errors(z.size))

    def __repr__(self) -> str:
        return f"Reference({self.name!r})"

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}"]
        lines += [f"  route {i + 1}: {route}" for i, route in enumerate(self.routes)]
        said = "agree" if self.certified else "do not agree"
        worst = max(np.abs(self.functions.z).max(), np.abs(self.log_scales.z).max())
        lines.append(f"  the routes {said}: at most {worst:.1f} joint Monte Carlo errors apart")
        lines.append(
            "  differences that can be graded, in posterior sd: functions from "
            f"{np.median(self.functions.resolution):.2f} (median row), log scales from "
            f"{self.log_scales.resolution.min():.2f} to {self.log_scales.resolution.max():.2f}"
        )
        if np.isfinite(self.log_evidence[0]):
            lines.append("  log evidence {:.2f} ± {:.2f}".format(*self.log_evidence))
        for mode, mass in self.masses.items():
            listed = " and ".join(f"{value:.3f} ± {error:.3f}" for value, error in mass)
            lines.append(f"  mass of the {mode}: {listed}")
        return "\n".join(lines)


def load(name: str) -> Reference:
    """A reference posterior by name.

    :param name: one of ``references.names``.
    :return: model, data, and what two routes to the posterior found.
    :raises ValueError: for another name.

    >>> import numpyro_bnn as bnn
    >>> reference = bnn.references.load("rdata")
    >>> reference.x.shape, reference.certified
    ((100, 1), True)
    """
    if name not in PROBLEMS:
        raise ValueError(f"references.load: expected one of {sorted(PROBLEMS)}, got {name!r}.")
    with np.load(_FOLDER / f"{name}.npz") as file:
        stored = {key: file[key] for key in file.files}
    told = json.loads(str(stored.pop("about")))
    low, high = stored["draws_range"]
    functions, scales = (
        Quantities(
            names,
            *(stored[f"{part}_{field}"].astype(np.float64) for field in ("sd", "means", "errors")),
        )
        for part, names in (("functions", None), ("scales", tuple(told["scales"])))
    )
    return Reference(
        name=name,
        title=PROBLEMS[name].title,
        model=PROBLEMS[name].model,
        x=stored["x"],
        y=stored["y"],
        x_test=stored["x_test"],
        y_test=stored["y_test"],
        functions=functions,
        log_scales=scales,
        draws=low + stored["draws"] * ((high - low) / 255),
        masses={mode: np.array(mass) for mode, mass in told["masses"].items()},
        log_evidence=tuple(told["log_evidence"]),
        routes=tuple(told["routes"]),
    )
