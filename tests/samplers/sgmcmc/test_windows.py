"""Windows of states, momenta that persist, and steps that follow the precisions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from exact_draws import exact_draw
from jax.flatten_util import ravel_pytree
from numpyro.infer.gibbs import Gibbs
from scipy import stats
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn import preconditioners
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.transitions import reconditioned

METRIC = {"y": np.array([0.6, 1.0, 1.5])}


def energy(z):
    """exp(y) has a Gamma distribution at every temperature: one steep and one flat side."""
    return jnp.sum(jnp.exp(z["y"]) - z["y"])


def moved(kernel, distribution, num_chains=20_000, num_steps=3):
    """Exact draws after some transitions: positions, and whether each chain left its place."""
    y = jnp.log(
        jnp.asarray(distribution.rvs((num_chains, 3), random_state=np.random.default_rng(0)), float)
    )
    state = kernel.init(jax.random.split(jax.random.key(1), num_chains), 0, {"y": y}, (), {})

    @jax.jit
    def steps(state):
        return jax.lax.fori_loop(0, num_steps, lambda _, s: kernel.sample(s, (), {}), state)

    after = steps(state)
    return np.asarray(after.z["y"], float), float(np.mean(after.accept_prob))


@pytest.mark.parametrize(
    ("options", "temperature"),
    [
        ({"window": 3, "persistence": 0.8}, 0.5),
        pytest.param({"window": 3, "persistence": 0.8}, 1.0, marks=pytest.mark.slow),
        pytest.param({"window": 2}, 0.5, marks=pytest.mark.slow),
        pytest.param({"window": 1, "persistence": 0.5}, 1.0, marks=pytest.mark.slow),
    ],
)
def test_the_distribution_is_kept_at_a_large_step(options, temperature):
    kernel = bnn.WindowedHMC(
        potential_fn=energy,
        step_size=1.0,
        num_steps=6,
        temperature=temperature,
        preconditioner=preconditioners.diagonal(METRIC),
        **options,
    )
    distribution = stats.gamma(1 / temperature, scale=temperature)
    draws, accepted = moved(kernel, distribution)
    assert 0.3 < accepted < 0.95
    for column in np.exp(draws).T:
        assert stats.kstest(column, distribution.cdf).pvalue > 1e-4


@pytest.mark.slow
def test_windows_accept_what_an_end_point_would_not():
    distribution = stats.gamma(1.0)
    accepted = [
        moved(
            bnn.WindowedHMC(potential_fn=energy, step_size=1.2, num_steps=9, window=w),
            distribution,
            4000,
        )[1]
        for w in (1, 5)
    ]
    assert accepted[1] > accepted[0] + 0.1


@pytest.mark.usefixtures("double_precision")
def test_a_window_of_one_is_hmc():
    """The probability to accept is that of the energy error of plain leapfrog steps."""
    step, count, start = 0.9, 4, {"y": jnp.asarray([0.3, -0.8, 0.1])}
    kernel = bnn.WindowedHMC(
        potential_fn=energy, step_size=step, num_steps=count, window=1, persistence=0.999_999_999_9
    )
    state = jax.jit(lambda key: kernel.init(key, 0, start, (), {}))(jax.random.key(0))
    p, y = state.dynamics.momentum["y"], start["y"]
    initial = energy({"y": y}) + p @ p / 2
    force = jax.jit(jax.grad(lambda y: energy({"y": y})))
    for _ in range(count):
        p = p - step / 2 * force(y)
        y = y + step * p
        p = p - step / 2 * force(y)
    expected = min(1.0, float(jnp.exp(initial - energy({"y": y}) - p @ p / 2)))
    # A persistence of almost 1 leaves the momentum as it was, to five digits.
    accepted = jax.jit(lambda state: kernel.sample(state, (), {}).accept_prob)(state)
    assert float(accepted) == pytest.approx(expected, rel=1e-3)


def test_a_rejection_goes_back_along_the_trajectory():
    """Beyond a wall nothing has any weight: a chain stays in its first window, and turns round."""

    def walled(z):
        return jnp.where(z["y"][0] > 0.35, jnp.inf, jnp.sum(z["y"] ** 2) / 2)

    kernel = bnn.WindowedHMC(
        potential_fn=walled, step_size=0.1, num_steps=9, window=3, persistence=0.999_999_999
    )

    @jax.jit
    def moved_once(keys):
        state = kernel.init(keys, 0, {"y": jnp.zeros((200, 1))}, (), {})
        moving = state.dynamics._replace(momentum={"y": jnp.ones((200, 1))})
        return kernel.sample(state._replace(dynamics=moving), (), {})

    after = moved_once(jax.random.split(jax.random.key(0), 200))
    place, momentum = (np.asarray(v["y"][:, 0]) for v in (after.z, after.dynamics.momentum))
    assert np.all(np.asarray(after.accept_prob) == 0)
    # Positions and momenta are sine and cosine of at most two steps either way, reversed.
    np.testing.assert_allclose(momentum, -np.sqrt(1 - place**2), atol=2e-3)
    assert set(np.round(10 * place).astype(int)) == {-2, -1, 0, 1, 2}


X = jnp.asarray(np.random.default_rng(2).normal(size=(12, 2)) * [1.0, 3.0])
SIGMA = 0.5


def linear(x, y=None):
    net = bnn.random_module("net", bnn.MLP([], 1), bnn.priors.Hierarchical(2.0, 1.0), x[:1])
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(net(x).squeeze(-1), SIGMA), obs=y)


CENTERED = bnn.parameterize(linear, "centered")
TAUS = [
    {"net/Dense_0.kernel.precision": jnp.asarray(k), "net/Dense_0.bias.precision": jnp.asarray(b)}
    for k, b in ((7.0, 0.2), (70.0, 20.0))
]


def test_the_metric_is_prior_precision_plus_information():
    """Of a linear model the Fisher information is XᵀX/σ², whatever the weights."""
    potential = bnn.potential_of(numpyro.handlers.condition(CENTERED, TAUS[0]), X, X[:, 0])
    metric = preconditioners.given_precisions(num_draws=4000)
    position = {"net/Dense_0.kernel": jnp.zeros((2, 1)), "net/Dense_0.bias": jnp.zeros(1)}
    given = jax.jit(lambda z: metric.after_gibbs(potential, metric.init(z)))(position)
    curvature = jax.tree.map(lambda v: 1 / v, given)
    exact = {
        "net/Dense_0.kernel": 7.0 + (X**2).sum(0)[:, None] / SIGMA**2,
        "net/Dense_0.bias": jnp.asarray([0.2 + len(X) / SIGMA**2]),
    }
    # A mean of 4000 squares of normals: relative error sqrt(2/4000).
    got, expected = ravel_pytree(curvature)[0], ravel_pytree(exact)[0]
    np.testing.assert_allclose(got, expected, rtol=4 * np.sqrt(2 / 4000))


def test_prior_draws_that_overflow_leave_the_metric_finite():
    """A log hazard of N(0, 100²): every fifth hazard is infinite. The information is one a row."""

    model = row_model(lambda x, b: dist.Exponential(jnp.exp(b)), b=dist.Normal(0.0, 100.0))
    potential = bnn.potential_of(model, X, jnp.ones(len(X)))
    metric = preconditioners.given_precisions(num_draws=4000)
    given = jax.jit(lambda z: metric.after_gibbs(potential, metric.init(z)))({"b": jnp.zeros(())})
    # The square of a sum of n terms 1 - E has the mean n and a relative error below 3.
    assert 1 / float(given["b"]) == pytest.approx(1e-4 + len(X), rel=4 * 3 / np.sqrt(3000))


def test_momenta_follow_the_metric():
    """p² over mass stays what it was when Gibbs has changed the precisions."""
    potentials = [
        bnn.potential_of(numpyro.handlers.condition(CENTERED, t), X, X[:, 0]) for t in TAUS
    ]
    metric = preconditioners.given_precisions()
    position = {"net/Dense_0.kernel": jnp.ones((2, 1)), "net/Dense_0.bias": jnp.ones(1)}

    @jax.jit
    def both(position):
        before = metric.after_gibbs(potentials[0], metric.init(position))
        return before, reconditioned(metric, before, Rows(potentials[1]), position)

    before, (after, momentum) = both(position)
    changed = jax.tree.map(lambda w, v: float(jnp.abs(jnp.log(w / v)).min()), before, after)
    assert min(changed.values()) > 0.01
    for name, p in momentum.items():
        np.testing.assert_allclose(p**2 * after[name], before[name], rtol=1e-5)


@pytest.mark.slow
def test_the_metric_follows_the_precisions_and_the_distribution_is_kept():
    """Joint draws of precisions, weights and data, moved by Neal's scheme, keep their distribution."""
    kernel = bnn.neal(linear, step_size=0.7, num_steps=5, window=2, persistence=0.5)
    assert isinstance(kernel, Gibbs)
    precisions = ("net/Dense_0.kernel.precision", "net/Dense_0.bias.precision")
    x = X[:4]

    @jax.jit
    @jax.vmap
    def one(key):
        keys = jax.random.split(key)
        values, y, _ = exact_draw(bnn.parameterize(linear, "centered"), keys[0], x)
        state = kernel.init(keys[1], 0, values, (x, y), {})
        first = state.block_states[1].preconditioner
        state = jax.lax.fori_loop(0, 2, lambda _, s: kernel.sample(s, (x, y), {}), state)
        last = state.block_states[1]
        return state.z, first, last.preconditioner, last.accept_prob

    z, before, after, accepted = one(jax.random.split(jax.random.key(3), 3000))
    assert 0.3 < float(np.mean(accepted)) < 0.97
    assert (
        float(jnp.abs(jnp.log(after["net/Dense_0.kernel"] / before["net/Dense_0.kernel"])).max())
        > 0.1
    )
    for name in precisions:
        assert stats.kstest(np.ravel(z[name]), stats.gamma(2.0).cdf).pvalue > 1e-4
    scaled = (
        np.asarray(z["net/Dense_0.kernel"]) * np.sqrt(np.asarray(z[precisions[0]]))[:, None, None]
    )
    assert stats.kstest(scaled.ravel(), "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"num_steps": 10, "window": 6}, r"two windows of 6 states do not fit the 11 .* window=5"),
        ({"persistence": 1.0}, r"PersistentMomentum: persistence is a share in .0, 1., got 1.0"),
        ({"batch_size": 4}, "uses all rows"),
        ({"num_steps": 0}, "num_steps"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        bnn.WindowedHMC(linear, **call)


def test_a_metric_of_precisions_needs_them_fixed():
    kernel = bnn.WindowedHMC(
        bnn.parameterize(linear, "centered"), preconditioner=preconditioners.given_precisions()
    )
    with pytest.raises(ValueError, match=r"move with the weights here.*bnn\.neal"):
        jax.eval_shape(lambda k: kernel.init(k, 0, None, (X, X[:, 0]), {}), jax.random.key(0))
    with pytest.raises(ValueError, match="positive integer, got 0"):
        preconditioners.given_precisions(0)
