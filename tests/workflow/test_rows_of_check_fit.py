"""The data that the check of a fit is about: found wherever a run has them."""

from functools import partial

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from checked_fits import (
    X,
    Y,
    checked,
    exact_draws,
    fitted_to,
    line,
    two_targets,
    weighted,
    with_offset,
)
from linear_gaussian import KERNEL, NOISE
from numpyro import handlers

import numpyro_bnn as bnn


def test_some_rows_of_a_run_are_enough():
    check = bnn.check_fit(fitted_to(X, Y), X[3:9], Y[3:9])
    np.testing.assert_allclose(check.loo.by_row, checked().loo.by_row[3:9], atol=0.02)
    whole = bnn.check_fit(fitted_to(X, y=Y, importance=np.ones(40), of=weighted))
    np.testing.assert_allclose(whole.loo.by_row, checked().loo.by_row)


def test_a_target_that_the_fit_had_may_be_missing():
    model = bnn.regression(bnn.MLP((), 1), bnn.priors.Normal(), X, Y, noise=NOISE)
    run = fitted_to(X, Y, of=model)
    check = bnn.check_fit(run, X, np.where(np.arange(40) < 3, np.nan, Y))
    np.testing.assert_allclose(check.loo.by_row, bnn.check_fit(run).loo.by_row[3:], rtol=1e-3)


OFFSET = np.linspace(-2.0, 3.0, 40)
CALLS = {
    "offset first": fitted_to(X, OFFSET, y=Y + OFFSET, of=with_offset),
    "by position": fitted_to(X, OFFSET, Y + OFFSET, of=with_offset),
    "by name": fitted_to(y=Y + OFFSET, offset=OFFSET, x=X, of=with_offset),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_target_is_found_wherever_it_is_in_the_call(call):
    run = CALLS[call]
    for check in (bnn.check_fit(run), bnn.check_fit(run, X, Y + OFFSET)):
        np.testing.assert_allclose(check.loo.by_row, checked().loo.by_row, atol=1e-4)
        np.testing.assert_allclose(check.targets, Y + OFFSET, rtol=1e-6)
    with pytest.raises(ValueError, match="check_fit: x holds other rows than the run, whose model"):
        bnn.check_fit(run, X[:9], (Y + OFFSET)[:9])


def test_one_of_two_targets_is_checked():
    run = fitted_to(X, Y, -Y, of=two_targets)
    for check in (bnn.check_fit(run, site="down"), bnn.check_fit(run, X, -Y, site="down")):
        np.testing.assert_allclose(check.loo.by_row, checked().loo.by_row, atol=1e-4)


def test_a_plate_that_subsamples_weights_no_rows():
    def subsampled(x, y=None):
        slopes = numpyro.sample(KERNEL, dist.Normal().expand([3, 1]).to_event(2))
        with numpyro.plate("data", x.shape[0], subsample_size=5):
            rows = numpyro.subsample(x, event_dim=1)
            observed = None if y is None else numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal((rows @ slopes)[:, 0], NOISE), obs=observed)

    assert bnn.check_fit(fitted_to(X, Y, of=subsampled)).targets.shape == (40,)


SEEN = np.arange(40) % 7 != 2


def masked(x, y=None, seen=SEEN):
    mean = line(x)
    with numpyro.plate("data", len(x)), handlers.mask(mask=seen):
        numpyro.sample("y", dist.Normal(mean, NOISE), obs=y)


def test_rows_that_a_mask_hides_are_left_out():
    """The same numbers as of the draws and the other rows alone."""
    hidden = np.where(SEEN, Y, 50.0)
    run = fitted_to(X, hidden, of=masked)
    check = bnn.check_fit(run, names=[f"row {i}" for i in range(40)])
    alone = bnn.check_fit(exact_draws()[0], X[SEEN], Y[SEEN])
    np.testing.assert_allclose(check.loo.by_row, alone.loo.by_row, atol=1e-5)
    np.testing.assert_allclose(check.calibration.pit, alone.calibration.pit, atol=1e-5)
    for one, other in zip(check.quantities, alone.quantities, strict=True):
        np.testing.assert_allclose(one.observed, other.observed, rtol=1e-4)
        np.testing.assert_allclose(one.p, other.p, atol=0.05)
    assert check.names == tuple(f"row {i}" for i in range(40) if SEEN[i])
    assert "6 more rows are without a target, or hidden by a mask" in str(check)


def test_a_mask_of_entries_is_one_of_residuals():
    """Two outputs a row, the second one hidden in every other row and both in the last."""
    seen = np.c_[np.ones(40, bool), np.arange(40) % 2 == 0]
    seen[-1] = False

    def outputs(x, y=None):
        intercept = numpyro.sample("intercept", dist.Normal())
        distribution = dist.Normal(intercept * np.ones((len(x), 2)), 1.0).mask(seen)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", distribution.to_event(1), obs=y)

    rng = np.random.default_rng(2)
    draws = {"intercept": rng.normal(0.1, 0.1, (2, 300))}
    y = np.where(seen, rng.normal(size=(40, 2)), 1000.0)
    check = bnn.check_fit(bnn.Draws(draws, outputs, info={"kernel": "NUTS"}), X, y)
    assert len(check.names) == 39
    largest = {q.name: q.observed for q in check.quantities}["largest of standardised residuals"]
    np.testing.assert_allclose(largest, y[seen].max() - draws["intercept"].mean(), rtol=1e-4)


def test_a_mask_that_hides_all_is_refused():
    run = fitted_to(X, Y, of=partial(masked, seen=np.zeros(40, bool)))
    with pytest.raises(ValueError, match="hides all 40 rows of 'y'"):
        bnn.check_fit(run)
