"""What a page says of a study, and how it follows from the rows."""

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Claim(NamedTuple):
    """What pages say of the stored rows of a study.

    - **study** - whose rows they are, ``theme/name``
    - **pages** - texts that hold all that is told, below the root of the checkout
    - **tell** - rows to the lines or parts of sentences that they make
    - **row**, **column** - a number that it is told of, which the test changes
    """

    study: str
    pages: tuple[str, ...]
    tell: Callable[[list], Iterable[str]]
    row: dict
    column: str
