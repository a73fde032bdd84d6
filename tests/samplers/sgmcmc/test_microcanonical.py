"""Momenta on a sphere: the motion against its definition, the samplers against known distributions.

Tolerances are 5 Monte Carlo standard errors, from means over independent chains.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from quiet import quiet, together
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn import gradients, preconditioners
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import Settings, kick, kick_work
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic, on_sphere, turn
from numpyro_bnn.samplers.sgmcmc.state import StepTuning
from numpyro_bnn.samplers.sgmcmc.tuning import Decoherence

METRIC = np.array([0.5, 1.7, 3.0])
SETTINGS = Settings(0.3, 0.7, METRIC, 0.9)


def momentum_of(direction):
    """The momentum on the sphere for a direction in units of the metric."""
    return on_sphere(direction / jnp.sqrt(METRIC), SETTINGS)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    "time", [0.9, *(pytest.param(t, marks=pytest.mark.slow) for t in (0.05, 4.0))]
)
def test_work_is_the_logarithm_of_the_change_of_area(time):
    """By the Jacobian of the kick, restricted to the planes that touch the sphere."""
    n = jnp.array([0.6, -0.48, 0.64])
    gradient = jnp.array([0.4, 1.5, -0.8])

    def kicked(n):
        after, gain = turn(momentum_of(n), gradient, time, SETTINGS)
        turned = after * jnp.sqrt(METRIC)
        turned /= jnp.linalg.norm(turned)
        return turned, (turned, after, gain)

    def touching(n):
        return np.linalg.svd(np.asarray(n)[None])[2][1:]

    jacobian, (turned, after, gain) = jax.jit(jax.jacobian(kicked, has_aux=True))(n)
    slope = touching(turned) @ np.asarray(jacobian) @ touching(n).T
    np.testing.assert_allclose(gain, -0.7 * np.log(abs(np.linalg.det(slope))), rtol=1e-9)
    np.testing.assert_allclose(np.sum(METRIC * after**2), 3 * 0.7, rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
def test_a_kick_is_undone_by_the_reversed_one_and_two_halves_are_a_whole():
    momentum = momentum_of(jnp.array([0.3, 0.5, -0.9]))
    gradient = jnp.array([2.0, -0.3, 0.8])
    whole, gain = turn(momentum, gradient, 0.8, SETTINGS)
    half, first = turn(momentum, gradient, 0.4, SETTINGS)
    again, second = turn(half, gradient, 0.4, SETTINGS)
    np.testing.assert_allclose(again, whole, rtol=1e-12)
    np.testing.assert_allclose(first + second, gain, rtol=1e-12)
    back, loss = turn(-whole, gradient, 0.8, SETTINGS)
    np.testing.assert_allclose(back, -momentum, rtol=1e-12)
    np.testing.assert_allclose(loss, -gain, rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
def test_in_high_dimension_it_is_the_kick_of_langevin_dynamics():
    """Same units of time and friction: what differs is of the order of 1/√D."""
    rng = np.random.default_rng(0)
    gradient = jnp.asarray(rng.normal(size=40_000))
    settings = Settings(0.1, 2.0, 0.3)
    momentum = on_sphere(jnp.asarray(rng.normal(size=40_000)), settings)
    turned, gain = turn(momentum, gradient, 0.2, settings)
    expected = kick(momentum, gradient, 0.2)
    # Up to the length, which Langevin dynamics let grow.
    expected = on_sphere(expected, settings)
    assert np.abs(turned - expected).max() < 0.01 * np.abs(turned - momentum).max()
    plain = kick_work(momentum, kick(momentum, gradient, 0.2), gradient, 0.2, settings)
    leading = 0.5 * 0.2**2 * 0.3 * jnp.sum(gradient**2)  # what a fixed length takes back
    assert abs(gain - plain) < 2 * leading


def test_steep_and_flat_potentials():
    momentum = momentum_of(jnp.array([0.6, -0.48, 0.64]))
    steep = jnp.array([1.0, 2.0, -1.0]) * 1e12
    turned, gain = turn(momentum, steep, 1.0, SETTINGS)
    downhill = momentum_of(-steep * jnp.sqrt(METRIC))
    np.testing.assert_allclose(turned, downhill, rtol=1e-5)
    assert np.isfinite(gain)
    same, none = turn(momentum, jnp.zeros(3), 1.0, SETTINGS)
    np.testing.assert_allclose(same, momentum, rtol=1e-6)
    assert none == 0


def z_scores(values, expected):
    """Of means over independent chains."""
    return (values.mean(0) - expected) / (values.std(0, ddof=1) / np.sqrt(len(values)))


SHAPE, RATE = 3.0, 3.2
PROBABILITIES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98])


def skewed(z):
    """Independent logarithms of Gamma variates: density exp(3 z - 3.2 exp z) each."""
    return jnp.sum(RATE * jnp.exp(z["a"]) - SHAPE * z["a"])


def below_quantiles(kernel, temperature, num_chains=5_000):
    """z-scores of fractions below exact quantiles, of chains that begin in the distribution."""
    distribution = stats.gamma(SHAPE / temperature, scale=temperature / RATE)
    start = np.log(distribution.rvs((num_chains, 3), random_state=3))
    mcmc = together(kernel, 0, 12, num_chains)
    mcmc.run(jax.random.key(5), init_params={"a": jnp.asarray(start, jnp.float32)})
    draws = np.exp(np.asarray(mcmc.get_samples(group_by_chain=True)["a"])[:, 4:])
    below = (draws[..., None] < distribution.ppf(PROBABILITIES)).mean((1, 2))
    return z_scores(below, PROBABILITIES), mcmc.get_extra_fields()


@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_the_corrected_sampler_is_exact_at_a_large_step(temperature):
    kernel = bnn.MAMS(
        potential_fn=skewed,
        step_size=0.7,
        trajectory_length=1.5,
        max_num_steps=4,
        temperature=temperature,
        preconditioner=preconditioners.diagonal(0.6),
    )
    z, stats_of_run = below_quantiles(kernel, temperature)
    assert 0.5 < stats_of_run["accept_prob"].mean() < 0.95
    assert set(np.unique(stats_of_run["num_steps"])) == {1, 2, 3, 4}
    assert np.abs(z).max() < 5, z


SCALES = np.geomspace(0.01, 1.0, 30)


def gaussian(z):
    return 0.5 * jnp.sum((z["a"] / SCALES) ** 2)


@pytest.fixture(scope="module")
def tuned():
    """MCLMC with all of its warm-up on a Gaussian of very unequal scales."""
    mcmc = together(bnn.MCLMC(potential_fn=gaussian), 900, 3000, 6)
    start = np.random.default_rng(0).normal(size=(6, 30)) * SCALES
    mcmc.run(jax.random.key(2), init_params={"a": jnp.asarray(start)})
    return mcmc


def test_warmup_finds_the_step_of_the_energy_error_that_is_asked_for(tuned):
    fields = tuned.get_extra_fields(group_by_chain=True)
    variance = np.asarray(fields["energy_error"]).var(1) / 30
    assert np.all((variance > 5e-4 / 2.5) & (variance < 5e-4 * 2.5)), variance
    assert np.all(np.ptp(np.asarray(fields["step_size"]), axis=1) == 0)  # frozen
    decoherence = 1 / np.asarray(tuned.last_state.adaptation.friction)
    assert np.all((decoherence > 0.4) & (decoherence < 2.0)), decoherence


def test_its_distribution_is_close_to_the_target_by_as_much(tuned):
    """At this target of the energy error variances are a few hundredths too large."""
    draws = np.asarray(tuned.get_samples(group_by_chain=True)["a"], np.float64) / SCALES
    squares = (draws**2).mean((1, 2))
    assert abs(squares.mean() - 1) < 0.06
    assert np.abs(z_scores(draws.mean(1), 0.0)).max() < 6
    metric = preconditioners.diagonal({"a": jnp.asarray(SCALES**2)})
    kernel = bnn.MCLMC(potential_fn=gaussian, step_size=0.15, friction=1.0, preconditioner=metric)
    small = together(kernel, 100, 4000, 6)
    start = np.random.default_rng(0).normal(size=(6, 30)) * SCALES
    small.run(jax.random.key(2), init_params={"a": jnp.asarray(start)})
    draws = np.asarray(small.get_samples(group_by_chain=True)["a"], np.float64) / SCALES
    squares = (draws**2).mean((1, 2))
    error = squares.std(ddof=1) / np.sqrt(6)
    assert error < 0.02
    assert abs(squares.mean() - 1) < 5 * error


def frictions(step_size, correlation, num_warmup=6000, size=300):
    """Of a warm-up over positions of a known autocorrelation, an AR(1)."""
    rule = Decoherence(energy_variance=None, finds_friction=True)
    zero = jnp.zeros(())
    position = jax.random.normal(jax.random.key(1), (size,))
    start = rule.begin(StepTuning(jnp.asarray(step_size), zero, None, zero, None), position)
    constant = SimpleNamespace(inverse_mass_matrix=lambda state: 0.25)
    context = SimpleNamespace(preconditioner=constant)

    @jax.jit
    def run(key):
        def step(carry, inputs):
            adaptation, position = carry
            i, key = inputs
            noise = jax.random.normal(key, (size,)) * np.sqrt(1 - correlation**2)
            position = correlation * position + noise
            state = {"i": i, "num_warmup": num_warmup, "preconditioner": None}
            state |= {"adaptation": adaptation, "dynamics": SimpleNamespace(position=position)}
            state = SimpleNamespace(**state)
            adaptation = rule._learned(context, state, state, zero)
            return (adaptation, position), adaptation.friction

        steps = (jnp.arange(num_warmup), jax.random.split(key, num_warmup))
        return jax.lax.scan(step, (start, position), steps)[1]

    return np.asarray(run(jax.random.key(0)))


def test_decoherence_is_a_share_of_the_autocorrelation_time():
    """Which is (1 + ρ)/(1 - ρ) = 9."""
    friction = frictions(step_size=0.5, correlation=0.8)
    second_third = 1 / friction[4000]
    np.testing.assert_allclose(second_third, 2.0, rtol=0.05)  # standard deviation in the metric
    np.testing.assert_allclose(1 / friction[-1], 0.4 * 0.5 * 9, rtol=0.1)


def test_a_start_whose_energy_floats_round_to_whole_nats_is_left():
    """A step there is off by a nat at any size; to shrink it until it is not would be to stay."""
    stiff = jnp.array([1e4, 1e4, 100.0, 1.0, 1.0])
    kernel = bnn.MCLMC(potential_fn=lambda z: 0.5 * jnp.sum(stiff * z**2))
    mcmc = together(kernel, 20_000, 3000, 4)
    start = jnp.full((4, 5), 40.0)
    assert np.spacing(np.float32(0.5 * 20_102 * 40**2)) == 1.0
    mcmc.run(jax.random.key(0), init_params=start)
    squares = (np.asarray(mcmc.get_samples(group_by_chain=True)) ** 2 * stiff).mean((1, 2))
    assert abs(squares.mean() - 1) < 4 * squares.std(ddof=1) / 2 + 0.02, squares


def test_a_chain_slower_than_its_blocks_keeps_its_decoherence():
    """A time of 4000 steps, and blocks of 200: they would say 0.4, a diffusion."""
    friction = frictions(step_size=0.005, correlation=0.9995)
    assert 0.5 < 1 / friction[4000] < 2.1
    assert friction[-1] == friction[4000]


@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_momenta_do_not_forget_while_a_chain_looks_for_its_step(batch_size):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 3)), jnp.float32)

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", 20):
            rows, target = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(rows @ w, 0.05), obs=target)

    data = (x, x @ jnp.ones(3))
    kernel = bnn.MCLMC(model, batch_size=batch_size)
    state = jax.jit(lambda key: kernel.init(key, 60, model_args=data))(jax.random.key(0))
    step = jax.jit(lambda state: kernel.sample(state, data, {}))
    first = float(state.adaptation.step_size)
    for _ in range(30):
        assert float(state.adaptation.friction) == 1.0
        state = step(state)
    assert float(state.adaptation.step_size) != first


def test_a_first_step_out_of_bounds_is_taken_back():
    """Flat where the chain begins, infinite a step away."""
    mcmc = quiet(bnn.MCLMC(potential_fn=lambda z: jnp.sum(jnp.expm1(1e4 * z["a"] ** 4))), 300, 300)
    mcmc.run(jax.random.key(0), init_params={"a": jnp.zeros(5)})
    draws = np.asarray(mcmc.get_samples()["a"])
    assert not mcmc.left_out
    assert 0.02 < draws.std() < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bnn.MCLMC(potential_fn=gaussian, energy_variance=0), "energy_variance must be"),
        (lambda: bnn.MCLMC(potential_fn=gaussian, temperature=0.0), "needs one above 0"),
        (lambda: bnn.MAMS(potential_fn=gaussian, trajectory_length=-1), "trajectory_length must"),
        (lambda: bnn.MAMS(lambda: None, gradient=gradients.minibatch(5)), "uses all rows.*AMAGOLD"),
        (
            lambda: Isokinetic().init(jnp.zeros(1), jnp.ones(1), SETTINGS, jnp.ones(1)),
            "one scalar.*BAOAB",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
