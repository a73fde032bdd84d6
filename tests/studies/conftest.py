"""Studies are modules of the folder ``benchmarks`` beside the tests: its root is put on the path."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if (ROOT / "benchmarks").is_dir():
    sys.path.insert(0, str(ROOT))
else:
    # A user who has the tests alone.
    collect_ignore_glob = ["test_*.py"]
