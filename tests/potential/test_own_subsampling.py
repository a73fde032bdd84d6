"""``subsample_size=`` in a model is a batch size, and never a frozen minibatch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS, SA, BarkerMH

import numpyro_bnn as bnn
from numpyro_bnn.posterior.draws import Draws

KEY = jax.random.key(0)
X, Y = np.arange(10.0, dtype="f"), np.arange(10.0, dtype="f") / 4


def model(x, y=None, size=3):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("data", len(x), subsample_size=size) as rows:
        numpyro.sample("y", dist.Normal(w * x[rows], 1.0), obs=None if y is None else y[rows])


whole = partial(model, size=None)
MINIBATCHES = {
    "SGLD": partial(bnn.SGLD, step_size=1e-3),
    "BAOAB": partial(bnn.BAOAB, step_size=0.01),
    "GGMC": partial(bnn.GGMC, step_size=0.01),
}


def draws(kernel):
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=6, progress_bar=False)
    mcmc.run(KEY, X, Y, init_params={"w": jnp.zeros(())})
    return mcmc.get_samples()["w"]


@pytest.mark.parametrize("kernel", ["SGLD", pytest.param("BAOAB", marks=pytest.mark.slow), "GGMC"])
def test_kernels_take_it_as_their_batch_size(kernel):
    make = MINIBATCHES[kernel]
    np.testing.assert_array_equal(draws(make(model)), draws(make(whole, batch_size=3)))


def test_a_batch_size_of_the_kernel_wins():
    make = MINIBATCHES["SGLD"]
    np.testing.assert_array_equal(
        draws(make(model, batch_size=5)), draws(make(whole, batch_size=5))
    )
    full = {"gradient": bnn.gradients.full()}
    np.testing.assert_array_equal(draws(make(model, **full)), draws(make(whole, **full)))


@pytest.mark.parametrize(
    "kernel",
    [
        NUTS,
        BarkerMH,
        SA,
        bnn.ParallelTempering,
        bnn.MAMS,
        bnn.WindowedHMC,
        partial(bnn.MALA, step_size=0.1),
        partial(bnn.RandomWalk, step_size=0.1),
    ],
)
def test_kernels_that_use_all_rows_refuse_it(kernel):
    with pytest.raises(ValueError, match=r"(?s)subsamples 3 .*emove `subsample_size=`"):
        draws(kernel(model))


OPTIONS = {"num_steps": 20, "progress_bar": False}


@pytest.mark.slow  # The same member optimiser as of `optimize`.
def test_ensembles_take_it_as_their_batch_size():
    energies = [
        bnn.map_estimate(m, KEY, X, Y, **OPTIONS, **more).stats["potential_energy"]
        for m, more in ((model, {}), (whole, {"batch_size": 3}))
    ]
    np.testing.assert_allclose(*energies, rtol=1e-6)


def test_optimisers_take_it_as_their_batch_size():
    one = bnn.optimize(model, KEY, X, Y, **OPTIONS)
    two = bnn.optimize(whole, KEY, X, Y, batch_size=3, **OPTIONS)
    np.testing.assert_array_equal(one["w"], two["w"])


def test_all_rows_are_predicted():
    found = bnn.predict(None, Draws({"w": jnp.ones((1, 2))}, model), X)
    np.testing.assert_allclose(found.mean[0], [X, X], rtol=1e-6)


def test_two_plates_that_subsample_need_a_name():
    def twice(x, y):
        w = numpyro.sample("w", dist.Normal())
        for name in ("first", "second"):
            with numpyro.plate(name, 10, subsample_size=4) as rows:
                numpyro.sample(f"{name}/y", dist.Normal(w, 1.0), obs=y[rows])

    for door in (
        lambda: draws(bnn.SGLD(twice, step_size=0.1)),
        lambda: bnn.optimize(twice, KEY, X, Y, progress_bar=False),
    ):
        with pytest.raises(
            ValueError, match=r"several plates of the model subsample, \{'first': 4"
        ):
            door()
