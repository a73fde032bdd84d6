"""One writer a folder: second processes are kept out, dead owners replaced, sleepers stopped."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from walker import WALKED, run, sampler

import numpyro_bnn as bnn
from numpyro_bnn.storage import folders as locks
from numpyro_bnn.storage.checkpoints import Checkpoint
from numpyro_bnn.storage.draw_store import DrawStore
from numpyro_bnn.storage.folders import FolderInUse, FolderLock

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")
HERE = Path(__file__).parent


def lock_file(folder):
    return folder / ".numpyro_bnn.lock"


@pytest.fixture
def impatient(monkeypatch):
    """An owner counts as gone after a second without a sign of life, in place of a minute."""
    monkeypatch.setattr(locks, "SILENCE", 1.0)
    monkeypatch.setattr(locks, "HEARTBEAT", 0.1)
    return 1.0


@contextmanager
def held_elsewhere(folder, *silence):
    """Another process that holds the folder."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, str(HERE / "lock_holder.py"), str(folder), *map(str, silence)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def wants_to_write(process):
    process.stdin.write("write\n")
    process.stdin.flush()
    return process.stdout.readline()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The folders of a finished run."""
    root = tmp_path_factory.mktemp("stored")
    run(sampler(checkpoint=root / "c", draws=root / "d"))
    return root


@pytest.fixture
def folders(stored, tmp_path):
    return shutil.copytree(stored, tmp_path / "run")


@pytest.mark.parametrize("name", [pytest.param("c", marks=pytest.mark.slow), "d"])
def test_what_another_process_writes_to_is_refused_and_can_be_read(name, folders):
    again = sampler(checkpoint=folders / "c", draws=folders / "d")
    with held_elsewhere(folders / name) as process:
        before = {p: p.read_bytes() for p in folders.rglob("zarr.json")}
        with pytest.raises(FolderInUse, match=rf"in use by process {process.pid} on host"):
            again.resume()
        with pytest.raises(FolderInUse, match="Wait until it ends, or choose another folder"):
            run(sampler(checkpoint=folders / "c", draws=folders / "d"))
        assert {p: p.read_bytes() for p in folders.rglob("zarr.json")} == before
        assert np.asarray(bnn.load(folders / "d", None)["x"]).shape == (2, 9)
        assert wants_to_write(process) == "may write\n"
    again.resume()


@pytest.mark.parametrize("where", ["checkpoint", "draws"])
def test_two_runs_on_one_folder_do_not_mix(where, tmp_path, monkeypatch):
    """The second run begins while the first one is between two chunks."""
    folder, said = tmp_path / "run", []
    append = DrawStore.append

    def meanwhile(self, variables, leaves):
        append(self, variables, leaves)
        if len(said) < 2:
            said.append("none")
            with pytest.raises(FolderInUse, match="in use by process") as got:
                run(sampler(**{where: folder}))
            said[-1] = str(got.value)

    monkeypatch.setattr(DrawStore, "append", meanwhile)
    mcmc = sampler(**{where: folder})
    run(mcmc)
    assert len(said) == 2
    assert f"in use by process {os.getpid()}" in said[0]
    np.testing.assert_array_equal(mcmc.get_samples(True), WALKED)
    assert not [name for name in os.listdir(folder) if name.startswith(".numpyro_bnn.")]


def test_two_processes_that_run_at_once_leave_one_whole_run(tmp_path, monkeypatch):
    program = """
