"""Every verdict, what comes before what, how much longer."""

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from autoregressive import autoregressive
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.convergence.rhat import labels_of_rest
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import mean_errors
from numpyro_bnn.diagnostics.report import with_suspects
from numpyro_bnn.diagnostics.verdict import Verdict
from numpyro_bnn.posterior.draws import NOT_READ

TOLERANCE = bnn.Tolerance()


def stationary(rng, shape, rho=0.33):
    return autoregressive(rng, shape, rho)


def classes(x, scale=0.3):
    p = 1 / (1 + np.exp(-scale * x))
    return {"probs": np.stack([p, 1 - p], axis=-1)}


def gaussian(x):
    """A mean that varies by a tenth of the noise, which is the same at all rows."""
    return {"mean": 0.1 * x, "scale": np.ones_like(x)}


KINDS = {"array": lambda x: x, "classes": classes, "gaussian": gaussian}


def test_superchains_that_remember_their_starts_are_run_longer(rng):
    x = stationary(rng, (64, 600, 20), rho=0.33)
    assert diagnose_draws(None, x).verdict == "within_tolerance"
    starts = np.repeat(rng.standard_normal((8, 1, 20)), 8, axis=0)
    x += 3 * starts * 0.98 ** np.arange(600)[:, None]
    report = diagnose_draws(None, x, superchains=8)
    assert report.agreement.nested_rhat > report.agreement.nested_rhat_limit
    assert report.verdict in ("run_longer", "chains_disagree")
    assert "remember where they started" in report.explanation
    labels = np.repeat(np.arange(8), 8)
    again = diagnose_draws(None, x, superchains=labels).agreement
    assert again.nested_rhat == report.agreement.nested_rhat


def test_superchains_too_short_for_the_test_are_compared_all_the_same(rng):
    x = stationary(rng, (64, 100, 20), rho=0.95)
    report = diagnose_draws(None, x)
    assert not report.agreement.tested
    assert "superchains=number of groups" in report.explanation
    report = diagnose_draws(None, x, superchains=8)
    assert "have forgotten their starts" in report.explanation
    assert report.verdict == "run_longer"


@pytest.mark.parametrize("kind", KINDS)
def test_stationary_chains_that_are_long_enough_are_within_tolerance(rng, kind):
    report = diagnose_draws(None, KINDS[kind](stationary(rng, (4, 1000, 20))))
    assert report.verdict == "within_tolerance", str(report)
    assert report.needed <= 1
    assert report.agreement.groups == 1
    assert report.agreement.p_max > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_chains_at_different_places_disagree(rng, kind):
    x = stationary(rng, (4, 600, 20))
    x[2] += 1.5
    report = diagnose_draws(None, KINDS[kind](x))
    assert report.verdict == "chains_disagree", str(report)
    assert report.agreement.groups == 2
    np.testing.assert_array_equal(report.agreement.members, [0, 0, 1, 0])
    assert "(0, 1, 3 | 2)" in report.explanation
    assert "ParallelTempering" in report.explanation


@pytest.mark.parametrize("kind", ["array", "classes"])
def test_few_draws_of_chains_that_agree_ask_for_more_by_the_square(rng, kind):
    x = KINDS[kind](stationary(rng, (4, 150, 40), 0.5) * 3)
    report = diagnose_draws(None, x)
    assert report.verdict == "run_longer", str(report)
    error, what = report.monte_carlo_error.needed(TOLERANCE)
    assert (report.needed, report.needed_by) == (error, what)
    assert report.needed > 1
    assert "times as many draws" in report.advice
    # A tolerance that is wider by the root of it is just met.
    factor = 1.001 * report.needed**0.5
    wider = bnn.Tolerance(0.01 * factor, 0.1 * factor, 0.005 * factor)
    assert diagnose_draws(None, x, tolerance=wider).verdict == "within_tolerance"


