"""Parallel tempering: exact modes and evidence, also of integrated outputs, what it records and refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import linear_gaussian
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from affine_models import by_hand, log_integral
from deaths import dies_after
from jax.flatten_util import ravel_pytree
from ladders import check_evidence, errors_of, hierarchical, hierarchy, hmc, sampler
from numpyro.handlers import seed
from numpyro.infer import HMC, NUTS
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer.gibbs import Gibbs
from numpyro.infer.util import log_density
from scipy.integrate import quad
from scipy.stats import gamma, multivariate_normal, norm

import numpyro_bnn as bnn
from numpyro_bnn.distributions.linear_gaussian import LinearGaussian
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.samplers.tempering.evidence import tempering_of
from numpyro_bnn.samplers.tempering.rung_kernels import Rung, RungKernel

MEANS, SHARES, SPREAD, PRIOR = np.array([[-4.0, 0.0], [4.0, 1.0]]), np.array([0.3, 0.7]), 0.4, 3.0


def two_modes():
    """Twenty spreads apart: HMC alone never crosses."""
    x = numpyro.sample("x", dist.Normal(0.0, PRIOR).expand([2]).to_event(1))
    by_mode = dist.Normal(MEANS, SPREAD).log_prob(x).sum(-1) + np.log(SHARES)
    numpyro.factor("likelihood", jax.scipy.special.logsumexp(by_mode))


@pytest.fixture(scope="module")
def crossed():
    # Over 8 keys swap rates within a ladder differed by .08 to .48 after 300 sweeps of warm-up; after 1000 by
    # more than .2 in 9 % of 640 ladders, and by .08 or less in half of them.
    kernel = bnn.ParallelTempering(two_modes, hmc(two_modes, 8), num_rungs=7)
    mcmc = sampler(kernel, num_warmup=1000)
    mcmc.run(jax.random.key(0))
    return mcmc


def test_two_modes_get_their_masses_and_the_evidence(crossed):
    spread = np.hypot(PRIOR, SPREAD)
    by_mode = SHARES * norm.pdf(MEANS, 0, spread).prod(1)
    x = np.asarray(crossed.get_samples(group_by_chain=True)["x"])
    right = x[..., 0] > 0
    assert errors_of(right, by_mode[1] / by_mode.sum()) < 4
    check_evidence(crossed, np.log(by_mode.sum()))
    # Within a mode the posterior is Gaussian.
    shrunk = PRIOR**2 / (PRIOR**2 + SPREAD**2)
    gap = np.where(right[..., None], MEANS[1] * shrunk, MEANS[0] * shrunk) - x
    variance = SPREAD**2 * shrunk
    assert errors_of((gap**2).sum(-1), 2 * variance) < 4
    assert errors_of(gap.sum(-1), 0.0) < 4


def test_the_ladder_is_reported(crossed):
    found = crossed.tempering
    assert (found.likelihood_powers[:, [0, -1]] == [0, 1]).all()
    assert (np.diff(found.likelihood_powers) > 0).all()
    # Adapted to equal rejection. The first ladder, kept as it is, has rates that differ by .68.
    assert np.ptp(found.swap_rates, axis=1).max() < 0.5
    np.testing.assert_allclose(found.barrier, (1 - found.swap_rates).sum(1))
    assert (found.round_trips > 20).all()
    assert "7 rungs" in str(found)
    again = tempering_of(draws_of(crossed).stats)
    np.testing.assert_array_equal(again.log_evidence, crossed.log_evidence)


@pytest.mark.slow
def test_a_conjugate_linear_model_has_its_evidence_and_posterior():
    x, y = linear_gaussian.data()
    model = linear_gaussian.model
    mcmc = sampler(bnn.ParallelTempering(model, hmc(model, 6), num_rungs=9))
    mcmc.run(jax.random.key(1), x, y)
    rows = np.c_[x, np.ones(len(x))]
    covariance = linear_gaussian.NOISE**2 * np.eye(len(x))
    covariance += linear_gaussian.SCALE**2 * rows @ rows.T
    check_evidence(mcmc, multivariate_normal.logpdf(y, cov=covariance))
    mean, _ = linear_gaussian.posterior(x, y)
    draws = linear_gaussian.weights(mcmc.get_samples(group_by_chain=True))
    assert all(errors_of(draws[..., i], mean[i]) < 4 for i in range(4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "inner",
    [hmc(hierarchical, 6), HMC(hierarchical, trajectory_length=1.5), NUTS, bnn.MAMS],
    ids=["HMC", "HMC of a length", "NUTS", "MAMS"],
)
def test_hierarchical_precisions_in_noncentred_coordinates(inner):
    data, evidence, mean, _ = hierarchy()
    mcmc = sampler(bnn.ParallelTempering(hierarchical, inner, num_rungs=7))
    mcmc.run(jax.random.key(2), *data)
    check_evidence(mcmc, evidence)
    draws = mcmc.get_samples(group_by_chain=True)["net/Dense_0.kernel.precision"]
    assert errors_of(np.log(draws), mean) < 4
    # Another run of the same evidence, and one that has missed something.
    report = bnn.diagnose(mcmc, data[0], second=mcmc)
    np.testing.assert_array_equal(report.sampler.tempering.log_evidence, mcmc.log_evidence)
    assert "log evidence" in report.details()
    assert "do not explain that" not in report.explanation
    assert report.second.agrees
    other = draws_of(mcmc)
    other.stats["log_likelihoods"] = other.stats["log_likelihoods"] + 5.0
    report = bnn.diagnose(mcmc, data[0], second=other)
    assert report.verdict == "run_longer"
    assert "The log evidence of the two runs" in report.explanation
    assert bnn.to_inference_data(mcmc)["sample_stats"]["swap_probs"].shape == (2, 2000, 6)


@pytest.mark.parametrize(
    "kernel",
    [
        HMC(two_modes, trajectory_length=1.0),
        pytest.param(NUTS(two_modes), marks=pytest.mark.slow),
        bnn.MAMS(two_modes),
    ],
)
def test_rungs_taken_in_turn_go_where_they_would_together(kernel, monkeypatch):
    """A trajectory of a length takes the steps that its rung's step size asks for; short ones repeat."""
    step_size = jnp.array([0.5, 0.1, 0.013, 1e-9])
    keys = jax.random.split(jax.random.key(0), 4)
    given = Rung(np.ones((4, 2), np.float32), keys, step_size, np.ones((4, 2), np.float32))
    found = {}
    for backend in ("cpu", "gpu"):
        with monkeypatch.context() as patch:
            patch.setattr(jax, "default_backend", lambda backend=backend: backend)
            inner = RungKernel.of(kernel, two_modes)
            move = partial(inner.move_all, lambda power: lambda z: power * jnp.sum(z**2))
            found[backend] = jax.jit(move)(np.arange(1.0, 5.0, dtype=np.float32), given)
    jax.tree.map(lambda *both: np.testing.assert_allclose(*both, rtol=1e-5), *found.values())
    if type(kernel) is HMC:
        assert found["cpu"].num_steps.tolist() == [8 * 2, 8 * 10, 76, 512]
        assert inner.trajectories_per_sweep(step_size).tolist() == [8, 8, 1, 1]


