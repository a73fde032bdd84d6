"""R-hat and ESS against ArviZ, on both of its generations, and against distributions and hand counts."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from autoregressive import autoregressive
from numpyro.infer import HMC
from scipy import stats
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.convergence import rhat

with warnings.catch_warnings():
    # What old Matplotlib and old ArviZ say about their own dependencies when first imported.
    warnings.simplefilter("ignore")
    import arviz


def arviz_of(name, x, **options):
    """A statistic of `(chain, draw)` from whichever generation of ArviZ is installed."""
    if int(arviz.__version__.split(".")[0]) > 0:
        options |= {"chain_axis": 0, "draw_axis": 1}
    # ArviZ 0.23 gives some statistics as arrays of one number.
    return np.asarray(getattr(arviz, name)(x, **options)).item()


CHAINS = {
    "independent": lambda rng, shape: rng.normal(size=shape),
    "slow": lambda rng, shape: autoregressive(rng, shape, 0.95),
    "antithetic": lambda rng, shape: autoregressive(rng, shape, -0.7),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(shape),
    "ties": lambda rng, shape: np.round(rng.normal(size=shape)),
    "a few ties": lambda rng, shape: np.where(np.arange(shape[1]) % 9, rng.normal(size=shape), 0.3),
    "mostly saturated": lambda rng, shape: 1 / (1 + np.exp(-40 * rng.normal(size=shape))),
    "shifted": lambda rng, shape: rng.normal(size=shape) + np.arange(shape[0])[:, None],
    "other scales": lambda rng, shape: rng.normal(size=shape) * (1 + np.arange(shape[0]))[:, None],
    "trend": lambda rng, shape: rng.normal(size=shape) + np.linspace(0, 3, shape[1]),
    "indicator": lambda rng, shape: rng.normal(size=shape) > 1.3,
    "one stuck": lambda rng, shape: np.where(
        np.arange(shape[0])[:, None], rng.normal(size=shape), 1.0
    ),
}


@pytest.mark.parametrize("shape", [(4, 200), (2, 101), (3, 37), (2, 4), (2, 7)])
@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_statistic_is_arvizs(rng, kind, shape, dtype):
    x = CHAINS[kind](rng, shape).astype(dtype)
    other = rng.normal(size=shape).astype(dtype)
    both = np.stack([other, x], axis=-1)
    summary = rhat.summarize(both)
    given = {
        ("rhat", "rank"): summary.rhat,
        ("ess", "bulk"): summary.ess_bulk,
        ("ess", "tail"): summary.ess_tail,
        ("ess", "mean"): rhat.ess(both, method="mean"),
        ("mcse", "mean"): rhat.mcse_mean(both),
    }
    given |= {("rhat", m): rhat.rhat(both, method=m) for m in ("split", "z_scale", "folded")}
    for (name, method), values in given.items():
        options = {"method": method} | ({"prob": (0.05, 0.95)} if method == "tail" else {})
        for scalar, value in zip((other, x), values):
            with np.errstate(all="ignore"):
                expected = arviz_of(name, scalar, **options)
            # Half a chain of two equal draws: ArviZ divides rounding by zero.
            if np.isfinite(expected) and expected < 1e6:
                np.testing.assert_allclose(value, expected, rtol=1e-6, err_msg=f"{name} {method}")
            elif name == "rhat":
                assert not value < 1e6, method


def test_ranks_of_ties_are_averages_as_in_scipy(rng):
    values = rng.integers(0, 4, size=(6, 2, 20)).astype(float)
    ranks = stats.rankdata(values.reshape(6, -1), axis=1)
    expected = stats.norm.ppf((ranks - 0.375) / 40.25).reshape(values.shape)
    np.testing.assert_allclose(rhat.rank_scores(values), expected, atol=1e-14)


def test_the_size_of_the_blocks_does_not_matter(rng, monkeypatch):
    x = rng.normal(size=(3, 50, 4, 5))
    expected = rhat.summarize(x)
    monkeypatch.setattr(rhat, "BLOCK_SIZE", 450)
    for given, value in zip(rhat.summarize(x), expected):
        assert given.shape == (4, 5)
        np.testing.assert_array_equal(given, value)


@pytest.mark.parametrize("kind", ["independent", "slow", "antithetic", "indicator"])
def test_products_of_first_lags_and_transforms_of_all_give_the_same(rng, monkeypatch, kind):
    x = np.stack([CHAINS[kind](rng, (4, 201)) for _ in range(20)], axis=-1)
    expected = rhat.summarize(x)
    for lags in (2, 31, 1000):
        monkeypatch.setattr(rhat, "_MOST_LAGS", lags)
        for given, value in zip(rhat.summarize(x), expected):
            np.testing.assert_allclose(given, value, rtol=1e-12)


def test_single_precision_ranks_zeros_and_the_smallest_numbers_as_double_does(rng):
    # Signed zeros tie, and numbers with fewer digits still leave room for what they carry.
    x = rng.integers(-3, 4, (2, 100, 30)).astype(np.float32)
    x[..., ::2] *= np.float32(1.4e-45)
    x[..., ::3] *= -1
    assert np.signbit(x[x == 0]).any()
    assert (np.abs(x[x != 0]) < 1e-44).any()
    for given, expected in zip(rhat.summarize(x), rhat.summarize(x.astype(np.float64))):
        np.testing.assert_allclose(given, expected, rtol=1e-12)


def test_ess_of_an_autoregression_is_that_of_its_distribution(rng):
    x = autoregressive(rng, (8, 4000), 0.6)[..., None]
    # N (1 - a) / (1 + a) for the mean of an AR(1).
    assert rhat.ess(x, method="mean")[0] == pytest.approx(32_000 * 0.4 / 1.6, rel=0.1)
    assert rhat.ess(x)[0] == pytest.approx(32_000 * 0.4 / 1.6, rel=0.1)


def test_folding_sees_scales_and_splitting_sees_trends(rng):
    scales = rng.normal(size=(4, 500)) * np.array([1, 1, 1, 4])[:, None]
    assert rhat.rhat(scales, method="z_scale") < 1.02
    assert rhat.rhat(scales, method="rank") > 1.1
    trend = rng.normal(size=(4, 500)) + np.linspace(0, 3, 500)
    assert rhat.rhat(trend) > 1.2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("draw", [0, 10, 20])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_one_bad_draw_makes_its_scalar_nan_and_no_other(rng, bad, draw, dtype):
    # Draw 10 of 21 is the middle one, which belongs to neither half.
    x = rng.normal(size=(2, 21, 3)).astype(dtype)
    good = rhat.summarize(x[:, :, ::2])
    x[1, draw, 1] = bad
    for values, expected in zip(rhat.summarize(x), good):
        np.testing.assert_array_equal(values[::2], expected)
    for values in (*rhat.summarize(x), rhat.ess(x, method="mean"), rhat.rhat(x, method="split")):
        np.testing.assert_array_equal(np.isnan(values), [False, True, False])


def test_constants_and_chains_that_are_constant_at_other_values():
    constant = rhat.summarize(np.full((3, 40), 0.1))
    assert np.isnan(constant.rhat)
    assert constant.ess_bulk == constant.ess_tail == 120
    assert rhat.mcse_mean(np.full((3, 40), 0.1)) == 0
    stuck = np.repeat([[0.1], [0.2], [0.3]], 40, axis=1)
    assert rhat.rhat(stuck) == np.inf
    # Among many others in one block as well.
    both = np.random.default_rng(0).normal(size=(3, 40, 300))
    both[..., 7], both[..., 8] = 0.1, stuck
    values = rhat.rhat(both)
    assert np.flatnonzero(np.isnan(values)) == [7]
    assert np.flatnonzero(np.isinf(values)) == [8]


def test_one_chain_is_compared_with_itself(rng):
    assert rhat.rhat(rng.normal(size=(1, 400))) < 1.02
    assert rhat.rhat(np.linspace(0, 1, 400)[None]) > 1.5


@pytest.mark.parametrize("method", ["rank", "identity"])
def test_nested_rhat_is_arvizs(rng, method):
    if not hasattr(arviz, "rhat_nested"):
        pytest.skip("this generation of ArviZ has no nested R-hat")
    x = rng.normal(size=(6, 20)) + np.repeat(rng.normal(size=3), 2)[:, None]
    expected = arviz_of("rhat_nested", x, superchain_ids=[0, 0, 1, 1, 2, 2], method=method)
    given = rhat.nested_rhat(x[..., None], 3, method=method)
    np.testing.assert_allclose(given, [expected], rtol=1e-12)
    shuffled = rhat.nested_rhat(x[[0, 2, 4, 1, 3, 5]], [7, 8, 9, 7, 8, 9], method=method)
    np.testing.assert_allclose(shuffled, expected, rtol=1e-12)


def test_nested_rhat_of_single_draws_by_hand():
    # Means of superchains 1 and 5, variance 8; within: variances 2 and 2 of the two chains.
    x = np.array([[0.0], [2.0], [4.0], [6.0]])
    assert rhat.nested_rhat(x, 2, method="identity") == pytest.approx(np.sqrt(1 + 8 / 2))


def test_ebfmi_by_hand_and_as_arviz(rng):
    energy = np.cumsum(rng.normal(size=(2, 100)), axis=1)
    expected = [np.mean(np.diff(e) ** 2) / np.var(e, ddof=1) for e in energy]
    np.testing.assert_allclose(rhat.ebfmi(energy), expected, rtol=1e-12)
    assert rhat.ebfmi(rng.normal(size=(1, 4000)))[0] == pytest.approx(2.0, rel=0.1)


def test_half_precision_and_integers_are_taken(rng):
    import jax.numpy as jnp

    x = jnp.asarray(rng.normal(size=(2, 40)), dtype=jnp.bfloat16)
    expected = rhat.rhat(np.asarray(x, dtype=np.float32))
    assert rhat.rhat(x) == pytest.approx(float(expected), rel=1e-12)
    assert np.isfinite(rhat.rhat(rng.integers(0, 5, (2, 40))))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rhat.rhat(np.ones(4)), r"\(chain, draw, ...\), got shape \(4,\)"),
        (lambda: rhat.rhat([["a"]]), "could not convert string to float"),
        (lambda: rhat.nested_rhat(np.ones((4, 8)), 3), "the 4 chains .* got 3"),
        (lambda: rhat.nested_rhat(np.ones((4, 8)), [0, 0, 0, 1]), "equal size"),
        (lambda: rhat.nested_rhat(np.ones((4, 8)), 2, method="x"), "got 'x'"),
        (lambda: rhat.rhat(np.ones((4, 8)), method="bulk"), "method must be .* got 'bulk'"),
        (lambda: rhat.ess(np.ones((4, 8)), method="rank"), "method must be .* got 'rank'"),
        (lambda: rhat.ebfmi(np.ones(4)), r"got shape \(4,\)"),
    ],
)
def test_numerics_name_the_mistake(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def awkward(rng, kind, dtype):
    """Numbers on which ranks can go wrong."""
    tiny = np.finfo(dtype).tiny
    values = {
        "normal": rng.normal(size=(3, 400)),
        "ties": rng.integers(-3, 4, (3, 400)),
        "all equal": np.full((2, 20), -1.5),
        "both signs of zero": rng.choice([0.0, -0.0, 1.0, -1.0], (2, 50)),
        "wide": rng.choice([-1, 1], (2, 300)) * np.exp(rng.uniform(-80, 80, (2, 300))),
        "smallest": rng.choice([tiny, -tiny, tiny / 4, -tiny / 4, 0.0], (2, 100)),
        "rows that end alike": np.repeat([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]], 10, axis=1),
    }[kind]
    return values.astype(dtype)


KINDS = ["normal", "ties", "all equal", "both signs of zero", "wide", "smallest"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [*KINDS, "rows that end alike"])
@pytest.mark.parametrize("folded", [False, True])
def test_scores_are_those_of_mean_ranks(rng, kind, dtype, folded):
    """Normal scores of (rank - 3/8) / (size + 1/4), Vehtari et al. 2021, with SciPy's ranks."""
    values = awkward(rng, kind, dtype)
    ranked = np.abs(values - np.median(values, axis=1, keepdims=True)) if folded else values
    size = values.shape[1]
    expected = stats.norm.ppf(
        (stats.rankdata(ranked.astype(float), axis=1) - 0.375) / (size + 0.25)
    )
    scores = rhat.rank_scores(values[:, None], folded)[:, 0]
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)


