"""What an object holds beside the state that is pickled is compared too: a model may read it."""

import enum

import numpy as np
import pytest
from jax import numpy as jnp

from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.storage.run_identity import describe, describe_all, describe_traced


class GetState:
    def __init__(self, table):
        self.name, self.table = "features", table

    def __getstate__(self):
        return {"name": self.name}


class Reduce:
    def __init__(self, table):
        self.table = table

    def __reduce__(self):
        return Reduce, (None,)


class Slots:
    __slots__ = ("table",)

    def __init__(self, table):
        self.table = table

    def __getstate__(self):
        return None


def with_table(kind, value):
    class Own(kind):
        pass

    Own.__qualname__ = "Own"

    def make(table):
        made = value.view(Own) if kind is np.ndarray else Own(value)
        made.table = table
        return made

    return make


class Member(enum.Enum):
    ONE = 1


def member(table):
    Member.ONE.table = table
    return Member.ONE


MAKERS = {
    "__getstate__": GetState,
    "__reduce__": Reduce,
    "slots": Slots,
    "array": with_table(np.ndarray, np.zeros(2)),
    "text": with_table(str, "a"),
    "whole number": with_table(int, 1),
    "number": with_table(float, 1.0),
    "list": with_table(list, [1]),
    "mapping": with_table(dict, {"a": 1}),
    "enumeration": member,
}


@pytest.mark.parametrize("name", MAKERS)
def test_other_tables_are_other_objects(name):
    """For shared programs and for a run that is resumed."""
    for of in (lambda v: describe_traced({"v": v}).facts, lambda v: describe("v", v)):
        first, again, other = (of(MAKERS[name](np.full(3, x))) for x in (0.0, 0.0, 1.0))
        assert first == again
        assert first != other


def test_numbers_that_are_read_on_demand_share_no_program_and_are_compared_on_resuming(tmp_path):
    zarr = pytest.importorskip("zarr")

    def stored(value):
        array = zarr.create_array(tmp_path / "x.zarr", shape=(4,), dtype="f4", overwrite=True)
        array[:] = value
        return array

    first = stored(0.0)
    unknown = describe_traced({"v": first}).unknown
    assert unknown == {"v": "reads its numbers from elsewhere"}
    facts = describe("v", first)
    assert describe("v", stored(0.0)) == facts
    assert describe("v", stored(1.0)) != facts
    assert describe("v", OnHost(stored(0.0))) == facts


def test_objects_of_libraries_in_memory_are_shared():
    import pandas as pd

    values = {
        "numpy": np.zeros(3),
        "jax": jnp.zeros(3),
        "pandas": pd.Series([1.0, 2.0]),
        "table": pd.DataFrame({"a": [1.0]}),
        "number": np.float32(2.0),
        "plain": 3,
    }
    assert not describe_traced(values).unknown
    assert not describe_all(values).unknown
