"""The stationary distribution of every method, exactly, and the methods that are limits of others.

On a quadratic potential a step is linear in state and noise: its matrices come from
``jax.jacobian`` of the code itself, its stationary covariance from the discrete Lyapunov
equation, and both from nothing that the formulas they are compared with have seen.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import one_step
from jax.flatten_util import ravel_pytree
from numpy.linalg import inv
from scipy.linalg import solve_discrete_lyapunov

from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Settings,
    damp,
    damp_less_noise,
    momentum_from,
    products,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import (
    Amagold,
    Langevin,
    RandomWalkProposal,
    SemiImplicit,
    Splitting,
)

SHAPES = {
    1: {"bias": (1,)},
    3: {"bias": (1,), "kernel": (2, 1)},
    10: {"bias": (4,), "kernel": (3, 2)},
}
FRICTION = 1.3


class Quadratic:
    """U = x' H x / 2 with H rotated and ill-conditioned, a metric, and noise in the gradient."""

    def __init__(self, dim: int):
        rng = np.random.default_rng(dim)
        basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
        self.hessian = (basis * np.geomspace(20.0, 0.2, dim)) @ basis.T
        self.inverse_mass = rng.uniform(0.3, 2.0, dim)
        self.largest = np.linalg.eigvals(self.inverse_mass[:, None] * self.hessian).real.max()
        example = {name: jnp.zeros(shape) for name, shape in SHAPES[dim].items()}
        _, self.unravel = ravel_pytree(example)
        self.dim = dim

    def kernel(self, x: float) -> np.ndarray:
        """(H - x H P H)^-1, P the inverse mass."""
        scaled = self.hessian * self.inverse_mass
        return inv(self.hessian - x * scaled @ self.hessian)

    def momentum_kernel(self, x: float) -> np.ndarray:
        """(P - x P H P)^-1."""
        metric = np.diag(self.inverse_mass)
        return inv(metric - x * metric @ self.hessian @ metric)


@cache
def problem_of(dim: int) -> Quadratic:
    return Quadratic(dim)


@cache
def matrices(name: str, dim: int):
    """The compiled function (settings, noise of the gradient) -> matrices of a step."""
    dynamics, problem = METHODS[name], problem_of(dim)
    zeros = problem.unravel(jnp.zeros(dim))
    start = dynamics.init(zeros, zeros, Settings(0.1), gradient=zeros)
    flat, unravel_state = ravel_pytree(start)

    def step(x, xi, settings, root):
        *noises, error = xi

        def gradient(position):
            return problem.unravel(problem.hessian @ ravel_pytree(position)[0] + root * error)

        noises = tuple(problem.unravel(n) for n in noises)
        return ravel_pytree(one_step(dynamics, unravel_state(x), noises, gradient, settings))[0]

    xi = jnp.zeros((dynamics.num_noises + 1, dim))
    return jax.jit(lambda *rest: jax.jacobian(step, argnums=(0, 1))(flat, xi, *rest))


def stationary(name: str, dim: int, settings: Settings, noise_variance: float):
    """Covariance of (position, momentum), with gradient noise of covariance v times the mass."""
    root = np.sqrt(noise_variance / problem_of(dim).inverse_mass)
    a, b = (np.asarray(m) for m in matrices(name, dim)(settings, root))
    b = b.reshape(len(b), -1)
    assert np.abs(np.linalg.eigvals(a)).max() < 1
    covariance = solve_discrete_lyapunov(a, b @ b.T)
    return covariance[:dim, :dim], covariance[dim : 2 * dim, dim : 2 * dim]