X = np.linspace(-1.0, 1.0, 6).astype(np.float32)
HOLED = np.where(np.arange(6) == 2, np.nan, X).astype(np.float32)


def student(df):
    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        bnn.likelihoods.student_t(b * x, y, noise=0.3, df=df)

    return model


cauchy = row_model(lambda x, b: dist.Cauchy(b * x, 0.3), b=dist.Normal(0.0, 1.0))
normal = row_model(lambda x, b: dist.Normal(b * x, 0.3), b=dist.Normal(0.0, 1.0))
huge = row_model(
    lambda x, b: dist.Normal(jnp.exp(100 * b) * jnp.ones(len(x)), 0.3), b=dist.Normal(0.0, 1.0)
)

# The model, the inputs, the chains that are bad, and what the report says.
CASES = {
    "no variance": (student(2.0), X, "(scale) are NaN or infinite in every draw, at all rows"),
    "no mean": (student(1.0), X, "no finite mean (Student's t with df up to 1, Cauchy)"),
    "cauchy": (cauchy, X, "(mean, scale) are NaN or infinite in every draw, at all rows"),
    "a prior of df": (
        student(dist.Gamma(2.0, 1.0)),
        X,
        "(scale) are NaN or infinite in 25 % of draws",
    ),
    "a row": (normal, HOLED, "(mean) are NaN or infinite in every draw, at 1 of 6 rows (2)"),
    "overflow": (huge, X, "weights are so large that predictions overflow"),
}


