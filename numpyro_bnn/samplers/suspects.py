"""Finds chains that failed, to leave them out, and suspect ones, which are kept and named.

A chain *failed* where it exploded or has draws that are not finite. All numbers of a *suspect* chain are
finite, but they are not draws of the posterior. It is one where, after warm-up,

- all its latent sites (of a block of Gibbs: all of the block) keep one value, bit for bit, in all draws or in
  a tenth of them in a row, where that is not by chance;
- some of these sites keep one value in all draws, while moves or a Gibbs function draw the others;
- hardly any of its proposals would have been accepted; or
- more than half of its transitions diverged.

Suspect chains are kept, and a warning names them wherever their draws are used. The thresholds are such
that by chance fewer than one healthy chain in a thousand is named, however short the run (a random walk
that accepts 0.23 of its proposals, or NUTS at any `target_accept_prob`). A run at temperature 0 optimises
and may settle: it is never suspect for that.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn._checks import warn
from numpyro_bnn._types import Array, PyTree

_BY_SCHEDULE = "its schedule"


def warn_of_failed(failed: dict[int, str], num_chains: int, about_data: str = "") -> None:
    """Warn of the chains that are left out, with the reason; refuse a run with no chain left."""
    # `about_data` is a sentence on data that are not finite, which goes before other advice.
    reasons = "; ".join(f"chain {chain}: {why}" for chain, why in failed.items())
    advice = "Use a smaller step size, or start from `bnn.optimize`."
    if any(why.startswith(_BY_SCHEDULE) for why in failed.values()):
        advice = (
            "Correct the schedule: what it gives must be finite and not negative at every count."
        )
    advice = about_data + advice
    if len(failed) == num_chains:
        raise RuntimeError(f"No chain stayed finite ({reasons}). {advice}")
    warn(f"Left out {len(failed)} of {num_chains} chains ({reasons}). {advice}")


def exploded_chains(state: PyTree, before: float = float("inf")) -> dict[int, str]:
    """Chains frozen before step `before`, by a kernel or a block of Gibbs, because they became non-finite."""
    left_out = {}
    for part in (state, *getattr(state, "block_states", ())):
        steps = np.atleast_1d(np.asarray(getattr(part, "exploded_at", -1)))
        for chain in np.flatnonzero((steps >= 0) & (steps < before)):
            left_out[int(chain)] = f"{_cause(part, chain)} at step {steps[chain]}, warm-up included"
    return left_out


def _cause(state: PyTree, chain: Any) -> str:
    """The reason why a chain was frozen, read from its state."""
    for field, name in (("step_size", "step size"), ("temperature", "temperature")):
        value = float(np.atleast_1d(np.asarray(getattr(state, field)))[chain])
        if not (np.isfinite(value) and value >= 0):
            return f"{_BY_SCHEDULE} gave the {name} {value:.4g}"
    return "exploded"


# No usable kernel accepts less than this share. Acceptance varies, so that with fewer than _ENOUGH proposals
# a lower share is needed to be suspect.
_LOW_ACCEPTANCE, _ENOUGH = 0.05, 50
# Runs with fewer proposals than these are not judged by their acceptance.
_FEWEST = 5
# Below this many divergences chance may have made them half of a very short run.
_FEW_DIVERGENCES = 4
# A chain that never moved is suspect if a healthy one would do so with less than this probability.
_CHANCE = 1e-3
# A stay of at least so many draws, and of such a share of all, is examined.
_LONG_STAY, _STAY_SHARE = 100, 0.1
# Numbers of draws on disk that are read at a time.
_BLOCK = 2**24

_QUIET: ContextVar[bool] = ContextVar("suspects_are_named_elsewhere", default=False)


class Part(NamedTuple):
    """A kernel, or a block of Gibbs: the latent sites that it moves and what it accepted."""

    values: list[Array]  # Draws (chain, draw, …) of its sites
    # Names of its sites, for messages; empty for a kernel that moves all sites.
    names: tuple[str, ...]
    # Mean acceptance probability of each chain; None where nothing is rejected.
    acceptance: np.ndarray | None
    steps: np.ndarray  # Number of steps that this mean is taken over


def suspect_chains(
    sites: PyTree,
    stats: Mapping[str, ArrayLike],
    state: PyTree = None,
    steps_a_draw: int = 1,
    exact_energy: bool = True,
) -> dict[int, str]:
    """Chains that never moved, hardly accept or mostly diverge, with the reason, by chain from 0."""
    # `sites` and `stats` are (chain, draw, …), in memory or on disk. Energies of all rows
    # (`exact_energy`) change when a chain moves.
    leaves = jax.tree.leaves(sites)
    if not leaves or not all(leaves[0].shape[:2]):
        return {}
    shape = leaves[0].shape[:2]
    hot = np.asarray(stats.get("temperature", np.ones(shape))).reshape(shape) > 0
    found: dict[int, list[str]] = {}
    energy = stats.get("potential_energy") if exact_energy else None
    for part in _parts(sites, stats, state, hot, steps_a_draw, energy):
        for chain, why in _reasons_of(part, stats, hot):
            found.setdefault(chain, []).append(why)
    # A sweep of parallel tempering is many trajectories, and records whether any of them diverged.
    if "diverging" in stats and "swap_probs" not in stats:
        diverged = np.asarray(stats["diverging"]).reshape(shape).sum(1)
        most = (diverged > shape[1] / 2) & (diverged >= _FEW_DIVERGENCES)
        for chain in np.flatnonzero(most).tolist():
            found.setdefault(chain, []).append(f"{diverged[chain]} of {shape[1]} draws diverged")
    return {chain: ", ".join(found[chain]) for chain in sorted(found)}


def _parts(
    sites: Any,
    stats: Mapping[str, Any],
    state: Any,
    hot: np.ndarray,
    steps_a_draw: int,
    energy: Any,
) -> Iterator[Part]:
    """The groups of sites that are moved together: the blocks of Gibbs, or all sites."""
    chains, draws = hot.shape
    for block in getattr(state, "block_states", ()):
        values, names = _of_sites(sites, block)
        if values and not np.any(np.asarray(getattr(block, "temperature", 1.0)) == 0):
            steps = np.full(chains, draws * steps_a_draw)
            yield Part(values, names, _mean_acceptance(block, chains), steps)
    if hasattr(state, "block_states"):
        return
    kernel = getattr(state, "hmc_state", state)
    values, names = _of_sites(sites, kernel)
    if not names:
        # `record=` kept other values than the position, which may be constant although it moves. So the
        # energy is compared too.
        values = [leaf for leaf in jax.tree.leaves(sites) if _is_real(leaf)]
        values += [] if energy is None else [energy]
    if "accept_prob" in stats:
        # An energy that is not a number is never accepted.
        probs = np.nan_to_num(np.asarray(stats["accept_prob"]).reshape(hot.shape))
        steps = hot.sum(1)
        acceptance = np.where(hot, probs, 0).sum(1) / np.maximum(steps, 1)
    else:
        acceptance = _mean_acceptance(kernel, chains)
        steps = np.where(hot.any(1), draws * steps_a_draw, 0)
    yield Part(values, (), acceptance, steps)
    for still in _standing(values, names) if names else ():
        yield Part([sites[name] for name in still], still, acceptance, steps)


def _standing(values: list[Any], names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Sites that keep one value in chains in which others change, those of the same chains together."""
    leaves = [np.asarray(v) if isinstance(v, jax.Array) else v for v in values]
    ends = [zip(np.asarray(v[:, 0]), np.asarray(v[:, -1])) for v in leaves]
    still = [tuple(np.array_equal(a, b) for a, b in chains) for chains in ends]
    moving = [not all(of_chain) for of_chain in zip(*still)]
    found: dict[tuple[bool, ...], list[str]] = {}
    for name, chains in zip(names, still):
        found.setdefault(tuple(np.logical_and(chains, moving).tolist()), []).append(name)
    return [tuple(alike) for chains, alike in found.items() if any(chains)]


