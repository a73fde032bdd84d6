"""The command line: ``python -m numpyro_bnn [compare] [digits | diabetes | FILE.csv …]``."""

import argparse
import math
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

_EXAMPLES = """\
examples:
  python -m numpyro_bnn                                  handwritten digits
  python -m numpyro_bnn diabetes --hidden 16 16          regression, two hidden layers
  python -m numpyro_bnn wine.csv --target quality        your own table
  python -m numpyro_bnn compare diabetes                 how far is each method from the posterior?

Text columns become one column a level. Missing values are an error that says where they are.
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
        help="a fit ends when predictions are known within tolerance, or after so many; default: 3",
    )
    add(
        "--max-tree-depth",
        type=_positive,
        metavar="N",
        help="of nuts, hmc, mams and ggmc: at most 2^N - 1 gradients a draw; default: 8",
    )
    add("--test-fraction", type=_fraction, default=0.25, metavar="F", help="default: 0.25")
    add("--seed", type=int, default=0, metavar="N", help="default: 0")
    add(
        "--output",
        type=Path,
        default=Path("numpyro_bnn_report"),
        metavar="FOLDER",
        help="where posterior.nc, report.md and predictions.csv go; default: numpyro_bnn_report",
    )
    add(
        "--methods",
        nargs="+",
        metavar="NAME",
        help="after `compare`: map, 'deep ensemble', 'mean field', laplace, swag, sgld, baoab; "
        "default: all of them",
    )
    add("--quiet", action="store_true", help="no progress bars")
    return parser


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
    :return: exit status: 0, 2 for bad input or output that cannot be written, 130 when
        interrupted before there are draws.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    comparing = given[:1] == ["compare"]
    parsed = _parser().parse_args(given[comparing:])
    console = Console()
    _use_all_cores()
    from numpyro_bnn.cli import job, job_report, tables

    try:
        built_in = {"digits": tables.digits, "diabetes": tables.diabetes}.get(parsed.data)
        if built_in is None:
            table = tables.read_csv(parsed.data, parsed.target, parsed.task)
        elif parsed.target or parsed.task:
            raise ValueError(f"--target and --task belong to a CSV file, not to '{parsed.data}'.")
        else:
            table = built_in()
        console.print(
            f"[bold]{table.name}[/bold]: {table.task} of '{table.target}', {len(table.y)} rows, "
            f"{table.x.shape[1]} inputs"
        )
        depth = parsed.max_tree_depth
        options = job.Options(
            hidden=tuple(parsed.hidden),
            prior=parsed.prior,
            kernel=parsed.kernel,
            num_chains=parsed.chains,
            num_warmup=parsed.warmup,
            num_samples=parsed.samples,
            max_minutes=parsed.minutes,
            settings={} if depth is None else {"max_tree_depth": depth},
            test_fraction=parsed.test_fraction,
            seed=parsed.seed,
        )
        if comparing:
            found = job.compare_methods(table, options, parsed.methods, not parsed.quiet)
            console.print(str(found), markup=False, highlight=False, soft_wrap=True)
            return 0
        if parsed.methods:
            raise ValueError("--methods belongs to `compare`: python -m numpyro_bnn compare …")
        job_report.require_folder(parsed.output)
        outcome = job.run(table, options, progress_bar=not parsed.quiet)
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted before there were any draws", style="red")
        return 130

    rich_table = RichTable(title=f"Scores on {len(outcome.test)} test rows")
    for i, heading in enumerate(job_report.headings(table.task)):
        rich_table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in outcome.scores:
        rich_table.add_row(*job_report.cells(row))
    console.print(rich_table)
    console.print(str(outcome.mcmc.stopped), markup=False, highlight=False, soft_wrap=True)
    console.print(str(outcome.report), markup=False, highlight=False, soft_wrap=True)
    try:
        files = job_report.write(outcome, parsed.output)
    except OSError as error:
        Console(stderr=True).print(
            f"error: the report could not be written: {error}", style="red", markup=False
        )
        return 2
    console.print(
        "Written: " + ", ".join(str(file) for file in files), markup=False, soft_wrap=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