def test_worst_rows_are_named(rng):
    x = stationary(rng, (4, 600, 200), 0.0)
    # Slow rows: their average is known less well, by the root of their autocorrelation time.
    x[:, :, [17, 90, 91]] = stationary(rng, (4, 600, 3), 0.94)
    report = diagnose_draws(None, x)
    assert report.verdict == "within_tolerance_on_average", str(report)
    assert report.needed > 1
    assert report.needed_by == "error in predictive sd of the worst rows"
    rows = report.monte_carlo_error.by_row["relative"]
    assert f"{(rows > 0.1).sum()} of 200 rows err by more than 0.1" in report.explanation
    assert set(np.flatnonzero(rows > 0.1)) <= {17, 90, 91}


def test_slow_chains_are_not_compared_and_say_when_they_can_be(rng):
    report = diagnose_draws(None, stationary(rng, (4, 400, 10), 0.97))
    assert report.verdict == "run_longer"
    assert not report.agreement.tested
    assert report.needed == max(
        report.agreement.needed, report.monte_carlo_error.needed(TOLERANCE)[0]
    )
    assert report.needed > 1
    assert "cannot be tested yet" in report.explanation


@pytest.mark.parametrize("halves", [False, True])
def test_chains_of_too_few_batches_to_disagree_are_not_said_to_agree(rng, halves):
    x = stationary(rng, (2, 450, 20), 0.8)
    x[1] += 10
    report = diagnose_draws(None, x.reshape(1, 900, 20) if halves else x)
    assert report.verdict == "run_longer"
    assert "not compared yet" in report.headline
    assert report.agreement.needed > 1
    where = "in each half" if halves else "a chain"
    assert f"6 batches of {report.agreement.batch_length} draws {where}" in report.explanation


@pytest.mark.parametrize(("chains", "said"), [(8, False), (16, True)])
def test_many_chains_too_short_to_compare_are_told_of_groups_of_starts(rng, chains, said):
    report = diagnose_draws(None, stationary(rng, (chains, 120, 5), 0.9))
    assert not report.agreement.tested
    assert report.verdict == "run_longer"
    assert ("superchains=number of groups" in report.explanation) == said


def test_draws_that_never_move_are_not_known_however_many():
    # The log joint moves: the chains are no copies of each other.
    joint = np.arange(600.0).reshape(2, 300)
    report = diagnose_draws(None, np.ones((2, 300, 5)), log_joint=joint)
    assert report.verdict == "run_longer"
    assert report.needed == np.inf
    assert report.needed_by == "nothing moves"


def test_stationary_chains_pass_whatever_their_number_of_scalars(rng):
    report = diagnose_draws(None, stationary(rng, (4, 300, 4500)))
    assert report.verdict != "chains_disagree", str(report)
    # By the rule of before they would not have.
    assert report.predictions.max_rhat > 1.01
    assert report.rhat_limit > report.predictions.max_rhat - 0.005
    assert report.agreement.p > 0.01


def troubled(rng, draws, nan, apart):
    x = stationary(rng, (4, draws, 10))
    x[0] += 3.0 * apart
    if nan:
        x[1, -1, 3] = np.nan
    return x


@pytest.mark.parametrize(
    ("draws", "nan", "apart", "verdict"),
    [
        (1000, False, False, "within_tolerance"),
        (1000, False, True, "chains_disagree"),
        (99, False, True, "too_short"),
        (1000, True, True, "invalid"),
        (99, True, True, "invalid"),
        (2, True, False, "invalid"),
    ],
)
def test_invalid_before_too_short_before_disagreement_before_tolerance(
    rng, draws, nan, apart, verdict
):
    report = diagnose_draws(None, troubled(rng, draws, nan, apart))
    assert report.verdict == verdict
    judged = verdict not in ("invalid", "too_short")
    assert (report.monte_carlo_error is not None) == judged
    assert (report.agreement is not None) == judged
    # A wide tolerance makes nothing valid or long.
    wide = diagnose_draws(None, troubled(rng, draws, nan, apart), tolerance=bnn.Tolerance(1, 1e3))
    assert wide.verdict == (verdict if not judged else "within_tolerance")


def test_too_few_draws_need_the_least_number():
    report = diagnose_draws(None, np.random.default_rng(0).normal(size=(4, 40, 3)))
    assert (report.verdict, report.needed) == ("too_short", 2.5)
    assert np.isnan(diagnose_draws(None, np.full((2, 200, 3), np.nan)).needed)


