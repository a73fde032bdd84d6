"""Log prior densities by site: SciPy's own, the same in all coordinates, and what ArviZ makes of them."""

from functools import partial

import jax
import jax.numpy as jnp
import linear_gaussian
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import NUTS
from scipy import stats
from test_arviz import IS_TREE, az

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.posterior.arviz_export import from_inference_data, log_prior_of, to_inference_data
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.samplers.gibbs.moves import Interleaved

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)
Y = RNG.normal(size=6).astype(np.float32)
KERNEL, BIAS = "net/Dense_0.kernel", "net/Dense_0.bias"
LEVELS = priors.Hierarchical.width(0.7, group=3.0, unit=5.0)


def positive(*shape):
    return RNG.gamma(3.0, 0.4, (2, 4, *shape)).astype(np.float32)


def normal(*shape):
    return RNG.normal(size=(2, 4, *shape)).astype(np.float32)


def under(prior, x, y=None):
    net = bnn.random_module("net", nets.Linear(), prior, x[:1])
    bnn.likelihoods.gaussian(net, y, x=x, noise=0.5)


def gamma(value, concentration, rate):
    return stats.gamma.logpdf(value, concentration, scale=1 / rate)


W, B, GROUP, UNITS, SINGLE = normal(3, 1), normal(1), positive(), positive(3), positive()
HIERARCHY = {
    KERNEL: W,
    BIAS: B,
    f"{KERNEL}.precision": GROUP,
    f"{KERNEL}.unit_precision": UNITS,
    f"{BIAS}.precision": SINGLE,
}


def of_the_hierarchy():
    """τ ~ Gamma(a₀/2, a₀W²/2), τ_i | τ ~ Gamma(a₁/2, a₁/(2τ)), w_i | τ_i ~ Normal(0, 1/τ_i)."""
    tau, units, single = (v.astype(np.float64) for v in (GROUP, UNITS, SINGLE))
    top = 3.0 * 0.7**2 / 2
    return {
        f"{KERNEL}.precision": gamma(tau, 1.5, top),
        f"{KERNEL}.unit_precision": gamma(units, 2.5, 2.5 / tau[..., None]).sum(-1),
        KERNEL: stats.norm.logpdf(W[..., 0], 0, units**-0.5).sum(-1),
        f"{BIAS}.precision": gamma(single, 1.5, top),
        BIAS: stats.norm.logpdf(B[..., 0], 0, single**-0.5),
    }


@pytest.mark.parametrize("coordinates", ["noncentered", "centered", "collapsed"])
def test_a_hierarchy_has_the_same_densities_in_all_coordinates(coordinates):
    model = bnn.parameterize(partial(under, LEVELS), coordinates)
    # Values of what only the sampler knows may be among the draws, and change nothing.
    draws = bnn.Draws({**HIERARCHY, f"{KERNEL}.base": normal(3, 1)}, model)
    found, exact = log_prior_of(draws, X, ["y"]), of_the_hierarchy()
    assert set(found) == set(exact)
    for site, expected in exact.items():
        np.testing.assert_allclose(found[site], expected, rtol=2e-5, atol=2e-5, err_msg=site)


def test_a_horseshoe_has_the_density_of_its_weights():
    sites = {"local_scale": positive(3, 1), "global_scale": positive(), "slab_variance": positive()}
    prior = priors.ByPath(
        {"*.kernel": priors.Horseshoe(0.5, 2.0, 4.0), "*": priors.StudentT(3.0, 2.0)}
    )
    given = {f"{KERNEL}.{name}": value for name, value in sites.items()}
    tau, local, slab = (
        given[f"{KERNEL}.{n}"].astype(np.float64)
        for n in ("global_scale", "local_scale", "slab_variance")
    )
    tau, slab = tau[..., None], slab[..., None]
    local = local[..., 0]
    scale = np.sqrt(slab * (tau * local) ** 2 / (slab + (tau * local) ** 2))
    base = W / scale[..., None]
    draws = bnn.Draws(
        {**given, KERNEL: W, f"{KERNEL}.base": base.astype(np.float32), BIAS: B},
        partial(under, prior),
    )
    found = log_prior_of(draws, X, ["y"])
    exact = {
        KERNEL: stats.norm.logpdf(W[..., 0], 0, scale).sum(-1),
        f"{KERNEL}.local_scale": stats.halfcauchy.logpdf(local).sum(-1),
        f"{KERNEL}.global_scale": stats.halfcauchy.logpdf(tau[..., 0], scale=0.5),
        f"{KERNEL}.slab_variance": stats.invgamma.logpdf(slab[..., 0], 2.0, scale=8.0),
        BIAS: stats.t.logpdf(B[..., 0], 3.0, scale=2.0),
    }
    assert set(found) == set(exact)
    for site, expected in exact.items():
        np.testing.assert_allclose(found[site], expected, rtol=5e-5, atol=5e-5, err_msg=site)


