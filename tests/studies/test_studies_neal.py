"""Neal's examples: the story is what the stored rows say."""

import json

import numpy as np
import pytest
from scipy import stats

from benchmarks.neal import costs, story, tail

ROWS = """problem,route,quantity,mean,mcse,rhat,reference,reference_mcse,z
rdata,one,log_sigma_ih,1.0,0.3,1.01,-1.5,0.4,5
rdata,one,log_sigma_bh,0.0,0.3,1.02,0.5,0.4,-1
rdata,one,test_log_predictive,0.8,0.03,1.0,0.8,0.04,0
rdata,one,minor_mode_mass,0.05,0.01,1.0,0.04,0.01,0.7
rdata,one,minor_mode_log_sigma_ih,0.1,0.1,1.9,0.1,0.1,0
rdata,one,predictions_max_rhat,1.04,,,,,
rdata,one,log_evidence_replica_0,40.0,0.3,,,,
rdata,one,log_evidence_replica_1,42.0,0.4,,,,
rdata,two,log_sigma_ih,1.0,0.3,1.2,-1.5,0.4,5
rdata,two,log_sigma_bh,1.2,0.4,1.2,0.5,0.4,1
rdata,two,test_log_predictive,0.8,0.03,1.0,0.8,0.04,0
rdata,two,predictions_max_rhat,1.0,,,,,
"""


def test_neals_examples_are_told_from_their_rows(tmp_path):
    stored = tmp_path / "posteriors.csv"
    stored.write_text(ROWS)
    found = story.read(stored)
    one, two = found["rdata", "one"], found["rdata", "two"]
    z = story.from_reference(one)
    assert set(z) == {"log_sigma_ih", "log_sigma_bh", "test_log_predictive", "minor_mode_mass"}
    assert z["log_sigma_ih"] == pytest.approx(5.0)
    # The R-hat of what is within a mode is no sign of convergence.
    assert story.worst_rhat(one) == pytest.approx(1.04)
    assert story.worst_rhat(two) == pytest.approx(1.2)
    assert story.log_evidence(one) == pytest.approx((41.0, 1.0, 0.25))
    assert story.log_evidence(two) is None
    assert story.from_route(one, two)["log_sigma_bh"] == pytest.approx(-1.2 / 0.5)
    said = list(story.findings(found))
    # Neither route has converged, so that neither is held against his program or the other.
    assert said == ["Routes that converge: rdata by 0."]
    pytest.importorskip("matplotlib").use("Agg")
    assert len(story.figure(found).axes) == 1
    line = story.line("rdata", "one", one)
    assert (line["converged"], line["worst R-hat"]) == ("no", "1.040")
    assert line["minor mode"] == "0.050 ± 0.010"


def test_a_rare_mode_is_known_no_better_than_its_round_trips_allow():
    def ladder(mass, error, trips):
        return {"minor_mode_mass": {"mean": mass, "mcse": error}, "round_trips": {"mean": trips}}

    narrow, wide = ladder(0.2, 0.001, 400), ladder(0.2, 0.5, 400)
    for route in (narrow, wide):
        story.widen_minor_mode(route)
    assert narrow["minor_mode_mass"]["mcse"] == pytest.approx(0.02)
    assert narrow["minor_mode_mass"]["of its draws"] == 0.001
    assert wide["minor_mode_mass"]["mcse"] == 0.5
    other = ladder(0.26, 0.001, 100)
    story.widen_minor_mode(other)
    found = {("rdata", f"tempering noncentered {i}"): r for i, r in enumerate((narrow, other))}
    masses, errors, by_draws, by_trips, pooled, error = story.minor_mode(story.ladders_of(found))
    np.testing.assert_allclose(masses, [0.2, 0.26])
    # Two values d apart have d² / (e₁² + e₂²) for their sum of squares.
    assert by_draws == pytest.approx(0.06**2 / (2 * 0.001**2))
    assert by_trips == pytest.approx(0.06**2 / (errors**2).sum())
    assert pooled == pytest.approx(0.212)
    assert error == pytest.approx((0.212 * 0.788 / 500) ** 0.5)


def test_draws_are_held_against_those_of_his_program_by_second_and_by_gradient(tmp_path):
    numbers = {
        "kept_per_segment": 300,
        "segments": 4,
        "leapfrog_steps_per_iteration": 1000,
        "burn_in_iterations": 100,
        "cpu_seconds_kept": 60.0,
        "log_sigma": {"ih": {"ess_per_cpu_second": 5.0}, "bh": {"ess_per_cpu_second": 2.0}},
    }
    (tmp_path / "reference_open.json").write_text(json.dumps({"rdata": numbers}))
    name = costs.PREDICTED["rdata"]
    # Effective draws of predictions: 100 and 25.
    np.savez(
        tmp_path / "predictions_open.npz",
        **{f"{name}_sd": np.ones(2), f"{name}_mcse": np.array([0.1, 0.2])},
    )
    spent = {"cpu_second": 10.0, "cpu_second_of_all": 20.0, "million_gradients": 2.0}
    draws = {"log_sigma": 40.0, "predictions": 50.0}
    rows = list(costs.cost_rows("rdata", draws, spent, tmp_path))
    found = {r["quantity"]: (float(r["mean"]), float(r["reference"])) for r in rows}
    assert found == {
        "worst_ess_per_cpu_second_log_sigma": (4.0, 2.0),
        "worst_ess_per_cpu_second_log_sigma_of_all": (2.0, 1.5),
        "worst_ess_per_million_gradients_log_sigma": (20.0, 100.0),
        "worst_ess_per_cpu_second_predictions": (5.0, 0.4167),
        "worst_ess_per_cpu_second_predictions_of_all": (2.5, 0.3125),
        "worst_ess_per_million_gradients_predictions": (25.0, 20.83),
    }
    assert "reference" not in next(costs.cost_rows("surv", draws, spent, tmp_path))


@pytest.mark.parametrize("slope", [0.0, -2.0, 0.5])
def test_the_curve_of_a_scale_is_its_posterior(slope):
    """Where Z(σ) is σ^c, τ = σ^(-2) has the distribution Gamma(1/2 - c/2, W²/2)."""
    curve = tail.curve_of(np.array([-3.0, 0.0, 1.0]), np.full(3, slope))
    distribution = stats.gamma(0.5 - slope / 2, scale=2 * tail.UNITS / tail.WIDTH**2)
    # Of log scales in the grid, -4 to 6.
    least, most = distribution.cdf(np.exp([-12.0, 8.0]))
    for value in (-2.0, 0.0, 1.5):
        expected = (distribution.cdf(np.exp(-2 * value)) - least) / (most - least)
        np.testing.assert_allclose(curve.above(value), expected, rtol=0.02)
