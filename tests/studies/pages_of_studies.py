"""Stored rows of the studies, and the pages that tell of them, for tests that hold both together."""

from benchmarks._shared.study import ROOT, read_rows

FOLDER = ROOT / "benchmarks"
NEAL, EVIDENCE = "benchmarks/neal/README.md", "notebooks/pages/evidence.md"
MIXING, GUIDE = "benchmarks/mixing/README.md", "notebooks/pages/samplers_and_priors.md"
PREDICTIONS, PRIORS = "benchmarks/predictions/README.md", "benchmarks/priors/README.md"
SPEED, DIAGNOSTICS = "benchmarks/speed/README.md", "benchmarks/diagnostics/README.md"


def rows_of(name, **wanted):
    """Stored rows of a study, ``theme/name``, that have these values."""
    theme, stem = name.split("/")
    rows = read_rows(FOLDER / theme / "results" / f"{stem}.csv")
    return [row for row in rows if all(row[k] == v for k, v in wanted.items())]


def plain(text):
    """A text without its line breaks."""
    return " ".join(text.split())


def page(name):
    """The text of a page below the root of the checkout, without its line breaks."""
    return plain((ROOT / name).read_text())


def number(value, digits=2):
    return f"{value:.{digits}f}".replace("-", "−")


def with_error(pair, digits=2):
    return " ± ".join(number(value, digits) for value in pair)


def line(*cells):
    """A line of a table, empty cells as the pages have them."""
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")
