"""The numbers that other libraries call alike: which of theirs is which of ours (`coming_from.md`)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.infer.util import initialize_model
from sklearn.metrics import brier_score_loss, log_loss

import numpyro_bnn as bnn
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic

RNG = np.random.default_rng(0)
CHAINS = 20_000


def test_a_step_of_blackjax_sgld_is_twice_as_long():
    """BlackJAX 1.7.1 moves by ε∇ + √(2ε)ξ, ours by h/2 ∇ + √h ξ."""
    blackjax = pytest.importorskip("blackjax")
    step, kernel = 0.1, blackjax.sgld.build_kernel()
    keys = jax.random.split(jax.random.key(1), CHAINS)
    theirs = jax.vmap(lambda key: kernel(key, jnp.ones(1), lambda z, _: -z, None, step))(keys)
    ours = bnn.SGLD(potential_fn=lambda z: 0.5 * jnp.sum(z**2), step_size=2 * step)
    run = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    mcmc = bnn.MCMC(ours, num_warmup=0, num_samples=1, **run)
    mcmc.run(jax.random.key(0), init_params=jnp.ones((CHAINS, 1)))
    for found in (np.asarray(theirs).ravel(), np.asarray(mcmc.get_samples()).ravel()):
        sd = np.sqrt(2 * step)
        assert abs(found.mean() - (1 - step)) < 5 * sd / np.sqrt(CHAINS)
        assert abs(found.std() / sd - 1) < 5 / np.sqrt(2 * CHAINS)


def test_a_step_of_blackjax_mclmc_is_ours_times_the_root_of_the_dimension():
    """Their momentum is a unit vector, ours has the norm √D."""
    blackjax = pytest.importorskip("blackjax")
    from blackjax.mcmc.integrators import isokinetic_velocity_verlet

    dim, step = 6, 0.05
    slopes = jnp.arange(1.0, dim + 1)
    density = lambda z: -0.5 * jnp.sum(slopes * z**2)  # noqa: E731
    state = blackjax.mcmc.mclmc.init(jnp.ones(dim), density, jax.random.key(0))
    integrate = isokinetic_velocity_verlet(density)
    theirs = integrate(state, step * np.sqrt(dim))[0].position
    settings = Settings(step_size=step, temperature=1.0, friction=0.0)
    dynamics, zero = Isokinetic(friction=False), jnp.zeros(dim)
    start = dynamics.init(state.position, zero + 1.0, settings, -state.logdensity_grad)
    start = start._replace(momentum=state.momentum * np.sqrt(dim))
    ours = dynamics.advance(start, (), settings).position
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_weight_decay_of_optax_is_the_precision_of_a_normal_prior():
    """On a loss that is a sum over rows; on a mean over N rows it is N times as much."""
    x, y, sd = RNG.normal(size=(8, 3)), RNG.normal(size=8), 0.5
    model = bnn.regression(bnn.MLP([2], 1), bnn.priors.Normal(sd), x, y, noise=1.0)
    wide = bnn.regression(bnn.MLP([2], 1), bnn.priors.Normal(1e8), x, y, noise=1.0)
    given, flat = (initialize_model(jax.random.key(0), m, model_args=(x, y)) for m in (model, wide))
    z = jax.tree.map(lambda v: jnp.asarray(RNG.normal(size=v.shape), v.dtype), given.param_info.z)
    gradient, of_loss = (jax.grad(of.potential_fn)(z) for of in (given, flat))
    decay = optax.add_decayed_weights(1 / sd**2)
    decayed, _ = decay.update(of_loss, decay.init(z), z)
    for name in z:
        np.testing.assert_allclose(gradient[name], decayed[name], rtol=1e-4, atol=1e-4)


def test_the_log_score_is_minus_the_log_loss_of_sklearn_and_the_brier_score_twice_its_own():
    probs, y = RNG.dirichlet(np.ones(2), 30), RNG.integers(0, 2, 30)
    assert bnn.scores.lppd(np.log(probs[np.arange(30), y])[None]) == pytest.approx(
        -log_loss(y, probs)
    )
    assert bnn.scores.brier(probs[None], y) == pytest.approx(2 * brier_score_loss(y, probs[:, 1]))


def test_the_crps_is_that_of_scoringrules():
    """Of samples their estimator "nrg", whose own pairs count; the fair one is another number."""
    scoringrules = pytest.importorskip("scoringrules")
    draws, y = RNG.normal(size=(25, 12)), RNG.normal(size=12)
    found = bnn.scores.crps(draws, y, pointwise=True)
    np.testing.assert_allclose(found, scoringrules.crps_ensemble(y, draws.T, estimator="nrg"))
    fair = scoringrules.crps_ensemble(y, draws.T, estimator="fair")
    assert np.abs(found - fair).min() > 1e-3
    one = bnn.scores.crps(draws[:1], y, scale=0.7, pointwise=True)
    np.testing.assert_allclose(one, scoringrules.crps_normal(y, draws[0], 0.7))
