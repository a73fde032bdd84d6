"""Files that nobody meant to be read: a clear ValueError, or sound values, and nothing else."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import numpyro_bnn as bnn
from numpyro_bnn.cli import tables
from numpyro_bnn.posterior.draws import Draws

FUZZ = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NUMBERS = ("1", "-2.5", "1e400", "nan", "inf", "1_000", "0x1", "9999999999999999999999", "1,2")
OTHERS = ("", " ", "a", '"', '""', "'", "é", "True", "2020-01-01", "-", ";", "\x00", "\n")
CELLS = st.sampled_from(NUMBERS + OTHERS)


def model(x, y=None):
    """Of the draws below; never run."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    draws = Draws({"w": np.zeros((2, 3, 2))}, model, {"diverging": np.zeros((2, 3), bool)})
    return bnn.save(draws, tmp_path_factory.mktemp("fuzz") / "run").read_bytes()


@FUZZ
@given(data=st.data())
def test_mutated_archives_load_or_are_refused(data, archive, tmp_path):
    content = bytearray(archive)
    places = st.integers(0, len(content) - 1)
    for at, byte in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        content[at] = byte
    path = tmp_path / "run.npz"
    path.write_bytes(content[: data.draw(st.one_of(st.just(len(content)), places))])
    try:
        loaded = bnn.load(path, model)
    except ValueError as error:
        said = str(error)
    else:
        said = ""
        assert all(np.asarray(v).dtype != object for v in loaded.values())
    assert not said or "does not hold draws" in said or "leading axes" in said


@FUZZ
@given(
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=4), min_size=18, max_size=24),
    header=st.booleans(),
)
def test_any_text_is_a_table_or_refused(rows, header, tmp_path):
    path = tmp_path / "table.csv"
    lines = ["a,b,c,d"] * header + [",".join(row) for row in rows]
    path.write_text("\n".join(lines))
    try:
        table = tables.read_table(path, "a")
    except ValueError:
        return
    assert np.isfinite(table.x).all()
    assert np.isfinite(table.y).all()
    assert len(table.x) == len(table.y) >= 20


@FUZZ
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused(content, tmp_path):
    for name, read in (
        ("run.npz", lambda path: bnn.load(path, model)),
        ("table.csv", lambda path: tables.read_table(path, "a")),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=name):
            read(path)
