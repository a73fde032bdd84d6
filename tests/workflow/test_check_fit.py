"""The check of a fit: a conjugate model in closed form, what it refuses, and where it is shown."""

from functools import partial

import linear_gaussian
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from checked_fits import (
    OUTLIER,
    X,
    Y,
    checked,
    exact_draws,
    fitted_to,
    line,
    of_values,
    two_targets,
    weighted,
    with_offset,
)
from linear_gaussian import KERNEL, NOISE, SCALE
from numpyro import handlers
from scipy.stats import geom, norm, poisson
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn._html import html_of
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.fit_check.loo import leave_one_out
from numpyro_bnn.fit_check.record import on_weights


def exact_loo(y):
    """Mean and standard deviation of every target given all others."""
    rows = np.c_[X, np.ones(len(X))]
    inverse = np.linalg.inv(SCALE**2 * rows @ rows.T + NOISE**2 * np.eye(len(X)))
    variance = 1 / np.diag(inverse)
    return y - variance * (inverse @ y), np.sqrt(variance)


def test_a_right_model_is_believed_and_exact():
    check = checked()
    mean, sd = exact_loo(Y)
    exact = norm.logpdf(Y, mean, sd)
    assert check.believable
    assert np.abs((check.loo.by_row - exact) / check.loo.error_by_row).max() < 5
    assert abs(check.loo.elpd - exact.sum()) < 5 * check.loo.error
    assert check.loo.error < 0.1
    np.testing.assert_allclose(check.calibration.pit, norm.cdf(Y, mean, sd), atol=0.02)
    assert check.rare == ()
    told = " ".join(str(check).split())
    assert "All Pareto k̂ are good: the number may be believed." in told
    assert "is as uniform as for a right model" in told
    assert "none of 4 quantities is rare" in told
    assert min(quantity.adjusted for quantity in check.quantities) > 0.05
    assert repr(check) == f"FitCheck(elpd {check.loo.elpd:.1f} ± {check.loo.se:.1f}, believable)"


def test_a_planted_outlier_is_named_and_nothing_is_believed():
    check = checked(True)
    assert not check.believable
    (name, k, density), *_ = check.worst_rows()
    assert (name, k > 0.7) == (str(OUTLIER), True)
    assert density == check.loo.by_row[OUTLIER]
    told = " ".join(str(check).split())
    assert "This number is not to be believed. Pareto k̂ is above 0.70 in 1 of 40 rows" in told
    assert check.loo.carried > 0.6
    assert "Hold rows out instead" in told
    assert "as uniform as" not in told
    # The model has no option of that name.
    assert "student_t" not in told
    assert "largest of standardised residuals" in check.rare
    assert "The model seldom makes data like these: sd of" in told
    assert "not to be believed; rare: sd" in repr(check)


def test_the_score_of_rows_that_were_held_out_comes_first():
    draws, y = exact_draws()
    new = X[:7] + 0.1
    check = bnn.check_fit(draws, X, y, held_out=(new, y[:7]))
    by_row = bnn.scores.lppd(bnn.predict(None, draws, new), y[:7], pointwise=True)
    assert check.held_out.score == pytest.approx(np.mean(by_row), rel=1e-5)
    assert (check.held_out.rows, checked().held_out) == (7, None)
    assert str(check).startswith("On 7 rows that were held out the mean log score is")
    share = bnn.scores.coverage(bnn.predict(None, draws, new), y[:7])
    assert f"Intervals of 90 % hold {100 * share:.0f} % ±" in " ".join(str(check).split())
    assert "Predicting each row from the others" in str(check)


@pytest.mark.parametrize("has_tails", [False, True])
def test_advice_names_options_that_the_model_has(has_tails):
    _, advice = on_weights(checked(True).loo, tuple("a" * 40), has_tails)
    assert ("student_t" in advice) == has_tails
    assert "BNNRegressor" not in advice


