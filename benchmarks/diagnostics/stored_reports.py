"""Stored reports and the table of verdicts, made anew by one command; what is stored is not run again.

python -m benchmarks.diagnostics.stored_reports [--again] [--quick]
"""

import os
import re
import subprocess
import sys
import tempfile

from benchmarks._shared import pages
from benchmarks._shared.study import ROOT, Results, command, parser

VERDICTS = ROOT / "benchmarks" / "mixing" / "verdicts.py"
# What follows `python -m`: the main job, or an example.
JOBS = {
    "digits": ("numpyro_bnn",),
    "diabetes": ("numpyro_bnn", "diabetes"),
    "two_modes": ("benchmarks.diagnostics.two_modes",),
}


def stored(given, job):
    """The file of a job: `results/stored_reports_JOB.txt`."""
    return Results(__file__, given, job).path("txt")


def run_job(given, job):
    """Run a job, and keep the tables and reports that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quick"] if given.size == "quick" else []
        if JOBS[job][0] == "numpyro_bnn":
            options = ["--output", folder] + (["--samples", "30"] if options else [])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", *JOBS[job], *options],
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "80"},
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            check=True,
        )
    stored(given, job).write_text(printed(done.stdout), encoding="utf-8")


def run_verdicts(given):
    """The longer runs, in a process of its own: devices are fixed when JAX starts."""
    short = ["--quick"] if given.size == "quick" else []
    elsewhere = ["--output", given.output] if given.output else []
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    asked = command(str(VERDICTS), *short, *elsewhere)
    subprocess.run(asked, cwd=ROOT, env=os.environ | flags, check=True)


def printed(output):
    """The last table of scores and the report, without what is printed before sampling and names of files."""
    lines = output.splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(r"\s*(Scores on \d|Verdict)", line))
    last = next((i for i, line in enumerate(lines) if line.startswith("All of it")), len(lines))
    return "\n".join(line.rstrip() for line in lines[first:last]).strip("\n") + "\n"


def main(argv=None):
    options = parser(__doc__, toy=False)
    options.add_argument("--again", action="store_true", help="run all anew, also what is stored")
    given = options.parse_args(argv)
    if given.again:
        made = [Results(str(VERDICTS), given).path(ending) for ending in ("csv", "md", "txt")]
        for path in (*made, *(stored(given, job) for job in JOBS)):
            path.unlink(missing_ok=True)
    if not given.report:
        for job in JOBS:
            if not stored(given, job).is_file():
                run_job(given, job)
        run_verdicts(given)
    if given.size == "full" and given.output is None:
        pages.main()


if __name__ == "__main__":
    main()
