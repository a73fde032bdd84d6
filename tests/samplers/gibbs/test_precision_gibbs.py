"""Exact draws of precisions as a block of Gibbs, NumPyro's Gibbs over a network, and all coordinates."""

import jax
import jax.numpy as jnp
import known_precision
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from exact_draws import exact_draw
from known_precision import CONCENTRATION, DATA, RATE, exact_moments
from numpyro import handlers
from numpyro.infer import HMC
from numpyro.infer.gibbs import GIBBS_SITES_KWARG, CustomGibbs, Gibbs
from quiet import quiet
from scipy import stats
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors
from numpyro_bnn.samplers.gibbs.precision_gibbs import precision_sites

width = priors.Hierarchical.width
# Flax numbers layers as they are made: the last is made first.
KERNEL, OUT = "net/Dense_0.kernel", "net/Dense_1.kernel"


NOISE = likelihoods.Precision.width(0.5, common=3.0, output=4.0, case=5.0)
PRIOR = priors.ByPath(
    {
        "Dense_0.kernel": width(0.6, group=3.0, unit=4.0, weight=5.0, scale_by_fan_in=True),
        "Dense_1.kernel": width(0.6, group=3.0, unit=4.0),
        "*.bias": width(0.4, group=3.0, groups=lambda path: "biases"),
    }
)

deep = network_model(nets.MLP(), PRIOR, noise=NOISE)


@pytest.fixture(scope="module")
def after_a_step():
    """2000 draws of precisions, weights and data, and the residuals, after one step of the block."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    centered = bnn.parameterize(deep, "centered")

    @jax.jit
    @jax.vmap
    def step(key_draw, key):
        values, y, sites = exact_draw(centered, key_draw, x)
        names = [n for n in values if n.endswith("precision")]
        own = {n: values.pop(n) for n in names}
        block = bnn.PrecisionGibbs(deep)
        kwargs = {GIBBS_SITES_KWARG: values}
        wrapped = Gibbs([(block, names), (HMC(block.model), None)]).blocks[0][0]
        state = wrapped.init(key, 0, own, (x, y), kwargs)
        after = wrapped.sample(state, (x, y), kwargs).z
        return values | after, y - sites["y"]["fn"].base_dist.loc, own

    values, residuals, before = step(*jax.random.split(jax.random.key(8), (2, 2000)))
    values = {n: np.asarray(v, np.float64) for n, v in values.items()}
    assert len(before) == 7
    assert all(
        np.abs(np.corrcoef(before[n].ravel(), values[n].ravel())[0, 1]) < 0.99 for n in before
    )
    return values, np.asarray(residuals, np.float64)


def follows(draws, distribution):
    assert stats.kstest(np.ravel(draws), distribution.cdf).pvalue > 1e-4


def test_top_levels_follow_their_priors(after_a_step):
    values, _ = after_a_step
    for site, w, squared in (
        (f"{KERNEL}.precision", 0.6, 4 * 5 / 3),
        (f"{OUT}.precision", 0.6, 1),
        ("net/biases.precision", 0.4, 1),
        ("y.precision", 0.5, 1),
    ):
        follows(values[site] * w**2 / squared, stats.gamma(1.5, scale=1 / 1.5))


def test_lower_levels_follow_the_upper_ones(after_a_step):
    values, _ = after_a_step
    for site, above in (
        (f"{KERNEL}.unit_precision", f"{KERNEL}.precision"),
        (f"{OUT}.unit_precision", f"{OUT}.precision"),
        ("y.output_precision", "y.precision"),
    ):
        ratio = values[site] / values[above][:, None]
        for column in ratio.T:
            follows(column, stats.gamma(2.0, scale=0.5))


def test_weights_and_residuals_follow_their_precisions(after_a_step):
    values, residuals = after_a_step
    for standard, distribution in (
        (values[KERNEL] * np.sqrt(values[f"{KERNEL}.unit_precision"])[..., None], stats.t(5)),
        (values[OUT] * np.sqrt(values[f"{OUT}.unit_precision"])[..., None], stats.norm()),
        (
            values["net/Dense_0.bias"] * np.sqrt(values["net/biases.precision"])[:, None],
            stats.norm(),
        ),
        (residuals * np.sqrt(values["y.output_precision"])[:, None], stats.t(5)),
    ):
        # One entry of each draw: those of one draw share the precision that was drawn given them.
        first = standard.reshape(len(standard), -1)
        follows(first[:, 0], distribution)
        follows(first[:, -1], distribution)
        # Small for wrong shapes too: the sum of squares decides on the precision.
        reference = distribution.rvs(size=first.shape, random_state=1)
        spread = [np.log((a**2).sum(1)) for a in (first, reference)]
        assert stats.ks_2samp(*spread).pvalue > 1e-4


def linear(x, y):
    prior = priors.Hierarchical(CONCENTRATION, RATE, groups="layer")
    net = bnn.random_module("net", nets.Linear(), prior, x[:1])
    likelihoods.gaussian(net, y, x=x, noise=known_precision.NOISE)


def hmc(model):
    return HMC(model, step_size=0.15, trajectory_length=0.9, adapt_step_size=False)


KERNELS = {
    "noncentered": hmc,
    "centered": hmc,
    "collapsed": hmc,
    "gibbs": lambda model: bnn.neal(
        model, HMC, step_size=0.15, trajectory_length=0.9, adapt_step_size=False
    ),
    # Given the precision the weights are Gaussian, whose distribution BAOAB has at any step.
    "gibbs, BAOAB": lambda model: bnn.neal(model, bnn.BAOAB, step_size=0.15),
    "gibbs, BAOAB on minibatches": lambda model: bnn.neal(
        model, bnn.BAOAB, step_size=0.02, batch_size=5, friction=5.0
    ),
    "gibbs, MAMS": lambda model: bnn.neal(model, bnn.MAMS, step_size=0.1),
    "gibbs, MCLMC": lambda model: bnn.neal(model, bnn.MCLMC, step_size=0.1, friction=1.0),
}


def has_the_exact_moments(mcmc, site):
    """Of a precision and its logarithm, within 4 errors of means over batches."""
    tau = np.asarray(mcmc.get_samples(group_by_chain=True)[site], np.float64)
    for draws, expected in zip((tau, np.log(tau)), exact_moments()):
        batches = draws.reshape(40, -1).mean(1)
        assert abs(draws.mean() - expected) < 4 * batches.std(ddof=1) / np.sqrt(40)


# Draws of the precisions as a block of Gibbs are looked at above.
FAST = ("collapsed",)


@pytest.fixture(scope="module")
def starts():
    """In the model's own coordinates: whatever those of the sampler, they serve."""
    z = nets.weights(linear, *DATA)
    return {site: jnp.stack([value, -value]) for site, value in z.items()}


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS]
)
def test_all_coordinates_and_kernels_give_the_same_precision(starts, name):
    model = linear if name.startswith("gibbs") else bnn.parameterize(linear, name)
    settings = {"num_warmup": 200, "num_samples": 2000, "num_chains": 2, "progress_bar": False}
    mcmc = bnn.MCMC(KERNELS[name](model), **settings)
    mcmc.run(jax.random.key(0), *DATA, init_params=starts)
    has_the_exact_moments(mcmc, "net/Dense_0.precision")


