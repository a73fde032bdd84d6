"""Chains compared with each other, and with those of a second run."""

import warnings

import numpy as np
import pytest

from numpyro_bnn import diagnostics
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.checked_draws import copies_of, without_copies


def test_variance_parts_add_up_to_the_variance_of_all_draws(rng):
    x = rng.normal(size=(4, 30, 5)) + rng.normal(size=(4, 1, 5))
    parts = diagnostics.variance_parts(x)
    np.testing.assert_allclose(parts.within, x.var(axis=1).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(parts.between, x.mean(axis=1).var(axis=0), rtol=1e-12)
    for groups in (None, [0, 0, 0, 1], ["a", "b", "a", "b"]):
        parts = diagnostics.variance_parts(x, groups)
        total = x.reshape(120, 5).var(axis=0)
        np.testing.assert_allclose(parts.within + parts.between, total, rtol=1e-12)
        np.testing.assert_allclose(parts.share, parts.between / total, rtol=1e-12)
    one = diagnostics.variance_parts(x, np.zeros(4))
    np.testing.assert_allclose(one.between, 0, atol=1e-15)


W = np.random.default_rng(1).normal(size=(2, 100, 3))


WEIGHTS = {"w": W}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: diagnose_draws(), ValueError, "neither weights nor predictions"),
        (lambda: diagnose_draws({}, {}), ValueError, "neither weights nor predictions"),
        (lambda: diagnose_draws(log_likelihood=W), ValueError, "predictions nor a log joint"),
        (lambda: diagnose_draws(None, W, tolerance=0.01), TypeError, "a bnn.Tolerance, got 0.01"),
        (
            lambda: diagnose_draws(None, W, log_likelihood=W[:, :50]),
            ValueError,
            r"\(2, 50\) in 'log likelihood'",
        ),
        (lambda: diagnose_draws(WEIGHTS, W[:1]), ValueError, r"\(2, 100\) .* \(1, 100\) in"),
        (lambda: diagnose_draws({"w": np.ones(3)}), ValueError, r"weights 'w': .*shape \(3,\)"),
        (
            lambda: diagnose_draws(WEIGHTS, sample_stats={"diverging": np.zeros(200)}),
            ValueError,
            r"\['diverging'\] must have shape .* \(2, 100\), got \(200,\)",
        ),
        (lambda: diagnose_draws(WEIGHTS, second=({"w": W}, None)), ValueError, "weights alone"),
        (
            lambda: diagnose_draws(None, {"mean": W, "scale": W[..., :1]}),
            IndexError,
            "out of bounds",
        ),
        (
            lambda: diagnose_draws(None, W, second=(None, W[..., :2])),
            ValueError,
            "broadcast together",
        ),
        (lambda: diagnose_draws(None, W, second=(None, W * np.nan)), ValueError, "finite draws"),
    ],
)
def test_a_mistake_gets_an_error_that_names_it(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_constants_that_differ_by_rounding_are_not_parted(rng, noise):
    one = np.full((2, 100, 3), 0.1) * (1 + noise * rng.normal(size=(2, 100, 3)))
    found = diagnostics.compare_draws({"scale": one}, {"scale": one * (1 + 1e-9)})
    assert found.agrees
    assert not diagnostics.compare_draws({"scale": one}, {"scale": one * 1.01}).agrees


@pytest.mark.parametrize("short", [1, 3])
def test_a_second_run_of_a_few_draws_is_too_short_and_parts_from_nothing(rng, short):
    x = rng.normal(size=(4, 200, 5))
    found = diagnostics.compare_draws({"y": x}, {"y": x[:, :short]})
    assert found.too_short
    assert not found.agrees
    assert (found.num_compared, found.num_parted) == (0, 0)
    report = diagnose_draws(None, x, second=(None, x[:, :short]))
    assert "The second run is too short to be compared" in report.sentences[-1]
    assert "Averages of a second run" not in report.explanation
    assert diagnostics.compare_draws({"y": x}, {"y": x[:, :4]}).num_compared == 20


# -- what nothing between chains depends on ----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "measure", "power"),
    [
        ("rhat", lambda x: diagnostics.rhat(x), 0),
        ("within", lambda x: diagnostics.variance_parts(x).within, 2),
        ("between", lambda x: diagnostics.variance_parts(x).between, 2),
        ("share", lambda x: diagnostics.variance_parts(x).share, 0),
    ],
)
def test_order_of_chains_units_and_origin_do_not_matter(rng, name, measure, power):
    x = rng.normal(size=(4, 100, 3)) + rng.normal(size=(4, 1, 3))
    expected = measure(x)
    np.testing.assert_allclose(measure(x[[2, 0, 3, 1]]), expected, rtol=1e-9)
    np.testing.assert_allclose(measure(x + 7.0), expected, rtol=1e-8)
    for unit in (1e-4, -3.0, 1e5):
        np.testing.assert_allclose(measure(unit * x), abs(unit) ** power * expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("order", "copies"),
    [([0, 1, 2], {}), ([0, 0, 1], {1: 0}), ([0, 1, 1, 0, 2, 1], {2: 1, 3: 0, 5: 1})],
)
def test_copies_are_numbered_by_the_first_chain_that_they_equal(rng, order, copies):
    first, second = rng.normal(size=(3, 7, 2)), rng.normal(size=(3, 7))
    arrays = {"w": first[order], "b": second[order], "other": np.arange(99.0)}
    assert copies_of([arrays["w"], arrays["b"]]) == copies
    kept = without_copies(arrays, copies, len(order))
    left = [chain for chain in range(len(order)) if chain not in copies]
    np.testing.assert_array_equal(kept["w"], arrays["w"][left])
    assert kept["other"] is arrays["other"]
    # A last draw that differs makes two chains of them.
    arrays["b"][-1, -1] += 1e-9
    assert len(order) - 1 not in copies_of([arrays["w"], arrays["b"]])


