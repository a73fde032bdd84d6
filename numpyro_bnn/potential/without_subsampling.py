"""Turns off the subsampling of plates in a model (``subsample_size=``), and takes the size as batch size.

NumPyro draws the rows of such a plate anew in each call of the model where there is a random key,
and uses the same rows for a whole run where there is none. Here a model is always a function of
all rows, and a caller that wants a minibatch substitutes its row numbers.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from numpyro.primitives import Messenger

from numpyro_bnn.potential.sites import Structure


class all_rows(Messenger):
    """Handler under which no plate subsamples by itself."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace a plate that takes a subsample by one that takes all its rows."""
        if msg["type"] != "plate":
            return
        size, subsample_size = msg["args"]
        if subsample_size is not None and subsample_size < size:
            msg["args"] = (size, None)
            msg["value"] = jnp.arange(size)


def without_subsampling(model: Callable, structure: Structure) -> Callable:
    """The model on all rows; the model itself where no plate subsamples."""
    subsamples = any(p.subsample_size < p.size for p in structure.plates.values())
    return all_rows(model) if subsamples else model


def own_batch_size(owner: str, structure: Structure, plate: str | None = None) -> int | None:
    """Rows that the model takes of the plate around its observed sites; None for all."""
    plates_of_observed = {p for name in structure.data for p in structure.sites[name].plates}
    found = {
        name: structure.plates[name].subsample_size
        for name in sorted(plates_of_observed if plate is None else plates_of_observed & {plate})
        if structure.plates[name].subsample_size < structure.plates[name].size
    }
    if len(found) > 1:
        raise ValueError(
            f"{owner}: several plates of the model subsample, {found}, and a minibatch is of one. "
            "Remove `subsample_size=` from the others."
        )
    return next(iter(found.values()), None)
