"""Minibatches of a potential average to the whole, and what cannot be subsampled is refused."""

from itertools import combinations

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density

import numpyro_bnn as bnn
from numpyro_bnn import priors

SIZE = 6


def data(size=SIZE):
    rng = np.random.default_rng(3)
    return rng.normal(size=(size, 3)), rng.normal(size=size)


def network(x, y):
    """Constrained and hierarchical sites, and a plate that takes rows."""
    net = bnn.random_module("net", nets.Linear(), priors.Hierarchical(), x[:1])
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        xb, yb = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(net(xb), noise), obs=yb)


def indexed(x, y):
    """Takes the rows by the indices that the plate gives."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event())
    with numpyro.plate("data", x.shape[0]) as rows:
        numpyro.sample("y", dist.StudentT(3, x[rows] @ w, 1.0), obs=y[rows])


def factored(x, y):
    """A likelihood given as one factor a row."""
    w = numpyro.sample("w", dist.Gamma(2.0, 1.0).expand([3]).to_event())
    with numpyro.plate("data", x.shape[0]):
        xb, yb = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.factor("likelihood", -jnp.abs(yb - xb @ w))


def crossed(x, y):
    """A second plate, of outputs, inside."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event())
    with numpyro.plate("outputs", 2, dim=-1), numpyro.plate("data", x.shape[0], dim=-2):
        xb = numpyro.subsample(x[:, None], event_dim=1)
        yb = numpyro.subsample(jnp.stack([y, 2 * y], -1), event_dim=0)
        numpyro.sample("y", dist.Normal((xb.squeeze(-2) @ w), 1.0), obs=yb)


@pytest.mark.parametrize("batch_size", [1, 2, 4, SIZE])
@pytest.mark.parametrize("model", [network, indexed, factored, crossed])
def test_minibatches_average_to_the_full_potential(model, batch_size):
    before = jnp.ones(()).dtype
    with nets.double():
        x, y = data()
        potential = bnn.potential_of(model, x, y)
        plate, size = potential.data_plate("data")
        assert (plate, size) == ("data", SIZE)
        z = {k: jnp.asarray(v, jnp.float64) for k, v in nets.weights(model, x, y).items()}
        batches = jnp.array(list(combinations(range(SIZE), batch_size)))

        @jax.jit
        def energies(z):
            each = jax.vmap(lambda rows: potential.minibatch(z, rows, plate))(batches)
            return each, potential(z)

        each, full = energies(z)
        assert full.dtype == jnp.float64
        np.testing.assert_allclose(each.mean(), full, rtol=1e-10)
        if batch_size < SIZE:
            assert each.std() > 0.1
    assert jnp.ones(()).dtype == before  # that of the session, which is float64 once a week


def test_consecutive_rows_are_sliced_to_the_same_energy():
    x, y = data()
    for model in (network, indexed, crossed):
        potential = bnn.potential_of(model, x, y)
        z, rows = nets.weights(model, x, y), jnp.arange(2, 5)
        energy = jax.jit(potential.minibatch, static_argnums=(2, 3))
        sliced, gathered = (energy(z, rows, "data", contiguous) for contiguous in (True, False))
        np.testing.assert_allclose(sliced, gathered, rtol=1e-6)


def test_the_full_potential_is_minus_the_log_density_of_unconstrained_values():
    x, y = data()
    potential = bnn.potential_of(factored, x, y)
    z = nets.weights(factored, x, y)
    values = potential.constrain(z)
    np.testing.assert_allclose(values["w"], np.exp(z["w"]), rtol=1e-6)
    expected = log_density(factored, (x, y), {}, values)[0] + z["w"].sum()  # log |dw / dz| = z
    np.testing.assert_allclose(jax.jit(potential)(z), -expected, rtol=1e-5)
    np.testing.assert_allclose(potential.unconstrain(values)["w"], z["w"], rtol=1e-5)


def weight():
    return numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event())


def no_plate(x, y):
    numpyro.sample("y", dist.Normal(x @ weight(), 1), obs=y)


def latent_inside(x, y):
    w = weight()
    with numpyro.plate("data", len(x)):
        shift = numpyro.sample("shift", dist.Normal(0, 1))
        xb, yb = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(xb @ w + shift, 1), obs=yb)


def only_x_subsampled(x, y):
    w = weight()
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(numpyro.subsample(x, event_dim=1) @ w, 1), obs=y)


def only_y_subsampled(x, y):
    w = weight()
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=numpyro.subsample(y, event_dim=0))


