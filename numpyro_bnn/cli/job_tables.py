"""The table of scores and the sentence of settings, which every form of the report shows."""

from numpyro_bnn.cli.job import Outcome, Score


def headings(task: str) -> tuple[str, ...]:
    """Column names of the table of scores."""
    if task == "classification":
        return ("method", "log score", "± s.e.", "error", "calibration error", "seconds")
    return ("method", "log score", "± s.e.", "RMSE", "coverage of 90 %", "seconds")


def cells(row: Score) -> tuple[str, ...]:
    """One row of the table of scores, formatted."""
    return (
        row.method,
        f"{row.log_score:.4f}",
        f"{row.log_score_error:.4f}",
        f"{row.error:.4f}",
        f"{row.calibration:.4f}",
        f"{row.seconds:.0f}",
    )


def setting(outcome: Outcome) -> str:
    """Network, prior, sampler and lengths in words."""
    table, options = outcome.table, outcome.options
    return (
        f"Network {table.x.shape[1]}-{'-'.join(map(str, options.hidden))}-"
        f"{len(table.classes) or 1} (tanh), prior: {options.prior}. "
        f"Sampler: {type(outcome.mcmc.sampler).__name__}, "
        f"{options.num_chains} chains of "
        f"{outcome.mcmc.num_warmup} steps of warm-up and draws of {outcome.mcmc.thinning} steps each, "
        f"seed {options.seed}. {outcome.mcmc.stopped}"
    )
