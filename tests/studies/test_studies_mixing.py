"""Studies of mixing: their samplers fit their posteriors, and their own arithmetic is right."""

import jax
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.gibbs import Gibbs
from numpyro.util import nested_attrgetter
from scipy.special import kve

import numpyro_bnn as bnn
from benchmarks._shared import ensembles
from benchmarks.mixing import (
    acceptance,
    against_hmc,
    against_hmc_methods,
    against_hmc_prior,
    flat_directions,
    hard_posteriors,
    hierarchical_posteriors,
    mnist_gibbs_methods,
    mnist_gibbs_verdict,
    modes_by_width,
)
from numpyro_bnn.priors.precision_conditionals import levels_of
from numpyro_bnn.samplers.kernels import fields_of

METHODS = hierarchical_posteriors.METHODS


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_sampler_of_hierarchies_takes_a_step(name, shared):
    """Traced, not computed: kernel, coordinates and moves fit, and the fields that runs keep are there."""
    given = hierarchical_posteriors.posterior(shared / "data", "yacht", 30)
    kernel = hierarchical_posteriors.kernel_of(METHODS[name], given, 10)
    args = given.split.x, given.split.y
    potential = bnn.potential_of(kernel.model, *args)

    def one(key):
        start = potential.prior_draw(key)
        if not isinstance(getattr(kernel, "kernel", kernel), Gibbs):
            start = potential.unconstrain(start)
        state = kernel.sample(kernel.init(key, 10, start, args, {}), args, {})
        return nested_attrgetter(kernel.sample_field, *fields_of(kernel))(state)

    position, *_ = jax.eval_shape(one, jax.random.key(0))
    assert position


@pytest.mark.parametrize(("name", "hidden"), [("boston", 2), ("airfoil, four layers", 4)])
def test_tables_have_networks_of_two_layers_or_of_four(name, hidden, shared):
    given = hierarchical_posteriors.posterior(shared / "data", name, 0)
    sites = bnn.potential_of(given.model, given.split.x).structure.sites
    kernels = [site for site in sites if site.endswith("kernel.precision")]
    assert len(kernels) - 1 == given.relu_layers == hidden
    assert hard_posteriors.PAIRS[name][-1] == hard_posteriors.PAIRS["yacht"][-1]


@pytest.mark.parametrize("split", [0, 3])
def test_splits_of_a_table_test_other_rows(split, shared):
    given = hierarchical_posteriors.posterior(shared / "data", "yacht", 0, split).split
    base = hierarchical_posteriors.posterior(shared / "data", "yacht", 0).split
    assert len(given.y_test) == len(base.y_test) == 62
    assert np.array_equal(given.y_test, base.y_test) == (split == 0)
    np.testing.assert_allclose([given.y.mean(), given.y.std()], [0, 1], atol=1e-5)


def test_the_average_of_members_is_a_mixture_of_their_distributions():
    means, y = np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([1.0, 1.5])
    found = ensembles.log_mixture(means, 0.5, y)
    expected = [-2.0, -0.5] - np.log(0.5 * (2 * np.pi) ** 0.5)
    np.testing.assert_allclose(found, expected)


def test_the_noise_of_one_member_is_that_of_its_residuals():
    y = np.random.default_rng(0).normal(size=400)
    found = ensembles.fitted_noise(np.zeros((1, 400)), 0.2 * y)
    # The values that are tried lie 6 % apart.
    assert abs(np.log(found / (0.2 * np.sqrt(np.mean(y**2))))) < 0.06


@pytest.mark.parametrize("difference", [0, 3, 7])
def test_the_distribution_along_a_ridge_has_the_moments_of_a_bessel_integral(difference):
    rho = np.array([0.01, 0.5, 4.0, 300.0])
    mean, variance = flat_directions.along_ridge(rho, difference)
    # exp(ν s - ρ cosh s), s = 2t, integrates to 2 K_ν(ρ): derivatives of its log by ν.
    step, order = 1e-3, difference / 2
    logs = [np.log(kve(order + k * step, rho)) for k in (-1, 0, 1)]
    np.testing.assert_allclose(mean, (logs[2] - logs[0]) / (4 * step), atol=1e-5)
    np.testing.assert_allclose(
        variance, (logs[2] - 2 * logs[1] + logs[0]) / (4 * step**2), rtol=1e-4
    )


def test_prior_draws_have_the_exact_variance_along_their_ridges_and_squeezed_ones_have_not():
    rng = np.random.default_rng(0)
    draws = {
        "net/Dense_0.kernel": rng.normal(size=(4, 1000, 3, 5)),
        "net/Dense_0.bias": rng.normal(size=(4, 1000, 5)),
        "net/Dense_1.kernel": rng.normal(size=(4, 1000, 5, 1)),
    }
    found = flat_directions.ridge(draws)
    error = found["ridge: error of that"]
    assert error < 0.03
    assert abs(found["ridge: variance over the exact one"] - 1) < 4 * error
    assert abs(found["ridge: mean off by, in sd"]) < 4 * found["ridge: its error"]
    # One weight too many or too few in the Jacobian would not be seen as such a posterior.
    moved = draws | {"net/Dense_1.kernel": 1.1 * draws["net/Dense_1.kernel"]}
    found = flat_directions.ridge(moved)
    assert abs(found["ridge: mean off by, in sd"]) > 4 * found["ridge: its error"]


