"""Every stored report and table of verdicts, made anew by one command.

The main job on the digits and on the diabetes table, as a user calls it; the run whose chains disagree
(`benchmarks.diagnostics.two_modes`); the six longer runs of `benchmarks.mixing.verdicts`; and the places
of README, pages and studies that show them, whole (`digits`) or up to the verdict (`digits_head`): what
stands there between `<!-- NAME: made by ... -->` and `<!-- end of NAME -->`. A job or a run that is stored
already is not run again; `--again` begins anew, `--pages` only writes pages from what is stored. A short
form writes no pages.

    python -m benchmarks.diagnostics.stored_reports [--again | --pages] [--quick]
"""

import csv
import os
import re
import subprocess
import sys
import tempfile

from benchmarks._shared.study import ROOT, Results, command, parser

VERDICTS = ROOT / "benchmarks" / "mixing" / "verdicts.py"
# What follows `python -m`: the main job, or an example.
JOBS = {
    "digits": ("numpyro_bnn",),
    "diabetes": ("numpyro_bnn", "diabetes"),
    "two_modes": ("benchmarks.diagnostics.two_modes",),
}
PAGES = (
    ROOT / "README.md",
    ROOT / "benchmarks" / "mixing" / "README.md",
    *sorted((ROOT / "notebooks" / "pages").rglob("*.md")),
)
COLUMNS = {
    "": "{data}, {sampler_name}",
    "draws × chains": "{draws} × 4",
    "seconds": "{seconds:.0f}",
    "verdict": "{verdict}",
    "times as many draws needed": "{needed:.1f}",
    "worst R-hat of predictions": "{worst R-hat, predictions:.3f}",
    "of weights": "{worst R-hat, weights:.3f}",
    "log score": "{log score:.4f}",
    "error": "{error:.4f}",
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


def rows(given):
    """What `benchmarks.mixing.verdicts` stored, run by run."""
    path = Results(str(VERDICTS), given).path("csv")
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        found = [{key: _number(v) for key, v in row.items()} for row in csv.DictReader(file)]
    return sorted(found, key=lambda row: (row["data"], row["sampler_name"]))


def _number(text):
    try:
        return float(text) if "." in text or text in ("nan", "inf") else int(text)
    except ValueError:
        return text


def table(found):
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    lines += [[form.format(**row) for form in COLUMNS.values()] for row in found]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("nan", "–")


def blocks(given):
    """What stands between the marks of each name, for all that is stored."""
    jobs = {job: stored(given, job) for job in JOBS}
    texts = {job: path.read_text(encoding="utf-8") for job, path in jobs.items() if path.is_file()}
    # Scores and verdict of a job, without the tables of R-hat and what follows them.
    texts |= {f"{job}_head": text.split("\n\n")[0] + "\n" for job, text in texts.items()}
    found = {name: f"```text\n{text}```" for name, text in texts.items()}
    every = rows(given)
    if every:
        found["verdicts"] = table(every)
    return found


def filled(page, found):
    """A page with the stored texts between their marks."""
    for name, text in found.items():
        mark = rf"(<!-- {name}: made by [^>]* -->\n).*?(\n<!-- end of {name} -->)"
        page = re.sub(
            mark, lambda match, text=text: f"{match[1]}{text}{match[2]}", page, flags=re.DOTALL
        )
    return page


def main(argv=None):
    options = parser(__doc__, toy=False)
    how = options.add_mutually_exclusive_group()
    how.add_argument("--again", action="store_true", help="run all anew, also what is stored")
    how.add_argument("--pages", action="store_true", help="run nothing, only write the pages")
    given = options.parse_args(argv)
    if given.again:
        made = [Results(str(VERDICTS), given).path(ending) for ending in ("csv", "md", "txt")]
        for path in (*made, *(stored(given, job) for job in JOBS)):
            path.unlink(missing_ok=True)
    if not given.pages:
        for job in JOBS:
            if not stored(given, job).is_file():
                run_job(given, job)
        run_verdicts(given)
    if given.size == "full" and given.output is None:
        for path in PAGES:
            page = path.read_text(encoding="utf-8")
            path.write_text(filled(page, blocks(given)), encoding="utf-8")


if __name__ == "__main__":
    main()
