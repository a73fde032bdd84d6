"""Handlers of NumPyro around a hierarchical prior: one posterior in all coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
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
