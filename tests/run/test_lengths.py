"""Compiled programs do not know how long a run is: another number of draws, or thinning, compiles nothing."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import numpyro_bnn as bnn

X = np.linspace(-1, 1, 8, dtype=np.float32)
KERNELS = {
    "NUTS": lambda: NUTS(model, max_tree_depth=2),
    "MCLMC": lambda: bnn.MCLMC(model, step_size=0.1, friction=1.0),
    "BAOAB": lambda: bnn.BAOAB(model, step_size=0.1, friction=1.0, batch_size=4),
}


def model(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=numpyro.subsample(x, event_dim=0))


def run(kernel, num_samples, thinning=1, chain_method="vectorized"):
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=10,
        num_samples=num_samples,
        thinning=thinning,
        num_chains=2,
        chain_method=chain_method,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X)
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
