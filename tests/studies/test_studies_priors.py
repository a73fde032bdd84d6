"""Studies of priors: their models, exact processes and errors are what they are said to be."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import numpyro_bnn as bnn
from benchmarks.priors import (
    evidence,
    gaussian_process_limit,
    hierarchy_helps,
    prior_scale,
    small_tables,
    weight_decay,
)


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


def test_noise_columns_leave_the_rows_as_they_are():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=shape).astype("f") for shape in ((5, 2), (5,), (7, 2), (7,))]
    split = small_tables.Split(*parts)
    wide = small_tables.with_noise_columns(split, 3, 1)
    assert wide.x.shape == (5, 5)
    assert wide.x_test.shape == (7, 5)
    assert wide.x.dtype == np.float32
    np.testing.assert_array_equal(wide.x[:, :2], split.x)
    np.testing.assert_array_equal(wide.x_test[:, :2], split.x_test)
    assert np.abs(wide.x[:, 2:]).max() > 0.1


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


def test_a_penalty_ends_at_a_mode_and_decoupled_decay_does_not(shared):
    """Of a linear network, whose mode is a ridge regression, trained to its end."""
    rows = small_tables.few_rows(shared / "data", "yacht", 0, 40, 10)
    x, y = np.float32(rows.x), np.float32(rows.y)
    inputs = np.c_[x, np.ones(len(x))].astype(np.float64)
    ridge = np.eye(inputs.shape[1]) * weight_decay.NOISE**2
    expected = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ y)
    found = {}
    for method in ("penalty, Adam", weight_decay.DECOUPLED):
        params = weight_decay.trained(method, x, y, 1 / len(x), 20_000, 0, network=bnn.MLP((), 1))
        found[method] = np.r_[params["Dense_0"]["kernel"][:, 0], params["Dense_0"]["bias"]]
    np.testing.assert_allclose(found["penalty, Adam"], expected, atol=1e-3)
    assert np.abs(found[weight_decay.DECOUPLED] - expected).max() > 1e-2