def weights_not_subsampled(x, y):
    """A batch of one row would count with the weights of all of them."""
    w = weight()
    with numpyro.plate("data", len(x)), handlers.scale(scale=jnp.ones(len(x))):
        xb, yb = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(xb @ w, 1), obs=yb)


def matrix_not_subsampled(x, y):
    w = weight()
    covariance = jnp.eye(len(x))
    with numpyro.plate("data", len(x)):
        yb = numpyro.subsample(y, event_dim=0)
        numpyro.factor("y", -((yb - covariance @ yb) ** 2) + w.sum())


def summed_factor(x, y):
    w = weight()
    with numpyro.plate("data", len(x)):
        xb, yb = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.factor("likelihood", -jnp.sum((yb - xb @ w) ** 2))


def factor_outside(x, y):
    w = weight()
    indexed_part(x, y, w)
    numpyro.factor("extra", -w.sum())


def indexed_part(x, y, w):
    with numpyro.plate("data", len(x)) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])


def subsampling_itself(x, y):
    w = weight()
    with numpyro.plate("data", len(x), subsample_size=4) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ w, 1), obs=y[rows])


@pytest.mark.parametrize("size", [9, 2])
@pytest.mark.parametrize(
    ("model", "plate", "message"),
    [
        (no_plate, None, "this model has none. Inside `with"),
        (latent_inside, None, "latent site 'shift' is inside the data plate 'data'"),
        (only_x_subsampled, None, "does not follow a minibatch|observed site 'y' has values"),
        (only_y_subsampled, None, "does not follow a minibatch|observed site 'y' has values"),
        (matrix_not_subsampled, None, "does not follow a minibatch"),
        (summed_factor, None, "summed into one factor would count"),
        (factor_outside, None, "observed site 'extra' is outside the plate 'data'"),
        (crossed, None, r"which plate around observed sites, \['data', 'outputs'\]"),
        (indexed, "rows", r"plate around observed sites, \['data'\], .* got 'rows'"),
    ],
)
def test_what_cannot_be_subsampled_is_refused(model, plate, message, size):
    # With two rows only a minibatch of one is left, which legal broadcasting may hide.
    with pytest.raises(ValueError, match=message):
        bnn.potential_of(model, *data(size)).data_plate(plate)


def test_weights_of_rows_that_stay_whole_are_refused():
    potential = bnn.potential_of(weights_not_subsampled, *data(9))
    with pytest.raises(ValueError, match="does not follow a minibatch of 7 of the 9 rows"):
        potential.data_plate()


def test_a_plate_that_subsamples_itself_has_the_energy_of_all_rows():
    potential, x_y = bnn.potential_of(subsampling_itself, *data()), data()
    whole = bnn.potential_of(lambda x, y: indexed_part(x, y, weight()), *x_y)
    z = {name: jnp.full(site.shape, 0.3) for name, site in whole.structure.sites.items()}
    z = {name: z[name] for name in whole.structure.latent}
    np.testing.assert_allclose(jax.jit(potential)(z), jax.jit(whole)(z), rtol=1e-6)
    assert potential.data_plate() == ("data", SIZE)
    rows = jnp.array([1, 5])  # fewer than the model takes
    some = [jax.jit(lambda z, p=p: p.minibatch(z, rows, "data"))(z) for p in (potential, whole)]
    np.testing.assert_allclose(*some, rtol=1e-6)


def test_models_without_a_gradient_are_refused():
    def discrete(x, y):
        kind = numpyro.sample("kind", dist.Categorical(jnp.ones(3) / 3))
        numpyro.sample("y", dist.Normal(kind, 1).expand([len(y)]).to_event(), obs=y)

    with pytest.raises(
        ValueError, match=r"latent site\(s\) \['kind'\] are discrete .*DiscreteGibbs"
    ):
        bnn.potential_of(discrete, *data())

    def constant(x, y):
        numpyro.sample("y", dist.Normal(0, 1).expand([len(y)]).to_event(), obs=y)

    with pytest.raises(ValueError, match="no latent site"):
        bnn.potential_of(constant, *data())


def test_a_minibatch_of_a_plate_that_there_is_not_is_refused():
    # Substituted nowhere, the rows would be all rows: a finite energy, and a wrong one.
    potential = bnn.potential_of(indexed, *data())
    with pytest.raises(ValueError, match=r"plate around observed sites, \['data'\], .* got 'rows'"):
        potential.minibatch({"w": jnp.zeros(3)}, jnp.arange(2), "rows")
