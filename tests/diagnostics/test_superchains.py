"""Superchains of a run some of whose chains are copies, are left out or are not finite."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.convergence.rhat import labels_of_rest
from numpyro_bnn.posterior.draws import NOT_READ

LABELS = np.repeat(["a", "b", "c", "d"], 3)
X = jnp.arange(1.0, 5.0)


@pytest.fixture
def draws():
    """Twelve chains, three of each start, which they remember."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(12, 200, 5)) + 0.2 * np.repeat(np.arange(4.0), 3)[:, None, None]


def with_copies(draws, copies):
    draws = draws.copy()
    for copy, original in copies.items():
        draws[copy] = draws[original]
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
