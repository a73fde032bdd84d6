"""Randomised modes where observed values enter other densities: exact draws of linear Gaussian models."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.handlers import condition
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.modes import draw_noise, gaussian_priors, known_noise, perturbed
from numpyro_bnn.potential.structure import structure_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=10)
Y = 1.5 * X + RNG.normal(size=10)


def with_error(x, y=None):
    """A constant of the model that was measured, and that the target depends on too."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    offset = numpyro.sample("offset", dist.Normal(b, 0.2), obs=jnp.array(0.5))
    with numpyro.plate("data", len(x)):
        mean = b * numpyro.subsample(x, event_dim=0) + offset
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=numpyro.subsample(y, event_dim=0))


def several_with_error(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("sensors", 2):
        read = numpyro.sample("read", dist.Normal(b, 0.5), obs=jnp.array([0.3, 0.9]))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(b * x + read.sum(), 1.0), obs=y)


def series(x, y=None):
    """A walk with a drift, whose first value the model knows by itself."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    first = numpyro.sample("first", dist.Normal(b, 0.3), obs=jnp.array(0.7))
    before = jnp.concatenate([first[None], y[:-1]])
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(0.5 * before + b, 1.0), obs=y)


def value_of_a_weight(x, y=None):
    """An observed value that is computed from the weight, and enters the target."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    gap = numpyro.sample("gap", dist.Normal(0.0, 0.2), obs=b - 0.3)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(b * x + gap, 1.0), obs=y)


