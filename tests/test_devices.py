"""Chains and rows on the devices of a mesh: the draws of one device, up to the order of sums."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from numpyro_bnn.placement import Padded, Placement, _cut

pytestmark = pytest.mark.usefixtures("quick_compile")
N = 41
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] + 0.5 * RNG.normal(size=N)).astype(np.float32)
FIXED = {"trajectory_length": None, "adapt_step_size": False, "adapt_mass_matrix": False}
# float32: what another order of adding 41 terms changes, over a few steps.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def model(x, y=None):
    # With an intercept, so that a padded row of zeros would count.
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1] + 1]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(jnp.tanh(rows @ w[1:] + w[0]), 0.5), obs=target)


KERNELS = {
    "HMC": lambda: HMC(model, step_size=0.05, num_steps=3, **FIXED),
    "BAOAB": lambda: bnn.BAOAB(model, step_size=0.01, batch_size=10),
}


def mesh_of(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


def sampler(name, mesh=None, num_chains=2, **settings):
    return bnn.MCMC(
        KERNELS[name](),
        num_warmup=2,
        num_samples=6,
        num_chains=num_chains,
        mesh=mesh,
        progress_bar=False,
        **settings,
    )


def draws(mcmc):
    mcmc.run(jax.random.key(0), X, Y)
    return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])


def check_compiled(mcmc, mesh_programs):
    """One program serves all chunks, and a second run compiles nothing."""
    (programs,) = mcmc._programs.values()
    compiled = programs.advance._cache_size()
    assert compiled == mesh_programs
    draws(mcmc)
    assert programs.advance._cache_size() == compiled
    return programs


@pytest.mark.parametrize("name", KERNELS)
def test_rows_on_two_devices_give_the_draws_of_one(name, mesh_programs):
    whole = draws(sampler(name))
    shared = sampler(name, mesh_of(chain=1, data=2))
    np.testing.assert_allclose(draws(shared), whole, **CLOSE)
    check_compiled(shared, mesh_programs)
    np.testing.assert_array_equal(shared._last_state.z["w"].shape, (2, 4))


def test_one_chain_has_its_rows_on_two_devices():
    found = draws(sampler("HMC", mesh_of(data=2), num_chains=1))
    np.testing.assert_allclose(found, draws(sampler("HMC", num_chains=1)), **CLOSE)


def test_each_device_looks_at_its_own_rows(mesh_programs):
    """41 rows on two devices: products over 21, and no rows that travel."""
    mcmc = sampler("HMC", mesh_of(data=2), num_chains=1)
    draws(mcmc)
    programs = check_compiled(mcmc, mesh_programs)
    arrays = mcmc._placement.rows([X, Y], {N})
    assert [a.array.sharding.num_devices for a in arrays] == [2, 2]
    state = mcmc._last_state
    empty = programs.empty(state, None, arrays)
    text = programs.advance.lower(state, empty, None, 0, 1, 1, arrays).compile().as_text()
    assert f"[{N // 2 + 1}" in text
    assert f"[{N}" not in text
    assert "all-reduce" in text
    assert "all-gather" not in text


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 20), columns=st.integers(0, 3))
def test_any_number_of_rows(rows, columns):
    values = np.arange(rows * (columns + 1), dtype=np.float32).reshape(rows, -1)
    placement = Placement(mesh_of(data=2))
    (placed,) = placement.rows([values], {rows})
    assert isinstance(placed, Padded)
    assert placed.array.shape[0] % 2 == 0
    np.testing.assert_array_equal(_cut([placed])[0], values)
    (other,) = placement.rows([values], {rows + 1})
    np.testing.assert_array_equal(other, values)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"mesh": 2}, TypeError, r"mesh must be a jax.sharding.Mesh, got 2"),
        ({"mesh": ("rows",)}, ValueError, r"among 'chain' and 'data', got \('rows',\)"),
        ({"mesh": ("chain",), "num_chains": 3}, ValueError, "do not divide num_chains=3"),
        ({"mesh": ("data",), "chain_method": "sequential"}, ValueError, "got 'sequential'"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(given, error, message):
    if isinstance(given["mesh"], tuple):
        given = given | {"mesh": mesh_of(**{given["mesh"][0]: 2})}
    with pytest.raises(error, match=message):
        sampler("HMC", **given)


def test_rows_that_nobody_knows_are_refused():
    kernel = NUTS(potential_fn=lambda z: jnp.sum(z**2))
    mcmc = bnn.MCMC(kernel, num_warmup=1, num_samples=1, mesh=mesh_of(data=2), progress_bar=False)
    with pytest.raises(ValueError, match="share the rows of the plate"):
        mcmc.run(jax.random.key(0), init_params=jnp.zeros(2))


def test_runs_of_several_processes_stay_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(Placement, "spans_processes", True)
    with pytest.raises(ValueError, match="not for a mesh over several processes"):
        sampler("HMC", mesh_of(chain=2), draws=tmp_path / "d.zarr").run(jax.random.key(0), X, Y)


def test_another_mesh_is_another_run(tmp_path):
    sampler("HMC", mesh_of(data=2), checkpoint=tmp_path / "run").run(jax.random.key(0), X, Y)
    with pytest.raises(ValueError, match="mesh"):
        sampler("HMC", mesh_of(chain=2), checkpoint=tmp_path / "run").resume(X, Y)


def distributed(folder, processes, devices, *more):
    """Draws of the benchmark's script in several processes."""
    script = Path(__file__).parents[1] / "benchmarks" / "distributed.py"
    if not script.is_file():
        pytest.skip("the benchmarks are not beside the tests")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={devices}"
    out = folder / f"{processes}x{devices}.npz"
    started = []
    for process in range(processes):
        command = [sys.executable, str(script), "--rows", "201", "--draws", "4", "--out", str(out)]
        command += [*more]
        if processes > 1:
            command += ["--coordinator", f"127.0.0.1:{port}"]
            command += ["--processes", str(processes), "--process", str(process)]
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        started.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        )
    for process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    with np.load(out) as file:
        return dict(file)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_two_processes_of_two_devices_give_the_draws_of_one(tmp_path, kernel):
    one = distributed(tmp_path, 1, 1, "--devices", "0", "--kernel", kernel)
    four = distributed(tmp_path, 2, 2, "--groups", "2", "--kernel", kernel)
    for name, values in one.items():
        np.testing.assert_allclose(four[name], values, err_msg=name, **CLOSE)