def test_weights_never_enter(rng):
    x = stationary(rng, (4, 1000, 20))
    alone = diagnose_draws(None, x)
    w = rng.normal(size=(4, 1000, 5)) + 10 * np.arange(4)[:, None, None]
    beside = diagnose_draws({"w": w, "w.precision": np.exp(w)}, x, log_joint=w[..., 0])
    assert beside.verdict == alone.verdict == "within_tolerance"
    assert beside.headline == alone.headline
    assert beside.weights.max_rhat > 2
    assert "no part of the verdict" in beside.explanation


def test_without_predictions_weights_are_judged_and_it_is_said(rng):
    w = {"a": rng.normal(size=(4, 500, 3, 4)), "b": rng.normal(size=(4, 500))}
    report = diagnose_draws(w)
    assert report.verdict == "within_tolerance"
    assert "No predictions were given" in report.explanation
    w["b"] = w["b"] + np.arange(4)[:, None]
    assert diagnose_draws(w).verdict == "chains_disagree"


def test_the_log_score_enters_where_targets_are_given(rng):
    x = stationary(rng, (4, 1000, 20))
    # One factor of all rows, as wide as the log scores allow.
    common = stationary(rng, (4, 1000, 1))
    log_likelihood = -1.0 + 0.01 * x + 0.4 * common
    without = diagnose_draws(None, x)
    report = diagnose_draws(None, x, log_likelihood=log_likelihood)
    assert without.monte_carlo_error.log_score is None
    assert without.verdict == "within_tolerance"
    assert report.verdict == "run_longer"
    assert report.needed_by == "log score"
    assert "Error of the log score in nats: " in report.explanation


def test_the_group_that_scores_better_is_named(rng):
    x = stationary(rng, (4, 600, 20))
    x[[1, 3]] += 2
    report = diagnose_draws(None, x, log_likelihood=-0.5 * x**2)
    assert report.verdict == "chains_disagree"
    assert "By log score group 1 (0, 2) predicts best" in report.explanation


def test_a_target_without_any_probability_has_no_error_and_nan_is_invalid(rng):
    x = stationary(rng, (4, 1000, 5))
    score = np.full(x.shape, -1.0)
    score[1, 3, 2] = -np.inf
    assert diagnose_draws(None, x, log_likelihood=score).monte_carlo_error.log_score is not None
    score[:, :, 2] = -np.inf
    report = diagnose_draws(None, x, log_likelihood=score)
    assert report.monte_carlo_error.log_score is None
    assert "no draw gives the targets of 1 of 5 rows any probability" in report.explanation
    score[2, 7, 0] = np.nan
    report = diagnose_draws(None, x, log_likelihood=score)
    assert report.verdict == "invalid"
    assert "Chain 2 holds NaN or infinite values from draw 7 on (log likelihood)" in (
        report.explanation
    )
    assert "Leave out chain 2; the others alone get the verdict: within tolerance" in (
        report.explanation
    )


def test_the_halves_of_one_chain_stand_for_chains(rng):
    x = stationary(rng, (1, 4000, 10))
    report = diagnose_draws(None, x)
    assert report.verdict == "within_tolerance"
    assert "Verdict: within tolerance, by one chain alone: " in str(report)
    assert "One chain only: other modes cannot be seen" in report.explanation
    assert "other modes (one chain)" in str(report)
    assert report.agreement.halves
    x[:, 2000:] += 1
    report = diagnose_draws(None, x)
    assert report.verdict == "chains_disagree"
    assert report.verdict.words == "chains disagree"
    assert "The halves of the chain differ" in report.explanation


@pytest.mark.parametrize("draws", [50, 1000])
@pytest.mark.parametrize(
    ("suspect", "verdict"), [({1: "stuck"}, "chains_disagree"), (dict.fromkeys(range(4)), "invalid")]
)  # fmt: skip
def test_suspects_count_as_disagreeing_or_invalid(rng, draws, suspect, verdict):
    plain = diagnose_draws(None, stationary(rng, (4, draws, 5)))
    suspect = {chain: why or "stuck" for chain, why in suspect.items()}
    report = with_suspects(plain, suspect, 4)
    assert report.verdict == verdict
    assert isinstance(report.verdict, Verdict)
    assert np.isnan(report.needed)
    assert f"Verdict: {verdict.replace('_', ' ')}: " in str(report)
    assert f"{len(suspect)} of 4 chains suspect" in str(report)


