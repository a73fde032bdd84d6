"""The studies of hierarchies and of evidence: they run, and their own arithmetic is right."""

import csv
import importlib
import math
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from numpyro.infer.gibbs import Gibbs
from numpyro.util import nested_attrgetter

import numpyro_bnn as bnn
from numpyro_bnn.chains import fields_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not beside the tests", allow_module_level=True)


def script(name):
    """A script of the folder, whose own imports find their neighbours."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hierarchy_helps", "evidence", "mixing"])
def test_a_study_runs_and_computes_every_cell_once(name, shared, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    given = ["--toy", "--output", str(tmp_path), "--data", str(shared / "data")]
    script(name).main(given)
    text = (tmp_path / f"{name}.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert rows
    for row in rows:
        for value in row.values():
            try:
                number = float(value)
            except ValueError:
                continue
            assert math.isfinite(number)
    for ending in ("md", "png"):
        assert (tmp_path / f"{name}.{ending}").stat().st_size > 100
    script(name).main(given)
    assert (tmp_path / f"{name}.csv").read_text() == text


METHODS = script("hierarchical_posteriors").METHODS


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_sampler_of_hierarchies_takes_a_step(name, shared):
    """Traced, not computed: kernel, coordinates and moves fit, and the fields that runs keep are there."""
    hard = script("hierarchical_posteriors")
    given = hard.posterior(shared / "data", "yacht", 30)
    kernel = hard.kernel_of(METHODS[name], given, 10)
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


def test_relevance_of_columns_is_that_of_their_weights():
    kernel = np.zeros((2, 3, 4, 5))  # chains, draws, columns, units
    kernel[..., 0, :], kernel[..., 1, :] = 3.0, 1.0
    kernel[..., 2, :], kernel[..., 3, :] = 0.5, 2.5
    kernel[:, 0, 3] = 0.5  # in two of six draws the last column is as small as the third
    found = script("small_tables").relevance(kernel, real=2)
    assert found["weights_real"] == pytest.approx(2.0)
    assert found["weights_noise"] == pytest.approx((2 * 0.5 + 4 * 1.5) / 6)
    assert found["noise_above"] == pytest.approx(4 / 12)
    assert script("small_tables").relevance(kernel, real=4)["weights_noise"] == 0.0


def test_noise_columns_leave_the_rows_as_they_are():
    tables = script("small_tables")
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=shape).astype("f") for shape in ((5, 2), (5,), (7, 2), (7,))]
    split = tables.Split(*parts)
    wide = tables.with_noise_columns(split, 3, 1)
    assert wide.x.shape == (5, 5)
    assert wide.x_test.shape == (7, 5)
    assert wide.x.dtype == np.float32
    np.testing.assert_array_equal(wide.x[:, :2], split.x)
    np.testing.assert_array_equal(wide.x_test[:, :2], split.x_test)
    assert np.abs(wide.x[:, 2:]).max() > 0.1


def test_no_row_is_learned_from_and_judged_by(shared):
    split = script("small_tables").few_rows(shared / "data", "yacht", 3, 150, 500)
    assert len(split.x) == 150
    assert len(split.x_test) == 308 - 150
    rows = {part.tobytes() for part in np.column_stack([split.x, split.y])}
    other = {part.tobytes() for part in np.column_stack([split.x_test, split.y_test])}
    assert not rows & other


@pytest.mark.parametrize("name", ["group", "unit", "weight"])
def test_hierarchies_are_around_the_fixed_scales(name):
    """Without its levels each prior is that of fan-in: the widths agree."""
    prior = script("small_tables").prior_named(name)
    first, other, bias = (
        prior.rules[pattern] for pattern in ("Dense_0.kernel", "*.kernel", "*.bias")
    )
    assert other.divisor("Dense_1.kernel", (10, 1)) == {"weight": 20.0}.get(name, 10.0)
    assert first.divisor("Dense_0.kernel", (3, 10)) == {"unit": 9.0, "weight": 6.0}.get(name, 3.0)
    assert bias.divisor("Dense_0.bias", (10,)) == 1.0


def test_rank_correlation_and_its_error():
    evidence = script("evidence")
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


def test_losses_are_paired_over_blocks():
    evidence = script("evidence")
    one = {f"block_{i}": float(i) for i in range(evidence.BLOCKS)}
    other = {f"block_{i}": i + 0.5 + (0.1 if i % 2 else -0.1) for i in range(evidence.BLOCKS)}
    mean, error = evidence.lost(one, other)
    assert mean == pytest.approx(0.5)
    assert error == pytest.approx(0.1 / 9**0.5)
    parts = evidence.blocks(np.arange(25.0))
    assert sorted(np.concatenate(parts)) == list(range(25))
    assert len(parts) == evidence.BLOCKS


def test_the_error_of_an_evidence_is_the_larger_of_two():
    error = script("evidence").evidence_error
    assert error(np.array([1.0, 1.0]), np.array([0.3, 0.4])) == pytest.approx(0.25)
    assert error(np.array([1.0, 3.0]), np.array([0.3, 0.4])) == pytest.approx(1.0)


def test_paired_differences_over_splits_and_tables():
    helps = script("hierarchy_helps")
    mean, error = helps.paired(np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 2.0]))
    assert mean == pytest.approx(4 / 3)
    assert error == pytest.approx(1 / 3)
    assert helps.across([1.0, 3.0]) == (pytest.approx(2.0), pytest.approx(1.0))
    rows = [
        {
            "data": data,
            "prior": prior,
            "split": split,
            "noise_columns": 0,
            "lppd": split + len(data),
        }
        for split in (1, 0)
        for data in ("a", "bb")
        for prior in helps.PRIORS
        if data == "a" or prior != "unit"
    ]
    assert helps.tables_of(rows, 0) == ["a"]
    np.testing.assert_array_equal(helps.values(rows, "lppd", data="bb", prior="group"), [2.0, 3.0])


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
    story, stored = script("neals_examples"), tmp_path / "fbm.csv"
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
    assert (tmp_path / "neals_examples.png").stat().st_size > 1000
    assert "not converged" in (tmp_path / "neals_examples.md").read_text()
