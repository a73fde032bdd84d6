"""From data to a judged posterior in one call, on a model whose posterior is known."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import linear_gaussian
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn._sentences import SENTENCES
from numpyro_bnn.cli.main import _parser
from numpyro_bnn.run.chain_states import ChainStates
from numpyro_bnn.workflow.fit import KERNELS, kernel_named

X, Y = linear_gaussian.data()
MEAN, PRECISION = linear_gaussian.posterior(X, Y)


# The ensembles that fits showed before they sampled.
SHOWN = []


@functools.cache
def fitted(kernel=None, **options):
    settings = {"num_chains": 2, "num_warmup": 40, "num_samples": 100, "progress_bar": False}
    settings["on_ensemble"] = SHOWN.append
    return bnn.fit(linear_gaussian.model, X, Y, kernel=kernel, **(settings | options))


def have_the_distribution_of_the_posterior(result, bias):
    """Means within 5 Monte Carlo errors and `bias` standard deviations; and the deviations."""
    draws = linear_gaussian.weights(result.draws)
    spread = np.sqrt(np.diag(np.linalg.inv(PRECISION)))
    error = spread / np.sqrt(result.report.weights.min_ess)
    np.testing.assert_array_less(np.abs(draws.mean((0, 1)) - MEAN), 5 * error + bias * spread)
    np.testing.assert_allclose(draws.std((0, 1)), spread, rtol=0.35)


def test_the_whole_way():
    result = fitted()
    assert any(shown is result.ensemble for shown in SHOWN)
    assert isinstance(result.mcmc.sampler, bnn.MCLMC)
    assert result.mcmc.thinning == 50
    assert set(result.seconds) == {"optimise", "sample", "judge"}
    # Every member of the ensemble is near the mode, the mean of a Gaussian posterior: it holds out a fifth
    # of the rows.
    spread = np.sqrt(np.diag(np.linalg.inv(PRECISION)))
    members = linear_gaussian.weights(result.ensemble)
    assert members.shape == (2, 1, 4)
    assert (np.abs(members - MEAN) < 3 * spread).all()
    assert result.ensemble.stats["potential_energy"].shape == (2, 1)
    have_the_distribution_of_the_posterior(result, bias=0.1)
    np.testing.assert_array_equal(result.weights, [0.5, 0.5])
    assert result.report.predictions.num_scalars == len(Y) + 1  # One noise at all rows.
    assert "the log score (no test targets)" in result.report.not_judged
    predictions = result.predict(X[:3])
    assert predictions.mean.shape == (2, 100, 3)
    assert repr(result).startswith(f"Fit(MCLMC, {result.report.verdict}; optimise ")


def test_a_fit_checks_its_run_and_not_a_mixture_of_chains():
    check = fitted().check(names=range(len(Y)))
    assert (check.num_chains, check.num_draws, len(check.names)) == (2, 100, len(Y))
    assert check.notes[0].startswith("MCLMC accepts every step")
    np.testing.assert_array_equal(check.loo.by_row, bnn.check_fit(fitted(), X, Y).loo.by_row)
    stacked = dataclasses.replace(
        fitted(), draws=bnn.Draws(dict(fitted().draws), info={"weights": [1.0]})
    )
    assert len(stacked.check().names) == len(Y)
    with pytest.raises(ValueError, match="stacked mixture"):
        bnn.check_fit(stacked, model=linear_gaussian.model)


def test_what_takes_a_run_takes_what_fit_returned(tmp_path):
    result = fitted()
    at_rows = result.predict(X[:3]).mean
    np.testing.assert_array_equal(bnn.predict(None, result, X[:3]).mean, at_rows)
    loaded = bnn.load(bnn.save(result, tmp_path / "run"), linear_gaussian.model)
    # Draws from a file are NumPy's, for which the compiler may order a sum otherwise.
    np.testing.assert_allclose(bnn.predict(None, loaded, X[:3]).mean, at_rows, rtol=1e-5)


def test_it_prints_its_report(capsys):
    fitted().print()
    assert capsys.readouterr().out.startswith("Verdict: ")


@pytest.mark.slow  # The default of these and NUTS are looked at in every change.
@pytest.mark.parametrize("name", ["mclmc", "nuts", "mams", "hmc", "ggmc", "baoab"])
def test_every_kernel_by_name_samples_the_posterior(name):
    unadjusted = KERNELS[name].thinning > 1
    result = fitted(name, **({} if unadjusted else {"num_warmup": 150, "num_samples": 200}))
    # The unadjusted samplers have a bias of their own, far below a standard deviation.
    have_the_distribution_of_the_posterior(result, bias=0.1 if unadjusted else 0.0)


def test_a_kernel_of_ones_own():
    own = bnn.fit(
        linear_gaussian.model, X, Y, kernel=NUTS(linear_gaussian.model, max_tree_depth=3),
        num_chains=1, num_warmup=20, num_samples=30, progress_bar=False, x_test=X[:2],
    )  # fmt: skip
    assert own.mcmc.sampler._max_tree_depth == 3
    assert own.report.predictions.num_scalars == 2 + 1


def by_name(x, y=None):
    linear_gaussian.model(x["a"], y)


@pytest.fixture(scope="module")
def many():
    """A fit of a pytree of inputs, of more rows than are taken at once, whose chains are stacked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("numpyro_bnn.workflow.fit.MANY_ROWS", 10)
        patch.setattr("numpyro_bnn.workflow.fit.BATCH", 4)
        return bnn.fit(
            by_name, {"a": jnp.asarray(X)}, jnp.asarray(Y), key=jax.random.key(3), num_chains=2,
            num_warmup=2, num_samples=20, thinning=2, progress_bar=False, combine="stack",
            validation=0.25,
        )  # fmt: skip


