"""Neal's examples: the story is what the stored rows say."""

import json

import numpy as np
import pytest
from pages_of_studies import EVIDENCE, FOLDER, GUIDE, NEAL, line, page, plain, with_error
from scipy import stats

from benchmarks.neal import costs, story, tail

pytestmark = pytest.mark.usefixtures("quick_compile")


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
    pytest.importorskip("matplotlib").use("Agg")
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
    assert any("3 of 4 means within three joint errors" in s and "log_sigma_ih" in s for s in said)
    assert not any("both converged" in s for s in said)
    story.main(["--rows", str(stored), "--output", str(tmp_path)])
    assert (tmp_path / "story.png").stat().st_size > 1000
    assert "not converged" in (tmp_path / "story.md").read_text()


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


def neal_told(found, earlier):
    """Parts of sentences on the minor mode and on speed, with the pages that hold them."""
    masses, errors, by_draws, by_trips, pooled, error = story.minor_mode(
        story.ladders_of(found | earlier)
    )
    # Stored in the order HMC, MAMS, NUTS; earlier ones last.
    order = [0, 2, 1]
    yield (
        NEAL,
        line(
            "mass of the minor mode",
            *(with_error((masses[i], errors[i]), 3) for i in order),
            "0.040 ± 0.016",
        ),
    )
    yield NEAL, f"{masses[3]:.3f} ± {errors[3]:.3f} (400 steps on all rungs"
    yield NEAL, f"and {masses[4]:.3f} ± {errors[4]:.3f}. With"
    yield NEAL, f"sum of squares {by_draws:.1f} on {len(masses) - 1} degrees of freedom"
    yield (
        NEAL,
        f"round trips it is {by_trips:.1f}, and the mean over all round trips {pooled:.3f} ± {error:.3f}",
    )
    yield EVIDENCE, f"the minor mode {pooled:.3f} ± {error:.3f} over five ladders"
    yield (
        GUIDE,
        f"{masses[0]:.3f} ± {errors[0]:.3f} and {masses[2]:.3f} ± {errors[2]:.3f} on the minor mode",
    )
    yield GUIDE, f"five ladders {pooled:.3f} ± {error:.3f}"
    rdata, cdata = found["rdata", "tempering noncentered"], found["cdata", "noncentered"]

    def ratio(rows, unit):
        row = rows[f"worst_ess_per_{unit}"]
        return f"{row['mean'] / row['reference']:.2g}"

    def scales(unit):
        return " and ".join(ratio(rows, unit) for rows in (rdata, cdata))

    def pair(rows, unit):
        own = (unit.format(what) for what in ("log_sigma", "predictions"))
        return " and ".join(f"{float(ratio(rows, name)):.2g}" for name in own)

    second, every, gradients = story.UNITS
    yield EVIDENCE, f"by gradient {scales(gradients.format('log_sigma'))} times his"
    yield EVIDENCE, f"by CPU second {scales(second.format('log_sigma'))} times, with the warm-up"
    yield EVIDENCE, f"with the warm-up of both {scales(every.format('log_sigma'))}: a gradient"
    yield NEAL, f"{pair(rdata, second)} times his in the stored run"
    yield NEAL, f"With the warm-up of both it is {pair(rdata, every)} times, by gradient (those"
    yield (
        NEAL,
        f"the warm-up of both it is {pair(cdata, every)} times, by gradient {pair(cdata, gradients)}",
    )
    centred = found["rdata", "tempering centered"]["minor_mode_mass"]
    yield NEAL, f"not converged, has {centred['mean']:.3f} ± {centred['mcse']:.3f}"
    own = rdata["microseconds_a_gradient"]["mean"]
    by_second, by_gradient = (
        rdata[f"worst_ess_per_{unit.format('log_sigma')}"]["reference"]
        for unit in (second, gradients)
    )
    yield NEAL, f"a gradient takes {own:.1f} µs here and {by_gradient / by_second:.1f} there"
    worst = {key: story.worst_rhat(rows) for key, rows in found.items()}
    ladders = [worst["rdata", f"tempering noncentered{inner}"] for inner in ("", " NUTS", " MAMS")]
    yield NEAL, f"HMC, NUTS and MAMS ({min(ladders):.3f} to {max(ladders):.3f})"
    for text, route in (("long trajectories", "noncentered"), ("not by collapsed", "collapsed")):
        both = [f"{worst[name, route]:.3f}" for name in ("cdata", "surv")]
        yield NEAL, f"{text} ({both[0]}, {both[1]})"
    bdata = [worst["bdata", route] for route in ("tempering noncentered", "noncentered")]
    yield NEAL, f"bdata by tempering ({bdata[0]:.3f}), not by such HMC ({bdata[1]:.3f})"
    odata = [worst["odata", f"tempering noncentered{inner}"] for inner in ("", " NUTS")]
    yield NEAL, f"tempering with HMC has {odata[0]:.3f}, with NUTS {odata[1]:.3f}"
    seeds = [rows for (_, route), rows in earlier.items() if "seed" in route]
    for what, before in (("log_sigma", "gave"), ("predictions", "and")):
        own = [ratio(rows, second.format(what)) for rows in seeds]
        yield NEAL, f"{before} {own[0]}, {own[1]} and {own[2]} times"


