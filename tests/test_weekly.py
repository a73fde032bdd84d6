"""The table of weekly tests names tests that there are, and quicker ones that every change runs."""

import re

import pytest
from weekly import TESTS, WEEKLY


def test_each_weekly_test_has_another_one_that_every_change_runs(request):
    here = {item.nodeid.removeprefix("tests/") for item in request.session.items}
    rooms = {
        path.name for path in TESTS.iterdir() if path.is_dir() and list(path.glob("test_*.py"))
    }
    if not rooms <= {name.split("/")[0] for name in here}:
        pytest.skip("only a part of the tests was collected")
    unknown = [cover for cover in WEEKLY.values() if cover not in here]
    assert not unknown, "not among the tests of every change"


def test_each_weekly_test_is_there():
    for name in WEEKLY:
        file, test = name.split("::")
        source = (TESTS / file).read_text(encoding="utf-8")
        called = re.escape(test.split("[")[0]).replace(r"\*", r"\w*")
        assert re.search(rf"def {called}\(", source), name
