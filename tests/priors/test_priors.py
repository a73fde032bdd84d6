"""Priors: the spread of draws by the rule, patterns, and coordinates of the hierarchical one."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.handlers import condition, do, mask, reparam, scale, seed, trace
from numpyro.infer import Predictive
from numpyro.infer.reparam import LocScaleReparam
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.moves import Bound, PrecisionRedraw
from numpyro_bnn.potential.structure import structure_of
from numpyro_bnn.samplers.gibbs.precision_gibbs import precision_sites

NUM_DRAWS = 1000
SHAPES = {"Dense_0.kernel": (5, 3), "Dense_0.bias": (3,)}


def draw(prior):
    """Draws of every array and site of a prior, (draw, *shape)."""

    @jax.jit
    @jax.vmap
    def one(key):
        with handlers.seed(rng_seed=key), handlers.trace() as sites:
            values = prior.sample("net", SHAPES)
        return values, {name: site["value"] for name, site in sites.items()}

    values, sites = one(jax.random.split(jax.random.key(5), NUM_DRAWS))
    return {path: np.asarray(value, np.float64) for path, value in values.items()}, sites


def assert_variance(values, expected):
    """Empirical variance about zero within 4 standard errors."""
    squares = values.ravel() ** 2
    error = squares.std() / math.sqrt(squares.size)
    assert abs(squares.mean() - expected) < 4 * error
    assert abs(values.mean()) < 4 * values.std() / math.sqrt(values.size)


def assert_quantiles(values, distribution):
    """Empirical quantiles of independent draws within 4 standard errors (heavy tails)."""
    for p in (0.05, 0.3, 0.7, 0.95):
        below = np.mean(values.ravel() < distribution.ppf(p))
        assert abs(below - p) < 4 * math.sqrt(p * (1 - p) / values.size)


FINITE = {
    "Normal": (priors.Normal(0.7), {"Dense_0.kernel": 0.49, "Dense_0.bias": 0.49}),
    "FanIn": (priors.FanIn(2.0), {"Dense_0.kernel": 2 / 5, "Dense_0.bias": 2.0}),
    "StudentT": (priors.StudentT(8.0, 0.5), dict.fromkeys(SHAPES, 0.25 * 8 / 6)),
    "Laplace": (priors.Laplace(0.3), dict.fromkeys(SHAPES, 2 * 0.09)),
    # E[1/precision] = rate / (concentration - 1)
    "Hierarchical": (priors.Hierarchical(6.0, 2.0), dict.fromkeys(SHAPES, 2 / 5)),
    "centered": (priors.Hierarchical(6.0, 2.0, "centered"), dict.fromkeys(SHAPES, 2 / 5)),
    "ByPath": (
        priors.ByPath({"*.bias": dist.Normal(0, 0.1), "*": lambda path, shape: dist.Normal(0, 2)}),
        {"Dense_0.kernel": 4.0, "Dense_0.bias": 0.01},
    ),
}


@pytest.mark.parametrize("name", FINITE)
def test_the_variance_of_draws_is_the_rules(name):
    prior, expected = FINITE[name]
    values, sites = draw(prior)
    for path, variance in expected.items():
        array = values[path]
        if f"net/{path}.precision" in sites:  # shared, so that one entry of each draw counts
            array = array.reshape(NUM_DRAWS, -1)[:, 0]
        assert_variance(array, variance)


def names_of(prior):
    """Names of the sites of a prior."""
    with handlers.trace() as sites:
        jax.eval_shape(
            lambda key: handlers.seed(prior.sample, key)("net", SHAPES), jax.random.key(0)
        )
    return sites.keys()


def test_student_t_draws_have_its_quantiles_where_there_is_no_variance():
    values, _ = draw(priors.StudentT(1.5, 0.4))
    assert_quantiles(values["Dense_0.kernel"], stats.t(1.5, scale=0.4))


def test_pretrained_draws_scatter_around_the_trained_values():
    trained = {"Dense_0": {"kernel": np.arange(15.0).reshape(5, 3), "bias": np.ones(3)}}
    values, _ = draw(priors.pretrained(trained, 0.2))
    assert_variance(values["Dense_0.kernel"] - trained["Dense_0"]["kernel"], 0.04)
    assert_variance(values["Dense_0.bias"] - 1.0, 0.04)


def test_horseshoe_draws_are_normal_given_their_scales_which_follow_their_own_distributions():
    values, sites = draw(priors.Horseshoe(global_scale=0.3, slab_scale=1.5, slab_df=5.0))
    site = {k.removeprefix("net/Dense_0.kernel"): np.asarray(v, float) for k, v in sites.items()}
    assert_quantiles(site[".global_scale"], stats.halfcauchy(scale=0.3))
    assert_quantiles(site[".local_scale"], stats.halfcauchy())
    assert_quantiles(site[".slab_variance"], stats.invgamma(2.5, scale=2.5 * 1.5**2))
    tau, slab = (site[k][:, None, None] for k in (".global_scale", ".slab_variance"))
    local = site[".local_scale"]
    variance = 1 / (1 / slab + 1 / (tau * local) ** 2)  # the slab caps what the tails give
    standard = values["Dense_0.kernel"] / np.sqrt(variance)
    assert_variance(standard, 1.0)
    assert_quantiles(standard, stats.norm)


def test_the_first_pattern_that_matches_decides():
    rules = {"Dense_0.*": priors.Normal(1.0), "*.bias": priors.Normal(2.0), "*": priors.Normal(3.0)}
    prior = priors.ByPath(rules)
    assert prior("Dense_0.bias", (3,)).scale == 1.0
    assert prior("Dense_1.bias", (3,)).scale == 2.0
    assert prior("Dense_1.kernel", (3, 2)).scale == 3.0


def test_a_mapping_ties_arrays_through_the_priors_inside_it():
    prior = priors.ByPath({"*.bias": None, "*": priors.Hierarchical()})
    assert names_of(prior) == {f"net/Dense_0.kernel{end}" for end in ("", ".base", ".precision")}


def test_patterns_are_case_sensitive_and_match_whole_paths():
    prior = priors.ByPath({"dense*": priors.Normal()})
    with pytest.raises(ValueError, match=r"no pattern matches the parameter 'Dense_0\.kernel'"):
        prior.sample("net", SHAPES)
    prior = priors.ByPath({"kernel": priors.Normal(), "*": priors.Normal()})
    with pytest.raises(ValueError, match="'kernel' matches no parameter"):
        prior.sample("net", SHAPES)


def hierarchical(y):
    weights = priors.Hierarchical(1.5, 0.7).sample("net", {"a": (2, 3), "b": (4,)})
    mean = weights["a"].sum() + weights["b"].sum() ** 2
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def _latent(potential):
    return {name.removeprefix("net/") for name in potential.structure.latent}


def test_the_outermost_handler_decides_on_the_coordinates():
    inner = bnn.parameterize(hierarchical, "noncentered")
    assert "a" in _latent(bnn.potential_of(bnn.parameterize(inner, "centered"), 0.4))
    own = priors.Hierarchical(parameterization="centered")
    with bnn.parameterize(parameterization="noncentered"):
        assert "net/Dense_0.kernel.base" in names_of(own)


def test_the_former_name_of_a_variance_is_taken_for_one_more_release():
    """Everywhere else `scale` is a standard deviation."""
    with pytest.warns(
        DeprecationWarning, match=r"FanIn: scale=2\.0 is a variance.*`variance=2\.0`"
    ):
        former = priors.FanIn(scale=2.0)
    assert repr(former) == "FanIn(variance=2.0, fan_in=fan_in)"
    distribution = former("Dense_0.kernel", (8, 3))
    assert float(distribution.variance) == pytest.approx(2 / 8)
    with pytest.warns(DeprecationWarning, match=r"FanIn\.scale is a variance.*write `variance`"):
        assert former.scale == 2.0


SITE, PRECISION, UNIT = "net/d.kernel", "net/d.kernel.precision", "net/d.kernel.unit_precision"
COORDINATES = ("noncentered", "centered", "collapsed")
WIDTH = priors.Hierarchical.width
W = np.arange(6.0).reshape(2, 3) / 6


def model(prior):
    def weights():
        w = prior.sample("net", {"d.kernel": (2, 3)})["d.kernel"]
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=0.7)

    return weights


ALTERED = [scale(scale=3.0), mask(mask=jnp.array(False))]


def altered(handler, prior):
    def handled():
        with handler:
            model(prior)()

    return handled


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("handler", ALTERED)
@pytest.mark.parametrize("unit", [None, 3.0])
def test_a_density_that_a_handler_changes_is_that_of_the_weights(handler, unit, coordinates):
    """In other coordinates it would be that of numbers that weights are computed from."""
    handled = altered(handler, WIDTH(1.0, group=2.0, unit=unit))
    values = {SITE: W, PRECISION: 0.3} | ({UNIT: np.array([0.1, -0.4])} if unit else {})
    found = energy(handled, coordinates, values)
    np.testing.assert_allclose(found, energy(handled, "centered", values), rtol=1e-6)


@pytest.mark.parametrize("handler", ALTERED)
def test_a_changed_density_of_a_horseshoe_is_that_of_the_weights(handler):
    sites = bnn.potential_of(altered(handler, priors.Horseshoe())).structure.latent
    assert SITE in sites
    assert f"{SITE}.base" not in sites


def test_optimisers_do_not_integrate_precisions_out_of_a_changed_density():
    """The energy of a density that counts three times, and so does the Jacobian of log τ in NumPyro."""
    marginal = Marginal(altered(scale(scale=3.0), priors.Hierarchical(2.0, 1.0)))
    assert set(marginal.sites) == {SITE, PRECISION}
    log_tau = 0.3
    exact = stats.gamma(2.0).logpdf(np.exp(log_tau)) + stats.norm(W.sum(), 1.0).logpdf(0.7)
    exact = 3 * (exact + stats.norm(0.0, np.exp(-log_tau / 2)).logpdf(W).sum() + log_tau)
    found = marginal({SITE: jnp.asarray(W), PRECISION: jnp.array(log_tau)})
    np.testing.assert_allclose(-found, exact, rtol=1e-6)


def test_precisions_of_collapsed_weights_are_drawn_back_in_numpyros_predictive():
    """It masks every model; a precision from its prior, Gamma(2, 1), would be about 2."""
    collapsed = bnn.parameterize(model(priors.Hierarchical(2.0, 1.0)), "collapsed")
    given = {SITE: jnp.full((4, 2, 3), 100.0)}
    drawn = Predictive(collapsed, given, return_sites=[PRECISION])(jax.random.key(0))
    assert (drawn[PRECISION] < 0.01).all()


def energy(handled, coordinates, values):
    potential = bnn.potential_of(bnn.parameterize(handled, coordinates))
    assert set(potential.structure.latent) == set(values)
    return float(potential({name: jnp.asarray(value) for name, value in values.items()}))


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_given_weights_are_data_in_all_coordinates(coordinates, double_precision):
    """The energy of log τ: those of its Gamma prior, of weights given τ, and of the target."""
    given = condition(model(priors.Hierarchical(2.0, 1.0)), {SITE: W})
    for log_tau in (-0.4, 1.3):
        tau = np.exp(log_tau)
        exact = stats.gamma(2.0).logpdf(tau) + log_tau + stats.norm(W.sum(), 1.0).logpdf(0.7)
        exact += stats.norm(0.0, tau**-0.5).logpdf(W).sum()
        np.testing.assert_allclose(
            -energy(given, coordinates, {PRECISION: log_tau}), exact, rtol=1e-12
        )


def test_a_given_precision_governs_collapsed_weights(double_precision):
    given = condition(model(priors.Hierarchical(2.0, 1.0)), {PRECISION: 4.0})
    exact = stats.gamma(2.0).logpdf(4.0) + stats.norm(W.sum(), 1.0).logpdf(0.7)
    exact += stats.norm(0.0, 0.5).logpdf(W).sum()
    np.testing.assert_allclose(-energy(given, "collapsed", {SITE: W}), exact, rtol=1e-12)


def test_given_precisions_of_units_govern_non_centred_weights(double_precision):
    """Non-centred weights are w √τ: their energy is less by the logarithms of the scales."""
    units = np.array([2.0, 0.5])
    given = condition(model(WIDTH(1.0, group=2.0, unit=3.0)), {UNIT: units})
    base = W * np.sqrt(units)[:, None]
    found = energy(given, "noncentered", {f"{SITE}.base": base, PRECISION: 0.3})
    centered = energy(given, "centered", {SITE: W, PRECISION: 0.3})
    np.testing.assert_allclose(found, centered + 1.5 * np.log(units).sum(), rtol=1e-12)


def test_given_weights_of_a_horseshoe_are_data(double_precision):
    prior = priors.Horseshoe()

    def weights():
        prior.sample("net", {"d.kernel": (2, 3)})

    shapes = {
        f"{SITE}.global_scale": (),
        f"{SITE}.local_scale": (2, 3),
        f"{SITE}.slab_variance": (),
    }
    ones = {name: np.zeros(shape) for name, shape in shapes.items()}
    found = [energy(condition(weights, {SITE: w}), "centered", ones) for w in (W, 2 * W)]
    # With all scales 1 the variance of a weight is c² λ² τ² / (c² + λ² τ²) = 1/2.
    np.testing.assert_allclose(found[1] - found[0], 3 * (W**2).sum(), rtol=1e-12)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_an_intervention_on_weights_reaches_the_model(coordinates):
    def total():
        w = priors.Hierarchical(2.0, 1.0).sample("net", {"d.kernel": (2, 3)})["d.kernel"]
        numpyro.deterministic("total", w.sum())

    handled = do(bnn.parameterize(total, coordinates), {SITE: W})
    sites = trace(seed(handled, jax.random.key(0))).get_trace()
    np.testing.assert_allclose(sites["total"]["value"], W.sum(), rtol=1e-6)


def two_arrays(x, y=None):
    net = bnn.random_module("net", bnn.MLP((), 1), priors.Hierarchical(2.0, 1.0), x[:1])
    bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=1.0)


X, Y = np.ones((3, 2)), np.arange(3.0)
KERNEL, BIAS = "net/Dense_0.kernel", "net/Dense_0.bias"


def centered_trace(given):
    centered = bnn.parameterize(condition(two_arrays, given), "centered")
    return trace(seed(centered, jax.random.key(0))).get_trace(X, Y)


@pytest.mark.parametrize(
    "given", [{KERNEL: np.ones((2, 1))}, {f"{KERNEL}.precision": 2.0}], ids=["weights", "precision"]
)
def test_precisions_beside_given_values_are_left_to_the_gradient_kernel(given):
    assert precision_sites(centered_trace(given)) == [f"{BIAS}.precision"]
    bound = Bound(condition(two_arrays, given), (X, Y), {})
    values = {name: jnp.ones(jnp.shape(site["value"])) for name, site in bound.sites({}).items()}
    values = {name: values[name] for name in bound.latent}
    moved = jax.jit(lambda: PrecisionRedraw()(jax.random.key(1), values, bound))()
    assert [n for n in moved if (moved[n] != values[n]).any()] == [f"{BIAS}.precision"]
    with pytest.raises(
        ValueError, match=r"whose values are given .* are left to the gradient kernel"
    ):
        precision_sites(centered_trace({KERNEL: np.ones((2, 1)), BIAS: np.ones(1)}))


def test_given_weights_predict():
    given = condition(two_arrays, {KERNEL: np.ones((2, 1))})
    sites = {f"{KERNEL}.precision": np.ones((1, 2)), BIAS: np.full((1, 2, 1), 0.5)}
    average = bnn.average(bnn.predict(None, bnn.Draws(sites, given), X))
    np.testing.assert_allclose(average.mean, 2.5)


def test_precisions_of_weights_in_other_coordinates_are_sites_of_their_own():
    own = model(WIDTH(1.0, group=2.0, parameterization="centered"))
    moved = reparam(own, config={SITE: LocScaleReparam(0.0)})
    assert list(structure_of(own, (), {}).levels) == [PRECISION]
    assert not structure_of(moved, (), {}).levels
    start = bnn.optimize(moved, jax.random.key(0), num_chains=1, progress_bar=False)
    assert set(start) == {PRECISION, f"{SITE}_decentered"}
    run = bnn.MCMC(bnn.neal(moved), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match=r"computed \(`reparam`\)"):
        run.run(jax.random.key(0))
