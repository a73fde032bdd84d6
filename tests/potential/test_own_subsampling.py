"""Plates of a model: ``subsample_size=`` is a batch size, and plates beside the data keep all their rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import Mesh
from numpyro.handlers import scope
from numpyro.infer import NUTS, SA, BarkerMH

import numpyro_bnn as bnn
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.potential.potential import Chunked
from numpyro_bnn.potential.rows import Rows, _shared_by, in_chunks

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
    with pytest.raises(ValueError, match=r"subsamples 3 .*(emove|uses all rows)"):
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


N = 12
RNG = np.random.default_rng(0)
GROUP = RNG.integers(0, N, N)
TABLE = RNG.normal(size=N).astype(np.float32)
TARGETS = RNG.normal(size=N).astype(np.float32)


def by_group(group, table, y=None):
    """A table with one row a group, as many as there are observations."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", N):
        effect = slope * numpyro.subsample(table, event_dim=0)
    with numpyro.plate("data", N):
        own = effect[numpyro.subsample(group, event_dim=0)]
        numpyro.sample("y", dist.Normal(own, 1.0), obs=numpyro.subsample(y, event_dim=0))


def random_effects(group, table, y=None):
    """The same with one latent value a group."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", N):
        effect = numpyro.sample("effect", dist.Normal(numpyro.subsample(table, event_dim=0), 1.0))
    with numpyro.plate("data", N):
        own = slope * effect[numpyro.subsample(group, event_dim=0)]
        numpyro.sample("y", dist.Normal(own, 1.0), obs=numpyro.subsample(y, event_dim=0))


def around(group, table, y=None):
    """The plate of groups around that of the data, which both have an axis in the target."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", N, dim=-2):
        mean = slope * numpyro.subsample(table[:, None], event_dim=0)
        with numpyro.plate("data", N, dim=-1):
            own = mean + numpyro.subsample(y, event_dim=0)
            whole = numpyro.subsample(jnp.outer(table, y), event_dim=0)
            numpyro.sample("y", dist.Normal(own, 1.0), obs=whole)


MODELS = {
    "a table": (by_group, ""),
    "random effects": (random_effects, ""),
    "nested": (around, ""),
    "under a prefix": (scope(random_effects, prefix="a"), "a/"),
}


@pytest.mark.parametrize("name", MODELS)
def test_chunks_have_the_energy_and_the_gradient_of_all_rows(name):
    model, prefix = MODELS[name]
    potential = bnn.potential_of(model, GROUP, TABLE, TARGETS)
    plate = f"{prefix}data"
    shapes = potential.structure.shapes
    z = {n: jnp.asarray(RNG.normal(size=shapes[n])) for n in potential.structure.latent}
    expected, slopes = jax.jit(jax.value_and_grad(potential))(z)
    for chunk_size in (1, 5):
        energy, gradient = jax.jit(in_chunks, static_argnums=(0, 2))(
            Rows(potential, plate, N), z, chunk_size
        )
        np.testing.assert_allclose(energy, expected, rtol=1e-5)
        for site in z:
            np.testing.assert_allclose(gradient[site], slopes[site], rtol=1e-4, atol=1e-4)
    taken = jnp.arange(4, 8)
    gathered, sliced = jax.jit(
        lambda z: [potential.minibatch(z, taken, plate, contiguous=c) for c in (False, True)]
    )(z)
    np.testing.assert_allclose(sliced, gathered)
    # Devices that share the rows take them by another way, which one device can show.
    with _shared_by(Mesh(np.array(jax.devices()[:1]), ("data",))):
        shared = jax.jit(lambda z: potential.minibatch(z, taken, plate))(z)
    np.testing.assert_allclose(shared, gathered, rtol=1e-5)


def test_a_chunked_model_has_the_energy_of_all_rows():
    z = {"slope": jnp.array(0.7)}
    plain, chunked = (
        jax.jit(bnn.potential_of(model, GROUP, TABLE, TARGETS))(z)
        for model in (by_group, Chunked(by_group, 4))
    )
    np.testing.assert_allclose(chunked, plain, rtol=1e-5)


def test_host_rows_of_the_data_alone_are_read_by_minibatch():
    z = {"slope": jnp.array(0.7)}
    expected = bnn.potential_of(by_group, GROUP, TABLE, TARGETS)(z)
    read = bnn.potential_of(by_group, GROUP, TABLE, bnn.OnHost(TARGETS))
    energy, _ = in_chunks(Rows(read, "data", N), z, 4)
    np.testing.assert_allclose(energy, expected, rtol=1e-5)
    # A table of groups is needed as a whole; rows of the data in its place would be other numbers.
    table = bnn.potential_of(by_group, GROUP, bnn.OnHost(TABLE), TARGETS)
    with pytest.raises(ValueError, match=r"never takes rows of OnHost.* in the plate 'data'"):
        table(z)
