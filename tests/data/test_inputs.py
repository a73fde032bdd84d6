"""Rows in the containers of this field's libraries: equal to float64 rows at each door, or refused by us."""

import doors
import pytest
from containers import CONTAINERS
from documents import table_on


def need(name):
    if not doors.installed(name):
        pytest.skip(f"{name} needs {', '.join(CONTAINERS[name].needs)}")


@pytest.mark.parametrize("name", CONTAINERS)
def test_rows_arrive_as_those_of_float64_or_are_refused(name, tmp_path):
    need(name)
    found = {door: doors.cell(name, door, tmp_path) for door in doors.CONVERSIONS}
    assert found == table_on(doors.PAGE)[name]


@pytest.mark.parametrize("door", doors.DOORS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_the_whole_way(name, door, tmp_path):
    need(name)
    assert doors.cell(name, door, tmp_path) in ("equal", "refused", "–")