def test_a_rung_that_moves_often_keeps_its_distribution_and_forgets_where_it_was():
    """Eight short trajectories of a Gaussian beside a long one: draws again, and eight times forgotten."""
    inner = RungKernel.of(HMC(two_modes, trajectory_length=0.5), two_modes)
    step_size, keys = jnp.array([0.5, 0.01]), jax.random.split(jax.random.key(0), 20_000)
    assert inner.trajectories_per_sweep(step_size).tolist() == [8, 1]
    begin = np.random.default_rng(1).normal(size=(len(keys), 2, 1)).astype(np.float32)

    def sweep(z, key):
        rungs = Rung(z, jax.random.split(key), step_size, jnp.ones((2, 1)))
        energy_of = lambda power: lambda z: 0.5 * power * jnp.sum(z**2)  # noqa: E731
        return inner.move_all(energy_of, jnp.ones(2), rungs)

    moved = jax.jit(jax.vmap(sweep))(begin, keys)
    assert np.asarray(moved.num_steps)[0].tolist() == [8, 50]
    assert (np.asarray(moved.accept_prob) > 0.9).all()
    error = np.sqrt(1 / len(keys))
    position = np.asarray(moved.position, float)
    squares = (position**2).mean(0)[:, 0]
    np.testing.assert_array_less(abs(squares - 1), 4 * np.sqrt(2) * error)
    # A length spread over 0.3 to 1.2 of its size leaves the mean of its cosine; one leapfrog step of it
    # is a little less than that turn.
    once = np.sin(0.5 * np.array([0.3, 1.2])) / 0.5
    kept = np.diff(once)[0] / 0.9
    left = [np.corrcoef(begin[:, k, 0], position[:, k, 0])[0, 1] for k in (0, 1)]
    np.testing.assert_allclose(left, [kept**8, kept], atol=4 * error + 0.01)


