"""The thermostat absorbs gradient noise that nobody told it of, in 1, 10 and 100 dimensions.

By sampling, for a step is not linear; 5 standard errors from the means of independent chains.
Sums in place of means hide at D = 1. The step is so short that the error of its discretisation,
of second order (0.1 % in the variance, 0.3 % in the damping rate), is below one standard error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import one_step

from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Splitting

STEP, TEMPERATURE, FRICTION, RELAXATION = 0.05, 1.5, 1.0, 0.8
NUM_BURNIN, NUM_STEPS = 300, 900


def averages(dim: int, num_chains: int, noise: np.ndarray):
    """Per chain: mean of x U'(x) / T, of the damping rate and of its squared deviation."""
    precision = np.linspace(1.0, 3.0, dim)
    inverse_mass = np.linspace(0.7, 1.5, dim)
    root = np.sqrt(noise / inverse_mass)
    expected = FRICTION + STEP * noise.mean() / (2 * TEMPERATURE)
    dynamics = Splitting("BADODA", relaxation_time=RELAXATION)
    settings = Settings(STEP, TEMPERATURE, jnp.asarray(inverse_mass), FRICTION)

    @jax.jit
    @jax.vmap
    def chain(key):
        start_key, key = jax.random.split(key)
        x, p = jax.random.normal(start_key, (2, dim))
        state = dynamics.init(x * np.sqrt(TEMPERATURE / precision), p, settings)

        def step(carry, key):
            state, total = carry
            xi, error = jax.random.normal(key, (2, dim))
            state = one_step(
                dynamics, state, (xi,), lambda x: precision * x + root * error, settings
            )
            virial = jnp.mean(precision * state.position**2) / TEMPERATURE
            deviation = state.thermostat - expected
            new = jnp.stack([virial, jnp.mean(deviation), jnp.mean(deviation**2)])
            return (state, total + new), None

        keys = jax.random.split(key, NUM_BURNIN + NUM_STEPS)
        (state, _), _ = jax.lax.scan(step, (state, jnp.zeros(3)), keys[:NUM_BURNIN])
        (_, total), _ = jax.lax.scan(step, (state, jnp.zeros(3)), keys[NUM_BURNIN:])
        return total / NUM_STEPS

    return np.asarray(chain(jax.random.split(jax.random.key(dim), num_chains)), np.float64)


@pytest.mark.parametrize(
    ("dim", "num_chains"),
    [(10, 200), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((1, 1000), (100, 50)))],
)
def test_the_thermostat_absorbs_unknown_gradient_noise(dim, num_chains):
    # As much heat from the gradients as from the noise that is added.
    values = averages(dim, num_chains, 2 * TEMPERATURE * FRICTION / STEP * np.ones(dim))
    mean, error = values.mean(0), values.std(0, ddof=1) / np.sqrt(num_chains)
    spread = 1 / RELAXATION**2 / dim
    z = (mean - [1.0, 0.0, spread]) / error
    assert error[0] < 0.02
    assert error[2] < 0.05 * spread
    assert np.all(np.abs(z) < 5), (mean, z)


@pytest.mark.slow
def test_without_gradient_noise_the_rate_is_the_friction():
    values = averages(10, 200, np.zeros(10))
    error = values.std(0, ddof=1) / np.sqrt(200)
    z = (values.mean(0) - [1.0, 0.0, 0.1 / RELAXATION**2]) / error
    assert np.all(np.abs(z) < 5), (values.mean(0), z)
