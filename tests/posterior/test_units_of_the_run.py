"""A run whose model is given again, in other units."""

import jax
import numpy as np
import pytest
import small_run

import numpyro_bnn as bnn
from numpyro_bnn.potential.structure import structure_of


@pytest.fixture(scope="module")
def draws():
    model = small_run.regression(x=small_run.X, y=small_run.Y)
    sites = structure_of(model, (small_run.X, small_run.Y), {}).sites
    rng = np.random.default_rng(0)
    drawn = {n: rng.normal(size=(1, 4, *s.shape)) for n, s in sites.items() if not s.observed}
    return bnn.Draws(drawn, model)


OTHERS = {
    "another mean and scale": (small_run.X, 100 * small_run.Y + 1000),
    "another mean": (small_run.X, small_run.Y + 1000),
    "other inputs": (100 * small_run.X, small_run.Y),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_in_other_units_is_refused(draws, name):
    other = small_run.regression(x=OTHERS[name][0], y=OTHERS[name][1])
    x = small_run.X[:3]
    for call in (
        lambda: bnn.predict(other, draws, x),
        lambda: bnn.diagnose(draws, x, model=other),
        lambda: bnn.check_fit(draws, model=other),
    ):
        with pytest.raises(
            ValueError, match="keeps the units of other data than the model of the run"
        ):
            call()


def test_the_same_units_of_another_object_are_taken(draws):
    again = small_run.regression(x=small_run.X, y=small_run.Y)
    expected = bnn.predict(None, draws, small_run.X).mean
    assert np.array_equal(bnn.predict(again, draws, small_run.X).mean, expected)


def test_a_folder_of_draws_gives_its_units_back(tmp_path, monkeypatch):
    """Also that of a run which was killed, and noted nothing at its end."""
    monkeypatch.setattr(bnn.MCMC, "_note", lambda mcmc, disk: None)
    kernel = bnn.RandomWalk(small_run.regression(), step_size=0.1)
    settings = {"num_warmup": 0, "num_samples": 2, "progress_bar": False}
    mcmc = bnn.MCMC(kernel, draws=tmp_path / "draws", **settings)
    mcmc.run(jax.random.key(0), small_run.X, small_run.Y)
    loaded = bnn.load(tmp_path / "draws", small_run.regression())
    expected = bnn.predict(None, mcmc, small_run.X).mean
    np.testing.assert_allclose(bnn.predict(None, loaded, small_run.X).mean, expected, rtol=1e-6)
    for x, y in OTHERS.values():
        with pytest.raises(ValueError, match="keeps the units of other data than the saved draws"):
            bnn.load(tmp_path / "draws", small_run.regression(x=x, y=y))
