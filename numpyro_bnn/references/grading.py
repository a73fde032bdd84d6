"""How far the draws of a sampler are from a reference posterior, in posterior standard deviations."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from numpyro_bnn.diagnostics.compare_runs import label_of, limit_of_errors
from numpyro_bnn.diagnostics.convergence.rhat import moments, rhat
from numpyro_bnn.posterior.draws import Run, draws_of
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.references.models import PROBLEMS, Problem
from numpyro_bnn.references.reference import Quantities, Reference, load

FUNCTIONS = "functions"


class Differences(NamedTuple):
    """Scalars of one kind beside a reference.

    - **num_scalars** - how many they are
    - **typical**, **largest** - median and largest difference of the means, in posterior standard deviations
    - **noise** - median of what Monte Carlo errors of both sides alone make, in the same unit
    - **errors** - largest difference in joint Monte Carlo errors
    - **limit** - what chance allows among so many
    - **spread** - median ratio of standard deviations, of the graded draws over the reference
    - **rhat** - worst R-hat of the graded draws, without which their errors are not to be trusted
    - **worst** - which scalar has the largest difference in errors
    """

    num_scalars: int
    typical: float
    largest: float
    noise: float
    errors: float
    limit: float
    spread: float
    rhat: float
    worst: str

    @property
    def agrees(self) -> bool:
        """Whether no scalar differs by more than chance allows."""
        return self.errors <= self.limit


class Grade(NamedTuple):
    """The grade of some draws against a reference; print it.

    - **reference** - name of the reference
    - **parts** - differences of ``"functions"``, and of ``"log scales"`` where the draws have them
    """

    reference: str
    parts: dict[str, Differences]

    @property
    def agrees(self) -> bool:
        """Whether nothing differs by more than chance allows; see `noise` for what could be seen."""
        return all(part.agrees for part in self.parts.values())

    def __str__(self) -> str:
        lines = [
            f"{self.reference}: "
            + ("no difference is seen" if self.agrees else "differs from the reference")
        ]
        for name, part in self.parts.items():
            lines.append(
                f"  {name} ({part.num_scalars}): off by {part.typical:.3f} posterior sd in the median, "
                f"{part.largest:.2f} at most, where Monte Carlo errors make {part.noise:.3f}; "
                f"at most {part.errors:.1f} joint errors ({part.limit:.1f} allowed), {part.worst}"
            )
            lines.append(
                f"    spread {part.spread:.2f} of the reference's, worst R-hat {part.rhat:.2f}"
                + (": chains do not agree, so errors are too small" if part.rhat > 1.1 else "")
            )
        return "\n".join(lines)


def grade(run: Run | Mapping[str, np.ndarray], reference: Reference | str) -> Grade:
    """How far the draws of any sampler are from a reference posterior.

    :param run: a run of the reference's model, of any kind that :func:`numpyro_bnn.predict` takes; or a
        mapping with ``"functions"``, an array (chain, draw, row, …) of what the network gives at
        ``reference.x_test``, and, where it is to be graded, any log scale by its name, (chain, draw).
    :param reference: a reference or its name.
    :return: differences in posterior standard deviations and in Monte Carlo errors.
    :raises ValueError: for functions of another shape, fewer than four draws a chain, a scale that the
        reference does not have, or draws that are not finite.

    >>> import numpyro_bnn as bnn
    >>> reference = bnn.references.load("rdata")
    >>> print(bnn.references.grade({"functions": reference.draws[None]}, reference).agrees)
    True
    """
    reference = load(reference) if isinstance(reference, str) else reference
    scalars = _scalars_of(run, reference)
    functions = scalars.pop(FUNCTIONS)
    floor = PROBLEMS[reference.name].floor
    parts = {FUNCTIONS: _differences(functions, reference.functions, None, floor)}
    if scalars:
        names = [name for name in reference.log_scales.names or () if name in scalars]
        drawn = np.stack([scalars[name] for name in names], -1)
        parts["log scales"] = _differences(drawn, reference.log_scales, names)
    return Grade(reference.name, parts)


def _scalars_of(run: Run | Mapping[str, np.ndarray], reference: Reference) -> dict[str, np.ndarray]:
    """Functions and log scales by name, from a run or from arrays that are these already."""
    if isinstance(run, Mapping) and FUNCTIONS in run:
        scalars = {name: np.asarray(value, np.float64) for name, value in run.items()}
    else:
        problem = PROBLEMS[reference.name]
        draws = draws_of(run, problem.model, owner="references.grade")
        scalars = {FUNCTIONS: functions_of(draws, problem, reference.x_test, reference.y_test)}
        scalars |= log_scales_of(draws, problem.scales)
    _check(scalars, reference)
    return scalars


def functions_of(
    draws: Mapping[str, np.ndarray], problem: Problem, x_test: np.ndarray, y_test: np.ndarray
) -> np.ndarray:
    """What is graded of the functions at some rows, (chain, draw, row, …)."""
    made = predict(problem.model, draws, x_test)
    return np.asarray(problem.functions(made.values, np.asarray(y_test)), np.float64)


def log_scales_of(draws: Mapping[str, np.ndarray], sites: dict[str, str]) -> dict[str, np.ndarray]:
    """Logarithms of the standard deviations behind precisions, by the names of the reference."""
    found = {}
    for name, site in sites.items():
        value = -np.log(np.asarray(draws[site], np.float64)) / 2
        if value.ndim == 2:
            found[name] = value
        else:
            found |= {f"{name} {i + 1}": value[..., i] for i in range(value.shape[-1])}
    return found


def _check(scalars: dict[str, np.ndarray], reference: Reference) -> None:
    shape = reference.functions.sd.shape
    functions = scalars[FUNCTIONS]
    if functions.ndim < 2 or functions.shape[2:] != shape:
        raise ValueError(
            f"references.grade: {FUNCTIONS} must have the shape (chain, draw, {', '.join(map(str, shape))}), "
            f"what the network gives at the rows of reference.x_test, got {functions.shape}."
        )
    if functions.shape[1] < 4:
        raise ValueError(
            f"references.grade: got {functions.shape[1]} draws a chain, from which no Monte Carlo error can "
            "be told. Give four or more, and some hundred for a grade that says something."
        )
    known = reference.log_scales.names or ()
    for name, value in scalars.items():
        if name != FUNCTIONS and name not in known:
            raise ValueError(
                f"references.grade: {reference.name} has no log scale {name!r}; it has {list(known)}."
            )
        if name != FUNCTIONS and value.ndim != 2:
            raise ValueError(
                f"references.grade: {name!r} must have the shape (chain, draw), got {value.shape}."
            )
        if not np.isfinite(value).all():
            raise ValueError(
                f"references.grade: {name!r} has {np.sum(~np.isfinite(value))} values that are not finite. "
                "Leave out the chains that failed."
            )


def _differences(
    draws: np.ndarray, known: Quantities, names: list[str] | None, floor: float = 0.0
) -> Differences:
    """Draws (chain, draw, scalar, …) beside a reference of the same scalars.

    :param names: the scalars that are there; all where None.
    :param floor: differences below this do not count as errors.
    """
    chosen = slice(None) if names is None else [(known.names or ()).index(n) for n in names]
    mean, error, sd = (values[chosen].ravel() for values in (known.mean, known.error, known.sd))
    flat = draws.reshape(*draws.shape[:2], -1)
    size, own_mean, own_sd = moments("references.grade", flat)
    # A scalar that never moves has no error of its own.
    own_error = np.where(own_sd > 0, own_sd / np.sqrt(np.maximum(size, 1.0)), 0.0)
    joint = np.hypot(own_error, error)
    difference = np.abs(own_mean - mean)
    z = np.where(difference < floor, 0.0, difference / joint)
    worst = int(np.argmax(z))
    index = tuple(np.unravel_index(worst, known.sd.shape))
    label = label_of("row", index) if names is None else names[worst]
    return Differences(
        len(mean),
        float(np.median(difference / sd)),
        float((difference / sd).max()),
        float(np.median(joint / sd)),
        float(z[worst]),
        limit_of_errors(len(mean)),
        float(np.median(own_sd / sd)),
        float(np.max(rhat(flat))),
        label,
    )
