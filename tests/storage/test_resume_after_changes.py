"""Runs that go on after what their model reads has changed: refused with a line that differs, or accepted."""

import functools
import json
import logging
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.storage.same_run import digest, facts_of, refuse_other_facts

# Four steps of a trajectory of no good length: all of them may be called divergent.
pytestmark = [pytest.mark.filterwarnings("ignore:.*suspect and kept:UserWarning")]

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")

SETTINGS = {"width": 3, "calls": 0, "unread": 0}


def scaled(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, SETTINGS["width"]))
    SETTINGS["calls"] += 1
    logging.getLogger("user").debug("called")
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def run_of(folder, model, step_size=0.1, **options):
    kernel = HMC(
        model,
        step_size=step_size,
        trajectory_length=0.2,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    settings = {"num_warmup": 2, "num_samples": 4, "progress_bar": False, "checkpoint_every": 3}
    return bnn.MCMC(kernel, checkpoint=folder, **(settings | options))


Y = jnp.arange(3.0)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The folder of a finished run, and its draws."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    mcmc = run_of(folder, scaled)
    # Looking for a start compiles for longer than the steps.
    mcmc.run(jax.random.key(0), Y, init_params={"mean": jnp.ones(())})
    return folder, mcmc.get_samples()["mean"]


def test_resume_refuses_a_changed_global_and_goes_on_where_it_is_accepted(stored, monkeypatch):
    folder, draws = stored
    monkeypatch.setitem(SETTINGS, "width", 4)
    message = (
        r"What differs: program \(of kernel and model\): there `.*dense<3\.0.*`, here `.*dense<4\.0.*`"
        r".*accept=\['program'\]"
    )
    with pytest.raises(ValueError, match=message):
        run_of(folder, scaled).resume(Y)
    with pytest.raises(ValueError, match="dense"):
        run_of(folder, scaled).resume(Y, accept=["prog"])
    for names in (["program"], ("program", "data")):
        mcmc = run_of(folder, scaled)
        mcmc.resume(Y, accept=names)
        np.testing.assert_array_equal(mcmc.get_samples()["mean"], draws)


def noisy(y):
    # Another number in every trace.
    mean = numpyro.sample("mean", dist.Normal(np.random.default_rng().normal(), 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_a_model_that_draws_numbers_on_the_host_is_another_one_each_time(tmp_path):
    run_of(tmp_path / "run", noisy).run(jax.random.key(0), Y, init_params={"mean": jnp.ones(())})
    with pytest.raises(ValueError, match="program"):
        run_of(tmp_path / "run", noisy).resume(Y)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"step_size": 0.2}, r"kernel: there HMC\(.*step_size=0\.1.*, here HMC\(.*step_size=0\.2"),
        ({"record": lambda z: {"mean": 2 * z["mean"]}}, r"program \(of kernel and model\): there"),
        ({"num_samples": 5}, "num_samples: there 4, here 5"),
        ({"chain_method": "vectorized"}, "chain_method: there 'sequential', here 'vectorized'"),
    ],
)
def test_other_settings_are_refused(changed, message, stored):
    with pytest.raises(ValueError, match=message) as refused:
        run_of(stored[0], scaled, **changed).resume(Y)
    assert ("accept" in str(refused.value)) == ("num_samples" not in changed)


def test_other_data_are_refused_by_name_and_may_be_accepted(stored):
    folder, draws = stored
    with pytest.raises(
        ValueError, match=r"data\.0\.0: there float32\[3\] .*accept=\['data\.0\.0'\]"
    ):
        run_of(folder, scaled).resume(Y + 1)
    mcmc = run_of(folder, scaled)
    mcmc.resume(Y + 1, accept=["data"])
    np.testing.assert_array_equal(mcmc.get_samples()["mean"], draws)


@pytest.mark.parametrize("name", ["num_samples", "sites.mean"])
def test_what_cannot_be_accepted_is_refused(name, stored):
    with pytest.raises(ValueError, match=re.escape(f"accept=['{name}'] cannot differ")):
        run_of(stored[0], scaled).resume(Y, accept=[name])


@pytest.mark.parametrize("written", ["", "no base 64!", "aGVsbG8="])
def test_a_damaged_program_is_said_to_be_damaged(written, stored, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stored[0], folder)
    content = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(content | {"program": written}))
    with pytest.raises(ValueError, match="damaged"):
        run_of(folder, scaled).resume(Y)


def test_arrays_are_told_apart_by_every_value_and_type(monkeypatch):
    monkeypatch.setattr("numpyro_bnn.storage.same_run._BLOCK", 16)  # a block is one row
    values = np.arange(12.0).reshape(6, 2)
    assert digest(values) == digest(values.copy(order="F"))
    changed = values.copy()
    changed[5, 1] = np.nextafter(11.0, 12.0)
    found = [values, changed, values.astype(np.float32), values.reshape(2, 6), values[:0]]
    assert len({digest(v) for v in found}) == len(found)


def test_every_leaf_is_a_fact_by_its_path():
    tables = pytest.importorskip("pandas")
    values = {
        "sites": {"net/Dense_0.kernel": "(2, 1)"},
        "data": [(np.zeros(2), {"a": jnp.ones(3)}, None), {"scale": 2.0, "form": "linear"}],
        "key": jax.random.key(0),
        "table": tables.DataFrame({"a": [1.0]}),
        "method": functools.partial(jax.vmap, in_axes=0),
        "thing": object(),
    }
    facts = facts_of(values)
    assert set(facts) >= {"data.0.0", "data.0.1.a", "data.0.2", "data.1.scale", "data.1.form"}
    assert facts["sites.net/Dense_0.kernel"] == "'(2, 1)'"
    assert facts["data.0.0"].startswith("float64[2] ")
    assert facts["data.0.2"] == "None"
    assert facts["table"].startswith("float64[1, 1] ")
    assert facts["key"].startswith("key uint32[2] ")
    assert not [text for text in facts.values() if re.search(" at 0x", text)]


def test_numbers_that_are_read_on_demand_are_compared(tmp_path):
    zarr = pytest.importorskip("zarr")

    def stored(value):
        array = zarr.create_array(tmp_path / "x.zarr", shape=(4,), dtype="f4", overwrite=True)
        array[:] = value
        return array

    facts = facts_of({"v": stored(0.0)})
    assert facts_of({"v": OnHost(stored(0.0))}) == facts
    assert facts_of({"v": stored(1.0)}) != facts


def test_a_difference_names_what_it_can():
    before = {f"data.{i}": "a" for i in range(12)}
    refuse_other_facts("there", before, before, ())
    refuse_other_facts("there", before, {}, ["data"])
    message = r"data\.0: there a, here absent; data\.1:.*and 4 more\. .*accept=\['data\.0', "
    with pytest.raises(ValueError, match=message):
        refuse_other_facts("there", before, {}, ())
    with pytest.raises(ValueError, match="data") as refused:
        refuse_other_facts("there", before, {}, None)
    assert "accept" not in str(refused.value)