def test_a_rung_of_momenta_of_constant_size_keeps_its_distribution():
    """Draws of a Gaussian stay draws of it, whatever the metric and however crude the step."""
    scale = jnp.array([0.5, 1.0, 3.0])
    settings = {"trajectory_length": 2.0, "max_num_steps": 6, "target_accept_prob": 0.8}
    inner = RungKernel.of(bnn.MAMS(two_modes, **settings), two_modes)
    assert inner.target_accept_prob == 0.8
    assert inner.steps(jnp.array([0.1, 1.0])).tolist() == [6, 2]
    keys = jax.random.split(jax.random.key(0), 40_000)
    begin = scale * jax.random.normal(jax.random.key(1), (len(keys), 3))

    def move(z, key):
        energy = lambda z: 0.5 * jnp.sum((z / scale) ** 2)  # noqa: E731
        return inner.move(energy, Rung(z, key, jnp.array(0.7), jnp.array([1.0, 0.5, 4.0])))

    moved = jax.jit(jax.vmap(move))(begin, keys)
    assert 0.5 < moved.accept_prob.mean() < 0.95
    assert set(np.asarray(moved.num_steps).tolist()) == {1, 2, 3, 4, 5, 6}
    squares = np.asarray((moved.position / scale) ** 2)
    np.testing.assert_array_less(abs(squares.mean(0) - 1), 4 * np.sqrt(2 / len(keys)))
    assert np.corrcoef(np.asarray(begin)[:, 1], np.asarray(moved.position)[:, 1])[0, 1] < 0.7


def test_energies_are_those_of_the_prior_and_of_the_likelihood():
    """A site of every kind: constrained, in a plate, observed under a scale, and a factor."""
    y = jnp.array([0.3, -1.2, 2.0])

    def model(y):
        scale = numpyro.sample("scale", dist.Gamma(2.0, 3.0))
        with numpyro.plate("groups", 2):
            mean = numpyro.sample("mean", dist.Normal(0.0, scale))
        with numpyro.handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Normal(mean.sum(), scale), obs=y)
        numpyro.factor("extra", -jnp.sum(mean**4))

    potential = Potential(model, (y,))
    z = {"scale": jnp.asarray(-0.4), "mean": jnp.array([0.7, -0.1])}
    prior, likelihood = jax.jit(potential.energies)(z)
    np.testing.assert_allclose(prior + likelihood, jax.jit(potential)(z), rtol=1e-5)
    scale, mean = np.exp(-0.4), np.array([0.7, -0.1])
    expected = 0.5 * norm.logpdf(y, mean.sum(), scale).sum() - (mean**4).sum()
    np.testing.assert_allclose(likelihood, -expected, rtol=1e-5)
    expected = gamma.logpdf(scale, 2.0, scale=1 / 3) - 0.4 + norm.logpdf(mean, 0, scale).sum()
    np.testing.assert_allclose(prior, -expected, rtol=1e-5)


@pytest.mark.slow
def test_the_number_of_rungs_is_twice_the_barrier(crossed):
    kernel = bnn.ParallelTempering(two_modes, hmc(two_modes, 8))
    fixed = kernel.with_pilot(jax.random.key(0), (), {})
    assert abs(fixed.num_rungs - (2 * crossed.tempering.barrier.mean() + 1)) <= 1
    assert kernel.num_rungs == "auto"
    assert fixed.with_pilot(jax.random.key(1), (), {}) is fixed


def test_a_pilot_that_is_too_coarse_is_repeated(monkeypatch):
    tried = []

    def pilot(kernel, rng_key, arguments):
        tried.append(kernel.num_rungs)
        return np.full(kernel.num_rungs - 1, min(0.9, 14.2 / (kernel.num_rungs - 1)))

    monkeypatch.setattr("numpyro_bnn.samplers.tempering.kernel._pilot", pilot)
    fixed = bnn.ParallelTempering(two_modes).with_pilot(jax.random.key(0), (), {})
    assert tried == [8, 16, 32]
    assert fixed.num_rungs == 29