import sys
sys.path.insert(0, sys.argv[2])
from walker import run, sampler
mcmc = sampler(checkpoint=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
run(mcmc)
"""
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "run"), str(HERE.parent / "support")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    save, ended = Checkpoint.save, []

    def slowly(self, states, progress):
        # The other process, which has imported all it needs, runs from here to its end.
        if not ended:
            ended.append(other.communicate("go\n"))
        save(self, states, progress)

    monkeypatch.setattr(Checkpoint, "save", slowly)
    assert other.stdout.readline() == "ready\n"
    mcmc = sampler(checkpoint=tmp_path / "run")
    run(mcmc)
    assert other.returncode == 1
    assert f"FolderInUse: {tmp_path / 'run'} is in use by process {os.getpid()}" in ended[0][1]
    again = sampler(checkpoint=tmp_path / "run")
    again.resume()
    for found in (mcmc, again):
        np.testing.assert_array_equal(found.get_samples(True), WALKED)


def test_the_lock_goes_with_the_run_however_it_ends(tmp_path, monkeypatch):
    def full(self, states, progress):
        raise OSError(28, "No space left on device")

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", full)
        with pytest.raises(OSError, match="No space left"):
            run(sampler(checkpoint=folder))
    assert not lock_file(folder).exists()
    sampler(checkpoint=folder).resume()


def fake_owner(folder, silent=0.0, **fields):
    """The file of an owner that another process has left."""
    folder.mkdir(exist_ok=True)
    lock = FolderLock(folder)
    kept = lock_file(folder).read_bytes() if lock_file(folder).exists() else None
    if kept is None:
        lock.acquire()
        kept = lock_file(folder).read_bytes()
        lock.release()
    own = dict(line.split("=") for line in kept.decode().splitlines()[1:])
    own |= {"token": "theirs"} | {name: str(value) for name, value in fields.items()}
    lines = ["filelock/2", *(f"{name}={value}" for name, value in own.items())]
    lock_file(folder).unlink(missing_ok=True)
    lock_file(folder).write_text("\n".join(lines) + "\n")
    fall_silent(folder, silent)


def fall_silent(folder, seconds):
    stamp = time.time() - seconds
    os.utime(lock_file(folder), (stamp, stamp))


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(lambda: {"pid": dead_pid()}, id="a dead process"),
        pytest.param(lambda: {"start": 1}, id="another process of that number"),
    ],
)
def test_a_dead_owner_on_this_host_is_replaced_at_once(fields, tmp_path):
    fake_owner(tmp_path, **fields())
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.check()
    lock.release()
    assert not lock_file(tmp_path).exists()


def test_a_killed_process_does_not_block_who_goes_on(folders):
    with held_elsewhere(folders / "c") as process:
        process.kill()
        process.wait()
        assert lock_file(folders / "c").exists()
        sampler(checkpoint=folders / "c", draws=folders / "d").resume()


@pytest.mark.parametrize(
    "fields",
    [{"host": "elsewhere"}, {"host": "elsewhere", "pid": 1}, {}],
    ids=["another host", "a process that is none here", "this very process"],
)
def test_a_silent_owner_is_replaced_aloud_and_not_before(fields, impatient, tmp_path):
    lock = FolderLock(tmp_path)
    fake_owner(tmp_path, **fields)
    with pytest.raises(FolderInUse, match=r"sign of life \d s ago.*try again 1 s after"):
        lock.acquire()
    fall_silent(tmp_path, 3.0)
    with pytest.warns(UserWarning, match=r"no sign of life for \d s\. This run takes over"):
        lock.acquire()
    lock.check()
    lock.release()


def test_an_owner_that_seemed_silent_and_lives_is_not_replaced(impatient, tmp_path):
    with held_elsewhere(tmp_path, impatient) as process:
        process.send_signal(signal.SIGSTOP)
        fall_silent(tmp_path, 3.0)
        with pytest.MonkeyPatch.context() as patch:
            # It goes on between the first look and the second.
            told = locks._message
            patch.setattr(
                locks, "_message", lambda o: process.send_signal(signal.SIGCONT) or told(o)
            )
            with pytest.raises(FolderInUse, match=f"in use by process {process.pid}"):
                FolderLock(tmp_path).acquire()
        assert wants_to_write(process) == "may write\n"


def test_an_owner_in_another_container_counts_as_alive(tmp_path):
    fake_owner(tmp_path, pid=dead_pid(), host=f"{socket.gethostname()}?pidns-1")
    with pytest.raises(FolderInUse, match="in use by"):
        FolderLock(tmp_path).acquire()


@pytest.mark.parametrize("content", ["", "{", "filelock/2\npid=x\n"])
def test_an_owner_that_cannot_be_read_is_judged_by_its_silence(content, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "SILENCE", 2.5)
    monkeypatch.setattr(locks, "HEARTBEAT", 0.2)
    lock = FolderLock(tmp_path)
    lock_file(tmp_path).write_text(content)
    with pytest.raises(FolderInUse, match="in use by another process"):
        lock.acquire()
    fall_silent(tmp_path, 61)
    with pytest.warns(UserWarning, match="held by another process"):
        lock.acquire()
    lock.release()


def test_of_two_that_replace_one_owner_one_does(tmp_path):
    """Both judge the same dead owner; only one of them writes on."""
    fake_owner(tmp_path, pid=dead_pid())
    ends = []

    def take():
        lock = FolderLock(tmp_path)
        try:
            lock.acquire()
            ends.append(lock)
        except FolderInUse:
            ends.append(None)

    both = [threading.Thread(target=take) for _ in range(2)]
    [thread.start() for thread in both]
    [thread.join() for thread in both]
    (won,) = [lock for lock in ends if lock is not None]
    won.check()
    won.release()


def test_a_sleeper_whose_folder_was_taken_over_stops(impatient, folders):
    """A real process is stopped, and goes on after the other."""
    again = sampler(checkpoint=folders / "c", draws=folders / "d")
    with held_elsewhere(folders / "c", impatient) as process:
        process.send_signal(signal.SIGSTOP)
        fall_silent(folders / "c", 3.0)
        with pytest.warns(UserWarning, match=rf"was held by process {process.pid} .* takes over"):
            again.resume()
        lock = FolderLock(folders / "c")
        lock.acquire()
        process.send_signal(signal.SIGCONT)
        said = wants_to_write(process)
        assert said.startswith("FolderInUse")
        assert (
            f"taken over while this process stood still: it is held by process {os.getpid()}"
            in said
        )
        process.communicate()  # it ends, and leaves the lock of the other alone
        lock.check()
        lock.release()


@pytest.mark.parametrize("taken", ["over", "away"])
@pytest.mark.parametrize("where", ["checkpoint", "draws"])
def test_a_run_whose_folder_was_taken_over_writes_nothing_more(taken, where, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    store = folder if where == "draws" else folder / "draws.zarr"
    append, after = DrawStore.append, []

    def slept(self, variables, leaves):
        append(self, variables, leaves)
        if not after:
            fake_owner(folder) if taken == "over" else lock_file(folder).unlink()
            after.append((store / "zarr.json").read_bytes())

    monkeypatch.setattr(DrawStore, "append", slept)
    with pytest.raises(FolderInUse, match="This run stops, and writes nothing more") as got:
        run(sampler(**{where: folder}))
    assert "make room" not in " ".join(getattr(got.value, "__notes__", ()))
    assert (store / "zarr.json").read_bytes() == after[0]
    assert lock_file(folder).exists() == (taken == "over")
    if where == "checkpoint":
        steps = {path.name for path in (folder / "steps").iterdir()}
        assert steps == {"2"}  # that of warm-up


def test_an_owner_gives_signs_of_life(impatient, tmp_path):
    lock = FolderLock(tmp_path)
    lock.acquire()
    os.utime(lock_file(tmp_path), (0, 0))
    limit = time.monotonic() + 10
    while lock_file(tmp_path).stat().st_mtime == 0 and time.monotonic() < limit:
        time.sleep(0.01)
    assert time.time() - lock_file(tmp_path).stat().st_mtime < 30
    lock.release()
    assert not lock_file(tmp_path).exists()