def test_many_rows_go_in_minibatches(many):
    assert isinstance(many.mcmc.sampler, bnn.BAOAB)
    assert many.mcmc.sampler.gradient.batch_size == 4
    assert repr(many.mcmc.sampler.gradient).startswith("svrg(")
    assert many.mcmc.sampler.gradient_noise == "auto"


def test_a_pytree_of_inputs(many):
    assert many.predict({"a": X[:4]}).mean.shape == (1, 40, 4)


def test_stacked_chains_and_rows_that_nothing_was_fitted_to(many):
    result = many
    rows = result.mcmc._args[0]["a"]
    assert len(rows) == 15
    assert result.draws.num_chains == 1
    np.testing.assert_allclose(result.weights.sum(), 1.0)
    np.testing.assert_allclose(result.draws.info["weights"], result.weights)
    everywhere = {tuple(row) for row in np.asarray(X, np.float32)}
    assert {tuple(row) for row in np.asarray(rows, np.float32)} < everywhere


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "gibbs"}, "one of .*'nuts'.* got 'gibbs'"),
        ({"kernel": "nuts", "batch_size": 5}, "'nuts' uses all rows.*'baoab', 'mclmc'"),
        (
            {"max_tree_depth": 4},
            r"'mclmc' has the settings \['energy_variance'\], and not \['max_tree",
        ),
        ({"max_tree_depth": 4, "batch_size": 5}, r"'baoab' has the settings \[\], and not"),
        (
            {"kernel": "mclmc", "batch_size": 5, "energy_variance": 0.1},
            r"\['energy_variance'\] are settings of 'mclmc' over all rows.*batch_size=5",
        ),
        ({"kernel": "nuts", "max_depth": 4}, r"'nuts' has the settings .* and not \['max_depth'\]"),
        ({"num_samples": 0}, "fit: num_samples must be a positive integer, got 0"),
        ({"combine": "vote"}, '"average" or "stack", got \'vote\''),
        ({"combine": "stack", "validation": 0.0}, "share of rows to hold out.*0.0 of 20"),
        ({"y": Y[:-1]}, r"same positive number of rows, got \[19, 20\]"),
        (
            {"kernel": NUTS(linear_gaussian.model), "max_tree_depth": 4},
            r"\['max_tree_depth'\] are for kernels by name; give them to NUTS",
        ),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bnn.fit(linear_gaussian.model, **({"x": X, "y": Y, "progress_bar": False} | options))


@pytest.mark.parametrize("options", [{}, {"batch_size": 5}, {"kernel": "nuts"}])
def test_arguments_by_row_are_told_their_place(options):
    def shifted(x, y=None, offset=0.0):
        linear_gaussian.model(x, y)

    with pytest.raises(ValueError, match=r"fit: \['offset'\] are .* into `x`, .*y, offset=…\)"):
        bnn.fit(shifted, X, Y, offset=Y, progress_bar=False, **options)


