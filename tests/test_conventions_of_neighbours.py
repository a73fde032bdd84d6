"""The numbers that other libraries call alike: which of theirs is which of ours (`coming_from.md`).

What is not installed is skipped; the weekly run has all of them.
Rows in docstrings are those of the page.
"""

import re

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from documents import PAGES
from numpyro import handlers
from numpyro.infer import hmc_util
from numpyro.infer.util import initialize_model
from sklearn.linear_model import LinearRegression
from sklearn.metrics import brier_score_loss, log_loss
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import DynamicsState, Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Langevin, SemiImplicit, Splitting

RNG = np.random.default_rng(0)
CHAINS = 20_000


def assert_moved(values, mean, sd):
    """Many steps of one kind: mean and standard deviation within five standard errors."""
    values = np.asarray(values).ravel()
    assert abs(values.mean() - mean) < 5 * sd / np.sqrt(values.size)
    assert abs(values.std() / sd - 1) < 5 / np.sqrt(2 * values.size)


def test_a_step_of_blackjax_sgld_is_twice_as_long():
    """| BlackJAX 1.7.1 | `step_size` ε of `sgld`, which moves by ε∇ + √(2ε)ξ | `step_size=2ε` of `SGLD`,
    which moves by ε/2 ∇ + √ε ξ |
    """
    blackjax = pytest.importorskip("blackjax")
    step, kernel = 0.1, blackjax.sgld.build_kernel()
    keys = jax.random.split(jax.random.key(1), CHAINS)
    theirs = jax.vmap(lambda key: kernel(key, jnp.ones(1), lambda z, _: -z, None, step))(keys)
    ours = bnn.SGLD(potential_fn=lambda z: 0.5 * jnp.sum(z**2), step_size=2 * step)
    run = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    mcmc = bnn.MCMC(ours, num_warmup=0, num_samples=1, **run)
    mcmc.run(jax.random.key(0), init_params=jnp.ones((CHAINS, 1)))
    for found in (theirs, mcmc.get_samples()):
        assert_moved(found, 1 - step, np.sqrt(2 * step))


def test_a_step_of_blackjax_mclmc_is_ours_times_the_root_of_the_dimension():
    """| BlackJAX 1.7.1 | `step_size=ε√D` of `mclmc`, for D weights | `step_size=ε` of `MCLMC` |"""
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
    """| optax | `weight_decay` on a loss that is a sum over rows |
    `priors.Normal(1 / sqrt(weight_decay))` |
    """
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
    """| scikit-learn | `log_loss`; `brier_score_loss` | `−lppd`; half of `brier` |"""
    probs, y = RNG.dirichlet(np.ones(2), 30), RNG.integers(0, 2, 30)
    assert bnn.scores.lppd(np.log(probs[np.arange(30), y])[None]) == pytest.approx(
        -log_loss(y, probs)
    )
    assert bnn.scores.brier(probs[None], y) == pytest.approx(2 * brier_score_loss(y, probs[:, 1]))


def test_the_crps_is_that_of_scoringrules():
    """| scoringrules | `crps_ensemble(estimator="nrg")`; its fair estimator is another number | `crps` |"""
    scoringrules = pytest.importorskip("scoringrules")
    draws, y = RNG.normal(size=(25, 12)), RNG.normal(size=12)
    found = bnn.scores.crps(draws, y, pointwise=True)
    np.testing.assert_allclose(found, scoringrules.crps_ensemble(y, draws.T, estimator="nrg"))
    fair = scoringrules.crps_ensemble(y, draws.T, estimator="fair")
    assert np.abs(found - fair).min() > 1e-3
    one = bnn.scores.crps(draws[:1], y, scale=0.7, pointwise=True)
    np.testing.assert_allclose(one, scoringrules.crps_normal(y, draws[0], 0.7))


def of_torch():
    torch = pytest.importorskip("torch")
    normal = lambda z, batch: (-0.5 * (z**2).sum(), torch.tensor([]))  # noqa: E731
    return pytest.importorskip("posteriors"), torch, normal


