"""What every test shares: two host devices, and where the reference data live."""

import os

# Before JAX starts: two host devices, so that "parallel" chains are exercised everywhere.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)
os.environ.setdefault("MPLBACKEND", "Agg")

import sys
from collections.abc import Iterator
from pathlib import Path

# Before workers start: ArviZ 0.23.0 writes the day to a file, which two of them would read half written.
import arviz  # noqa: F401
import jax
import pytest

# Kernels and data that tests of several rooms share, whichever room is run alone.
for _room in ("run", "storage"):
    sys.path.append(str(Path(__file__).resolve().parent / _room))

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; absent on a user's machine."""
    if not SHARED.is_dir():
        pytest.skip("the folder 'shared' with the reference data is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def mesh_programs() -> int:
    """Programs of a run on a mesh.

    Older JAX sees the results of the first chunk placed in another way than its arguments were, and
    compiles once more: seen on 0.7 and 0.10, and no longer on 0.12.
    """
    return 1 if jax.__version_info__ >= (0, 12) else 2


@pytest.fixture(scope="module")
def quick_compile() -> Iterator[None]:
    """Programs that compile several times faster and run slower: for tests of little work."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Float64, for densities that are compared digit by digit."""
    from nets import double

    with double():
        yield
