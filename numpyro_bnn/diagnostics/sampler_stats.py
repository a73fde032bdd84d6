"""Divergences, acceptance, E-BFMI and temperatures that a sampler recorded, and warnings about them.

Divergences, trees that reach their largest size, low acceptance and a low E-BFMI each mean that all chains
may miss a region; a comparison of the chains cannot show that.

Two temperatures are measured, for the whole chain and for each site, and both should equal the temperature of
the kernel. The *kinetic* temperature, pᵀM⁻¹p / D, is that of the momenta, which lose their memory within a
few steps: if it is wrong, then step size, noise or friction is wrong. The *configurational* temperature, θᵀ∇U
/ D, is that of the positions, and is right only when the chain is stationary: it is negative while the
weights still grow. So the two together distinguish a step size that is too large from a chain that is not yet
stationary, which need opposite advice. :data:`TABLE` holds the advice for every combination. A third is the
kinetic temperature along minibatch gradients: noise of minibatches that many weights share heats a few
directions, those in which the data determine predictions best, and means over weights do not show it.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn._sentences import SENTENCES, say
from numpyro_bnn._text import first_of
from numpyro_bnn.diagnostics.convergence.rhat import ebfmi, moments
from numpyro_bnn.samplers.tempering.evidence import Tempering, tempering_of

# Each name that NumPyro or ArviZ gives to a quantity.
_NAMES = {
    "diverging": ("diverging",),
    "num_steps": ("num_steps", "n_steps"),
    "saturated": ("tree_saturated", "saturated", "reached_max_treedepth"),
    "accept_prob": ("accept_prob", "acceptance_rate"),
    "energy": ("energy",),
}
# Divergences are reported from a hundredth of the transitions on. Stan warns from the first on, but one in a
# thousand is common where the posterior of a network has a sharp corner.
_DIVERGENT_SHARE = 0.01
_SATURATED_SHARE = 0.05
# Kernels with trajectories of a length, such as MAMS, record no divergences. A trajectory that is
# accepted with a probability below this has an energy error above ten nats, where their tuning aims at a part
# of one: the step is too long where it went.
_SURELY_REJECTED = np.exp(-10.0)
# Statistics that are one number: most steps of a tree, and of a trajectory with a given length.
LIMITS = ("max_num_steps", "trajectory_limit")
# Acceptance below this is low: NUTS is tuned to 0.8, MALA to 0.57, a random walk to 0.23.
_LOW_ACCEPTANCE = 0.15
# Betancourt 2016, as in Stan and ArviZ.
_LOW_EBFMI = 0.3
Level = Literal["absent", "negative", "low", "normal", "high"]

# A temperature is wrong if it differs from the target by more than this share and this many errors.
_WRONG = 0.1
_ERRORS = 4.0
# A difference of more than this share is wrong if the scatter of independent draws cannot explain it. The
# error from effective draws is not used then: a chain that is not stationary has few of them.
_FAR = 0.5
# Along minibatch gradients a temperature is wrong if it is above the target by more than this share. The step
# that the curvature allows gives up to a third by itself. Up to 2.1 times the target, variances of
# predictions were at most 4 % too large; from 2.3 times on, 7 % and more
# (benchmarks/mixing/networks_beside_full_batch.py).
_SHARED = 1.2
# The largest number of sites named in one sentence.
_MOST_NAMED = 5

_NOT_STATIONARY, _STILL_FALLING, _TOO_LARGE, _TOO_COLD, _LARGE_OR_EARLY = (
    SENTENCES[key]
    for key in ("not stationary", "still falling", "step too large", "too cold", "large or early")
)

_CONFIGURATIONAL: tuple[Level, ...] = ("absent", "negative", "low", "normal", "high")
_ROWS: dict[Level, tuple[str | None, ...]] = {
    "absent": (None, _NOT_STATIONARY, _NOT_STATIONARY, None, _LARGE_OR_EARLY),
    "low": (_TOO_COLD, _NOT_STATIONARY, _TOO_COLD, _TOO_COLD, _NOT_STATIONARY),
    "normal": (None, _NOT_STATIONARY, _NOT_STATIONARY, None, _NOT_STATIONARY),
    "high": (_TOO_LARGE, _STILL_FALLING, _STILL_FALLING, _TOO_LARGE, _TOO_LARGE),
}
# Advice by the levels of the (kinetic, configurational) temperature; None where all is well.
TABLE: dict[tuple[Level, Level], str | None] = {
    (kinetic, configurational): said
    for kinetic, row in _ROWS.items()
    for configurational, said in zip(_CONFIGURATIONAL, row)
}


class MeasuredTemperature(NamedTuple):
    """A mean over all chains and draws, and its Monte Carlo error."""

    value: float
    error: float
    scatter: float  # the error if all draws were independent


class Temperatures(NamedTuple):
    """The temperatures that a run recorded."""

    target: float = float("nan")  # mean temperature asked for; NaN where not recorded
    # "kinetic" (momenta) and "configurational" (positions), by site and for "all"
    measured: Mapping[str, Mapping[str, MeasuredTemperature]] = {}
    # Kinetic, along minibatch gradients; None where not recorded
    along_gradient: MeasuredTemperature | None = None
    step_is_zero: bool = False
    # Whether steps were accepted or rejected, which removes the bias of any step size
    corrected: bool = False

    @property
    def asked(self) -> float:
        """The target temperature; where it was not recorded 1, that of the posterior."""
        return 1.0 if np.isnan(self.target) else self.target

    def level(self, kind: str, site: str) -> Level:
        """The level of a measured temperature beside the target, as in :data:`TABLE`."""
        if site not in self.measured.get(kind, {}):
            return "absent"
        # At temperature 0 a run optimises, and there is nothing to compare.
        if self.target == 0:
            return "normal"
        target = self.asked
        value, error, scatter = self.measured[kind][site]
        off = abs(value - target)
        certain = off > max(_WRONG * target, _ERRORS * error)
        if not certain and not off > max(_FAR * target, _ERRORS * scatter):
            return "normal"
        if value < 0:
            return "negative"
        return "low" if value < target else "high"

    def advice(self, site: str) -> str | None:
        """What is wrong with one site, or with ``"all"``, and what to do about it; None if all is well."""
        kinetic, configurational = (self.level(k, site) for k in ("kinetic", "configurational"))
        sentence = TABLE["low" if kinetic == "negative" else kinetic, configurational]
        # With a Metropolis correction no step size causes a bias.
        return _NOT_STATIONARY if sentence is not None and self.corrected else sentence

    @property
    def far_off(self) -> bool:
        """Whether a temperature of the whole chain, or along gradients, is far from the target."""
        return self.shares_noise or any(
            self.level(kind, "all") not in ("absent", "normal")
            and abs(sites["all"].value - self.asked) > _FAR * self.asked
            for kind, sites in self.measured.items()
        )

    @property
    def shares_noise(self) -> bool:
        """Whether noise of minibatches heats the directions of the gradients, and not the whole chain."""
        if self.along_gradient is None or self.target == 0:
            return False
        if any(self.level(k, "all") not in ("absent", "normal") for k in self.measured):
            return False
        value, error, _ = self.along_gradient
        return value - self.asked > max(_SHARED * self.asked, _ERRORS * error)

    def comments(self) -> list[str]:
        """One sentence or two for each thing that is wrong; empty when all is well."""
        if self.step_is_zero:
            return [say("no step")]
        sites = dict.fromkeys(site for found in self.measured.values() for site in found)
        wrong: dict[str, list[str]] = {}
        for site in sorted(sites, key=self._off, reverse=True):
            if (advice := self.advice(site)) is not None:
                wrong.setdefault(advice, []).append(site)
        said = [self._comment(found, advice) for advice, found in wrong.items()]
        if self.shares_noise and self.along_gradient is not None:
            value, error, _ = self.along_gradient
            advice, asked = say("shared noise"), self.asked
            numbers = {"value": value, "error": error, "asked": asked}
            said.append(say("gradient temperature", **numbers, advice=advice))
        return said

    def _off(self, site: str) -> float:
        """The larger one of the two deviations of a site from the target."""
        values = [sites[site].value for sites in self.measured.values() if site in sites]
        return max(abs(value - self.asked) for value in values)

    def _comment(self, sites: list[str], advice: str) -> str:
        worst, *others = sites
        where = "the chain" if worst == "all" else worst
        off = [k for k in self.measured if self.level(k, worst) not in ("absent", "normal")]
        right = [k for k in self.measured if self.level(k, worst) == "normal"]
        values = " and the ".join(
            f"{kind} temperature{f' of {where}' if kind == off[0] else ''} is "
            f"{self.measured[kind][worst].value:.3g} ± {self.measured[kind][worst].error:.1g}"
            for kind in off
        )
        beside = "".join(f" ({kind}: {self.measured[kind][worst].value:.2f})" for kind in right)
        lead = say("temperature", values=values + beside, asked=self.asked, advice=advice)
        if not others:
            return lead
        named = ["the whole chain" if site == "all" else site for site in others[:_MOST_NAMED]]
        more = len(others) - len(named)
        named += [f"{more} more"] if more else []
        return f"{lead} {say('same sites', sites=named)}"


def temperatures_of(stats: Mapping[str, ArrayLike], corrected: bool) -> Temperatures:
    """Read the temperatures that a run recorded; `corrected` says whether steps were accepted or rejected."""
    targets = stats.get("temperature")
    target = float("nan") if targets is None else float(np.mean(np.asarray(targets)))
    measured: dict[str, dict[str, MeasuredTemperature]] = {}
    for kind in ("kinetic", "configurational"):
        sites = {"all": stats[f"{kind}_temperature"]} if f"{kind}_temperature" in stats else {}
        lead = f"{kind}_temperatures["
        sites |= {n[len(lead) : -1]: v for n, v in stats.items() if n.startswith(lead)}
        for site, draws in sites.items():
            if (mean := _measure(np.asarray(draws), target)) is not None:
                measured.setdefault(kind, {})[site] = mean
    along = stats.get("gradient_temperature")
    shared = None if along is None else _measure(np.asarray(along), target)
    steps = stats.get("step_size", stats.get("adapt_state.step_size"))
    is_zero = steps is not None and np.size(steps) > 0 and not np.any(np.asarray(steps))
    return Temperatures(target, measured, shared, is_zero, corrected)


def _measure(draws: np.ndarray, target: float) -> MeasuredTemperature | None:
    """Mean with its errors; None without finite draws."""
    mean = float(draws.mean(dtype=np.float64)) if draws.size else float("nan")
    if not np.isfinite(mean):
        return None
    if draws.size > 1:
        scatter = float(draws.std(ddof=1, dtype=np.float64)) / draws.size**0.5
    else:
        # The scatter of the temperature of a single momentum, the largest possible.
        scatter = 2**0.5 * (1.0 if np.isnan(target) else target)
    if draws.shape[1] < 4:
        # There are too few draws to estimate an effective sample size.
        return MeasuredTemperature(mean, scatter, scatter)
    size, _, sd = (float(v) for v in moments("diagnose_draws", draws))
    return MeasuredTemperature(mean, sd / size**0.5, scatter)


class SamplerStats(NamedTuple):
    """Statistics that the sampler recorded; None where one was not recorded."""

    # Of all chains; for trajectories with a length, energy errors above ten nats
    divergences: int | None
    saturated_trees: int | None  # transitions of NUTS that took the largest number of steps allowed
    acceptance: np.ndarray | None  # mean probability by chain
    ebfmi: np.ndarray | None  # by chain
    num_transitions: int  # chains times draws
    heat: Temperatures = Temperatures()
    tempering: Tempering | None = None
    cut_trajectories: int | None = None  # of kernels whose trajectories have a length, such as MAMS

    @property
    def temperatures(self) -> Mapping[str, Mapping[str, MeasuredTemperature]]:
        """Temperatures by kind, ``"kinetic"`` or ``"configurational"``, and by site or ``"all"``."""
        return self.heat.measured


def read(
    sample_stats: Mapping[str, ArrayLike | None] | None, shape: tuple[int, int]
) -> SamplerStats:
    """Read the statistics of a sampler under NumPyro's or ArviZ's names, arrays (chain, draw)."""
    # `"max_num_steps"` or `"trajectory_limit"` (numbers) say which `"num_steps"` are at the limit.
    given = {name: value for name, value in (sample_stats or {}).items() if value is not None}
    found: dict[str, np.ndarray] = {}
    for meaning, names in _NAMES.items():
        for name in filter(given.__contains__, names):
            array = np.asarray(given[name])
            if array.shape != shape:
                raise ValueError(
                    f"diagnose_draws: sample_stats[{name!r}] must have shape (chain, draw) = "
                    f"{shape}, got {array.shape}. Use "
                    f"mcmc.get_extra_fields(group_by_chain=True)."
                )
            found[meaning] = array
    for meaning, name in zip(("saturated", "cut"), LIMITS):
        limit: Any = given.get(name)
        if meaning not in found and "num_steps" in found and limit is not None:
            found[meaning] = found["num_steps"] >= int(limit)
    if "diverging" not in found and "cut" in found and "accept_prob" in found:
        found["diverging"] = found["accept_prob"] < _SURELY_REJECTED
    divergences, saturated, cut = (
        int(found[k].sum()) if k in found else None for k in ("diverging", "saturated", "cut")
    )
    accept = found["accept_prob"].mean(axis=1) if "accept_prob" in found else None
    energies = ebfmi(found["energy"]) if "energy" in found else None
    return SamplerStats(
        divergences,
        saturated,
        accept,
        energies,
        shape[0] * shape[1],
        temperatures_of(given, corrected=accept is not None),
        tempering_of(given),
        cut,
    )


def warnings_of(stats: SamplerStats) -> list[str]:
    """Warnings about the sampler, an entry for each thing that is wrong, the worst first."""
    sentences = []
    for key, count, least in (
        ("divergent", stats.divergences, _DIVERGENT_SHARE),
        ("saturated", stats.saturated_trees, _SATURATED_SHARE),
        ("cut", stats.cut_trajectories, _SATURATED_SHARE),
    ):
        if count:
            share = count / stats.num_transitions
            said = say(key, count=count, share=share)
            sentences.append(said if share > least else first_of(said))
    if stats.acceptance is not None and not stats.acceptance.min() >= _LOW_ACCEPTANCE:
        worst = int(np.argmin(np.nan_to_num(stats.acceptance, nan=-1.0)))
        sentences.append(say("hardly moves", chain=worst, share=stats.acceptance[worst]))
    if stats.ebfmi is not None and (stats.ebfmi < _LOW_EBFMI).any():
        worst = int(np.nanargmin(stats.ebfmi))
        sentences.append(say("low ebfmi", chain=worst, value=stats.ebfmi[worst], limit=_LOW_EBFMI))
    return sentences + stats.heat.comments()