@pytest.mark.parametrize("integrated", [False, True])
def test_a_ready_model_has_the_priors_that_it_was_given(integrated):
    y = 100 + 20 * Y
    options = {"noise": dist.HalfNormal(0.8), "integrate_output": integrated}
    model = bnn.regression(bnn.MLP((4,), 1), priors.Normal(0.5), X, y, **options)
    shapes = {KERNEL: (3, 4), BIAS: (4,), "net/Dense_1.kernel": (4, 1), "net/Dense_1.bias": (1,)}
    draws = {name: normal(*shape) for name, shape in shapes.items()}
    scale = positive()
    all_sites = bnn.Draws({**draws, "y.scale": scale}, model)
    found = bnn.to_inference_data(all_sites, X, y, posterior_predictive=False)["log_prior"]
    assert set(found.data_vars) == {n.replace("/", ".") for n in draws} | {"y.scale"}
    for site, value in draws.items():
        own = found[site.replace("/", ".")]
        assert own.attrs["site"] == site
        exact = stats.norm.logpdf(value, 0, 0.5).reshape(2, 4, -1).sum(-1)
        np.testing.assert_allclose(own.values, exact, rtol=2e-5)
    noise = stats.halfnorm.logpdf(scale, scale=0.8)  # in units of the standard deviation of y
    np.testing.assert_allclose(found["y.scale"].values, noise, rtol=2e-5)


@pytest.mark.parametrize("scale", [3.0, np.array([1.0, 2.0, 0.5], np.float32)])
def test_a_scale_multiplies_the_density_of_each_value(scale):
    def model(x, y=None):
        with handlers.scale(scale=scale), numpyro.plate("groups", 3):
            own = numpyro.sample("own", dist.Normal(jnp.zeros(2), 2.0).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(own.sum(), 1.0), obs=y)

    own = normal(3, 2)
    found = log_prior_of(bnn.Draws({"own": own}, model), X, ["y"])["own"]
    exact = (scale * stats.norm.logpdf(own, 0, 2.0).sum(-1)).sum(-1)
    np.testing.assert_allclose(found, exact, rtol=2e-5)


def test_draws_that_lack_a_site_have_no_log_prior():
    some = {n: v for n, v in HIERARCHY.items() if n != f"{KERNEL}.precision"}
    draws = bnn.Draws(some, partial(under, LEVELS))
    with pytest.raises(ValueError, match=r"these lack \['net/Dense_0.kernel.precision'\]"):
        bnn.to_inference_data(draws, X, Y, log_likelihood=False, posterior_predictive=False)
    idata = bnn.to_inference_data(
        draws, X, Y, log_likelihood=False, log_prior=False, posterior_predictive=False
    )
    assert "log_prior" not in (idata.children if IS_TREE else idata.groups())


def location(scale, x, y=None):
    """One unknown mean under a Gaussian prior, known noise of one."""
    mean = numpyro.sample("mean", dist.Normal(0.0, scale))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def exact_draws(scale, y, size=(4, 5000)):
    """Independent draws of the exact posterior of the mean, and its precision and mean."""
    precision = scale**-2 + len(y)
    mean = y.sum() / precision
    values = np.random.default_rng(1).normal(mean, precision**-0.5, size)
    return bnn.Draws({"mean": jnp.asarray(values)}, partial(location, scale)), precision, mean


