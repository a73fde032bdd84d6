"""Divergences, acceptance, E-BFMI and temperatures that a sampler recorded, and warnings about them.

Divergences, trees that reach their largest size, low acceptance and a low E-BFMI each mean that all chains
may miss a region; a comparison of the chains cannot show that.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn.diagnostics.convergence.rhat import ebfmi
from numpyro_bnn.diagnostics.temperatures import MeasuredTemperature, Temperatures, temperatures_of
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
# Kernels with trajectories of a length, such as MAMS, record no divergences. A trajectory of theirs that is
# accepted with a probability below this has an energy error above ten nats, where their tuning aims at a part
# of one: the step is too long where it went.
_SURELY_REJECTED = np.exp(-10.0)
# Statistics that are one number: most steps of a tree, and of a trajectory with a given length.
LIMITS = ("max_num_steps", "trajectory_limit")
# Acceptance below this is low: NUTS is tuned to 0.8, MALA to 0.57, a random walk to 0.23.
_LOW_ACCEPTANCE = 0.15
# Betancourt 2016, as in Stan and ArviZ.
_LOW_EBFMI = 0.3


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
    def target_temperature(self) -> float:
        """Mean temperature asked for; NaN where not recorded."""
        return self.heat.target

    @property
    def temperatures(self) -> Mapping[str, Mapping[str, MeasuredTemperature]]:
        """Temperatures by kind, ``"kinetic"`` or ``"configurational"``, and by site or ``"all"``."""
        return self.heat.measured


def read(
    sample_stats: Mapping[str, ArrayLike | None] | None, shape: tuple[int, int]
) -> SamplerStats:
    """Read the statistics of a sampler under NumPyro's or ArviZ's names, arrays (chain, draw)."""
    # `"max_num_steps"` or `"trajectory_limit"` (numbers) say which `"num_steps"` are at the limit.
    given = {} if sample_stats is None else dict(sample_stats)
    found: dict[str, np.ndarray] = {}
    for meaning, names in _NAMES.items():
        for name in names:
            if name not in given or given[name] is None:
                continue
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


def percent(share: float) -> str:
    """A share in words: two digits below ten per cent, whole ones above."""
    return f"{100 * share:.2g} %" if share < 0.095 else f"{100 * share:.0f} %"


def warnings_of(stats: SamplerStats) -> list[str]:
    """Warnings about the sampler, one sentence for each thing that is wrong, the worst first."""
    sentences = []
    if stats.divergences:
        share = stats.divergences / stats.num_transitions
        lead = f"{stats.divergences} transitions diverged ({percent(share)})"
        if share > _DIVERGENT_SHARE:
            sentences.append(
                f"{lead}: the draws miss where the posterior bends most, and no R-hat can show "
                f"that; raise target_accept_prob or reparameterise."
            )
        else:
            sentences.append(f"{lead}: few, but look where they lie.")
    limits = (
        (
            stats.saturated_trees,
            "ended at the largest tree",
            "the sampler turns back before it has crossed the posterior; raise max_tree_depth",
        ),
        (
            stats.cut_trajectories,
            "were cut at the most steps allowed",
            "they end before they have crossed the posterior; raise max_num_steps",
        ),
    )
    for count, what, advice in limits:
        if not count:
            continue
        share = count / stats.num_transitions
        lead = f"{count} trajectories {what} ({percent(share)})"
        if share > _SATURATED_SHARE:
            sentences.append(
                f"{lead}: {advice}, and begin at `bnn.optimize` if the chains did not."
            )
        else:
            sentences.append(f"{lead}.")
    if stats.acceptance is not None and not stats.acceptance.min() >= _LOW_ACCEPTANCE:
        worst = int(np.argmin(np.nan_to_num(stats.acceptance, nan=-1.0)))
        sentences.append(
            f"Chain {worst} accepts {percent(float(stats.acceptance[worst]))} of its proposals: "
            f"it hardly moves; lower the step size."
        )
    if stats.ebfmi is not None and (stats.ebfmi < _LOW_EBFMI).any():
        worst = int(np.nanargmin(stats.ebfmi))
        sentences.append(
            f"E-BFMI of chain {worst} is {stats.ebfmi[worst]:.2f} (below {_LOW_EBFMI}): its "
            f"momentum hardly changes the energy, so the tails are not reached; reparameterise."
        )
    return sentences + stats.heat.comments()