def test_the_bias_of_a_kernel_without_correction_is_measured_by_a_second_run(rng):
    x = stationary(rng, (4, 1000, 10), 0.0)
    stats = {"configurational_temperature": 1 + 0.05 * rng.normal(size=(4, 1000))}
    alone = diagnose_draws(None, x, sample_stats=stats)
    assert "no Metropolis correction" in alone.explanation
    assert "second_opinion" in alone.explanation
    other = stationary(rng, (4, 1000, 10), 0.0) + 0.5
    beside = diagnose_draws(None, x, sample_stats=stats, second=(None, other))
    apart = (np.abs(other.mean((0, 1)) - x.mean((0, 1))) / mean_errors(x).sd).mean()
    said = f"Averages of a second run are {apart:.2g} predictive sd away"
    assert said in beside.explanation
    # What is printed says it in the place of what was not looked at.
    bias = "the bias of the step size"
    short = diagnose_draws(None, x, sample_stats=stats, second=(None, other[:, :3]))
    assert [bias in str(report) for report in (alone, short, beside)] == [True, True, False]
    assert "The second run is too short to be compared" in str(short)
    assert str(beside).count(said) == str(beside).count("A second run differs in") == 1


VERDICTS = ("within_tolerance", "within_tolerance_on_average", "run_longer", "chains_disagree")
VERDICTS += ("too_short", "invalid")


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_is_a_string_whose_words_say_if_one_chain_alone_is_within_tolerance(name):
    alone = Verdict(name, one_chain=True)
    for verdict in (alone, pickle.loads(pickle.dumps(alone)), copy.deepcopy(alone)):
        assert verdict == name == f"{verdict}"
        assert repr(verdict) == repr(name)
        within = name.startswith("within_tolerance")
        assert verdict.words.endswith(", by one chain alone") == within
        assert Verdict(name).words == verdict.words.removesuffix(", by one chain alone")
        assert verdict.at_best("run_longer").words == ("run longer" if within else verdict.words)


LABELS = np.repeat(["a", "b", "c", "d"], 3)
X = jnp.arange(1.0, 5.0)


