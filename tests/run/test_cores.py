"""Chains of small networks run at once, each on a core, and their draws are those of chains one by one."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.run import chain_states


def model(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=x)


def calling(x):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.factor("host", jax.pure_callback(lambda: np.float32(0), shape))


def draws(model=model):
    kernel = bnn.BAOAB(model, step_size=0.1, friction=1.0)
    mcmc = quiet(kernel, 4, 8, 4, chain_method="sequential")
    mcmc.run(jax.random.key(0), jnp.ones(3))
    return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])


def test_chains_run_at_once_with_the_draws_of_chains_one_by_one(monkeypatch):
    monkeypatch.setattr(chain_states, "num_cpus", lambda: 1)
    alone = draws()
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
    np.testing.assert_array_equal(draws(), alone)


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
    draws(calling if case == "host" else model)
    assert most[0] == 1


def test_threads_have_the_types_of_their_caller(monkeypatch):
    """JAX's contexts belong to a thread."""
    monkeypatch.setattr(chain_states, "num_cpus", lambda: 4)
    double = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with double(True):
        assert draws().dtype == np.float64
