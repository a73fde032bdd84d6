"""Minibatches and chunks are of the rows of one plate; other plates with as many rows keep all of theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import Mesh
from numpyro.handlers import scope

import numpyro_bnn as bnn
from numpyro_bnn.potential.potential import Chunked
from numpyro_bnn.potential.rows import Rows, _shared_by, in_chunks

N = 12
RNG = np.random.default_rng(0)
GROUP = RNG.integers(0, N, N)
TABLE = RNG.normal(size=N).astype(np.float32)
Y = RNG.normal(size=N).astype(np.float32)


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
    potential = bnn.potential_of(model, GROUP, TABLE, Y)
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
        jax.jit(bnn.potential_of(model, GROUP, TABLE, Y))(z)
        for model in (by_group, Chunked(by_group, 4))
    )
    np.testing.assert_allclose(chunked, plain, rtol=1e-5)


def test_host_rows_of_the_data_alone_are_read_by_minibatch():
    z = {"slope": jnp.array(0.7)}
    expected = bnn.potential_of(by_group, GROUP, TABLE, Y)(z)
    read = bnn.potential_of(by_group, GROUP, TABLE, bnn.OnHost(Y))
    energy, _ = in_chunks(Rows(read, "data", N), z, 4)
    np.testing.assert_allclose(energy, expected, rtol=1e-5)
    # A table of groups is needed as a whole; rows of the data in its place would be other numbers.
    table = bnn.potential_of(by_group, GROUP, bnn.OnHost(TABLE), Y)
    with pytest.raises(ValueError, match=r"never takes rows of OnHost.* in the plate 'data'"):
        table(z)
