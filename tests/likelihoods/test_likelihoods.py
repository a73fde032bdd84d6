"""Likelihood helpers and ready models against SciPy's densities, in the user's units."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from nets import double
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density
from scipy import special, stats
from site_densities import log_prob

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors
from numpyro_bnn.likelihoods import Precision
from numpyro_bnn.likelihoods.survival import PiecewiseHazard

SIZE = 6


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def softplus(x):
    return np.log1p(np.exp(x))


def test_gaussian(rng):
    f, y = rng.normal(size=(2, SIZE))
    by_row = log_prob(lambda: likelihoods.gaussian(jnp.asarray(f), y, noise=0.7))["y"]
    np.testing.assert_allclose(by_row, stats.norm(f, 0.7).logpdf(y), rtol=1e-4)
    outputs, targets = rng.normal(size=(2, SIZE, 3))
    by_row = log_prob(lambda: likelihoods.gaussian(jnp.asarray(outputs), targets, noise=0.7))["y"]
    np.testing.assert_allclose(by_row, stats.norm(outputs, 0.7).logpdf(targets).sum(1), rtol=1e-4)


@pytest.mark.parametrize(
    ("noise", "site", "value", "prior"),
    [
        (dist.HalfNormal(2.0), "y.scale", 0.3, stats.halfnorm(scale=2.0)),
        (dist.Uniform(0.1, 1.1), "y.scale", 0.3, stats.uniform(0.1, 1.0)),
        (likelihoods.Precision(2.0, 3.0), "y.precision", 0.3**-2, stats.gamma(2.0, scale=1 / 3)),
    ],
)
def test_noise_with_a_prior_is_a_site(rng, noise, site, value, prior):
    f, y = rng.normal(size=(2, SIZE))
    parts = log_prob(
        lambda: likelihoods.gaussian(jnp.asarray(f), y, noise=noise), values={site: value}
    )
    np.testing.assert_allclose(parts[site], prior.logpdf(value), rtol=1e-4)
    np.testing.assert_allclose(parts["y"], stats.norm(f, 0.3).logpdf(y), rtol=1e-4)


def test_noise_that_the_model_sampled_itself_is_taken(rng):
    y = rng.normal(size=SIZE)

    def model():
        scale = numpyro.sample("own", dist.LogNormal(0.0, 1.0))
        likelihoods.gaussian(jnp.zeros(SIZE), y, noise=scale)

    density = jax.jit(lambda s: log_density(model, (), {}, {"own": s})[0])(0.5)
    expected = stats.norm(0, 0.5).logpdf(y).sum() + stats.lognorm(1.0).logpdf(0.5)
    assert density == pytest.approx(expected, rel=1e-5)


def test_heteroscedastic(rng):
    f, y = rng.normal(size=(SIZE, 2)), rng.normal(size=SIZE)
    by_row = log_prob(lambda: likelihoods.heteroscedastic(jnp.asarray(f), y))["y"]
    np.testing.assert_allclose(by_row, stats.norm(f[:, 0], softplus(f[:, 1])).logpdf(y), rtol=1e-4)


def test_student_t_with_known_and_unknown_degrees_of_freedom(rng):
    f, y = rng.normal(size=(2, SIZE))

    def model(df):
        likelihoods.student_t(jnp.asarray(f), y, noise=0.7, df=df)

    expected = stats.t(5.0, f, 0.7).logpdf(y)
    np.testing.assert_allclose(log_prob(model, 5.0)["y"], expected, rtol=1e-4)
    parts = log_prob(model, dist.Gamma(2.0, 0.1), values={"y.df": 5.0})
    np.testing.assert_allclose(parts["y"], expected, rtol=1e-4)
    np.testing.assert_allclose(parts["y.df"], stats.gamma(2, scale=10).logpdf(5.0), rtol=1e-4)


def test_classes(rng):
    logits, y = rng.normal(size=(SIZE, 3)), np.array([0, 2, 1, 1, 0, 2])
    by_row = log_prob(lambda: likelihoods.categorical(jnp.asarray(logits), y))["y"]
    expected = special.log_softmax(logits, -1)[np.arange(SIZE), y]
    np.testing.assert_allclose(by_row, expected, rtol=1e-4)
    for binary in (y > 1, (y > 1).astype(int)):
        by_row = log_prob(lambda b=binary: likelihoods.bernoulli(jnp.asarray(logits[:, 0]), b))["y"]
        sign = np.where(y > 1, 1, -1)
        np.testing.assert_allclose(by_row, special.log_expit(sign * logits[:, 0]), rtol=1e-4)


@pytest.mark.parametrize(
    ("helper", "outputs", "options"),
    [
        (likelihoods.gaussian, 1, {"noise": 0.5}),
        (likelihoods.student_t, 1, {"noise": 0.5}),
        (likelihoods.heteroscedastic, 2, {}),
        (likelihoods.categorical, 3, {}),
        (likelihoods.bernoulli, 1, {}),
    ],
)
def test_every_helper_follows_minibatches_of_predictions_and_of_inputs(
    rng, helper, outputs, options
):
    x = rng.normal(size=(9, 3))
    classes = helper in (likelihoods.categorical, likelihoods.bernoulli)
    y = rng.integers(0, 2, 9) if classes else rng.normal(size=9)
    seen = []

    def model(x, y, form):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, outputs]).to_event())

        def net(rows):
            seen.append(len(rows))
            return (rows @ w).squeeze(-1) if outputs == 1 else rows @ w

        if form == "predictions":
            helper(net(x), y, **options)
        elif form == "inputs":
            helper(net, y, x=x, **options)
        else:
            named = {"some": x[:, :2], "last": x[:, 2]}
            helper(lambda x: net(jnp.column_stack([x["some"], x["last"]])), y, x=named, **options)

    z, rows = {"w": jnp.asarray(rng.normal(size=(3, outputs)))}, jnp.array([1, 4, 5])
    energies = []
    for form in ("predictions", "inputs", "dictionary"):
        potential = bnn.potential_of(model, x, y, form)
        assert potential.data_plate() == ("data", 9)
        seen.clear()
        energies.append(jax.jit(lambda z, p=potential: p.minibatch(z, rows, "data"))(z))
        assert set(seen) == {9 if form == "predictions" else 3}
    np.testing.assert_allclose(energies, energies[0], rtol=1e-5)


def test_inputs_by_name_are_checked_one_by_one():
    """Each column is named where it is wrong, and a noise of several outputs counts these."""
    rows, y = np.ones((4, 2)), np.ones((4, 2))
    for column, words in (
        (np.ones(3), r"x\['b'\] has shape \(3,\) and y \(4, 2\)"),
        (np.array([1, np.nan, 1, 1]), r"x\['b'\] has 1 NaN"),
        (["a"] * 4, r"x\['b'\] is of type list"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            likelihoods.gaussian(lambda x: x["a"], y, noise=1.0, x={"a": rows, "b": column})
    with pytest.raises(TypeError, match="x is of type dict"):
        likelihoods.gaussian(lambda x: 0.0, noise=1.0, x={})
    noise = likelihoods.Precision(2.0, 2.0, output=2.0)
    inputs = {"a": rows, "b": np.zeros(4)}
    sites = log_prob(lambda: likelihoods.gaussian(lambda x: x["a"], noise=noise, x=inputs))
    assert sites["y"].shape == (4,)


HAZARDS = np.array([[0.3, 1.2, 0.5], [2.0, 0.1, 0.7]])
BREAKS = [0.5, 2.0]


def survivor(time, hazard, ends):
    """exp(-∫ h dt), with the integral by small steps."""
    grid = np.linspace(0, time, 200_001)[1:] - time / 400_000
    return np.exp(-hazard[np.searchsorted(ends, grid)].mean() * time)


@pytest.mark.parametrize("ends", [[], BREAKS])
def test_survival_is_the_density_of_events_and_the_survivor_of_censored_times(ends):
    hazards = HAZARDS if ends else HAZARDS[:, 0]
    y = np.array([[1.3, 1.0], [2.7, 0.0]])
    parts = log_prob(lambda: likelihoods.survival(np.log(hazards), y, breaks=ends))["y"]
    rows = HAZARDS if ends else HAZARDS[:, :1]
    expected = [np.log(survivor(t, h, ends)) for (t, _), h in zip(y, rows)]
    expected[0] += np.log(rows[0][np.searchsorted(ends, 1.3)])
    np.testing.assert_allclose(parts, expected, rtol=1e-4)


def test_predicted_times_follow_the_survivor():
    distribution = PiecewiseHazard(np.log(HAZARDS[0]), BREAKS)
    draws = np.asarray(jax.jit(lambda k: distribution.sample(k, (2000,)))(jax.random.key(0)), float)
    assert (draws[:, 1] == 1).all()
    spent = np.clip(draws[:, :1] - np.array([0, *BREAKS]), 0, [0.5, 1.5, np.inf])
    assert stats.kstest(spent @ HAZARDS[0], stats.expon.cdf).pvalue > 1e-4
    grid = np.linspace(0, 60, 60_001)
    spent = np.clip(grid[:, None] - np.array([0, *BREAKS]), 0, [0.5, 1.5, np.inf])
    survivors = np.exp(-spent @ HAZARDS[0])
    mean, square = np.trapezoid(survivors, grid), np.trapezoid(2 * grid * survivors, grid)
    found = jax.jit(lambda: (distribution.mean, distribution.variance))()
    np.testing.assert_allclose(found[0], [mean, 1], rtol=1e-4)
    np.testing.assert_allclose(found[1], [square - mean**2, 0], rtol=1e-4)


@pytest.mark.parametrize(
    ("f", "y", "breaks", "message"),
    [
        (np.zeros(2), np.ones(2), [], r"y has shape \(2,\), expected \(N, 2\)"),
        (np.zeros((2, 1)), np.ones((2, 2)), [], r"f has shape \(2, 1\), expected \(2,\)"),
        (np.zeros((2, 2)), np.ones((2, 2)), BREAKS, r"f has shape \(2, 2\), expected \(2, 3\)"),
        (np.zeros(2), np.array([[1, 1], [-1, 0]]), [], "times must be positive and flags 0 or 1"),
        (np.zeros((2, 3)), np.ones((2, 2)), [2.0, 1.0], "increasing positive times, got breaks"),
    ],
)
def test_survival_refuses(f, y, breaks, message):
    with pytest.raises(ValueError, match=message):
        log_prob(lambda: likelihoods.survival(jnp.asarray(f), y, breaks=breaks))


def test_noise_of_outputs_and_of_cases(rng):
    f, y = rng.normal(size=(2, SIZE, 2))
    noise = likelihoods.Precision.width(0.5, common=3.0, output=4.0, case=5.0)
    values = {"y.precision": 2.0, "y.output_precision": np.array([0.5, 4.0])}
    parts = log_prob(lambda: likelihoods.gaussian(jnp.asarray(f), y, noise=noise), values=values)
    expected = stats.t(5.0, f, np.array([0.5, 4.0]) ** -0.5).logpdf(y).sum(1)
    np.testing.assert_allclose(parts["y"], expected, rtol=1e-4)
    expected = stats.gamma(1.5, scale=1 / (1.5 * 0.25)).logpdf(2.0)
    np.testing.assert_allclose(parts["y.precision"], expected, rtol=1e-4)
    expected = stats.gamma(2.0, scale=2.0 / 2.0).logpdf([0.5, 4.0]).sum()
    np.testing.assert_allclose(parts["y.output_precision"], expected, rtol=1e-4)


def standardized(x, y):
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "heteroscedastic"])
def test_a_regression_is_the_standardised_model_with_log_scores_shifted_by_log_sd(rng, likelihood):
    x, y = rng.normal(5.0, 3.0, size=(SIZE, 3)), rng.normal(-20.0, 7.0, size=SIZE)
    module = nets.MLP(outputs=2 if likelihood == "heteroscedastic" else 1)
    prior, own = priors.Normal(0.5), dist.HalfNormal(0.5)
    ready = bnn.regression(module, prior, likelihood=likelihood, noise=own)

    def by_hand(x, y):
        net = bnn.random_module("net", module, prior, x[:1])
        f = net(x)
        if likelihood == "heteroscedastic":
            by_row = dist.Normal(f[:, 0], jax.nn.softplus(f[:, 1]))
        else:
            scale = numpyro.sample("y.scale", own)
            f = f.squeeze(-1)
            student = likelihood == "student_t"
            by_row = dist.StudentT(4.0, f, scale) if student else dist.Normal(f, scale)
        numpyro.sample("y", by_row, obs=y)

    values = {k: jnp.abs(v) for k, v in nets.weights(by_hand, *standardized(x, y)).items()}
    bnn.potential_of(ready, x, y)  # a look at the data is where the units come from
    ours = jax.jit(lambda v: log_density(ready, (x, y), {}, v)[0])(values)
    theirs = jax.jit(lambda v: log_density(by_hand, standardized(x, y), {}, v)[0])(values)
    np.testing.assert_allclose(ours, theirs - SIZE * np.log(y.std()), rtol=1e-5)


def test_a_classification_standardises_inputs_only(rng):
    x, y = rng.normal(5.0, 3.0, size=(SIZE, 3)), np.array([0, 2, 1, 1, 0, 2])
    ready = bnn.classification(nets.MLP(outputs=3), priors.Normal(0.5), x, y)

    def by_hand(x, y):
        net = bnn.random_module("net", nets.MLP(outputs=3), priors.Normal(0.5), x[:1])
        numpyro.sample("y", dist.Categorical(logits=net(x)), obs=y)

    inputs = standardized(x, y)[0]
    values = nets.weights(by_hand, inputs, y)
    ours = jax.jit(lambda v: log_density(ready, (x, y), {}, v)[0])(values)
    theirs = jax.jit(lambda v: log_density(by_hand, (inputs, y), {}, v)[0])(values)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_one_output_makes_two_classes(rng):
    x, y = rng.normal(size=(SIZE, 3)), np.array([0, 1, 1, 0, 1, 0])
    ready = bnn.classification(nets.MLP(outputs=1), priors.Normal(0.5), x, y)
    assert bnn.potential_of(ready, x, y).structure.sites["y"].shape == (SIZE,)
    with pytest.raises(ValueError, match="from 0 to 2, expected whole numbers from 0 to 1, as"):
        bnn.potential_of(ready, x, np.array([0, 1, 2, 0, 1, 0]))


def test_a_constant_column_and_a_constant_target_do_no_harm(rng):
    x, y = np.ones((SIZE, 3)), np.full(SIZE, 2.0)
    ready = bnn.regression(nets.MLP(outputs=1), priors.Normal(0.5), x, y)
    assert (ready.standardization.x_scale == 1).all()
    assert ready.standardization.y_scale == 1


def test_the_units_are_those_of_the_first_fit_and_of_a_fit_that_succeeds(rng):
    x, y = rng.normal(size=(SIZE, 3)), rng.normal(size=SIZE)
    ready = bnn.regression(bnn.MLP((), 1), priors.Normal(0.5))
    bad = y.copy()
    bad[2] = np.inf

    def start(x, y):
        return bnn.optimize(ready, jax.random.key(0), x, y, num_steps=0, progress_bar=False)

    with pytest.raises(ValueError, match="y has 1 NaN or infinite"):
        start(x, bad)
    with pytest.raises(ValueError, match=r"y has shape \(6, 1\), expected \(N,\)"):
        start(x, y[:, None])
    assert ready.standardization is None
    start(x, y)
    start(jnp.asarray(x), jnp.asarray(y))  # the same data
    with pytest.raises(ValueError, match="keeps the units of the data it was first fitted to"):
        start(x + 1, y)


RNG = np.random.default_rng(0)
SD = np.array([0.5, 1.0, 2.0])
ROOT = np.linalg.cholesky(np.array([[1, 0.8, 0.2], [0.8, 1, -0.3], [0.2, -0.3, 1]]))
F, Y = RNG.normal(size=(2, 6, 3))
KNOWN = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 0, 1]], bool)
GAPS = np.where(KNOWN, Y, np.nan)


def log_density_of_rows(observed, **values):
    """The log density of each row, at given values of the other sites."""

    @jax.jit  # Operation by operation each would compile by itself.
    def by_row():
        site = trace(seed(substitute(observed, values), 0)).get_trace()["y"]
        return site["fn"].log_prob(site["value"])

    return np.asarray(by_row(), np.float64)


def marginals(covariance):
    """The log densities of the known entries of each row by SciPy."""
    rows = [
        stats.multivariate_normal(f[k], covariance[np.ix_(k, k)]).logpdf(y[k]) if k.any() else 0.0
        for f, y, k in zip(F, Y, KNOWN)
    ]
    return np.array(rows)


@pytest.mark.parametrize("filling", [np.nan, np.inf])
def test_a_row_of_correlated_targets_counts_with_the_marginal_of_the_known_ones(filling):
    y = np.where(KNOWN, Y, filling)
    with double():
        found = log_density_of_rows(
            lambda: likelihoods.gaussian(F, y, noise=SD, correlation=1.0, obs_mask=KNOWN),
            **{"y.correlation": ROOT},
        )
    scaled = SD[:, None] * ROOT
    np.testing.assert_allclose(found, marginals(scaled @ scaled.T), rtol=0, atol=1e-10)


def of_entries(distribution):
    return np.where(KNOWN, distribution.logpdf(Y), 0.0)


ELEMENTWISE = {
    "Gaussian": (
        lambda m: likelihoods.gaussian(F, GAPS, noise=SD, obs_mask=m),
        lambda: of_entries(stats.norm(F, SD)).sum(1),
    ),
    "t of several targets": (
        lambda m: likelihoods.gaussian(F, GAPS, noise=Precision(case=4.0), obs_mask=m),
        lambda: of_entries(stats.t(4, F, 1.0)).sum(1),
    ),
}
ONE, LABELS = KNOWN[:, 0], np.array([0, 2, 1, 0, 1, 2])
ROWS = {
    "Gaussian": (
        lambda m: likelihoods.gaussian(F[:, 0], GAPS[:, 0], noise=0.7, obs_mask=m),
        lambda: stats.norm(F[:, 0], 0.7).logpdf(Y[:, 0]),
    ),
    "t": (
        lambda m: likelihoods.student_t(F[:, 0], GAPS[:, 0], noise=0.7, df=3.0, obs_mask=m),
        lambda: stats.t(3, F[:, 0], 0.7).logpdf(Y[:, 0]),
    ),
    "heteroscedastic": (
        lambda m: likelihoods.heteroscedastic(F[:, :2], GAPS[:, 0], obs_mask=m),
        lambda: stats.norm(F[:, 0], np.logaddexp(0, F[:, 1])).logpdf(Y[:, 0]),
    ),
    "classes": (
        lambda m: likelihoods.categorical(F, np.where(m, LABELS, -1), obs_mask=m),
        lambda: np.log(np.exp(F)[range(6), LABELS] / np.exp(F).sum(1)),
    ),
    "two classes": (
        lambda m: likelihoods.bernoulli(F[:, 0], np.where(m, LABELS > 0, 7), obs_mask=m),
        lambda: np.log(1 / (1 + np.exp(np.where(LABELS > 0, -1, 1) * F[:, 0]))),
    ),
}


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_targets_with_noise_of_their_own_count_where_they_are_known(kind):
    make, expected = ELEMENTWISE[kind]
    found = log_density_of_rows(lambda: make(KNOWN), **{"y.precision": 1.0})
    np.testing.assert_allclose(found, expected(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_without_its_target_has_no_log_density(kind):
    make, expected = ROWS[kind]
    found = log_density_of_rows(lambda: make(ONE))
    np.testing.assert_allclose(found, np.where(ONE, expected(), 0.0), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("mask", [KNOWN[:, :2], KNOWN * 1.0])
def test_masks_that_say_nothing_of_each_target_are_refused(mask):
    with pytest.raises(ValueError, match=r"obs_mask has shape .* expected booleans .*\(6, 3\)"):
        trace(seed(lambda: likelihoods.gaussian(F, GAPS, noise=SD, obs_mask=mask), 0)).get_trace()


def test_noise_of_a_hierarchy_is_no_longer_conjugate_where_targets_are_missing():
    """Gibbs draws of a precision count its residuals, and some are no residuals here."""

    def infer(mask):
        observed = seed(lambda: likelihoods.gaussian(F, Y, noise=Precision(), obs_mask=mask), 0)
        return trace(observed).get_trace()["y.precision"]["infer"]

    assert "hierarchy" in infer(None)
    assert "hierarchy" not in infer(KNOWN)
