"""Calls a study with the package of another checkout, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks._shared.study import ROOT


def in_version(folder: str | Path, source: str, call: str, **variables: str | None) -> Any:
    """What a call of a function of a study returns, with the package of a checkout; as JSON has it.

    The study is ours, and what it imports of ``benchmarks`` is that of the checkout, which may be older:
    a study imports this file where it needs it.

    :param folder: the checkout.
    :param source: ``__file__`` of the study.
    :param call: the call, such as ``"measure(3)"``.
    :param variables: of the environment; None for one that is not to be set.
    """
    own = Path(source).resolve()
    paths = os.pathsep.join([str(folder), str(ROOT), str(own.parent)])
    environment = os.environ | {"PYTHONPATH": paths} | variables
    done = subprocess.run(
        # Python looks for modules in its working folder first.
        [sys.executable, "-c", f"import json, {own.stem} as s; print(json.dumps(s.{call}))"],
        env={name: value for name, value in environment.items() if value is not None},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
