"""What every test shares: two host devices, compiled programs, and where the reference data live."""

import atexit
import contextlib
import gc
import importlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from weekly import is_weekly

# Before JAX starts: two host devices, so that "parallel" chains are exercised everywhere.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)
os.environ.setdefault("MPLBACKEND", "Agg")
# Workers share the cores: threads of a library that wait for each other there take twenty times as long.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
# Files of tests are in memory, where there is much of it: a disk takes milliseconds to replace one.
_MEMORY = "/dev/shm"
if (
    "TMPDIR" not in os.environ
    and os.access(_MEMORY, os.W_OK)
    and shutil.disk_usage(_MEMORY).free > 4 * 2**30
):
    os.environ["TMPDIR"] = _MEMORY
    tempfile.tempdir = None
# Programs that compile for long are compiled once a session: its workers and their child processes
# inherit the folder, which the process that made it removes. A developer may name one that stays.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _programs = tempfile.mkdtemp(prefix="numpyro_bnn_tests_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _programs
    atexit.register(shutil.rmtree, _programs, ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
# Programs that are compiled once and thrown away need not know the lines they come from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# They compile several times faster and run slower: most tests have little work.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

# JAX and the package are imported where they are needed: not by the process that starts the workers.
if version("arviz").startswith("0."):
    # Before workers start: ArviZ 0.23.0 writes the day to a file, which two of them would read half written.
    import arviz  # noqa: F401

_LONGEST = ("tests/workflow", "tests/test_readme.py")
TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared"
# In a fresh environment two workers would each compile every module: every second one begins at the other
# end, and finds there what the first one has compiled.
_BACKWARDS = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
_LIBRARIES = ("sklearn.utils.estimator_checks", "pandas", "matplotlib.pyplot", "xarray")


def pytest_collection() -> None:
    """Begin with the libraries that other workers come to last."""
    for name in _LIBRARIES if _BACKWARDS else ():
        importlib.import_module(name)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Look at folders and files from the end."""
    report = yield
    if _BACKWARDS and isinstance(collector, pytest.Directory | pytest.Session):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the week as slow, before slow ones are left out; short ones come last.

    Two workers end together only where what is left at the end is short: whole workflows come first.
    """
    for item in items:
        if is_weekly(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: (not item.nodeid.startswith(_LONGEST), item.path.parts))


def pytest_collection_finish() -> None:
    """Look for garbage less often: a full pass over all that JAX keeps takes half a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


# Every compiled program holds some maps of memory, of which Linux gives a process 65,530 and no more: beyond
# them the compiler crashes. 28,000 were seen with ten gigabytes, and two workers share a machine.
_MOST_MAPS = 20_000


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Forget compiled programs after a file of tests or a slow one, before there are too many of them."""
    maps = Path("/proc/self/maps")
    ends = nextitem is not None and nextitem.path != item.path
    if not (ends or item.get_closest_marker("slow")) or not maps.exists():
        return
    if maps.read_bytes().count(b"\n") > _MOST_MAPS:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def own_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that change the package itself share no compiled programs with others: a patch is not seen."""
    from separate_programs import separate_programs

    patches = "monkeypatch" in request.fixturenames
    with separate_programs() if patches else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; absent on a user's machine."""
    if not SHARED.is_dir():
        pytest.skip("the folder 'shared' with the reference data is not beside this checkout")
    return SHARED


@pytest.fixture
def rng() -> Any:
    """Random numbers that are the same in each test, whichever ran before."""
    import numpy as np

    return np.random.default_rng(0)


@pytest.fixture
def optimised() -> Iterator[None]:
    """Programs as users have them, for tests of much work in few programs."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Float64, for densities that are compared digit by digit."""
    from nets import double

    with double():
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Pages without pictures, which take seconds: what would draw each, by the text that stands for it."""
    from numpyro_bnn._html import Picture

    draws: dict[str, Any] = {}

    def made(draw: Any, alt: str, *_: Any) -> Picture:
        draws[alt] = draw
        return Picture(alt, "", "", "", 1, 1)

    for module in ("cli.job_report", "diagnostics.report", "fit_check.record"):
        monkeypatch.setattr(f"numpyro_bnn.{module}.picture", made)
    return draws
