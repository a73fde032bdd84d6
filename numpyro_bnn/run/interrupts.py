"""Delays Ctrl-C and SIGTERM until the compiled steps under way are finished, so that no draw is lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def finish_before_interrupt(also_terminate: bool) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C take effect between compiled steps; a second one takes effect at once.

    :param also_terminate: whether to delay SIGTERM too, which batch systems send before they kill.
    """
    signals: list[int] = []
    watched = [signal.SIGINT] + [signal.SIGTERM] * also_terminate
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(signum: int, frame: FrameType | None) -> None:
        signals.append(signum)
        restore()

    # Python delivers signals to the main thread only.
    if threading.current_thread() is threading.main_thread():
        for number in watched:
            before[number] = signal.signal(number, ask)
    try:
        yield lambda: bool(signals)
    finally:
        restore()