def integrated_told(found):
    """What the page says of ladders of rdata whose output layer is integrated out."""
    for (_, route), rows in found.items():
        mass = rows["minor_mode_mass"]
        evidence = [rows[f"log_evidence_replica_{i}"]["mean"] for i in range(4)]
        z = story.from_reference(rows)
        rates = [
            rows[f"worst_ess_per_million_gradients_{what}"]["mean"]
            for what in ("log_sigma", "predictions")
        ]
        yield line(
            route.removeprefix("tempering noncentered integrated, "),
            with_error((mass["mean"], mass["mcse"]), 3),
            f"{max(abs(v) for name, v in z.items() if name.startswith('log_sigma')):.1f}",
            with_error([rows["test_log_predictive"][k] for k in ("mean", "mcse")], 4),
            f"{min(evidence):.1f} to {max(evidence):.1f}",
            f"{story.mean(rows, 'round_trips'):.0f}",
            f"{story.worst_rhat(rows):.3f}",
            f"{rates[0]:.0f} and {rates[1]:.0f}",
        )


def integrated_rows():
    return story.read(FOLDER / "neal" / "results" / "posteriors_integrated.csv")


def test_the_page_says_what_integrated_ladders_of_rdata_found():
    told = [*integrated_told(integrated_rows())]
    assert told
    assert not [text for text in told if plain(text) not in page(NEAL)]
    changed = integrated_rows()
    next(iter(changed.values()))["minor_mode_mass"]["mean"] *= 1.5
    assert [text for text in integrated_told(changed) if plain(text) not in page(NEAL)]


def neal_missing(found, earlier):
    return [text for name, text in neal_told(found, earlier) if plain(text) not in page(name)]


@pytest.fixture
def neal_rows():
    results = FOLDER / "neal" / "results"
    return [story.read(results / f"posteriors{end}.csv") for end in ("", "_earlier_runs")]


def test_neals_pages_say_what_the_rows_say(neal_rows):
    assert not neal_missing(*neal_rows)


@pytest.mark.parametrize(
    ("earlier", "route", "quantity"),
    [
        (1, "tempering noncentered, 400 steps on all rungs", "minor_mode_mass"),
        (0, "tempering noncentered", "worst_ess_per_million_gradients_log_sigma"),
        (0, "tempering noncentered", "worst_ess_per_cpu_second_predictions_of_all"),
        (1, "tempering noncentered, 9000 sweeps, seed 1", "worst_ess_per_cpu_second_log_sigma"),
    ],
)
def test_a_row_of_neals_that_changes_is_seen(neal_rows, earlier, route, quantity):
    neal_rows[earlier]["rdata", route][quantity]["mean"] *= 1.5
    assert neal_missing(*neal_rows)


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
