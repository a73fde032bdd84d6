"""A reference posterior: model, data, and what two independent routes found, with errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from numpyro_bnn.diagnostics.compare_runs import limit_of_errors
from numpyro_bnn.references.models import PROBLEMS

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
    - **draws** - some draws of the functions (draw, row, …), far apart in a long run
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
    problem = PROBLEMS[name]
    with np.load(_FOLDER / f"{name}.npz") as file:
        stored = {key: file[key] for key in file.files}
    told = json.loads(str(stored.pop("about")))
    functions, scales = (
        Quantities(
            names,
            *(stored[f"{part}_{field}"].astype(np.float64) for field in ("sd", "means", "errors")),
        )
        for part, names in (("functions", None), ("scales", tuple(told["scales"])))
    )
    return Reference(
        name=name,
        title=problem.title,
        model=problem.model,
        x=stored["x"],
        y=stored["y"],
        x_test=stored["x_test"],
        y_test=stored["y_test"],
        functions=functions,
        log_scales=scales,
        draws=stored["draws"],
        masses={mode: np.array(mass) for mode, mass in told["masses"].items()},
        log_evidence=tuple(told["log_evidence"]),
        routes=tuple(told["routes"]),
    )
