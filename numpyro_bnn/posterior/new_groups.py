"""Groups that a fit never saw: their effects are drawn from the population, anew for each draw."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
from numpyro.handlers import substitute
from numpyro.primitives import Messenger

from numpyro_bnn.potential.known_indices import largest_beside, unknown_index
from numpyro_bnn.potential.sites import Structure

ADVICE = " `predict(…, new_groups='sample')` draws the effects of new groups of a plate."


class _completed(Messenger):
    """Adds values of new groups to those that draws give to the sites under some plates."""

    def __init__(self, fn: Callable, plates: Mapping[str, int]) -> None:
        self.plates = plates
        super().__init__(fn)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Draw the values of new groups from the distribution that this site has given the others."""
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        for frame in msg["cond_indep_stack"]:
            axis = frame.dim - msg["fn"].event_dim
            known = self.plates.get(frame.name)
            if known is None or jnp.shape(msg["value"])[axis] != known:
                continue
            fresh = msg["fn"].sample(numpyro.prng_key())
            new = jnp.take(fresh, jnp.arange(known, frame.size), axis=axis)
            msg["value"] = jnp.concatenate([msg["value"], new], axis)


def with_new_groups(
    model: Callable,
    structure: Structure,
    args: tuple,
    kwargs: Mapping[str, Any],
    drawn: Collection[str],
) -> tuple[Callable, set[str]]:
    """The model with an entry for each group of the data, and the sites with draws that get new values."""
    plates = {p for name in drawn if name in structure.sites for p in structure.sites[name].plates}
    done: set[str] = set()
    while (found := unknown_index(model, args, kwargs)) is not None:
        index, size = found
        here = {name for name in plates - done if structure.plates[name].size == size}
        if index < 0 or not here:
            break  # the refusal says which index it is
        done |= here
        entries = jnp.arange(largest_beside(index, model, args, kwargs) + 1)
        model = substitute(
            _completed(model, dict.fromkeys(here, size)), data=dict.fromkeys(here, entries)
        )
    return model, {
        n for n in drawn if n in structure.sites and done & set(structure.sites[n].plates)
    }
