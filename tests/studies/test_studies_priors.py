"""Studies of priors: their models, exact processes and errors are what they are said to be."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks.priors import (
    average_scores,
    evidence,
    gaussian_process_limit,
    hierarchy_helps,
    prior_scale,
    small_tables,
)
from benchmarks.priors import common_step_hmc as hmc
from benchmarks.priors import temperature_by_rows as study
from benchmarks.priors import temperature_verdicts as verdicts
from benchmarks.priors import tempered_network as network


def test_relevance_of_columns_is_that_of_their_weights():
    kernel = np.zeros((2, 3, 4, 5))  # chains, draws, columns, units
    kernel[..., 0, :], kernel[..., 1, :] = 3.0, 1.0
    kernel[..., 2, :], kernel[..., 3, :] = 0.5, 2.5
    kernel[:, 0, 3] = 0.5  # in two of six draws the last column is as small as the third
    found = small_tables.relevance(kernel, real=2)
    assert found["weights_real"] == pytest.approx(2.0)
    assert found["weights_noise"] == pytest.approx((2 * 0.5 + 4 * 1.5) / 6)
    assert found["noise_above"] == pytest.approx(4 / 12)
    assert small_tables.relevance(kernel, real=4)["weights_noise"] == 0.0


def test_no_row_is_learned_from_and_judged_by(shared):
    split = small_tables.few_rows(shared / "data", "yacht", 3, 150, 500)
    assert len(split.x) == 150
    assert len(split.x_test) == 308 - 150
    rows = {part.tobytes() for part in np.column_stack([split.x, split.y])}
    other = {part.tobytes() for part in np.column_stack([split.x_test, split.y_test])}
    assert not rows & other


def test_tables_have_the_rows_that_errors_over_splits_count_on(shared):
    for name, count in hierarchy_helps.TABLE_ROWS.items():
        split = small_tables.uci(shared / "data", name, 0)
        assert len(split.x) + len(split.x_test) == count, name
    assert set(hierarchy_helps.TABLE_ROWS) == set(hierarchy_helps.SIZES["full"].data)


@pytest.mark.parametrize("name", ["group", "unit", "weight"])
def test_hierarchies_are_around_the_fixed_scales(name):
    """Without its levels each prior is that of fan-in: the widths agree."""
    prior = small_tables.prior_named(name)
    first, other, bias = (
        prior.rules[pattern] for pattern in ("Dense_0.kernel", "*.kernel", "*.bias")
    )
    assert other.divisor("Dense_1.kernel", (10, 1)) == {"weight": 20.0}.get(name, 10.0)
    assert first.divisor("Dense_0.kernel", (3, 10)) == {"unit": 9.0, "weight": 6.0}.get(name, 3.0)
    assert bias.divisor("Dense_0.bias", (10,)) == 1.0


def test_rank_correlation_and_its_error():
    rng = np.random.default_rng(0)
    values = np.arange(30.0)
    scores = np.tile(values[:, None], evidence.BLOCKS)
    exact = evidence.rank_correlation(values, np.zeros(30), scores, rng, 200)
    assert exact[0] == pytest.approx(1.0)
    assert exact[1] == pytest.approx(0.0, abs=1e-12)
    reverse = evidence.rank_correlation(values, np.zeros(30), -scores, rng, 200)
    assert reverse[0] == pytest.approx(-1.0)
    # Of independent values the correlation has standard error 1 / sqrt(n - 1).
    values, scores = rng.normal(size=60), np.tile(rng.normal(size=(60, 1)), evidence.BLOCKS)
    error = evidence.rank_correlation(values, np.zeros(60), scores, rng, 400)[1]
    assert 0.7 / 59**0.5 < error < 1.4 / 59**0.5
    # Evidences known to no better than their spread decide less.
    doubtful = evidence.rank_correlation(np.arange(30.0), np.full(30, 1e3), scores[:30], rng, 200)
    assert doubtful[1] > 0.1
    assert math.isnan(evidence.rank_correlation(values[:3], np.zeros(3), scores[:3], rng)[1])


def test_scale_of_a_family_is_an_argument_of_its_model(shared):
    """The potential at α differs from that at 1 by the prior alone."""
    x, y, *_ = prior_scale.data(shared / "data", "toy", "yacht", 0)
    for family, width in zip(prior_scale.FAMILIES, (lambda v: 1, lambda v: v.shape[0])):
        model = prior_scale.run_of("toy", "yacht", family).model
        z = jax.jit(bnn.potential_of(model, x, y).prior_draw)(jax.random.key(0))
        z = {name: value for name, value in z.items() if name.startswith("net/")}
        z |= {"y.scale": jnp.float32(0.5)}

        @jax.jit
        def terms(a, z, model=model):
            return bnn.potential_of(model, x, y, a).log_joint_by_site(z)

        first, second = (terms(jnp.float32(a), z) for a in (1.0, 2.0))
        del z["y.scale"]
        for name, value in z.items():
            if name.endswith("kernel"):
                expected = 3 / 8 * width(value) * jnp.sum(value**2) - value.size * np.log(2)
                np.testing.assert_allclose(second[name] - first[name], expected, rtol=1e-4)
        np.testing.assert_allclose(second["y"], first["y"])


def test_the_arc_sine_kernel_is_the_covariance_of_erf_units():
    rng = np.random.default_rng(0)
    x = np.array([[-1.0], [0.3], [2.0]])
    bias = gaussian_process_limit.BIAS**0.5 * rng.normal(size=200_000)
    weight = gaussian_process_limit.WEIGHT**0.5 * rng.normal(size=200_000)
    units = erf(bias + x * weight)
    products = gaussian_process_limit.OUT * units[:, None] * units[None]
    error = products.std(-1) / math.sqrt(bias.size)
    assert (np.abs(products.mean(-1) - gaussian_process_limit.kernel(x, x)) < 4 * error).all()
    assert (error < 0.002).all()


def test_the_process_given_one_target_is_the_scalar_formula():
    x, at = np.array([[0.5]]), np.array([[0.5], [1.5]])
    mean, sd = gaussian_process_limit.process(x, np.array([2.0]), at)
    prior, cross = (
        gaussian_process_limit.kernel(x, x)[0, 0],
        gaussian_process_limit.kernel(x, at)[0],
    )
    gain = cross / (prior + gaussian_process_limit.NOISE**2)
    np.testing.assert_allclose(mean, 2 * gain, rtol=1e-12)
    np.testing.assert_allclose(
        sd**2, np.diag(gaussian_process_limit.kernel(at, at)) - gain * cross, rtol=1e-12
    )


def test_gaps_are_in_units_of_the_exact_sd_beside_their_errors():
    rng = np.random.default_rng(0)
    f = 1.0 + 3.0 * rng.normal(size=(4, 500, 30))
    found = gaussian_process_limit.differences(f, np.full(30, 1.0), np.full(30, 3.0))
    for name in ("mean", "sd"):
        ratio = found[f"{name}: rms difference"] / found[f"{name}: rms error"]
        assert 0.6 < ratio < 1.5
    found = gaussian_process_limit.differences(f, np.full(30, 4.0), np.full(30, 2.0))
    assert found["mean: gap"] == pytest.approx(1.5, abs=0.02)
    assert found["sd: gap"] == pytest.approx(0.5, abs=0.02)


ALPHA, TEMPERATURE = 0.7, 0.25


def _images():
    rng = np.random.default_rng(0)
    return rng.uniform(size=(4, 196)).astype(np.float32), np.array([1, 0, 7, 7], np.int32)


def _standard(seed, hierarchical):
    """Standard coordinates, unconstrained: log precisions are numbers of order one."""
    rng = np.random.default_rng(seed)
    u = {f"net/{k}": rng.normal(size=s).astype(np.float32) for k, s in network.SHAPES.items()}
    if hierarchical:
        u |= {f"net/{k}.precision": np.float32(rng.normal()) for k in network.SHAPES}
    return u


@pytest.mark.parametrize("hierarchical", [False, True])
def test_the_energy_in_standard_coordinates_is_that_of_the_posterior_over_t(hierarchical):
    """Differences are those of U / T, with U the potential of the usual model in non-centred coordinates."""
    x, y = _images()
    prior = bnn.priors.Hierarchical(1.0, 1.0) if hierarchical else bnn.priors.Normal(ALPHA)

    def usual(x, y=None):
        net = bnn.random_module("net", network.MODULE, prior, x[:1])
        bnn.likelihoods.categorical(net, y, x=x)

    def of_usual(u):
        spread = math.sqrt(TEMPERATURE) * (1.0 if hierarchical else ALPHA)
        base = ".base" if hierarchical else ""
        return {
            name if name.endswith("precision") else name + base: jnp.asarray(
                v if name.endswith("precision") else spread * v
            )
            for name, v in u.items()
        }

    known = jax.jit(bnn.potential_of(usual, x, y))
    tempered = network.tempered(hierarchical)
    energy = jax.jit(bnn.potential_of(tempered, x, y, np.float32(ALPHA), np.float32(TEMPERATURE)))
    one, two = (_standard(seed, hierarchical) for seed in (1, 2))
    expected = (known(of_usual(one)) - known(of_usual(two))) / TEMPERATURE
    np.testing.assert_allclose(energy(one) - energy(two), expected, rtol=1e-4, atol=0.02)
    assert abs(expected) > 1


def test_a_row_for_each_place_of_an_image_counts_as_one_image():
    """With shifts the energy has the mean over places of each image's log probability."""
    x, y = _images()
    moved, classes, share = study.placed(x, y, verdicts.SHIFTED)
    assert moved.shape == (5 * 4, 196)
    assert share == pytest.approx(1 / 5)
    square, by_place = x.reshape(-1, 14, 14), moved.reshape(5, 4, 14, 14)
    np.testing.assert_array_equal(by_place[0], square)
    np.testing.assert_array_equal(classes, np.tile(y, 5))
    for place, axis, by in ((1, 1, 1), (2, 1, -1), (3, 2, 1), (4, 2, -1)):
        # Nothing comes in at the other side.
        edge = 0 if by > 0 else -1
        shifted = np.roll(square, by, axis)
        np.moveaxis(shifted, axis, 0)[edge] = 0
        np.testing.assert_array_equal(by_place[place], shifted)
    energy = jax.jit(bnn.potential_of(network.tempered(False), moved, classes, 1.0, 0.5, share))
    logits = jax.jit(network.logits)

    def expected(u):
        logs = jax.nn.log_softmax(logits(network.weights(u, 0.5**0.5), moved))
        of_images = np.asarray(logs)[np.arange(20), classes].reshape(5, 4).mean(0)
        return sum((v**2).sum() / 2 for v in u.values()) - of_images.sum() / 0.5

    one, two = (_standard(seed, False) for seed in (1, 2))
    found = energy(one) - energy(two)
    np.testing.assert_allclose(found, expected(one) - expected(two), rtol=1e-4, atol=0.02)
    assert study.placed(x, y, verdicts.UNMOVED) == (x, y, 1)


