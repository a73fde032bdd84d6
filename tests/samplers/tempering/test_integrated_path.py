"""The output layer integrated out at every power of the likelihood: the path of the model itself."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from affine_models import by_hand, log_integral
from jax.flatten_util import ravel_pytree
from numpyro.handlers import seed
from numpyro.infer.util import log_density
from scipy.integrate import quad
from scipy.stats import norm

import numpyro_bnn as bnn
from numpyro_bnn.distributions.linear_gaussian import LinearGaussian

ROWS = 9
POWERS = (0.0, 1e-3, 0.3, 1.0)


def data(outputs=1):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=ROWS)
    return x, y if outputs == 1 else np.stack([y, y**2], 1)


def network(x, y=None, *, outputs=1, noise=None):
    net = bnn.random_module("net", bnn.MLP((2,), outputs), bnn.priors.Hierarchical(2.0, 1.0), x[:1])
    noise = dist.HalfNormal(1.0) if noise is None else noise
    bnn.likelihoods.gaussian(
        net if outputs > 1 else (lambda rows: net(rows).squeeze(-1)), y, x=x, noise=noise
    )


def with_a_factor(x, y=None):
    """A second observation that the weights do not enter: it is raised to the power."""
    by_hand(x, y)
    if y is not None:
        numpyro.factor("more", -jnp.sum(jnp.exp(x[:, 0])))


OUTPUT = ["net/Dense_1.bias.base", "net/Dense_1.kernel.base"]
EACH = bnn.likelihoods.Precision(2.0, 1.0, output=3.0)
MODELS = {
    "noise by row": (by_hand, 1, ["slope"]),
    "noise by output": (partial(network, outputs=2, noise=EACH), 2, OUTPUT),
    "a factor": (with_a_factor, 1, ["slope"]),
}


def tempered_integral(model, args, rest, weights, power):
    """log ∫ p(weights, rest) p(y | weights, rest)^power over weights, in the model as it was written.

    The logarithm of the integrand is quadratic in them.
    """
    full = bnn.potential_of(model, *args)
    flat, unflatten = ravel_pytree({n: jnp.zeros(full.structure.sites[n].shape) for n in weights})

    def joint(w):
        seeded = seed(full.bound, jax.random.key(0))
        _, sites = log_density(seeded, full.args, full.kwargs, rest | unflatten(w))
        logs = {
            n: jnp.sum(s["fn"].log_prob(s["value"]))
            for n, s in sites.items()
            if s["type"] == "sample"
        }
        return sum(v * (power if n in full.structure.observed else 1.0) for n, v in logs.items())

    return log_integral(joint, flat)


def differences(name):
    """Tempered densities of the integrated model less those of the model as it was written, by power."""
    model, outputs, weights = MODELS[name]
    args = data(outputs)
    potential = bnn.potential_of(bnn.integrate_output(model), *args)
    rest = {n: jnp.abs(v).astype(float) for n, v in nets.weights(potential.model, *args).items()}
    z = jax.jit(potential.unconstrain)(rest)
    prior, at_power = jax.jit(
        lambda z: (lambda p, lik: (p, jnp.stack([lik(b) for b in POWERS])))(*potential.tempered(z))
    )(z)
    # Jacobians of the transforms: what the prior's energy has beyond the log density.
    seeded = seed(potential.bound, jax.random.key(0))

    @jax.jit
    def densities(rest):
        _, sites = log_density(seeded, potential.args, potential.kwargs, rest)
        latent = potential.structure.latent
        return {n: jnp.sum(sites[n]["fn"].log_prob(rest[n])) for n in latent}

    own = sum(densities(rest).values())
    assert np.isfinite(prior)
    integral = jax.jit(lambda power: tempered_integral(model, args, rest, weights, power))
    return np.asarray(own - at_power - jnp.stack([integral(power) for power in POWERS]))


@pytest.mark.parametrize("name", MODELS)
def test_every_power_is_the_integral_of_the_tempered_model(name, double_precision):
    found = differences(name)
    np.testing.assert_allclose(found, 0.0, atol=1e-9)


def quadrature(power, feature, y, scale):
    def density(w):
        return norm.pdf(w) * np.prod(norm.pdf(y, 0.4 + feature * w, scale)) ** power

    return np.log(quad(density, -12, 12, points=[-2, 0, 2], limit=200)[0])


@pytest.mark.parametrize("power", POWERS)
def test_one_weight_against_quadrature(power, double_precision):
    feature, y = np.array([0.7, -1.1, 2.0]), np.array([0.2, 1.4, -0.9])
    scale = np.array([0.5, 1.5, 0.8])

    @jax.jit
    def both():
        distribution = LinearGaussian(jnp.full(3, 0.4), feature[:, None], scale)
        return distribution.tempered_log_prob(y, power), distribution.log_prob(y)

    found, whole = both()
    np.testing.assert_allclose(found, quadrature(power, feature, y, scale), atol=1e-8)
    if power == 0:
        assert found == 0
    if power == 1:
        np.testing.assert_array_equal(found, whole)


def test_the_power_of_t_noise_is_that_of_the_joint_with_case_precisions(double_precision):
    """Given its precisions the noise is Gaussian, and is tempered as such; their prior is not."""
    x, y = data()
    model = bnn.regression(
        bnn.MLP((2,), 1), bnn.priors.FanIn(), x, y, likelihood="student_t", df=3.0
    )
    potential = bnn.potential_of(bnn.integrate_output(model), x, y)
    z = jax.jit(lambda k: potential.unconstrain(potential.prior_draw(k)))(jax.random.key(0))
    assert "y.case_precision" in z

    @jax.jit
    def found(z):
        prior, likelihood = potential.tempered(z)
        return prior, jnp.stack([likelihood(b) for b in POWERS]), potential(z)

    prior, by_power, whole = found(z)
    assert by_power[0] == 0
    np.testing.assert_allclose(prior + by_power[-1], whole, rtol=1e-12)
