"""The hierarchy of precisions: priors, coordinates, and distributions of precisions given weights."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import special, stats

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.potential.starts import complete, gentle_draw, own_coordinates
from numpyro_bnn.priors.paths import source_axis
from numpyro_bnn.priors.precision_conditionals import Array, Child, Level, drawn_back

KERNEL, BIAS = "net/d.kernel", "net/d.bias"
SHAPES = {"d.kernel": (2, 3), "d.bias": (3,)}
width = priors.Hierarchical.width


def sites_of(prior, shapes=SHAPES, num_draws=None):
    """Values of all sites in draws from a prior."""

    def one(key):
        with handlers.seed(rng_seed=key), handlers.trace() as sites:
            prior.sample("net", shapes)
        return {name: site["value"] for name, site in sites.items() if "value" in site}

    if num_draws is None:
        return jax.eval_shape(one, jax.random.key(0))
    draws = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), num_draws))
    return {name: np.asarray(value, np.float64) for name, value in draws.items()}


def follows(draws, distribution):
    """Independent draws pass a Kolmogorov-Smirnov test at one in ten thousand."""
    assert stats.kstest(np.ravel(draws), distribution.cdf).pvalue > 1e-4


# Non-centred draws are centred ones with their bases beside them.
COORDINATES = ["noncentered", pytest.param("centered", marks=pytest.mark.slow), "collapsed"]


@pytest.mark.parametrize("parameterization", COORDINATES)
def test_prior_draws_of_three_levels(parameterization):
    prior = width(0.3, group=3.0, unit=2.0, weight=5.0, parameterization=parameterization)
    draws = sites_of(prior, num_draws=2000)
    group, unit = draws[f"{KERNEL}.precision"], draws[f"{KERNEL}.unit_precision"]
    follows(group, stats.gamma(1.5, scale=1 / (1.5 * 0.3**2)))
    assert unit.shape == (2000, 2)
    follows(unit / group[:, None], stats.gamma(1.0, scale=1.0))
    standard = draws[KERNEL] * np.sqrt(unit)[:, :, None]
    follows(standard, stats.t(5))
    assert abs(np.corrcoef(unit.T / group)[0, 1]) < 4 / math.sqrt(2000)
    # Biases come from no unit: t-distributed around the group's scale.
    assert f"{BIAS}.unit_precision" not in draws
    follows(draws[BIAS] * np.sqrt(draws[f"{BIAS}.precision"])[:, None], stats.t(5))


@pytest.mark.parametrize("parameterization", COORDINATES)
def test_levels_left_out_copy_the_one_above(parameterization):
    units = width(0.3, unit=2.0, parameterization=parameterization)
    draws = sites_of(units, num_draws=2000)
    assert f"{KERNEL}.precision" not in draws
    unit = draws[f"{KERNEL}.unit_precision"]
    follows(unit, stats.gamma(1.0, scale=1 / (1.0 * 0.3**2)))
    follows(draws[KERNEL] * np.sqrt(unit)[:, :, None], stats.norm())
    follows(draws[BIAS] / 0.3, stats.norm())
    plain = width(0.3, parameterization=parameterization)
    assert sites_of(plain).keys() == {KERNEL, BIAS}


@pytest.mark.parametrize(
    ("numbers", "squared"),
    [
        ({"group": 0.5}, 6),  # infinite
        ({"group": 0.5, "weight": 5.0}, 6 * 5 / 3),
        ({"group": 0.5, "unit": 0.5, "weight": 5.0}, 6 * 5 / 3),
        ({"group": 0.5, "unit": 2.0}, 6 * math.log(6)),
        ({"group": 0.5, "unit": 1.0}, 36),
        ({"group": 0.5, "weight": 1.5}, 6 ** (4 / 3)),
    ],
)
def test_widths_by_fan_in(numbers, squared):
    prior = width(0.3, **numbers, scale_by_fan_in=True)
    assert prior.divisor("d.kernel", (6, 3)) == pytest.approx(squared)
    assert prior.divisor("c.kernel", (3, 1, 2, 5)) == pytest.approx(squared)
    assert prior.divisor("d.bias", (6,)) == 1
    assert width(0.3, **numbers).divisor("d.kernel", (6, 3)) == 1
    assert width(1.0, group=1.0, unit=2.0, scale_by_fan_in=True).divisor("k", (2, 9)) == 2

    @jax.jit
    def mean():
        with handlers.seed(rng_seed=0), handlers.trace() as sites:
            prior.sample("net", {"d.kernel": (6, 3)})
        return sites[f"{KERNEL}.precision"]["fn"].mean

    np.testing.assert_allclose(mean(), squared / 0.3**2, rtol=1e-5)


def test_units_are_rows_and_input_channels():
    assert source_axis("d.kernel", (4, 7)) == 0
    assert source_axis("c.kernel", (3, 3, 4, 7)) == 2
    assert source_axis("attention.query.kernel", (4, 2, 7)) == 0
    assert source_axis("d.bias", (4,)) is None
    assert source_axis("e.embedding", (4, 7)) is None
    sites = sites_of(width(1.0, group=1.0, unit=1.0), {"c.kernel": (3, 1, 2, 5)})
    assert sites["net/c.kernel.unit_precision"].shape == (2,)


def test_groups_by_layer_and_by_a_function():
    shapes = {"a.kernel": (4, 2), "a.bias": (2,), "b.kernel": (2, 2), "b.bias": (2,)}
    by_layer = sites_of(width(0.3, 1.0, unit=1.0, groups="layer"), shapes)
    assert {n for n in by_layer if n.endswith("precision")} == {
        "net/a.precision",
        "net/a.kernel.unit_precision",
        "net/b.precision",
        "net/b.kernel.unit_precision",
    }
    own = priors.Hierarchical(groups=lambda path: path.rpartition(".")[2])
    precisions = {n for n in sites_of(own, shapes) if n.endswith("precision")}
    assert precisions == {"net/kernel.precision", "net/bias.precision"}


def test_a_group_of_different_fan_ins_keeps_its_width_and_scales_the_arrays():
    prior = width(0.3, group=6.0, scale_by_fan_in=True, groups="layer")
    draws = sites_of(prior, {"d.kernel": (50, 1), "d.bias": (1,)}, num_draws=2000)
    precision = draws["net/d.precision"]
    follows(precision, stats.gamma(3.0, scale=1 / (3.0 * 0.3**2)))
    follows(draws[BIAS][:, 0] * np.sqrt(precision), stats.norm())
    follows(draws[KERNEL][:, 7, 0] * np.sqrt(50 * precision), stats.norm())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: width(-1.0), "width must be positive and finite, got width=-1"),
        (lambda: width(1.0, group=0.0), "group must be positive and finite, got group=0"),
        (lambda: width(1.0, unit=math.inf), "unit must be positive and finite"),
        (lambda: priors.Hierarchical(groups="network"), "groups must be 'array', 'layer' or"),
        (lambda: bnn.parameterize(None, "gibbs"), "'gibbs'; choose one of .*'collapsed'"),
    ],
)
def test_what_is_no_hierarchy_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


THREE = width(0.7, group=3.0, unit=2.0, weight=5.0, scale_by_fan_in=True)
WEIGHTS = {
    KERNEL: jnp.array([[0.3, -0.8, 0.1], [1.2, 0.4, -0.5]]),
    BIAS: jnp.array([0.6, -0.2, 0.9]),
}
PRECISIONS = {
    f"{KERNEL}.precision": jnp.array(1.7),
    f"{KERNEL}.unit_precision": jnp.array([0.6, 2.5]),
    f"{BIAS}.precision": jnp.array(0.8),
}


def model_of(prior, parameterization):
    def model():
        weights = prior.sample("net", SHAPES)
        mean = weights["d.kernel"].sum() + weights["d.bias"].sum() ** 2
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=0.4)

    return bnn.parameterize(model, parameterization)


def log_joint(prior, parameterization):
    model = model_of(prior, parameterization)
    return jax.jit(lambda values: log_density(model, (), {}, values)[0])


def test_non_centred_coordinates_change_variables_at_every_level():
    centered = WEIGHTS | PRECISIONS
    potential = bnn.potential_of(model_of(THREE, "noncentered"))
    own = jax.jit(lambda v: potential.constrain(own_coordinates(potential, v)))(centered)
    tau, units = PRECISIONS[f"{KERNEL}.precision"], PRECISIONS[f"{KERNEL}.unit_precision"]
    np.testing.assert_allclose(own[f"{KERNEL}.unit_precision.base"], units / tau, rtol=1e-5)
    base = WEIGHTS[KERNEL] * jnp.sqrt(units)[:, None]
    np.testing.assert_allclose(own[f"{KERNEL}.base"], base, rtol=1e-5)
    # |d(units)/d(base)| = tau per unit, |dw/dbase| = precision**(-1/2) per weight.
    jacobian = 2 * np.log(tau) - 3 / 2 * np.sum(np.log(units))
    jacobian -= 3 / 2 * np.log(PRECISIONS[f"{BIAS}.precision"])
    np.testing.assert_allclose(
        log_joint(THREE, "centered")(centered),
        log_joint(THREE, "noncentered")(own) - jacobian,
        rtol=1e-5,
    )


def integrated(joint, values, site, size):
    """log ∫ exp(joint) over the precisions of a site, on a grid of their logarithms."""
    line = jnp.linspace(-9, 7, 161 if size > 1 else 2001)
    mesh = jnp.stack(jnp.meshgrid(*[line] * size, indexing="ij"), -1).reshape(-1, size)

    @jax.jit
    @jax.vmap
    def at(u):
        precision = jnp.exp(u) if size > 1 else jnp.exp(u[0])
        return joint(values | {site: precision}) + u.sum()

    return special.logsumexp(np.asarray(at(mesh), np.float64)) + size * np.log(line[1] - line[0])


def test_collapsed_is_the_integral_over_a_precision_that_arrays_share():
    prior = width(0.7, group=3.0, scale_by_fan_in=True, groups="layer")
    site = "net/d.precision"
    expected = integrated(log_joint(prior, "centered"), WEIGHTS, site, 1)
    np.testing.assert_allclose(log_joint(prior, "collapsed")(WEIGHTS), expected, rtol=1e-5)


def test_collapsed_is_the_integral_over_the_precisions_of_units():
    prior = priors.ByPath(
        {"*.bias": width(0.5), "*": width(0.7, group=3.0, unit=2.0, scale_by_fan_in=True)}
    )
    values = WEIGHTS | {f"{KERNEL}.precision": PRECISIONS[f"{KERNEL}.precision"]}
    site = f"{KERNEL}.unit_precision"
    expected = integrated(log_joint(prior, "centered"), values, site, 2)
    np.testing.assert_allclose(log_joint(prior, "collapsed")(values), expected, rtol=1e-5)


def sites_in(prior, parameterization):
    with bnn.parameterize(parameterization=parameterization):
        return sites_of(prior)


def test_every_precision_is_in_the_draws_in_all_coordinates():
    for prior in (THREE, width(0.5, group=1.0, unit=1.0), priors.Hierarchical()):
        names = {
            parameterization: {
                name for name in sites_in(prior, parameterization) if not name.endswith(".base")
            }
            for parameterization in ("centered", "noncentered", "collapsed")
        }
        assert names["centered"] == names["noncentered"] == names["collapsed"]
        assert f"{KERNEL}.precision" in names["centered"]


def test_precisions_are_drawn_back_independently_from_their_distribution():
    """Weights that hardly differ, as in a chain that moves in small steps."""
    weights = (1.0 + 1e-5 * np.arange(2000.0)[:, None] * np.ones(3)).astype(np.float32)
    distribution = dist.Gamma(2.5, 1.5)
    both = jax.jit(jax.vmap(lambda w: [drawn_back(name, distribution, [w]) for name in ("a", "b")]))
    first, other = (np.asarray(drawn, float) for drawn in both(weights))
    follows(first, stats.gamma(2.5, scale=1 / 1.5))
    follows(other, stats.gamma(2.5, scale=1 / 1.5))
    for left, right in ((first[1:], first[:-1]), (first, other)):
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / math.sqrt(2000)


def test_conjugate_levels_follow_the_joint_density_up_to_a_constant():
    prior = width(0.7, group=3.0, unit=2.0, scale_by_fan_in=True)
    levels = bnn.potential_of(model_of(prior, "centered")).structure.levels
    values, joint = WEIGHTS | PRECISIONS, log_joint(prior, "centered")
    grid = np.linspace(0.2, 5.0, 30, dtype=np.float32)
    site, group = f"{KERNEL}.unit_precision", f"{KERNEL}.precision"

    def gap_of_unit(i):
        along = jax.vmap(lambda t: joint(values | {site: values[site].at[i].set(t)}))(grid)
        conditional = jax.vmap(levels[site].conditional(values).log_prob)(
            jnp.broadcast_to(grid[:, None], (30, 2))
        )
        return along - conditional[:, i]

    def gap_of_group():
        along = jax.vmap(lambda t: joint(values | {group: t}))(grid)
        shape, up, down = levels[group].distribution(values, {})
        return along - ((shape - 1) * jnp.log(grid) - up * grid - down / grid)

    # The group level is not conjugate.
    gaps = jax.jit(lambda: [gap_of_unit(0), gap_of_unit(1), gap_of_group()])()
    for gap, distribution in zip(gaps, ("first", "second", "group")):
        np.testing.assert_allclose(gap, gap[0] * np.ones(30), atol=2e-4, err_msg=distribution)


def chain(levels, values, num_draws):
    """Gibbs updates of all precisions at fixed weights: log σ of the group."""

    def step(values, key):
        for i, (name, level) in enumerate(levels.items()):
            values = values | {name: level.draw(jax.random.fold_in(key, i), values)}
        return values, -jnp.log(values["group"]) / 2

    keys = jax.random.split(jax.random.key(4), num_draws)
    return np.asarray(jax.jit(lambda v: jax.lax.scan(step, v, keys)[1])(values), np.float64)


@pytest.mark.parametrize("check", ["unit_level", "weight_level"])
def test_draws_at_fixed_weights_agree_with_quadrature(shared, check):
    """Reference values of Neal's program and of quadrature, for a 4-8 kernel."""
    reference = json.loads((shared / "fbm" / "reference_open.json").read_text())["gibbs_checks"]
    given = reference[check]
    df = 3.0 if check == "weight_level" else None
    prior = width(0.2, group=0.5, unit=1.0, weight=df, scale_by_fan_in=True)
    divisor = prior.divisor("d.kernel", (4, 8))
    if df is None:  # only sums of squares matter
        kernel = jnp.sqrt(jnp.asarray(given["row_sums_of_squares"]) / 8)[:, None] * jnp.ones(8)
    else:
        kernel = jnp.asarray(given["kernel"])
    levels = {
        "unit": Level("unit", 0.5, None, "group", (Array("w", ((0, 1),), 1.0, df),)),
        "group": Level(
            "group",
            prior.concentration,
            prior.rate,
            None,
            (),
            (Child("unit", 0.5),),
            divisor=divisor,
        ),
    }
    start = {"w": kernel, "group": jnp.array(1.0), "unit": jnp.ones(4)}
    draws = chain(levels, start, 12_000)[2000:]
    exact = given["log_sigma_g_quadrature"]
    for found, expected in (
        (draws, exact["mean"]),
        ((draws - exact["mean"]) ** 2, exact["sd"] ** 2),
    ):
        batches = found.reshape(50, -1).mean(1)
        assert abs(found.mean() - expected) < 4 * batches.std(ddof=1) / math.sqrt(50)


