"""Targets of which some are missing (NaN, `obs_mask=`): units, posterior, predictions, checks and scores."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, scores

RNG = np.random.default_rng(1)
ROWS = 30
X = RNG.normal(size=(ROWS, 2))
ROOT = np.linalg.cholesky(np.array([[1.0, 0.8], [0.8, 1.0]]))
SD = np.array([0.5, 2.0])
Y = X @ np.array([[1.0, 3.0], [-1.0, 2.0]]) + RNG.normal(size=(ROWS, 2)) @ (SD[:, None] * ROOT).T
KNOWN = RNG.uniform(size=(ROWS, 2)) < 0.7
KNOWN[:2] = False
GAPS = np.where(KNOWN, Y, np.nan)
HAS_ANY = KNOWN.any(1)
WARNING = "ignore:.* rows have no target and are left out"
pytestmark = pytest.mark.filterwarnings(WARNING)


def test_units_are_those_of_the_rows_in_which_a_target_is_known():
    model = bnn.regression(bnn.MLP((), 2), bnn.priors.FanIn())
    weights = RNG.uniform(0.5, 2, ROWS)
    assert model.learn(X, GAPS, weights)
    units = model.standardization
    for k in range(2):
        alone = bnn.regression(bnn.MLP((), 1), bnn.priors.FanIn())
        own = KNOWN[:, k]
        alone.learn(X[own], Y[own, k], weights[own])
        assert units.y_mean[k] == alone.standardization.y_mean
        assert units.y_scale[k] == alone.standardization.y_scale
    kept = bnn.regression(bnn.MLP((), 2), bnn.priors.FanIn())
    kept.learn(X[HAS_ANY], GAPS[HAS_ANY], weights[HAS_ANY])
    np.testing.assert_array_equal(units.x_mean, kept.standardization.x_mean)


def energy(model, *data):
    """The energy of the likelihood where all latent values are 0.3."""
    potential = bnn.potential_of(model, *data)
    sites = potential.structure.sites
    values = {n: jnp.full(s.shape, 0.3) for n, s in sites.items() if not s.observed}
    return float(jax.jit(potential.energies)(values)[1])


FAMILIES = {
    "gaussian": ({"noise": 0.5}, 1),
    "student_t": ({"noise": 0.5, "df": 4.0}, 1),
    "heteroscedastic": ({}, 2),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_single_target_that_is_missing_leaves_its_row_out(family):
    options, outputs = FAMILIES[family]
    y, known = GAPS[:, 0], KNOWN[:, 0]

    def made():
        return bnn.regression(
            bnn.MLP((), outputs), bnn.priors.FanIn(), likelihood=family, **options
        )

    with_gaps, without = energy(made(), X, y), energy(made(), X[known], y[known])
    assert with_gaps == pytest.approx(without, rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_label_that_is_missing_leaves_its_row_out(outputs):
    labels = (Y[:, 0] > 0).astype(int)
    known = KNOWN[:, 0]

    def made():
        return bnn.classification(bnn.MLP((), outputs), bnn.priors.FanIn())

    given = energy(made(), X, np.where(known, labels, np.nan))
    assert given == pytest.approx(energy(made(), X[known], labels[known]), rel=1e-5)
    with pytest.raises(ValueError, match="values from -1 to 1"):
        energy(made(), X, np.where(known, labels, -1))


def test_the_output_layer_is_integrated_out_of_the_known_targets_alone():
    """Each of two targets with rows of its own is a regression by itself."""
    first = np.arange(ROWS) % 2 == 0
    apart = np.where(np.stack([first, ~first], 1), Y, np.nan)
    x = np.repeat(X[:15], 2, 0)

    def made(outputs):
        prior = bnn.priors.Normal(1.0)
        return bnn.regression(bnn.MLP((), outputs), prior, integrate_output=True)

    alone = [energy(made(1), x[own], Y[own, k]) for k, own in enumerate((first, ~first))]
    assert energy(made(2), x, apart) == pytest.approx(sum(alone), rel=1e-4)


@pytest.fixture(scope="module")
def run():
    model = bnn.regression(bnn.MLP((), 2), bnn.priors.FanIn(), noise=0.3, correlation=1.0)
    kernel = bnn.BAOAB(model, step_size=0.005)
    made = bnn.MCMC(kernel, num_warmup=200, num_samples=50, num_chains=2, progress_bar=False)
    with pytest.warns(
        UserWarning, match=rf"regression: {sum(~HAS_ANY)} of {ROWS} rows have no target"
    ):
        made.run(jax.random.key(0), X, GAPS)
    return made


def of_rows(run, values):
    """Densities of the known targets of each row under each draw, by SciPy."""
    found = bnn.predict(None, run, X)
    assert found.mean.shape == (2, 50, ROWS, 2)
    roots = np.asarray(run.get_samples(True)["y.correlation"])
    units = run.sampler.model.standardization.y_scale
    made = np.zeros((2, 50, ROWS))
    for place in np.ndindex(made.shape):
        scaled = 0.3 * units[:, None] * roots[place[:2]]
        known = ~np.isnan(values[place[2]])
        own = np.ix_(known, known)
        if known.any():
            at = found.mean[place][known], (scaled @ scaled.T)[own]
            made[place] = stats.multivariate_normal(*at).logpdf(values[place[2]][known])
    return found, made


def test_scores_and_checks_are_of_the_known_targets(run):
    found, expected = of_rows(run, GAPS)
    scored = found.at_rows(HAS_ANY)
    np.testing.assert_allclose(
        scored.log_prob(GAPS[HAS_ANY]), expected[:, :, HAS_ANY], rtol=1e-3, atol=1e-3
    )
    with pytest.raises(ValueError, match=r"log_prob: .* of 2 of 30 rows are NaN"):
        found.log_prob(np.where(HAS_ANY[:, None] | (np.arange(ROWS) > 1)[:, None], Y, np.nan))
    check = bnn.check_fit(run)
    assert check.loo.by_row.shape == (sum(HAS_ANY),)
    np.testing.assert_array_equal(check.targets, GAPS[HAS_ANY])
    assert f"{sum(~HAS_ANY)} more rows are without a target" in " ".join(str(check).split())
    exported = bnn.to_inference_data(run).log_likelihood["y"]
    np.testing.assert_allclose(exported, expected[:, :, HAS_ANY], rtol=1e-3, atol=1e-3)
    by_row = np.log(np.exp(expected).mean((0, 1)))
    assert scores.lppd(found, GAPS) == pytest.approx(by_row[HAS_ANY].mean(), rel=1e-3)
    np.testing.assert_array_equal(np.isnan(scores.lppd(found, GAPS, pointwise=True)), ~HAS_ANY)


def test_rows_without_any_target_are_no_other_data():
    model = bnn.regression(bnn.MLP((), 2), bnn.priors.FanIn())
    assert model.learn(X, GAPS)
    assert not model.learn(X[HAS_ANY], GAPS[HAS_ANY])
    with pytest.raises(ValueError, match="these are others"):
        model.learn(X, np.where(HAS_ANY[:, None], Y, np.nan))


def own(x, y=None, known=None, correlation=None):
    w = numpyro.sample("w", dist.Normal().expand([2, 2]).to_event(2))
    likelihoods.gaussian(lambda x: x @ w, y, noise=SD, correlation=correlation, x=x, obs_mask=known)


def by_closed_form(k, rows):
    """Mean and covariance of the weights of one target given its known values in some rows."""
    rows = rows & KNOWN[:, k]
    x, y = X[rows], Y[rows, k]
    covariance = np.linalg.inv(np.eye(2) + x.T @ x / SD[k] ** 2)
    return covariance @ x.T @ y / SD[k] ** 2, covariance


def test_leave_one_out_of_a_model_of_ones_own_is_of_the_known_targets():
    exact = np.zeros(ROWS)
    for i, k in zip(*np.nonzero(KNOWN)):
        mean, covariance = by_closed_form(k, np.arange(ROWS) != i)
        sd = np.sqrt(SD[k] ** 2 + X[i] @ covariance @ X[i])
        exact[i] += stats.norm.logpdf(Y[i, k], X[i] @ mean, sd)
    rng = np.random.default_rng(3)
    w = [
        rng.multivariate_normal(*by_closed_form(k, HAS_ANY), size=(4, 1000), method="cholesky")
        for k in range(2)
    ]
    draws = bnn.Draws({"w": np.stack(w, -1)}, own, info={"kernel": "NUTS"})
    filled = np.where(KNOWN, Y, 0.0)
    for y in (filled, GAPS):
        check = bnn.check_fit(draws, X, y, known=KNOWN)
        assert abs(check.loo.elpd - exact.sum()) < 5 * check.loo.error < 1.0
        np.testing.assert_array_equal(check.targets, np.float32(GAPS[HAS_ANY]))
    scored = [bnn.diagnose(draws, X, y, known=KNOWN).monte_carlo_error for y in (filled, GAPS)]
    assert scored[0].log_score == scored[1].log_score


def test_correlated_targets_of_a_model_of_ones_own_count_where_they_are_known():
    w = np.random.default_rng(4).normal(1.0, 0.1, (2, 4, 2, 2))
    roots = np.broadcast_to(ROOT, w.shape)
    mcmc = SimpleNamespace(
        _args=(X, np.where(KNOWN, Y, 0.0)),
        _kwargs={"known": KNOWN, "correlation": 1.0},
        sampler=SimpleNamespace(model=own),
    )
    draws = bnn.Draws({"w": w, "y.correlation": roots}, own, info={"kernel": "NUTS"})
    run = SimpleNamespace(draws=draws, mcmc=mcmc)
    exported = bnn.to_inference_data(run, posterior_predictive=False)
    covariance = (SD[:, None] * ROOT) @ (SD[:, None] * ROOT).T
    exact = [
        [
            stats.multivariate_normal((x @ one)[known], covariance[np.ix_(known, known)]).logpdf(
                y[known]
            )
            for x, y, known in zip(X[HAS_ANY], Y[HAS_ANY], KNOWN[HAS_ANY])
        ]
        for one in w.reshape(-1, 2, 2)
    ]
    exact = np.reshape(exact, (2, 4, -1))
    np.testing.assert_allclose(exported["log_likelihood"]["y"], exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(exported["observed_data"]["y"], np.float32(GAPS))


NONE_KNOWN = np.c_[Y[:, 0], np.full(ROWS, np.nan)]
REFUSED = {
    "a target without any value": (NONE_KNOWN, "y has no value but NaN .* in column 1"),
    "infinity": (np.where(KNOWN, Y, np.inf), "y has .* NaN or infinite values"),
    "text": (np.where(KNOWN, Y, np.nan).astype(str), "expected numbers"),
}


@pytest.mark.parametrize("bad", REFUSED)
def test_other_targets_are_refused(bad):
    y, said = REFUSED[bad]
    with pytest.raises((TypeError, ValueError), match=said):
        bnn.regression(bnn.MLP((), 2), bnn.priors.FanIn(), X, y)
