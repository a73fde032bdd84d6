"""Exact draws against distribution functions, moments and transforms; the mode of a precision."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from numpyro_bnn.distributions.generalized_inverse_gaussian import mode_of_log, sample_log
from numpyro_bnn.distributions.polya_gamma import draw
from numpyro_bnn.distributions.stable_densities import Gamma, standard_gamma

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
    (-0.75, 3e-4, 40.0),
    (0.1, 1e-3, 1e-3),
    (-200.0, 0.5, 500.0),
]
# Without a part in the inverse it is a Gamma distribution.
GAMMAS = [(0.5, 2.0, 0.0), (3.0, 0.1, 0.0), (200.0, 50.0, 0.0), (0.25, 3e-4, 0.0)]
# The first distribution twice more, for correlations between draws, and one to compare with its mirror image.
EQUAL = [DISTRIBUTIONS[0]] * 2
MIRRORED = (1.5, 0.7, 2.0)
EXTREME = [(0.5, 1e-12, 1e-12), (-2.0, 1e-8, 1e6), (2.0, 1e8, 1e-8)]
EVERY = [*DISTRIBUTIONS, *GAMMAS, *EQUAL, MIRRORED, *EXTREME]

compiled_draws = jax.jit(sample_log)
compiled_mode = jax.jit(mode_of_log)


def follows(draws: np.ndarray, shape: float, up: float, down: float) -> bool:
    """Whether draws of l = log τ have the density exp(shape l - up e^l - down e^-l), summed on a grid."""
    grid = np.linspace(-120, 30, 600_001)
    log_density = shape * grid - up * np.exp(grid) - down * np.exp(-grid)
    below = np.cumsum(np.exp(log_density - log_density.max()))
    table = below / below[-1]
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
def test_draws_follow_their_density(drawn, number):
    assert follows(drawn[number], *DISTRIBUTIONS[number])


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
    assert follows(-drawn[EVERY.index(MIRRORED)], -shape, down, up)


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


@jax.jit
def _many(key, concentration):
    return standard_gamma(key, concentration, (100_000,))


@pytest.mark.parametrize("concentration", [0.1, 0.5, 0.999, 1.0, 1.3, 3.0, 30.0, 1e3, 1e6])
def test_draws_follow_the_distribution(concentration):
    drawn = _many(jax.random.key(0), concentration)
    distribution = stats.gamma(concentration)
    assert stats.kstest(np.asarray(drawn, float), distribution.cdf).pvalue > LEAST_P_VALUE


def test_entries_have_their_own_concentration_and_are_independent():
    concentration = np.array([0.3, 1.0, 50.0], np.float32)
    draw = jax.jit(lambda key: standard_gamma(key, concentration, (20_000, 3)))
    drawn = np.asarray(draw(jax.random.key(1)))
    error = np.sqrt(concentration / len(drawn))
    np.testing.assert_array_less(np.abs(drawn.mean(0) - concentration), 4 * error)
    correlation = np.corrcoef(np.log(drawn), rowvar=False)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 4 / np.sqrt(len(drawn))


def test_mapped_over_keys_is_the_same_draw():
    keys = jax.random.split(jax.random.key(2), 5)
    mapped = jax.vmap(lambda key: standard_gamma(key, 0.7, (4,)))(keys)
    single = np.stack([standard_gamma(key, 0.7, (4,)) for key in keys])
    np.testing.assert_allclose(mapped, single, rtol=1e-6)


def test_what_would_underflow_is_positive_and_what_has_no_distribution_is_nan():
    improper = np.array([0.0, -1.0, np.nan, np.inf, 2.0], np.float32)

    @jax.jit
    def drawn(key):
        return standard_gamma(key, 1e-3, (1000,)), standard_gamma(key, improper, (5,))

    small, without_distribution = map(np.asarray, drawn(jax.random.key(0)))
    assert (small > 0).all()
    np.testing.assert_array_equal(np.isnan(without_distribution), [True, True, True, True, False])


@pytest.mark.parametrize("rate", [0.5, 2.0, 1e6])
def test_draws_of_any_rate_are_inside_the_support(rate):
    distribution = Gamma(0.01, rate)
    drawn = np.asarray(distribution.sample(jax.random.key(0), (2000,)))
    # At this concentration a third of the draws are below the smallest number of single precision.
    assert (drawn <= 4 * jnp.finfo(drawn.dtype).tiny).mean() > 0.2
    assert (drawn > 0).all()
    assert np.isfinite(distribution.log_prob(drawn)).all()


# On both sides of 2/0.64 = 3.125, where the proposal below the meeting point of the series changes.
TILTS = [0.0, 0.7, 3.1, -3.15, 60.0, 600.0]
N = 20_000


def laplace(t, count, tilt):
    """E exp(-t ω): each of the Gamma variables of the sum contributes a factor, whose product is this."""
    inner = np.sqrt((tilt**2 / 2 + t) / 2)
    log_cosh = [np.logaddexp(v, -v) for v in (abs(tilt) / 2, inner)]
    return np.exp(count * (log_cosh[0] - log_cosh[1]))


def within(draws, expected, errors=4.0):
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - expected) < errors * error, (np.mean(draws), expected, error)


@partial(jax.jit, static_argnums=1)
def _drawn(key, count, tilt):
    return draw(key, count, jnp.full(N, tilt))


def moments(count, tilt):
    """Of the defining sum of Gamma variables; its far terms, of no tilt, as an integral."""
    rates = 2 * np.pi**2 * ((np.arange(1, 100_001) - 0.5) ** 2 + tilt**2 / (4 * np.pi**2))
    return count * ((1 / rates).sum() + 5e-6 / np.pi**2), count * (1 / rates**2).sum()


@pytest.mark.parametrize(("count", "tilt"), [(1, c) for c in TILTS] + [(3, 0.7)])
def test_moments_and_laplace_transform(tilt, count):
    drawn = np.asarray(_drawn(jax.random.key(0), count, tilt), float)
    mean, variance = moments(count, tilt)
    assert (drawn > 0).all()
    within(drawn, mean)
    within((drawn - mean) ** 2, variance, 4.5)
    for t in (1 / mean, 5 / mean):
        within(np.exp(-t * drawn), laplace(t, count, tilt))


def distribution_function(tilt):
    """Of PG(1, c): its density, by the one series with 60 terms, integrated on a fine grid."""
    z = abs(tilt) / 2
    # Below the first point, a 25th of the meeting point, is less than 1e-7 of all mass.
    x = np.linspace(0.025, 12, 12_001)
    n = np.arange(60)[:, None] + 0.5
    terms = np.where(np.arange(60)[:, None] % 2, -1, 1) * np.pi * n
    density = np.concatenate(
        [(terms * np.exp(-(n**2) * np.pi**2 * part / 2)).sum(0) for part in np.array_split(x, 50)]
    )
    density *= np.cosh(z) * np.exp(-(z**2) * x / 2)
    below = integrate.cumulative_simpson(density, x=x, initial=0)
    assert abs(below[-1] - 1) < 1e-6
    return lambda omega: np.interp(4 * omega, x, below)


@pytest.mark.parametrize("tilt", [0.0, 3.1, 3.15])
def test_draws_follow_the_distribution_also_where_the_proposals_meet(tilt):
    drawn = np.asarray(_drawn(jax.random.key(1), 1, tilt), float)
    below = distribution_function(tilt)
    assert stats.kstest(drawn, below).pvalue > LEAST_P_VALUE
    for end in 0.64 / 4 * np.array([[0.9, 1.0], [1.0, 1.1]]):
        share = np.diff(below(end))[0]
        within(((drawn > end[0]) & (drawn < end[1])).astype(float), share)


def test_entries_have_their_own_count_and_tilt_and_are_independent():
    # Numbers of trials are often floats.
    count, tilt = np.array([0, 1, 4], np.float32), np.array([1.0, 9.0, 0.0])
    keys = jax.random.split(jax.random.key(2), N // 2)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: draw(key, count, tilt)))(keys), float)
    assert (drawn[:, 0] == 0).all()
    for column in (1, 2):
        within(drawn[:, column], moments(count[column], tilt[column])[0])
    assert abs(np.corrcoef(drawn[:, 1:], rowvar=False)[0, 1]) < 4 / np.sqrt(N // 2)


def test_a_mapped_draw_is_the_same_and_an_infinite_tilt_has_no_distribution():
    tilt = np.float32([0.5, np.nan, 7.0, np.inf])
    keys, drawn = jax.random.split(jax.random.key(3), 3), jax.jit(lambda key: draw(key, 1, tilt))
    mapped = np.asarray(jax.jit(jax.vmap(drawn))(keys))
    single = np.stack([drawn(key) for key in keys])
    np.testing.assert_allclose(mapped, single, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(mapped[0]), [False, True, False, True])
