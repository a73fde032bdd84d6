"""The metric and the tuner of SMILE, each held against what is known exactly."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import numpyro_bnn as bnn
from benchmarks.mixing.smile import NoiseMetric, QuantileTuning, gamma_quantile, smile


@cache
def begun():
    """The context and the first state of a chain of two weights, N(0, 1)."""
    kernel = bnn.SGMCMC(
        potential_fn=lambda z: 0.5 * jnp.sum(z["w"] ** 2),
        step_size="auto",
        **smile(noise_metric=False),
    )
    # Operation by operation each would compile by itself.
    begin = jax.jit(lambda key, start: kernel.init(key, 10, start))
    state = begin(jax.random.key(0), {"w": jnp.asarray([1.0, 2.0])})
    return kernel._ingredients(), state


@pytest.mark.parametrize("shape", [2.0, 5.0, 20.0])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.93, 0.98])
def test_gamma_quantile(shape, probability):
    exact = stats.gamma.ppf(probability, shape, scale=3.0)
    found = jax.jit(gamma_quantile)(probability, 3 * shape, 9 * shape)
    assert found == pytest.approx(exact, rel=0.03)


def test_metric_is_one_over_the_variance_of_gradients():
    spread = jnp.asarray([0.5, 1.0, 4.0])
    metric = NoiseMetric(smoothing=0.001)
    noise = 7.0 + spread * jax.random.normal(jax.random.key(1), (20_000, 3))

    def step(state, gradient):
        return metric.update(state, gradient, gradient, jnp.asarray(True)), None

    state, _ = jax.lax.scan(step, metric.init(spread), noise)
    found = np.asarray(metric.inverse_mass_matrix(state))
    exact = np.asarray(jnp.mean(spread**2) / spread**2)
    # A decaying mean of 2000 effective squares: its standard error is a share √(2/2000) of a variance, and
    # each number here is a ratio of two.
    assert found == pytest.approx(exact, rel=4 * np.sqrt(2 * 2 / 2000))
    frozen = metric.update(state, 100 * spread, spread, jnp.asarray(False))
    assert np.array_equal(metric.inverse_mass_matrix(frozen), found)


def test_step_has_no_target():
    """Errors that do not depend on the step make it shrink at a known rate, without end."""
    tuning = QuantileTuning(smoothing=0.001)
    context, state = begun()
    count = 40_000
    # By NumPy: a gamma distribution of JAX compiles for longer than all else here.
    errors = jnp.asarray(np.random.default_rng(2).gamma(3.0, size=count), jnp.float32)

    def step(state, error):
        after = tuning.after_step(context, state, state._replace(energy_error=error))
        return after, None

    last, _ = jax.lax.scan(step, state, errors)
    rate = np.log(last.adaptation.step_size / state.adaptation.step_size) / count
    up, down = tuning.share / 3, 2 * tuning.share / 3
    exact = up * np.log1p(tuning.factor) + down * np.log1p(-tuning.factor)
    # Every step adds ± the factor with the probability of a share; quantiles are known to a few percent.
    error = tuning.factor * np.sqrt(tuning.share / count) + 0.05 * abs(exact)
    assert rate == pytest.approx(exact, abs=4 * error)
    assert exact < 0


def test_large_error_is_undone_and_the_chain_goes_downhill():
    tuning = QuantileTuning()
    context, state = begun()
    step = jax.jit(partial(tuning.after_step, context))
    for error in np.linspace(0.9, 1.1, 12):
        state = step(state, state._replace(energy_error=jnp.asarray(error)))
    moved = state.dynamics._replace(position=jax.tree.map(lambda x: x + 1, state.dynamics.position))
    after = state._replace(dynamics=moved, energy_error=jnp.asarray(50.0), i=state.i + 1)
    back = step(state, after)
    assert np.array_equal(back.z["w"], state.z["w"])
    assert back.i == state.i + 1
    gradient, momentum = (np.asarray(v["w"]) for v in (state.z, back.dynamics.momentum))
    # p is against ∇U, and on the sphere pᵀp = D.
    assert momentum == pytest.approx(-gradient * np.sqrt(2) / np.linalg.norm(gradient), rel=1e-5)
    assert back.adaptation.step_size < state.adaptation.step_size
    kept = step(state, after._replace(energy_error=jnp.asarray(1.0)))
    assert np.array_equal(kept.z["w"], after.z["w"])
