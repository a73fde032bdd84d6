"""Two processes of two devices each, on the loopback address: one run, on one disk."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from on_meshes import CLOSE, X, Y, drawn, sampler

from numpyro_bnn.storage.processes import Processes

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")
HERE = Path(__file__).parent


def start(program, arguments, devices=2, errors=subprocess.PIPE):
    """A process on CPU devices of its own: a program is a file, or "-m" and a module of the checkout."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *map(str, [*program, *arguments])]
    return subprocess.Popen(command, cwd=HERE.parent, env=environment, stderr=errors, text=True)


def finish(*started):
    for process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module", params=["HMC", pytest.param("BAOAB", marks=pytest.mark.slow)])
def seen(request, tmp_path_factory):
    """What both processes saw, and the draws of the same run on one device here."""
    folder, port = tmp_path_factory.mktemp("processes"), free_port()
    program = [HERE / "one_of_two_processes.py"]
    finish(*[start(program, [port, process, folder, request.param]) for process in (0, 1)])
    one = sampler(request.param)
    one.run(jax.random.key(0), X, Y)
    files = [np.load(folder / f"{process}.npz") for process in (0, 1)]
    return drawn(one), [dict(file) for file in files]


def test_a_run_of_two_processes_has_the_draws_of_one_device(seen):
    one, both = seen
    for found in both:
        np.testing.assert_allclose(found["whole"], one, **CLOSE)


def test_a_run_that_was_broken_off_goes_on_to_the_same_bits_in_both(seen):
    for found in seen[1]:
        np.testing.assert_array_equal(found["resumed"], seen[1][0]["whole"])
        np.testing.assert_array_equal(found["whole"], seen[1][0]["whole"])


def test_a_signal_to_one_process_ends_the_chunk_in_both(seen):
    for found in seen[1]:
        np.testing.assert_array_equal(found["at SIGTERM"], found["whole"][:, :4])


@pytest.mark.parametrize(
    ("name", "where", "error", "words"),
    [
        ("full", 0, "OSError", ("No space left", "first 2 draws", "step 4", "resume")),
        ("other data", 1, "ValueError", ("is of another run", "data.0.1: there float32[41]")),
    ],
)
def test_what_one_process_meets_ends_the_run_in_both(name, where, error, words, seen):
    said = [str(found[name]) for found in seen[1]]
    assert said[where].startswith(error)
    assert said[1 - where].startswith(f"RuntimeError: MCMC: process {where} ended the run. It says")
    for text in said:
        assert all(word in text for word in words), text


def test_an_error_of_any_length_can_be_told(monkeypatch):
    gather = "jax.experimental.multihost_utils.process_allgather"
    monkeypatch.setattr(gather, lambda told: np.stack([told, told]))

    def fail():
        raise ValueError("é" * 5000)

    with pytest.raises(ValueError, match=r"é{5000}"):
        Processes(several=True).together(fail)
    assert Processes(several=True).first(lambda: "ü") == "ü"


# -- the program for clusters -------------------------------------------------------------------


def distributed(out, processes, *more):
    """The program for clusters, started in several processes of two devices, or in one of one."""
    program = ["-m", "benchmarks.large_runs.distributed"]
    if not (HERE.parent / "benchmarks").is_dir():
        pytest.skip("the benchmarks are not beside the tests")
    arguments = ["--rows", 201, "--draws", 20, "--out", out, *more]
    if processes == 1:
        return [start(program, arguments, devices=1)]
    arguments += ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", processes]
    arguments += ["--groups", 2]
    return [start(program, [*arguments, "--process", i]) for i in range(processes)]


def stored(out):
    with np.load(out) as file:
        return dict(file)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Draws of two processes that nothing happens to."""
    out = tmp_path_factory.mktemp("undisturbed") / "draws.npz"
    finish(*distributed(out, 2))
    return stored(out)


@pytest.mark.slow
def test_two_processes_of_two_devices_give_the_draws_of_one(tmp_path, undisturbed):
    finish(*distributed(tmp_path / "draws.npz", 1, "--devices", 0))
    # Rounding grows along a trajectory: the first draws only.
    for name, values in stored(tmp_path / "draws.npz").items():
        np.testing.assert_allclose(undisturbed[name][:, :4], values[:, :4], err_msg=name, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 10])
def test_processes_that_are_killed_go_on_to_the_same_bits(steps, tmp_path, undisturbed):
    """SIGKILL as soon as so many steps are stored; what is started again ends by itself."""
    out, folder = tmp_path / "draws.npz", tmp_path / "run"
    started = distributed(out, 2, "--checkpoint", folder)
    while not (folder / "steps" / str(steps)).exists():
        assert started[0].poll() is None, started[0].communicate()
        time.sleep(0.01)
    for process in started:
        process.kill()
        process.communicate()
    finish(*distributed(out, 2, "--checkpoint", folder))
    jax.tree.map(np.testing.assert_array_equal, stored(out), undisturbed)
