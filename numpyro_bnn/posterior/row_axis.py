"""Which axis of a target is that of the rows: the first one, behind those of chains and draws.

Predictions are put together from blocks of rows along this axis, and everything that takes them counts rows
along it. A model says nothing of the kind: a plate of outputs around that of the data makes values (outputs,
rows), which look like rows where there are as many of both.
"""

from collections.abc import Callable

from numpyro_bnn.potential.sites import Structure


def check_rows_first(
    target: str, count: int, structure: Structure, at_rows: Callable[[int], Structure]
) -> None:
    """Refuse to predict a site whose first axis is not that of the rows."""
    shape = _shape(structure, target)
    if shape[:1] != (count,):
        raise ValueError(_message(target, count, structure))
    if count == 1 or count not in shape[1:]:
        return
    try:
        fewer = _shape(at_rows(count - 1), target)
    except Exception:  # The model may raise at these rows; treat as unknown.
        return
    # The axis of the rows is the one that changes with them. A target that has one size whatever the inputs
    # are has no rows that could be told from others.
    if fewer[:1] == (count,) and fewer != shape:
        raise ValueError(_message(target, count, structure))


def check_values_of_rows(
    what: str, target: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Refuse what a model computes at a block of rows, where it is not one value for each."""
    if shape == expected:
        return
    raise ValueError(
        f"predict: for a block of {expected[0]} rows the site '{target}' gives values of shape {shape} under "
        f"each draw ({what}), where shape {expected} was expected, rows first. Let the model give a value "
        "for each row, however many there are: `f[:, 0]` or `f.squeeze(-1)` in place of `f.squeeze()`, which "
        "drops the axis of a single row; and a distribution of each row in place of one of all rows."
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
        "Put the target under a plate of the rows, `with numpyro.plate('data', x.shape[0])`, and give its "
        "distribution an entry for each: `f[:, 0]` or `f.squeeze(-1)` in place of `f.squeeze()`, which drops "
        "the axis of a single row."
    )
    if count in shape[1:]:
        advice = (
            "Write values of shape (rows, outputs): the plate of the rows with `dim=-2` and that of the "
            "outputs with `dim=-1`, or the distribution with `.to_event(1)` under the plate of rows alone; "
            "and turn the target, `y.T`."
        )
    return (
        f"predict: the site '{target}' has shape {shape} at {count} rows"
        f"{f', with the plates {axes}' if axes else ''}. Its first axis must be that of the rows, with "
        f"{count} entries that follow from the inputs. {advice}"
    )
