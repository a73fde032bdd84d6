"""Distributions: shapes, supports and wrappers; targets linear in Gaussian weights; CDFs against SciPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

from numpyro_bnn.distributions.distribution_functions import distribution_function
from numpyro_bnn.distributions.linear_gaussian import LinearGaussian
from numpyro_bnn.distributions.stable_densities import Gamma
from numpyro_bnn.distributions.unwrap import unwrapped

NUM_DRAWS = 20_000
# One shape of linear targets, rows and weights.
N, P = 6, 3

# Distributions are arguments, so that those of equal shapes share one program.
log_density = jax.jit(lambda distribution, value: distribution.log_prob(value))
many_draws = jax.jit(lambda distribution: distribution.sample(jax.random.key(0), (NUM_DRAWS,)))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: d,
        lambda d: d.expand([3, 2]),
        lambda d: d.to_event(1),
        lambda d: d.expand([3, 2]).to_event(2),
        lambda d: d.expand([2]).to_event(1).expand([5]).to_event(1),
    ],
    ids=["plain", "expanded", "event", "expanded event", "twice"],
)
@pytest.mark.parametrize(
    "plain",
    [
        dist.Normal(jnp.array([1.0, 2.0]), 3.0),
        Gamma(jnp.array([1.0, 2.0]), 0.5),
        dist.Laplace(0, 1),
    ],
    ids=["normal", "gamma", "laplace"],
)
def test_unwrapping_gives_the_distribution_that_was_wrapped(plain, wrap):
    if plain.batch_shape == ():
        plain = plain.expand([2])
    found = unwrapped(wrap(plain))
    assert type(found) in (dist.Normal, Gamma, dist.Laplace)
    inner = unwrapped(plain)
    for name in found.arg_constraints:
        np.testing.assert_array_equal(getattr(found, name), getattr(inner, name))


def test_other_distributions_are_left_as_they_are():
    """A transformed or masked distribution is another distribution, and not a wrapper."""
    for distribution in (
        dist.LogNormal(0.0, 1.0),
        dist.Normal(0.0, 1.0).mask(False),
        dist.HalfNormal(2.0),
    ):
        assert unwrapped(distribution) is distribution


@pytest.mark.parametrize("sample_shape", [(), (2, 3)])
@pytest.mark.parametrize(
    ("concentration", "rate", "batch"),
    [(2.0, 1.0, ()), (jnp.ones(3), 2.0, (3,)), (jnp.ones((2, 1)), jnp.ones(4), (2, 4))],
)
def test_gamma_has_the_shapes_of_its_arguments(concentration, rate, batch, sample_shape):
    distribution = Gamma(concentration, rate)
    assert distribution.batch_shape == batch
    assert distribution.event_shape == ()
    drawn = jax.eval_shape(
        partial(distribution.sample, sample_shape=sample_shape), jax.random.key(0)
    )
    assert drawn.shape == (*sample_shape, *batch)
    assert jax.eval_shape(distribution.log_prob, drawn).shape == drawn.shape


def test_the_rate_divides_the_draws_of_one_key():
    one, ten = (many_draws(Gamma(0.7, rate)) for rate in (1.0, 10.0))
    np.testing.assert_allclose(one, 10 * ten, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 2)])
def test_a_linear_target_is_one_event(shape):
    distribution = LinearGaussian(jnp.zeros(shape), jnp.ones((*shape, 3)), 0.5)
    assert distribution.batch_shape == ()
    assert distribution.event_shape == shape
    assert distribution.event_dim == len(shape)
    np.testing.assert_array_equal(distribution.mean, np.zeros(shape))
    for sample_shape in ((), (2, 3)):
        drawn = jax.eval_shape(
            partial(distribution.sample, sample_shape=sample_shape), jax.random.key(0)
        )
        assert drawn.shape == (*sample_shape, *shape)
    assert jax.eval_shape(distribution.log_prob, jnp.zeros(shape)).shape == ()
    # Finite values of every entry make one event that is inside, one NaN one that is not.
    inside, outside = np.ones(shape), np.ones(shape)
    outside[0] = np.nan
    assert bool(distribution.support(inside))
    assert not bool(distribution.support(outside))
    assert distribution.support.event_dim == len(shape)


def test_a_scalar_scale_is_that_of_every_entry(double_precision):
    rng = np.random.default_rng(0)
    mean, features, y = rng.normal(size=N), rng.normal(size=(N, P)), rng.normal(size=N)
    one = LinearGaussian(mean, features, 0.7)
    each = LinearGaussian(mean, features, np.full(N, 0.7))
    found = float(log_density(one, y))
    assert found == pytest.approx(float(log_density(each, y)), rel=1e-14)
    covariance = features @ features.T + 0.49 * np.eye(N)
    expected = stats.multivariate_normal(mean, covariance).logpdf(y)
    assert found == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(one.variance, np.diag(covariance), rtol=1e-12)


def test_a_linear_target_serves_as_an_observed_site_and_passes_through_compiled_code(
    double_precision,
):
    rng = np.random.default_rng(4)
    features, y = rng.normal(size=(N, P)), rng.normal(size=N)

    def model() -> None:
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", LinearGaussian(jnp.zeros(N), features, scale), obs=y)

    found = jax.jit(lambda z: numpyro.infer.util.log_density(model, (), {}, z)[0])({"scale": 0.5})
    expected = stats.multivariate_normal(
        np.zeros(N), features @ features.T + 0.25 * np.eye(N)
    ).logpdf(y)
    assert float(found) == pytest.approx(expected + stats.halfnorm.logpdf(0.5), rel=1e-10)
    # A pytree: the distribution itself is an argument of a compiled function.
    distribution = LinearGaussian(jnp.zeros(N), features, 0.5)
    assert float(log_density(distribution, y)) == pytest.approx(expected, rel=1e-10)


def test_a_noise_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="invalid scale parameter"):
        LinearGaussian(jnp.zeros(2), jnp.ones((2, 1)), -1.0, validate_args=True)
    assert LinearGaussian.arg_constraints["scale"] is constraints.positive


SHAPES = {"few rows": ((4,), 7), "many rows": ((40,), 5), "two outputs": ((9, 2), 4)}


def problem(shape, p, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    mean, features = rng.normal(size=shape), rng.normal(size=(*shape, p))
    scale = noise * np.exp(0.3 * rng.normal(size=shape))
    y = mean + features @ rng.normal(size=p) + scale * rng.normal(size=shape)
    return mean, features, scale, y


def dense(mean, features, scale, y):
    """log Normal(y | mean, diag(scale²) + B Bᵀ), with a covariance of all targets."""
    b = features.reshape(y.size, -1)
    covariance = b @ b.T + jnp.diag(scale.reshape(-1) ** 2)
    r = (y - mean).reshape(-1)
    log_determinant = jnp.linalg.slogdet(2 * jnp.pi * covariance)[1]
    return -(r @ jnp.linalg.solve(covariance, r) + log_determinant) / 2


@jax.jit
def density(mean, features, scale, y):
    return LinearGaussian(mean, features, scale).log_prob(y)


@jax.jit
def variance(mean, features, scale):
    return LinearGaussian(mean, features, scale).variance


@pytest.mark.parametrize("case", SHAPES)
def test_the_density_is_that_of_the_dense_covariance(case, double_precision):
    mean, features, scale, y = problem(*SHAPES[case])
    distribution = jax.eval_shape(LinearGaussian, mean, features, scale)
    expected = jax.jit(dense)(mean, features, scale, y)
    np.testing.assert_allclose(density(mean, features, scale, y), expected, rtol=1e-12)
    assert distribution.event_shape == y.shape
    np.testing.assert_allclose(variance(mean, features, scale), np.sum(features**2, -1) + scale**2)


@pytest.mark.parametrize(("derivative", "rtol"), [(jax.grad, 1e-9), (jax.hessian, 1e-8)])
def test_derivatives_are_exact(derivative, rtol, double_precision):
    mean, features, scale, y = problem((12,), 3)

    def at(distribution):
        return lambda t: distribution(
            mean + t[0], features * jnp.exp(t[1:4]), scale * jnp.exp(t[4]), y
        )

    t = jnp.array([0.1, -0.2, 0.3, 0.2, -0.1])
    found, expected = (
        jax.jit(derivative(at(distribution)))(t) for distribution in (density, dense)
    )
    np.testing.assert_allclose(found, expected, rtol=rtol)


@pytest.mark.parametrize(("noise", "nats"), [(1e-1, 0.005), (1e-2, 0.02), (1e-3, 0.3)])
def test_single_precision_keeps_the_energy(noise, nats):
    """1000 rows whose signal is up to 40,000 times the noise: there a Cholesky factor is 11 nats off.

    What is left is the rounding of residuals, which are differences of numbers that much larger.
    """
    rng = np.random.default_rng(0)
    features = 10 * np.tanh(rng.normal(size=(1000, 4)) @ rng.normal(size=(4, 17)) / 2)
    y = features @ rng.normal(size=17) + noise * rng.normal(size=1000)
    mean, features, y = (np.asarray(v, np.float32) for v in (np.zeros(1000), features, y))
    b = features.astype(float)
    stacked = np.concatenate([b / noise, np.eye(17)])
    _, squares, *_ = np.linalg.lstsq(stacked, np.concatenate([y / noise, np.zeros(17)]))
    factor = np.linalg.qr(stacked, mode="r")
    determinant = 2 * np.sum(np.log(np.abs(np.diag(factor)))) + 2000 * np.log(noise)
    exact = -(squares.item() + determinant + 1000 * np.log(2 * np.pi)) / 2
    assert abs(float(density(mean, features, noise, y)) - exact) < nats


def test_weights_given_the_target_have_their_exact_distribution(double_precision):
    mean, features, scale, y = problem((9, 2), 4)
    keys = jax.random.split(jax.random.key(0), 40_000)
    drawn = np.asarray(
        jax.jit(jax.vmap(lambda k: LinearGaussian(mean, features, scale).weights_given(k, y)))(keys)
    )
    b = (features / scale[..., None]).reshape(18, 4)
    covariance = np.linalg.inv(np.eye(4) + b.T @ b)
    expected = covariance @ b.T @ ((y - mean) / scale).reshape(-1)
    z = (drawn.mean(0) - expected) / np.sqrt(np.diag(covariance) / len(keys))
    assert np.abs(z).max() < 4
    # Whitened, their second moments are the identity to √2/√n and 1/√n.
    white = (drawn - expected) @ np.linalg.cholesky(np.linalg.inv(covariance))
    error = (white.T @ white / len(keys) - np.eye(4)) * np.sqrt(len(keys) / 2)
    assert np.abs(error).max() < 4


def test_samples_have_the_mean_and_covariance(double_precision):
    mean, features, scale, _ = problem((3,), 2)
    distribution = LinearGaussian(mean, features, scale)
    drawn = (
        np.asarray(jax.jit(lambda k: distribution.sample(k, (40_000,)))(jax.random.key(1))) - mean
    )
    covariance = features @ features.T + np.diag(scale**2)
    white = drawn @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert np.abs(white.mean(0)).max() * 200 < 4
    assert np.abs(white.T @ white / 40_000 - np.eye(3)).max() * np.sqrt(20_000) < 4


def products_of(jaxpr):
    """The precisions of all matrix products of a program, those of its parts included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.params["precision"]
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from products_of(inner)


