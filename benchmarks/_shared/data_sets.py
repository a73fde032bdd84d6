"""The data sets of the studies, split and standardised."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes

# Beside the checkout.
SHARED = Path(__file__).resolve().parents[3] / "shared"
FOLDER = SHARED / "data"


class Split(NamedTuple):
    """Rows to learn from, and rows to judge by: float32 inputs, float32 targets or int32 classes."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def _load(folder: Path | None, name: str) -> dict[str, np.ndarray]:
    path = (folder or FOLDER) / f"{name}.npz"
    if not path.is_file():
        raise SystemExit(f"{path} is not there; say with --data where the data sets are.")
    with np.load(path) as file:
        return dict(file)


def uci(folder: Path | None, name: str, split: int = 0) -> Split:
    """A table of Hernandez-Lobato and Adams (2015): split ``split`` of 20, both standardised."""
    table = _load(folder, f"uci/{name}")
    test = table["test_mask"][split].astype(bool)
    x, y = table["x"].astype(np.float64), table["y"].astype(np.float64).reshape(-1)
    spread = np.where(x[~test].std(0) > 0, x[~test].std(0), 1.0)
    x, y = (x - x[~test].mean(0)) / spread, (y - y[~test].mean()) / y[~test].std()
    return Split(*(np.float32(part) for part in (x[~test], y[~test], x[test], y[test])))


def table(folder: Path | None, name: str, source: str = "mile") -> tuple[np.ndarray, np.ndarray]:
    """A table as it is, or scikit-learn's "diabetes": inputs (n, d), targets (n,).

    :param source: ``"mile"`` for those of Sommer et al. (2025), ``"uci"`` for those of Hernandez-Lobato and
        Adams (2015).
    """
    if name == "diabetes":
        return load_diabetes(return_X_y=True)
    found = _load(folder, f"{source}/{name}")
    return found["x"], found["y"].reshape(-1)


def mnist(
    folder: Path | None, num_rows: int, num_test: int = 10_000, seed: int = 0, digits=range(10)
) -> Split:
    """MNIST, pixels in 0 .. 1 and flat: ``num_rows`` random training images of some digits.

    Classes are positions in ``digits``.
    """
    table = _load(folder, "mnist")
    parts: list[np.ndarray] = []
    rng = np.random.default_rng(seed)
    for part, count in (("train", num_rows), ("test", num_test)):
        x, y = table[f"x_{part}"], table[f"y_{part}"]
        rows = np.flatnonzero(np.isin(y, digits))
        rows = rng.permutation(rows)[:count]
        parts += [
            x[rows].reshape(len(rows), -1).astype(np.float32) / 255,
            np.searchsorted(sorted(digits), y[rows]).astype(np.int32),
        ]
    return Split(*parts)


def fashion(folder: Path | None, num_rows: int = 10_000) -> np.ndarray:
    """Test images of Fashion-MNIST, pixels in 0 .. 1 and flat."""
    return (
        _load(folder, "fashion_mnist_test")["x_test"][:num_rows].reshape(-1, 784).astype(np.float32)
        / 255
    )
