"""Moves leave the joint distribution of precisions, weights and data as it is."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from exact_draws import exact_draw
from numpyro.handlers import mask, scale
from numpyro.infer import HMC, NUTS
from scipy import stats
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors
from numpyro_bnn.potential.starts import own_coordinates
from numpyro_bnn.samplers.gibbs.moves import (
    Bound,
    Interleaved,
    PrecisionRedraw,
    RidgeScaling,
    UnitRefresh,
    UnitRescaling,
)

width = priors.Hierarchical.width
FIRST, SECOND = "net/Dense_0.kernel", "net/Dense_1.kernel"
PRIOR = priors.ByPath(
    {
        "Dense_0.kernel": width(1.0, group=5.0, unit=6.0),
        "Dense_1.kernel": width(1.0, group=5.0),
        "*": priors.Normal(1.0),
    }
)
NOISE = 0.5
# Three inputs to each unit and a bias, two outputs of each: the Jacobians are not 1.
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)))
REFRESH = UnitRefresh(FIRST, ["net/Dense_0.bias"])
RESCALING = UnitRescaling(FIRST, SECOND, ["net/Dense_0.bias"])


def model_with(activation):
    return network_model(bnn.MLP([3], 2, activation), PRIOR, noise=NOISE)


def joint_draws(model, move, power=1.0):
    """2000 exact draws of everything, moved a few times; how often the weights changed.

    With a power b of the likelihood the noise is 1 / √b times as large, and the residuals are given back in
    units of that.
    """
    rng = np.random.default_rng(8)
    group, second = rng.gamma(2.5, 1 / 2.5, (2, 2000))
    units = group[:, None] * rng.gamma(3.0, 1 / 3.0, (2000, 3))
    given = {
        f"{FIRST}.precision": group,
        f"{FIRST}.unit_precision": units,
        FIRST: rng.normal(size=(2000, 3, 3)) / np.sqrt(units)[:, :, None],
        "net/Dense_0.bias": rng.normal(size=(2000, 3)),
        f"{SECOND}.precision": second,
        SECOND: rng.normal(size=(2000, 3, 2)) / np.sqrt(second)[:, None, None],
        "net/Dense_1.bias": rng.normal(size=(2000, 2)),
    }
    given = {name: np.float32(value) for name, value in given.items()}
    noise = np.float32(NOISE / np.sqrt(power) * rng.normal(size=(2000, 2, 2)))

    def means(values):
        return Bound(model, (X, jnp.zeros((2, 2))), {}).sites(values)["y"]["fn"].base_dist.loc

    @jax.jit
    @jax.vmap
    def one(key, values, noise):
        y = means(values) + noise
        bound = Bound(model, (X, y), {}, power)

        def again(now, key):
            after = move(key, now, bound)
            return after, after[FIRST][0, 0]

        after, weight = jax.lax.scan(again, values, jax.random.split(key, 3))
        after["residual"] = (y - means(after)) * np.sqrt(power)
        return after, weight[0] != values[FIRST][0, 0]

    values, moved = one(jax.random.split(jax.random.key(8), 2000), given, noise)
    return {n: np.asarray(v, np.float64) for n, v in values.items()}, float(np.mean(moved))


def assert_distribution_is_kept(values):
    def follows(draws, distribution):
        assert stats.kstest(draws, distribution.cdf).pvalue > 1e-4

    group, units = values[f"{FIRST}.precision"], values[f"{FIRST}.unit_precision"]
    follows(group, stats.gamma(2.5, scale=1 / 2.5))
    follows(values[f"{SECOND}.precision"], stats.gamma(2.5, scale=1 / 2.5))
    follows(units[:, 1] / group, stats.gamma(3.0, scale=1 / 3.0))
    for standard, count in (
        (values[FIRST] * np.sqrt(units)[:, :, None], 9),
        (values[SECOND] * np.sqrt(values[f"{SECOND}.precision"])[:, None, None], 6),
        (values["net/Dense_0.bias"], 3),
        (values["residual"] / NOISE, 4),
    ):
        # Weights that move together: their sum of squares tells a wrong exponent.
        follows((standard.reshape(2000, -1) ** 2).sum(1), stats.chi2(count))
        follows(standard.reshape(2000, -1)[:, 0], stats.norm())


def test_a_step_along_the_ridge_keeps_the_distribution():
    values, moved = joint_draws(model_with(jnp.tanh), RidgeScaling(0.4))
    assert 0.2 < moved < 0.95
    assert_distribution_is_kept(values)


@pytest.mark.parametrize("power", [1.0, 0.2])
def test_new_weights_into_a_unit_keep_the_distribution(power):
    values, moved = joint_draws(model_with(jnp.tanh), REFRESH, power)
    # Some proposals are refused, and hotter rungs refuse fewer.
    assert 0.6 < moved < 0.85 if power == 1 else 0.85 < moved < 0.95
    assert_distribution_is_kept(values)


@pytest.mark.parametrize(
    "activation", [jax.nn.relu, pytest.param(jnp.tanh, marks=pytest.mark.slow)]
)
def test_rescaled_units_keep_the_distribution(activation):
    values, moved = joint_draws(model_with(activation), RESCALING)
    # Of relu units all proposals are accepted, up to rounding; of others fewer, and it stays exact.
    assert moved > 0.99 if activation is jax.nn.relu else 0.05 < moved < 0.9
    assert_distribution_is_kept(values)


COMPOSED = {
    "HMC": lambda model: bnn.neal(
        model, HMC, step_size=0.1, trajectory_length=0.3, adapt_step_size=False
    ),
    "WindowedHMC": lambda model: bnn.neal(model, step_size=0.1, num_steps=3, window=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSED)
def test_moves_after_each_step_of_a_composition_agree_with_its_state(name):
    """The precisions of a linear model in a chain with moves; what is cached belongs to the values."""
    model = model_with(jax.nn.relu)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2)))
    inner = COMPOSED[name](model)
    kernel = Interleaved(inner, [RidgeScaling(0.3), RESCALING])
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=5, num_chains=2, progress_bar=False)
    starts = bnn.optimize(
        model, jax.random.key(1), X, y, num_chains=2, num_steps=5, progress_bar=False
    )
    mcmc.run(jax.random.key(0), X, y, init_params=starts, extra_fields=("block_states",))
    last = jax.tree.map(lambda leaf: leaf[0], mcmc.last_state)
    z = {name: jnp.log(v) if name.endswith("precision") else v for name, v in last.z.items()}
    centered = bnn.potential_of(bnn.parameterize(model, "centered"), X, y)
    # The energy of the block of weights leaves the density of the precisions out of the Jacobian only.
    jacobian = sum(jnp.sum(v) for n, v in z.items() if n.endswith("precision"))
    energy = jax.jit(centered)(z) + jacobian
    np.testing.assert_allclose(last.block_states[1].potential_energy, energy, rtol=1e-4)
    draws = mcmc.get_samples(group_by_chain=True)
    np.testing.assert_allclose(draws[FIRST][0, -1], last.z[FIRST], rtol=1e-6)
    # Whole states hold random keys, and come in a row as well.
    states = mcmc.get_extra_fields()["block_states"][1]
    assert states.potential_energy.shape == states.rng_key.shape == (10,)


def test_precisions_drawn_anew_keep_the_distribution():
    values, _ = joint_draws(model_with(jnp.tanh), PrecisionRedraw())
    assert_distribution_is_kept(values)


@pytest.mark.slow
def test_interweaving_keeps_the_distribution():
    """Joint draws moved by non-centred HMC, with precisions drawn given the weights in between."""
    model = model_with(jax.nn.relu)
    kernel = Interleaved(
        HMC(
            model,
            step_size=0.15,
            trajectory_length=0.6,
            adapt_step_size=False,
            adapt_mass_matrix=False,
        ),
        [PrecisionRedraw(), RidgeScaling(0.3)],
    )
    centered = bnn.parameterize(model, "centered")

    @jax.jit
    @jax.vmap
    def one(keys):
        values, y, _ = exact_draw(centered, keys[0], X)
        start = own_coordinates(bnn.potential_of(model, X, y), values)
        state = kernel.init(keys[1], 0, start, (X, y), {})
        for _ in range(3):
            state = kernel.sample(state, (X, y), {})
        potential = bnn.potential_of(model, X, y)
        after = potential.constrain(state.z, deterministic=True)
        after["residual"] = y - Bound(model, (X, y), {}).sites(after)["y"]["fn"].base_dist.loc
        return after, potential(state.z) - state.potential_energy

    values, error = one(jax.random.split(jax.random.key(2), (2000, 2)))
    np.testing.assert_allclose(error, 0, atol=1e-3)
    assert_distribution_is_kept({n: np.asarray(v, np.float64) for n, v in values.items()})


def test_moves_that_do_not_fit_are_refused():
    model = model_with(jax.nn.relu)
    values = {FIRST: jnp.ones((3, 3)), SECOND: jnp.ones((2, 4))}
    bound = Bound(model, (X,), {})
    key = jax.random.key(0)
    with pytest.raises((KeyError, ValueError), match="net/Dense"):
        jax.eval_shape(lambda key: RESCALING(key, values, bound), key)
    with pytest.raises((TypeError, ValueError)):
        jax.eval_shape(lambda key: UnitRescaling(FIRST, SECOND)(key, values, bound), key)
    for move, error in (
        (UnitRefresh("net/Dense_7.kernel"), KeyError),
        (UnitRefresh(FIRST, [SECOND]), ValueError),
    ):
        with pytest.raises(error):
            jax.eval_shape(lambda key, move=move: move(key, values, bound), key)
    t_weights = Bound(
        lambda x: bnn.random_module("net", bnn.MLP([3], 2), priors.StudentT(3.0), x), (X,), {}
    )
    ones = {n: jnp.ones(s) for n, s in ((FIRST, (3, 3)), ("net/Dense_0.bias", 3), (SECOND, (3, 2)))}
    with pytest.raises(
        ValueError, match=r"the prior of 'net/Dense_0\.kernel' is StudentT, and the"
    ):
        jax.eval_shape(lambda key: UnitRefresh(FIRST)(key, ones, t_weights), key)
    for smallest in (0, 1.5):
        with pytest.raises(ValueError, match=f"at most 1, got smallest={smallest}"):
            UnitRefresh(FIRST, smallest=smallest)
    other = Interleaved(HMC(bnn.parameterize(model, "collapsed")), [RESCALING])
    with pytest.raises(ValueError, match=r"the kernel has none at \['net/Dense_0"):
        jax.eval_shape(lambda key: other.init(key, 0, None, (X, jnp.zeros((2, 2))), {}), key)


@pytest.mark.parametrize(
    "kernel",
    [
        bnn.RandomWalk,
        pytest.param(bnn.MAMS, marks=pytest.mark.slow),
        pytest.param(bnn.BAOAB, marks=pytest.mark.slow),
    ],
)
def test_moves_after_a_kernel_of_this_package(kernel):
    """Its position is where the moves left it, with the energy that belongs to it."""
    model = model_with(jax.nn.relu)
    y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2)))
    given = [RidgeScaling(0.3)] if kernel is bnn.RandomWalk else [RidgeScaling(0.3), RESCALING]
    moved = Interleaved(kernel(model, step_size=1e-3), given)
    mcmc = bnn.MCMC(moved, num_warmup=0, num_samples=5, num_chains=1, progress_bar=False)
    potential = bnn.potential_of(model, X, y)
    starts = nets.weights(model, X, y)
    mcmc.run(jax.random.key(0), X, y, init_params=starts)
    z = mcmc.last_state.z
    # Steps of a thousandth would leave the scale of a layer where it was.
    assert max(float(jnp.max(jnp.abs(z[name] - starts[name]))) for name in starts) > 0.05
    if kernel is not bnn.BAOAB:
        energy = jax.jit(potential)(z)
        np.testing.assert_allclose(mcmc.last_state.potential_energy, energy, rtol=1e-4)


def test_fields_of_hmc_are_kept_with_moves_around_it():
    kernel = Interleaved(NUTS(model_with(jnp.tanh)), [PrecisionRedraw()])
    assert {"diverging", "num_steps", "energy"} <= set(kernel.default_fields)


@pytest.mark.parametrize("handler", [scale(scale=3.0), mask(mask=False)])
@pytest.mark.parametrize("move", [RidgeScaling(), PrecisionRedraw(), RESCALING, REFRESH])
def test_a_hierarchical_prior_that_is_scaled_or_masked_is_refused(move, handler):
    """The posterior in the coordinates of a move would not be that in the coordinates of a kernel."""

    def model(x, y=None):
        with handler:
            net = bnn.random_module("net", bnn.MLP([3], 2), PRIOR, x[:1])
        likelihoods.gaussian(net, y, x=x, noise=NOISE)

    y = jnp.zeros((2, 2))
    shapes = bnn.potential_of(bnn.parameterize(model, "centered"), X, y).structure.sites
    values = {name: jnp.ones(site.shape) for name, site in shapes.items() if name != "y"}
    fault = "scaled" if isinstance(handler, scale) else "masked"
    with pytest.raises(ValueError, match=rf"'{FIRST}' \({fault}\)"):
        jax.eval_shape(lambda key: move(key, values, Bound(model, (X, y), {})), jax.random.key(0))