def run(kernel, *args):
    bnn.MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False).run(jax.random.key(0), *args)


def test_it_is_a_block_of_the_model_in_centred_coordinates_whatever_its_own():
    block = bnn.PrecisionGibbs(linear)
    centered = bnn.parameterize(linear, "centered")
    again = bnn.parameterize(bnn.parameterize(linear, "noncentered"), "centered")
    assert block.model == centered == again
    assert hash(block.model) == hash(again)
    assert bnn.PrecisionGibbs(centered).model is centered
    assert centered != bnn.parameterize(linear, "collapsed")
    run(Gibbs([(hmc(centered), None), (block, ["net/Dense_0.precision"])]), *DATA)
    with pytest.raises(ValueError, match="share the same model"):
        Gibbs([(block, precision_sites), (hmc(linear), None)])


def test_other_sites_are_refused():
    centered = bnn.parameterize(linear, "centered")
    sites = ["net/Dense_0.precision", "net/Dense_0.bias"]
    kernel = Gibbs([(bnn.PrecisionGibbs(linear), sites), (hmc(centered), None)])
    with pytest.raises(ValueError, match=r"\['net/Dense_0.bias'\] are none"):
        run(kernel, *DATA)
    with pytest.raises(ValueError, match="no sampler by itself"):
        run(bnn.PrecisionGibbs(linear), *DATA)


def test_a_model_without_hierarchical_precisions_is_refused():
    def plain(x, y):
        tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", dist.Normal(0, 1 / jnp.sqrt(tau)).expand([15]).to_event(), obs=y)

    with pytest.raises(ValueError, match="no hierarchical precision to draw"):
        run(bnn.neal(plain, step_size=0.1), *DATA)


def test_noise_of_a_likelihood_that_is_scaled_is_refused():
    def scaled(x, y):
        net = bnn.random_module("net", nets.Linear(), priors.Hierarchical(), x[:1])
        half = jnp.full(len(x), 0.5)
        likelihoods.gaussian(net, y, x=x, noise=likelihoods.Precision(), weights=half)

    kernel = bnn.neal(scaled, step_size=0.1)

    def begun(key):
        return kernel.init(key, 0, None, DATA, {})

    # Traced alone: starts of that model take seconds to compile.
    state = jax.eval_shape(begun, jax.random.key(0))
    with pytest.raises(ValueError, match="'y' is scaled, masked or subsampled"):
        jax.eval_shape(lambda state: kernel.sample(state, DATA, {}), state)


