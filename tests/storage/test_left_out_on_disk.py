"""Chains that a run leaves out stay left out in its store, in `load` and in `resume`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deaths import dies_after
from walker import Walk

import numpyro_bnn as bnn
from numpyro_bnn.storage.draw_store import DrawStore

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")
pytestmark = [pytest.mark.filterwarnings("ignore:.*suspect and kept:UserWarning")]


def steep(z):
    return jnp.sum(z["w"] ** 4) / 4


# Chain 1 starts where a step overshoots, and is frozen at a finite value far out.
KERNELS = {
    "SGLD": lambda: bnn.SGLD(potential_fn=steep, step_size=1e-3),
    "BAOAB": lambda: bnn.BAOAB(potential_fn=steep, step_size=0.05),
    "SGHMC": lambda: bnn.SGHMC(potential_fn=steep, step_size=0.05, friction=1.0),
}
STARTS = {"w": jnp.asarray([[0.1, 0.2], [1e3, 1e3], [-0.1, 0.3]])}
WARNS = r"Left out 1 of 3 chains \(chain 1: exploded at step \d+"


def sampler(name, num_warmup=0, **where):
    options = {"num_samples": 12, "num_chains": 3, "progress_bar": False}
    return bnn.MCMC(KERNELS[name](), num_warmup=num_warmup, checkpoint_every=4, **options, **where)


def run(mcmc, starts=STARTS):
    mcmc.run(jax.random.key(0), init_params=starts)


@pytest.mark.parametrize(
    ("name", "num_warmup"),
    [
        ("SGLD", 0),
        ("BAOAB", 4),
        ("SGHMC", 0),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in [("SGLD", 4), ("BAOAB", 0)]),
        pytest.param("SGHMC", 4, marks=pytest.mark.slow),
    ],
)
def test_an_exploded_chain_is_not_loaded(name, num_warmup, tmp_path):
    mcmc = sampler(name, num_warmup, draws=tmp_path / "d")
    with pytest.warns(UserWarning, match=WARNS):
        run(mcmc)
    with pytest.warns(UserWarning, match=WARNS):
        draws = bnn.load(tmp_path / "d", None)
    # All draws are finite: nothing but what the run knew tells that one chain is wrong.
    assert np.isfinite(DrawStore(tmp_path / "d").arrays()["posterior", "w"]).all()
    assert draws.left_out == mcmc.left_out
    np.testing.assert_array_equal(draws["w"], mcmc.get_samples(True)["w"])
    assert np.abs(draws["w"]).max() < 10
    assert {np.shape(value)[0] for value in draws.stats.values()} == {2}


def test_chains_of_both_kinds_of_failure_are_left_out(tmp_path):
    options = {"num_warmup": 0, "num_samples": 13, "num_chains": 4, "progress_bar": False}
    mcmc = bnn.MCMC(Walk(), draws=tmp_path / "d", checkpoint_every=4, **options)
    with pytest.warns(UserWarning, match="chain 1: draw 5 is not finite"):
        mcmc.run(jax.random.key(0), init_params=jnp.asarray([1.0, -5.0, 2.0, -1e6]))
    walked = np.asarray([[1.0], [2.0]]) + 0.5 * np.arange(1, 14)
    np.testing.assert_array_equal(mcmc.get_samples(group_by_chain=True)[:2], walked)
    assert DrawStore(tmp_path / "d").about["not_finite"] == {"1": 5}
    DrawStore(tmp_path / "d").leave_out({3: "exploded at step 2, warm-up included"})
    with pytest.warns(UserWarning, match=r"2 of 4 chains \(chain 3: exploded .* chain 1: draw 5"):
        draws = bnn.load(tmp_path / "d", None)
    np.testing.assert_array_equal(draws["x"], walked)


@pytest.mark.parametrize("chunks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_is_not_over_is_loaded_without_the_chain(chunks, tmp_path):
    """And the run goes on to leave it out, as the store does to the end."""
    with dies_after(chunks):
        run(sampler("SGLD", checkpoint=tmp_path / "c"))
    with pytest.warns(UserWarning, match=WARNS):
        assert bnn.load(tmp_path / "c" / "draws.zarr", None)["w"].shape == (2, 4 * chunks + 4, 2)
    again = sampler("SGLD", checkpoint=tmp_path / "c")
    with pytest.warns(UserWarning, match=WARNS):
        again.resume()
    with pytest.warns(UserWarning, match=WARNS):
        draws = bnn.load(tmp_path / "c" / "draws.zarr", None)
    np.testing.assert_array_equal(draws["w"], again.get_samples(True)["w"])


def test_a_chain_that_explodes_after_the_checkpoint_is_forgotten_with_its_draws(tmp_path):
    store = DrawStore(tmp_path / "d")
    from numpyro_bnn.storage.draw_store import Variable

    variables = [Variable("posterior", "w", "w", (), np.dtype(np.float32))]
    store.create(variables, 2, 9, 3, None)
    for failed in ({}, {1: "exploded at step 5"}, {1: "exploded at step 5"}):
        store.leave_out(failed)
        store.append(variables, [np.ones((2, 3), np.float32)])
    assert store.failed == {1: "exploded at step 5"}
    store.open_for_writing(6)
    assert store.failed == {1: "exploded at step 5"}
    store.open_for_writing(3)
    assert store.failed == {}


def test_when_every_chain_failed_nothing_is_loaded(tmp_path):
    far = {"w": jnp.full((3, 2), 1e3)}
    with pytest.raises(RuntimeError, match="No chain stayed finite"):
        run(sampler("SGLD", draws=tmp_path / "d"), far)
    with pytest.raises(RuntimeError, match="No chain stayed finite"):
        bnn.load(tmp_path / "d", None)


def test_a_saved_file_remembers_which_chains_are_missing(tmp_path):
    mcmc = sampler("SGLD")
    with pytest.warns(UserWarning, match=WARNS):
        run(mcmc)
    loaded = bnn.load(bnn.save(mcmc, tmp_path / "run"), None)
    assert loaded.left_out == mcmc.left_out
    assert loaded["w"].shape == (2, 12, 2)
