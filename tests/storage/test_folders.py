"""Folders that a run may not write to, and what is refused before it costs a run."""

import os
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from quiet import quiet
from walker import WALKED, Walk, run, sampler

import numpyro_bnn as bnn
from numpyro_bnn.cli import job_report
from numpyro_bnn.cli.main import main
from numpyro_bnn.posterior.draws import Draws

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")
pytestmark = [
    # zarr's own libraries deprecate each other when they are first imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning")
]
KILLED = Mock(side_effect=KeyError("killed"))


def content_of(folder):
    """Every file below a folder, with what it holds."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def nothing(folder):
    pass


def link(folder):
    (folder / "here").mkdir()
    (folder / "link").symlink_to(folder / "here")


@pytest.mark.parametrize(
    ("checkpoint", "draws", "make"),
    [
        ("a", "a", nothing),
        ("a", "a/", nothing),
        ("a", "./b/../a", nothing),
        ("a", "a/draws.zarr", nothing),
        ("a", "a/b/c", nothing),
        ("a/b", "a", nothing),
        (".", "a", nothing),
        ("here", "link", link),
        ("link", "here/run.zarr", link),
        ("link/b", "here", link),
    ],
)
@pytest.mark.parametrize("absolute", [(True, True), (False, True), (False, False)])
def test_folders_that_are_one_or_inside_each_other_are_refused(
    checkpoint, draws, make, absolute, tmp_path, monkeypatch
):
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    paths = [
        str(tmp_path / path) if full else path for path, full in zip((checkpoint, draws), absolute)
    ]
    with pytest.raises(ValueError, match="are the same folder, or one is inside the other"):
        sampler(checkpoint=paths[0], draws=paths[1])


def test_a_link_that_is_made_after_the_sampler_is_seen(tmp_path):
    mcmc = sampler(checkpoint=tmp_path / "a", draws=tmp_path / "b")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="are the same folder"):
        run(mcmc)


def test_folders_side_by_side_are_fine_wherever_the_process_goes(tmp_path, monkeypatch):
    (tmp_path / "first").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    mcmc = sampler(checkpoint="run", draws="run.zarr")
    monkeypatch.chdir(tmp_path)
    run(mcmc)
    assert sorted(p.name for p in (tmp_path / "first").iterdir()) == ["run", "run.zarr"]
    assert np.asarray(mcmc.get_samples(True)).shape == (2, 9)


def test_a_run_begins_where_another_was_ended_while_it_compiled(tmp_path):
    (tmp_path / "draws.zarr").mkdir()
    mcmc = sampler(checkpoint=tmp_path)
    run(mcmc)
    assert len(mcmc.get_samples())


def numbered_steps(folder):
    """What orbax would take for old checkpoints, and remove."""
    for step in (1, 2, 3):
        (folder / "steps" / str(step)).mkdir(parents=True)
        (folder / "steps" / str(step) / "mine.txt").write_text("mine")


def a_start(folder):
    (folder / "start").mkdir(parents=True)
    (folder / "start" / "mine.txt").write_text("mine")


def notes(folder):
    folder.mkdir()
    (folder / ".hidden").write_text("mine")


def arrays(folder):
    import zarr

    zarr.open_group(folder, mode="w").create_array("posterior", shape=(3,), dtype="f4")[:] = 1.0


def header(folder):
    folder.mkdir()
    (folder / "run.json").write_text('{"name": "mine"}')


@pytest.mark.parametrize("option", ["checkpoint", "draws"])
@pytest.mark.parametrize("make", [numbered_steps, a_start, notes, arrays, header])
def test_files_of_the_user_are_never_touched(make, option, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    make(folder)
    before = content_of(folder)
    monkeypatch.chdir(folder)
    for path in (folder, ".", Path()):
        with pytest.raises(
            FileExistsError, match=r"not of numpyro_bnn|not empty|holds a run already"
        ):
            run(sampler(**{option: path}))
    with pytest.raises(
        (FileNotFoundError, ValueError), match=r"holds no run|no checkpoint|nothing to c"
    ):
        sampler(**{option: folder}).resume()
    assert content_of(folder) == before


@pytest.mark.parametrize("make", [numbered_steps, notes, arrays])
@pytest.mark.parametrize("begun", [False, True])
def test_resume_never_makes_room_for_its_draws(make, begun, tmp_path, monkeypatch):
    """The folder of draws has moved, and in its place there is something else."""
    first = {"checkpoint": tmp_path / "c", "draws": tmp_path / "one" / "d"}
    stop_before = "append" if begun else "create"
    with monkeypatch.context() as patch:
        patch.setattr(f"numpyro_bnn.storage.draw_store.DrawStore.{stop_before}", KILLED)
        with pytest.raises(KeyError, match="killed"):
            run(sampler(**first))
    other = tmp_path / "two" / "d"
    other.parent.mkdir()
    make(other)
    before = content_of(other)
    with pytest.raises(
        (FileExistsError, ValueError), match=r"not of numpyro_bnn|holds no draws|not empty"
    ):
        sampler(checkpoint=tmp_path / "c", draws=other).resume()
    assert content_of(other) == before
    sampler(**first).resume()


def test_resume_never_writes_over_the_draws_of_another_run(tmp_path, monkeypatch):
    run(sampler(checkpoint=tmp_path / "other", draws=tmp_path / "one" / "d"))
    before = content_of(tmp_path / "one" / "d")
    with monkeypatch.context() as patch:
        patch.setattr("numpyro_bnn.storage.draw_store.DrawStore.append", KILLED)
        with pytest.raises(KeyError, match="killed"):
            run(sampler(checkpoint=tmp_path / "c", draws=tmp_path / "two" / "d"))
    with pytest.raises(FileExistsError, match="holds the draws of another run"):
        sampler(checkpoint=tmp_path / "c", draws=tmp_path / "one" / "d").resume()
    assert content_of(tmp_path / "one" / "d") == before


@pytest.mark.parametrize("at", ["writer", "group", "commit"])
def test_a_store_that_was_never_finished_is_made_anew(at, tmp_path, monkeypatch):
    where = {"checkpoint": tmp_path / "c", "draws": tmp_path / "d"}
    name = {
        "writer": "zarr.Group.create_array",
        "group": "zarr.open_group",
        "commit": "numpyro_bnn.storage.draw_store.DrawStore._commit",
    }[at]
    with monkeypatch.context() as patch:
        patch.setattr(name, Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match=r"No space left.*the start is safe"):
            run(sampler(**where))
    again = sampler(**where)
    again.resume()
    np.testing.assert_array_equal(again.get_samples(True), WALKED)


def test_a_run_that_is_refused_after_all_leaves_its_folder_free(tmp_path):
    where = {"checkpoint": tmp_path / "c", "draws": tmp_path / "d"}
    with pytest.raises(TypeError, match="record must return a dict"):
        run(sampler(record=lambda sites: None, **where))
    with pytest.raises(FileNotFoundError, match="holds no run"):
        sampler(**where).resume()
    run(sampler(**where))


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        (lambda sites: None, TypeError, r"dict of arrays by name, got NoneType.*`return \{"),
        (lambda sites: sites, TypeError, "must return a dict of arrays by name, got .*Tracer"),
        (lambda sites: {}, TypeError, "arrays by name, got dict with the keys"),
        (lambda sites: {"f": None}, TypeError, r"arrays by name, .* keys \['f'\]"),
        (lambda sites: {1: sites}, TypeError, r"arrays by name, .* keys \[1\]"),
        (lambda sites: {"f": "x"}, TypeError, r"keys \['f'\] and values of \['str'\]"),
    ],
)
@pytest.mark.parametrize("option", [None, "checkpoint", "draws"])
def test_what_record_cannot_mean_is_refused_before_a_step(record, error, message, option, tmp_path):
    steps = []

    class Counted(Walk):
        def sample(self, *args):
            jax.debug.callback(lambda: steps.append(1))
            return super().sample(*args)

    where = {} if option is None else {option: tmp_path / "run"}
    mcmc = quiet(Counted(), 2, 6, 2, record=record, **where)
    with pytest.raises(error, match=message):
        run(mcmc)
    jax.effects_barrier()
    assert not steps


def draws():
    return Draws({"w": np.zeros((1, 2, 3))})


def test_save_makes_the_folders_above_its_file(tmp_path):
    path = bnn.save(draws(), tmp_path / "a" / "b" / "run")
    assert path == tmp_path / "a" / "b" / "run.npz"
    assert bnn.load(path, None)["w"].shape == (1, 2, 3)


@pytest.mark.parametrize("inner", ["run", "deeper/run"])
def test_save_says_where_it_cannot_write(inner, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"save: the folder .*file.* cannot be written \("):
        bnn.save(draws(), tmp_path / "file" / inner)
    (tmp_path / "run.npz").mkdir()
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        bnn.save(draws(), tmp_path / "run")
    with pytest.raises(ValueError, match="empty name"):
        bnn.save(draws(), "")
    with pytest.raises(TypeError, match=r"not .*int"):
        bnn.save(draws(), 3)
    assert (tmp_path / "file").read_text() == "mine"


needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


@needs_permissions
def test_a_folder_without_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="cannot be written"):
        bnn.save(draws(), tmp_path / "closed" / "run")
    with pytest.raises(PermissionError, match="nothing was sampled"):
        run(sampler(draws=tmp_path / "closed" / "d"))


@pytest.fixture
def never_runs(monkeypatch):
    def fit(*args, **kwargs):
        raise AssertionError("the job began")

    monkeypatch.setattr("numpyro_bnn.cli.job.run", fit)


@pytest.mark.parametrize("name", ["report.html", "predictions.csv", "posterior.nc"])
def test_the_command_line_keeps_files_that_are_not_its_own(name, tmp_path, never_runs, capsys):
    (tmp_path / name).write_text("mine")
    assert main(["diabetes", "--output", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"holds {name}, which no report of this version wrote" in said
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("inner", ["", "report"])
def test_the_command_line_looks_at_its_folder_first(inner, tmp_path, never_runs, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["diabetes", "--output", str(tmp_path / "file" / inner)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "cannot be written" in said
    (tmp_path / "folder" / "report.html").mkdir(parents=True)
    assert main(["diabetes", "--output", str(tmp_path / "folder")]) == 2
    assert "cannot be replaced" in " ".join(capsys.readouterr().err.split())


def test_the_command_line_replaces_its_own_report(tmp_path):
    job_report.require_folder(tmp_path / "new")
    (tmp_path / "new" / job_report._MARK).touch()
    (tmp_path / "new" / "report.html").write_text("an earlier report")
    (tmp_path / "new" / "notes.txt").write_text("mine")
    job_report.require_folder(tmp_path / "new")
    shutil.rmtree(tmp_path / "new")


@pytest.mark.parametrize("missing", ["filelock", "orbax", "zarr"])
@pytest.mark.parametrize("where", ["checkpoint", "draws"])
def test_a_missing_package_is_named_with_what_installs_it(missing, where, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    text = rf'not installed: {missing}\. Install them by `pip install "numpyro-bnn\[storage\]"`'
    with pytest.raises(ModuleNotFoundError, match=rf"MCMC: a run on disk .*{text}"):
        bnn.MCMC(Walk(), num_warmup=1, num_samples=1, **{where: tmp_path / "run"})
    with pytest.raises(ModuleNotFoundError, match=rf"load: a folder of draws .*{text}"):
        bnn.load(tmp_path, None)