def sgld_from_one(step, temperature=1.0):
    """Positions after one step of ours at a standard normal, from 1."""
    settings = Settings(step_size=step, temperature=temperature)
    start = Langevin().init(jnp.ones(CHAINS), None, settings)
    noise = jax.random.normal(jax.random.key(0), (CHAINS,))
    return Langevin().complete(start, start.position, (noise,), settings).position


def test_the_learning_rate_of_posteriors_is_half_a_step_of_sgld():
    """| posteriors 0.1.3 | `lr` of `sgld` | `step_size=2 * lr` of `SGLD` |
    | posteriors 0.1.3 | `temperature`, of a log posterior that is a sum over all rows | `temperature` |
    """
    posteriors, torch, log_posterior = of_torch()
    rate, temperature, sd = 0.1, 0.5, np.sqrt(2 * 0.1 * 0.5)
    sampler = posteriors.sgmcmc.sgld.build(log_posterior, lr=rate, temperature=temperature)
    torch.manual_seed(0)
    theirs, _ = sampler.update(sampler.init(torch.ones(CHAINS)), None)
    assert_moved(theirs.params, 1 - rate, sd)
    assert_moved(sgld_from_one(2 * rate, temperature), 1 - rate, sd)


def test_friction_of_posteriors_is_that_of_sghmc_times_its_mass():
    """| posteriors 0.1.3 | `lr`, `alpha`, `sigma` of `sghmc` | `SGHMC(step_size=lr, friction=alpha /
    sigma**2)` with the mass `sigma**2` |
    """
    posteriors, torch, log_posterior = of_torch()
    rate, alpha, sigma, temperature = 0.1, 2.0, 1.5, 0.5
    sampler = posteriors.sgmcmc.sghmc.build(
        log_posterior, lr=rate, alpha=alpha, sigma=sigma, temperature=temperature
    )
    torch.manual_seed(0)
    state = sampler.init(torch.ones(CHAINS), momenta=torch.full((CHAINS,), 0.5))
    mean = 0.5 * (1 - rate * alpha / sigma**2) - rate
    sd = np.sqrt(2 * alpha * rate * temperature)
    assert_moved(sampler.update(state, None)[0].momenta, mean, sd)
    settings = Settings(
        rate, temperature, inverse_mass_matrix=1 / sigma**2, friction=alpha / sigma**2
    )
    start = DynamicsState(jnp.ones(CHAINS), momentum=jnp.full(CHAINS, 0.5))
    noise = jax.random.normal(jax.random.key(0), (CHAINS,))
    ours = SemiImplicit().complete(start, start.position, (noise,), settings)
    assert_moved(ours.momentum, mean, sd)


def test_a_step_of_langevin_in_tensorflow_probability_is_a_step_of_sgld():
    """| TensorFlow Probability 0.26 | `step_size` of `UncalibratedLangevin` | `step_size` of `SGLD` |"""
    tfp = pytest.importorskip("tensorflow_probability.substrates.jax")
    kernel = tfp.mcmc.UncalibratedLangevin(lambda z: -0.5 * z**2, step_size=0.2)
    start = jnp.ones(CHAINS)
    theirs, _ = kernel.one_step(start, kernel.bootstrap_results(start), seed=jax.random.key(1))
    assert_moved(theirs, 0.9, np.sqrt(0.2))
    assert_moved(sgld_from_one(0.2), 0.9, np.sqrt(0.2))


def test_the_total_count_of_tensorflow_probability_is_our_concentration():
    """| TensorFlow Probability 0.26 | `total_count` and `logits` of `NegativeBinomial` | `concentration`, and
    predictions less its logarithm |
    """
    tfp = pytest.importorskip("tensorflow_probability.substrates.jax")
    f, y, a = jnp.log(jnp.array([0.3, 4.0, 9.0])), jnp.array([0.0, 5.0, 7.0]), 2.5
    theirs = tfp.distributions.NegativeBinomial(a, logits=f - np.log(a)).log_prob(y)
    with handlers.trace() as sites:
        bnn.likelihoods.negative_binomial(f, y, concentration=a)
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(y), theirs, rtol=1e-4)


