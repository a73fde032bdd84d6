"""One noise for all inputs is one function; a second run of the same distribution, by hand."""

import warnings

import numpy as np
import pytest

from numpyro_bnn import diagnostics

with warnings.catch_warnings():
    # What old Matplotlib and old ArviZ say about their own dependencies when first imported.
    warnings.simplefilter("ignore")
    from test_rhat import autoregressive


def test_one_noise_for_all_inputs_is_one_function(rng):
    mean, noise = rng.normal(size=(4, 200, 30)), autoregressive(rng, (4, 200), 0.95)
    scale = np.broadcast_to(np.exp(noise)[:, :, None], mean.shape)
    space = diagnostics.diagnose_draws(predictions={"mean": mean, "scale": scale}).predictions
    assert space.num_scalars == 31
    assert space.max_rhat == pytest.approx(diagnostics.rhat(noise))
    # Counted once for every input, it would be the median.
    assert space.median_rhat < 1.02 < space.max_rhat
    scale = scale + np.where(np.arange(30) == 7, 0.1, 0.0)
    space = diagnostics.diagnose_draws(predictions={"mean": mean, "scale": scale}).predictions
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
