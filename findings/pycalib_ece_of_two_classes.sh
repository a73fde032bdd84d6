#!/usr/bin/env bash
# pycalib 0.1.0.dev6: with two classes, scores that are calibrated have an error of .14 and a p-value of 0.
#
# Guess, written first: labels are drawn with the probabilities themselves. Then `ECE` and `conf_ECE` of 20,000 rows are
# below .02 with 2 classes as with 3, errors are the same for one-hot labels, and `pECE`, the p-value of a test of
# calibration, is below .05 in 5 of 100 tables.
#
# Seen: with 3 classes they are. With 2, `ECE` is .14, more than that of overconfident scores by a right formula (.08);
# `full_ECE` is .58, and `pECE` is 0 in every table. No warning. scikit-learn's `label_binarize` makes one column of two
# classes: `ECE` then judges the scores of one row by the label of another, `full_ECE` those of class 0 by the share of class 1.
# One-hot labels help `full_ECE` and `pECE` but not `ECE`; `ece_full=False` and `classwise_ECE` of one-hot labels are right.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "pycalib==0.1.0.dev6" "scikit-learn==1.9.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from pycalib import metrics

ROWS, TABLES = 20_000, 20
rng = np.random.default_rng(0)


def softmax(logits):
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(1, keepdims=True)


def draw(probabilities):
    return (probabilities.cumsum(1) > rng.random((len(probabilities), 1))).argmax(1)


def errors(labels, scores):
    one_hot = np.eye(scores.shape[1])[labels]
    return {"ECE": metrics.ECE(labels, scores), "ECE, one-hot": metrics.ECE(one_hot, scores),
            "ECE, ece_full=False": metrics.ECE(labels, scores, ece_full=False), "conf_ECE": metrics.conf_ECE(labels, scores),
            "classwise_ECE, one-hot": metrics.classwise_ECE(one_hot, scores),
            "full_ECE": metrics.full_ECE(labels, scores), "full_ECE, one-hot": metrics.full_ECE(one_hot, scores)}


print(f"pycalib {version('pycalib')}, scikit-learn {version('scikit-learn')}, numpy {np.__version__}")
seen = {}
for classes in (2, 3):
    logits = rng.normal(0, 1.5, (ROWS, classes))
    labels = draw(softmax(logits))
    for name, factor in (("calibrated", 1), ("overconfident", 1.8)):
        seen[classes, name] = errors(labels, softmax(factor * logits))
        print(f"{classes} classes, {name}:", {key: round(float(value), 3) for key, value in seen[classes, name].items()})

values = []
for _ in range(TABLES):
    scores = softmax(rng.normal(0, 1.5, (500, 2)))
    labels = draw(scores)
    values.append([metrics.pECE(given, scores, samples=100, processes=1) for given in (labels, np.eye(2)[labels])])
values = np.array(values)
print(f"pECE of {TABLES} calibrated tables of 500 rows: {values[:, 0].min():.2f} to {values[:, 0].max():.2f} with labels, "
      f"{values[:, 1].min():.2f} to {values[:, 1].max():.2f} with one-hot ones")

two, three, over = seen[2, "calibrated"], seen[3, "calibrated"], seen[2, "overconfident"]
assert three["ECE"] < 0.02 and three["conf_ECE"] < 0.02 and three["full_ECE"] == three["full_ECE, one-hot"]
wrong = ("ECE", "ECE, one-hot", "full_ECE")
assert max(value for key, value in two.items() if key not in wrong) < 0.03, "the others are no longer right"
assert 0.05 < over["classwise_ECE, one-hot"] < min(two["ECE"], two["ECE, one-hot"]), "the error of two classes has changed"
assert two["full_ECE"] > 0.4, "full_ECE of two classes has changed"
assert (values[:, 0] < 0.05).all() and (values[:, 1] < 0.05).mean() < 0.3, "the p-value of two classes has changed"
PYTHON
