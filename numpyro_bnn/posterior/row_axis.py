"""Which axis of a target is that of the rows: the first one, behind those of chains and draws.

Predictions are put together from blocks of rows along this axis, and everything that takes them counts rows
along it. A model says nothing of the kind: a plate of outputs around that of the data makes values (outputs,
rows), which look like rows where there are as many of both.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.units import taken
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.potential.sites import Structure
from numpyro_bnn.potential.value_sources import Place


def check_rows_first(
    target: str, count: int, structure: Structure, at_rows: Callable[[int], Structure]
) -> None:
    """Refuse to predict a site whose first axis is not that of the rows.

    :param target: the site, a sample site or a deterministic one.
    :param count: number of rows.
    :param structure: sites and plates of the model at these rows.
    :param at_rows: these at some of the rows. It is asked where several axes are as long as there are rows.
    :raises ValueError: naming the axes of the plates, and what to write.
    """
    shape = _shape(structure, target)
    if shape[:1] != (count,):
        raise ValueError(_message(target, count, structure))
    if count == 1 or count not in shape[1:]:
        return
    try:
        fewer = _shape(at_rows(count - 1), target)
    except Exception:  # a model of just these rows may fail in any way there is
        return
    # The axis of the rows is the one that changes with them. A target that has one size whatever the inputs
    # are has no rows that could be told from others.
    if fewer[:1] == (count,) and fewer != shape:
        raise ValueError(_message(target, count, structure))


def check_values_of_rows(
    what: str, target: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Refuse what a model computes at a block of rows, where it is not one value for each.

    :param what: what is computed: ``"parameters"``, ``"log_prob"``, ….
    :param target: the site.
    :param shape: shape of it under one draw.
    :param expected: the shape that it must have, rows first.
    :raises ValueError: naming both.
    """
    if shape == expected:
        return
    raise ValueError(
        f"predict: for a block of {expected[0]} rows the site '{target}' gives values of shape {shape} under "
        f"each draw ({what}), where shape {expected} was expected, rows first. Let the model give a value "
        "for each row, however many there are: `f[:, 0]` or `f.squeeze(-1)` in place of `f.squeeze()`, which "
        "drops the axis of a single row; and a law of each row in place of one of all rows together."
    )


def check_blocks_of_rows(
    draws: Draws,
    x: PyTree,
    others: Mapping[Place, PyTree],
    predictor: Callable[..., Any],
    batch_size: int = 1000,
    site: str | None = None,
) -> None:
    """Refuse arguments that are cut with the rows, as long as these are, and are not by row.

    A table that the model looks rows up in may have as many entries as there are rows. Rows of one block in
    another order must have the same predictions.

    :param draws: draws with their model, of which the first is looked at.
    :param x: inputs, arrays.
    :param others: further arguments of the model by place in its call.
    :param predictor: makes what predicts at some inputs and further arguments, for some `site`.
    :param batch_size: rows of a block.
    :param site: the site that is predicted.
    :raises ValueError: where predictions are not the same.
    """
    count = np.shape(jax.tree.leaves(x)[0])[0]
    by_row = [
        place
        for place, value in others.items()
        if any(np.shape(leaf)[:1] == (count,) for leaf in jax.tree.leaves(value))
    ]
    if not by_row or count <= batch_size:
        return
    first = Draws({n: np.asarray(v[:1, :1]) for n, v in draws.items()}, draws.model)
    order = np.random.default_rng(0).permutation(batch_size)
    found = []
    for rows in (np.arange(batch_size), order):
        at_rows = predictor(
            taken(x, rows, count),
            others={p: taken(v, rows, count) for p, v in others.items()},
            site=site,
        )
        structure, target = at_rows.structure, at_rows.target_of(first)
        latent = [name for name in structure.latent if name != target and name not in draws]
        if structure.takes_keys or any(structure.sites[name].plates for name in latent):
            # What is drawn anew for each row differs anyway.
            return
        found.append(at_rows(first).values)
    for name, moved in found[1].items():
        values = found[0][name][:, :, order]
        off = 1e-3 * (np.nanstd(values) + np.abs(values))
        if not np.all((np.abs(moved - values) <= off) | ~np.isfinite(values)):
            named = ", ".join(f"'{p}'" if isinstance(p, str) else f"number {p + 1}" for p in by_row)
            raise ValueError(
                f"predict: rows are taken {batch_size} at a time, and in another order they have other "
                f"predictions. The argument {named} of the model is cut with the rows, since it has as many "
                "entries, and is not by row, but for example a table in which rows are looked up. Give it "
                f"another length (an entry more), or batch_size={count}."
            )


def _shape(structure: Structure, target: str) -> tuple[int, ...]:
    site = structure.sites.get(target)
    return structure.deterministic[target] if site is None else site.distribution_shape


def _message(target: str, count: int, structure: Structure) -> str:
    """The error for a site whose first axis is not that of the rows."""
    shape, site = _shape(structure, target), structure.sites.get(target)
    plates = {} if site is None else site.plates
    batch = len(shape) - (0 if site is None else site.event_dim)
    ordered = sorted(plates.items(), key=lambda plate: plate[1])
    axes = ", ".join(f"'{name}' on axis {batch + dim}" for name, dim in ordered)
    advice = (
        "Put the target under a plate of the rows, `with numpyro.plate('data', x.shape[0])`, and give "
        "its law an entry for each: `f[:, 0]` or `f.squeeze(-1)` in place of `f.squeeze()`, which drops the "
        "axis of a single row."
    )
    if count in shape[1:]:
        advice = (
            "Write values of shape (rows, outputs): the plate of the rows with `dim=-2` and that of the "
            "outputs with `dim=-1`, or the law with `.to_event(1)` under the plate of the rows alone; and "
            "turn the target, `y.T`."
        )
    return (
        f"predict: the site '{target}' has shape {shape} at {count} rows"
        f"{f', with the plates {axes}' if axes else ''}. Its first axis must be that of the rows, with "
        f"{count} entries that follow from the inputs. {advice}"
    )
