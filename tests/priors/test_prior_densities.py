"""Log densities of priors over whole networks, against SciPy and by hand, and what priors refuse."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from numpyro_bnn import priors
from numpyro_bnn.priors.base import as_prior, fit_distribution, is_parameter, parameter
from numpyro_bnn.priors.independent import matches, same_order
from numpyro_bnn.priors.paths import (
    CallOrder,
    NetworkShapes,
    fan_in,
    flatten_params,
    is_auxiliary,
    parameter_tree,
    source_axis,
)

SHAPES = {
    "Dense_0.kernel": (4, 3),
    "Dense_0.bias": (3,),
    "Dense_1.kernel": (3, 2),
    "Dense_1.bias": (2,),
}
WEIGHTS = {
    path: np.random.default_rng(n).normal(size=shape)
    for n, (path, shape) in enumerate(SHAPES.items())
}
NORMAL, T, LAPLACE = priors.Normal, priors.StudentT, priors.Laplace
TRAINED = {path: values + 0.1 for path, values in WEIGHTS.items()}


def joint(prior, values, shapes=SHAPES):
    """Log density of the sites of a prior at given values."""
    named = {
        f"net/{name}": np.asarray(value, jnp.result_type(float)) for name, value in values.items()
    }
    model = partial(prior.sample, "net", shapes)
    return float(jax.jit(lambda named: log_density(model, (), {}, named)[0])(named))


def total(distribution_of):
    """Sum over all weights of the log density of a distribution of SciPy that depends on the path."""
    return sum(distribution_of(path).logpdf(values).sum() for path, values in WEIGHTS.items())


def normal_by_fan_in(path, scale=1.0):
    """Independent of the package: rows of a kernel are what one unit sums, a bias enters once."""
    terms = SHAPES[path][0] if path.endswith("kernel") else 1
    return stats.norm(0, np.sqrt(scale / terms))


def chosen(**by_ending):
    """A distribution by the last component of a path, or by the layer before it."""

    def distribution_of(path):
        layer, leaf = path.split(".")
        return by_ending.get(layer, by_ending.get(leaf))

    return distribution_of


CASES = {
    "normal": (NORMAL(0.7), lambda path: stats.norm(0, 0.7)),
    "fan-in for tanh": (priors.FanIn(), normal_by_fan_in),
    "fan-in for relu": (priors.FanIn(2.0), partial(normal_by_fan_in, scale=2.0)),
    "own fan-in": (
        priors.FanIn(3.0, fan_in=lambda path, shape: len(path)),
        lambda path: stats.norm(0, np.sqrt(3 / len(path))),
    ),
    "student": (T(4.0, 0.3), lambda path: stats.t(4, scale=0.3)),
    "cauchy": (T(1.0, 2.0), lambda path: stats.cauchy(scale=2.0)),
    "laplace": (LAPLACE(1.7), lambda path: stats.laplace(scale=1.7)),
    "biases apart": (
        priors.ByPath({"*.bias": NORMAL(3.0), "*": LAPLACE(0.5)}),
        chosen(bias=stats.norm(0, 3), kernel=stats.laplace(scale=0.5)),
    ),
    "a layer apart": (
        priors.ByPath({"Dense_1.*": T(5.0), "*": NORMAL(2.0)}),
        chosen(Dense_1=stats.t(5), Dense_0=stats.norm(0, 2)),
    ),
    "by function": (
        as_prior(lambda path, shape: dist.Normal(0.0, 1.0 + len(shape))),
        lambda path: stats.norm(0, 1.0 + WEIGHTS[path].ndim),
    ),
    "one distribution": (as_prior(dist.Gumbel(0.5, 2.0)), lambda path: stats.gumbel_r(0.5, 2.0)),
    "around trained values": (
        priors.pretrained(TRAINED, 0.2),
        lambda path: stats.norm(TRAINED[path], 0.2),
    ),
    "a scale for each column": (
        priors.ByPath({"Dense_0.*": dist.Normal(0.0, jnp.array([1.0, 2.0, 3.0])), "*": NORMAL()}),
        chosen(Dense_0=stats.norm(0, [1, 2, 3]), Dense_1=stats.norm()),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_density_of_a_network_is_the_sum_over_its_weights(name):
    prior, distribution_of = CASES[name]
    assert joint(prior, WEIGHTS) == pytest.approx(total(distribution_of), rel=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_array_is_one_event_of_its_shape(name):
    """A site of weights that kept batch axes would be multiplied by a plate around the network."""

    def draw():
        with handlers.seed(rng_seed=0), handlers.trace() as sites:
            values = CASES[name][0].sample("net", SHAPES)
        assert list(sites) == [f"net/{path}" for path in values]
        for path, shape in SHAPES.items():
            distribution = sites[f"net/{path}"]["fn"]
            assert distribution.batch_shape == ()
            assert distribution.event_shape == shape == values[path].shape

    jax.eval_shape(draw)  # traced only, not compiled


def test_a_path_left_deterministic_has_no_site_and_no_density():
    prior = priors.ByPath({"*.bias": None, "*": NORMAL(0.5)})
    drawn = jax.eval_shape(handlers.seed(partial(prior.sample, "net", SHAPES), rng_seed=0))
    assert set(drawn) == {"Dense_0.kernel", "Dense_1.kernel"}
    kernels = {path: w for path, w in WEIGHTS.items() if path.endswith("kernel")}
    expected = sum(stats.norm(0, 0.5).logpdf(w).sum() for w in kernels.values())
    assert joint(prior, kernels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("precision", [0.3, 4.0])
@pytest.mark.parametrize("numbers", [(1.0, 1.0), (2.5, 0.4)])
def test_a_hierarchy_by_layer_is_a_gamma_and_normal_weights_given_it(precision, numbers):
    prior = priors.Hierarchical(*numbers, parameterization="centered", groups="layer")
    given = {"Dense_0.precision": precision, "Dense_1.precision": 2 * precision}
    expected = 0.0
    for layer, own in (("Dense_0", precision), ("Dense_1", 2 * precision)):
        expected += stats.gamma(numbers[0], scale=1 / numbers[1]).logpdf(own)
        for leaf in ("kernel", "bias"):
            expected += stats.norm(0, own**-0.5).logpdf(WEIGHTS[f"{layer}.{leaf}"]).sum()
    assert joint(prior, WEIGHTS | given) == pytest.approx(expected, rel=1e-5)


def test_collapsed_weights_of_a_single_weight_are_student_t():
    """The integral of a normal over a Gamma precision: t with 2 a degrees of freedom and scale √(b/a)."""
    prior = priors.Hierarchical(2.0, 3.0, parameterization="collapsed")
    for w in (-2.0, 0.1, 5.0):
        expected = stats.t(4.0, scale=np.sqrt(3 / 2)).logpdf(w)
        assert joint(prior, {"b": np.array([w])}, {"b": (1,)}) == pytest.approx(expected, rel=1e-5)


def test_a_horseshoe_multiplies_four_distributions():
    prior = priors.Horseshoe(0.5, 1.5, 6.0)
    values = {"b.global_scale": 0.3, "b.local_scale": np.array([0.2, 4.0])}
    values |= {"b.slab_variance": 2.0, "b.base": np.array([-1.0, 0.5])}
    expected = (
        stats.halfcauchy(scale=0.5).logpdf(0.3)
        + stats.halfcauchy().logpdf([0.2, 4.0]).sum()
        + stats.invgamma(3.0, scale=3.0 * 2.25).logpdf(2.0)
        + stats.norm().logpdf([-1.0, 0.5]).sum()
    )
    assert joint(prior, values, {"b": (2,)}) == pytest.approx(expected, rel=1e-5)


POSITIVE = [
    (priors.Normal, {"scale"}),
    (priors.FanIn, {"variance"}),
    (priors.StudentT, {"df", "scale"}),
    (priors.Laplace, {"scale"}),
    (priors.Horseshoe, {"global_scale", "slab_scale", "slab_df"}),
    (partial(priors.pretrained, {}), {"scale"}),
]


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize(("make", "names"), POSITIVE)
def test_a_number_that_is_not_positive_and_finite_is_named(make, names, value):
    for name in names:
        with pytest.raises(ValueError, match=rf"{name} must be positive and finite, got {name}="):
            make(**{name: value})


@pytest.mark.parametrize("value", ["1.0", None, object()])
@pytest.mark.parametrize(("make", "names"), POSITIVE)
def test_what_is_no_number_is_refused_by_its_kind(make, names, value):
    for name in names:
        with pytest.raises(TypeError, match=f"{name} must be a number, got {name}="):
            make(**{name: value})


def test_a_scale_that_is_sampled_is_not_looked_at():
    """Inside compiled code the value is not known, and is taken as it comes."""

    def draw(scale):
        return priors.Normal(scale)("w", (2,)).log_prob(1.0)

    assert float(jax.jit(draw)(2.0)) == pytest.approx(stats.norm(0, 2).logpdf(1.0), rel=1e-6)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (1.0, AttributeError, "'float' object has no attribute 'support'"),
        (dist.HalfNormal(1.0), ValueError, "HalfNormal with support .* any real number"),
        (dist.HalfNormal(1.0).expand([3]).to_event(1), ValueError, "any real number"),
        (dist.Normal(0, 1).expand([2]), ValueError, r"has shape \(2,\), which does not broadcast"),
        (dist.Normal(0, 1).expand([2]).to_event(1), ValueError, r"parameter's shape \(4, 3\)"),
        (dist.Normal(0, 1).expand([9, 4, 3]), ValueError, r"has shape \(9, 4, 3\)"),
    ],
)
def test_a_rule_that_returns_what_does_not_fit_is_told(given, error, message):
    with pytest.raises(error, match=message):
        fit_distribution(given, "Dense_0.kernel", (4, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: dist.Normal(0, 1),
        lambda: dist.Normal(0, np.ones(3)),
        lambda: dist.Normal(0, np.ones((4, 1))),
        lambda: dist.Normal(0, 1).expand([3]).to_event(1),
        lambda: dist.MultivariateNormal(np.zeros(3), np.eye(3)),
        lambda: dist.Normal(0, 1).expand([4, 3]).to_event(2),
    ],
)
def test_what_fits_is_expanded_to_one_event(make):
    @jax.jit
    def density(weights):
        fitted = fit_distribution(make(), "Dense_0.kernel", (4, 3))
        assert (fitted.batch_shape, fitted.event_shape) == ((), (4, 3))
        return fitted.log_prob(weights)

    expected = stats.norm.logpdf(WEIGHTS["Dense_0.kernel"]).sum()
    assert float(density(WEIGHTS["Dense_0.kernel"])) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3.0, r"got 3.0"),
        (priors.FanIn, r"one of `bnn.priors`.*got <class"),
        ({"*": priors.Normal()}, r"For a mapping of patterns use `bnn.priors.ByPath`"),
    ],
)
def test_what_is_no_prior_is_refused(given, message):
    with pytest.raises(TypeError, match=message):
        as_prior(given)


def test_priors_over_several_sites_have_no_distribution_of_one_path():
    for prior in (priors.Horseshoe(), priors.Hierarchical()):
        with pytest.raises(TypeError, match=f"{type(prior).__name__} ties several sites together"):
            prior("Dense_0.kernel", (4, 3))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: priors.ByPath({"*": None})("w", (2,)), ValueError, "'w' is left deterministic"),
        (
            lambda: priors.ByPath({"*": NORMAL(), "*.bias": NORMAL()}).sample("net", SHAPES),
            ValueError,
            r"'\*.bias' matches only \['Dense_0.bias', 'Dense_1.bias'\], all taken .* move it up",
        ),
        (
            lambda: priors.ByPath({"layer[0].*": NORMAL(), "*": NORMAL()})("w", (2,)),
            ValueError,
            "goes by the order of calls, which a path alone does not tell",
        ),
        (
            lambda: priors.ByPath({"layer[0].*": NORMAL()}).sample("net", SHAPES),
            ValueError,
            "needs an example input",
        ),
        (lambda: priors.pretrained({})("w", (2,)), ValueError, r"no trained value for 'w' \(2,\)"),
        (
            lambda: priors.pretrained({"w": np.ones(3)})("w", (2,)),
            ValueError,
            r"has shape \(3,\), the network needs \(2,\)",
        ),
        (lambda: flatten_params(3.0), TypeError, "nested dicts of arrays .* got float"),
        (lambda: flatten_params({"a": {"b": None}}), TypeError, "'a.b' holds None"),
    ],
)
def test_rules_and_trained_values_that_do_not_fit_the_network(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("path", "shape", "terms", "axis"),
    [
        ("Dense_0.kernel", (7, 5), 7, 0),
        ("Dense_0.bias", (5,), 1, None),
        ("Conv_0.kernel", (3, 3, 8, 16), 72, 2),
        ("Conv_0.kernel", (5, 8, 16), 40, 1),
        ("attention.query.kernel", (12, 3, 4), 12, 0),
        ("attention.value.kernel", (12, 3, 4), 12, 0),
        ("attention.out.kernel", (3, 4, 12), 12, 1),
        ("Embed_0.embedding", (100, 8), 1, None),
        ("LayerNorm_0.scale", (8,), 1, None),
        ("query.bias", (3, 4), 1, None),
        ("kernel", (6, 2), 6, 0),
        ("temperature", (), 1, None),
    ],
)
def test_terms_of_a_sum_and_the_axis_of_the_units_they_come_from(path, shape, terms, axis):
    assert fan_in(path, shape) == terms
    assert source_axis(path, shape) == axis


def test_layers_by_the_order_of_calls_and_not_by_their_names():
    order = CallOrder(("Dense_1", "Dense_0"), frozenset({"Dense_1"}), ())
    shapes = NetworkShapes(SHAPES, lambda: order)
    taken = {
        pattern: [path for path in SHAPES if matches(path, pattern, shapes)]
        for pattern in ("layer[0].*", "layer[-1].kernel", "layer[1].bias", "Dense_0.*")
    }
    assert taken == {
        "layer[0].*": ["Dense_1.kernel", "Dense_1.bias"],
        "layer[-1].kernel": ["Dense_0.kernel"],
        "layer[1].bias": ["Dense_0.bias"],
        "Dense_0.*": ["Dense_0.kernel", "Dense_0.bias"],
    }
    assert same_order({"Dense_0.bias": (3,)}, shapes).find() is order
    assert same_order({"Dense_0.bias": (3,)}, SHAPES).find is None


@pytest.mark.parametrize("number", [2, -3, 17])
def test_a_layer_that_is_not_called_is_refused_with_those_that_are(number):
    order = CallOrder(("Dense_0", "Dense_1"), frozenset({"Dense_0"}), ())
    shapes = NetworkShapes(SHAPES, lambda: order)
    with pytest.raises(ValueError, match=r"calls 2: layer\[0\] is 'Dense_0', layer\[1\]"):
        matches("Dense_0.kernel", f"layer[{number}].*", shapes)


def test_trees_of_parameters_become_dotted_paths():
    tree = {"Dense_0": {"kernel": np.ones((2, 1)), "bias": np.zeros(1)}, "log_scale": np.array(0.5)}
    for given in (tree, {"params": tree}):
        flat = flatten_params(given)
        assert set(flat) == {"Dense_0.kernel", "Dense_0.bias", "log_scale"}
        assert flat["Dense_0.kernel"] is tree["Dense_0"]["kernel"]
    assert parameter_tree({"a": (2,), "long": ()}) == "  a     (2,)\n  long  ()"
    assert parameter_tree({}) == ""


@pytest.mark.parametrize("site", ["net/a.precision", "net/a.base", "a.slab_variance"])
def test_sites_beside_parameters_are_told_from_parameters(site):
    assert is_auxiliary(site)
    assert not is_auxiliary(site + ".kernel")
    assert not is_auxiliary("net/precision_layer.kernel")


def test_a_computed_parameter_is_marked_and_other_deterministic_sites_are_not():
    def model():
        numpyro.deterministic("mean", jnp.ones(2))
        return parameter("net/w", jnp.zeros(2))

    with handlers.trace() as sites:
        model()
    assert {name: is_parameter(site) for name, site in sites.items()} == {
        "mean": False,
        "net/w": True,
    }
    # Draws replace it, as they replace a sampled weight.
    given = handlers.substitute(model, {"net/w": jnp.full(2, 7.0)})
    np.testing.assert_array_equal(given(), 7.0)
