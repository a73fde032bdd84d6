"""How references are made: what is graded of draws, and what is stored of two routes."""

from functools import partial

import jax
import numpy as np
import pytest
from numpyro.infer import Predictive

from benchmarks._shared.data_sets import Split
from benchmarks._shared.reference_posteriors import (
    NO_EVIDENCE,
    Known,
    Route,
    both_evidences,
    evidence_of,
    route,
    store,
)
from benchmarks.neal import posteriors
from numpyro_bnn import references
from numpyro_bnn.references import reference as loading
from numpyro_bnn.references.reference import PROBLEMS
from numpyro_bnn.samplers.tempering.evidence import Tempering

RNG = np.random.default_rng(0)
NEAL = ("bdata", "cdata", "odata", "rdata", "surv")


@pytest.fixture
def few_draws():
    """Draws of the prior, (2, 4, …), with output biases near zero, where no hazard overflows."""

    def of(name):
        known = references.load(name)
        draw = jax.jit(Predictive(PROBLEMS[name].model, num_samples=8))
        made = draw(jax.random.key(0), known.x[:5])
        bias = "net/Dense_1.bias"
        made |= {bias: made[bias] / 100}
        return known, {
            site: np.asarray(value).reshape(2, 4, *value.shape[1:])
            for site, value in made.items()
            if site != "y"
        }

    return of


@pytest.mark.parametrize("name", NEAL)
def test_what_is_graded_are_the_functions_and_scales_of_the_network(name, few_draws):
    known, draws = few_draws(name)
    rows = known.x_test[:6], known.y_test[:6]
    _, expected = posteriors.test_densities(name, draws, *rows, 1)
    found = route("", name, draws, *rows, 1)
    np.testing.assert_allclose(found.draws, expected, rtol=2e-5, atol=2e-5)
    scales = posteriors.scalars_of(name, draws)
    assert len(found.log_scales) == len(scales) == len(known.log_scales.names)
    # Names differ from those of Neal's program; the precisions behind them do not.
    means = sorted(float(values.mean()) for values in scales.values())
    np.testing.assert_allclose(sorted(float(k.mean) for k in found.log_scales.values()), means)


def a_route(shift, evidence=NO_EVIDENCE):
    """Functions of three rows and two scales, Normal(shift, 1) and twice as wide, 4 × 250 draws."""
    draws = shift + RNG.normal(size=(4, 250, 3))
    scales = {name: 2 * RNG.normal(size=(4, 250)) for name in ("input to hidden", "hidden biases")}
    known = {name: Known.from_draws(values) for name, values in scales.items()}
    return Route("a sampler", Known.from_draws(draws), known, {}, evidence, draws)


ROWS = Split(np.zeros((5, 1)), np.zeros(5), np.zeros((3, 1)), np.zeros(3))


def test_two_routes_are_stored_and_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "_FOLDER", tmp_path)
    load = partial(references.load, "bdata")
    first, second = a_route(0.0, (-3.0, 0.5)), a_route(0.0)
    store(tmp_path, "bdata", ROWS, (first, second), 10)
    found = load()
    assert found.certified
    assert found.x.shape == (5, 1)
    assert found.draws.shape == (10, 3)
    assert found.log_evidence == (-3.0, 0.5)
    assert found.log_scales.names == ("input to hidden", "hidden biases")
    np.testing.assert_allclose(found.functions.route_means[1], second.draws.mean((0, 1)), rtol=1e-5)
    # Independent draws, so errors are those of 1000, and of 2000 for both routes together.
    np.testing.assert_allclose(found.functions.error, 2000**-0.5, rtol=0.25)
    np.testing.assert_allclose(found.log_scales.error, 2 * 2000**-0.5, rtol=0.25)
    np.testing.assert_allclose(found.log_scales.sd, 2.0, rtol=0.15)
    store(tmp_path, "bdata", ROWS, (first, a_route(0.3)), 10)
    assert not load().certified


def test_evidences_of_two_ladders_are_averaged_by_their_errors():
    routes = [a_route(0.0, (2.0, 1.0)), a_route(0.0, (4.0, 3**-0.5))]
    np.testing.assert_allclose(both_evidences(routes), (3.5, 0.5))
    assert both_evidences(routes[:1]) == (2.0, 1.0)
    assert np.isnan(both_evidences([a_route(0.0)])).all()


def test_the_error_of_an_evidence_is_the_larger_of_scatter_and_its_own():
    blank = dict.fromkeys(Tempering._fields)

    def of(values, errors):
        fields = {"log_evidence": np.array(values), "log_evidence_error": np.array(errors)}
        return evidence_of(Tempering(**blank | fields))

    np.testing.assert_allclose(of([1.0, 3.0], [0.1, 0.1]), (2.0, 1.0))
    np.testing.assert_allclose(of([2.0, 2.0], [2.0, 2.0]), (2.0, 2.0**0.5))