def _reasons_of(part: Part, stats: Mapping[str, Any], hot: np.ndarray) -> Iterator[tuple[int, str]]:
    """Suspect chains of a part, each with its reason; chains that never moved come first."""
    more = f" and {len(part.names) - 3} more" if len(part.names) > 3 else ""
    of = f" of the block of {', '.join(part.names[:3])}{more}" if part.names else ""
    tuned = stats.get("adapt_state.step_size", np.ones(len(hot)))
    steps = np.asarray(stats.get("step_size", tuned))
    zeros = np.zeros(len(hot), bool)
    chance = np.zeros(len(hot))
    failing = zeros
    if part.acceptance is not None:
        limit = _LOW_ACCEPTANCE * np.minimum(1, part.steps / _ENOUGH) ** 2
        failing = (part.acceptance < limit) & (part.steps >= _FEWEST)
        chance = (1 - np.clip(part.acceptance, 0, 1)) ** part.steps
    # Of many chains, one may stay in place by chance: the probability counts for all of them together. A mean
    # acceptance that is NaN gives no probability, and the chain is doubted.
    doubted = (hot.sum(1) > 1) & (failing | ~(chance * len(hot) >= _CHANCE))
    draws = hot.shape[1]
    stays, moves = longest_stays(part.values) if part.values else (zeros, zeros)
    still = (stays == draws) & doubted
    stuck = _are_stuck(stays, moves, draws) & hot.all()
    for chain in np.flatnonzero(still | failing | stuck).tolist():
        reasons = []
        if stuck[chain]:
            reasons.append(f"{stays[chain]} of {draws} draws in a row{of} are the same")
        if still[chain]:
            why = "" if steps[chain].any() else " (step_size is 0)"
            reasons.append(f"all draws{of} are the same{why}")
        if failing[chain] and part.acceptance is not None:
            rate = part.acceptance[chain]
            share = f"{100 * rate:.2g} %" if rate >= 1e-4 else "less than 0.01 %"
            reasons.append(f"{share} of proposals{of} are accepted")
        yield chain, ", ".join(reasons)


