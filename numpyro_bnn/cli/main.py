"""The command line: ``python -m numpyro_bnn [compare] [digits | diabetes | FILE.csv …]``."""

import argparse
import math
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

_EXAMPLES = """\
examples:
  python -m numpyro_bnn                                  handwritten digits
  python -m numpyro_bnn diabetes --hidden 16 16          regression, two hidden layers
  python -m numpyro_bnn wine.csv --target quality        your own table
  python -m numpyro_bnn predict numpyro_bnn_report new.csv   rows whose target is not known
  python -m numpyro_bnn compare diabetes                 how far is each method from the posterior?
  python -m numpyro_bnn grade rdata draws.npz            draws of any sampler against a reference posterior

Text columns become one input a level, dates (2026-01-31) days and places in year and week. Missing values
are an error that says where they are, unless --missing impute is given.
Rows are named by their line in the file: the header is row 1, the first row of data row 2.
Ctrl-C after the warm-up keeps the draws so far and reports on them.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
    add(
        "--task",
        choices=("classification", "regression"),
        help="inferred from the target where not given",
    )
    add("--hidden", type=_positive, nargs="+", default=[16], metavar="UNITS", help="default: 16")
    add(
        "--prior",
        choices=("hierarchical", "fan-in", "normal", "student-t", "laplace", "horseshoe"),
        default="hierarchical",
        help="default: hierarchical (a Gamma precision for each parameter array)",
    )
    add(
        "--kernel",
        choices=("nuts", "hmc", "mams", "ggmc", "mclmc", "baoab"),
        help="default: mclmc, and nuts after `compare`; mclmc and baoab are not corrected for their "
        "step size, the others are exact",
    )
    add("--chains", type=_positive, default=4, metavar="N", help="default: 4")
    add("--warmup", type=_positive, default=200, metavar="N", help="draws of warm-up; default: 200")
    add(
        "--samples",
        type=_positive,
        default=300,
        metavar="N",
        help="draws a chain; of a fit those at the first look, which more follow; default: 300",
    )
    add(
        "--minutes",
        type=_minutes,
        default=3.0,
        metavar="M",
        help="a fit ends when predictions are known within tolerance, or after so many minutes of "
        "optimising, compiling, warm-up and sampling; default: 3. What comes before the first draw, and "
        "half of --samples, are never cut short, so that a fit with a limit below a minute may take one "
        "or two minutes more; the report is written afterwards",
    )
    add(
        "--max-tree-depth",
        type=_positive,
        metavar="N",
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
        "--sep",
        type=_separator,
        default=",",
        metavar="CHARACTER",
        help="between fields; default: a comma",
    )
    add(
        "--missing",
        choices=("refuse", "impute"),
        default="refuse",
        help="impute: medians of the training rows, and an input that says where a value is missing; "
        "default: refuse",
    )
    add(
        "--calibration",
        type=_fraction,
        metavar="F",
        help="share of the rows to hold out, so that 90 %% intervals hold 90 %% also where the run is short",
    )
    add("--test-fraction", type=_fraction, default=0.25, metavar="F", help="default: 0.25")
    add("--seed", type=int, default=0, metavar="N", help="default: 0")
    add(
        "--output",
        type=Path,
        default=Path("numpyro_bnn_report"),
        metavar="FOLDER",
        help="where report.html, report.md, predictions.csv and posterior.nc go; default: numpyro_bnn_report",
    )
    add(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="after `compare`: 'plain training', map, 'deep ensemble', 'mean field', laplace, swag, sgld, "
        "baoab; default: all of them",
    )
    add("--quiet", action="store_true", help="no progress bars")
    return parser


def _predict_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m numpyro_bnn predict",
        description="Predict new rows with a network that `python -m numpyro_bnn FILE.csv` fitted.",
    )
    add = parser.add_argument
    add("run", type=Path, help="the folder that the fit wrote (its --output)")
    add("csv", type=Path, help="a CSV with the columns that were fitted; others are not read")
    add(
        "--sep",
        type=_separator,
        default=",",
        metavar="CHARACTER",
        help="between fields; default: a comma",
    )
    add("--output", type=Path, metavar="FILE", help="default: NAME_predictions.csv beside NAME.csv")
    return parser


def _grade_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m numpyro_bnn grade",
        description="Grade draws of any sampler against a reference posterior that ships with the package. "
        "Exit status 0 where no difference is seen, 1 where they differ by more than chance allows or where "
        "it cannot be told, as chains do not agree or draws are too few.",
    )
    parser.add_argument("reference", help="its name, such as rdata; another name lists them all")
    parser.add_argument(
        "draws",
        type=Path,
        help="an .npz file with the array 'functions' (chain, draw, row, ...) at the reference's test rows, "
        "and log scales by name (chain, draw)",
    )
    return parser


def _separator(text: str) -> str:
    named = {"tab": "\t", "\\t": "\t", "semicolon": ";", "comma": ",", "space": " "}
    value = named.get(text, text)
    if len(value) != 1 or value in '"\r\n':
        raise argparse.ArgumentTypeError(f"must be one character, or 'tab', got {text!r}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, got {text}")
    return value


def _use_all_cores() -> None:
    """One JAX device a core, so that chains run side by side; must come before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        count = os.cpu_count() or 1
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}".strip()


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    :param argv: arguments; those of the process where None.
    :return: exit status: 0, 1 from `grade` for draws that differ or of which it cannot be told, 2 for bad
        input or output that cannot be written, 130 when interrupted before there are draws.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    commands = {"compare": _compare, "predict": _predict, "grade": _grade}
    command = commands.get(arguments[0] if arguments else "", _fit)
    parser = {_predict: _predict_parser, _grade: _grade_parser}.get(command, _parser)()
    parsed = parser.parse_args(arguments[command is not _fit :])
    _use_all_cores()
    try:
        return command(parsed, Console())
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted before there were any draws", style="red")
        return 130


