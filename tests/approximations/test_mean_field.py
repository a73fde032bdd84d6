"""Mean-field inference against its optimum for a Gaussian posterior."""

import linear_gaussian as linear
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from linear_gaussian import key, posterior, within_errors
from scipy import stats

import numpyro_bnn as bnn


@pytest.fixture(scope="module")
def data():
    return linear.data()


def fit(model, *args, **options):
    return bnn.mean_field(model, key(3), *args, **({"progress_bar": False} | options))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"num_particles": 8, "num_steps": 4000}, marks=pytest.mark.slow),
        {"batch_size": 10, "num_steps": 12_000},
    ],
)
def test_mean_and_too_small_variances_of_a_gaussian_posterior(data, options):
    """The mean is exact, a variance 1 / diag(P): the known factor below the right one.

    Beside the Monte Carlo error of the draws there is that of the optimisation, whose steps end at
    zero; one per cent of a standard deviation, or of a variance, is allowed for it.
    """
    mean, precision = posterior(*data)
    draws = fit(linear.model, *data, num_samples=2000, **options)
    standard = (linear.weights(draws)[0] - mean) * np.sqrt(np.diag(precision))
    error = standard.std(0, ddof=1) / np.sqrt(2000)
    assert (np.abs(standard.mean(0)) < 4 * error + 0.01).all()
    square = standard**2
    error = square.std(0, ddof=1) / np.sqrt(2000)
    assert (np.abs(square.mean(0) - 1) < 4 * error + 0.01).all()
    correlations = standard[:, :, None] * standard[:, None, :] * (1 - np.eye(4))
    error = correlations.std(0, ddof=1) / np.sqrt(2000)
    assert (np.abs(correlations.mean(0)) <= 4 * error).all()
    # Far enough from the exact variances for the test to see which of the two it is.
    assert (np.diag(np.linalg.inv(precision)) * np.diag(precision) > 1.2).any()


def test_the_elbo_is_the_evidence_where_the_family_holds_the_posterior():
    """One mean under known noise: q can be exact, and the bound is then log p(y)."""
    y = np.array([0.3, 1.2, -0.4, 2.0])

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        with numpyro.plate("data", 4):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    draws = fit(model, y, num_samples=2000, num_steps=2000, num_particles=4)
    evidence = stats.multivariate_normal(np.zeros(4), np.eye(4) + 4.0).logpdf(y)
    assert draws.info["elbo"] == pytest.approx(evidence, abs=0.01)
    within_errors(np.asarray(draws["mean"], np.float64)[0], y.sum() / (4 + 1 / 4))


def test_a_fit_begins_where_it_is_told(data):
    """Without a step to speak of: draws around the start, as wide as asked for."""
    start = {linear.KERNEL: np.array([[3.0], [-4.0], [5.0]]), linear.BIAS: np.array([-6.0])}
    draws = fit(
        linear.model,
        *data,
        init_params=start,
        init_scale=0.25,
        optimizer=optax.sgd(1e-12),
        num_steps=1,
        num_samples=2000,
    )
    found = linear.weights(draws)[0]
    within_errors(found, [3.0, -4.0, 5.0, -6.0])
    within_errors((found - [3.0, -4.0, 5.0, -6.0]) ** 2, 0.25**2)


def test_a_fit_that_was_ended_goes_on_to_the_same_draws(data, tmp_path, monkeypatch):
    """The process dies after the second of three checkpoints; a fit of other data is refused."""
    pytest.importorskip("orbax.checkpoint")
    from numpyro_bnn.storage.checkpoints import Checkpoint

    options = {"batch_size": 10, "num_steps": 1700, "num_samples": 20}
    options |= {"optimizer": optax.adam(0.01)}
    whole = fit(linear.model, *data, **options)
    kept = options | {"checkpoint": tmp_path / "fit", "checkpoint_every": 500}
    save, saved = Checkpoint.save, []

    def dies(self, states, progress):
        save(self, states, progress)
        saved.append(progress.steps)
        if len(saved) == 2:
            self.close()
            raise OSError("the machine was taken away")

    monkeypatch.setattr(Checkpoint, "save", dies)
    with pytest.raises(OSError, match="taken away"):
        fit(linear.model, *data, **kept)
    again = fit(linear.model, *data, **kept)
    assert saved == [500, 1000, 1500]
    assert again.info == whole.info
    for name in whole:
        np.testing.assert_array_equal(again[name], whole[name])
    with pytest.raises(ValueError, match="of another run"):
        fit(linear.model, data[0], data[1] + 1, **kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoint_every": 0}, r"checkpoint_every must be a positive integer, got 0"),
        ({"init_params": {linear.BIAS: np.zeros(1)}}, r"init_params lack the sites \['net/Dense_0"),
        ({"num_particles": 0}, r"mean_field: num_particles must be a positive integer, got 0"),
        (
            {"optimizer": optax.sgd(1e20), "num_steps": 20},
            r"mean_field: the fit is not finite.*smaller learning rate",
        ),
    ],
)
def test_bad_input_is_refused(data, change, message):
    with pytest.raises(ValueError, match=message):
        fit(linear.model, *data, **change)