def closed_form(name: str, q: Quadratic, h: float, t: float, v: float):
    """Covariances of position and, for v = 0, of momentum; derived on paper from AR(2)."""
    heat = 0.25 * h**2 / np.tanh(0.5 * FRICTION * h) * v
    flat, curved = q.kernel(0.0), q.kernel(h**2 / 4)
    mass, curved_mass = q.momentum_kernel(0.0), q.momentum_kernel(h**2 / 4)
    loss = FRICTION * h
    semi = h**2 / (4 - 2 * loss)
    return {
        "langevin": lambda: ((t + h / 4 * v) * q.kernel(h / 4), None),
        "sghmc": lambda: (
            (t + h * v / (2 * FRICTION)) * q.kernel(semi),
            2 * t / (2 - loss) * q.momentum_kernel(semi),
        ),
        "BAOAB": lambda: (t * flat + heat * curved, t * (mass - h**2 / 4 * q.hessian)),
        "BAOA": lambda: (t * flat + heat * curved, t * mass),
        "OBABO": lambda: ((t + heat) * curved, t * mass),
        "ABOBA": lambda: ((t + heat) * flat, t * curved_mass),
        "amagold": lambda: ((t + h * v / (2 * FRICTION)) * flat, t * curved_mass),
    }[name]()


METHODS = {
    "langevin": Langevin(),
    "sghmc": SemiImplicit(),
    "BAOAB": Splitting("BAOAB"),
    "BAOA": Splitting("BAOA"),
    "OBABO": Splitting("OBABO"),
    "ABOBA": Splitting("ABOBA"),
    "amagold": Amagold(metropolis=False),
}


def large_step(name: str, problem: Quadratic) -> float:
    """Half of the way to instability, so that no error of the step is small."""
    return 2 / problem.largest if name == "langevin" else np.sqrt(1.6 / problem.largest)


def settings_for(problem: Quadratic, step_size: float, temperature: float, **more) -> Settings:
    metric = problem.unravel(jnp.asarray(problem.inverse_mass))
    return Settings(step_size, temperature, metric, FRICTION, **more)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("dim", [1, 3, 10])