# -- a second run ------------------------------------------------------------------------------


with warnings.catch_warnings():
    # What old Matplotlib and old ArviZ say about their own dependencies when first imported.
    warnings.simplefilter("ignore")
    from test_rhat import autoregressive


def test_one_noise_for_all_inputs_is_one_function(rng):
    mean, noise = rng.normal(size=(4, 200, 30)), autoregressive(rng, (4, 200), 0.95)
    scale = np.broadcast_to(np.exp(noise)[:, :, None], mean.shape)
    report = diagnose_draws(predictions={"mean": mean, "scale": scale})
    assert report.monte_carlo_error.by_row["relative"].shape == (30,)
    space = report.predictions
    assert space.num_scalars == 31
    assert space.max_rhat == pytest.approx(diagnostics.rhat(noise))
    # Counted once for every input, it would be the median.
    assert space.median_rhat < 1.02 < space.max_rhat
    scale = scale + np.where(np.arange(30) == 7, 0.1, 0.0)
    space = diagnose_draws(predictions={"mean": mean, "scale": scale}).predictions
    assert space.num_scalars == 60


def test_a_second_run_of_the_same_distribution_agrees_and_a_missed_tail_parts(rng):
    first = {"tau": autoregressive(rng, (4, 500), 0.5), "f": rng.normal(size=(4, 500, 20))}
    second = {"tau": autoregressive(rng, (2, 700), 0.5), "f": rng.normal(size=(2, 700, 20))}
    opinion = diagnostics.compare_draws(first, second)
    assert opinion.agrees
    assert opinion.num_compared == 21 * 4
    # A run that never enters the upper tail has nearly the same mean.
    second["tau"] = np.minimum(second["tau"], 1.5)
    missed = diagnostics.compare_draws(first, second)
    assert {(p.site, p.quantity) for p in missed.worst} == {("tau", "P(below the 95 % quantile)")}
    second["f"] = second["f"] + np.array([0.5] + 19 * [0.0])
    assert "f[0]" in {p.site for p in diagnostics.compare_draws(first, second).worst}


def test_runs_on_both_sides_of_a_quantile_part_by_a_finite_number_of_errors(rng):
    # Each share is 0 or 1 and has no spread; that of both together has.
    first, second = rng.normal(size=(2, 500)), rng.normal(size=(2, 500)) + 100
    worst = diagnostics.compare_draws({"x": first}, {"x": second}).worst
    (median,) = (p for p in worst if "50 %" in p.quantity)
    assert (median.first, median.second) == (1.0, 0.0)
    assert median.errors == pytest.approx(1 / (0.5 * np.sqrt(2 / 1000)))


def test_the_error_of_a_second_opinion_is_calibrated(rng):
    first, second = (autoregressive(rng, (2, 300, 400), 0.7) for _ in range(2))
    from numpyro_bnn.diagnostics.compare_runs import _compare_block

    for q in (None, 0.05, 0.5):
        _, _, apart = _compare_block(first, second, q)
        # Half-normal: the mean square is one.
        assert np.mean(apart**2) == pytest.approx(1.0, abs=0.25)
