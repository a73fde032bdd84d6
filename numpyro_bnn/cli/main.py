"""The command line: ``python -m numpyro_bnn [compare] [digits | diabetes | FILE.csv …]``."""

import argparse
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text as RichText

# Columns of a table that the summary before the fit shows.
_MOST_COLUMNS = 7

_EXAMPLES = """\
examples:
  python -m numpyro_bnn                                  handwritten digits
  python -m numpyro_bnn diabetes --hidden 16 16          regression, two hidden layers
  python -m numpyro_bnn wine.csv --target quality        your own table
  python -m numpyro_bnn predict numpyro_bnn_report new.csv   rows whose target is not known
  python -m numpyro_bnn update numpyro_bnn_report new.csv    the fit given new rows too
  python -m numpyro_bnn compare diabetes                 how far is each method from the posterior?

Text columns become one input a level, dates (2026-01-31) days and places in year and week. Missing values
are an error that says where they are, unless --missing impute is given. A table shows what each column was
taken for.
Rows are named by their line in the file: the header is row 1, the first row of data row 2.
Ctrl-C after the warm-up keeps the draws so far and reports on them.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that says all that is wrong with its arguments at once."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.problems: list[str] = []

    def checked(
        self,
        flag: str,
        expected: str,
        kind: Callable[[str], Any],
        holds: Callable[[Any], bool],
        **settings: Any,
    ) -> None:
        """Add an option that takes values of one kind for which `holds` is true."""

        def value_of(text: str) -> Any:
            try:
                value = kind(text)
                wrong = not holds(value)
            except ValueError:
                value, wrong = None, True
            if wrong:
                self.problems.append(f"{flag} must be {expected}, got {text!r}")
            return value

        self.add_argument(flag, type=value_of, **settings)

    def whole(self, flag: str, low: int = 1, **settings: Any) -> None:
        """Add an option that takes whole numbers from `low` on that 32 bits hold."""
        expected = f"a whole number of at least {low}"
        self.checked(flag, expected, int, lambda n: low <= n < 2**32, metavar="N", **settings)

    def between(self, flag: str, high: float, **settings: Any) -> None:
        """Add an option that takes a number between 0 and `high`."""
        expected = "a positive number" if high == math.inf else f"between 0 and {high}"
        self.checked(flag, expected, float, lambda value: 0 < value < high, **settings)

    def choice(self, flag: str, words: str, **settings: Any) -> None:
        """Add an option that takes one of some words."""
        shown, allowed = words.replace(" ", ", "), words.split()
        settings["metavar"] = f"{{{shown}}}"
        self.checked(flag, f"one of {shown}", str, allowed.__contains__, **settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The values of the arguments; ends the process where any is wrong."""
        parsed, unknown = self.parse_known_args(args, namespace)
        for before, text in zip(["", *unknown], unknown):
            if not text.startswith("-"):
                # What follows an unknown option is its value.
                self.problems += [] if before[:1] == "-" else [f"{text!r} is one argument too many"]
                continue
            close = get_close_matches(text.partition("=")[0], self._option_string_actions, 1)
            meant = f", did you mean {close[0]}?" if close else ""
            self.problems.append(f"there is no option {text!r}{meant}")
        if self.problems:
            self.error("")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, in a line each, and end the process."""
        said = "\n".join(f"error: {problem}" for problem in [*self.problems, message] if problem)
        self.exit(2, f"{said}\n{self.prog} --help lists all options.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m numpyro_bnn",
        description="Fit a Bayesian neural network to a table, judge its convergence, and compare it "
        "with plain training.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "data",
        nargs="?",
        default="digits",
        help="digits (default), diabetes, or a CSV with a header",
    )
    add("--target", metavar="COLUMN", help="column of the CSV to predict")
    parser.choice(
        "--task", "classification regression", help="inferred from the target where not given"
    )
    parser.whole(
        "--hidden", nargs="+", default=[16], help="units of each layer; default: one of 16"
    )
    parser.choice(
        "--prior",
        "hierarchical fan-in normal student-t laplace horseshoe",
        default="hierarchical",
        help="default: hierarchical (a Gamma precision for each parameter array)",
    )
    parser.choice(
        "--kernel",
        "nuts hmc mams ggmc mclmc baoab tempering",  # `KERNELS` of `workflow/fit.py`
        help="default: mclmc, and nuts after `compare`; mclmc and baoab are not corrected for their "
        "step size, the others are exact; tempering crosses between modes",
    )
    parser.whole("--chains", dest="num_chains", default=4, help="default: 4")
    parser.whole("--warmup", dest="num_warmup", default=200, help="draws of warm-up; default: 200")
    parser.whole(
        "--samples",
        dest="num_samples",
        default=300,
        help="draws a chain; of a fit those at the first look, which more follow; default: 300",
    )
    parser.between(
        "--minutes",
        math.inf,
        dest="max_minutes",
        default=3.0,
        metavar="M",
        help="a fit ends when predictions are known within tolerance, or after so many minutes of "
        "compiling, optimising and sampling; default: 3. With little time a run is shorter, and with hardly "
        "any there are no more than the scores of the optimised networks; the report is written afterwards",
    )
    parser.whole(
        "--max-tree-depth",
        help="of nuts, hmc, mams and ggmc: at most 2^N - 1 gradients a draw; default: 8",
    )
    add(
        "--drop",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns of the CSV that are no inputs; the first names the rows if all its texts differ",
    )
    add(
        "--text",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="columns of the CSV that hold names of things, though they look like numbers or dates",
    )
    _add_separator(parser)
    parser.choice(
        "--missing",
        "refuse impute",
        default="refuse",
        help="impute: medians of the training rows, and an input that says where a value is missing; "
        "default: refuse",
    )
    parser.between(
        "--calibration",
        1,
        metavar="F",
        help="share of the training rows to hold out, for intervals or sets in columns of their own which "
        "hold 90 %% of new rows, also where the run is short",
    )
    parser.between("--test-fraction", 1, default=0.25, metavar="F", help="default: 0.25")
    parser.whole("--seed", 0, default=0, help="default: 0")
    add(
        "--output",
        type=Path,
        default=Path("numpyro_bnn_report"),
        metavar="FOLDER",
        help="where report.html, predictions.csv and posterior.nc go; default: numpyro_bnn_report",
    )
    add(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="after `compare`: 'plain training', map, 'deep ensemble', 'mean field', laplace, swag, sgld, "
        "baoab; default: all of them",
    )
    add(
        "--quiet",
        action="store_true",
        help="no progress bars; there are none outside of a terminal",
    )
    return parser


def _add_separator(parser: _Parser) -> None:
    named = {"tab": "\t", "\\t": "\t", "semicolon": ";", "comma": ",", "space": " "}

    parser.checked(
        "--sep",
        "one character, or 'tab'",
        lambda text: named.get(text, text),
        lambda text: len(text) == 1 and text not in '"\r\n',
        metavar="CHARACTER",
        help="between fields; default: the comma, semicolon, tab or bar that is most frequent in the header",
    )


# Of the commands that take new rows: what they do, their default --output, and what it is.
_NEW_ROWS = {
    "predict": (
        "Predict new rows with a network that `python -m numpyro_bnn FILE.csv` fitted.",
        "NAME_predictions.csv beside NAME.csv",
        "FILE",
    ),
    "update": (
        "Give new rows and their target to a network that `python -m numpyro_bnn FILE.csv` fitted, without "
        "a new fit. The old fit stays as it is; the new one is a folder for `predict` and the next `update`.",
        "RUN_updated beside RUN; never a folder that is there",
        "FOLDER",
    ),
}


def _new_rows_parser(command: str) -> argparse.ArgumentParser:
    description, output, kind = _NEW_ROWS[command]
    parser = _Parser(prog=f"python -m numpyro_bnn {command}", description=description)
    add = parser.add_argument
    add("run", type=Path, help="the folder that the fit wrote (its --output)")
    add("csv", type=Path, help="a CSV with the columns that were fitted; others are not read")
    _add_separator(parser)
    parser.choice(
        "--unknown",
        "error skip",
        default="error",
        help="skip: leave out rows with texts that no fitted row had, or with values that are missing or of "
        "another kind; default: error",
    )
    add("--output", type=Path, metavar=kind, help=f"default: {output}")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; status 0, 2 (bad input or output), 130 (interrupted)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    commands = {"compare": _compare, "predict": _predict, "update": _update}
    name = arguments[0] if arguments else ""
    command = commands.get(name, _fit)
    parser = _new_rows_parser(name) if name in _NEW_ROWS else _parser()
    parsed = parser.parse_args(arguments[command is not _fit :])
    # Names of files and columns are no markup.
    plain = partial(Console, markup=False, emoji=False, highlight=False)
    errors = plain(stderr=True)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        """A warning without its place in the source."""
        errors.print(f"warning: {message}", style="yellow", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            return command(parsed, plain())
        except (ValueError, OSError) as error:
            errors.print(f"error: {error}", style="red")
            return 2
        except KeyboardInterrupt:
            errors.print("interrupted before there were any draws", style="red")
            return 130


def _require_file(path: Path) -> None:
    """Refuse a file that is not there, before anything is loaded."""
    if not path.is_file():
        near = [one.name for one in path.parent.glob("*.csv")] + ["digits", "diabetes"]
        close = get_close_matches(path.name, near, 1, 0.75)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(
            f"There is no file {path}.{meant} Give `digits`, `diabetes` or the path of a CSV."
        )


def _table(parsed: argparse.Namespace, console: Console) -> Any:
    """The table that the arguments name; says what its columns were taken for."""
    is_file = parsed.data not in ("digits", "diabetes")
    if is_file:
        _require_file(Path(parsed.data))
    from numpyro_bnn.cli import tables

    if is_file:
        table = tables.read_table(
            parsed.data,
            parsed.target,
            parsed.task,
            drop=parsed.drop,
            text=parsed.text,
            separator=parsed.sep,
            impute=parsed.missing == "impute",
        )
    elif parsed.target or parsed.task or parsed.drop or parsed.text:
        raise ValueError(
            f"--target and --task belong to a CSV file, not to '{parsed.data}', and so do --drop and --text."
        )
    else:
        table = tables.built_in(parsed.data)
    console.print(
        f"{table.name}: {table.task} of '{table.target}', {len(table.y)} rows, "
        f"{table.x.shape[1]} inputs"
    )
    if table.summary:
        _show_columns(table.summary, console)
    return table


def _show_columns(summary: tuple[tuple[str, ...], ...], console: Console) -> None:
    grid = RichTable("column", "taken as", "missing", "values", box=None, pad_edge=False)
    for row in summary[:_MOST_COLUMNS]:
        # Names and values are cut where the terminal is narrow, and not what stands between them.
        grid.add_row(*(RichText(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    grid.columns[2].justify = "right"
    grid.columns[1].no_wrap = grid.columns[2].no_wrap = True
    console.print(grid)
    more = Counter(kind for _, kind, _, _ in summary[_MOST_COLUMNS:])
    if more:
        console.print("more: " + ", ".join(f"{count} of {kind}" for kind, count in more.items()))


def _shows_progress(parsed: argparse.Namespace) -> bool:
    return not parsed.quiet and sys.stderr.isatty()


def _options(parsed: argparse.Namespace) -> Any:
    from numpyro_bnn.cli import job

    depth = parsed.max_tree_depth
    settings = {} if depth is None else {"max_tree_depth": depth}
    given = {name: value for name, value in vars(parsed).items() if name in job.Options._fields}
    return job.Options(**{**given, "hidden": tuple(parsed.hidden), "settings": settings})


def _compare(parsed: argparse.Namespace, console: Console) -> int:
    if parsed.calibration is not None:
        raise ValueError("--calibration belongs to a fit, not to `compare`. Leave it out.")
    table = _table(parsed, console)
    from numpyro_bnn.cli import job

    progress = _shows_progress(parsed)
    comparison = job.compare_methods(table, _options(parsed), parsed.methods, progress)
    console.print(str(comparison), soft_wrap=True)
    return 0


def _fit(parsed: argparse.Namespace, console: Console) -> int:
    if parsed.methods:
        raise ValueError("--methods belongs to `compare`: python -m numpyro_bnn compare …")
    table = _table(parsed, console)
    from numpyro_bnn._text import wrapped
    from numpyro_bnn.cli import job, job_report

    job_report.require_folder(parsed.output)

    def show(rows: list[Any]) -> None:
        told = ", ".join(f"{row.method} {row.by_row.mean():.4f}" for row in rows)
        console.print(f"Log scores on the test rows, before sampling: {told}", soft_wrap=True)

    progress = _shows_progress(parsed)
    outcome = job.run(table, _options(parsed), progress_bar=progress, on_scores=show)
    scores = RichTable(title=f"Scores on {len(outcome.test)} test rows", box=None, pad_edge=False)
    for i, heading in enumerate(job_report.headings(table.task)):
        scores.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in outcome.scores:
        scores.add_row(*job_report.cells(row))
    console.print(scores)
    said = outcome.warnings
    lines = [f"Beware{f' (1 of {len(said)})' if len(said) > 1 else ''}: {said[0]}"] if said else []
    if outcome.evaluation is not None:
        lines.append(f"Coverage of 90 % on the test rows: {outcome.evaluation}")
    # The last line of a report is for those who hold it in Python.
    report = str(outcome.fitted.report).rsplit("\n", 1)[0]
    lines += [*wrapped(str(outcome.mcmc.stopped), most=4), report]
    console.print("\n".join(lines), soft_wrap=True)
    page = job_report.write(outcome, parsed.output)
    console.print(f"All of it, with pictures: {page}", soft_wrap=True)
    return 0


def _new_fields(parsed: argparse.Namespace, output: Path) -> Any:
    """The fields of new rows, after checks that take no time."""
    if output.resolve() == parsed.csv.resolve():
        raise ValueError(f"--output: {output} is the file of the new rows. Give another name.")
    if not parsed.run.is_dir():
        raise ValueError(f"{parsed.run} holds no fit. Give the folder that the fit wrote.")
    _require_file(parsed.csv)
    from numpyro_bnn.cli import tables

    fields = tables.read_fields(parsed.csv, parsed.sep)
    from numpyro_bnn.storage.folders import require_writable

    require_writable(output.parent, "--output: the folder {folder} cannot be written ({why}).")
    return fields


def _predict(parsed: argparse.Namespace, console: Console) -> int:
    output = parsed.output or parsed.csv.with_name(f"{parsed.csv.stem}_predictions.csv")
    fields = _new_fields(parsed, output)
    from numpyro_bnn.cli import saved_fit, tables

    fit, skip = saved_fit.read(parsed.run), parsed.unknown == "skip"
    frame, left = saved_fit.predict_fields(fit, parsed.csv, fields, skip)
    frame.to_csv(output, index=False)
    for said, rows in left.items():
        console.print(f"Left out rows {tables.listed(rows, 10)}: {said}", soft_wrap=True)
    console.print(f"Rows predicted: {len(frame)}, in {output}", soft_wrap=True)
    return 0


def _update(parsed: argparse.Namespace, console: Console) -> int:
    run = parsed.run.resolve()
    output = parsed.output or run.with_name(f"{run.name}_updated")
    if output.exists():
        raise FileExistsError(
            f"--output: {output} is there already, and an update replaces nothing. Give a free name."
        )
    fields = _new_fields(parsed, output)
    from numpyro_bnn.cli import saved_fit

    skip = parsed.unknown == "skip"
    said = saved_fit.update_by_fields(parsed.run, parsed.csv, fields, skip, output)
    for line in (*said, f"The updated fit, for `predict` and the next `update`: {output}"):
        console.print(line, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
