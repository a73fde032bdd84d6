"""Cells of a study that hold more than a number, and rows for its table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from study import Row


def as_text(values: Any) -> str:
    """Numbers of a curve or a surface as the text of one cell, four digits each."""
    return " ".join(f"{v:.4g}" for v in np.ravel(np.asarray(values, np.float64)))


def from_text(text: Any) -> np.ndarray:
    """The numbers that :func:`as_text` wrote."""
    return np.array(str(text).split(), np.float64)


def without(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Rows for a table: without these columns, and without seconds and the machine."""
    hidden = {"seconds", "machine", *columns}
    return [{k: v for k, v in row.items() if k not in hidden} for row in rows]
