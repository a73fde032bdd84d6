"""A second run in the verdict, and draws that are no time series."""

import numpy as np
import numpyro.distributions as dist
import pytest
from linear_gaussian import key
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws

CHAINS, DRAWS, INPUTS = 4, 1000, 10


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def predictions(rng, kind, shift=0.0, chains=CHAINS, draws=DRAWS):
    """Independent draws of predictions, shifted by so many of their standard deviations."""
    x = rng.normal(size=(chains, draws, INPUTS)) + shift
    if kind == "probs":
        p = 1 / (1 + np.exp(-x))
        return {"probs": np.stack([1 - p, p], axis=-1)}
    if kind == "mean and scale":
        return {"mean": x, "scale": np.full(x.shape, 0.1)}
    return {"f": x}


KINDS = ["probs", "mean and scale", "f"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shift", "expected"), [(0.0, "within_tolerance"), (1.4, "chains_disagree")]
)
def test_a_second_run_that_disagrees_changes_the_verdict(rng, kind, shift, expected):
    first, second = predictions(rng, kind), predictions(rng, kind, shift)
    report = diagnose_draws(None, first, second=(None, second))
    assert diagnose_draws(None, first).verdict == "within_tolerance"
    assert report.verdict == expected
    assert ("A second run agrees in all" in report.explanation) == (shift == 0)
    if shift:
        assert "Averages of a second run are" in report.headline
        assert "accepted" in report.explanation


@pytest.mark.parametrize("kind", KINDS)
def test_a_difference_below_the_tolerance_or_within_its_error_changes_no_verdict(rng, kind):
    first = predictions(rng, kind)
    wide = bnn.Tolerance(total_variation=0.2, relative=1.0)
    small = diagnose_draws(None, first, second=(None, predictions(rng, kind, 0.3)), tolerance=wide)
    assert small.verdict == "within_tolerance"
    assert "A second run differs in" in small.explanation
    # Sixty draws of each of two chains are 0.09 sd from the truth by chance.
    noisy = predictions(rng, kind, chains=2, draws=60)
    assert diagnose_draws(None, first, second=(None, noisy)).verdict == "within_tolerance"


@pytest.mark.parametrize("difference", [0.0, 0.02, 0.05])
def test_scores_that_differ_count_where_no_mean_does(rng, difference):
    """A log score of its own for each run, in the same predictions."""
    first, second = (predictions(rng, "f") for _ in range(2))
    own, other = (0.05 * rng.normal(size=(CHAINS, DRAWS, 200)) for _ in range(2))
    own += np.linspace(-2, 0, 200)
    other += np.linspace(-2, 0, 200) - difference
    report = diagnose_draws(
        None, first, log_likelihood=own, second={"predictions": second, "log_likelihood": other}
    )
    differs = difference > 0
    assert report.verdict == ("chains_disagree" if differs else "within_tolerance")
    assert ("agrees in all" in report.explanation) != differs
    assert f"{-difference:+.2g} ± " in report.explanation or not differs


linear = row_model(lambda x, w: dist.Normal(w * x[:, 0], 0.5), w=dist.Normal(0, 1))

X = np.linspace(-1, 1, 12, dtype=np.float32)[:, None]
Y = X[:, 0]


def slow_draws(rng, correlation=0.995):
    z = rng.normal(size=(CHAINS, DRAWS))
    for t in range(1, DRAWS):
        z[:, t] = correlation * z[:, t - 1] + np.sqrt(1 - correlation**2) * z[:, t]
    return bnn.Draws({"w": (0.8 + 0.2 * z).astype(np.float32)}, linear)


MADE = {
    "stacked": lambda run: bnn.stack(run, X, Y, key=key()),
    "half of them stacked": lambda run: bnn.stack(run, X, Y, key=key(), num_samples=2000),
    "thinned": lambda run: bnn.thin(run, 400, X),
    "thinned after stacking": lambda run: bnn.thin(bnn.stack(run, X, Y, key=key()), 400, X),
    "of an approximation": lambda run: bnn.Draws(run, linear, info={"approximation": True}),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("correlation", [0.0, 0.995])
def test_draws_that_are_no_time_series_have_no_error_of_their_own(rng, made, correlation):
    draws = MADE[made](slow_draws(rng, correlation))
    report = bnn.diagnose(draws, X)
    assert report.verdict == "too_short"
    assert report.monte_carlo_error is None
    assert "have no Monte Carlo error" in report.headline
    assert "too few to judge" not in report.explanation
    assert ("Sample the model" if "approx" in made else "Diagnose that run") in report.explanation


def test_stacked_draws_keep_their_order_for_whoever_measures_time(rng):
    run = slow_draws(rng)
    stacked = {"w": np.asarray(bnn.stack(run, X, Y, key=key())["w"])}
    assert diagnose_draws(stacked, stacked["w"][..., None]).verdict != "within_tolerance"
    series = stacked["w"][0]
    assert np.corrcoef(series[1:], series[:-1])[0, 1] > 0.98


def test_nan_is_named_at_the_weights_that_hold_it(rng):
    w = rng.normal(size=(CHAINS, 300)).astype(np.float32)
    w[1, 5] = np.nan
    report = bnn.diagnose(bnn.Draws({"w": w}, linear), X)
    assert report.verdict == "invalid"
    assert "from draw 5 on (weights 'w')" in report.explanation
