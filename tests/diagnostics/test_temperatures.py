"""Temperatures of every site of a run, and what a report says of each combination of them."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quiet import together

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.sampler_stats import TABLE, read, warnings_of
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
        for site, (value, error, _) in found.temperatures[kind].items():
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


SHAPE = (4, 200)
# In units of the temperature that was asked for; None: not recorded.
KINETIC = (None, 0.0, 0.4, 0.85, 0.95, 1.0, 1.05, 1.2, 1.83, 24.9)
CONFIGURATIONAL = (None, -40.0, -4.0, -0.88, 0.0, 0.5, 0.85, 0.95, 1.0, 1.05, 1.2, 2.0, 30.0)


def stats_at(kinetic, configurational, target=1.0, step=0.1, shape=SHAPE, **more):
    noise = 0.02 * target * np.random.default_rng(0).normal(size=(2, *shape))
    stats = {"temperature": np.full(shape, target), "step_size": np.full(shape, step), **more}
    if kinetic is not None:
        stats["kinetic_temperature"] = kinetic * target + noise[0]
    if configurational is not None:
        stats["configurational_temperature"] = configurational * target + noise[1]
    return stats


def said_at(*values, **settings):
    stats = stats_at(*values, **settings)
    return warnings_of(read(stats, stats["temperature"].shape))


def is_right(value):
    return value is None or abs(value - 1) < 0.1


@pytest.mark.parametrize("target", [0.05, 1.0, 7.0])
@pytest.mark.parametrize("kinetic", KINETIC)
def test_every_abnormal_pair_has_a_comment_and_no_normal_one(kinetic, target):
    for configurational in CONFIGURATIONAL:
        said = said_at(kinetic, configurational, target=target)
        normal = is_right(kinetic) and is_right(configurational)
        assert len(said) == (0 if normal else 1), (kinetic, configurational, said)
        for name, value in (("kinetic", kinetic), ("configurational", configurational)):
            if not is_right(value):
                assert f"{name} temperature" in said[0]


@pytest.mark.parametrize("kinetic", KINETIC)
@pytest.mark.parametrize("configurational", CONFIGURATIONAL)
def test_a_step_of_zero_is_named_and_nothing_else_is_advised(kinetic, configurational):
    (said,) = said_at(kinetic, configurational, step=0.0)
    assert said.startswith("Step_size is 0, so that no chain moves")


@pytest.mark.parametrize(
    ("kinetic", "configurational"),
    [(1.0, -4.0), (None, -4.0), (1.0, 0.3), (1.0, 5.0), (0.4, -1.0), (None, 0.2)],
)
def test_chains_that_have_not_arrived_are_not_told_to_take_smaller_steps(kinetic, configurational):
    (said,) = said_at(kinetic, configurational)
    assert "not stationary" in said
    assert "Run longer, start from `optimize`, or take larger steps" in said
    assert "ower step_size" not in said
    assert "too large" not in said


def test_hot_momenta_of_chains_that_still_fall_are_told_to_run_on_first():
    (said,) = said_at(1.83, -0.88)
    assert "kinetic temperature of the chain is 1.83" in said
    assert "configurational temperature is -0.88" in said
    assert "Run longer. Lower step_size only if" in said


@pytest.mark.parametrize(("kinetic", "configurational"), [(1.3, 1.3), (1.3, 1.0), (1.3, None)])
def test_a_step_that_is_too_large_is_still_called_so(kinetic, configurational):
    (said,) = said_at(kinetic, configurational)
    assert "The step is too large" in said
    assert "lower step_size" in said


def test_no_step_is_too_large_where_steps_are_accepted_or_rejected():
    for kinetic in KINETIC:
        for configurational in CONFIGURATIONAL:
            accepted = np.full(SHAPE, 0.8)
            for said in said_at(kinetic, configurational, accept_prob=accepted):
                assert "not stationary" in said
                assert "too large" not in said


@pytest.mark.parametrize("num_draws", [1, 2, 3, 5, 30, 99])
@pytest.mark.parametrize(("kinetic", "configurational"), [(24.9, 1.0), (1.0, -4.0), (1.5, 1.5)])
def test_too_few_draws_hide_no_temperature(kinetic, configurational, num_draws):
    shape = (4, num_draws)
    draws = np.random.default_rng(1).normal(size=(*shape, 3))
    stats = stats_at(kinetic, configurational, shape=shape)
    report = diagnose_draws({"w": draws}, draws, sample_stats=stats)
    assert report.verdict == "too_short"
    assert "temperature of the chain" in report.sentences[0]


def test_a_short_run_at_the_right_temperature_is_too_short_and_nothing_else():
    draws = np.random.default_rng(1).normal(size=(4, 30, 3))
    stats = stats_at(1.0, 1.0, shape=(4, 30))
    report = diagnose_draws({"w": draws}, draws, sample_stats=stats)
    assert report.verdict == "too_short"
    assert "temperature of" not in report.explanation


@pytest.mark.parametrize(("kinetic", "configurational"), [(24.9, 1.0), (1.0, -4.0)])
def test_no_run_far_from_its_temperature_is_within_tolerance(kinetic, configurational):
    draws = np.random.default_rng(1).normal(size=(4, 1000, 3))
    stats = stats_at(kinetic, configurational, shape=(4, 1000))
    assert diagnose_draws({"w": draws}, draws).verdict == "within_tolerance"
    assert diagnose_draws({"w": draws}, draws, sample_stats=stats).verdict == "run_longer"


def test_drifting_temperatures_are_named_however_few_their_effective_draws():
    drift = np.linspace(-9, 7.2, SHAPE[1]) * np.ones((4, 1))
    stats = stats_at(1.83, None)
    stats["configurational_temperature"] = drift - drift.mean() - 0.88
    (said,) = warnings_of(read(stats, SHAPE))
    assert "configurational temperature is -0.88" in said


def test_sites_that_are_wrong_in_one_way_are_named_together():
    stats = stats_at(1.0, 1.0)
    for site, value in {"a": 1.4, "b": 1.2, "c": 1.0}.items():
        stats[f"kinetic_temperatures[{site}]"] = value + 0.01 * stats["kinetic_temperature"]
    stats["configurational_temperatures[d]"] = -3 + 0.01 * stats["kinetic_temperature"]
    cold, hot = warnings_of(read(stats, SHAPE))
    assert cold.startswith("The configurational temperature of d is -2.99")
    assert hot.startswith("The kinetic temperature of a is 1.41")
    assert "The same holds for b." in hot


def test_optimisation_at_temperature_zero_has_no_temperature_to_miss():
    for kinetic in (0.0, 1e-9, 3.0):
        assert warnings_of(read(stats_at(1.0, kinetic, target=0.0), SHAPE)) == []


def test_the_table_has_every_cell_and_only_normal_ones_are_silent():
    assert len(TABLE) == 4 * 5
    silent = {pair for pair, said in TABLE.items() if said is None}
    assert silent == {(a, b) for a in ("absent", "normal") for b in ("absent", "normal")}
