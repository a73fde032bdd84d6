"""A run on several processes: the first one writes files, and an error in one ends the run in all.

An error that only one process meets (a full disk, data that differ from the others') must reach all of
them, because the others would wait for it for ever in the next collective operation.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")
# Characters of an error message that a process sends to the others, and bytes of the message as a whole:
# JSON takes up to six bytes a character.
_MOST_CHARACTERS = 1000
_MESSAGE_BYTES = 8192


@dataclass(frozen=True)
class Processes:
    """The processes of a run; every one of them calls every method, in the same order."""

    several: bool = False  # Whether there are more than this one

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return not self.several or jax.process_index() == 0

    def agreed(self, yes: bool) -> bool:
        """Whether `yes` is true in at least one process."""
        return yes if not self.several else any(self._gathered(bool(yes)))

    def first(self, work: Callable[[], T]) -> T:
        """Run a function in the first process only, and give its result to all."""
        if not self.several:
            return work()
        return self._worked(work if self.is_first else lambda: None)[0]

    def together(self, work: Callable[[], T]) -> T:
        """Run a function in every process, and raise in all if it fails in one."""
        if not self.several:
            return work()
        kept: list[T] = []
        self._worked(lambda: kept.append(work()))
        return kept[0]

    def _worked(self, work: Callable[[], Any]) -> list[Any]:
        """Run `work`, exchange errors, and return its value in each process, by process number."""
        value = failed = message = None
        try:
            value = work()
        except Exception as error:
            failed, message = error, f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]
        answers = self._gathered([message, value])
        if failed is not None:
            raise failed
        for process, (other, _) in enumerate(answers):
            if other is not None:
                raise RuntimeError(f"MCMC: process {process} ended the run. It says: {other}")
        return [value for _, value in answers]

    def _gathered(self, value: Any) -> list[Any]:
        """The values that the processes pass in, by process number; sent to all as JSON."""
        from jax.experimental.multihost_utils import process_allgather

        text = np.zeros(_MESSAGE_BYTES, np.uint8)
        content = json.dumps(value).encode()
        text[: len(content)] = np.frombuffer(content, np.uint8)
        return [json.loads(row.tobytes().rstrip(b"\0")) for row in process_allgather(text)]
