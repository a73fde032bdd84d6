"""Parameters of a model that are no weights of a network: rows of their own, and part of the verdict."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from autoregressive import autoregressive
from flax import linen as nn
from numpyro import handlers
from numpyro.contrib.module import random_flax_module

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.evidence import parameter_errors
from numpyro_bnn.potential.structure import structure_of

X = np.linspace(-1, 1, 30)[:, None].astype(np.float32)
CHAINS, DRAWS = 4, 400


def ours(x):
    return bnn.random_module("net", bnn.MLP((2,), 1), bnn.priors.Hierarchical(), x)


def numpyros(x):
    net = random_flax_module("net", nn.Dense(1), dist.Normal(0.0, 1.0), input_shape=(1, 1))
    return lambda x: net(x)


def scoped(x):
    return handlers.scope(ours, prefix="part")(x)


def model_of(make):
    def model(x, y=None):
        net = make(x)
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 3):
            offset = numpyro.sample("offset", dist.Normal(0.0, tau))
        numpyro.deterministic("contrast", offset[1] - offset[0])
        noise = numpyro.sample("noise.precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(net(x)[:, 0] + offset[0], noise**-0.5), obs=y)

    return model


PARAMETERS = {"tau", "offset", "contrast", "noise.precision"}


def draws_of(model, rng, **changed):
    """Independent draws, but for sites that are given."""
    structure = structure_of(model, (X, X[:, 0]), {})
    shapes = {n: structure.sites[n].shape for n in structure.latent} | {"contrast": ()}
    made = {n: np.exp(0.1 * rng.normal(size=(CHAINS, DRAWS, *s))) for n, s in shapes.items()}
    return bnn.Draws({n: v.astype(np.float32) for n, v in (made | changed).items()}, model)


@pytest.mark.parametrize("make", [ours, numpyros, scoped])
def test_all_sites_but_those_of_networks_are_parameters(make, rng):
    model = model_of(make)
    structure = structure_of(model, (X, X[:, 0]), {})
    of_network = {name for name in structure.latent if name.startswith(tuple(structure.networks))}
    assert set(structure.latent) - of_network == PARAMETERS - {"contrast"}
    assert of_network


@pytest.mark.parametrize("make", [ours, numpyros])
def test_parameters_have_rows_of_their_own(make, rng):
    report = bnn.diagnose(draws_of(model_of(make), rng), X)
    assert {group.name for group in report.parameters.groups} == PARAMETERS
    assert not PARAMETERS & {group.name for group in report.weights.groups}
    assert not PARAMETERS & {group.name for group in report.precisions.groups}
    found = report.parameter_errors
    assert set(found.names) == {
        "tau",
        "contrast",
        "noise.precision",
        *(f"offset[{i}]" for i in range(3)),
    }
    assert report.verdict == "within_tolerance"
    # Rows keep the order of the model, whichever is known worst.
    places = [report.details().index(f"\n{name} ") for name in found.names]
    assert places == sorted(places)
    assert "Parameters known to 0.1 of their sd: 6 of 6 (mean ± Monte Carlo" in str(report)
    assert repr(report).startswith("Report(within tolerance; ")
    assert len(repr(report)) < 100


@pytest.mark.parametrize("name", ["tau", "offset", "noise.precision", "contrast"])
def test_a_parameter_that_is_not_known_asks_for_more_draws(name, rng):
    model = model_of(ours)
    plain = draws_of(model, rng)
    # So little of it is in the predictions that these are known.
    change = np.exp(0.001 * autoregressive(rng, plain[name].shape, 0.97)).astype(np.float32)
    report = bnn.diagnose(draws_of(model, np.random.default_rng(0), **{name: change}), X)
    assert report.monte_carlo_error.within(report.tolerance)
    assert report.verdict == "run_longer"
    assert name in report.needed_by or report.needed_by == "the test of chains"
    assert report.needed > 1
    assert (
        bnn.diagnose(
            draws_of(model, np.random.default_rng(0), **{name: change}), X, parameters=()
        ).verdict
        == "within_tolerance"
    )


def test_chains_that_disagree_on_a_parameter_disagree(rng):
    x = rng.normal(size=(CHAINS, DRAWS, 20))
    tau = rng.normal(size=(CHAINS, DRAWS)) + np.array([0, 0, 0, 3.0])[:, None]
    assert diagnose_draws(None, x).verdict == "within_tolerance"
    report = diagnose_draws(None, x, parameters={"tau": tau, "b": x[..., 0]})
    assert report.verdict == "chains_disagree"
    assert report.headline.startswith("averages of tau up to")
    assert "The chains disagree on parameters, such as tau" in report.explanation
    # As weights they are no part of the verdict.
    assert diagnose_draws({"tau": tau}, x).verdict == "within_tolerance"


def test_without_a_network_only_sites_that_are_named_are_parameters(rng):
    def by_hand(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    w = np.exp(autoregressive(rng, (CHAINS, DRAWS), 0.97)).astype(np.float32)
    draws = bnn.Draws({"w": w}, by_hand)
    assert bnn.diagnose(draws, X).parameter_errors is None
    assert bnn.diagnose(draws, X, parameters=["w"]).parameter_errors.names == ("w",)


def test_sites_that_do_not_exist_are_refused(rng):
    with pytest.raises(KeyError, match="sigma"):
        bnn.diagnose(draws_of(model_of(ours), rng), X, parameters=["sigma"])


def test_nan_of_a_parameter_is_invalid(rng):
    tau = rng.normal(size=(CHAINS, DRAWS))
    tau[1, 7] = np.nan
    report = diagnose_draws(None, rng.normal(size=(CHAINS, DRAWS, 3)), parameters={"tau": tau})
    assert report.verdict == "invalid"
    assert "from draw 7 on (parameters 'tau')" in report.explanation


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("power", [1, 2])
def test_the_errors_are_those_that_are_made(rho, power):
    """Of normal draws and of their squares: means and standard deviations of many runs."""
    means, sds, stated = [], [], []
    for seed in range(60):
        x = autoregressive(np.random.default_rng(seed), (4, 1000, 3), rho) ** power
        found = parameter_errors({"a": x}, bnn.Tolerance())
        means.append(found.mean)
        sds.append(found.sd)
        stated.append((found.mean_error, found.sd_error))
    true = (0.0, 1.0) if power == 1 else (1.0, 2**0.5)
    for made, expected, error in zip((means, sds), true, np.swapaxes(stated, 0, 1)):
        z = (np.array(made) - expected) / error
        assert 0.75 < np.sqrt(np.mean(z**2)) < 1.25


def test_a_second_run_is_compared_in_its_parameters(rng):
    x, tau = rng.normal(size=(CHAINS, DRAWS, 5)), rng.normal(size=(CHAINS, DRAWS))
    other = {"predictions": rng.normal(size=x.shape), "parameters": {"tau": tau[::-1] + 1.0}}
    report = diagnose_draws(None, x, parameters={"tau": tau}, second=other)
    assert report.second.num_parted
    assert report.second.worst[0].site == "tau"


def test_of_imputed_values_those_that_were_missing_are_judged(rng):
    def model(x, y=None):
        net, known = ours(x), np.arange(30) > 3
        with numpyro.plate("data", 30):
            age = numpyro.sample("age", dist.Normal(), obs=x[:, 0], obs_mask=known)
            numpyro.sample("y", dist.Normal(net(x)[:, 0] + age), obs=y)

    every = rng.standard_normal((CHAINS, DRAWS, 30))
    ages = {"age": np.where(np.arange(30) > 3, X[:, 0], every), "age_unobserved": every}
    report = bnn.diagnose(draws_of(model, rng, **ages), X)
    assert {*report.parameter_errors.names} == {*(f"age[{i}]" for i in range(4)), "contrast"}
    assert "Parameters known to 0.1 of their sd: 5 of 5 (" in str(report)
    assert not any("age" in group.name for group in report.weights.groups)
