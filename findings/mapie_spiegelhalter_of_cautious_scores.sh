#!/usr/bin/env bash
# MAPIE 1.6.0: a classifier that is far too cautious passes Spiegelhalter's calibration test with a p-value of 1.000.
#
# Guess, written first: `spiegelhalter_p_value` is below .05 in 5 of 100 tables of calibrated scores, and in nearly all
# whose logits are 1.5 times too large (overconfident) or too small (cautious); so are the Kuiper and Kolmogorov-Smirnov tests.
#
# Seen: the p-value is the upper tail of a statistic that has two signs. Overconfident scores give 0.000, cautious ones
# 1.000, in each of 100 tables of 2000 rows, where the other two tests reject. Ensembles and label
# smoothing can err on this side. The documentation calls it the probability of the statistic under perfect calibration, so
# that 1 looks like perfection. Twice the smaller of p and 1 - p is the test of both sides.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "mapie==1.6.0" "scikit-learn==1.9.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from mapie.metrics import calibration

TESTS = ("spiegelhalter_p_value", "kuiper_p_value", "kolmogorov_smirnov_p_value")
TABLES, ROWS = 100, 2000
rng = np.random.default_rng(0)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


print(f"mapie {version('mapie')}, numpy {np.__version__}")
logits = rng.normal(0, 1.5, ROWS)
rejected, values = {}, {}
for name, factor in (("calibrated", 1.0), ("overconfident", 1.5), ("cautious", 1 / 1.5)):
    scores = sigmoid(factor * logits)
    tables = [(rng.random(ROWS) < sigmoid(logits)).astype(int) for _ in range(TABLES)]
    values[name] = np.array([[getattr(calibration, test)(y, scores) for test in TESTS] for y in tables])
    rejected[name] = (values[name] < 0.05).mean(0)
    print(name, {test: f"{share:.0%} below .05" for test, share in zip(TESTS, rejected[name], strict=True)})
    print(f"  Spiegelhalter's p-values from {values[name][:, 0].min():.3f} to {values[name][:, 0].max():.3f}")

assert (rejected["calibrated"] < 0.15).all() and (rejected["overconfident"] > 0.9).all()
assert (rejected["cautious"][1:] > 0.9).all(), "the other tests see cautious scores"
one = values["cautious"][:, 0]
assert one.min() > 0.99, "Spiegelhalter's test has two sides now"
assert (2 * np.minimum(one, 1 - one) < 0.05).all(), "both sides of it would have seen them"
PYTHON