def test_units_that_no_row_switches_on_are_counted():
    draws = {
        "net/Dense_0.kernel": np.ones((2, 10, 1, 4)),
        "net/Dense_0.bias": np.tile([-5.0, -5.0, 0.0, -0.5], (2, 10, 1)),
    }
    assert flat_directions.never_on(draws, np.linspace(-1, 1, 9)[:, None]) == 0.5


def test_the_conditional_mean_of_a_precision_is_that_of_the_library():
    prior = bnn.priors.Hierarchical(mnist_gibbs_methods.CONCENTRATION, mnist_gibbs_methods.RATE)

    def model():
        prior.sample("net", {"kernel": (3, 4)})

    sites = trace(seed(bnn.parameterize(model, "centered"), 0)).get_trace()
    (level,) = levels_of(sites).values()
    weights = np.asarray(sites["net/kernel"]["value"])
    found = mnist_gibbs_methods.conditional_mean((weights**2).sum(), weights.size)
    np.testing.assert_allclose(found, level.conditional({"net/kernel": weights}).mean, rtol=1e-6)


def test_chains_begin_at_the_given_weights_with_precisions_at_their_conditional_means():
    task = mnist_gibbs_methods.Task((3, 5), 9, 9, 4, 10, 10, 2, 1)
    x, y = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32), np.arange(9) % 2
    potential = bnn.potential_of(mnist_gibbs_methods.model_of(task), x, y)
    shapes = dict(zip(mnist_gibbs_methods.LAYERS, ((6, 4), (4,), (4, 2), (2,))))
    rng = np.random.default_rng(1)
    weights = {
        f"net/{layer}": 3 * rng.normal(size=(1, *shape)).astype(np.float32)
        for layer, shape in shapes.items()
    }

    @jax.jit
    def constrained(weights):
        start = {n: v[0] for n, v in mnist_gibbs_methods.starts_at(weights).items()}
        return potential.constrain(start, deterministic=True)

    found = constrained(weights)
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value[0], rtol=1e-5)
        mean = mnist_gibbs_methods.conditional_mean((value**2).sum(), value.size)
        np.testing.assert_allclose(found[f"{name}.precision"], mean, rtol=1e-5)


@pytest.mark.parametrize("size", ["full", "quick"])
def test_methods_that_are_compared_have_as_many_passes(size):
    """Up to one trajectory; a third of them is warm-up."""
    for task, *_ in mnist_gibbs_verdict.SIZES[size].values():
        for method in mnist_gibbs_methods.METHODS:
            given = mnist_gibbs_methods.pace(method, task, task.rows)
            passes = (given.warmup + given.draws * given.thinning) * given.gradients
            assert task.gradients - task.leapfrogs - 3 <= passes <= task.gradients
            assert given.draws > 3


def test_the_power_that_rejections_fall_with_is_found_where_rounding_does_not_decide():
    rows = [
        {"scale": h, "rejected": 0.3 * h**3 + 1e-6, "error": 1e-4 * h**3} for h in acceptance.SCALES
    ]
    found, error = acceptance.power(rows[::-1])
    assert found == pytest.approx(3, abs=0.15)
    assert 0 < error < 0.01


def minimum(energy, *predictions):
    return modes_by_width.Minimum(energy, np.array(predictions), 0.0, np.array([1.05, 3.0]))


def test_modes_are_told_apart_by_their_functions():
    one, copy, other = minimum(1.0, 0.0, 5.0), minimum(1.0, 0.05, 5.0), minimum(9.0, 3.0, 1.0)
    found = modes_by_width.described([other, one, copy, one])
    assert (found["modes"], found["low modes"], found["minima that are low"]) == (2, 1, 0.75)
    # One mode was seen once and none twice.
    assert found["modes in all"] == 2
    assert found["apart"] == pytest.approx(np.sqrt((3**2 + 4**2) / 2))
    assert found["low ones apart"] == 0
    assert found["flat"] == 0.5
    assert found["directions known"] == pytest.approx(0.05 / 1.05 + 2 / 3)


def test_weights_over_their_scales_have_the_curvature_one_where_the_data_say_nothing():
    rng = np.random.default_rng(0)
    at = rng.normal(size=(4, 3))
    # Of inputs that are all zero the six weights of the first layer move nothing.
    given = modes_by_width.problem(2, np.zeros((5, 3)), rng.normal(size=5), at)
    weights = rng.normal(size=given.size).astype(np.float32)
    curvatures = np.linalg.eigvalsh(jax.jit(jax.hessian(given.energy))(weights))
    assert np.sum(np.abs(curvatures - 1) < 1e-3) >= 6
    assert given.predictions(weights).shape == (4,)


# Rows of each problem's training set, of the size "full".
ROWS = {**dict.fromkeys(against_hmc_methods.IMAGES, 1000), "boston": 455, "wine_red": 1439}


