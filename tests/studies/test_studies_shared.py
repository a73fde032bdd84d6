"""What studies share: cells of a table, stored results, convergence; and the studies of the judge."""

import numpy as np
import pytest

from benchmarks._shared import chain_errors, sampled_runs, splits, study
from benchmarks.diagnostics import stored_reports, verdict_calibration


def test_curves_survive_a_cell_and_chains_that_disagree_have_not_converged():
    values = np.array([0.5, -1.25, 3e-7])
    np.testing.assert_array_equal(study.from_text(study.as_text(values)), values)
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 500, 3))
    assert sampled_runs.convergence(draws)["converged"] == "yes"
    draws[0, :, 2] += 2
    found = sampled_runs.convergence(draws)
    assert found["converged"] == "no"
    assert found["worst R-hat"] > 1.1 > 1.01 > found["median R-hat"]
    assert sampled_runs.convergence(draws[:, :1])["converged"] == ""


def test_the_error_over_splits_is_that_of_nadeau_and_bengio():
    """A fifth tested and seven tenths fitted, five times: 1.56 times that of independent splits."""
    values = np.array([1.0, 2.0, 4.0, 5.0, 8.0])
    independent = values.std(ddof=1) / 5**0.5
    assert splits.split_error(values, 0.2, 0.7) == pytest.approx(
        independent * (1 + 5 * 0.2 / 0.7) ** 0.5
    )
    assert splits.split_error(values, 0.2, 0.7) / independent == pytest.approx(1.56, abs=0.005)
    assert splits.split_error(values, 200, 700) == splits.split_error(values, 0.2, 0.7)
    assert np.isnan(splits.split_error(values[:1], 0.2, 0.7))


def test_the_error_over_splits_covers_means_over_random_splits():
    """Scores are means over the tested rows of a table: splits that overlap share their luck."""
    rng = np.random.default_rng(0)
    errors, squares = [], []
    for _ in range(400):
        rows = rng.normal(size=40)
        scores = np.array([rows[rng.permutation(40)[:10]].mean() for _ in range(8)])
        errors.append(splits.split_error(scores, 10, 30) ** 2)
        squares.append(scores.mean() ** 2)
    # Each split has the variance of ten rows, two share a quarter of it: exact here.
    assert np.mean(errors) / np.mean(squares) == pytest.approx(1, abs=4 * 2**0.5 / 400**0.5)
    naive = np.mean(errors) / (1 + 8 / 3)
    assert naive / np.mean(squares) < 0.4


def test_the_average_without_a_chain_is_that_of_the_others():
    density = np.array([[0.2, 0.5], [0.4, 0.1], [0.9, 0.3]])
    found = chain_errors.without_each(np.log(density))
    np.testing.assert_allclose(np.exp(found), [[0.65, 0.2], [0.55, 0.4], [0.3, 0.3]])


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=7)
    without = [np.delete(values, k).mean() for k in range(7)]
    expected = values.std(ddof=1) / 7**0.5
    assert chain_errors.jackknife_error(np.array(without)) == pytest.approx(expected)
    with pytest.raises(ValueError, match="got 1 chain"):
        chain_errors.jackknife_error(np.array([0.5]))


def test_the_jackknife_over_chains_is_the_spread_of_log_scores_of_averages():
    """Densities of a row 1 + e under each chain: the log of a mean over K varies by sd(e) / √K."""
    rng = np.random.default_rng(0)
    chains, spread = 4, 0.1
    by_chain = np.log(1 + spread * rng.normal(size=(3000, chains)))
    scores = np.log(np.exp(by_chain).mean(1))
    # All runs at once, as rows of one: calls take longer than their numbers.
    without = chain_errors.without_each(by_chain.T)
    errors = [chain_errors.jackknife_error(run) for run in without.T]
    assert scores.std() == pytest.approx(spread / chains**0.5, rel=0.05)
    assert np.mean(np.square(errors)) ** 0.5 == pytest.approx(scores.std(), rel=0.05)


def test_the_report_is_cut_out_of_what_the_main_job_prints():
    output = (
        "digits: 3 rows\n    Scores on 450 test rows   \n| MAP |\nVerdict: x\nAll of it: /a/b\n"
    )
    assert stored_reports.printed(output) == "    Scores on 450 test rows\n| MAP |\nVerdict: x\n"


def test_a_cell_falls_short_by_errors_of_its_independent_scalars():
    row = {"within": 0.5, "runs": 40, "scalars": 1, "covered": 0.9 - 2 * np.sqrt(0.09 / 20)}
    assert np.isclose(verdict_calibration.short_of(row), 2)
    many = row | {"scalars": 300}
    assert np.isclose(verdict_calibration.short_of(many), 2 * np.sqrt(verdict_calibration.FACTORS))
