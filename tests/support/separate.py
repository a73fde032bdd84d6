"""Compiled programs that are shared with no other test."""

from collections import OrderedDict
from contextlib import contextmanager

from numpyro_bnn.compilation.program_identity import _programs


@contextmanager
def separate_programs():
    """Share no program with what runs outside of this context, before, during or after it."""
    with _programs.lock:
        outside = OrderedDict(_programs)
        _programs.clear()
    try:
        yield
    finally:
        with _programs.lock:
            _programs.clear()
            _programs.update(outside)