def test_trained_networks_are_where_chains_begin():
    rng = np.random.default_rng(0)
    w = {k: jnp.asarray(rng.normal(size=(3, *s)), jnp.float32) for k, s in network.SHAPES.items()}
    for hierarchical, spread in ((False, ALPHA), (True, 1.0)):

        @jax.jit
        def there_and_back(w, hierarchical=hierarchical, spread=spread):
            u = network.start(w, ALPHA, TEMPERATURE, hierarchical)
            constrained = {k: jnp.exp(v) if k.endswith("precision") else v for k, v in u.items()}
            return network.weights(constrained, spread * math.sqrt(TEMPERATURE))

        back = there_and_back(w)
        for path, value in w.items():
            np.testing.assert_allclose(back[path], value, rtol=1e-5)


def test_subsets_share_test_rows_and_smaller_ones_are_part_of_larger(shared, monkeypatch):
    # Six subsets of one file, which is unpacked once.
    monkeypatch.setattr(data_sets, "_load", cache(data_sets._load))
    of = partial(network.images, shared / "data")
    few, more, other = of(20, 30, 0), of(40, 30, 0), of(20, 30, 1)
    np.testing.assert_array_equal(few.x, more.x[:20])
    np.testing.assert_array_equal(few.x_test, other.x_test)
    assert not np.array_equal(few.x, other.x)


