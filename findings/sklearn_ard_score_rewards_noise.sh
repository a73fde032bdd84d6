#!/usr/bin/env bash
# scikit-learn 1.9.1: `scores_` of ARDRegression goes up by about five for each column that the fit throws away.
#
# Guess, written first: `scores_[-1]` ("the objective function (to be maximized)", the log evidence of Bayesian ridge) ranks
# two sets of columns as the log evidence of the two fits does, because a column that is thrown away leaves y's density as it was.
#
# Seen: BayesianRidge's is the log evidence to .001. ARDRegression's is the log evidence without n / 2 log 2 pi, plus half
# the log of the precision of each column that has been thrown away, which is above 10,000: 4.6 and more for each. So
# columns of noise win. Of ten tables of 100 rows, five true columns have the larger log evidence in all, against three
# of them and 100 of noise; by `scores_` the noise wins in nine, and on new rows it has an R2 of about 0 where
# the five columns have .82.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "scikit-learn==1.9.1" "scipy==1.17.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
import numpy as np
import sklearn
from scipy.stats import multivariate_normal
from sklearn.linear_model import ARDRegression, BayesianRidge

ROWS, NEW, TABLES = 100, 1000, 10
COLUMNS = {"true": range(5), "noise": [0, 1, 2, *range(5, 105)]}
print(f"scikit-learn {sklearn.__version__}, numpy {np.__version__}")


def log_evidence(x, y, alpha, precisions):
    x = x - x.mean(0)
    return multivariate_normal(np.zeros(ROWS), np.eye(ROWS) / alpha + (x / precisions) @ x.T).logpdf(y - y.mean())


scores, evidences, r2, ridge, rest = [], [], [], [], []
for seed in range(TABLES):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(ROWS + NEW, 105))
    y = table[:, :5].sum(1) + rng.normal(size=ROWS + NEW)
    score, evidence, fits = {}, {}, {}
    for name, columns in COLUMNS.items():
        x = table[:, list(columns)]
        fit = ARDRegression(compute_score=True).fit(x[:ROWS], y[:ROWS])
        kept = fit.lambda_ < fit.threshold_lambda
        score[name], fits[name] = fit.scores_[-1], fit.score(x[ROWS:], y[ROWS:])
        evidence[name] = log_evidence(x[:ROWS][:, kept], y[:ROWS], fit.alpha_, fit.lambda_[kept])
        thrown = 0.5 * np.log(fit.lambda_[~kept]).sum()
        rest.append(score[name] - thrown - ROWS / 2 * np.log(2 * np.pi) - evidence[name])
        print(f"table {seed}, {name}: score {score[name]:.1f}, log evidence {evidence[name]:.1f}, {kept.sum()} of {len(kept)} "
              f"columns kept, half the log precisions of the others {thrown:.1f}, R2 on new rows {fits[name]:.2f}")
        other = BayesianRidge(compute_score=True, tol=1e-8, max_iter=1000).fit(x[:ROWS], y[:ROWS])
        ridge.append(other.scores_[-1] - log_evidence(x[:ROWS], y[:ROWS], other.alpha_, other.lambda_))
    scores.append(score["noise"] > score["true"])
    evidences.append(evidence["noise"] > evidence["true"])
    r2.append(list(fits.values()))
print(f"noise wins: {np.sum(scores)} of {TABLES} by the score, {np.sum(evidences)} by the log evidence; "
      f"median R2 {np.median(r2, 0).round(2)} (true, noise)")
print(f"score - half log precisions - n / 2 log 2 pi - log evidence: {min(rest):.2f} to {max(rest):.2f}; "
      f"BayesianRidge: score - log evidence up to {np.abs(ridge).max():.5f}")

assert np.abs(ridge).max() < 0.01, "that of BayesianRidge is no longer the log evidence"
assert sum(scores) >= 7 and sum(evidences) == 0, "the score no longer prefers the noise"
assert np.median(r2, 0)[0] > np.median(r2, 0)[1] + 0.5
PYTHON