TWO = width(0.7, group=3.0, unit=2.0, scale_by_fan_in=True)


def test_the_energy_of_weights_has_the_lowest_level_integrated_out():
    marginal = Marginal(model_of(TWO, "noncentered"))
    upper = {n: v for n, v in PRECISIONS.items() if n == f"{KERNEL}.precision"}
    assert set(marginal.sites) == {*WEIGHTS, *upper}
    z = WEIGHTS | {name: jnp.log(value) for name, value in upper.items()}
    jacobian = sum(z[name] for name in upper)
    expected = -log_joint(TWO, "collapsed")(WEIGHTS | upper) - jacobian
    np.testing.assert_allclose(jax.jit(marginal)(z), expected, rtol=1e-5)


def test_weights_alone_start_every_coordinate_with_precisions_in_the_middle_of_their_distributions():
    found = {}
    for parameterization in ("centered", "noncentered", "collapsed"):
        potential = bnn.potential_of(model_of(TWO, parameterization))
        z = jax.jit(lambda w, p=potential: complete(p, w, ()))(WEIGHTS)
        assert set(z) == set(potential.structure.latent)
        found[parameterization] = jax.jit(lambda z, p=potential: p.constrain(z, True))(z)
    for values in found.values():
        for site in (KERNEL, BIAS, f"{KERNEL}.precision"):
            np.testing.assert_allclose(values[site], found["centered"][site], rtol=1e-4)
    site = f"{KERNEL}.unit_precision"
    np.testing.assert_allclose(found["noncentered"][site], found["centered"][site], rtol=1e-4)
    # Conditional means, up to the rounds of two levels that are set in turn.
    levels = bnn.potential_of(model_of(TWO, "centered")).structure.levels
    mean = levels[site].conditional(found["centered"]).mean
    np.testing.assert_allclose(found["centered"][site], mean, rtol=0.05)


def test_starts_do_not_come_from_the_tails_of_vague_priors():
    """A quarter of the draws of Gamma(0.25, …) are below a thousandth of its mean."""
    vague = priors.Hierarchical.width(0.05, group=0.5)
    potential = bnn.potential_of(model_of(vague, "centered"))
    keys = jax.random.split(jax.random.key(0), 50)
    drawn = jax.jit(jax.vmap(lambda key: gentle_draw(potential, key)))(keys)
    np.testing.assert_allclose(drawn[f"{BIAS}.precision"], 400.0, rtol=1e-5)
    assert np.abs(drawn[BIAS]).max() < 5 * 0.05
