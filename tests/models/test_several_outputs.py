"""Targets of several columns: densities and posteriors in closed form, in the units of each column."""

import few_outputs
import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn.potential.structure import structure_of

X, Y = few_outputs.data()
X_SCALED = (X - X.mean(0)) / X.std(0)
PRIOR = bnn.priors.Normal(0.8)
SIGMA = np.array([0.2, 0.5])


def ready(**options):
    return bnn.regression(bnn.MLP((), 2), PRIOR, **options)


def weights(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"net/Dense_0.kernel": (3, 2), "net/Dense_0.bias": (2,)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def outputs(values):
    """Predictions in the units of the targets."""
    f = X_SCALED @ values["net/Dense_0.kernel"] + values["net/Dense_0.bias"]
    return Y.mean(0) + Y.std(0) * f


def prior_density(values):
    return sum(stats.norm(0, 0.8).logpdf(value).sum() for value in values.values())


@pytest.mark.parametrize("kind", ["one an output", "sampled", "correlated", "hierarchy"])
def test_the_log_density_is_the_formula(kind, double_precision):
    """Of targets in their own units, whatever means and standard deviations they have."""
    values, sites = weights(), {}
    expected = prior_density(values)
    spread, correlation = SIGMA * Y.std(0), np.eye(2)
    if kind == "one an output":
        model = ready(noise=SIGMA)
    elif kind == "hierarchy":
        model = ready(noise=bnn.likelihoods.Precision(2.0, 3.0, output=4.0))
        sites = {"y.precision": np.array(1.3), "y.output_precision": SIGMA**-2.0}
        expected += stats.gamma(2.0, scale=1 / 3.0).logpdf(1.3)
        expected += stats.gamma(2.0, scale=1.3 / 2.0).logpdf(SIGMA**-2.0).sum()
    else:
        model = ready(correlation=2.0 if kind == "correlated" else None)
        sites["y.scale"] = SIGMA
        expected += stats.halfnorm(0, 1).logpdf(SIGMA).sum()
    if kind == "correlated":
        factor = np.array([[1.0, 0.0], [-0.6, 0.8]])
        sites["y.correlation"] = factor
        correlation = factor @ factor.T
        expected += float(jax.jit(lambda f: dist.LKJCholesky(2, 2.0).log_prob(f))(factor))
    covariance = spread[:, None] * correlation * spread
    rows = stats.multivariate_normal(np.zeros(2), covariance).logpdf(Y - outputs(values))
    expected += rows.sum()
    found = jax.jit(lambda values: log_density(model, (X, Y), {}, values)[0])(values | sites)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_an_lkj_prior_of_two_outputs_is_uniform_in_their_correlation(double_precision):
    """Concentration 1: density 1/2 on (-1, 1) of R[1, 0], which is the first entry of the second row."""
    with seed(rng_seed=0), trace() as sites:
        bnn.likelihoods.gaussian(np.zeros((3, 2)), noise=1.0, correlation=1.0)
    distribution = sites["y.correlation"]["fn"]
    for r in (-0.9, 0.0, 0.5):
        factor = np.array([[1.0, 0.0], [r, np.sqrt(1 - r * r)]])
        np.testing.assert_allclose(distribution.log_prob(factor), np.log(0.5), rtol=1e-6)


def predictions_of(model, num_draws=200):
    rng = np.random.default_rng(1)
    draws = {n: 0.3 * rng.normal(size=(2, num_draws, *v.shape)) for n, v in weights().items()}
    if "y.correlation" in structure_of(model, (X, Y), {}).latent:
        factor = np.array([[1.0, 0.0], [-0.6, 0.8]])
        draws["y.correlation"] = np.broadcast_to(factor, (2, num_draws, 2, 2))
    return draws, bnn.predict(model, draws, X)


@pytest.mark.parametrize("correlation", [None, 1.0])
def test_what_is_made_of_predictions(correlation):
    model = bnn.regression(bnn.MLP((), 2), PRIOR, X, Y, noise=SIGMA, correlation=correlation)
    draws, predictions = predictions_of(model)
    assert predictions.mean.shape == (2, 200, len(X), 2)
    f = X_SCALED @ draws["net/Dense_0.kernel"] + draws["net/Dense_0.bias"][:, :, None]
    np.testing.assert_allclose(predictions.mean, Y.mean(0) + Y.std(0) * f, rtol=1e-4, atol=1e-3)
    spread = SIGMA * Y.std(0)
    r = 0.0 if correlation is None else -0.6
    covariance = spread[:, None] * np.array([[1, r], [r, 1]]) * spread
    rows = stats.multivariate_normal(np.zeros(2), covariance).logpdf(Y - predictions.mean)
    np.testing.assert_allclose(predictions.log_prob(Y), rows, rtol=1e-3, atol=1e-3)
    each = stats.norm(predictions.mean, spread).cdf(Y)
    np.testing.assert_allclose(predictions.cdf(Y), each, atol=1e-4)
    mean, sd = bnn.average(predictions)
    assert mean.shape == sd.shape == Y.shape
    at = predictions.quantiles((0.2, 0.9))
    below = stats.norm(predictions.mean, spread).cdf(at[0]).mean((0, 1))
    np.testing.assert_allclose(below, 0.2, atol=1e-3)
    drawn = predictions.sample(jax.random.key(0))
    standard = ((drawn - predictions.mean) / spread).reshape(-1, 2)
    within = 5 * np.sqrt(2 / len(standard))
    np.testing.assert_allclose(np.cov(standard.T), [[1, r], [r, 1]], atol=within)
    parts = bnn.scores.uncertainty(predictions)
    np.testing.assert_allclose(parts.epistemic, predictions.mean.var((0, 1)), rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(parts.total), sd, rtol=1e-4)
    assert bnn.scores.coverage(predictions, Y) == pytest.approx(
        np.mean(np.abs(stats.norm.ppf(0.5 + np.abs(bnn.scores.pit(predictions, Y) - 0.5)))
                <= stats.norm.ppf(0.95)), abs=0.05
    )  # fmt: skip
    assert bnn.thin(bnn.Draws(draws, model), 5, X)["net/Dense_0.kernel"].shape == (1, 5, 3, 2)
    assert bnn.diagnose(bnn.Draws(draws, model), X, Y).predictions.num_scalars >= 2 * len(X)


def test_describe_and_files(tmp_path):
    model = bnn.regression(bnn.MLP((), 2), PRIOR, X, Y)
    rows = {row.site: row.shape for row in bnn.describe(model).rows}
    assert rows["y.scale"] == (2,)
    draws = {n: v[None, None] for n, v in weights().items()} | {"y.scale": SIGMA[None, None]}
    kept = bnn.Draws(draws, model)
    loaded = bnn.load(bnn.save(kept, tmp_path / "run"), ready())
    np.testing.assert_allclose(
        bnn.predict(None, loaded, X).mean, bnn.predict(None, kept, X).mean, rtol=1e-6
    )
    idata = bnn.to_inference_data(kept, X, Y)
    np.testing.assert_allclose(idata["observed_data"]["y"].values, Y, rtol=1e-5, atol=1e-4)
    assert idata["log_likelihood"]["y"].values.shape == (1, 1, len(X))
    assert bnn.prior_predictive(model, jax.random.key(0), X, 3)["y"].shape == (3, *Y.shape)


REFUSED = {
    "three axes": (
        lambda: ready().learn(X, Y[:, None]),
        r"y has shape \(30, 1, 2\), expected \(N,\)",
    ),
    "a column": (
        lambda: ready().learn(X, Y[:, :1]),
        r"y has shape \(30, 1\), expected \(N,\).* Use",
    ),
    "one unit": (
        lambda: structure_of(bnn.regression(bnn.MLP((), 1), PRIOR), (X, Y), {}),
        r"needs 2 output unit\(s\) a row",
    ),
    "t": (
        lambda: structure_of(ready(likelihood="student_t"), (X, Y), {}),
        "likelihood='student_t' takes one target, and y has 2 columns",
    ),
    "correlated t": (
        lambda: ready(likelihood="student_t", correlation=1.0),
        r"correlation=1\.0 is of Gaussian noise, and likelihood='student_t'",
    ),
    "three noises": (
        lambda: structure_of(ready(noise=np.ones(3)), (X, Y), {}),
        "noise must be one positive number, or 2 of them, one an output or a distribution",
    ),
    "correlation of one": (
        lambda: bnn.likelihoods.gaussian(np.zeros(3), noise=1.0, correlation=1.0),
        r"correlation=1\.0 is of the noise of several outputs, and the target has one",
    ),
    "correlation of cases": (
        lambda: bnn.likelihoods.gaussian(
            np.zeros((3, 2)), noise=bnn.likelihoods.Precision(case=4.0), correlation=1.0
        ),
        r"beside a noise with a level of cases, case=4\.0",
    ),
    "no concentration": (
        lambda: bnn.likelihoods.gaussian(np.zeros((3, 2)), noise=1.0, correlation=-1.0),
        r"correlation must be positive and finite, got correlation=-1\.0",
    ),
    "calibration": (
        lambda: bnn.BNNRegressor(calibration=0.5).fit(X, Y),
        r"calibration=0\.5 is for one target, and y has 2 columns",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()