of_first_column = row_model(lambda x, w: dist.Normal(w * x[:, 0], 0.7), w=dist.Normal())

CALIBRATION = RNG.normal(size=(39, 1))
TARGETS = CALIBRATION[:, 0] + RNG.normal(size=39)
NEW = np.array([[-1.0], [0.0], [2.0]])


def predicting(shift):
    """A fitted regressor, whose predictions are the first column and `shift`."""
    return LinearRegression().fit(CALIBRATION, CALIBRATION[:, 0] + shift)


def calibrated(method):
    draws = bnn.Draws({"w": np.ones((1, 1), np.float32)}, of_first_column)
    return bnn.calibrate(draws, CALIBRATION, TARGETS, method=method)


def test_a_step_of_numpyro_is_a_leapfrog_of_ours():
    """| NumPyro | `step_size`, `inverse_mass_matrix` of `HMC` | the same of `BAOAB` and other kernels with
    momenta |
    """
    energy = lambda z: jnp.sum(z**4)  # noqa: E731
    z, momentum, inverse_mass = jnp.array([[1.0, -0.5], [0.3, 2.0], [0.5, 0.1]])
    start, step = hmc_util.velocity_verlet(energy, lambda m, r: 0.5 * jnp.sum(m * r**2))
    theirs = step(0.1, inverse_mass, start(z, momentum))
    settings = Settings(0.1, inverse_mass_matrix=inverse_mass)
    at = DynamicsState(z, momentum=momentum, gradient=jax.grad(energy)(z))
    word = Splitting("BAB")
    ahead = word.advance(at, (), settings)
    ours = word.complete(ahead, jax.grad(energy)(ahead.position), (), settings)
    np.testing.assert_allclose([ours.position, ours.momentum], [theirs.z, theirs.r], rtol=1e-6)


def test_percents_of_numpyro_are_no_quantiles():
    """| NumPyro 0.22 | `5.0%` and `95.0%` of `print_summary`: ends of the narrowest interval with 90 % of the
    draws | `numpyro.diagnostics.hpdi(draws, 0.9)`; quantiles by `np.quantile` |
    """
    draws = np.random.default_rng(0).exponential(size=(2, 2000))
    found = numpyro.diagnostics.summary({"scale": draws}, prob=0.9)["scale"]
    theirs = found["5.0%"], found["95.0%"]
    np.testing.assert_allclose(theirs, numpyro.diagnostics.hpdi(draws.ravel(), 0.9))
    assert theirs[1] < np.quantile(draws, 0.92)


def test_leave_one_out_of_arviz_is_ours():
    """| ArviZ | `loo`: elpd and its standard error, in nats | `check_fit(…).loo` |"""
    draws = {"w": np.random.default_rng(1).normal(0.9, 0.05, (2, 400)).astype(np.float32)}
    draws = bnn.Draws(draws, of_first_column)
    ours = bnn.check_fit(draws, CALIBRATION, TARGETS).loo
    theirs = arviz.loo(bnn.to_inference_data(draws, CALIBRATION, TARGETS))
    # ArviZ 0.23 divides the variance over rows by their number, not by one less.
    for name, error in (("elpd", 1e-3), ("se", 0.6 / len(TARGETS))):
        found = getattr(theirs, f"{name}_loo", None) or getattr(theirs, name)
        np.testing.assert_allclose(getattr(ours, name), found, rtol=error)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_the_confidence_level_of_mapie_is_our_coverage(coverage):
    """| MAPIE 1.6 | `SplitConformalRegressor(confidence_level=c)`, absolute residuals | `calibrate(…,
    coverage=c)`, for a Gaussian target with one noise |
    """
    regression = pytest.importorskip("mapie.regression")
    made = regression.SplitConformalRegressor(predicting(0.0), confidence_level=coverage)
    theirs = made.conformalize(CALIBRATION, TARGETS).predict_interval(NEW)[1][..., 0]
    ours = calibrated("cdf").at(coverage).predict_interval(NEW)
    np.testing.assert_allclose(np.transpose(ours), theirs, atol=2e-3)


