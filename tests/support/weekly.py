"""Which tests run once a week only: the table `weekly.txt`."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# The test of the week, and the quicker one that every change runs.
WEEKLY = dict(
    line.split(" <- ")
    for line in (TESTS / "weekly.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
_ANY = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in WEEKLY))


def is_weekly(name: str) -> bool:
    """Whether the test of this id, its path below ``tests`` and its name, is in the table."""
    return _ANY.fullmatch(name) is not None
