"""Compares the columns of a table by name with those of the training data, and refuses others.

Columns in another order would otherwise be mistaken for each other without any error. Only tables are
compared, because arrays have no names.
"""

from collections.abc import Sequence


def column_names(values: object) -> list[str]:
    """Names of the columns of a table (of pandas, polars, …), in its order; empty for anything else."""
    names = getattr(values, "columns", None)
    return [] if names is None or not hasattr(values, "shape") else [str(name) for name in names]


def check_columns(owner: str, label: str, trained: Sequence[str], values: object) -> None:
    """Refuse a table whose columns are not those of the training data, in their order.

    :param owner: the function that was called, for the error.
    :param label: name of the argument.
    :param trained: names of the columns in training; empty where they had none.
    :param values: the table or array that is given now.
    :raises ValueError: naming the columns that are missing, unknown or in another position.
    """
    given = column_names(values)
    if not len(trained) or not given or given == list(trained):
        return
    missing = [name for name in trained if name not in given]
    unknown = [name for name in given if name not in trained]
    if missing or unknown:
        parts = [("lacks", missing), ("has the unknown", unknown)]
        difference = " and ".join(
            f"{what} column(s) {_some(names)}" for what, names in parts if names
        )
    else:
        at = next(i for i, pair in enumerate(zip(given, trained)) if len(set(pair)) > 1)
        difference = f"has {given[at]!r} where the training data had {trained[at]!r}"
    raise ValueError(
        f"{owner}: {label} {difference}. Expected the columns of the training data, in their order: "
        f"`{label}[{_some(trained)}]`."
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:6]))
    return f"[{shown}]" if len(names) <= 6 else f"[{shown}, … {len(names) - 6} more]"