def test_quantiles_of_mapie_are_moved_alike_by_a_symmetric_correction():
    """| MAPIE 1.6 | `ConformalizedQuantileRegressor`, `symmetric_correction=True`; by default it moves each
    end by itself | `calibrate(…, method="cqr")` |
    """
    regression = pytest.importorskip("mapie.regression")
    half = 0.7 * 1.6448536
    ends = [predicting(shift) for shift in (-half, half, 0.0)]
    made = regression.ConformalizedQuantileRegressor(ends, confidence_level=0.9, prefit=True)
    made.conformalize(CALIBRATION, TARGETS)
    theirs = made.predict_interval(NEW, symmetric_correction=True)[1][..., 0]
    ours = np.transpose(calibrated("cqr").predict_interval(NEW))
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert np.abs(made.predict_interval(NEW)[1][..., 0] - theirs).max() > 0.05


def test_the_confidence_of_crepes_is_our_coverage():
    """| crepes 0.9.1 | `predict_int(confidence=c)`; for 39 rows and c = 0.9, rounding makes it a rank wider |
    `coverage=c` |
    """
    crepes = pytest.importorskip("crepes")
    residuals = TARGETS - CALIBRATION[:, 0]
    made = crepes.ConformalRegressor().fit(residuals)
    for coverage, more in ((0.5, 0), (0.95, 0), (0.9, 1)):
        half = np.sort(np.abs(residuals))[round(40 * coverage) - 1 + more]
        theirs = made.predict_int(NEW[:, 0], confidence=coverage)
        np.testing.assert_allclose(theirs, np.c_[NEW - half, NEW + half])
        if not more:
            ours = calibrated("cdf").at(coverage).predict_interval(NEW)
            np.testing.assert_allclose(np.transpose(ours), theirs, atol=2e-3)


def test_credible_intervals_of_bde_are_our_quantiles():
    """| bde 1.0.2 | `credible_intervals=[.05, .95]`, which are quantiles | `quantiles([.05, .95])` |
    | bde 1.0.2 | the second number of `raw=True` is not a scale yet: softplus makes it one |
    `predictions(x).scale` |
    """
    evaluator = pytest.importorskip("bde.bde_evaluator")
    raw = np.broadcast_to(np.float32([[0.0, 1.0], [3.0, -1.0]]), (2, 1000, 2, 2))
    made = evaluator.BdePredictor(lambda given, x: given, raw, NEW, evaluator.TaskType.REGRESSION)
    theirs = made.predict(credible_intervals=[0.05, 0.95])["credible_intervals"]

    def model(x, y=None):
        f = numpyro.sample("f", dist.Normal().expand([2, 2]).to_event(2))
        bnn.likelihoods.heteroscedastic(f, y)

    predicted = bnn.predict(model, bnn.Draws({"f": raw[:, :20]}, model), NEW[:2])
    ours = predicted.quantiles([0.05, 0.95])
    # Of 20,000 draws, the quantile of a standard normal with density .103 there.
    error = np.sqrt(0.05 * 0.95 / 20_000) / 0.103 * predicted.scale[0, 0]
    assert (np.abs(np.asarray(theirs) - ours) < 5 * error).all()
    assert np.asarray(made.predict(credible_intervals=[0.9])["credible_intervals"]).shape == (1, 2)


def test_the_page_has_these_rows():
    page = (PAGES / "coming_from.md").read_text(encoding="utf-8")
    table = page[page.index("## Numbers that mean the same") :].splitlines()
    tests = [value.__doc__ or "" for name, value in globals().items() if name.startswith("test_")]
    rows = [" ".join(row.split()) for test in tests for row in re.split(r"\n\s*(?=\| )", test)]
    assert [line for line in table if line.startswith("| ")][2:] == sorted(filter(None, rows))