@pytest.mark.parametrize(("scale", "matters"), [(1e-6, False), (1.0, True)])
def test_rows_with_a_large_k_are_let_pass_where_they_change_nothing(scale, matters):
    rng = np.random.default_rng(0)
    heavy = -scale * np.minimum(rng.pareto(0.8, (4, 1000, 30)), 30 / scale)
    plain = -1 + 0.1 * rng.normal(size=(4, 1000, 30)) + rng.normal(size=30)
    loo = leave_one_out(np.concatenate([heavy, plain], -1))
    assert loo.bad_rows.size >= 20
    doubt, advice = on_weights(loo, tuple(map(str, range(60))))
    assert bool(doubt) == bool(advice) == matters
    assert (loo.carried > 0.5) == matters


def test_shown_as_page_table_and_picture(tmp_path):
    check = checked(True)
    page = check.to_html(tmp_path / "check.html")
    assert (tmp_path / "check.html").read_text(encoding="utf-8") == page
    assert 'class="warning"' in page
    assert "Pareto k̂" in page
    assert page.count("<img") == 1
    assert check.names[check.loo.pareto_k.argmax()] == str(OUTLIER)
    assert "not to be believed" in check._repr_html_()
    ax = check.plot()
    (curve,) = [line for line in ax.get_lines() if line.get_label() == "rows"]
    u = np.sort(check.calibration.pit)
    np.testing.assert_allclose(curve.get_xdata()[2:-1:2], u)
    np.testing.assert_allclose(curve.get_ydata()[2:-1:2], np.arange(1, 41) / 40 - u)
    ax.figure.clear()


def test_beside_the_report_of_a_run():
    mean = np.random.default_rng(0).normal(size=(4, 200, 3))
    report = diagnose_draws({"w": mean}, {"mean": mean})
    page = report.to_html(check=checked())
    assert page.index("Convergence, site by site") < page.index("Does the model fit?")


def test_rows_have_the_names_of_a_table():
    draws, y = exact_draws(True)
    table = pd.DataFrame(X, index=[f"case {i}" for i in range(40)])
    assert bnn.check_fit(draws, table, y).worst_rows(1)[0][0] == "case 7"
    with pytest.raises(ValueError, match="got 2 names for 40 rows"):
        bnn.check_fit(draws, X, y, names=["a", "b"])


# -- other targets -----------------------------------------------------------------------------------

# A coin: the posterior is a Beta distribution.
two_classes = row_model(lambda x, p: dist.Bernoulli(probs=p), p=dist.Beta(1.0, 1.0))
counts = row_model(lambda x, rate: dist.Poisson(rate), rate=dist.Gamma(2.0, 1.0))
outputs = row_model(
    lambda x, mean: dist.Normal(mean, 1.0).to_event(1),
    mean=dist.Normal(0.0, 1.0).expand([2]).to_event(1),
)
# Noise without a variance.
heavy = row_model(lambda x, mean: dist.StudentT(1.5, mean, 1.0), mean=dist.Normal(0.0, 1.0))


def sampled(model, **sites):
    return bnn.Draws(
        {n: v.astype(np.float32) for n, v in sites.items()}, model, info={"kernel": "NUTS"}
    )


ROWS = np.zeros((50, 1), np.float32)
RNG = np.random.default_rng(1)


def test_classes_are_predicted_from_all_others():
    y = (np.arange(50) % 5 == 0).astype(int)
    p = RNG.beta(1 + y.sum(), 51 - y.sum(), (4, 500))
    check = bnn.check_fit(sampled(two_classes, p=p), ROWS, y)
    others = (1 + y.sum() - y) / 51
    exact = np.log(np.where(y, others, 1 - others))
    assert np.abs((check.loo.by_row - exact) / check.loo.error_by_row).max() < 5
    assert check.calibration.kind == "confidence"
    np.testing.assert_allclose(check.calibration.probabilities[:, 1], others, atol=0.01)
    assert check.rare == ()
    assert "As calibrated as a right model: the likeliest class is right" in str(check).replace(
        "\n", " "
    )
    ax = check.plot()
    assert "confidence" in ax.get_xlabel()
    ax.figure.clear()
    wrong = bnn.check_fit(sampled(two_classes, p=RNG.beta(3.0, 90.0, (4, 500))), ROWS, y)
    assert "calibration" in wrong.rare
    assert "The model is too sure: the likeliest class is right" in str(wrong)
    assert "On the line where the model is right." in html_of(wrong.section())


