"""Checks of arguments that files of several layers share."""

import math
from typing import Any

import numpy as np


def check_positive(owner: str, **numbers: Any) -> None:
    """Refuse what are no positive numbers.

    :raises TypeError: for other things than numbers.
    :raises ValueError: for numbers that are not positive and finite.
    """
    for label, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise TypeError(f"{owner}: {label} must be a number, got {label}={value!r}.")
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{owner}: {label} must be positive and finite, got {label}={value}.")
