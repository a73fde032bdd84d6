"""A mode is the mode: how near, from which start, when to stop, and what is said of it."""

import jax
import jax.numpy as jnp
import linear_gaussian as linear
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from linear_gaussian import BIAS, KERNEL, NOISE, key, posterior
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.approximations.curvature import Newton, _inverse
from numpyro_bnn.approximations.finish import say_if_not_reached
from numpyro_bnn.approximations.member_optimizer import (
    TrainingOptions,
    allowed_excess,
    far_above,
    name_far,
)
from numpyro_bnn.approximations.stopping import BLOCK, Settling

QUIET = {"progress_bar": False}


@pytest.fixture(scope="module")
def data():
    return linear.data(80, 3)


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 80 columns: a bar is cut there."""
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda _: (79, 24))


def spreads(x, y):
    return np.sqrt(np.diag(np.linalg.inv(posterior(x, y)[1])))


@pytest.mark.parametrize(
    "shape",
    [*(pytest.param(s, marks=pytest.mark.slow) for s in ((80, 3, 0), (12, 1, 1))), (300, 9, 2)],
)
def test_the_map_is_within_a_fiftieth_of_a_posterior_standard_deviation(shape, capsys, narrow):
    x, y = linear.data(*shape)
    draws = bnn.map_estimate(linear.model, key(), x, y)
    assert "mode reached" in capsys.readouterr().err
    assert (np.abs(linear.weights(draws)[0, 0] - posterior(x, y)[0]) / spreads(x, y)).max() < 0.02
    assert draws.info["newton_decrement"][0] <= 1e-3


def test_laplace_is_centred_there(data):
    draws = bnn.laplace(linear.model, key(), *data, num_samples=1, linearized=True, **QUIET)
    centre = np.r_[np.ravel(draws.model.at[KERNEL]), np.ravel(draws.model.at[BIAS])]
    assert np.max(np.abs(centre - posterior(*data)[0]) / spreads(*data)) < 0.02
    assert draws.info["newton_decrement"] <= 1e-3


def test_each_randomised_member_is_at_the_mode_of_its_own_problem(data):
    draws = bnn.randomized_map(linear.model, key(), *data, num_members=4, **QUIET)
    gap = linear.weights(draws)[:, 0] - linear.randomized_modes(4, *data)
    assert np.max(np.abs(gap) / spreads(*data)) < 0.02
    assert len(draws.info["newton_decrement"]) == 4


hierarchical = network_model(nets.Linear(), priors.Hierarchical(2.0, 0.5), noise=NOISE)


def test_the_decrement_has_precisions_integrated_out(data):
    """g of a Student t, G of the Gaussian whose precision is at its conditional mean."""
    x, y = (np.asarray(a, np.float64) for a in data)
    w, b = np.array([0.4, -0.7, 0.2]), 0.3
    z = {KERNEL: jnp.asarray(w)[None, :, None], BIAS: jnp.full((1, 1), b)}
    descent = linear.members(hierarchical, data)
    rows = np.c_[np.ones(len(x)), x]
    at = np.r_[b, w]
    taus = [(2 + 1 / 2) / (0.5 + b**2 / 2), *[(2 + 3 / 2) / (0.5 + w @ w / 2)] * 3]
    gradient = rows.T @ (rows @ at - y) / NOISE**2 + taus * at
    matrix = rows.T @ rows / NOISE**2 + np.diag(taus)
    expected = gradient @ np.linalg.solve(matrix, gradient) / 2
    np.testing.assert_allclose(Newton(descent, z).decrements(z), expected, rtol=1e-4)


def test_conjugate_gradients_find_the_same_number(data, monkeypatch):
    z = {KERNEL: jnp.ones((2, 3, 1)), BIAS: jnp.zeros((2, 1))}
    newton = Newton(linear.members(linear.model, data), z)
    exact = newton.decrements(z)
    monkeypatch.setattr("numpyro_bnn.approximations.curvature.MOST_DENSE", 3)
    np.testing.assert_allclose(newton.decrements(z), exact, rtol=1e-2)


@pytest.mark.parametrize("most_dense", [5000, 0])
def test_a_gradient_that_is_not_finite_has_no_newton_step(data, most_dense, monkeypatch):
    """As at the end of a step too far, which is then not taken."""
    monkeypatch.setattr("numpyro_bnn.approximations.curvature.MOST_DENSE", most_dense)
    z = {name: value[None] for name, value in nets.weights(linear.model, *data).items()}
    solve = Newton(linear.members(linear.model, data), z).solver(z, None, 0)
    assert np.isfinite(solve(np.ones(4))).all()
    for bad in (np.nan, np.inf):
        assert np.isnan(solve(np.array([1.0, bad, 0.0, 0.0]))).all()


def test_a_matrix_that_is_not_positive_definite_counts_with_the_moduli_of_its_eigenvalues():
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    solve = _inverse(vectors @ np.diag([4.0, -2.0, 1.0]) @ vectors.T)
    np.testing.assert_allclose(vectors.T @ solve(vectors.sum(1)), [0.25, 0.5, 1.0])


def network(x, y=None):
    net = bnn.random_module("net", nets.MLP(1), priors.Normal(1.0), x[:1])
    bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=0.1)


def test_a_mode_that_is_not_reached_is_said(data):
    """The optimiser settles at once, and two steps of L-BFGS are not enough."""
    slow = {"optimizer": optax.sgd(1e-9), "num_steps": 202, "tolerance": 1.0} | QUIET
    with pytest.warns(UserWarning, match=r"mode was not reached.*½ gᵀG⁻¹g = .*num_steps"):
        draws = bnn.map_estimate(network, key(), *data, **slow)
    assert draws.info["newton_decrement"][0] > 1e-3


def test_members_that_did_not_reach_their_modes_are_named():
    with pytest.warns(UserWarning, match=r"randomized_map: members \[1, 3\] of 4 .* 0\.5 nats"):
        say_if_not_reached("randomized_map", np.array([1e-9, 0.5, np.nan, 2e-3]))


def survival_with(scale):
    def model(x, y=None):
        rule = priors.ByPath({"*.bias": priors.Normal(scale), "*": priors.FanIn()})
        net = bnn.random_module("net", nets.MLP(1), rule, x[:1])
        bnn.likelihoods.survival(lambda rows: net(rows).squeeze(-1), y, x=x)

    return model


def poisson(x, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 300.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(level + x @ slopes)), obs=y)


@pytest.mark.parametrize(
    "case",
    [*(pytest.param(c, marks=pytest.mark.slow) for c in ("bias 100", "poisson")), "bias 1000"],
)
def test_no_start_is_lost_far_in_a_wide_prior(case, data):
    x = data[0]
    rng = np.random.default_rng(1)
    if case == "poisson":
        model, y = poisson, rng.poisson(2.0, len(x))
    else:
        model = survival_with(float(case.split()[1]))
        y = np.c_[rng.exponential(size=len(x)), np.ones(len(x))]
    starts = bnn.optimize(model, key(), x, y, num_chains=8, num_steps=300, **QUIET)
    energies = jax.jit(jax.vmap(bnn.potential_of(model, x, y)))(starts)
    assert np.ptp(np.asarray(energies)) < 30


@pytest.mark.parametrize("members", [2, 4, 9])
def test_a_member_far_above_is_told_from_modes_of_unequal_depth(members):
    energy = np.linspace(100.0, 130.0, members)
    assert not far_above(energy, 40.0).any()
    energy[1] = 2.5e77
    np.testing.assert_array_equal(np.flatnonzero(far_above(energy, 40.0)), [1])
    energy[1] = np.nan
    np.testing.assert_array_equal(np.flatnonzero(far_above(energy, 40.0)), [1])
    with pytest.warns(UserWarning, match=r"1 of .* far above .*: 0 at 1e\+05 nats"):
        name_far("optimize", np.r_[1e5, np.zeros(members)], 40.0)


def test_what_is_allowed_follows_the_data_and_the_parameters(data):
    structure = linear.members(linear.model, data).whole.centered.structure
    assert allowed_excess(structure, 8) == pytest.approx(4 + 5 * 2 + 10)
    assert allowed_excess(structure, 10**6) == pytest.approx(40 + 5 * 40**0.5 + 10)


def test_members_that_end_far_above_start_again(data, monkeypatch):
    """The first attempt leaves one of three at an energy from which it does not come back."""
    descent = linear.members(linear.model, data)
    begin, calls = descent.begin, []

    def bad(key, *rest):
        calls.append(key)
        z = begin(key, *rest)
        return {n: v.at[1].set(1e6) for n, v in z.items()} if len(calls) == 1 else z

    monkeypatch.setattr(descent, "begin", bad)
    _, energy = descent.fit(key(), 3, TrainingOptions(num_steps=300, progress_bar=False))
    assert len(calls) == 2
    assert np.ptp(energy) < 10


@pytest.mark.parametrize(("noise", "slope"), [(0.0, 3.0), (50.0, 3.0), (200.0, 5.0)])
def test_noise_does_not_end_what_still_falls(noise, slope):
    """An energy of 1000 nats that falls by three thousandths in 100 steps, in noise of any size."""
    rng = np.random.default_rng(0)
    settling = Settling(1e-3, epoch=500)
    for block in range(60):
        mean = 1000 - slope * block + noise * rng.normal(size=2)
        assert not settling.add_block(mean, np.full(2, noise**2))
    # Flat, it ends, noise or not.
    ends = Settling(1e-3, epoch=500)
    looks = [
        ends.add_block(1000 + noise * rng.normal(size=2), np.full(2, noise**2)) for _ in range(600)
    ]
    assert any(looks)
    assert looks.index(True) + 1 >= 10


def test_a_tolerance_of_zero_takes_every_step(data, capsys, narrow):
    flat = {"optimizer": optax.sgd(0.0), "tolerance": 0, "num_steps": 3 * BLOCK}
    bnn.optimize(linear.model, key(), *data, **flat)
    assert "300/300" in (shown := capsys.readouterr().err)
    assert "all 300 steps taken" in shown
    bnn.optimize(linear.model, key(), *data, **(flat | {"tolerance": 1e-3}))
    assert "200/300" in (shown := capsys.readouterr().err)
    assert "100 steps gain less than 0.001 of it" in shown


def test_the_bar_says_that_held_out_rows_no_longer_gain(data, capsys, narrow):
    bnn.map_estimate(
        linear.model, key(), *data, validation=data, patience=1, optimizer=optax.sgd(0.0)
    )
    assert "held-out rows no longer gain" in (shown := capsys.readouterr().err)
    assert "to the mode" not in shown
