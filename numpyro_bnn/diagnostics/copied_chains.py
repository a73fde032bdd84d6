"""Finds chains that are copies of each other: together they count as one chain."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def copies_of(arrays: Iterable[np.ndarray]) -> dict[int, int]:
    """Chains that equal an earlier chain bit for bit, with the number of the first that each equals."""
    all_draws = list(arrays)
    # First draws are compared first: that takes no time, and they nearly always differ.
    first = [_bits(array[:, :1]) for array in all_draws]
    originals: dict[tuple[bytes, ...], list[int]] = {}
    copies: dict[int, int] = {}
    for chain, key in enumerate(zip(*first)):
        for other in originals.setdefault(key, []):
            if all(np.array_equal(a[chain], a[other]) for a in all_draws):
                copies[chain] = other
                break
        else:
            originals[key].append(chain)
    return copies


def _bits(draws: np.ndarray) -> list[bytes]:
    """The bytes of each chain's draws, which also tell NaN apart from NaN of other bits."""
    return [np.ascontiguousarray(own).tobytes() for own in draws]


def without_copies(
    values: Mapping[str, Any] | None, copies: Mapping[int, int], num_chains: int
) -> Any:
    """Arrays by name without the chains that are copies; arrays without chains, and None, stay."""
    if values is None:
        return None
    kept = np.setdiff1d(np.arange(num_chains), list(copies))
    return {
        name: value[kept] if np.ndim(value) > 1 and len(value) == num_chains else value
        for name, value in values.items()
    }


def copies_in_words(copies: Mapping[int, int], num_chains: int) -> str:
    """A sentence for the report that names the copies among the chains, and says how many are left."""
    groups: dict[int, list[int]] = {}
    for copy, original in copies.items():
        groups.setdefault(original, []).append(copy)
    parts = [
        f"{'chain' if len(more) == 1 else 'chains'} {', '.join(map(str, more))} of chain {original}"
        for original, more in groups.items()
    ]
    left = num_chains - len(copies)
    return (
        f"Copies, bit for bit: {'; '.join(parts)}. They count once, which leaves {left} of {num_chains} "
        "chains; give every chain a random key of its own."
    )