def test_counts_have_their_own_distribution_function():
    y = np.random.default_rng(2).poisson(1.3, 50)
    rate = RNG.gamma(2 + y.sum(), 1 / 51, (4, 500))
    check = bnn.check_fit(sampled(counts, rate=rate), ROWS, y)
    low, high = poisson.cdf(y - 1, 1.3), poisson.cdf(y, 1.3)
    assert ((low - 0.1 < check.calibration.pit) & (check.calibration.pit < high + 0.1)).all()
    assert (
        np.unique(check.calibration.pit).size == 50
    )  # equal counts lie anywhere within their jump
    assert not check.calibration.is_rare


# A distribution of which NumPyro has no distribution function.
geometric = row_model(lambda x, p: dist.Geometric(probs=p), p=dist.Beta(1.0, 1.0))


def test_a_distribution_without_a_distribution_function_is_judged_by_what_it_makes():
    y = np.random.default_rng(3).geometric(0.4, 50) - 1
    p = RNG.beta(51, 1 + y.sum(), (4, 500))
    check = bnn.check_fit(sampled(geometric, p=p), ROWS, y)
    low, high = (geom.cdf(value, 51 / (52 + y.sum())) for value in (y, y + 1))
    assert ((low - 0.1 < check.calibration.pit) & (check.calibration.pit < high + 0.1)).all()
    assert not check.calibration.is_rare


def test_several_outputs_are_left_out_together():
    y = RNG.normal(size=(50, 2))
    mean = RNG.normal(y.sum(0) / 51, 51**-0.5, (4, 500, 2))
    check = bnn.check_fit(sampled(outputs, mean=mean), ROWS, y)
    others = (y.sum(0) - y) / 50
    exact = norm.logpdf(y, others, np.sqrt(1 + 1 / 50)).sum(-1)
    assert np.abs((check.loo.by_row - exact) / check.loo.error_by_row).max() < 5
    assert check.calibration is None
    assert "The test of calibration is made for one target a row" in str(check)
    assert "<img" not in html_of(check.section())
    with pytest.raises(
        ValueError, match=r"nothing to draw\. The test of calibration is made for one"
    ):
        check.plot()


def test_noise_without_a_variance_has_residuals_in_units_of_the_target():
    y = RNG.standard_t(1.5, 50)
    check = bnn.check_fit(sampled(heavy, mean=RNG.normal(0.0, 0.2, (4, 200))), ROWS, y)
    assert check.quantities[0].name == "sd of residuals"


# -- what is doubted and what is refused -----------------------------------------------------------


def test_draws_that_are_doubted():
    values = linear_gaussian.weights(exact_draws()[0])
    apart = values + np.array([0.0, 0.0, 0.4, 0.4])[:, None, None]
    unknown = bnn.Draws(dict(exact_draws()[0]), linear_gaussian.model)
    suspect = of_values(values, linear_gaussian.model, suspect={"1": "never moved"})
    doubts = {
        "The chains disagree (p = 0.0005)": of_values(apart, linear_gaussian.model),
        "These draws do not say which sampler made them": unknown,
        "Suspect chains are among the draws (1)": suspect,
        "The chains are too short, or move too slowly": of_values(
            values[:, :40], linear_gaussian.model
        ),
    }
    for words, draws in doubts.items():
        check = bnn.check_fit(draws, X, Y)
        assert not check.believable
        assert words in " ".join(check.doubts)


def test_an_approximation_is_doubted_whatever_it_is_called(tmp_path):
    """Also when its draws were stored, exported, or have statistics."""
    draws, y = exact_draws()
    stats = {"potential_energy": np.zeros((draws.num_chains, draws.num_draws))}
    info = {"kernel": "a new guide", "approximation": True}
    draws = bnn.Draws(draws, draws.model, stats, info)
    exported = bnn.to_inference_data(draws, log_likelihood=False)
    for same in (
        draws,
        bnn.load(bnn.save(draws, tmp_path / "draws"), draws.model),
        bnn.from_inference_data(exported, draws.model),
    ):
        check = bnn.check_fit(same, X, y)
        assert not check.believable
        assert "These draws are of an approximation (a new guide)" in " ".join(check.doubts)