def draws_of(model):
    rng = np.random.default_rng(0)
    # A quarter of the degrees of freedom has no variance.
    df = np.where(np.arange(120) % 4, 3.0, 1.5) * np.ones((2, 1))
    return bnn.Draws({"b": 1 + rng.normal(size=(2, 120)), "y.df": df}, model)


@pytest.mark.parametrize("case", CASES)
def test_the_report_says_why_predictions_are_not_finite(case):
    model, x, said = CASES[case]
    report = bnn.diagnose(draws_of(model), x)
    assert report.verdict == "invalid"
    assert report.headline == "NaN or infinite predictions in 2 of 2 chains"
    assert report.needed_by == "finite predictions"
    assert said in report.sentences[0]
    assert "while the weights are finite" in report.sentences[0]
    assert "lower the step size" not in report.explanation


def test_weights_that_are_not_finite_are_what_is_wrong():
    rng = np.random.default_rng(0)
    weights, predictions = rng.normal(size=(2, 120, 3)), rng.normal(size=(2, 120, 4))
    weights[:, 5:], predictions[:, 5:] = np.nan, np.nan
    report = diagnose_draws({"w": weights}, predictions)
    assert report.headline == "NaN or infinite draws in 2 of 2 chains"
    assert "No chain is left: lower the step size" in report.explanation
    # Whether weights were finite is not known.
    alone = diagnose_draws(None, predictions)
    assert "while the weights are finite" not in alone.explanation