@pytest.mark.parametrize("handler", [handlers.scale(scale=3.0), handlers.mask(mask=False)])
@pytest.mark.parametrize("around", ["prior", "noise", "model"])
def test_a_prior_that_is_scaled_or_masked_is_refused(handler, around):
    def inside(x, y):
        with handler:
            net = bnn.random_module("net", nets.Linear(), priors.Hierarchical(), x[:1])
        likelihoods.gaussian(net, y, x=x, noise=known_precision.NOISE)

    def of_noise(x, y):
        net = bnn.random_module("net", nets.Linear(), priors.Hierarchical(), x[:1])
        with handler:
            likelihoods.gaussian(net, y, x=x, noise=likelihoods.Precision())

    def outside(x, y):
        with handler:
            linear(x, y)

    kernel = bnn.neal({"prior": inside, "noise": of_noise, "model": outside}[around], step_size=0.1)
    fault = "scaled" if isinstance(handler, handlers.scale) else "masked"
    site = "y.precision" if around == "noise" else "net/Dense_0.kernel"
    with pytest.raises(ValueError, match=rf"PrecisionGibbs: .*'{site}' \({fault}\)"):
        jax.eval_shape(lambda key: kernel.init(key, 0, None, DATA, {}), jax.random.key(0))


def test_a_level_of_outputs_needs_outputs():
    y = jnp.asarray(DATA[1])
    noise = likelihoods.Precision.width(0.5, common=1.0, output=1.0)
    with pytest.raises(ValueError, match=r"level of outputs, output=1\.0, but f has one output"):
        likelihoods.gaussian(y, y, noise=noise)
    with pytest.raises(ValueError, match=r"level of cases, case=3\.0, beside df=4\.0"):
        likelihoods.student_t(y, y, noise=likelihoods.Precision(1.0, 1.0, case=3.0))
    with pytest.raises(
        ValueError, match="Precision: rate must be positive and finite, got rate=-1"
    ):
        likelihoods.gaussian(y, y, noise=likelihoods.Precision(1.0, -1.0))


def test_how_many_outputs_there_are_is_known_without_targets():
    def sites(key):
        with handlers.seed(rng_seed=key), handlers.trace() as found:
            deep(jnp.ones((4, 3)))
        return {name: found[name]["value"] for name in ("y.output_precision", "y")}

    shapes = jax.eval_shape(sites, jax.random.key(0))
    assert {name: value.shape for name, value in shapes.items()} == {
        "y.output_precision": (2,),
        "y": (4, 2),
    }


def model(x, y):
    tau = numpyro.sample("tau", dist.Gamma(CONCENTRATION, RATE))
    nets.linear_regression(x, y, scale=1 / jnp.sqrt(tau), noise=known_precision.NOISE)


def conditional(rng_key, gibbs_sites, hmc_sites):
    square = sum(jnp.sum(w**2) for name, w in hmc_sites.items() if name.startswith("net/"))
    size = sum(w.size for name, w in hmc_sites.items() if name.startswith("net/"))
    return {"tau": dist.Gamma(CONCENTRATION + size / 2, RATE + square / 2).sample(rng_key)}


def unchanged(rng_key, gibbs_sites, hmc_sites):
    return gibbs_sites


def composition(update):
    hmc = HMC(model, step_size=0.15, trajectory_length=0.9, adapt_step_size=False)
    return Gibbs([(CustomGibbs(update), ["tau"]), (hmc, None)])


def test_the_precision_of_a_network_follows_its_marginal_posterior():
    mcmc = quiet(composition(conditional), 200, 2000, 2)
    z = nets.weights(model, *DATA)
    starts = {site: jnp.stack([value, -value]) for site, value in z.items()}
    mcmc.run(jax.random.key(0), *DATA, init_params=starts)
    has_the_exact_moments(mcmc, "tau")


@pytest.mark.parametrize("num_chains", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_unconstrained_starts_are_constrained_for_blocks_that_want_that(num_chains):
    start = nets.weights(model, *DATA)
    starts = {site: jnp.stack([value] * num_chains) for site, value in start.items()}
    mcmc = quiet(composition(unchanged), 0, 2, num_chains)
    # A block that leaves its sites as they are is named.
    with pytest.warns(UserWarning, match="all draws of the block of tau are the same"):
        mcmc.run(jax.random.key(0), *DATA, init_params=starts)
    tau = mcmc.get_samples(group_by_chain=True)["tau"]
    np.testing.assert_allclose(tau, np.exp(starts["tau"])[:, None] * np.ones(2), rtol=1e-5)
