"""A site without numbers, such as the coefficients of a table that has no columns in one run."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import numpyro_bnn as bnn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2)).astype(np.float32)
Y = X[:, 0] + 0.3 * RNG.normal(size=30).astype(np.float32)
KEY = jax.random.key(0)


def model(x, y=None):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("none", dist.Normal(0, 1).expand([0]).to_event(1))
    numpyro.sample("nothing", dist.Normal(0, 1).expand([3, 0]).to_event(2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, 0.3), obs=y)


@pytest.mark.parametrize("kernel", [bnn.BAOAB(model, step_size=0.01), NUTS(model)])
def test_a_run_with_it_is_stored_exported_and_judged(tmp_path, kernel):
    settings = {"num_warmup": 5, "num_samples": 8, "num_chains": 2, "progress_bar": False}
    where = {"draws": tmp_path / "draws", "checkpoint": tmp_path / "checkpoint"}
    run = bnn.MCMC(kernel, chain_method="vectorized", **settings, **where)
    run.run(KEY, X, Y)
    assert run.get_samples()["none"].shape == (16, 0)
    assert run.get_samples(group_by_chain=True)["nothing"].shape == (2, 8, 3, 0)
    assert bnn.average(bnn.predict(None, run, X)).mean.shape == (30,)
    assert bnn.to_inference_data(run)["posterior"]["none"].shape == (2, 8, 0)
    loaded = bnn.load(bnn.save(run, tmp_path / "saved"), model)
    assert loaded["nothing"].shape == (2, 8, 3, 0)
    assert np.isfinite(bnn.diagnose(run, X).predictions.max_rhat)


def test_approximations_take_it():
    for draws in (
        bnn.optimize(model, KEY, X, Y, num_chains=2),
        bnn.map_estimate(model, KEY, X, Y),
        bnn.laplace(model, KEY, X, Y, num_samples=5),
    ):
        assert draws["none"].shape[-1] == 0