def _of_sites(sites: Any, state: Any) -> tuple[list[Any], tuple[str, ...]]:
    """Draws of the real-valued sites of the position in a state, and their names."""
    # Its names alone are needed: values that stand in one vector are not split.
    position = jax.eval_shape(lambda state: getattr(state, "z", None), state)
    if not isinstance(position, Mapping) or not isinstance(sites, Mapping):
        return [], ()
    # A simplex of one entry has no coordinate that could move.
    moved = (name for name in position if position[name].size and name in sites)
    names = tuple(name for name in moved if _is_real(sites[name]))
    return [sites[name] for name in names], names


def _is_real(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _mean_acceptance(state: Any, chains: int) -> np.ndarray | None:
    """The running mean of the acceptance probability in the state; an ensemble has one for all chains."""
    mean = getattr(getattr(state, "inner_state", state), "mean_accept_prob", None)
    if mean is None or np.size(mean) not in (1, chains):
        return None
    return np.broadcast_to(np.asarray(mean, np.float64).reshape(-1), chains)


def longest_stays(leaves: list[Array]) -> tuple[np.ndarray, np.ndarray]:
    """The longest stay of each chain at one place, bit for bit, and how often it moves, in draws."""
    # The smallest array is searched; the others are compared at both ends of a long stay.
    smallest: Any = min(leaves, key=lambda leaf: math.prod(leaf.shape))
    # On the host: slicing a JAX array would compile a program for every slice.
    smallest = np.asarray(smallest) if isinstance(smallest, jax.Array) else smallest
    chains, draws = smallest.shape[:2]
    moves = np.empty((chains, draws - 1), bool)
    step = max(1, _BLOCK * draws // max(1, math.prod(smallest.shape)))
    for begin in range(0, draws - 1, step):
        some = np.asarray(smallest[:, begin : begin + step + 1])
        changed = some[:, 1:] != some[:, :-1]
        moves[:, begin : begin + step] = changed.any(tuple(range(2, changed.ndim)))
    found = np.ones(chains, int)
    for chain, own in enumerate(moves):
        begins = [0, *(np.flatnonzero(own) + 1).tolist(), draws]
        longest = int(np.argmax(np.diff(begins)))
        begin, end = begins[longest : longest + 2]
        if end - begin < _STAY_SHARE * draws:
            continue
        if all(np.array_equal(leaf[chain, begin], leaf[chain, end - 1]) for leaf in leaves):
            found[chain] = end - begin
    return found, moves.sum(1)


def _are_stuck(stays: np.ndarray, moves: np.ndarray, draws: int) -> np.ndarray:
    """Which chains stay so long at one place that it is no accident, while they move elsewhere."""
    # A chain that moves in a share a of its other draws stays L of n draws with a probability of at most n
    # (1 - a)^L.
    share = np.minimum(moves / np.maximum(draws - stays, 1), 1)
    chance = len(stays) * draws * (1 - share) ** stays
    return (stays >= max(_LONG_STAY, _STAY_SHARE * draws)) & (moves > 0) & (chance <= _CHANCE)


def named(suspect: Mapping[int, str]) -> str:
    """Suspect chains with their reasons as text, chains with the same reason together."""
    alike: dict[str, list[str]] = {}
    for chain, why in suspect.items():
        alike.setdefault(why, []).append(str(chain))
    return "; ".join(
        f"chain{'s' * (len(chains) > 1)} {', '.join(chains)}: {why}"
        for why, chains in alike.items()
    )


def suspects_in(info: Mapping[str, Any]) -> dict[int, str]:
    """The suspect chains in the `info` of a run; numbers may be text, as in files."""
    return {int(chain): why for chain, why in info.get("suspect", {}).items()}


def warn_of_run(suspect: Mapping[int, str], num_chains: int) -> None:
    """Warn after a run of its suspect chains."""
    if suspect:
        several = len(suspect) > 1
        warn(
            f"{len(suspect)} of {num_chains} chains {'are' if several else 'is'} suspect and kept "
            f"({named(suspect)}): {'they are' if several else 'it is'} no sample of the posterior. "
            "Start from `bnn.optimize`, use another step size (an adapted one, or 'auto') or more "
            "warm-up, and run again; `mcmc.suspect` names them."
        )


def warn_of_use(owner: str, suspect: Mapping[int, str]) -> None:
    """Warn that draws of suspect chains are used in a result."""
    if suspect and not _QUIET.get():
        several = len(suspect) > 1
        warn(
            f"{owner}: suspect chains are among the draws ({named(suspect)}) and count like all others. "
            f"Run again, or leave {'them' if several else 'it'} out."
        )


@contextmanager
def named_elsewhere() -> Iterator[None]:
    """Silence warnings of suspect chains in a block whose result names them itself, such as a table."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)