def test_a_stronger_prior_moves_the_mean_as_far_as_it_must():
    """d E[θ] / dα = Cov(θ, log p(θ)): the conjugate mean is known for every power α of the prior."""
    y = np.array([2.5, 3.5, 3.0], np.float32)
    draws, precision, mean = exact_draws(1.0, y)
    idata = bnn.to_inference_data(draws, y[:, None], y, posterior_predictive=False)
    theta = np.asarray(idata["posterior"]["mean"], np.float64).ravel()
    prior = np.asarray(idata["log_prior"]["mean"], np.float64).ravel()
    # With the prior to the power α the precision is α + n, and the mean Σy / (α + n).
    slope = -mean / precision
    terms = (theta - theta.mean()) * (prior - prior.mean())
    error = terms.std() / np.sqrt(terms.size)
    assert abs(terms.mean() - slope) < 5 * error
    assert slope < -10 * error  # a wrong sign is seen


@pytest.mark.skipif(not IS_TREE, reason="ArviZ 0.23 has no psense")
def test_psense_tells_a_strong_prior_from_a_weak_one():
    y = np.array([2.5, 3.5, 3.0], np.float32)
    found = {}
    for scale in (0.5, 50.0):
        idata = bnn.to_inference_data(
            exact_draws(scale, y)[0], y[:, None], y, posterior_predictive=False
        )
        found[scale] = {
            group: float(az.psense(idata, group=group)["mean"]) for group in ("prior", "likelihood")
        }
    # Prior and data pull apart: both matter. A flat prior does not matter at all.
    assert found[0.5]["prior"] > 0.1
    assert found[0.5]["likelihood"] > 0.1
    assert found[50.0]["prior"] < 0.01
    assert found[50.0]["likelihood"] > 0.05


@pytest.mark.skipif(not IS_TREE, reason="ArviZ 0.23 has no psense")
def test_psense_of_the_weights_of_a_network_is_that_of_their_exact_posterior():
    x, y = linear_gaussian.data()
    mean, precision = linear_gaussian.posterior(x, y)
    drawn = np.random.default_rng(2).multivariate_normal(mean, np.linalg.inv(precision), (4, 2000))
    values = {KERNEL: jnp.asarray(drawn[..., :3, None]), BIAS: jnp.asarray(drawn[..., 3:])}
    idata = bnn.to_inference_data(
        bnn.Draws(values, linear_gaussian.model), x, y, posterior_predictive=False
    )
    own = np.asarray(idata["log_prior"]["net.Dense_0.kernel"], np.float64)
    expected = stats.norm.logpdf(drawn[..., :3], 0, linear_gaussian.SCALE).sum(-1)
    np.testing.assert_allclose(own, expected, rtol=1e-5)
    assert float(az.psense(idata)["net.Dense_0.bias"].max()) < 0.05


FOUR_ROWS = np.array([1.0, 2.0, -1.0, 0.3], np.float32)
FOUR_TARGETS = np.array([1.0, 1.5, -1.0, 0.0], np.float32)


def model(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=0)
        targets = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(a + b * rows, 0.5), obs=targets)


def mirrored(key, values, bound):
    """A move that changes the energy."""
    return values | {"b": values["b"] + 0.5}


KERNELS = {
    "NUTS": (lambda: NUTS(model), True),
    "NUTS and moves": (lambda: Interleaved(NUTS(model), [mirrored]), True),
    "MALA": (lambda: bnn.MALA(model, step_size=0.1), True),
    "MALA and moves": (lambda: Interleaved(bnn.MALA(model, step_size=0.1), [mirrored]), True),
    "MCLMC": (lambda: bnn.MCLMC(model, step_size=0.3, friction=3.0), True),
    "SGLD": (lambda: bnn.SGLD(model, step_size=0.1), False),
    "SGLD with a decision on a minibatch": (
        lambda: bnn.SGLD(model, step_size=0.1, batch_size=2, accept="minibatch"),
        False,
    ),
    "SGLD with a decision on all rows": (
        lambda: bnn.SGLD(model, step_size=0.1, batch_size=2, accept="full"),
        True,
    ),
    "BAOAB": (lambda: bnn.BAOAB(model, step_size=0.2, friction=3.0), False),
    "BAOAB and moves": (
        lambda: Interleaved(bnn.BAOAB(model, step_size=0.2, friction=3.0), [mirrored]),
        False,
    ),
}


