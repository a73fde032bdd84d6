"""Whatever a model reads of an object counts, however the object stores or shows itself."""

import enum

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_bnn.compilation.program_identity import Program


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
def test_other_tables_are_other_programs(name):
    def text(value):
        return Program(lambda x: x * value.table).text(jnp.ones(3))

    # One after another: all of an enumeration are the same object.
    first, again, other = (text(MAKERS[name](np.full(3, x))) for x in (0.0, 0.0, 1.0))
    assert first == again != other
