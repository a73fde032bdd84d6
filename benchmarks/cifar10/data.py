"""CIFAR-10 as the HMC study used it: 40,960 training images, 10,000 test images, in a fixed order.

Training images are sorted by the MD5 of ``train0``, ``train1``, … and the first 40,960 kept; test
images by that of ``test0``, ``test1``, … (Izmailov et al., *What are Bayesian neural network
posteriors really like?*, 2021, whose loader orders them so).

The data are lossless contact sheets with ``labels.npz``.

93 of the 60,000 images are known as JPEG copies only. They are kept, marked in
:attr:`Split.exact`: a copy that is off by some grey levels moves the posterior less than leaving
its image out would, N stays 512 batches of 80, and every test image needs a row of probabilities.
"""

from hashlib import md5
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks._shared import data_sets

FOLDER = data_sets.FOLDER / "cifar10"
SIZES = {"train": 40_960, "test": 10_000}
CLASSES = 10
MEAN, SCALE = (0.49, 0.48, 0.44), 0.2
# A sheet shows 50 × 50 images of 32 × 32 pixels.
_SIDE, _PIXELS = 50, 32


class Split(NamedTuple):
    """Training or test images."""

    x: np.ndarray  # uint8 (rows, 32, 32, 3)
    y: np.ndarray  # classes, int32 (rows,)
    exact: np.ndarray  # whether the pixels are those of the original files, bool (rows,)

    def first(self, rows: int) -> "Split":
        """The first rows."""
        return Split(*(values[:rows] for values in self))


class Data(NamedTuple):
    """Training and test images, in order."""

    train: Split
    test: Split


def order(part: str, size: int) -> np.ndarray:
    """Row numbers of the original files sorted by the MD5 of ``{part}{row number}``."""
    digests = [md5(f"{part}{i}".encode(), usedforsecurity=False).digest() for i in range(size)]
    return np.asarray(sorted(range(size), key=digests.__getitem__))


def standardized(x) -> jnp.ndarray:
    """Pixels from 0 … 255 to what the network sees: (x / 255 - mean) / 0.2 by colour."""
    return (jnp.asarray(x, jnp.float32) / 255 - jnp.asarray(MEAN)) / SCALE


def load(folder: str | Path = FOLDER) -> Data:
    """Both splits in order, from the sheets in a folder."""
    folder = Path(folder)
    if not (folder / "labels.npz").exists():
        raise FileNotFoundError(
            f"cifar10: {folder} holds no contact sheets (labels.npz, train_00.webp, …). Give the folder of "
            "the data with --data."
        )
    return Data(_read_sheets(folder, "train"), _read_sheets(folder, "test"))


def _read_sheets(folder: Path, part: str) -> Split:
    with np.load(folder / "labels.npz") as labels:
        y, exact = labels[f"y_{part}"], labels[f"exact_{part}"]
    per_sheet = _SIDE**2
    sheets = [_sheet(folder / f"{part}_{k:02d}.webp") for k in range(len(y) // per_sheet)]
    rows = order(part, len(y))[: SIZES[part]]
    return Split(np.concatenate(sheets)[rows], y[rows].astype(np.int32), exact[rows])


def _sheet(path: Path) -> np.ndarray:
    """The images of one sheet, row by row."""
    from PIL import Image

    if not path.exists():
        raise FileNotFoundError(f"cifar10: the sheet {path} is missing. Bring all of them.")
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    tiles = pixels.reshape(_SIDE, _PIXELS, _SIDE, _PIXELS, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(-1, _PIXELS, _PIXELS, 3)