@pytest.mark.parametrize("what", ["density", "gradient", "Hessian", "weights", "draw"])
def test_products_are_in_full_precision_on_devices_that_round_them(what):
    """GPUs round single precision to three digits in a product that does not ask for more."""
    mean, features, scale, y = (jnp.asarray(v, "float32") for v in problem((9,), 3))

    def at(features):
        return LinearGaussian(mean, features, scale)

    key = jax.random.key(0)
    program = {
        "density": lambda f: at(f).log_prob(y),
        "gradient": jax.grad(lambda f: at(f).log_prob(y)),
        "Hessian": jax.hessian(lambda f: at(f).log_prob(y)),
        "weights": lambda f: at(f).weights_given(key, y),
        "draw": lambda f: at(f).sample(key),
    }[what]
    found = list(products_of(jax.make_jaxpr(program)(features).jaxpr))
    assert found
    full = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
    assert set(found) == {full}, found


TRIALS = np.array([1, 4, 30])
SHARES = np.array([0.3, 0.5, 0.9])
GATE = np.array([0.2, 0.6, 0.9])


def cut(low, high):
    return stats.truncnorm((low - SHARES) / 2, (high - SHARES) / 2, SHARES, 2.0).cdf


DISTRIBUTIONS = {
    "poisson": (lambda: dist.Poisson(jnp.asarray(TRIALS)), stats.poisson(TRIALS).cdf),
    "binomial": (lambda: dist.Binomial(TRIALS, SHARES), stats.binom(TRIALS, SHARES).cdf),
    "beta-binomial": (
        lambda: dist.BetaBinomial(1.5, 2.0, TRIALS),
        stats.betabinom(TRIALS, 1.5, 2.0).cdf,
    ),
    "geometric": (lambda: dist.Geometric(SHARES), stats.geom(SHARES, loc=-1).cdf),
    "uniform": (lambda: dist.DiscreteUniform(-2, 5), stats.randint(-2, 6).cdf),
    "zero-inflated": (
        lambda: dist.ZeroInflatedPoisson(GATE, jnp.asarray(TRIALS)),
        lambda y: np.where(y >= 0, GATE, 0) + (1 - GATE) * stats.poisson(TRIALS).cdf(y),
    ),
    "zero-inflated, logits": (
        lambda: dist.ZeroInflatedDistribution(
            dist.Binomial(TRIALS, SHARES), gate_logits=jnp.log(GATE / (1 - GATE))
        ),
        lambda y: np.where(y >= 0, GATE, 0) + (1 - GATE) * stats.binom(TRIALS, SHARES).cdf(y),
    ),
    "mixture": (
        lambda: dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])),
            dist.Exponential(jnp.stack([SHARES, 2 * SHARES], -1)),
        ),
        lambda y: (
            0.3 * stats.expon(scale=1 / SHARES).cdf(y)
            + 0.7 * stats.expon(scale=0.5 / SHARES).cdf(y)
        ),
    ),
    "mixture of two families": (
        lambda: dist.MixtureGeneral(
            dist.Categorical(jnp.full((3, 2), 0.5)),
            [dist.Normal(SHARES, 2.0), dist.Exponential(SHARES)],
            support=dist.constraints.real,
        ),
        lambda y: (stats.norm(SHARES, 2.0).cdf(y) + stats.expon(scale=1 / SHARES).cdf(y)) / 2,
    ),
    "delta": (lambda: dist.Delta(jnp.asarray(TRIALS)), lambda y: 1.0 * (y >= TRIALS)),
    "normal above": (lambda: dist.TruncatedNormal(SHARES, 2.0, low=0.5), cut(0.5, np.inf)),
    "normal below": (lambda: dist.TruncatedNormal(SHARES, 2.0, high=4.0), cut(-np.inf, 4.0)),
    "normal between": (lambda: dist.TruncatedNormal(SHARES, 2.0, low=0.5, high=4.0), cut(0.5, 4.0)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(
    "wrap",
    [lambda distribution: distribution, lambda distribution: distribution.expand([3]).to_event(1)],
)
def test_it_is_that_of_scipy_inside_and_outside_of_the_support(name, wrap):
    distribution, exact = DISTRIBUTIONS[name]
    at = jax.jit(lambda y: distribution_function(wrap(distribution()), y))
    for y in (-3.0, -1.0, 0.0, 0.5, 1.0, 2.5, 4.0, 27.0, 1000.0):
        found = jnp.broadcast_to(at(jnp.full(3, y)), 3)
        np.testing.assert_allclose(found, exact(y), rtol=2e-5, atol=1e-6)


def test_entries_of_a_vector_are_taken_by_themselves():
    covariance = np.array([[4.0, 0.5], [0.5, 0.25]])
    y = np.array([1.0, 0.2])
    expected = stats.norm(0.0, [2.0, 0.5]).cdf(y)
    factor, rest = np.array([[1.0], [0.5]]), np.array([3.0, 1e-6])
    for distribution in (
        dist.MultivariateNormal(jnp.zeros(2), covariance),
        dist.LowRankMultivariateNormal(jnp.zeros(2), factor, rest),
    ):
        np.testing.assert_allclose(distribution_function(distribution, y), expected, rtol=1e-5)


def test_a_distribution_without_one_is_named():
    with pytest.raises(NotImplementedError, match=r"VonMises.*predictions\.sample\(key\)"):
        distribution_function(dist.VonMises(0.0, 1.0), jnp.zeros(3))
