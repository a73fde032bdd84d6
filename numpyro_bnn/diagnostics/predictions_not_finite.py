"""Why predictions are not finite although the weights are: no moments, bad inputs, or overflow."""

from collections.abc import Mapping

import numpy as np

from numpyro_bnn.diagnostics.sampler_stats import percent

# Most rows that are named.
_NAMED = 5
# The moment that the target lacks, by the first prediction that is not finite, with examples.
_MOMENTS = {
    "mean": "no finite mean (Student's t with df up to 1, Cauchy)",
    "scale": "no finite variance (Student's t with df up to 2, Cauchy)",
}


def predictions_not_finite(predictions: Mapping[str, np.ndarray]) -> str:
    """A sentence on predictions that are NaN or infinite: which, where, how often and why; empty for none."""
    flags = {
        name: ~np.isfinite(x).reshape(*x.shape[:3], -1).all(axis=3)
        for name, x in predictions.items()
        if not (np.isfinite(x.min()) and np.isfinite(x.max()))
    }
    if not flags:
        return ""
    bad = np.any(list(flags.values()), axis=0)
    rows, share = np.flatnonzero(bad.any(axis=(0, 1))), float(bad.any(axis=2).mean())
    how_often = "in every draw" if share == 1 else f"in {percent(share)} of draws"
    lead = f"Predictions ({', '.join(flags)}) are NaN or infinite {how_often}"
    if rows.size < bad.shape[2]:
        named = ", ".join(map(str, rows[:_NAMED])) + (", …" if rows.size > _NAMED else "")
        return (
            f"{lead}, at {rows.size:,} of {bad.shape[2]:,} rows ({named}), while the weights are finite: "
            "look at the inputs of these rows, or leave the rows out. Neither more draws nor another step "
            "changes it."
        )
    missing = next((why for name, why in _MOMENTS.items() if name in flags), None)
    reasons = "inputs are not finite, or weights are so large that predictions overflow"
    if missing is not None:
        reasons = (
            f"the distribution of the target has {missing}, {reasons}. Without moments averages have no "
            "error that could be judged: take a distribution that has them"
        )
    return f"{lead}, at all rows, while the weights are finite: {reasons}."
