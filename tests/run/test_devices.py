"""Chains and rows on devices of a mesh, on cores, in two processes: the draws of one device alone."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer import NUTS
from on_meshes import CLOSE, KERNELS, N, X, Y, drawn, mesh_of, sampler
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.run import chain_states
from numpyro_bnn.run.devices import Padded, Placement
from numpyro_bnn.storage.processes import Processes


def draws(mcmc):
    mcmc.run(jax.random.key(0), X, Y)
    return drawn(mcmc)


@pytest.fixture(scope="module")
def finished():
    """Gives a finished run of a kernel on a mesh of these axes; the same one when asked again."""

    @cache
    def finish(name, num_chains=2, **axes):
        mcmc = sampler(name, mesh_of(**axes) if axes else None, num_chains)
        draws(mcmc)
        return mcmc

    return finish


def check_compiled(mcmc):
    """One program serves all chunks, and a second run compiles nothing."""
    (programs,) = mcmc._programs.values()
    compiled = len(programs.advance._executables)
    assert compiled == 1
    draws(mcmc)
    assert len(programs.advance._executables) == compiled
    return programs


QUICK = ("HMC", "BAOAB")


@pytest.mark.parametrize(
    "name", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KERNELS]
)
def test_rows_on_two_devices_give_the_draws_of_one(name, finished):
    shared = finished(name, chain=1, data=2)
    np.testing.assert_allclose(drawn(shared), drawn(finished(name)), **CLOSE)
    check_compiled(shared)
    np.testing.assert_array_equal(shared._last_state.z["w"].shape, (2, 4))


@pytest.mark.slow
def test_rows_on_two_devices_may_come_in_chunks(finished):
    whole = drawn(finished("HMC"))
    for chunk_size in (10, 7):
        shared = sampler("HMC", mesh_of(chain=1, data=2), chunk_size=chunk_size)
        np.testing.assert_allclose(draws(shared), whole, **CLOSE)


def test_one_chain_has_its_rows_on_two_devices(finished):
    found = drawn(finished("HMC", 1, data=2))
    np.testing.assert_allclose(found, drawn(finished("HMC", 1)), **CLOSE)


def program_of(mcmc, programs):
    """What the compiler makes of a step, in words."""
    rows = mcmc._placement.rows([X, Y], {N})
    assert [a.array.sharding.num_devices for a in rows] == [2, 2]
    arrays = [*rows, np.int32(mcmc.num_warmup)]
    state = mcmc._last_state
    empty = programs.zeros(state, None, arrays)
    return programs.advance._jitted.lower(state, empty, None, 0, 1, 1, arrays).compile().as_text()


def test_each_device_looks_at_its_own_rows(finished):
    """41 rows on two devices: products over 21, and no rows that travel."""
    mcmc = finished("HMC", 1, data=2)
    text = program_of(mcmc, check_compiled(mcmc))
    assert f"[{N // 2 + 1}" in text
    assert f"[{N}" not in text
    assert "all-reduce" in text
    assert "all-gather" not in text


def test_each_device_looks_at_its_part_of_a_minibatch(finished):
    """10 of 41 rows: the model of 5 on each of two devices, and never all rows on one."""
    mcmc = finished("BAOAB", chain=1, data=2)
    (programs,) = mcmc._programs.values()
    text = program_of(mcmc, programs)
    assert set(re.findall(r"f32\[(\d+)\S* tanh\(", text)) == {"5"}
    assert f"[{N}" not in text


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 7), columns=st.integers(0, 1))
def test_any_number_of_rows(rows, columns):
    values = np.arange(rows * (columns + 1), dtype=np.float32).reshape(rows, -1)
    placement = Placement(mesh_of(data=2))
    (placed,) = placement.rows([values], {rows})
    assert isinstance(placed, Padded)
    assert placed.array.shape[0] % 2 == 0
    np.testing.assert_array_equal(placed.array[: placed.size], values)
    (other,) = placement.rows([values], {rows + 1})
    np.testing.assert_array_equal(other, values)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mesh": ("rows",)}, r"among 'chain' and 'data', got \('rows',\)"),
        ({"mesh": ("chain",), "num_chains": 3}, "do not divide num_chains=3"),
        ({"mesh": ("data",), "chain_method": "sequential"}, "got 'sequential'"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(given, message):
    if isinstance(given["mesh"], tuple):
        given = given | {"mesh": mesh_of(**{given["mesh"][0]: 2})}
    with pytest.raises(ValueError, match=message):
        sampler("HMC", **given)


def test_rows_that_nobody_knows_are_refused():
    kernel = NUTS(potential_fn=lambda z: jnp.sum(z**2))
    mcmc = bnn.MCMC(kernel, num_warmup=1, num_samples=1, mesh=mesh_of(data=2), progress_bar=False)
    with pytest.raises(ValueError, match="share the rows of the plate"):
        mcmc.run(jax.random.key(0), init_params=jnp.zeros(2))


def test_another_mesh_is_another_run(tmp_path):
    mesh = mesh_of(chain=1, data=2)
    sampler("HMC", mesh, checkpoint=tmp_path / "run").run(jax.random.key(0), X, Y)
    with pytest.raises(ValueError, match="mesh"):
        sampler("HMC", mesh_of(chain=2), checkpoint=tmp_path / "run").resume(X, Y)


def model(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=x)


def calling(x):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.factor("host", jax.pure_callback(lambda: np.float32(0), shape))


def draws_at_once(model=model):
    kernel = bnn.BAOAB(model, step_size=0.1, friction=1.0)
    mcmc = quiet(kernel, 4, 8, 4, chain_method="sequential")
    mcmc.run(jax.random.key(0), jnp.ones(3))
    return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])


def test_chains_run_at_once_with_the_draws_of_chains_one_by_one(monkeypatch):
    monkeypatch.setattr(chain_states, "num_cpus", lambda: 1)
    alone = draws_at_once()
    bound, barrier = Program.bound, threading.Barrier(4)

    def meeting(program, *args):
        call = bound(program, *args)

        def wait():
            if threading.current_thread() is not threading.main_thread():
                barrier.wait(timeout=60)
            return call()

        return wait

    monkeypatch.setattr(Program, "bound", meeting)
    monkeypatch.setattr(chain_states, "num_cpus", lambda: 4)
    np.testing.assert_array_equal(draws_at_once(), alone)


@pytest.mark.parametrize("case", ["large", "host"])
def test_large_networks_and_calls_of_the_host_run_one_by_one(monkeypatch, case):
    monkeypatch.setattr(chain_states, "num_cpus", lambda: 4)
    if case == "large":
        monkeypatch.setattr(chain_states, "_LARGE", 0)
    running, most, lock = [0], [0], threading.Lock()
    bound = Program.bound

    def counting(program, *args):
        call = bound(program, *args)

        def count():
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            try:
                return jax.block_until_ready(call())
            finally:
                running[0] -= 1

        return count

    monkeypatch.setattr(Program, "bound", counting)
    draws_at_once(calling if case == "host" else model)
    assert most[0] == 1


def test_threads_have_the_types_of_their_caller(monkeypatch):
    """JAX's contexts belong to a thread."""
    monkeypatch.setattr(chain_states, "num_cpus", lambda: 4)
    double = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with double(True):
        assert draws_at_once().dtype == np.float64


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
        ("unshared", 1, "FileNotFoundError", ("is not that of process 0", "all processes share")),
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
