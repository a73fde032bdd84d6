"""CIFAR-10 at toy size: random images, small networks."""

import numpy as np

from benchmarks.cifar10.data import Split
from benchmarks.cifar10.network import ResNet

TOY = ResNet((4, 8, 16), 1)
# A layer of four filters, no block: most of the time of a toy run is the tracing of its layers.
TINY = ResNet((4,), 0)


def images(rows, seed=0):
    """Noise with labels; nine of ten are said to be exact."""
    rng = np.random.default_rng(seed)
    return Split(
        rng.integers(0, 256, (rows, 32, 32, 3)).astype(np.uint8),
        rng.integers(0, 10, rows).astype(np.int32),
        rng.random(rows) < 0.9,
    )
