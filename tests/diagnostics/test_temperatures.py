"""Temperatures of every site of a stochastic-gradient run, and what a report says of them."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quiet import together

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.sampler_stats import read, warnings_of
from numpyro_bnn.posterior.draws import draws_of

SHAPES = {"a": (), "b": (3, 4)}


def quadratic(z):
    return 0.5 * jnp.square(z["a"]) + 2.0 * jnp.sum(jnp.square(z["b"]))


@cache
def stats_of(temperature):
    kernel = bnn.BAOAB(
        potential_fn=quadratic, step_size=0.05, friction=1.0, temperature=temperature
    )
    mcmc = together(kernel, 500, 20_000, 4, thinning=10)
    start = {name: jnp.zeros((4, *shape)) for name, shape in SHAPES.items()}
    mcmc.run(jax.random.key(0), init_params=start)
    return draws_of(mcmc).stats


@pytest.mark.parametrize("temperature", [pytest.param(0.25, marks=pytest.mark.slow), 2.0])
def test_every_site_has_the_temperature_asked_for(temperature):
    """At h = 0.05 the discretisation is off by h²λ/4, 0.3 % at most."""
    found = read(stats_of(temperature), (4, 2000))
    assert found.heat.target == pytest.approx(temperature)
    for kind in ("kinetic", "configurational"):
        assert set(found.temperatures[kind]) == {"all", *SHAPES}
        for site, (value, error) in found.temperatures[kind].items():
            assert abs(value / temperature - 1) < 5 * error / temperature + 0.003, (kind, site)
            assert error < 0.1 * temperature
    assert warnings_of(found) == []


def test_the_whole_is_the_mean_over_scalars():
    stats = stats_of(2.0)
    for kind in ("kinetic", "configurational"):
        by_site = [stats[f"{kind}_temperatures[{site}]"] for site in SHAPES]
        whole = (by_site[0] + 12 * by_site[1]) / 13
        np.testing.assert_allclose(stats[f"{kind}_temperature"], whole, rtol=1e-5)


def test_a_hot_layer_is_named_before_anything_else():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 500, 3))
    noise = 0.05 * rng.normal(size=(3, 4, 500))
    stats = {
        "temperature": np.ones((4, 500)),
        "kinetic_temperature": 1 + noise[0],
        "kinetic_temperatures[net/Dense_0.kernel]": 1.3 + noise[1],
        "kinetic_temperatures[net/Dense_1.kernel]": 1.15 + noise[2],
    }
    report = diagnose_draws({"w": draws}, draws, sample_stats=stats)
    assert report.sentences[0].startswith(
        "The kinetic temperature of net/Dense_0.kernel is 1.3 ± 0.001 where 1 was asked for. The "
        "step is too large"
    )
    assert "kinetic temperature 1.00" in report.details()
    axes = bnn.plots.plot_layer_temperature(report.sampler.temperatures)
    assert [t.get_text() for t in axes.get_yticklabels()] == [
        "all",
        "net/Dense_0.kernel",
        "net/Dense_1.kernel",
    ]


@pytest.mark.parametrize(("value", "spread"), [(1.05, 0.01), (1.5, 20.0)])
def test_small_and_uncertain_differences_are_let_pass(value, spread):
    rng = np.random.default_rng(1)
    stats = {
        "temperature": np.ones((4, 300)),
        "configurational_temperature": value + spread * rng.normal(size=(4, 300)),
    }
    assert warnings_of(read(stats, (4, 300))) == []


def test_a_bias_that_no_chain_can_show_is_named():
    draws = np.random.default_rng(2).normal(size=(4, 300, 2))
    stats = {"configurational_temperature": 1 + 0.05 * draws[..., 0]}

    def says(sample_stats):
        report = diagnose_draws({"w": draws}, draws, sample_stats=sample_stats)
        return "no Metropolis correction" in report.explanation

    assert says(stats)
    assert not says(stats | {"accept_prob": np.full((4, 300), 0.9)})
    assert not says(None)