@pytest.mark.parametrize(
    ("df", "x", "said"), [(2.0, X, "no finite variance"), (9.0, HOLED, "rows (2)")]
)
def test_a_run_in_stages_stops_at_once_and_says_why(df, x, said):
    model = student(df)
    kernel = HMC(model, step_size=0.1, num_steps=2, adapt_step_size=False, trajectory_length=None)
    mcmc = bnn.MCMC(kernel, num_warmup=5, num_samples=20, num_chains=2, progress_bar=False)
    with pytest.warns(UserWarning, match="while the weights are finite"):
        stopped = mcmc.run_until(jax.random.key(0), X, X, at=(x, None), max_minutes=1.0)
    assert stopped.reason == "predictions are not finite"
    assert len(stopped.looks) == 1
    assert said in str(stopped)
    assert "More draws will not change that." in str(stopped)
    assert mcmc.get_samples()["b"].size == 2 * stopped.draws


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_chain_with_an_infinite_log_density_is_named(value):
    x = np.random.default_rng(0).normal(size=(4, 200, 5))
    scored = -(x**2)
    scored[1, 7, 2] = value
    report = diagnose_draws({"w": x}, x, log_likelihood=scored)
    assert report.verdict == "invalid"
    assert (
        "Chain 1 holds NaN or infinite values from draw 7 on (log likelihood)" in report.explanation
    )
    # No probability at all is no fault of a chain.
    scored[1, 7, 2] = -np.inf
    assert diagnose_draws({"w": x}, x, log_likelihood=scored).verdict != "invalid"


def test_probabilities_of_a_single_class_are_refused():
    with pytest.raises(
        ValueError, match=r"two or more classes on their last axis, got shape \(2, 20, 5, 1\)"
    ):
        diagnose_draws(None, {"probs": np.ones((2, 20, 5, 1))})
