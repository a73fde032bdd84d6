"""Runs that go on after what their model reaches has changed: refused by name, or accepted by name."""

import contextlib
import json
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import HMC
from test_reached_objects import SETTINGS, scaled

import numpyro_bnn as bnn

# Four steps of a trajectory of no good length: all of them may be called divergent.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*suspect and kept:UserWarning"),
    pytest.mark.usefixtures("quick_compile"),
]

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")


def run_of(folder, model, **options):
    kernel = HMC(
        model, step_size=0.1, trajectory_length=0.2, adapt_step_size=False, adapt_mass_matrix=False
    )
    settings = {"num_warmup": 2, "num_samples": 4, "progress_bar": False, "checkpoint_every": 3}
    return bnn.MCMC(kernel, checkpoint=folder, **(settings | options))


Y = jnp.arange(3.0)


@pytest.fixture(scope="module")
def stored(quick_compile, tmp_path_factory):
    """The folder of a finished run, and its draws."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    mcmc = run_of(folder, scaled)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        # Looking for a start compiles for longer than the steps.
        mcmc.run(jax.random.key(0), Y, init_params={"mean": jnp.ones(())})
    (warning,) = [str(w.message) for w in said if "will not be compared" in str(w.message)]
    return folder, mcmc.get_samples()["mean"], warning


def test_a_run_names_what_it_will_not_be_compared_in(stored):
    assert "kernel.model.SETTINGS.calls changes when the model is called" in stored[2]
    assert "pass it to the model as an argument" in stored[2]


def test_resume_refuses_a_changed_global_and_goes_on_where_it_is_accepted(stored, monkeypatch):
    folder, draws, _ = stored
    run_of(folder, scaled).resume(Y)  # the counter stands elsewhere by now
    monkeypatch.setitem(SETTINGS, "width", 4)
    message = (
        r"kernel\.model\.SETTINGS\.width: there 3, here 4\. .*accept=\['kernel\.model\.SETTINGS"
    )
    with pytest.raises(ValueError, match=message):
        run_of(folder, scaled).resume(Y)
    with pytest.raises(ValueError, match="SETTINGS"):
        run_of(folder, scaled).resume(Y, accept=["kernel.model.SET"])
    for names in (["kernel.model.SETTINGS.width"], ("kernel.model",)):
        mcmc = run_of(folder, scaled)
        mcmc.resume(Y, accept=names)
        np.testing.assert_array_equal(mcmc.get_samples()["mean"], draws)


@pytest.mark.parametrize(
    ("accept", "error", "message"),
    [
        ("kernel", TypeError, "accept must be a list of names .* got 'kernel'"),
        ([3], TypeError, r"accept must be a list of names .* got \[3\]"),
        (["num_samples"], ValueError, r"accept=\['num_samples'\] cannot differ"),
        (["sites.mean"], ValueError, r"accept=\['sites\.mean'\] cannot differ"),
    ],
)
def test_what_cannot_be_accepted_is_refused(accept, error, message, stored):
    with pytest.raises(error, match=message):
        run_of(stored[0], scaled).resume(Y, accept=accept)


def test_another_length_is_not_offered_to_be_accepted(stored):
    with pytest.raises(ValueError, match="num_samples: there 4, here 5") as refused:
        run_of(stored[0], scaled, num_samples=5).resume(Y)
    assert "accept" not in str(refused.value)


@pytest.mark.parametrize("changed", [False, True])
def test_a_checkpoint_of_the_earlier_format_goes_on(changed, stored, tmp_path, monkeypatch):
    """Its facts had no globals and other words for repeated and nested things."""
    folder = tmp_path / "run"
    shutil.copytree(stored[0], folder)
    header = folder / "run.json"
    content = json.loads(header.read_text())
    assert content["format"] == "numpyro_bnn checkpoint 2"
    content["format"] = "numpyro_bnn checkpoint 1"
    del content["left_out"]
    content["facts"] = {
        name: "as above" if text.startswith("as ") else text
        for name, text in content["facts"].items()
        if "SETTINGS" not in name and "logging" not in name
    }
    content["facts"]["kernel.model.old words"] = "which nobody writes any more"
    if changed:
        content["facts"]["kernel.step_size"] = "0.2"
    header.write_text(json.dumps(content))
    mcmc = run_of(folder, scaled)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused = pytest.raises(ValueError, match=r"kernel\.step_size: there 0\.2, here 0\.1")
        with refused if changed else contextlib.nullcontext():
            mcmc.resume(Y)
    said = " ".join(str(warning.message) for warning in caught)
    assert "SETTINGS.calls changes" in said
    assert "written by an earlier version" in said
    if changed:
        return
    np.testing.assert_array_equal(mcmc.get_samples()["mean"], stored[1])
