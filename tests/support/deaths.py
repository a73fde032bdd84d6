"""Runs that "die" between two chunks, in this process: nothing is written after that."""

from contextlib import contextmanager

import pytest


class Dies(Exception):
    pass


@contextmanager
def dies_after(chunks):
    """A run inside ends when that many chunks are on disk."""
    from numpyro_bnn.storage.checkpoints import Checkpoint

    save, calls = Checkpoint.save, []

    def counted(self, states, progress):
        if len(calls) == chunks:
            raise Dies("before the next chunk")
        calls.append(progress)
        save(self, states, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "save", counted)
        with pytest.raises(Dies, match="before the next chunk"):
            yield
