"""Preconditioners: the metric, frozen or diverging; thermostats that absorb noise nobody told them of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import one_step

from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import DynamicsState, Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Langevin, Splitting
from numpyro_bnn.samplers.sgmcmc.preconditioners import diagonal, from_warmup, identity, rmsprop

POSITION = {"a": np.zeros(3), "b": np.zeros((2, 2))}


def draws(count: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    scale = {"a": np.array([0.1, 1.0, 10.0]), "b": 3.0}
    return [
        {key: scale[key] * rng.normal(size=x.shape) + 5.0 for key, x in POSITION.items()}
        for _ in range(count)
    ]


# Of each preconditioner the programs of an update and of the metric; arrays in it have no hash.
PROGRAMS = {}


def compiled(preconditioner):
    made = jax.jit(preconditioner.update), jax.jit(preconditioner.inverse_mass_matrix)
    return PROGRAMS.setdefault(id(preconditioner), (*made, preconditioner))


def metric_of(preconditioner, state):
    return compiled(preconditioner)[1](state)


def run(preconditioner, gradients, positions=None, adapting=True, state=None, **more):
    update = compiled(preconditioner)[0]
    state = preconditioner.init(POSITION) if state is None else state
    for g, x in zip(gradients, positions or gradients, strict=True):
        state = update(state, g, x, adapting, **more)
    return state


def test_identity_and_diagonal_are_what_they_were_given():
    metric = {"a": np.array([1.0, 2.0, 3.0]), "b": 0.5}
    for preconditioner, expected in ((identity(), 1.0), (diagonal(metric), metric)):
        state = run(preconditioner, draws(2))
        got = preconditioner.inverse_mass_matrix(state)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
        assert preconditioner.divergence(state) == 0.0
        assert not preconditioner.varies
        assert not preconditioner.needs_warmup


@pytest.mark.usefixtures("double_precision")
def test_rmsprop_is_the_decaying_mean_of_squares():
    decay, eps, rows, gradients = 0.9, 0.3, 50.0, draws(5)
    preconditioner = rmsprop(decay, eps, data_size=rows)
    state = preconditioner.init(POSITION)
    jax.tree.map(
        lambda w: np.testing.assert_array_equal(w, 1.0), preconditioner.inverse_mass_matrix(state)
    )
    got = metric_of(preconditioner, run(preconditioner, gradients))
    weights = decay ** np.arange(4, -1, -1)
    for key in POSITION:
        squares = np.stack([(g[key] / rows) ** 2 for g in gradients])
        moment = np.tensordot(weights / weights.sum(), squares, 1)
        np.testing.assert_allclose(got[key], 1 / (eps + np.sqrt(moment)), rtol=1e-12)


@pytest.mark.parametrize("preconditioner", [rmsprop(), from_warmup(2), from_warmup(4)])
def test_after_warmup_nothing_changes(preconditioner):
    state = run(preconditioner, draws(7))
    assert preconditioner.needs_warmup
    assert not preconditioner.varies
    after = run(preconditioner, draws(3, seed=1), adapting=jnp.asarray(False), state=state)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    more = run(preconditioner, draws(3, seed=1), adapting=jnp.asarray(True), state=state)
    assert any(
        np.any(np.asarray(x) != np.asarray(y))
        for x, y in zip(jax.tree.leaves(more), jax.tree.leaves(state), strict=True)
    )
    assert preconditioner.divergence(state) == 0.0


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_the_divergence_is_the_derivative_of_the_metric(decay):
    def energy(x):
        return jnp.sum(jnp.exp(x["a"]) * jnp.array([1.0, 2.0, 3.0])) + jnp.sum(jnp.cosh(x["b"]))

    preconditioner = rmsprop(decay, 0.1, gamma_term=True, data_size=20.0)
    assert preconditioner.varies
    position = {"a": jnp.array([0.3, -0.2, 1.0]), "b": jnp.array([[0.5, -1.0], [2.0, 0.1]])}
    curvature = {
        "a": jnp.exp(position["a"]) * jnp.array([1.0, 2.0, 3.0]),
        "b": jnp.cosh(position["b"]),
    }

    def metric(x):
        past = preconditioner.init(position)
        for g in draws(3):
            past = preconditioner.update(past, g, position, False, hessian_diagonal=curvature)
        now = preconditioner.update(past, jax.grad(energy)(x), x, False, curvature)
        return preconditioner.inverse_mass_matrix(now), preconditioner.divergence(now)

    slope, divergence = jax.jit(jax.jacobian(metric, has_aux=True))(position)
    for key, x in position.items():
        matrix = slope[key][key].reshape(x.size, x.size)
        np.testing.assert_allclose(divergence[key].ravel(), np.diag(matrix), rtol=1e-10)


def total_variation(epsilon: float, with_divergence: bool, temperature: float = 0.7) -> float:
    """Between the target exp(-U/T) and the distribution of pSGLD with decay 0, both on a grid."""
    y = np.linspace(-7.0, 2.5, 700)
    preconditioner = rmsprop(0.0, 1.0, gamma_term=True)

    def step(y, xi):
        gradient, curvature = jnp.exp(y) - 1, jnp.exp(y)
        state = preconditioner.update(preconditioner.init(y), gradient, y, False, curvature)
        metric, divergence = (
            preconditioner.inverse_mass_matrix(state),
            preconditioner.divergence(state),
        )
        settings = Settings(
            epsilon, temperature, metric, divergence=divergence if with_divergence else 0.0
        )
        return Langevin().complete(DynamicsState(y), gradient, (xi,), settings).position

    mean, moved = np.asarray(
        jax.jit(jax.vmap(jax.vmap(step, (0, None)), (None, 0)))(y, np.arange(2.0))
    )
    sd = moved - mean
    matrix = np.exp(-0.5 * ((y[None] - mean[:, None]) / sd[:, None]) ** 2)
    matrix /= matrix.sum(1, keepdims=True)
    system = matrix.T - np.eye(len(y))
    system[-1] = 1.0
    distribution = np.linalg.solve(system, np.eye(len(y))[-1])
    target = np.exp(-(np.exp(y) - y) / temperature)
    return 0.5 * np.abs(distribution - target / target.sum()).sum()


@pytest.mark.usefixtures("double_precision")
def test_psgld_needs_the_divergence_and_is_right_with_it():
    # With it the error is of the order of the step; without, it stays as the step vanishes.
    right = [total_variation(epsilon, True) for epsilon in (0.2, 0.1)]
    wrong = [total_variation(epsilon, False) for epsilon in (0.2, 0.1)]
    assert right[1] < 0.6 * right[0] < 0.02
    assert wrong[1] > 0.9 * wrong[0] > 0.05


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("count", "used"), [(4, 4), (11, 11), (12, 8), (20, 16), (28, 16)])
def test_warmup_variance_is_that_of_the_last_windows(count, used):
    # Windows of 4, 8, 16: the last complete one and the one being filled.
    positions = draws(count)
    got = metric_of(from_warmup(4), run(from_warmup(4), positions))
    variance = {
        key: np.var([x[key] for x in positions[-used:]], axis=0, ddof=1) for key in POSITION
    }
    overall = np.concatenate([v.ravel() for v in variance.values()]).mean()
    for key, v in variance.items():
        np.testing.assert_allclose(got[key], (used * v + 5 * overall) / (used + 5), rtol=1e-10)


def test_warmup_variance_of_very_many_positions():
    # Two windows whose lengths have a product beyond 32 bits.
    preconditioner, count = from_warmup(), 170_000
    positions = np.linspace(0, 5, count) + np.random.default_rng(0).normal(size=count)

    def step(state, x):
        return preconditioner.update(state, x, x, True), None

    begin = preconditioner.init(np.float32(0))
    state, _ = jax.jit(lambda x: jax.lax.scan(step, begin, x))(np.float32(positions))
    assert int(state.old.size) * int(state.new.size) > 2**31
    used = positions[65_504:]
    variance = metric_of(preconditioner, state)
    np.testing.assert_allclose(variance, used.var(ddof=1), rtol=1e-3)


def test_warmup_variance_is_the_identity_until_it_knows():
    preconditioner = from_warmup(8)
    few, still = run(preconditioner, draws(7)), run(preconditioner, [POSITION] * 20)
    for state in (few, still):
        for leaf in jax.tree.leaves(metric_of(preconditioner, state)):
            np.testing.assert_array_equal(leaf, 1.0)


def test_state_is_a_carry_of_scan_and_vmap():
    for preconditioner in (identity(), diagonal({"a": np.ones(3), "b": 2.0}), rmsprop()):
        gradients = jax.tree.map(lambda *x: np.stack(x), *draws(4))

        def chain(gradients, preconditioner=preconditioner):
            def step(state, g):
                return preconditioner.update(state, g, g, state is not None), None

            state, _ = jax.lax.scan(step, preconditioner.init(POSITION), gradients)
            return preconditioner.inverse_mass_matrix(state)

        expected = jax.jit(chain)(gradients)
        two = jax.jit(jax.vmap(chain))(jax.tree.map(lambda x: np.stack([x, x]), gradients))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x[1], y, rtol=1e-6), two, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: diagonal({"c": 1.0}).init(POSITION), "inverse_mass_matrix has the structure"),
        (lambda: rmsprop(decay=1.0), r"decay is a share in .0, 1., got 1.0"),
        (lambda: rmsprop(eps=0.0), "eps must be positive and finite, got eps=0.0"),
        (lambda: rmsprop(data_size=-3), "got data_size=-3"),
    ],
)
def test_what_cannot_be_a_metric_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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
