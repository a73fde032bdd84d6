"""What predicts, scores, diagnoses, stores and exports takes every approximation as it is."""

import nets
import numpy as np
import pytest
from jax import random
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn import priors

QUICK = {"num_steps": 20, "progress_bar": False}
CALLS = {
    "map_estimate": ({}, (1, 1)),
    "deep_ensemble": ({"num_members": 3, "batch_size": 4}, (3, 1)),
    "randomized_map": ({"num_members": 3}, (3, 1)),
    "constant_sgd": (
        {"num_samples": 4, "batch_size": 4, "num_warmup": 2, "thinning": 1, "rate": 1e-3},
        (1, 4),
    ),
    "swag": (
        {
            "num_samples": 5,
            "num_members": 2,
            "num_snapshots": 3,
            "rank": 2,
            "batch_size": 4,
            "num_warmup": 2,
            "thinning": 1,
            "rate": 1e-3,
        },
        (2, 5),
    ),
    # Enough steps for a centre that is a mode.
    "laplace": ({"num_samples": 5, "num_steps": 400}, (1, 5)),
    "mean_field": ({"num_samples": 5, "batch_size": 4}, (1, 5)),
}


@pytest.fixture(scope="module")
def data():
    return np.linspace(-1.0, 1.0, 36).reshape(12, 3), np.arange(12) % 2


model = network_model(nets.Linear(), priors.Hierarchical(), bnn.likelihoods.bernoulli)

# These go through the same code as swag and map_estimate.
SLOW = ("constant_sgd", "randomized_map", "deep_ensemble", "laplace")
PARAMS = [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CALLS]


@pytest.fixture(scope="module", params=PARAMS)
def draws(request, data):
    options, shape = CALLS[request.param]
    found = getattr(bnn, request.param)(model, random.key(0), *data, **(QUICK | options))
    assert (found.num_chains, found.num_draws) == shape
    assert found.info["kernel"] == request.param
    # What judges draws of the posterior knows from this that these are none.
    assert found.info["approximation"] is True
    return found


def test_every_site_is_there_as_in_the_samples_of_a_chain(draws, data):
    """Latent and deterministic sites, and the weights agree with their standardised values."""
    structure = bnn.potential_of(model, *data).structure
    shapes = {n: structure.sites[n].shape for n in structure.latent} | structure.deterministic
    assert set(draws) == set(shapes)
    for site, shape in shapes.items():
        assert draws[site].shape == (draws.num_chains, draws.num_draws, *shape)
        assert np.isfinite(draws[site]).all()
    for site in structure.deterministic:
        precision = np.asarray(draws[f"{site}.precision"])
        precision = precision.reshape(*precision.shape, *(1,) * len(shapes[site]))
        expected = np.asarray(draws[f"{site}.base"]) / np.sqrt(precision)
        np.testing.assert_allclose(draws[site], expected, rtol=1e-4, atol=1e-6)


def test_it_predicts_and_is_scored(draws, data):
    predictions = bnn.predict(None, draws, data[0])
    assert predictions.probs.shape == (draws.num_chains, draws.num_draws, 12, 2)
    np.testing.assert_allclose(predictions.probs.sum(-1), 1.0, rtol=1e-5)
    probs = predictions.probs.astype(np.float64)[..., np.arange(12), data[1]]
    expected = np.log(probs.mean((0, 1))).mean()
    assert bnn.scores.lppd(predictions, data[1]) == pytest.approx(expected, rel=1e-5)
    assert bnn.average(predictions).shape == (12, 2)


def test_predictions_are_those_of_its_own_weights(draws, data):
    kernel, bias = (np.asarray(draws[f"net/Dense_0.{leaf}"]) for leaf in ("kernel", "bias"))
    expected = 1 / (1 + np.exp(-(data[0] @ kernel[..., 0, None])[..., 0] - bias))
    found = bnn.predict(None, draws, data[0]).probs[..., 1]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_it_is_diagnosed(draws, data):
    assert bnn.diagnose(draws, data[0]).verdict == "too_short"
    assert bnn.diagnose(dict(draws), data[0], model=model).verdict == "too_short"


def test_it_is_saved_and_exported(draws, data, tmp_path):
    loaded = bnn.load(bnn.save(draws, tmp_path / "draws"), draws.model)
    assert loaded.info == draws.info
    exported = bnn.to_inference_data(draws, log_likelihood=False)
    assert bnn.from_inference_data(exported, draws.model).info["approximation"] is True
    for site in draws:
        np.testing.assert_array_equal(loaded[site], draws[site])
    idata = bnn.to_inference_data(draws, *data, predict={"again": data[0]})
    assert idata.posterior["net.Dense_0.kernel"].shape[:2] == (draws.num_chains, draws.num_draws)
    assert idata.log_likelihood["y"].shape == (draws.num_chains, draws.num_draws, 12)
    np.testing.assert_allclose(
        idata.predictions["again.probs"], bnn.predict(None, draws, data[0]).probs, rtol=1e-5
    )


def test_its_chains_are_stacked(draws, data):
    stacked = bnn.stack(draws, *data, key=random.key(1), num_samples=6)
    assert (stacked.num_chains, stacked.num_draws) == (1, 6)
    assert len(stacked.info["weights"]) == draws.num_chains
    assert bnn.predict(None, stacked, data[0]).probs.shape == (1, 6, 12, 2)
