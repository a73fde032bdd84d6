"""Refuses to continue a stored run with another kernel, model, data or settings."""

import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from numpyro.util import find_stack_level

from numpyro_bnn.storage.changed_by_model import warn_of_left_out
from numpyro_bnn.storage.run_identity import Described, Facts, difference, differing, is_within

# The format before the present one has fewer facts: it lacks globals and modules that a model's code reaches.
BEFORE = "numpyro_bnn checkpoint 1"
# Settings that the shapes of stored states and draws depend on: a resumed run cannot differ in them.
_LENGTHS = ("num_warmup", "num_samples", "num_chains", "thinning", "checkpoint_every")


_FORM = ("sites", *_LENGTHS, "draws", "draws_dtype", "x64")


def check_accept(accept: object) -> Collection[str]:
    """Refuse an `accept` that is no list of paths, or that names a setting the stored files depend on.

    :param accept: the argument of `resume`.
    :raises TypeError: for anything but a list of names.
    :raises ValueError: for a setting in which a resumed run cannot differ.
    """
    if not isinstance(accept, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) and name for name in accept
    ):
        raise TypeError(
            "resume: accept must be a list of names that the message of a refused `resume` gives, such "
            f"as ['kernel.model.SCALE'], got {accept!r}."
        )
    fixed = [name for name in accept if is_within(name, _FORM)]
    if fixed:
        raise ValueError(
            f"resume: accept={fixed} cannot differ, because the stored states and draws have that form. "
            "Resume with what the run began with, or begin a new run in another folder."
        )
    return accept


def _known_to_both(before: Facts, now: Facts) -> tuple[Facts, Facts]:
    """Facts of a checkpoint in the older format, and of the run that continues it, that can be compared."""
    warnings.warn(
        "The checkpoint was written by an earlier version, which did not look at globals and modules "
        "that a model reaches. What it did look at is compared; see to the rest yourself.",
        stacklevel=find_stack_level(),
    )
    shared = [
        name
        for name in before
        if name in now
        and ".wrapped" not in name
        and not before[name].startswith("as ")
        and not now[name].startswith(("as ", "not compared"))
        and " #" not in now[name]
    ]
    return {n: before[n] for n in shared}, {n: now[n] for n in shared}


def refuse_other_run(
    directory: Path,
    content: dict[str, Any],
    describe: Callable[[Collection[str]], Described],
    accept: Collection[str] | None,
) -> None:
    """Refuse to continue the stored run with another kernel, model, data or settings.

    :param directory: the folder of the checkpoint.
    :param content: content of ``run.json``.
    :param describe: describes the run that would continue it, leaving out the paths it is given.
    :param accept: paths in which the two runs may differ; None for callers without such an argument.
    :raises ValueError: naming the facts that differ.
    """
    left_out = content.get("left_out", [])
    described = describe(left_out)
    new = {n: why for n, why in described.unknown.items() if not is_within(n, left_out)}
    warn_of_left_out(f"checkpoint={str(directory)!r}", new)
    skip = [*left_out, *new, *(accept or ())]
    before, now = content["facts"], described.facts
    if content["format"] == BEFORE:
        before, now = _known_to_both(before, now)
    before, now = ({k: v for k, v in x.items() if not is_within(k, skip)} for x in (before, now))
    differs = differing(before, now)
    if not differs:
        return
    free = [name for name in differs if not is_within(name, _FORM)]
    advice = "Resume with what the run began with, or begin a new run in another folder."
    if accept is not None and len(free) == len(differs):
        advice += f" If that changes no draw, go on with `resume(…, accept={free[:3]})`."
    raise ValueError(
        f"The checkpoint in {directory} is of another run, and would not continue to "
        f"the same draws. What differs: {difference(before, now)}. {advice}"
    )
