"""The study of methods beside HMC: equal passes, Monte Carlo errors, the choice of the prior scale."""

import numpy as np
import pytest

from benchmarks.mixing import against_hmc_methods, against_hmc_prior, against_hmc_words

# Rows of each problem's training set, of the size "full".
ROWS = {**dict.fromkeys(against_hmc_methods.IMAGES, 1000), "boston": 455, "wine_red": 1439}


@pytest.mark.parametrize("method", against_hmc_methods.SAMPLED)
@pytest.mark.parametrize("name", ROWS)
def test_samplers_spend_the_budget_and_no_more(name, method):
    size = against_hmc_methods.SIZES["full"]
    share = against_hmc_methods.PROBLEMS[name].batch / ROWS[name]
    found = against_hmc_methods.plan(method, size, share, leapfrogs=30)
    # Whole trajectories, and as many steps to each of a hundred draws.
    assert 0.9 * size.passes < found.passes <= size.passes
    once, in_warmup, call = against_hmc_methods.cost(method, share, 30)
    call *= 2 if "cyclical" in method else 1
    steps = found.warmup * in_warmup + found.draws * found.thinning * call
    assert found.passes == pytest.approx(size.chains * (size.training + once + steps))
    assert found.draws >= 20


def test_an_energy_without_its_gradient_and_three_minibatches_are_counted():
    assert against_hmc_methods.cost("AMAGOLD", 0.1).call == pytest.approx(1 + 1 / 3)
    assert against_hmc_methods.cost(against_hmc_methods.SVRG, 0.1)[1:] == pytest.approx((0.7, 0.3))
    assert against_hmc_methods.cost("SGHMC", 0.1) == (0, 0.1, 0.1)
    assert against_hmc_methods.cost(against_hmc_methods.EQUAL, 0.1, 25) == (0, 25, 25)


def row(method, seed, score, over_chains, distance=0.1, problem="boston"):
    convergence = dict.fromkeys(("worst R-hat", "median R-hat", "least ESS"), 1.0)
    return {
        **{"problem": problem, "method": method, "seed": seed, "log_score": score},
        **{"difference": score + 1, "difference_error": 0.03, "over_chains": over_chains},
        **{"total_variation": distance, "calibration": 0.1, "agreement": "", "converged": "no"},
        **convergence,
    }


def test_monte_carlo_errors_are_of_both_and_fall_with_seeds():
    rows = [row("HMC", 0, -1.0, 0.04, 0.0)]
    rows += [row("MCLMC", seed, -0.9, 0.03 * 2**0.5) for seed in (0, 1)]
    rows += [row("SGD", seed, -0.9 + 0.1 * seed, "") for seed in (0, 1)]
    rows += [row("mean field", 0, -0.9, "")]
    found = {r["method"]: r for r in against_hmc_words.averaged(rows)}
    assert found["MCLMC"]["monte_carlo"] == pytest.approx(0.05)
    # Of one chain: the spread of two seeds, 0.1 apart, over √2.
    assert found["SGD"]["monte_carlo"] == pytest.approx((0.05**2 + 0.04**2) ** 0.5)
    assert found["HMC"]["monte_carlo"] == 0
    assert found["mean field"]["monte_carlo"] == ""
    assert found["mean field"]["sure"] == 0
    assert found["MCLMC"]["sure"] == pytest.approx(0.1 / (0.05**2 + 0.03**2) ** 0.5)
    cells = {r["method"]: r["boston"] for r in against_hmc_words.distances(list(found.values()))}
    assert cells == {"SGD": "0.100 (0.150)", "mean field": "0.100", "MCLMC": "0.100"}


def test_the_smallest_scale_within_an_error_of_the_least_is_chosen():
    name, error = "calibration, held out", "its error, held out"
    values = {0.2: 0.2, 0.5: 0.071, 1.0: 0.064, 2.0: 0.06, 4.0: 0.2}
    rows = [{"scale": s, name: v, error: 0.005} for s, v in values.items()]
    assert against_hmc_prior.chosen(rows) == 1.0
    assert against_hmc_prior.chosen(rows[:2]) == 0.5


def test_probabilities_that_are_too_flat_are_said_to_be():
    """All rows are of class 0, which has a probability of 0.75; then three rows of four are."""
    probs = np.full((2, 3, 400, 2), 0.25)
    probs[..., 0] = 0.75
    found = against_hmc_prior.calibration(probs, np.zeros(400, int))
    assert found["too sure"] == pytest.approx(-0.25)
    assert found["calibration"] == pytest.approx(0.25)
    assert found["its error"] == pytest.approx(0.0, abs=1e-12)
    assert found["over chains"] == pytest.approx(0.0, abs=1e-12)
    y = (np.arange(400) % 4 == 0).astype(int)
    assert against_hmc_prior.calibration(probs, y)["too sure"] == pytest.approx(0.0)


def test_held_out_images_are_none_that_are_learned_from(shared):
    size = against_hmc_methods.SIZES["toy"]
    held, classes = against_hmc_prior.held_out(shared / "data", size)
    case = against_hmc_methods.Case(shared / "data", size, against_hmc_methods.CHOSEN, 0.5)
    split = against_hmc_methods.given(case).split
    assert len(held) == len(classes) == size.images[1]
    assert len(split.x) == size.images[0]
    learned = {x.tobytes() for x in split.x}
    assert not learned & {x.tobytes() for x in held}
