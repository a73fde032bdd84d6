"""Chains that are copies of each other count once, and the report says so."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import compare_draws, diagnose_draws


def draws_with(copies, shape=(4, 1000, 3), seed=0):
    """Independent draws, with some chains overwritten by others: copy to original."""
    draws = np.random.default_rng(seed).normal(size=shape)
    for copy, original in copies.items():
        draws[copy] = draws[original]
    return draws


GIVEN = {
    "weights": lambda copies: {"weights": {"w": draws_with(copies)}},
    "predictions": lambda copies: {"predictions": draws_with(copies)},
    "both": lambda copies: {
        "weights": {"w": draws_with(copies), "b": draws_with(copies, (4, 1000), 1)},
        "predictions": draws_with(copies, seed=2),
        "log_joint": draws_with(copies, (4, 1000), 3),
        "sample_stats": {"accept_prob": np.full((4, 1000), 0.8), "max_num_steps": 7},
    },
}


@pytest.mark.parametrize("given", GIVEN)
def test_copies_of_one_chain_are_no_convergence(given):
    report = diagnose_draws(**GIVEN[given]({1: 0, 2: 0, 3: 0}))
    assert report.verdict == "run_longer"
    assert report.num_chains == 1
    assert report.sentences[0].startswith(
        "Copies, bit for bit: chains 1, 2, 3 of chain 0. They count once, which leaves 1 of 4 chains"
    )


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(
    ("copies", "left", "said"),
    [
        ({3: 1}, 3, "chain 3 of chain 1."),
        ({1: 0, 3: 2}, 2, "chain 1 of chain 0; chain 3 of chain 2."),
    ],
)
def test_the_chains_that_differ_are_judged_alone(given, copies, left, said):
    report = diagnose_draws(**GIVEN[given](copies))
    assert report.num_chains == left
    assert said in report.sentences[0]
    kept = [chain for chain in range(4) if chain not in copies]
    once = {
        name: {site: value[kept] if np.ndim(value) else value for site, value in part.items()}
        if isinstance(part, dict)
        else part[kept]
        for name, part in GIVEN[given]({}).items()
    }
    alone = diagnose_draws(**once)
    assert report.verdict == alone.verdict
    np.testing.assert_array_equal(report.predictions.ess, alone.predictions.ess)
    np.testing.assert_array_equal(report.weights.ess, alone.weights.ess)


@pytest.mark.parametrize("given", GIVEN)
def test_chains_that_begin_alike_are_no_copies(given):
    arguments = GIVEN[given]({})
    parts = [arguments.get(part) for part in ("weights", "predictions", "log_joint")]
    for value in jax.tree.leaves(parts):
        value[:, 0] = value[0, 0]
    report = diagnose_draws(**arguments)
    assert report.num_chains == 4
    assert "Copies" not in report.explanation


def test_chains_that_predict_alike_with_other_weights_are_no_copies():
    report = diagnose_draws({"w": draws_with({})}, draws_with({1: 0}))
    assert report.num_chains == 4


X = np.linspace(-1, 1, 6).astype(np.float32)[:, None]
Y = X[:, 0]

line = row_model(lambda x, slope: dist.Normal(slope * x[:, 0], 0.5), slope=dist.Normal())


def slopes(chains, shift=0.0, seed=0):
    drawn = np.random.default_rng(seed).normal(0.9 + shift, 0.3, (chains, 200))
    return drawn.astype(np.float32)


def of(drawn):
    return bnn.Draws({"slope": drawn}, line)


def test_a_run_is_told_of_its_copies():
    assert "chain 2 of chain 0" in bnn.diagnose(of(slopes(3)[[0, 1, 0]]), X).explanation


ERRORS = {
    "check_fit": lambda drawn: bnn.check_fit(of(drawn), X, Y).loo.error,
    "update": lambda drawn: bnn.update(of(drawn), X[:2], Y[:2]).info["updated"],
    "second": lambda drawn: (
        bnn.diagnose(of(slopes(4, 0.1, 1)), X, Y, second=of(drawn)).second.worst
    ),
    "compare": lambda drawn: compare_draws(of(slopes(4, 0.1, 1)), of(drawn)).worst,
}


@pytest.mark.parametrize("door", ERRORS)
def test_copies_make_no_error_smaller(door):
    alone = slopes(2)
    assert ERRORS[door](alone[[0, 1, 1, 0]]) == ERRORS[door](alone)