@pytest.mark.parametrize("method", against_hmc_methods.SAMPLED)
@pytest.mark.parametrize("name", ROWS)
def test_samplers_spend_the_budget_and_no_more(name, method):
    size = against_hmc_methods.SIZES["full"]
    share = against_hmc_methods.PROBLEMS[name].batch / ROWS[name]
    found = against_hmc_methods.plan(method, size, share, leapfrogs=30)
    # Whole trajectories, and as many steps to each of a hundred draws.
    assert 0.9 * size.passes < found.passes <= size.passes
    once, in_warmup, call = against_hmc_methods.cost(method, share, 30)
    call *= 2 if "cyclical" in method else 1
    steps = found.warmup * in_warmup + found.draws * found.thinning * call
    assert found.passes == pytest.approx(size.chains * (size.training + once + steps))
    assert found.draws >= 20


def test_an_energy_without_its_gradient_and_three_minibatches_are_counted():
    assert against_hmc_methods.cost("AMAGOLD", 0.1).call == pytest.approx(1 + 1 / 3)
    assert against_hmc_methods.cost(against_hmc_methods.SVRG, 0.1)[1:] == pytest.approx((0.7, 0.3))
    assert against_hmc_methods.cost("SGHMC", 0.1) == (0, 0.1, 0.1)
    assert against_hmc_methods.cost(against_hmc_methods.EQUAL, 0.1, 25) == (0, 25, 25)


def row(method, seed, score, over_chains, distance=0.1, problem="boston"):
    convergence = dict.fromkeys(("worst R-hat", "median R-hat", "least ESS"), 1.0)
    return {
        **{"problem": problem, "method": method, "seed": seed, "log_score": score},
        **{"difference": score + 1, "difference_error": 0.03, "over_chains": over_chains},
        **{"total_variation": distance, "calibration": 0.1, "agreement": "", "converged": "no"},
        **convergence,
    }


def test_monte_carlo_errors_are_of_both_and_fall_with_seeds():
    rows = [row("HMC", 0, -1.0, 0.04, 0.0)]
    rows += [row("MCLMC", seed, -0.9, 0.03 * 2**0.5) for seed in (0, 1)]
    rows += [row("SGD", seed, -0.9 + 0.1 * seed, "") for seed in (0, 1)]
    rows += [row("mean field", 0, -0.9, "")]
    found = {r["method"]: r for r in against_hmc.averaged(rows)}
    assert found["MCLMC"]["monte_carlo"] == pytest.approx(0.05)
    # Of one chain: the spread of two seeds, 0.1 apart, over √2.
    assert found["SGD"]["monte_carlo"] == pytest.approx((0.05**2 + 0.04**2) ** 0.5)
    assert found["HMC"]["monte_carlo"] == 0
    assert found["mean field"]["monte_carlo"] == ""
    assert found["mean field"]["sure"] == 0
    assert found["MCLMC"]["sure"] == pytest.approx(0.1 / (0.05**2 + 0.03**2) ** 0.5)
    cells = {r["method"]: r["boston"] for r in against_hmc.distances(list(found.values()))}
    assert cells == {"SGD": "0.100 (0.150)", "mean field": "0.100", "MCLMC": "0.100"}


def test_the_smallest_scale_within_an_error_of_the_least_is_chosen():
    name, error = "calibration, held out", "its error, held out"
    values = {0.2: 0.2, 0.5: 0.071, 1.0: 0.064, 2.0: 0.06, 4.0: 0.2}
    rows = [{"scale": s, name: v, error: 0.005} for s, v in values.items()]
    assert against_hmc_prior.chosen(rows) == 1.0
    assert against_hmc_prior.chosen(rows[:2]) == 0.5


def test_probabilities_that_are_too_flat_are_said_to_be():
    """All rows are of class 0, which has a probability of 0.75; then three rows of four are."""
    probs = np.full((2, 3, 400, 2), 0.25)
    probs[..., 0] = 0.75
    found = against_hmc_prior.calibration(probs, np.zeros(400, int))
    assert found["too sure"] == pytest.approx(-0.25)
    assert found["calibration"] == pytest.approx(0.25)
    assert found["its error"] == pytest.approx(0.0, abs=1e-12)
    assert found["over chains"] == pytest.approx(0.0, abs=1e-12)
    y = (np.arange(400) % 4 == 0).astype(int)
    assert against_hmc_prior.calibration(probs, y)["too sure"] == pytest.approx(0.0)


def test_held_out_images_are_none_that_are_learned_from(shared):
    size = against_hmc_methods.SIZES["toy"]
    held, classes = against_hmc_prior.held_out(shared / "data", size)
    case = against_hmc_methods.Case(shared / "data", size, against_hmc_methods.CHOSEN, 0.5)
    split = against_hmc_methods.given(case).split
    assert len(held) == len(classes) == size.images[1]
    assert len(split.x) == size.images[0]
    learned = {x.tobytes() for x in split.x}
    assert not learned & {x.tobytes() for x in held}
