"""Standard errors of means over random splits of one table, whose rows are partly the same."""

import numpy as np


def split_error(values: np.ndarray, rows_tested: float, rows_left: float) -> float:
    """Standard error of a mean over random splits that overlap, by Nadeau and Bengio.

    Splits of one table share most of the rows that they learn from, so that their scores are no
    independent draws. The correlation of two of them is taken to be the share of the rows that is tested,
    t / (t + l), which makes the variance of a mean over J splits s² (1 / J + t / l) in place of s² / J:
    equation 7 of Nadeau and Bengio (2003, *Inference for the generalization error*), where l is the number
    of rows that are learnt from. It is a rule of thumb, and errs on the side of too large. Of one split
    it is NaN. Shares of the table may stand for numbers of rows.
    """
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) * (1 / len(values) + rows_tested / rows_left) ** 0.5)