@pytest.mark.slow
@pytest.mark.parametrize("num_rungs", [4, "auto"])
def test_a_run_that_ends_early_goes_on_to_the_same_bits(num_rungs, tmp_path):
    pytest.importorskip("orbax.checkpoint")

    def make(folder):
        kernel = bnn.ParallelTempering(two_modes, hmc(two_modes, 2), num_rungs=num_rungs)
        disk = {"checkpoint": folder / "run", "checkpoint_every": 20, "draws": folder / "draws"}
        return sampler(kernel, num_warmup=20, num_samples=60, thinning=2, **disk)

    whole = make(tmp_path / "whole")
    whole.run(jax.random.key(3))
    with dies_after(2):
        make(tmp_path / "broken").run(jax.random.key(3))
    again = make(tmp_path / "broken")
    again.resume()
    np.testing.assert_array_equal(again.get_samples(True)["x"], whole.get_samples(True)["x"])
    for one, other in zip(whole.tempering, again.tempering):
        np.testing.assert_array_equal(one, other)
    assert whole.log_evidence.shape == (2,)


def test_what_cannot_be_tempered_is_refused():
    def improper():
        numpyro.sample("flat", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(numpyro.sample("w", dist.Normal()), 1.0), obs=0.5)

    def masked():
        with numpyro.handlers.mask(mask=False):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(w, 1.0), obs=0.5)

    def scaled():
        with numpyro.handlers.scale(scale=0.1):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(w, 1.0), obs=0.5)

    def subsampled():
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", 4, subsample_size=2):
            numpyro.sample("y", dist.Normal(w, 1.0), obs=jnp.zeros(2))

    for model, message in [
        (improper, r"none to draw from at 'flat' \(improper\)"),
        (masked, r"'w' \(masked\)"),
        (scaled, r"'w' \(scaled\).*without `mask` or `scale`"),
        (subsampled, "subsamples 2 of 4 rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            sampler(bnn.ParallelTempering(model, num_rungs=3)).run(jax.random.key(0))


def test_settings_that_make_no_sense_are_refused():
    tempering = bnn.ParallelTempering
    for number in (1, 2.5, True, "many"):
        with pytest.raises(
            ValueError,
            match=f"num_rungs .'auto' or a number. must be an integer of at least 2, got {number!r}",
        ):
            tempering(two_modes, num_rungs=number)
    with pytest.raises(TypeError, match="kernel must be HMC, NUTS or MAMS, or one of them"):
        tempering(two_modes, kernel=bnn.MALA(two_modes, step_size=0.1))
    with pytest.raises(ValueError, match="over another model than the one that is tempered"):
        tempering(two_modes, kernel=HMC(hierarchical))
    with pytest.raises(ValueError, match="is diagonal, got dense_mass=True"):
        tempering(two_modes, kernel=NUTS(two_modes, dense_mass=True))
    with pytest.raises(ValueError, match="num_warmup=0"):
        sampler(tempering(two_modes, num_rungs=3), num_warmup=0).run(jax.random.key(0))
    plain = NumPyroMCMC(tempering(two_modes), num_warmup=2, num_samples=2, progress_bar=False)
    with pytest.raises(ValueError, match="num_rungs='auto' needs a pilot run"):
        plain.run(jax.random.key(0))
    with pytest.raises(ValueError, match="cannot be used as a block of Gibbs"):
        Gibbs([(tempering(two_modes, num_rungs=3), None)])
    with pytest.raises(AttributeError, match="this is NUTS before `run`"):
        _ = sampler(NUTS(two_modes)).log_evidence


ROWS = 9
POWERS = (0.0, 1e-3, 0.3, 1.0)


def data(outputs=1):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=ROWS)
    return x, y if outputs == 1 else np.stack([y, y**2], 1)


def network(x, y=None, *, outputs=1, noise=None):
    net = bnn.random_module("net", bnn.MLP((2,), outputs), bnn.priors.Hierarchical(2.0, 1.0), x[:1])
    noise = dist.HalfNormal(1.0) if noise is None else noise
    bnn.likelihoods.gaussian(
        net if outputs > 1 else (lambda rows: net(rows).squeeze(-1)), y, x=x, noise=noise
    )


def with_a_factor(x, y=None):
    """A second observation that the weights do not enter: it is raised to the power."""
    by_hand(x, y)
    if y is not None:
        numpyro.factor("more", -jnp.sum(jnp.exp(x[:, 0])))


OUTPUT = ["net/Dense_1.bias.base", "net/Dense_1.kernel.base"]
EACH = bnn.likelihoods.Precision(2.0, 1.0, output=3.0)
MODELS = {
    "noise by row": (by_hand, 1, ["slope"]),
    "noise by output": (partial(network, outputs=2, noise=EACH), 2, OUTPUT),
    "a factor": (with_a_factor, 1, ["slope"]),
}


def tempered_integral(model, args, rest, weights, power):
    """log ∫ p(weights, rest) p(y | weights, rest)^power over weights, in the model as it was written.

    The logarithm of the integrand is quadratic in them.
    """
    full = bnn.potential_of(model, *args)
    flat, unflatten = ravel_pytree({n: jnp.zeros(full.structure.sites[n].shape) for n in weights})

    def joint(w):
        seeded = seed(full.bound, jax.random.key(0))
        _, sites = log_density(seeded, full.args, full.kwargs, rest | unflatten(w))
        logs = {
            n: jnp.sum(s["fn"].log_prob(s["value"]))
            for n, s in sites.items()
            if s["type"] == "sample"
        }
        return sum(v * (power if n in full.structure.observed else 1.0) for n, v in logs.items())

    return log_integral(joint, flat)


def differences(name):
    """Tempered densities of the integrated model less those of the model as it was written, by power."""
    model, outputs, weights = MODELS[name]
    args = data(outputs)
    potential = bnn.potential_of(bnn.integrate_output(model), *args)
    rest = {n: jnp.abs(v).astype(float) for n, v in nets.weights(potential.model, *args).items()}
    z = jax.jit(potential.unconstrain)(rest)
    prior, at_power = jax.jit(
        lambda z: (lambda p, lik: (p, jnp.stack([lik(b) for b in POWERS])))(*potential.tempered(z))
    )(z)
    # Jacobians of the transforms: what the prior's energy has beyond the log density.
    seeded = seed(potential.bound, jax.random.key(0))

    @jax.jit
    def densities(rest):
        _, sites = log_density(seeded, potential.args, potential.kwargs, rest)
        latent = potential.structure.latent
        return {n: jnp.sum(sites[n]["fn"].log_prob(rest[n])) for n in latent}

    own = sum(densities(rest).values())
    assert np.isfinite(prior)
    integral = jax.jit(lambda power: tempered_integral(model, args, rest, weights, power))
    return np.asarray(own - at_power - jnp.stack([integral(power) for power in POWERS]))


@pytest.mark.parametrize("name", MODELS)
def test_every_power_is_the_integral_of_the_tempered_model(name, double_precision):
    found = differences(name)
    np.testing.assert_allclose(found, 0.0, atol=1e-9)


def quadrature(power, feature, y, scale):
    def density(w):
        return norm.pdf(w) * np.prod(norm.pdf(y, 0.4 + feature * w, scale)) ** power

    return np.log(quad(density, -12, 12, points=[-2, 0, 2], limit=200)[0])


@pytest.mark.parametrize("power", POWERS)
def test_one_weight_against_quadrature(power, double_precision):
    feature, y = np.array([0.7, -1.1, 2.0]), np.array([0.2, 1.4, -0.9])
    scale = np.array([0.5, 1.5, 0.8])

    @jax.jit
    def both():
        distribution = LinearGaussian(jnp.full(3, 0.4), feature[:, None], scale)
        return distribution.tempered_log_prob(y, power), distribution.log_prob(y)

    found, whole = both()
    np.testing.assert_allclose(found, quadrature(power, feature, y, scale), atol=1e-8)
    if power == 0:
        assert found == 0
    if power == 1:
        np.testing.assert_array_equal(found, whole)


def test_the_power_of_t_noise_is_that_of_the_joint_with_case_precisions(double_precision):
    """Given its precisions the noise is Gaussian, and is tempered as such; their prior is not."""
    x, y = data()
    model = bnn.regression(
        bnn.MLP((2,), 1), bnn.priors.FanIn(), x, y, likelihood="student_t", df=3.0
    )
    potential = bnn.potential_of(bnn.integrate_output(model), x, y)
    z = jax.jit(lambda k: potential.unconstrain(potential.prior_draw(k)))(jax.random.key(0))
    assert "y.case_precision" in z

    @jax.jit
    def found(z):
        prior, likelihood = potential.tempered(z)
        return prior, jnp.stack([likelihood(b) for b in POWERS]), potential(z)

    prior, by_power, whole = found(z)
    assert by_power[0] == 0
    np.testing.assert_allclose(prior + by_power[-1], whole, rtol=1e-12)
