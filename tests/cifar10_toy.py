"""The CIFAR-10 benchmark at toy size: its folder on the path, random images, small networks."""

import sys
from pathlib import Path

import numpy as np
import pytest

import numpyro_bnn as bnn

BENCHMARKS = Path(bnn.__file__).parents[1] / "benchmarks"
if not (BENCHMARKS / "cifar10.py").exists():
    pytest.skip("the benchmarks are not beside this package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from cifar10_data import Split  # noqa: E402
from cifar10_network import ResNet  # noqa: E402

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