def _table(parsed: argparse.Namespace, console: Console) -> Any:
    """The table that the arguments name."""
    from numpyro_bnn.cli import tables

    built_in = {"digits": tables.digits, "diabetes": tables.diabetes}.get(parsed.data)
    if built_in is None:
        table = tables.read_csv(
            parsed.data,
            parsed.target,
            parsed.task,
            drop=parsed.drop,
            separator=parsed.sep,
            impute=parsed.missing == "impute",
        )
    elif parsed.target or parsed.task or parsed.drop:
        raise ValueError(
            f"--target and --task belong to a CSV file, not to '{parsed.data}', and so does --drop."
        )
    else:
        table = built_in()
    console.print(
        f"[bold]{table.name}[/bold]: {table.task} of '{table.target}', {len(table.y)} rows, "
        f"{table.x.shape[1]} inputs"
    )
    return table


def _options(parsed: argparse.Namespace) -> Any:
    from numpyro_bnn.cli import job

    depth = parsed.max_tree_depth
    return job.Options(
        hidden=tuple(parsed.hidden),
        prior=parsed.prior,
        kernel=parsed.kernel,
        num_chains=parsed.chains,
        num_warmup=parsed.warmup,
        num_samples=parsed.samples,
        max_minutes=parsed.minutes,
        settings={} if depth is None else {"max_tree_depth": depth},
        test_fraction=parsed.test_fraction,
        calibration=parsed.calibration,
        seed=parsed.seed,
    )


def _compare(parsed: argparse.Namespace, console: Console) -> int:
    from numpyro_bnn.cli import job

    if parsed.calibration is not None:
        raise ValueError("--calibration belongs to a fit, not to `compare`. Leave it out.")
    table = _table(parsed, console)
    comparison = job.compare_methods(table, _options(parsed), parsed.methods, not parsed.quiet)
    console.print(str(comparison), markup=False, highlight=False, soft_wrap=True)
    return 0


def _fit(parsed: argparse.Namespace, console: Console) -> int:
    from numpyro_bnn.cli import job, job_report, job_tables

    table = _table(parsed, console)
    if parsed.methods:
        raise ValueError("--methods belongs to `compare`: python -m numpyro_bnn compare …")
    job_report.require_folder(parsed.output)

    def show(scores: list[Any], title: str) -> None:
        rich_table = RichTable(title=title)
        for i, heading in enumerate(job_tables.headings(table.task)):
            rich_table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=i == 0)
        for row in scores:
            rich_table.add_row(*job_tables.cells(row))
        console.print(rich_table)

    outcome = job.run(
        table,
        _options(parsed),
        progress_bar=not parsed.quiet,
        on_scores=lambda rows: show(rows, "Scores on the test rows, before sampling"),
    )
    show(outcome.scores, f"Scores on {len(outcome.test)} test rows")
    for said in outcome.warnings:
        console.print(f"Beware: {said}", style="yellow", markup=False, highlight=False)
    if outcome.evaluation is not None:
        console.print(
            f"Coverage of 90 % on the test rows:\n{outcome.evaluation}",
            markup=False,
            highlight=False,
        )
    console.print(str(outcome.mcmc.stopped), markup=False, highlight=False, soft_wrap=True)
    console.print(str(outcome.report), markup=False, highlight=False, soft_wrap=True)
    try:
        page, *files = job_report.write(outcome, parsed.output)
    except OSError as error:
        raise OSError(f"the report could not be written: {error}") from error
    names = ", ".join(str(file) for file in files)
    console.print(f"Written: {names}", markup=False, soft_wrap=True)
    console.print(f"Open {page} in a browser.", markup=False, soft_wrap=True)
    return 0


def _predict(parsed: argparse.Namespace, console: Console) -> int:
    from numpyro_bnn.cli import saved_fit
    from numpyro_bnn.storage.folders import require_writable

    output = parsed.output or parsed.csv.with_name(f"{parsed.csv.stem}_predictions.csv")
    if output.resolve() == parsed.csv.resolve():
        raise ValueError(f"--output: {output} is the file of the new rows. Give another name.")
    require_writable(output.parent, "--output: the folder {folder} cannot be written ({why}).")
    frame = saved_fit.predict_csv(saved_fit.read(parsed.run), parsed.csv, parsed.sep)
    frame.to_csv(output, index=False)
    console.print(f"{len(frame)} rows predicted: {output}", markup=False, soft_wrap=True)
    return 0


def _grade(parsed: argparse.Namespace, console: Console) -> int:
    import numpy as np

    from numpyro_bnn import references

    reference = references.load(parsed.reference)
    with np.load(parsed.draws) as file:
        draws = {name: file[name] for name in file.files}
    if "functions" not in draws:
        raise ValueError(
            f"{parsed.draws} holds {sorted(draws)}, expected an array 'functions' (chain, draw, row, ...)."
        )
    grade = references.grade(draws, reference)
    console.print(f"{reference}\n{grade}", markup=False, highlight=False, soft_wrap=True)
    return 0 if grade.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
