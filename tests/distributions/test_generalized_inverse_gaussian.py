"""Draws of the generalised inverse Gaussian distribution against SciPy, and its mode against a search."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

from numpyro_bnn.distributions.generalized_inverse_gaussian import mode_of_log, sample_log

# Of a correct sampler, one run in 10^4 has a smaller p-value; the draws are those of a fixed key.
LEAST_P_VALUE = 1e-4
NUM_DRAWS = 20_000

# Shape, up and down: of both signs, from nearly a Gamma to nearly an inverse Gamma, wide and narrow.
DISTRIBUTIONS = [
    (0.0, 1.0, 1.0),
    (2.5, 0.5, 3.0),
    (-2.5, 0.5, 3.0),
    (-0.5, 2.0, 0.1),
    (0.3, 1e-2, 1e-2),
    (-30.0, 0.1, 500.0),
    (40.0, 300.0, 2.0),
    (1.0, 1e3, 1e3),
    (-4.0, 1e-3, 2.0),
    (4.0, 2.0, 1e-3),
]
# Without a part in the inverse it is a Gamma distribution.
GAMMAS = [(0.5, 2.0, 0.0), (3.0, 0.1, 0.0), (200.0, 50.0, 0.0)]
# The first distribution twice more, for correlations between draws, and one to compare with its mirror image.
EQUAL = [DISTRIBUTIONS[0]] * 2
MIRRORED = (1.5, 0.7, 2.0)
EXTREME = [(0.5, 1e-12, 1e-12), (-2.0, 1e-8, 1e6), (2.0, 1e8, 1e-8)]
EVERY = [*DISTRIBUTIONS, *GAMMAS, *EQUAL, MIRRORED, *EXTREME]

compiled_draws = jax.jit(sample_log)
compiled_mode = jax.jit(mode_of_log)


def scipys(shape: float, up: float, down: float) -> Any:
    """The distribution of τ: with τ = s x and s = √(down / up), x has the density of `geninvgauss`."""
    return stats.geninvgauss(shape, 2 * np.sqrt(up * down), scale=np.sqrt(down / up))


def follows(draws: np.ndarray, distribution: Any) -> bool:
    """Whether draws of log τ have the distribution of τ."""
    # A table of the distribution function: SciPy integrates it anew for every point.
    grid = np.linspace(draws.min(), draws.max(), 400)
    table = distribution.cdf(np.exp(grid))
    return stats.kstest(draws, lambda x: np.interp(x, grid, table)).pvalue > LEAST_P_VALUE


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """Draws of every distribution at once, (distribution, draw): one program, as a sweep of Gibbs uses it."""
    shape, up, down = (np.array(column)[:, None] for column in zip(*EVERY))
    wide = np.broadcast_to(shape, (len(EVERY), NUM_DRAWS))
    return np.asarray(compiled_draws(jax.random.key(0), wide, up, down), float)


@pytest.mark.parametrize(
    "number", range(len(DISTRIBUTIONS)), ids=[str(distribution) for distribution in DISTRIBUTIONS]
)
def test_draws_follow_the_distribution_of_scipy(drawn, number):
    assert follows(drawn[number], scipys(*DISTRIBUTIONS[number]))


@pytest.mark.parametrize(
    "number", range(len(DISTRIBUTIONS)), ids=[str(distribution) for distribution in DISTRIBUTIONS]
)
def test_the_mean_of_precisions_is_a_ratio_of_bessel_functions(drawn, number):
    """E τ = √(down / up) K_{shape+1}(b) / K_shape(b) and E 1/τ likewise, with b = 2 √(up down)."""
    shape, up, down = DISTRIBUTIONS[number]
    b, scale = 2 * np.sqrt(up * down), np.sqrt(down / up)
    for power in (1, -1):
        expected = scale**power * special.kve(shape + power, b) / special.kve(shape, b)
        values = np.exp(power * drawn[number])
        error = values.std() / np.sqrt(NUM_DRAWS)
        assert abs(values.mean() - expected) < 5 * error


@pytest.mark.parametrize("distribution", GAMMAS)
def test_without_a_part_in_the_inverse_it_is_the_gamma_distribution(drawn, distribution):
    shape, rate, _ = distribution
    found = stats.kstest(
        np.exp(drawn[EVERY.index(distribution)]), stats.gamma(shape, scale=1 / rate).cdf
    )
    assert found.pvalue > LEAST_P_VALUE


def test_the_inverse_of_a_draw_has_the_mirrored_distribution(drawn):
    """1 / τ has shape -shape, and up and down change places."""
    shape, up, down = MIRRORED
    assert follows(-drawn[EVERY.index(MIRRORED)], scipys(-shape, down, up))


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, (3.0, 2.0, 0.0), (0.01, 5.0, 0.0)])
def test_the_mode_is_where_the_log_density_is_highest(distribution):
    shape, up, down = distribution

    def energy(log: float) -> float:
        return -(shape * log - up * np.exp(log) - down * np.exp(-log))

    found = optimize.minimize_scalar(energy, bracket=(-1.0, 1.0), tol=1e-12)
    assert float(compiled_mode(*distribution)) == pytest.approx(found.x, abs=1e-4)


@pytest.mark.parametrize(
    ("distribution", "mode"),
    [
        # Two large numbers whose difference is the answer: down / |shape| and shape / up.
        ((-1e4, 1e-4, 1.0), np.log(1e-4)),
        ((1e4, 1.0, 1e-4), np.log(1e4)),
        ((-0.5, 1e-6, 1e-6), np.log(2e-6)),
    ],
)
def test_the_mode_keeps_its_digits_where_a_plain_root_would_cancel(distribution, mode):
    found = compiled_mode(*(jnp.asarray(part, jnp.float32) for part in distribution))
    assert float(found) == pytest.approx(mode, abs=2e-6 * abs(mode) + 1e-5)


@pytest.mark.parametrize("distribution", EXTREME)
def test_draws_of_extreme_distributions_are_finite_and_around_the_mode(drawn, distribution):
    draws = drawn[EVERY.index(distribution)]
    assert np.isfinite(draws).all()
    mode = float(compiled_mode(*distribution))
    # The curvature at the mode is the least information of a log-concave density around it.
    curvature = distribution[1] * np.exp(mode) + distribution[2] * np.exp(-mode)
    assert abs(np.median(draws) - mode) < 3 / np.sqrt(curvature)


def test_arguments_broadcast_and_entries_are_independent(drawn):
    shape, up, down = jnp.array([0.5, -1.0])[:, None, None], jnp.ones(3), jnp.ones((4, 1))
    assert jax.eval_shape(sample_log, jax.random.key(0), shape, up, down).shape == (2, 4, 3)
    equal = [draws for draws, distribution in zip(drawn, EVERY) if distribution == DISTRIBUTIONS[0]]
    correlation = np.corrcoef(equal)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 4 / np.sqrt(NUM_DRAWS)


def test_a_unit_of_precision_shifts_the_logarithm():
    """τ in other units: up / c and down c give the draws of the same key, moved by log c."""
    shape = jnp.linspace(-3, 3, 500)
    plain = compiled_draws(jax.random.key(5), shape, 0.5, 2.0)
    scaled = compiled_draws(jax.random.key(5), shape, 0.5 / 1000, 2.0 * 1000)
    np.testing.assert_allclose(scaled - plain, np.log(1000), rtol=1e-4)