@pytest.mark.parametrize("apart", [0.0, 0.2])
def test_chains_that_do_not_move_are_doubted(apart):
    values = np.zeros((2, 200, 4)) + apart * np.arange(2)[:, None, None]
    check = bnn.check_fit(of_values(values, linear_gaussian.model), X, Y)
    assert not check.believable
    said = " ".join(check.doubts)
    if apart:
        assert "Pareto k̂ is above" in said
        assert "The chains disagree" in said
    else:
        assert "The chains are too short, or move too slowly" in said


def test_the_bias_of_a_sampler_is_named():
    draws = bnn.Draws(dict(exact_draws()[0]), linear_gaussian.model, info={"kernel": "BAOAB"})
    check = bnn.check_fit(draws, X, Y)
    assert check.believable
    assert check.notes
    assert "BAOAB accepts every step: the bias of its step size" in str(check)


def with_stats(**stats):
    draws = exact_draws()[0]
    shape = (draws.num_chains, draws.num_draws)
    return bnn.Draws(
        draws, draws.model, {n: np.full(shape, v) for n, v in stats.items()}, draws.info
    )


def ready():
    draws = exact_draws()[0]
    model = bnn.regression(bnn.MLP((), 1), bnn.priors.Normal(1.0), X, Y, noise=0.5)
    return bnn.Draws(dict(draws), model, info={"kernel": "NUTS"})


STACKED = of_values(np.zeros((1, 200, 4)), linear_gaussian.model, weights=[0.3, 0.7])
THINNED = of_values(np.zeros((1, 200, 4)), linear_gaussian.model, thinned={"draws": 1000})
HOST = bnn.OnHost(np.asarray(X, np.float32))
REFUSED = {
    "temperature": (
        lambda: bnn.check_fit(with_stats(temperature=0.5), X, Y),
        "temperature 0.5, and",
    ),
    "stacked": (lambda: bnn.check_fit(STACKED, X, Y), "stacked mixture of chains"),
    "thinned": (lambda: bnn.check_fit(THINNED, X, Y), "200 draws chosen by `thin`"),
    "no model": (lambda: bnn.check_fit(bnn.Draws(dict(STACKED)), X, Y), "carry no model"),
    "no data": (
        lambda: bnn.check_fit(exact_draws()[0]),
        "training data of these draws are not known",
    ),
    "no target": (lambda: bnn.check_fit(exact_draws()[0], X), "x and y belong together"),
    "weights": (
        lambda: bnn.check_fit(fitted_to(X, Y, of=weighted, importance=np.arange(40) + 1.0)),
        "the rows of this run have weights: the log density of 'y' is multiplied",
    ),
    "a constant weight": (
        lambda: bnn.check_fit(bnn.Draws(exact_draws()[0], partial(weighted, importance=4.0)), X, Y),
        "the rows of this run have weights",
    ),
    "two targets": (
        lambda: bnn.check_fit(fitted_to(X, Y, -Y, of=two_targets)),
        r"the model observes \['up', 'down'\], and site=None",
    ),
    "the target of another site": (
        lambda: bnn.check_fit(fitted_to(X, Y, -Y, of=two_targets), X, Y, site="down"),
        "40 of 40 rows, such as row 0, are no training rows",
    ),
    "no observed site": (
        lambda: bnn.check_fit(bnn.Draws(exact_draws()[0], lambda x, z=None: line(x)), X, Y),
        "the model observes no site when it gets these data",
    ),
    "host": (lambda: bnn.check_fit(fitted_to(HOST, Y)), "the data of this run stay on the host"),
    "new rows": (
        lambda: bnn.check_fit(fitted_to(X, Y), X + (np.arange(40) == 5)[:, None], Y),
        "1 of 40 rows, such as row 5, are no training rows of this run",
    ),
    "other data of a ready model": (
        lambda: bnn.check_fit(ready(), X[:20], Y[:20]),
        "these are not the training data of this model, all rows in their order",
    ),
    "few": (
        lambda: bnn.check_fit(of_values(np.zeros((1, 20, 4)), linear_gaussian.model), X, Y),
        "1 chains of 20 draws are too few",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_number_is_no_key():
    with pytest.raises(TypeError, match="check_fit: expected a random key"):
        bnn.check_fit(exact_draws()[0], X, Y, key=3)


# -- the data that the check of a fit is about: found wherever a run has them --------------------


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