def test_a_model_of_two_targets_is_refused_before_anything_is_computed():
    def two(x, y=None):
        b = numpyro.sample("b", dist.Normal())
        with numpyro.plate("data", x.shape[0]):
            for k, name in enumerate(("up", "down")):
                observed = None if y is None else y[:, k]
                numpyro.sample(name, dist.Normal((-1) ** k * b, 1.0), obs=observed)

    begun = []
    with pytest.raises(
        ValueError, match=r"fit: the model observes \['up', 'down'\], and predictions"
    ):
        bnn.fit(two, X, np.stack([Y, -Y], 1), on_ensemble=begun.append, progress_bar=False)
    assert not begun
    draws = bnn.Draws({"b": np.zeros((1, 4))}, two)
    for judge in (lambda: bnn.thin(draws, 2, X), lambda: bnn.calibrate(draws, X, Y)):
        with pytest.raises(
            ValueError, match="functions without it, such as `calibrate` and `thin`, take"
        ):
            judge()


def test_a_fit_goes_on_until_it_is_known():
    accepted = bnn.Tolerance(relative=0.3, log_score=0.1)
    options = {"num_chains": 2, "num_warmup": 150, "num_samples": 100, "progress_bar": False}
    options |= {"until": accepted, "max_minutes": 5.0, "x_test": X, "y_test": Y}
    result = bnn.fit(linear_gaussian.model, X, Y, kernel="nuts", **options)
    assert result.mcmc.stopped.reason == "within tolerance"
    assert result.report.verdict == "within_tolerance"
    have_the_distribution_of_the_posterior(result, bias=0.0)
    assert result.report.tolerance is accepted
    assert result.report.monte_carlo_error.log_score is not None
    assert result.draws.num_draws == result.mcmc.stopped.draws


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"y_test": Y}, ValueError, r"fit: y_test was given and no x_test"),
        ({"until": 0.01}, TypeError, "until must be a bnn.Tolerance, got 0.01"),
        ({"max_minutes": -1}, ValueError, "must be positive and finite"),
    ],
)
def test_ends_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        bnn.fit(linear_gaussian.model, X, Y, **options)


@pytest.mark.parametrize("until", [None, bnn.Tolerance(relative=0.5, log_score=1.0)])
def test_a_run_that_would_take_longer_than_the_limit_is_shorter(until):
    options = {"num_chains": 2, "progress_bar": False, "until": until}
    # A minute is left, but for an overhead, and a step takes a fiftieth of a second.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainStates, "seconds_a_step", lambda states, most: 1 / 50)
        limited = bnn.fit(linear_gaussian.model, X, Y, max_minutes=1.0, **options)
    warmup, draws = limited.mcmc.num_warmup // 50, limited.mcmc.num_samples // 50
    assert 20 <= warmup == draws <= 30
    if until is not None:
        assert limited.mcmc.stopped.reason in ("within tolerance", "max_minutes")
        return
    again = bnn.fit(linear_gaussian.model, X, Y, num_warmup=warmup, num_samples=draws, **options)
    for name, values in again.draws.items():
        np.testing.assert_array_equal(limited.draws[name], values)


@pytest.mark.parametrize("slow_step", [False, True])
def test_without_time_to_sample_draws_are_the_optimised_members(monkeypatch, slow_step):
    minutes = 1e-3
    if slow_step:
        monkeypatch.setattr(ChainStates, "seconds_a_step", lambda states, most: 1.0)
        minutes = 1.0
    options = {"num_chains": 2, "max_minutes": minutes, "progress_bar": False}
    with pytest.warns(UserWarning, match="fit: There was no time to sample. .* Give more minutes"):
        result = bnn.fit(linear_gaussian.model, X, Y, **options)
    assert result.mcmc is None
    assert result.run is result.draws is result.ensemble
    assert result.report.verdict == "too_short"
    assert str(result).startswith("Fit(ensemble, too_short")
    assert result.predict(X[:3]).mean.shape == (2, 1, 3)
    # However long the optimisation compiles, it then gets the time that it needs.
    key = jax.random.split(jax.random.key(0), 4)[1]
    settled = bnn.optimize(linear_gaussian.model, key, X, Y, num_chains=2, progress_bar=False)
    np.testing.assert_allclose(
        result.ensemble[linear_gaussian.KERNEL][:, 0], settled[linear_gaussian.KERNEL], rtol=1e-4
    )


def test_the_terminal_and_advice_name_kernels_that_there_are():
    named = _parser()._option_string_actions["--kernel"].metavar
    assert set(re.findall(r"\w+", named)) == set(KERNELS)
    assert re.findall("kernel `(\\w+)", SENTENCES["chains disagree"]) == ["tempering"]
    assert isinstance(kernel_named("tempering", linear_gaussian.model)[0], bnn.ParallelTempering)