@pytest.mark.parametrize("name", METHODS)
def test_stationary_covariance_is_the_closed_form(name, dim):
    problem = problem_of(dim)
    h = large_step(name, problem)
    for temperature, noise in ((0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (0.5, 3.0), (2.0, 3.0)):
        settings = settings_for(problem, h, temperature)
        position, momentum = stationary(name, dim, settings, noise)
        expected, expected_momentum = closed_form(name, problem, h, temperature, noise)
        np.testing.assert_allclose(position, expected, rtol=1e-9, atol=1e-9)
        if noise == 0.0 and METHODS[name].has_momentum:
            np.testing.assert_allclose(momentum, expected_momentum, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", ["langevin", "sghmc"])
def test_a_known_gradient_noise_is_taken_off_whatever_the_temperature(name):
    problem = problem_of(3)
    h, variance = large_step(name, problem), 2.0
    known = problem.unravel(jnp.asarray(variance / problem.inverse_mass))
    for temperature in (0.5, 2.0):
        settings = settings_for(problem, h, temperature, gradient_noise=known)
        position, _ = stationary(name, 3, settings, variance)
        expected, _ = closed_form(name, problem, h, temperature, 0.0)
        np.testing.assert_allclose(position, expected, rtol=1e-9, atol=1e-9)
        # Half of the estimate leaves half of the heat.
        half = settings._replace(gradient_noise=jax.tree.map(lambda x: x / 2, known))
        position, _ = stationary(name, 3, half, variance)
        expected, _ = closed_form(name, problem, h, temperature, variance / 2)
        np.testing.assert_allclose(position, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_baoa_keeps_the_temperature_of_positions(share):
    """What is left of the heat is what the half drift between kick and friction has made of it."""
    problem = problem_of(3)
    h, variance = large_step("BAOA", problem), 0.4
    known = problem.unravel(jnp.asarray(share * variance / problem.inverse_mass))
    heat = 0.25 * h**2 / np.tanh(0.5 * FRICTION * h) * variance
    for temperature in (0.5, 2.0):
        settings = settings_for(problem, h, temperature, gradient_noise=known)
        position, momentum = stationary("BAOA", 3, settings, variance)
        hot, _ = closed_form("BAOA", problem, h, temperature, variance)
        np.testing.assert_allclose(position, hot - share * heat * problem.kernel(0.0), rtol=1e-9)
        if share == 1.0:
            # Momenta are recorded before the kick that heats them.
            cold = np.trace(momentum * problem.inverse_mass) / 3
            assert temperature - h**2 * variance < cold < temperature


@pytest.mark.usefixtures("double_precision")
def test_baoa_forgets_momenta_that_the_gradient_heats_by_more_than_friction_cools():
    """Then c = (1 - r) / (1 + r), and the heat of the gradient is all that there is: T."""
    problem = problem_of(3)
    h, temperature, ratio = large_step("BAOA", problem), 0.7, 0.8
    assert (1 - ratio) / (1 + ratio) < np.exp(-FRICTION * h)
    variance = 4 * temperature * ratio / h**2
    known = problem.unravel(jnp.asarray(variance / problem.inverse_mass))
    settings = settings_for(problem, h, temperature, gradient_noise=known)
    position, _ = stationary("BAOA", 3, settings, variance)
    np.testing.assert_allclose(position, temperature * problem.kernel(h**2 / 4), rtol=1e-7)


@pytest.mark.usefixtures("double_precision")
def test_at_temperature_zero_baoa_only_damps():
    state = {"w": jnp.array([3.0, -7.0])}
    settings = Settings(0.5, 0.0, friction=0.1, gradient_noise=100.0)
    damped = jax.jit(partial(damp_less_noise, settings=settings))
    found = damped(state, {"w": np.ones(2)}, 0.5)
    np.testing.assert_allclose(found["w"], np.exp(-0.05) * state["w"], rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
def test_noise_that_cannot_be_taken_off_leaves_none_added():
    step = partial(SemiImplicit().complete, gradient={"w": jnp.zeros(2)})
    state = DynamicsState({"w": jnp.ones(2)}, {"w": jnp.ones(2)})
    settings = Settings(0.5, friction=0.1, gradient_noise=100.0)
    end = step(state, noises=({"w": jnp.array([3.0, -7.0])},), settings=settings)
    np.testing.assert_allclose(end.momentum["w"], 0.95, rtol=1e-12)


@jax.jit
def gradient(position):
    return jax.grad(lambda x: jnp.sum(jnp.exp(x["a"]) - x["a"]) + jnp.sum(jnp.cosh(x["b"])))(
        position
    )


def example(seed: int):
    rng = np.random.default_rng(seed)
    return {"a": jnp.asarray(rng.normal(size=3)), "b": jnp.asarray(rng.normal(size=(2, 2)))}


METRIC = {"a": np.array([0.5, 1.0, 2.0]), "b": 0.7}


def path(dynamics, state, settings, num_steps=6, which=slice(None)):
    @jax.jit
    def step(state, noises):
        state = one_step(dynamics, state, noises, gradient, settings)
        return state, ravel_pytree(state.position)[0]

    positions = []
    for i in range(num_steps):
        noises = tuple(example(100 + 10 * i + k) for k in range(max(dynamics.num_noises, 1)))
        state, position = step(state, noises[which][: dynamics.num_noises])
        positions.append(position)
    return np.stack(positions), state


@pytest.mark.usefixtures("double_precision")
def test_sghmc_without_memory_is_sgld_draw_for_draw():
    h = 0.3
    settings = Settings(h, 0.7, METRIC, 1 / h, gradient_noise=0.9)
    sghmc, _ = path(SemiImplicit(), DynamicsState(example(0), example(1)), settings)
    settings = settings._replace(step_size=2 * h**2)
    sgld, _ = path(Langevin(), DynamicsState(example(0)), settings)
    np.testing.assert_allclose(sghmc, sgld, rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
def test_obabo_with_new_momenta_is_sgld_at_the_square_of_the_step():
    settings = Settings(0.3, 0.7, METRIC, jnp.inf)
    obabo = Splitting("OBABO")
    start = obabo.init(example(0), example(1), settings, gradient=gradient(example(0)))
    adjusted, _ = path(obabo, start, settings)
    unadjusted, _ = path(Langevin(), DynamicsState(example(0)), settings._replace(step_size=0.3**2))
    np.testing.assert_allclose(adjusted, unadjusted, rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
def test_merged_half_kicks_give_the_positions_of_baoab():
    settings = Settings(0.4, 0.7, METRIC, 1.1)
    baoab, baoa = Splitting("BAOAB"), Splitting("BAOA")
    start = baoab.init(example(0), example(1), settings, gradient=gradient(example(0)))
    positions, end = path(baoab, start, settings)
    # The merged word stands half a kick before the other one.
    momentum = jax.tree.map(lambda p, g: p + 0.2 * g, start.momentum, start.gradient)
    merged, merged_end = path(baoa, DynamicsState(example(0), momentum), settings)
    np.testing.assert_allclose(merged, positions, rtol=1e-12)
    last = jax.tree.map(lambda p, g: p - 0.2 * g, merged_end.momentum, end.gradient)
    np.testing.assert_allclose(ravel_pytree(last)[0], ravel_pytree(end.momentum)[0], rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("word", ["BAOAB", "OBABO", "BAB"])
def test_without_friction_it_is_the_leapfrog(word):
    h = 0.4
    settings = Settings(h, 0.7, METRIC, 0.0)
    dynamics = Splitting(word)
    start = dynamics.init(example(0), example(1), settings, gradient=gradient(example(0)))
    positions, end = path(dynamics, start, settings)

    inverse_mass = np.concatenate([METRIC["a"], np.full(4, METRIC["b"])])
    x = np.asarray(ravel_pytree(example(0))[0])
    p = np.asarray(ravel_pytree(example(1))[0]) * np.sqrt(0.7 / inverse_mass)

    def slope(x):
        return np.concatenate([np.exp(x[:3]) - 1, np.sinh(x[3:])])

    for position in positions:
        p = p - 0.5 * h * slope(x)
        x = x + h * inverse_mass * p
        p = p - 0.5 * h * slope(x)
        np.testing.assert_allclose(position, x, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(end.momentum)[0], p, rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("rate", [-2.0, -1e-3, -4e-4, 0.0, 4e-4, 1e-3, 2.0])
def test_friction_by_a_thermostat_is_the_exact_solution(rate):
    time, temperature, mass, friction = 0.5, 0.7, 4.0, 1.5
    settings = Settings(0.1, temperature, 1 / mass, friction)
    still = damp(jnp.zeros(1), jnp.ones(1), time, settings, jnp.asarray(rate))
    moving = damp(jnp.ones(1), jnp.zeros(1), time, settings, jnp.asarray(rate))
    # Variance of an Ornstein-Uhlenbeck process from 0, by the trapezoid rule of its integral.
    s = np.linspace(0, time, 20001)
    variance = np.trapezoid(2 * friction * temperature * mass * np.exp(-2 * rate * s), s)
    np.testing.assert_allclose(still[0] ** 2, variance, rtol=1e-8)
    np.testing.assert_allclose(moving[0], np.exp(-rate * time), rtol=1e-12)


@pytest.mark.usefixtures("double_precision")
def test_a_thermostat_at_rest_is_friction():
    # With an infinite relaxation time the thermostat stays at the friction: BADODAB is BAOAB.
    settings = Settings(0.4, 0.7, METRIC, 1.1)
    with_thermostat = Splitting("BADODAB", relaxation_time=1e9)
    word = Splitting("BAOAB")
    start = gradient(example(0))
    expected, _ = path(word, word.init(example(0), example(1), settings, start), settings)
    got, end = path(
        with_thermostat, with_thermostat.init(example(0), example(1), settings, start), settings
    )
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert jax.tree.structure(end.thermostat) == jax.tree.structure(0.0)


def _without_gradient(word, state, settings):
    return one_step(word, state, (jnp.zeros(2),), jnp.zeros_like, settings)


@pytest.mark.usefixtures("double_precision")
def test_a_thermostat_moves_by_the_excess_of_the_kinetic_temperature():
    settings = Settings(0.5, 2.0, 4.0, 3.0)
    zeros = jnp.asarray(np.zeros(2))
    state = DynamicsState(zeros, jnp.array([1.0, 2.0]))
    word = Splitting("BADO")
    state = state._replace(thermostat=word.init(zeros, zeros, settings).thermostat)
    step = jax.jit(partial(_without_gradient, word))
    end = step(state, settings)
    np.testing.assert_allclose(end.thermostat, 3.0 + 0.5 * 3.0**2 * (10.0 / 2.0 - 1), rtol=1e-12)
    cold = step(state, settings._replace(temperature=0.0))
    assert np.all(np.isfinite(cold.thermostat))
    assert np.all(cold.thermostat > state.thermostat)


@pytest.mark.usefixtures("double_precision")
def test_momenta_random_walk_and_divergence_have_their_scale():
    settings = Settings(0.3, 2.0, {"a": 4.0, "b": 0.25}, divergence={"a": 3.0, "b": -1.0})
    ones = {"a": jnp.ones(2), "b": jnp.ones(2)}
    zeros = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    momentum = momentum_from(ones, settings)
    np.testing.assert_allclose(momentum["a"], np.sqrt(2.0 / 4.0))
    np.testing.assert_allclose(momentum["b"], np.sqrt(2.0 / 0.25))
    kinetic = products(lambda p, w: w * p * p, momentum, settings.inverse_mass_matrix)
    np.testing.assert_allclose([kinetic["a"], kinetic["b"]], 2.0)
    walk = RandomWalkProposal().complete(DynamicsState(zeros), None, (ones,), settings)
    np.testing.assert_allclose(walk.position["a"], 0.3 * 2.0)
    np.testing.assert_allclose(walk.position["b"], 0.3 * 0.5)
    # Drift of the divergence: epsilon T Gamma / 2.
    drift = Langevin().complete(DynamicsState(zeros), zeros, (zeros,), settings)
    np.testing.assert_allclose(drift.position["a"], 0.5 * 0.3 * 2.0 * 3.0)
    np.testing.assert_allclose(drift.position["b"], -0.5 * 0.3 * 2.0)


def test_types_of_parameters_survive_a_step():
    position = {"w": jnp.ones(2, jnp.bfloat16), "b": jnp.ones((), jnp.float32)}
    for dynamics in METHODS.values():
        settings = Settings(jnp.float32(0.1), jnp.float32(1.0), friction=jnp.float32(1.0))

        def begun_and_stepped(position, settings, dynamics=dynamics):
            state = dynamics.init(position, position, settings, gradient=position)
            noises = (position,) * dynamics.num_noises
            return state, one_step(dynamics, state, noises, lambda x: x, settings)

        state, end = jax.eval_shape(begun_and_stepped, position, settings)
        assert jax.tree.map(lambda x: x.dtype, end) == jax.tree.map(lambda x: x.dtype, state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"letters": "BAXAB"}, "letters='BAXAB', expected a word of A"),
        ({"letters": "OBO"}, "expected a word of A"),
        ({"letters": "BADAB"}, "'BADAB', expected .* O beside a D"),
        ({"letters": "BABAB"}, "'BABAB', expected .* one new gradient"),
        ({"letters": "ABABA"}, "'ABABA', expected .* one new gradient"),
        ({"letters": "BAOA", "metropolis": True}, "'BAOA' cannot be corrected by Metropolis"),
        ({"letters": "BADODAB", "metropolis": True}, "'BADODAB' cannot be corrected"),
        ({"letters": "BADODAB", "relaxation_time": -1.0}, "got relaxation_time=-1.0"),
    ],
)
def test_words_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Splitting(**arguments)


def test_a_missing_gradient_and_a_wrong_structure_are_refused():
    settings = Settings(0.1, inverse_mass_matrix={"a": 1.0})
    with pytest.raises(ValueError, match="inverse_mass_matrix has the structure"):
        Splitting("BAOA").init({"b": jnp.ones(2)}, {"b": jnp.ones(2)}, settings)
    settings = Settings(0.1, gradient_noise=jnp.ones(2))
    state = DynamicsState({"a": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ValueError, match="gradient_noise has the structure"):
        Langevin().complete(state, state.position, (state.position,), settings)