def two_targets(x, y=None):
    """Data whose values enter the law of other data."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        first = numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)
        numpyro.sample("again", dist.Normal(2.0 * first + b, 1.0), obs=y[::-1])


def correlated(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    root = jnp.array([[0.5, 0.0], [0.3, 0.2]])
    pair = dist.MultivariateNormal(jnp.stack([b, 2 * b]), scale_tril=root)
    read = numpyro.sample("read", pair, obs=jnp.array([0.3, 0.9]))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(b * x + read.sum(), 1.0), obs=y)


MODELS = [with_error, several_with_error, series, value_of_a_weight, two_targets, correlated]


def posterior(model):
    """Mean and standard deviation of the one weight, of a quadratic energy."""
    potential = bnn.potential_of(model, X, Y)
    zero, unflatten = ravel_pytree({"b": jnp.zeros(())})
    # Operation by operation each would compile by itself.
    slopes, hessian = jax.jit(
        lambda v: tuple(of(lambda v: potential(unflatten(v)))(v) for of in (jax.grad, jax.hessian))
    )(zero)
    slope, curvature = slopes[0], hessian[0, 0]
    return float(-slope / curvature), float(curvature**-0.5)


def noise_of(model):
    """What is known of a model before members are drawn, and a function of a key to the noise of one."""
    whole = Marginal(model, (X, Y), {})
    known, counts = known_noise(whole.centered)
    anchored = gaussian_priors(whole)
    return known, lambda key: draw_noise(key, whole, anchored, known, counts)


@pytest.mark.parametrize("model", MODELS)
def test_modes_are_draws_from_the_posterior(model):
    """Each perturbed energy is quadratic; its mode is one Newton step from anywhere."""
    mean, sd = posterior(model)
    known, noise = noise_of(model)

    @jax.jit
    @jax.vmap
    def mode(key):
        energy = Marginal(perturbed(model, noise(key), known), (X, Y), {})
        return -jax.grad(lambda b: energy({"b": b}))(0.0) * sd**2

    found = np.asarray(mode(jax.random.split(jax.random.key(0), 20_000)), np.float64)
    assert abs(found.mean() - mean) < 4 * sd / len(found) ** 0.5
    # The standard error of a standard deviation is σ / √(2 n).
    assert abs(found.std() / sd - 1) < 4 / (2 * len(found)) ** 0.5


def test_members_of_an_ensemble_are_such_modes():
    options = {"num_steps": 10, "optimizer": optax.lbfgs(), "progress_bar": False}
    draws = bnn.randomized_map(with_error, jax.random.key(0), X, Y, num_members=300, **options)
    found = np.asarray(draws["b"], np.float64).ravel()
    mean, sd = posterior(with_error)
    assert abs(found.mean() - mean) < 4 * sd / 300**0.5
    assert abs(found.std() / sd - 1) < 4 / 600**0.5


def scale_of_a_start(x, y=None):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    first = numpyro.sample("first", dist.Normal(0.0, spread), obs=jnp.array([0.7, 0.1]))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(first.sum(), 1.0), obs=y)


# A weight whose prior has no latent site, which its value could tell of.
conditioned = row_model(
    lambda x, b, held: dist.Normal(b * x + held, 1.0),
    b=dist.Normal(0.0, 1.0),
    held=dist.Normal(0.0, 1.0),
)


def test_what_has_noise():
    def noise(model):
        drawn = noise_of(model)[1](jax.random.key(0))
        return {name: np.shape(value) for name, value in drawn.items()}

    # Where the noise is fitted each value has a weight instead.
    assert noise(scale_of_a_start) == {"first": (2,), "y": (10,)}
    assert noise(condition(conditioned, {"held": 0.3})) == {"b": (), "y": (10,)}


def all_rows_in_one_law(x, y=None):
    b, s = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in "bs")
    law = dist.MultivariateNormal(b * jnp.ones(len(x)), s**2 * jnp.eye(len(x)))
    numpyro.sample("y", law, obs=y)


def all_rows_in_an_event(x, y=None):
    b, s = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in "bs")
    # The first value is given: one value less than there are rows.
    numpyro.sample("y", dist.Normal(b * y[:-1], s).to_event(1), obs=y[1:])


def an_output_an_observation(x, y=None):
    """Two outputs side by side, each a law of all rows."""
    b, s = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in "bs")
    with numpyro.plate("outputs", 2):
        law = dist.MultivariateNormal(b * jnp.ones(len(x)), s**2 * jnp.eye(len(x)))
        numpyro.sample("y", law, obs=jnp.stack([y, -y]))


def one_factor(x, y=None):
    b, s = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in "bs")
    numpyro.factor("y", dist.Normal(b * x, s).log_prob(y).sum())


def rows_and_a_constant(x, y=None):
    """One observation of two values beside the rows, and a penalty."""
    b, s = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in "bs")
    numpyro.sample("read", dist.Normal(b, s).expand([2]).to_event(1), obs=jnp.array([0.3, 0.9]))
    numpyro.factor("penalty", -b)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(b * x, s).expand([len(x)]), obs=y)


def one_value(x, y=None):
    s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, s), obs=y[0])


REFUSED = {
    all_rows_in_one_law: r"'y' is one observation of shape \(10,\), in which .* it takes 1\. Give",
    all_rows_in_an_event: r"'y' is one observation of shape \(9,\), in which .* it takes 1\. Give",
    an_output_an_observation: r"'y' is one observation of shape \(10,\), in which .* it takes 2\. Give",
    one_factor: "the factor 'y' is one number, in which all rows are together",
}


@pytest.mark.parametrize("model", REFUSED)
def test_a_law_of_all_rows_at_once_gets_no_common_weight(model):
    with pytest.raises(ValueError, match=REFUSED[model]):
        bnn.randomized_map(model, jax.random.key(0), X, Y, num_steps=0, progress_bar=False)


@pytest.mark.parametrize("model", [rows_and_a_constant, one_value])
def test_single_observations_have_weights(model):
    draws = bnn.randomized_map(model, jax.random.key(0), X, Y, num_steps=0, progress_bar=False)
    assert draws.num_chains == 5


def test_it_stays_no_row_of_data():
    """Minibatches count it once, and it is no target that predictions are compared with."""
    structure = structure_of(with_error, (X, Y), {})
    assert structure.evidence == ["offset", "y"]
    assert structure.data == structure.targets == ["y"]
    held = structure_of(condition(conditioned, {"held": 0.3}), (X, Y), {})
    assert held.evidence == held.data == ["y"]
    potential = bnn.potential_of(with_error, X, Y)
    z = {"b": jnp.array(0.2)}
    parts = [potential.minibatch(z, jnp.arange(i, i + 5), "data") for i in (0, 5)]
    np.testing.assert_allclose(np.mean(parts), potential(z), rtol=1e-5)


def outputs_of_rows(x, y=None):
    b, s = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in "bs")
    with numpyro.plate("data", len(x)):
        law = dist.Normal(b * x[:, None] * jnp.ones(3), s).to_event(1)
        numpyro.sample("y", law, obs=jnp.stack([y, -y, y], -1))


def test_outputs_of_a_single_row_are_its_own():
    options = {"num_steps": 0, "progress_bar": False}
    draws = bnn.randomized_map(outputs_of_rows, jax.random.key(0), X[:1], Y[:1], **options)
    assert draws.num_chains == 5
