"""Priors: the spread of draws by the rule, patterns, and coordinates of the hierarchical one."""

import math

import jax
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro import handlers
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.priors.paths import fan_in

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


# -- fan-in ----------------------------------------------------------------------------------

LINEN_FAN_IN = {
    "dense": (nets.MLP, "rows", {"Dense_1.kernel": 3, "Dense_0.kernel": 4, "Dense_0.bias": 1}),
    "convolution": (
        nets.Conv,
        "image",
        {"Conv_0.kernel": 3 * 2 * 1, "Conv_0.bias": 1, "GroupNorm_0.scale": 1, "Dense_0.kernel": 4},
    ),
    "attention": (
        nets.Attention,
        "tokens",
        {
            "Embed_0.embedding": 1,
            "MultiHeadDotProductAttention_0.query.kernel": 4,
            "MultiHeadDotProductAttention_0.key.kernel": 4,
            "MultiHeadDotProductAttention_0.value.kernel": 4,
            "MultiHeadDotProductAttention_0.out.kernel": 6,
            "MultiHeadDotProductAttention_0.query.bias": 1,
            "MultiHeadDotProductAttention_0.out.bias": 1,
        },
    ),
    "LSTM": (nets.Recurrent, "sequence", {"LSTMCell_0.ii.kernel": 2, "LSTMCell_0.hi.kernel": 3}),
}
NNX_FAN_IN = {
    "dense": (nets.NNXMLP, "rows", {"layers.0.kernel": 3, "layers.1.kernel": 4}),
    "convolution": (nets.NNXConv, "image", {"conv.kernel": 6, "conv.bias": 1, "layer.scale": 1}),
    "attention": (
        nets.NNXAttention,
        "tokens",
        {
            "embed.embedding": 1,
            "attention.query.kernel": 4,
            "attention.value.kernel": 4,
            "attention.out.kernel": 6,
            "attention.key.bias": 1,
        },
    ),
}


@pytest.mark.parametrize("name", [*LINEN_FAN_IN, *(f"nnx {name}" for name in NNX_FAN_IN)])
def test_fan_in_of_real_layers(name):
    if name.startswith("nnx "):
        make, kind, expected = NNX_FAN_IN[name.removeprefix("nnx ")]
        module = make(nnx.Rngs(0))
    else:
        make, kind, expected = LINEN_FAN_IN[name]
        module = make()
    example = [nets.inputs(kind)] if hasattr(module, "init") else []
    shapes = nets.shapes_of(module, *example)
    assert {path: fan_in(path, shapes[path]) for path in expected} == expected
    rule = priors.FanIn(2.0)
    for path, count in expected.items():
        assert rule(path, shapes[path]).scale == pytest.approx(math.sqrt(2 / count))


def test_fan_in_of_convolutions_in_one_dimension_and_in_groups():
    assert fan_in("Conv_0.kernel", (7, 4, 8)) == 28  # three axes, but not an attention's
    assert fan_in("conv.kernel", (3, 3, 2, 8)) == 18  # 8 input channels in 4 groups of 2


# -- mappings --------------------------------------------------------------------------------


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


# -- hierarchical ----------------------------------------------------------------------------


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
