"""Chains compared with each other, and with those of a second run."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from autoregressive import autoregressive
from linear_gaussian import key
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn import diagnostics
from numpyro_bnn.diagnostics import compare_draws, diagnose_draws
from numpyro_bnn.diagnostics.checked_draws import copies_of, without_copies


def test_variance_parts_add_up_to_the_variance_of_all_draws(rng):
    x = rng.normal(size=(4, 30, 5)) + rng.normal(size=(4, 1, 5))
    parts = diagnostics.variance_parts(x)
    total = x.reshape(120, 5).var(axis=0)
    np.testing.assert_allclose(parts.within, x.var(axis=1).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(parts.within + parts.between, total, rtol=1e-12)
    np.testing.assert_allclose(parts.share, parts.between / total, rtol=1e-12)


W = np.random.default_rng(1).normal(size=(2, 100, 3))


WEIGHTS = {"w": W}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: diagnose_draws(), ValueError, "neither weights nor predictions"),
        (lambda: diagnose_draws(log_likelihood=W), ValueError, "predictions nor a log joint"),
        (lambda: diagnose_draws(None, W, tolerance=0.01), TypeError, "a bnn.Tolerance, got 0.01"),
        (
            lambda: diagnose_draws(None, W, log_likelihood=W[:, :50]),
            ValueError,
            r"\(2, 50\) in 'log likelihood'",
        ),
        (lambda: diagnose_draws(WEIGHTS, W[:1]), ValueError, r"\(2, 100\) .* \(1, 100\) in"),
        (lambda: diagnose_draws({"w": np.ones(3)}), ValueError, r"weights 'w': .*shape \(3,\)"),
        (
            lambda: diagnose_draws(WEIGHTS, sample_stats={"diverging": np.zeros(200)}),
            ValueError,
            r"\['diverging'\] must have shape .* \(2, 100\), got \(200,\)",
        ),
        (lambda: diagnose_draws(WEIGHTS, second=({"w": W}, None)), ValueError, "weights alone"),
        (lambda: diagnose_draws(None, W, second=(None, W * np.nan)), ValueError, "finite draws"),
    ],
)
def test_a_mistake_gets_an_error_that_names_it(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_constants_that_differ_by_rounding_are_not_parted(rng, noise):
    one = np.full((2, 100, 3), 0.1) * (1 + noise * rng.normal(size=(2, 100, 3)))
    assert diagnostics.compare_draws({"scale": one}, {"scale": one * (1 + 1e-9)}).agrees
    for other in (one * 1.01, one * np.inf):
        assert not diagnostics.compare_draws({"scale": one}, {"scale": other}).agrees
    # Far from zero the spread of a scalar says whether it is a constant, and not its location.
    far = 1e7 + rng.normal(size=(2, 100, 3))
    assert not diagnostics.compare_draws({"scale": far}, {"scale": far + 3}).agrees


@pytest.mark.parametrize("short", [1, 3])
def test_a_second_run_of_a_few_draws_is_too_short_and_parts_from_nothing(rng, short):
    x = rng.normal(size=(4, 200, 5))
    found = diagnostics.compare_draws({"y": x}, {"y": x[:, :short]})
    assert found.too_short
    assert not found.agrees
    assert (found.num_compared, found.num_parted) == (0, 0)
    report = diagnose_draws(None, x, second=(None, x[:, :short]))
    assert "The second run is too short to be compared" in report.sentences[-1]
    assert "Averages of a second run" not in report.explanation
    assert diagnostics.compare_draws({"y": x}, {"y": x[:, :4]}).num_compared == 20


@pytest.mark.parametrize(
    ("name", "measure", "power"),
    [
        ("rhat", lambda x: diagnostics.rhat(x), 0),
        ("within", lambda x: diagnostics.variance_parts(x).within, 2),
        ("between", lambda x: diagnostics.variance_parts(x).between, 2),
        ("share", lambda x: diagnostics.variance_parts(x).share, 0),
    ],
)
def test_order_of_chains_units_and_origin_do_not_matter(rng, name, measure, power):
    x = rng.normal(size=(4, 100, 3)) + rng.normal(size=(4, 1, 3))
    expected = measure(x)
    np.testing.assert_allclose(measure(x[[2, 0, 3, 1]]), expected, rtol=1e-9)
    np.testing.assert_allclose(measure(x + 7.0), expected, rtol=1e-8)
    for unit in (1e-4, -3.0, 1e5):
        np.testing.assert_allclose(measure(unit * x), abs(unit) ** power * expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("order", "copies"),
    [([0, 1, 2], {}), ([0, 0, 1], {1: 0}), ([0, 1, 1, 0, 2, 1], {2: 1, 3: 0, 5: 1})],
)
def test_copies_are_numbered_by_the_first_chain_that_they_equal(rng, order, copies):
    first, second = rng.normal(size=(3, 7, 2)), rng.normal(size=(3, 7))
    arrays = {"w": first[order], "b": second[order], "other": np.arange(99.0)}
    assert copies_of([arrays["w"], arrays["b"]]) == copies
    kept = without_copies(arrays, copies, len(order))
    left = [chain for chain in range(len(order)) if chain not in copies]
    np.testing.assert_array_equal(kept["w"], arrays["w"][left])
    assert kept["other"] is arrays["other"]
    # A last draw that differs makes two chains of them.
    arrays["b"][-1, -1] += 1e-9
    assert len(order) - 1 not in copies_of([arrays["w"], arrays["b"]])


def test_one_noise_for_all_inputs_is_one_function(rng):
    mean, noise = rng.normal(size=(4, 200, 30)), autoregressive(rng, (4, 200), 0.95)
    scale = np.broadcast_to(np.exp(noise)[:, :, None], mean.shape)
    report = diagnose_draws(predictions={"mean": mean, "scale": scale})
    assert report.monte_carlo_error.by_row["relative"].shape == (30,)
    space = report.predictions
    assert space.num_scalars == 31
    assert space.max_rhat == pytest.approx(diagnostics.rhat(noise))
    # Counted once for every input, it would be the median.
    assert space.median_rhat < 1.02 < space.max_rhat
    scale = scale + np.where(np.arange(30) == 7, 0.1, 0.0)
    space = diagnose_draws(predictions={"mean": mean, "scale": scale}).predictions
    assert space.num_scalars == 60


def test_a_second_run_of_the_same_distribution_agrees_and_a_missed_tail_parts(rng):
    first = {"tau": autoregressive(rng, (4, 500), 0.5), "f": rng.normal(size=(4, 500, 20))}
    second = {"tau": autoregressive(rng, (2, 700), 0.5), "f": rng.normal(size=(2, 700, 20))}
    opinion = diagnostics.compare_draws(first, second)
    assert opinion.agrees
    assert opinion.num_compared == 21 * 4
    # A run that never enters the upper tail has nearly the same mean.
    second["tau"] = np.minimum(second["tau"], 1.5)
    missed = diagnostics.compare_draws(first, second)
    assert {(p.site, p.quantity) for p in missed.worst} == {("tau", "P(below the 95 % quantile)")}
    second["f"] = second["f"] + np.array([0.5] + 19 * [0.0])
    assert "f[0]" in {p.site for p in diagnostics.compare_draws(first, second).worst}


def test_runs_on_both_sides_of_a_quantile_part_by_a_finite_number_of_errors(rng):
    # Each share is 0 or 1 and has no spread; that of both together has.
    first, second = rng.normal(size=(2, 500)), rng.normal(size=(2, 500)) + 100
    worst = diagnostics.compare_draws({"x": first}, {"x": second}).worst
    (median,) = (p for p in worst if "50 %" in p.quantity)
    assert (median.first, median.second) == (1.0, 0.0)
    assert median.errors == pytest.approx(1 / (0.5 * np.sqrt(2 / 1000)))


def test_the_error_of_a_second_opinion_is_calibrated(rng):
    first, second = (autoregressive(rng, (2, 300, 400), 0.7) for _ in range(2))
    from numpyro_bnn.diagnostics.compare_runs import _compare_block

    for _, _, apart in _compare_block(first, second).values():
        # Half-normal: the mean square is one.
        assert np.mean(apart**2) == pytest.approx(1.0, abs=0.25)


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
    assert diagnose_draws({"w": draws_with({})}, draws_with({1: 0})).num_chains == 4


SIX_ROWS = np.linspace(-1, 1, 6).astype(np.float32)[:, None]
SIX_TARGETS = SIX_ROWS[:, 0]

line = row_model(lambda x, slope: dist.Normal(slope * x[:, 0], 0.5), slope=dist.Normal())


def slopes(chains, shift=0.0, seed=0):
    drawn = np.random.default_rng(seed).normal(0.9 + shift, 0.3, (chains, 200))
    return drawn.astype(np.float32)


def of(drawn):
    return bnn.Draws({"slope": drawn}, line)


def test_a_run_is_told_of_its_copies():
    assert "chain 2 of chain 0" in bnn.diagnose(of(slopes(3)[[0, 1, 0]]), SIX_ROWS).explanation


ERRORS = {
    "check_fit": lambda drawn: bnn.check_fit(of(drawn), SIX_ROWS, SIX_TARGETS).loo.error,
    "update": lambda drawn: bnn.update(of(drawn), SIX_ROWS[:2], SIX_TARGETS[:2]).info["updated"],
    "second": lambda drawn: (
        bnn.diagnose(of(slopes(4, 0.1, 1)), SIX_ROWS, SIX_TARGETS, second=of(drawn)).second.worst
    ),
    "compare": lambda drawn: compare_draws(of(slopes(4, 0.1, 1)), of(drawn)).worst,
}


@pytest.mark.parametrize("door", ERRORS)
def test_copies_make_no_error_smaller(door):
    alone = slopes(2)
    assert ERRORS[door](alone[[0, 1, 1, 0]]) == ERRORS[door](alone)
