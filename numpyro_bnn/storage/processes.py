"""Several processes at work on one run: the first one writes, and all know how it went.

What one process meets alone (a full disk, other data than the others have) must end the run in all
of them, because those left would wait for it in the next collective operation for ever.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")
# Characters of an error that a process tells the others, and bytes for them: JSON takes up to six each.
_TOLD = 1000
_ROOM = 8192


@dataclass(frozen=True)
class Processes:
    """The processes of a run; every one of them calls every method, in the same order.

    - **several** - whether there are more than this one
    """

    several: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return not self.several or jax.process_index() == 0

    def agreed(self, yes: bool) -> bool:
        """Whether any process says yes."""
        return yes if not self.several else any(self._told(bool(yes)))

    def first(self, work: Callable[[], T]) -> T:
        """Let the first process work.

        :param work: returns what JSON can hold.
        :return: what it returned there.
        :raises RuntimeError: in the other processes, if `work` raised an error in the first.
        """
        if not self.several:
            return work()
        found = self._done(work if self.is_first else lambda: None)
        return found[0]

    def together(self, work: Callable[[], T]) -> T:
        """Let every process work.

        :return: what `work` returned in this one.
        :raises RuntimeError: if `work` raised an error in another process, with what it says.
        """
        if not self.several:
            return work()
        kept: list[T] = []
        self._done(lambda: kept.append(work()))
        return kept[0]

    def _done(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` returned in each process."""
        value, failed = None, None
        try:
            value = work()
        except Exception as error:
            failed = error
        said = None if failed is None else f"{type(failed).__name__}: {failed}"[:_TOLD]
        told = self._told([said, value])
        if failed is not None:
            raise failed
        for process, (other, _) in enumerate(told):
            if other is not None:
                raise RuntimeError(f"MCMC: process {process} ended the run. It says: {other}")
        return [value for _, value in told]

    def _told(self, value: Any) -> list[Any]:
        """What each process tells, by its number."""
        from jax.experimental.multihost_utils import process_allgather

        text = np.zeros(_ROOM, np.uint8)
        content = json.dumps(value).encode()
        text[: len(content)] = np.frombuffer(content, np.uint8)
        return [json.loads(row.tobytes().rstrip(b"\0")) for row in process_allgather(text)]
