"""The numbers of a report, as plain values and arrays that can be written to files."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

# The fields that are single numbers; one that is None does not apply and is left out.
_ERRORS = ("total_variation", "total_variation_99", "relative", "relative_99", "log_score", "log_score_bias",
           "log_score_rows", "decisions_open", "num_unknown")  # fmt: skip
_AGREEMENT = ("p", "p_max", "p_median", "groups", "batch_length", "num_batches", "total_variation",
              "total_variation_99", "relative", "relative_99", "nested_rhat",
              "nested_rhat_limit")  # fmt: skip


class ReportNumbers(NamedTuple):
    """The numbers of a report, in a form that a file can hold."""

    attributes: Mapping[str, str | float | int]
    # Monte Carlo errors of judged rows, (input,): "total_variation", "relative"
    by_row: Mapping[str, np.ndarray]
    # "chain_group"; empty where halves of one chain stood for chains, or nothing was judged
    by_chain: Mapping[str, np.ndarray]


def numbers_of(
    texts: Mapping[str, str | float | int],
    tolerance: Tolerance,
    error: MonteCarloError | None,
    agreement: Agreement | None,
) -> ReportNumbers:
    """Gather the numbers of a report; `error` and `agreement` are None for draws that were not judged."""
    attributes = dict(texts) | {f"tolerance_{name}": v for name, v in asdict(tolerance).items()}
    for lead, names, found in (
        ("monte_carlo_error", _ERRORS, error),
        ("agreement", _AGREEMENT, agreement),
    ):
        values = {name: getattr(found, name, None) for name in names}
        attributes |= {f"{lead}_{name}": v for name, v in values.items() if v is not None}
    by_chain = {}
    if agreement is not None and not agreement.halves:
        by_chain["chain_group"] = agreement.members
    return ReportNumbers(attributes, {} if error is None else error.by_row, by_chain)