@pytest.fixture(scope="module", params=KERNELS)
def run(request, tmp_path_factory):
    kernel, exact = KERNELS[request.param]
    folder = tmp_path_factory.mktemp("draws") / "run"
    run = bnn.MCMC(kernel(), num_warmup=10, num_samples=20, progress_bar=False, draws=folder)
    start = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    run.run(
        jax.random.key(0),
        FOUR_ROWS,
        FOUR_TARGETS,
        init_params=start,
        extra_fields=("potential_energy",),
    )
    return run, exact, folder


def exact_energies(draws):
    mean = np.asarray(draws["a"])[..., None] + np.asarray(draws["b"])[..., None] * FOUR_ROWS
    prior = 0.5 * (np.asarray(draws["a"]) ** 2 + np.asarray(draws["b"]) ** 2)
    constant = 3 * np.log(2 * np.pi) + 4 * np.log(0.5)
    return prior + 0.5 * np.square((FOUR_TARGETS - mean) / 0.5).sum(-1) + constant


def test_the_log_joint_of_an_export_is_that_of_its_draws(run):
    mcmc, exact, _ = run
    recorded = mcmc.get_extra_fields(group_by_chain=True)["potential_energy"]
    known = exact_energies(mcmc.get_samples(group_by_chain=True))
    assert np.allclose(recorded, known, atol=1e-3) == exact
    stats = to_inference_data(mcmc)["sample_stats"]
    assert ("lp" in stats, "potential_energy" in stats) == (exact, not exact)
    if exact:
        np.testing.assert_allclose(stats["lp"].values, -known, atol=1e-3)
    else:
        np.testing.assert_array_equal(stats["potential_energy"].values, recorded)
    if "energy" in stats:
        # It has the kinetic energy on top, also after a move.
        assert np.all(stats["energy"].values + stats["lp"].values >= 0)


def test_draws_know_it_wherever_they_were(run, tmp_path):
    mcmc, exact, folder = run
    draws = draws_of(mcmc)
    back = from_inference_data(to_inference_data(mcmc), model)
    again = bnn.load(bnn.save(mcmc, tmp_path / "draws"), model)
    for found in (draws, back, again, bnn.load(folder, model)):
        assert found.has_exact_energy == exact
        energy = np.asarray(found.stats["potential_energy"])
        np.testing.assert_array_equal(energy, np.asarray(draws.stats["potential_energy"]))


def test_a_report_compares_chains_by_exact_energies_alone(run):
    mcmc, exact, _ = run
    draws = draws_of(mcmc)
    # The number of steps, which any kernel may record, says nothing of the energy.
    stats = draws.stats | {"num_steps": np.ones((1, 20), int)}
    report = bnn.diagnose(bnn.Draws(draws, model, stats, draws.info), FOUR_ROWS)
    assert bool(report.log_joint) == exact


def test_a_figure_says_which_energies_it_shows(run):
    mcmc, exact, _ = run
    label = bnn.plots.plot_trace(mcmc).get_ylabel()
    assert ("last gradient" in label) != exact


@pytest.mark.parametrize(
    ("stats", "exact"),
    [({}, True), ({"num_steps": np.ones((1, 2))}, True), ({"temperature": np.ones((1, 2))}, False)],
)
def test_draws_that_do_not_say_it(stats, exact):
    """Only kernels of this package have a temperature, some of them an energy that is of no draw."""
    energy = {"potential_energy": np.zeros((1, 2))}
    draws = bnn.Draws({"a": np.zeros((1, 2)), "b": np.zeros((1, 2))}, None, stats | energy)
    found = to_inference_data(draws, log_likelihood=False)["sample_stats"]
    assert ("lp" in found) == exact
