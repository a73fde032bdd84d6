"""Compiled programs do not know how long a run is: another number of steps, or thinning, compiles nothing."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS, SA, hmc_util
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn import gradients, preconditioners
from numpyro_bnn.run.kernel_protocol import windows

X = np.linspace(-1, 1, 8, dtype=np.float32)
KERNELS = {
    "NUTS": lambda: NUTS(model, max_tree_depth=2),
    "MCLMC": lambda: bnn.MCLMC(model, step_size=0.1, friction=1.0),
    "BAOAB": lambda: bnn.BAOAB(model, step_size=0.1, friction=1.0, batch_size=4),
}

# Kernels that learn something in warm-up, by how their chains go through the program.
ADAPTING = {
    "NUTS": ("sequential", lambda: NUTS(model, max_tree_depth=2)),
    "HMC": ("vectorized", lambda: HMC(model, num_steps=2, trajectory_length=None, dense_mass=True)),
    "MCLMC": ("vectorized", lambda: bnn.MCLMC(model)),
    "BAOAB": (
        "sequential",
        lambda: bnn.BAOAB(
            model,
            step_size="auto",
            gradient=gradients.svrg(2, order="replacement"),
            gradient_noise="auto",
            preconditioner=preconditioners.from_warmup(first_window=4),
        ),
    ),
    "tempering": ("vectorized", lambda: bnn.ParallelTempering(model, num_rungs=3)),
}


def model(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=numpyro.subsample(x, event_dim=0))


def run(kernel, num_samples, thinning=1, chain_method="vectorized", num_warmup=10):
    mcmc = quiet(kernel, num_warmup, num_samples, 2, thinning=thinning, chain_method=chain_method)
    # Looking for starts compiles for longer than the steps.
    mcmc.run(jax.random.key(0), X, init_params={"w": np.zeros((2, 2))})
    (programs,) = mcmc._programs.values()
    return programs, np.asarray(mcmc.get_samples(group_by_chain=True)["w"])


def executables(programs):
    return [
        list(p._executables.values()) for p in (programs.start, programs.zeros, programs.advance)
    ]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("chain_method", ["vectorized", "sequential"])
def test_another_length_compiles_nothing(name, chain_method):
    programs, draws = run(KERNELS[name](), 2500, chain_method=chain_method)
    compiled = executables(programs)
    assert list(map(len, compiled)) == [1, 1, 1]
    # More draws than the buffer holds, fewer, and one in three.
    for num_samples, thinning in ((40, 1), (1200, 3)):
        again, found = run(KERNELS[name](), num_samples, thinning, chain_method)
        np.testing.assert_array_equal(found, draws[:, thinning - 1 : num_samples : thinning])
        assert executables(again) == compiled


@pytest.mark.filterwarnings("ignore:.* suspect and kept")
@pytest.mark.parametrize("name", ADAPTING)
def test_another_warm_up_compiles_nothing(name):
    chain_method, kernel = ADAPTING[name]
    compiled = executables(run(kernel(), 6, 1, chain_method, num_warmup=30)[0])
    again, _ = run(kernel(), 6, 1, chain_method, num_warmup=70)
    assert executables(again) == compiled


@pytest.mark.filterwarnings("ignore:.* suspect and kept")
@pytest.mark.parametrize("name", ["HMC", "BAOAB"])
def test_draws_are_those_of_programs_that_know_the_length(name):
    chain_method, kernel = ADAPTING[name]
    programs, found = run(kernel(), 6, 1, chain_method, num_warmup=70)

    class Known(type(kernel())):
        """A kernel whose `init` is not that of NumPyro or of this package gets a number of Python."""

        def init(self, rng_key, num_warmup, *args, **kwargs):
            assert num_warmup in range(1000)
            return super().init(rng_key, num_warmup, *args, **kwargs)

    known = kernel()
    known.__class__ = Known
    own, draws = run(known, 6, 1, chain_method, num_warmup=70)
    assert executables(own) != executables(programs)
    np.testing.assert_allclose(found, draws, rtol=1e-4)


def test_windows_of_a_traced_length_are_those_of_numpyro():
    lengths = np.r_[0:1300, 10_000, 123_456, 10**8]
    for length, table in zip(lengths, jax.jit(jax.vmap(windows))(lengths)):
        known = np.asarray(hmc_util.build_adaptation_schedule(int(length)))
        # The last window changes nothing at its end, unless it is the first as well.
        count = max(1, len(known) - 1)
        np.testing.assert_array_equal(table[:count], known[:count])
        assert (table[count:, 1] == -1).all()


@pytest.mark.filterwarnings("ignore:.* suspect and kept")
def test_sa_runs_with_any_length():
    """Its length of warm-up is a constant of its program: it is kept where another trace would find it."""
    for num_warmup in (5, 6):
        assert np.isfinite(run(SA(model), 6, num_warmup=num_warmup)[1]).all()