@pytest.fixture
def draws():
    """Twelve chains, three of each start, which they remember."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(12, 200, 5)) + 0.2 * np.repeat(np.arange(4.0), 3)[:, None, None]


def with_copies(draws, copies):
    draws = draws.copy()
    for own, original in copies.items():
        draws[own] = draws[original]
    return draws


def check_equal(report, expected):
    assert report.agreement.nested_rhat is not None
    assert report.agreement.nested_rhat == expected.agreement.nested_rhat
    assert report.agreement.nested_rhat_limit == expected.agreement.nested_rhat_limit


@pytest.mark.parametrize("superchains", [4, LABELS, LABELS.tolist()])
def test_chains_without_copies_stay_in_their_superchain(draws, superchains):
    # One chain of each superchain goes: of consecutive chains the numbers would shift.
    copies = {1: 0, 5: 3, 7: 6, 11: 10}
    report = diagnose_draws(None, with_copies(draws, copies), superchains=superchains)
    kept = np.setdiff1d(np.arange(12), list(copies))
    check_equal(report, diagnose_draws(None, draws[kept], superchains=LABELS[kept]))
    assert "no nested R-hat" not in report.explanation


SINGLE = {1: 0, 2: 0, 4: 3, 5: 3, 7: 6, 8: 6, 10: 9, 11: 9}
HALVES = dict.fromkeys(range(1, 6), 0) | dict.fromkeys(range(7, 12), 6)


@pytest.mark.parametrize(
    ("superchains", "copies"),
    [(2, {1: 0, 2: 0}), (4, {1: 0}), (LABELS, {1: 0}), (4, SINGLE), (LABELS, SINGLE), (2, HALVES)],
)
def test_superchains_that_became_unequal_or_single_are_not_compared(draws, superchains, copies):
    report = diagnose_draws(None, with_copies(draws, copies), superchains=superchains)
    assert report.agreement.nested_rhat is None
    assert "so that there is no nested R-hat" in report.sentences[0]


@pytest.mark.parametrize("superchains", [4, LABELS])
@pytest.mark.parametrize("bad", [[4], [1, 4, 6, 9]])
def test_a_run_that_is_not_finite_is_invalid_with_superchains_and_without(draws, superchains, bad):
    draws[bad, 17, 2] = np.nan
    report = diagnose_draws(None, draws, superchains=superchains)
    alone = diagnose_draws(None, draws)
    assert report.verdict == alone.verdict == "invalid"
    assert report.headline == alone.headline
    # What the other chains would be said to be has their superchains where these are equal.
    rest = np.setdiff1d(np.arange(12), bad)
    labels = LABELS[rest] if len(bad) == 4 else None
    expected = diagnose_draws(None, draws[rest], superchains=labels).verdict
    assert f"the others alone get the verdict: {expected.words}" in report.explanation


model = row_model(lambda x, w: dist.Normal(w * x, 1.0), w=dist.Normal(0, 1))


@pytest.mark.parametrize("superchains", [4, LABELS])
def test_chains_that_a_run_left_out_count_in_its_superchains(draws, superchains):
    gone = [0, 4, 8, 11]
    kept = np.setdiff1d(np.arange(12), gone)
    left_out = {"left_out": dict.fromkeys(gone, "not finite")}
    rest = {"w": draws[kept, :, 0]}
    of_run = bnn.Draws(rest, model, info=left_out)
    expected = bnn.diagnose(bnn.Draws(rest, model), X, superchains=LABELS[kept])
    check_equal(bnn.diagnose(of_run, X, superchains=superchains), expected)
    # Labels of the chains that are there.
    check_equal(bnn.diagnose(of_run, X, superchains=LABELS[kept]), expected)


def test_superchains_that_a_run_made_unequal_are_not_compared(draws):
    of_run = bnn.Draws({"w": draws[1:, :, 0]}, model, info={"left_out": {0: "not finite"}})
    report = bnn.diagnose(of_run, X, superchains=4)
    assert report.agreement.nested_rhat is None
    assert "Left out: chain 0 (not finite). The superchains of the chains" in report.sentences[0]
    with pytest.raises(ValueError, match=r"cut the 12 chains into two or more groups .* got 11"):
        bnn.diagnose(of_run, X, superchains=11)


@pytest.mark.parametrize("superchains", [5, 1, 0, LABELS[:5], np.array(LABELS[:-1])])
def test_superchains_that_are_none_are_refused_before_anything_is_measured(draws, superchains):
    draws[0] = np.nan
    with pytest.raises(ValueError, match="superchains must cut the 12 chains into two or more"):
        diagnose_draws(None, draws, superchains=superchains)


def test_the_rest_keeps_its_labels():
    assert labels_of_rest(LABELS, [0, 1, 4, 5]).tolist() == ["a", "a", "b", "b"]
    assert labels_of_rest(LABELS, [0, 1, 4]) is None
    assert labels_of_rest(LABELS, [0, 1, 2]) is None
    assert labels_of_rest(LABELS, [0, 3, 6]) is None


def test_superchains_of_chains_that_were_chosen_from_a_file_are_of_these(draws):
    """Two chains failed in the run of twelve, of which the first six were read."""
    rest = {"w": draws[[1, 2, 4, 5], :, 0]}
    info = {"left_out": {0: "not finite", 3: "not finite"} | dict.fromkeys(range(6, 12), NOT_READ)}
    expected = bnn.diagnose(bnn.Draws(rest, model), X, superchains=[0, 0, 1, 1])
    check_equal(bnn.diagnose(bnn.Draws(rest, model, info=info), X, superchains=2), expected)
    all_read = bnn.Draws(rest, model, info={"left_out": dict.fromkeys(range(4, 9), NOT_READ)})
    check_equal(bnn.diagnose(all_read, X, superchains=2), expected)
