"""Runs that continue from a given state: after ``warmup``, or from a ``post_warmup_state``.

A state holds numbers that were computed from data: a potential energy, a gradient, the anchor of a control
variate. With other data they are wrong, and a Metropolis step or an anchored gradient goes on with them. So
this file remembers for which data a state was made. States of other data, or of unknown ones, are computed
again at the same position; a state of the same data is left as it is, and gives the same draws bit for bit.
"""

import warnings
import weakref
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import find_stack_level

from numpyro_bnn._checks import is_typed_key
from numpyro_bnn._types import PyTree
from numpyro_bnn.run.kernel_protocol import can_recompute
from numpyro_bnn.storage.same_run import Facts, facts_of

# The posterior that a state belongs to: the model (or the kernel without one); the structure of the arguments
# and a hash of each array; all other arguments, data on the host among them.
Origin: TypeAlias = tuple[object, Facts, tuple]
# Weak references to the arrays of states, and their origins, by the identity of the first array. An entry
# goes away with that array. The random key does not count: users replace it.
_remembered: dict[int, tuple[list[weakref.ref], Origin]] = {}


def origin_of(sampler: MCMCKernel, args: tuple, kwargs: dict[str, Any]) -> Origin:
    """The posterior of a run. All arrays in memory are read, a second for some gigabytes."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    is_array = [isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves]
    arrays = [leaf if a else None for leaf, a in zip(leaves, is_array)]
    others = tuple(leaf for leaf, a in zip(leaves, is_array) if not a)
    target = getattr(sampler, "model", None) or sampler
    return target, facts_of({"data": arrays, "structure": str(structure)}), others


def _arrays_of(state: PyTree) -> list[Any]:
    state = state._replace(rng_key=None) if hasattr(state, "rng_key") else state
    leaves = jax.tree.leaves(state)
    return [leaf for leaf in leaves if isinstance(leaf, jax.Array) and not is_typed_key(leaf)]


def remember(state: PyTree, origin: Origin) -> None:
    """Remember for which data a state was made, as long as its arrays live."""
    if arrays := _arrays_of(state):
        place = id(arrays[0])
        first = weakref.ref(arrays[0], lambda _: _remembered.pop(place, None))
        _remembered[place] = ([first, *map(weakref.ref, arrays[1:])], origin)


def remembered(state: PyTree) -> Origin | None:
    """The posterior that a state was made for; None for one that was changed, loaded or made elsewhere."""
    arrays = _arrays_of(state)
    known, origin = _remembered.get(id(arrays[0]) if arrays else 0, ([], None))
    same = len(known) == len(arrays) and all(one() is a for one, a in zip(known, arrays))
    return origin if same else None


def is_stale(kernel: MCMCKernel, state: PyTree | None, origin: Origin) -> bool:
    """Whether a run has to compute again what a given state holds of data."""
    before = None if state is None else remembered(state)
    if state is None or origin == before:
        return False
    if can_recompute(kernel):
        return True
    name = type(kernel).__name__
    if before is not None:
        raise ValueError(
            f"MCMC: {name} cannot continue from a state of other data or of another model: the state keeps "
            "energies of those, and NumPyro has no way to compute them again. Call `run` alone, without "
            "`warmup` or `post_warmup_state`."
        )
    warnings.warn(
        f"MCMC: it is not known for which data this state of {name} was made, and energies that it keeps "
        "cannot be computed again. Draws are wrong if the data were others.",
        stacklevel=find_stack_level(),
    )
    return False


def check_chains(state: PyTree | None, num_chains: int) -> None:
    """Refuse a state of another number of chains than the run has."""
    key = getattr(state, "rng_key", None)
    if key is None:
        return
    lead = key.shape if is_typed_key(key) else key.shape[:-1]
    given = lead[0] if lead else 1
    if given != num_chains:
        raise ValueError(
            f"MCMC: the state to continue from (`warmup`, `post_warmup_state`) is of {given} "
            f"chain{'s' if given != 1 else ''}, and this run has num_chains={num_chains}. Take "
            f"num_chains={given}, or call `run` without a state."
        )


def steps_of_warmup(state: PyTree | None, num_warmup: int) -> int:
    """The steps at which a kernel adapts: none after those that a given state has behind it."""
    if state is None:
        return num_warmup
    counts = [
        int(jnp.min(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if getattr(path[-1], "name", None) == "i"
    ]
    return min([num_warmup, *counts])