def test_hmc_samples_a_skewed_density_and_a_normal_one():
    """y - exp(y) at shape 2, a log-gamma variable, beside a normal with standard deviation 0.5."""

    def energy(z):
        return jnp.exp(z["skewed"]) - 2 * z["skewed"] + 2 * z["normal"] ** 2

    begin = {"skewed": jnp.zeros(50), "normal": jnp.zeros(50)}
    run = jax.jit(lambda key: hmc.sample(energy, key, begin, 60, 10, 200, 1.0))(jax.random.key(0))
    skewed, normal = (np.asarray(run.draws[k], np.float64) for k in ("skewed", "normal"))
    assert skewed.shape == (200, 50)
    for draws, expected in ((skewed, 1 - np.euler_gamma), (normal, 0.0), (normal**2, 0.25)):
        means = draws.mean(0)
        assert abs(means.mean() - expected) < 4 * means.std() / 50**0.5
    assert np.var(skewed) == pytest.approx(np.pi**2 / 6 - 1, abs=0.05)
    assert 0.6 < run.accept < 0.95
    assert run.spent >= 60 * hmc.SHORT + 200 * run.leapfrogs


def test_scores_of_an_average_and_their_error_over_chains():
    """Of test rows that are all the same the jackknife is that of a mean, through the logarithm."""
    rng = np.random.default_rng(0)
    right = rng.uniform(0.5, 0.52, size=(8, 3))
    probs = np.stack([right, 1 - right], -1)[:, :, None].repeat(2, 2)
    found = average_scores.scored(probs, np.array([0, 0]))
    assert found.rows == pytest.approx(np.log(right.mean()))
    error = right.mean(1).std(ddof=1) / 8**0.5 / right.mean()
    assert found.monte_carlo == pytest.approx(error, rel=0.02)
    assert found.error == 0
    lower = found._replace(rows=found.rows - 0.5, without=found.without - 0.5)
    gap = average_scores.against(found, lower, "gain")
    assert gap["gain"] == pytest.approx(0.5)
    assert gap["gain chains"] == pytest.approx(found.monte_carlo * 2**0.5)


