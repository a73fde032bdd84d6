"""Data far from zero, in any number type: the posterior is that of the same data near zero."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.handlers import seed
from numpyro.infer import HMC, Predictive
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer.util import log_density

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.data.units import Column, Prepared, check_fits, moments

KEY = jax.random.key(0)
ROWS = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 2))
Y = X @ [1.0, -2.0] + 0.1 * RNG.normal(size=ROWS)
FAR_COLUMN = np.array([0, 1e9])
LABELS = (Y > 0).astype(int)
# Ranges whose steps in float32 are larger than what the values vary by.
FAR = {
    "unix seconds": lambda x: 1.7e9 + 600.0 * x,
    "unix milliseconds, whole": lambda x: np.round(1.7e12 + 6e6 * x).astype(np.int64),
    "nanoseconds, whole": lambda x: np.round(1.7e18 + 6e12 * x).astype(np.int64),
    "negative": lambda x: -3e9 + x,
    "beyond float32": lambda x: 1e9 + 1e-2 * x,
}


def regression(**options):
    return bnn.regression(bnn.MLP((3,), 1), priors.Normal(0.7), noise=0.3, **options)


def kernel(model):
    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False, "trajectory_length": None}
    return HMC(model, step_size=0.01, num_steps=4, **fixed)


def sampled(model, x, y, make=bnn.MCMC):
    run = make(kernel(model), num_warmup=2, num_samples=6, progress_bar=False)
    # Looking for a start compiles for longer than the steps.
    run.run(KEY, x, y, init_params=nets.weights(regression(x=X, y=Y), X, Y))
    return run


@pytest.fixture(scope="module")
def near():
    model = regression()
    run = sampled(model, X, Y)
    moved = np.ptp(run.get_samples()["net/Dense_0.kernel"], axis=0)
    assert (moved > 1e-3).all()
    return run, bnn.predict(None, run, X)


def same_draws(ours, theirs, rtol=1e-3):
    for name, values in theirs.get_samples().items():
        np.testing.assert_allclose(ours.get_samples()[name], values, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("far", FAR)
def test_inputs_and_targets_far_from_zero_are_standardised_as_near_it(far):
    x, y = FAR[far](X), FAR[far](Y)
    model = regression(x=x, y=y)
    units = model.standardization
    assert units.x_mean.dtype == units.y_scale.dtype == np.float64
    (rows, target), _ = model.prepare((x, y), {})
    assert isinstance(rows, Prepared)
    assert rows.rows.dtype == np.float32
    np.testing.assert_allclose(rows.rows, (X - X.mean(0)) / X.std(0), atol=2e-4)
    np.testing.assert_allclose(target.rows / units.y_scale, (Y - Y.mean()) / Y.std(), atol=2e-4)


def test_a_million_rows_in_float32_have_the_mean_that_they_have():
    years = np.tile(np.arange(2000, 2021, dtype=np.float32), 50_000)
    x = np.stack([years, np.linspace(0, 1, len(years), dtype=np.float32)], 1)
    units = regression(x=x, y=years).standardization
    np.testing.assert_allclose(units.x_mean, [2010, 0.5], rtol=1e-9)
    np.testing.assert_allclose(units.x_scale, x.astype(np.float64).std(0), rtol=1e-9)
    assert units.y_mean == 2010


def test_what_is_prepared_is_not_prepared_again():
    model = regression(x=X, y=Y)
    once, _ = model.prepare((X,), {"y": Y})
    twice, _ = model.prepare(once, {})
    assert twice[0] is once[0]
    # The energy is that of rows standardised once, by whichever door they come.
    z = nets.weights(model, X, Y)
    energies = [
        jax.jit(bnn.potential_of(model, *data))(z)
        for data in ((X, Y), model.prepare((X, Y), {})[0])
    ]
    assert energies[0] == energies[1]
    assert model.prepare((X, Y), {})[0][1].rows.mean() == pytest.approx(0, abs=1e-6)


def test_plain_numpyro_gives_the_same_draws(near):
    run, predictions = near
    model = regression()
    plain = sampled(model, X, Y, NumPyroMCMC)
    same_draws(plain, run, 1e-4)
    drawn = Predictive(model, plain.get_samples(), return_sites=["y"])(KEY, X)["y"]
    # Six draws of noise 0.3 sd about means in the user's units.
    np.testing.assert_allclose(drawn.mean(0), predictions.mean[0].mean(0), atol=1.5 * Y.std())


@pytest.mark.slow
def test_data_as_arguments_of_numpyros_program_are_standardised_inside_it(near):
    traced = sampled(regression(), X, Y, partial(NumPyroMCMC, jit_model_args=True))
    same_draws(traced, near[0], 1e-4)


def test_data_as_arguments_of_a_program_are_standardised_inside_it(near):
    z = {name: draws[0] for name, draws in near[0].get_samples().items()}
    model = regression(x=X, y=Y)
    energies = [
        jax.jit(lambda x, y: log_density(seed(model, KEY), (x, y), {}, z)[0])(X, Y),
        jax.jit(lambda: log_density(seed(model, KEY), (X, Y), {}, z)[0])(),
    ]
    np.testing.assert_allclose(*energies, rtol=1e-5)


@pytest.mark.parametrize(
    "far", ["unix seconds", pytest.param("unix milliseconds, whole", marks=pytest.mark.slow)]
)
def test_far_data_give_the_draws_and_the_scores_of_near_ones(near, far):
    run, predictions = near
    x, y = FAR[far](X), FAR[far](Y)
    ours = sampled(regression(), x, y)
    same_draws(ours, run)
    found = bnn.predict(None, ours, x)
    unit = ours.model.standardization.y_scale / Y.std()
    assert found.mean.dtype == np.float64
    offset = FAR[far](np.zeros(()))
    np.testing.assert_allclose((found.mean - offset) / unit, predictions.mean, atol=2e-3)
    np.testing.assert_allclose(
        found.log_prob(y), predictions.log_prob(Y) - np.log(unit), rtol=1e-3, atol=5e-3
    )
    noisy = (found.sample(KEY) - offset) / unit
    np.testing.assert_allclose(noisy, predictions.sample(KEY), atol=2e-3)
    assert bnn.scores.rmse(found, y) / unit == pytest.approx(
        bnn.scores.rmse(predictions, Y), rel=1e-3
    )


def test_files_exports_and_prior_draws_keep_the_units(near, tmp_path):
    run, predictions = near
    x, y = FAR["unix seconds"](X), FAR["unix seconds"](Y)
    model = regression(x=x, y=y)
    draws = run.get_samples(group_by_chain=True)
    path = bnn.save(bnn.Draws(draws, model), tmp_path / "far")
    loaded = bnn.load(path, regression())
    again = bnn.predict(None, loaded, x).mean
    np.testing.assert_array_equal(again, bnn.predict(model, draws, x).mean)
    np.testing.assert_allclose((again - 1.7e9) / 600, predictions.mean, atol=2e-3)
    idata = bnn.to_inference_data(bnn.Draws(draws, model), x, y)
    np.testing.assert_allclose(idata["observed_data"]["y"].values, y, rtol=1e-14, atol=1e-3)
    np.testing.assert_allclose(
        idata["log_likelihood"]["y"].values, predictions.log_prob(Y) - np.log(600), atol=5e-3
    )
    prior = np.asarray(bnn.prior_predictive(model, KEY, x, 3)["y"])
    assert len(np.unique(prior)) == prior.size


def test_optimised_energies_are_those_of_near_data():
    found = {}
    for name, change in {"near": lambda x: x, "far": FAR["unix seconds"]}.items():
        draws = bnn.deep_ensemble(
            regression(), KEY, change(X), change(Y), num_members=2, num_steps=50,
            batch_size=10, validation=(change(X), change(Y)), progress_bar=False,
        )  # fmt: skip
        found[name] = draws.stats["potential_energy"]
    np.testing.assert_allclose(found["far"] - ROWS * np.log(600), found["near"], rtol=1e-3)


def test_chunks_and_minibatches_take_rows_of_what_is_prepared(near):
    run, _ = near
    chunked = sampled(regression(), X, Y, partial(bnn.MCMC, chunk_size=16))
    same_draws(chunked, run)
    model = regression()
    potential = bnn.potential_of(model, FAR["unix seconds"](X), FAR["unix seconds"](Y))
    z = potential.prior_draw(KEY)
    halves = [potential.minibatch(z, i, "data") for i in jnp.split(jnp.arange(ROWS), 2)]
    assert sum(halves) / 2 == pytest.approx(float(potential(z)), rel=1e-5)


def test_a_model_inside_a_users_model_standardises_inside_it(near):
    run, _ = near
    ready = regression()
    same_draws(sampled(lambda x, y=None: ready(x, y), X, Y), run, 1e-4)


YEARS = np.linspace(2000, 2020, ROWS)
LOST = {
    "float32 seconds": (np.float32(1.7e9 + 60 * X), r"column 0 of x lies around 17000\d+.*float32 are"),
    "float16 years": (np.stack([X[:, 0], YEARS], 1).astype(np.float16), "column 1 of x lies around 20"),
    "float64 itself": (X + 1e8 * FAR_COLUMN, "column 1 of x .* steps of float64 are .* lost to rounding"),
    "whole numbers": (
        np.stack([np.arange(ROWS), 2**62 + np.arange(ROWS)], 1), "column 1 of x lies around 4.6"
    ),
    "a constant that may not be one": (np.full((ROWS, 1), 1e9, np.float32), "column 0 of x lies"),
    "one huge value": (
        np.concatenate([X, np.where(np.arange(ROWS) == 3, 1e30, YEARS)[:, None]], 1),
        r"column 2 of x has a standard deviation of 1\.\d+e\+29.*other units",
    ),
    "a missing value's number": (
        np.concatenate([X, np.where(np.arange(ROWS) == 3, 1e12, YEARS)[:, None]], 1),
        "most values of column 2 of x become the same number in float32",
    ),
    "names": (
        pd.DataFrame(X, columns=["width", "when"]).assign(when=np.float32(1.7e9 + X[:, 1])),
        "column 'when' of x lies around",
    ),
    "images": (np.full((ROWS, 2, 2), 1e9) + 1e-7 * X[:, :, None], r"x\[:, 0, 0\] lies around"),
}  # fmt: skip


@pytest.mark.parametrize("case", LOST)
@pytest.mark.parametrize("make", [regression, bnn.classification])
def test_a_column_whose_spread_is_lost_is_refused_by_name(case, make):
    x, message = LOST[case]
    model = make() if make is regression else make(bnn.MLP((3,), 2), priors.Normal(1.0))
    with pytest.raises(ValueError, match=message):
        bnn.MCMC(kernel(model), num_warmup=1, num_samples=1).run(KEY, x, LABELS)
    assert model.standardization is None


def test_a_target_whose_spread_is_lost_is_refused():
    with pytest.raises(
        ValueError, match=r"regression: y lies around 1000000000, .* is constant there"
    ):
        regression(x=X, y=np.float32(1e9 + Y))
    with pytest.raises(ValueError, match=r"y has a standard deviation of .*e-2.*other units"):
        regression(x=X, y=1e-25 * Y)


def test_new_inputs_in_a_coarser_type_than_the_training_data_are_refused():
    model = regression(x=FAR["unix seconds"](X), y=Y)
    draws = {"net/Dense_0.kernel": np.zeros((1, 1, 2, 3))}
    with pytest.raises(ValueError, match=r"column 0 of x .*float32.*NumPy array of float64"):
        bnn.predict(model, draws, jnp.asarray(FAR["unix seconds"](X)))
    with pytest.raises(ValueError, match=r"column 1 of x has the value 1e\+200 in row 3"):
        bnn.predict(model, draws, np.where(np.arange(80).reshape(-1, 2) == 7, 1e200, 1.7e9))
    with pytest.raises(ValueError, match="x has 1 NaN or infinite"):
        bnn.predict(model, draws, np.where(np.arange(80).reshape(-1, 2) == 7, np.inf, 1.7e9))


def test_plain_numpyro_refuses_a_target_that_its_float32_cannot_hold():
    with pytest.raises(
        ValueError, match=r"without `numpyro_bnn\.MCMC` or `predict`: y lies around 1"
    ):
        sampled(regression(), X, FAR["unix seconds"](Y), NumPyroMCMC)


@pytest.mark.parametrize(
    "column", [np.full(30, 0.1), np.full(30, 7), np.zeros(30), np.full(30, 1e6)]
)
def test_constant_columns_have_scale_one_and_become_zero(column):
    for dtype in (column.dtype, np.float32):
        mean, scale = moments("test", Column("x"), column.astype(dtype))
        assert (scale, mean) == (1, column.astype(dtype)[0])


def own(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([2]).to_event(1))
    with numpyro.plate("data", ROWS):
        numpyro.sample("y", dist.Normal(jnp.asarray(x) @ w, 1.0), obs=y)


TOO_LARGE = {
    "int64": (X, np.full(ROWS, 2**40), r"own: y holds whole numbers from 1099511627776 .*wrap round"),
    "uint64": (np.full((ROWS, 2), 2**63, np.uint64), Y, "own: x holds whole numbers .*JAX's uint32"),
    "float64": (np.where(X > 2, 1e39, X), Y, r"own: x has the finite value 1e\+39 at index .*infinity"),
    "offset": (X, Y + 1e9, r"own: y lies around .* varies by .*rounds away.*Subtract its mean"),
    "whole numbers": (X, 10**9 + np.arange(ROWS), r"own: y lies around .* which float32 rounds away"),
    "offset of a column": (X + FAR_COLUMN, Y, "own: column 1 of x lies around"),
}  # fmt: skip

DOORS = {
    "run": lambda x, y: bnn.MCMC(kernel(own), num_warmup=1, num_samples=1).run(KEY, x, y),
    "optimize": lambda x, y: bnn.optimize(own, KEY, x, y, num_steps=0, progress_bar=False),
    "potential": lambda x, y: bnn.potential_of(own, x, y),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", TOO_LARGE)
def test_numbers_that_the_device_would_change_are_refused_by_name(case, door):
    x, y, message = TOO_LARGE[case]
    with pytest.raises(ValueError, match=message):
        DOORS[door](x, y)


def test_targets_and_inputs_of_predictions_are_looked_at_too():
    draws = {"w": np.zeros((1, 2, 2))}
    with pytest.raises(ValueError, match="own: column 1 of x lies around"):
        bnn.predict(own, draws, X + FAR_COLUMN)
    with pytest.raises(ValueError, match=r"log_prob: y has the finite value 1e\+300"):
        bnn.predict(own, draws, X).log_prob(np.full(ROWS, 1e300))


def test_double_precision_loses_nothing_and_refuses_nothing():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        check_fits("own", "y", Y + 1e9)
        check_fits("own", "y", np.full(ROWS, 2**40))
        check_fits("own", "y", np.full(ROWS, 1e300))


def test_whole_numbers_infinities_and_rounding_noise_in_range_pass():
    for fine in (np.arange(ROWS), np.array([np.inf, 1.0]), 0.1 + 1e-17 * Y, np.full(ROWS, 1e9), X):
        check_fits("own", "y", fine)