def test_the_score_of_few_draws_is_corrected_to_that_of_many():
    """The mean logarithm of an average of eight falls short by half its relative variance."""
    rng = np.random.default_rng(0)
    right = rng.uniform(0.1, 0.9, size=(8, 1, 40_000))
    found = average_scores.scored(np.stack([right, 1 - right], -1), np.zeros(40_000, int))
    exact, few = math.log(0.5), math.log(0.5) - 0.8**2 / 12 / 8 / 0.5**2 / 2
    assert found.rows.mean() == pytest.approx(few, abs=0.003)
    assert found.of_the_posterior.mean() == pytest.approx(exact, abs=0.003)
    assert average_scores.against_ensemble(found, found)["over ensemble"] == pytest.approx(
        exact - few, abs=0.003
    )


def _row(rows, subset, temperature, gain, prior=1):
    gap = {"gain": gain, "gain rows": 0.003, "gain chains": 0.004}
    ensemble = {"over ensemble": 0.2, "over ensemble rows": 0.0, "over ensemble chains": 0.0}
    own = {"rows": rows, "subset": subset, "prior": prior, "temperature": temperature}
    own |= {"shifts": verdicts.UNMOVED}
    return own | gap | ensemble | {"method": "HMC", "median R-hat": 1.0 + temperature}


def test_verdicts_join_errors_of_rows_chains_and_subsets():
    one = verdicts.gap_of([_row(300, 0, 0.1, 0.01)], "gain")
    assert one == (pytest.approx(0.01), pytest.approx(0.005))
    assert not one._replace(value=-0.0099).is_sure
    assert one._replace(value=-0.0101).is_sure
    two = verdicts.gap_of([_row(300, s, 0.1, g) for s, g in ((0, 0.01), (1, 0.03))], "gain")
    assert two.value == pytest.approx(0.02)
    assert two.error == pytest.approx(math.sqrt(0.01**2 + 0.003**2 + 0.004**2 / 2))


def test_t_of_one_is_best_unless_another_is_more_than_two_errors_above():
    rows = [_row(300, 0, t, g) for t, g in ((0.1, 0.009), (1, 0), (3, -0.5))]
    rows += [_row(1000, 0, t, g) for t, g in ((0.1, 0.011), (1, 0), (3, 0.001))]
    near, far = verdicts.verdicts(rows)
    assert (near.best, near.one_is_best) == (0.1, True)
    assert (far.best, far.one_is_best, far.better) == (0.1, False, [0.1])
    assert far.rhat == pytest.approx(4.0)
    first, _ = verdicts.averaged(rows)
    assert first["T = 0.1 over T = 1"] == "0.009 ± 0.005"
    assert first["T = 1 within two errors of it"] == "yes"
