"""Which width, which prior, how deep? Does the log evidence choose the model that predicts best?

Parallel tempering from the prior gives the log evidence by stepping stones (Xie et al. 2011; ladder: Syed et
al. 2022), and its draws the log score. MacKay (1992, *A practical Bayesian framework for backpropagation
networks*) chose networks so with a Gaussian evidence; Lotfi et al. (2022, *Bayesian model selection, the
marginal likelihood, and generalization*) say why it may fail.

    python -m benchmarks.priors.evidence [--quick | --toy]
"""

from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC
from scipy.stats import rankdata, spearmanr

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split
from benchmarks._shared.sampled_runs import sampler
from benchmarks._shared.study import begin
from benchmarks.priors.small_tables import ACTIVATIONS, few_rows, prior_named, regression_model
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.plots import style as plots_style
from numpyro_bnn.samplers.tempering.evidence import doubts

KEYS = ("data", "layers", "width", "activation", "prior")
DATA = ("function", "yacht")
KINDS = [(activation, prior) for prior in ("fan_in", "group") for activation in ACTIVATIONS]
BLOCKS = 10
REPLICAS = 2


class Size(NamedTuple):
    widths: dict[int, tuple[int, ...]]  # by number of hidden layers
    rows: int
    test: int
    rungs: int
    steps: int
    warmup: int
    sweeps: int
    data: tuple[str, ...] = DATA


SIZES = {
    "full": Size({1: (2, 4, 8, 16, 32), 2: (4, 8)}, 100, 500, 24, 60, 1000, 4000),
    "quick": Size({1: (4,)}, 40, 200, 8, 20, 50, 200, ("function",)),
    "toy": Size({1: (2,)}, 20, 50, 5, 5, 20, 100),
}


def function_rows(num_rows, num_test, seed=0):
    """Rows of sin(2 x₁) + x₂²/2 with noise of 0.2, standardised with what there is to learn from."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows + num_test, 2))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] ** 2 + 0.2 * rng.normal(size=len(x))
    fit = slice(0, num_rows)
    y = (y - y[fit].mean()) / y[fit].std()
    x, y = x.astype(np.float32), y.astype(np.float32)
    return Split(x[fit], y[fit], x[num_rows:], y[num_rows:])


def cells(size):
    """The smaller models of both data sets first."""
    for layers, widths in size.widths.items():
        for width in widths:
            for data in size.data:
                for activation, prior in KINDS:
                    yield dict(zip(KEYS, (data, layers, width, activation, prior)))


def computer(size, folder):
    def compute(data, layers, width, activation, prior):
        if data == "function":
            split = function_rows(size.rows, size.test)
        else:
            split = few_rows(folder, data, 0, size.rows, size.test)
        model = regression_model(prior_named(prior), layers * (width,), ACTIVATIONS[activation])
        model = bnn.integrate_output(model)
        hmc = HMC(model, num_steps=size.steps, trajectory_length=None)
        ladder = bnn.ParallelTempering(model, hmc, size.rungs)
        mcmc = sampler(ladder, REPLICAS, size.warmup, size.sweeps, chain_method="parallel")
        mcmc.run(jax.random.key(0), split.x, split.y)
        row = {"coordinates": "output layer integrated out", "sweeps": size.sweeps}
        yield row | numbers(model, mcmc, split)

    return compute


def numbers(model, mcmc, split):
    """Evidence and scores of one model."""
    found = mcmc.tempering
    predictions = bnn.predict(model, mcmc, split.x_test)
    scores = bnn.scores.lppd(predictions, split.y_test, pointwise=True)
    row = {
        "log_evidence": found.log_evidence.mean(),
        "log_evidence_error": evidence_error(found.log_evidence, found.log_evidence_error),
        "replicas_differ": float(np.ptp(found.log_evidence)),
        "round_trips_fewest": int(found.round_trips.min()),
        "barrier": float(found.barrier.mean()),
        "lowest_swap_rate": float(found.swap_rates.min()),
        "verdict": "no verdict" if doubts(found) else "replicas agree",
        "max_rhat": diagnose_draws(predictions=predictions).predictions.max_rhat,
        "rmse": bnn.scores.rmse(predictions, split.y_test),
        "lppd": float(scores.mean()),
    }
    return row | {f"block_{i}": float(part.mean()) for i, part in enumerate(blocks(scores))}


def blocks(scores):
    """Scores of the test rows in :data:`BLOCKS` parts, the same rows for every model."""
    return [scores[i::BLOCKS] for i in range(BLOCKS)]


def evidence_error(values, errors):
    """Error of the mean over replicas: what they say, or what they differ by where that is more."""
    said = np.linalg.norm(errors) / len(errors)
    seen = np.std(values, ddof=1) / len(values) ** 0.5
    return float(max(said, seen))


def rank_correlation(evidence, error, scores, rng, repeats=2000):
    """Spearman's correlation over models, and its bootstrap error; NaN for fewer than four models."""
    value = spearmanr(evidence, scores.mean(1)).statistic
    count, parts = scores.shape
    if count < 4:
        return float(value), float("nan")
    drawn = []
    for _ in range(repeats):
        models, rows = rng.integers(count, size=count), rng.integers(parts, size=parts)
        moved = evidence[models] + error[models] * rng.normal(size=count)
        score = scores[models][:, rows].mean(1)
        if np.ptp(moved) and np.ptp(score):
            drawn.append((moved, score))
    # Spearman's correlation is that of ranks: all repeats at once.
    ranks = rankdata(np.reshape(drawn, (-1, 2, count)), axis=-1) - (count + 1) / 2
    correlations = ranks.prod(1).sum(-1) / np.sqrt((ranks**2).sum(-1).prod(-1))
    return float(value), float(np.std(correlations))


def arrays(rows):
    """Evidence, its error, and lppd by block of some rows."""
    evidence, error = (
        np.array([r[k] for r in rows]) for k in ("log_evidence", "log_evidence_error")
    )
    return evidence, error, np.array([[r[f"block_{i}"] for i in range(BLOCKS)] for r in rows])


def name_of(row):
    return f"{'-'.join(row['layers'] * [str(row['width'])])} {row['activation']} {row['prior']}"


def lost(row, other):
    """How much higher the lppd of another model is: mean and error over blocks of test rows."""
    gap = np.array([other[f"block_{i}"] - row[f"block_{i}"] for i in range(BLOCKS)])
    return float(gap.mean()), float(gap.std(ddof=1) / BLOCKS**0.5)


def findings(rows):
    """Sentences whose numbers all come from the rows."""
    for data in dict.fromkeys(r["data"] for r in rows):
        mine = [r for r in rows if r["data"] == data]
        judged = [r for r in mine if r["verdict"] != "no verdict"]
        for label, some in (("with a verdict", judged), ("all", mine)):
            if len(some) < 4:
                continue
            value, error = rank_correlation(*arrays(some), np.random.default_rng(0))
            chosen = max(some, key=lambda r: r["log_evidence"])
            best = max(some, key=lambda r: r["lppd"])
            gap = lost(chosen, best)
            average = float(np.mean([r["lppd"] for r in some]))
            yield (
                f"{data}, {len(some)} models ({label}): rank correlation of evidence and lppd "
                f"{value:.2f} ± {error:.2f}. Evidence chooses {name_of(chosen)} (lppd "
                f"{chosen['lppd']:.3f}; mean of the models {average:.3f}), the test rows "
                f"{name_of(best)}, better by {gap[0]:.3f} ± {gap[1]:.3f}."
            )
        yield f"{data}: {len(mine) - len(judged)} of {len(mine)} models have no verdict."
        for column, one, other in (("prior", "group", "fan_in"), ("activation", "tanh", "relu")):
            yield from pairs(data, mine, column, one, other)


def pairs(data, rows, column, one, other):
    """How often evidence and lppd prefer the same of two otherwise equal models."""
    rest = [k for k in KEYS if k != column]
    by_key = {tuple(r[k] for k in (*rest, column)): r for r in rows}
    agree = higher = count = 0
    for key, row in by_key.items():
        twin = by_key.get((*key[:-1], other))
        if key[-1] != one or twin is None or "no verdict" in (row["verdict"], twin["verdict"]):
            continue
        by_evidence = row["log_evidence"] > twin["log_evidence"]
        count += 1
        higher += by_evidence
        agree += by_evidence == (row["lppd"] > twin["lppd"])
    if count:
        yield (
            f"{data}: evidence prefers {one} to {other} in {higher} of {count} pairs of models that "
            f"have a verdict, and lppd agrees in {agree}."
        )


def table(rows):
    shown = (
        *("coordinates", "sweeps"),
        *("log_evidence", "log_evidence_error", "replicas_differ", "round_trips_fewest", "barrier"),
        *("verdict", "max_rhat", "lppd", "rmse"),
    )
    ordered = sorted(rows, key=lambda r: (r["data"], -r["log_evidence"]))
    return [{"data": r["data"], "model": name_of(r)} | {k: r[k] for k in shown} for r in ordered]


def figure(rows):
    """lppd against log evidence, a panel for each data set; open marks have no verdict."""
    drawing, axes = plt.subplots(1, len(DATA), figsize=(12, 4.6), layout="constrained")
    for ax, data in zip(axes, DATA):
        for i, (activation, prior) in enumerate(KINDS):
            look = {"color": plots_style.color_at(ax, i), "marker": plots_style.MARKERS[i]}
            for row in rows:
                if (row["data"], row["activation"], row["prior"]) != (data, activation, prior):
                    continue
                at = (row["log_evidence"], row["lppd"])
                face = "none" if row["verdict"] == "no verdict" else look["color"]
                bars = {"xerr": row["log_evidence_error"], "elinewidth": 0.8}
                ax.errorbar(*at, **bars, **look, markerfacecolor=face, linestyle="none")
                text = "-".join(row["layers"] * [str(row["width"])])
                ax.annotate(text, at, xytext=(4, 4), textcoords="offset points", fontsize=7)
            ax.plot([], [], linestyle="none", label=f"{activation}, {prior}", **look)
        plots_style.label_axes(ax, "log evidence (nats)", "log score of other rows (lppd)")
        ax.set_title(f"{data}; open: no verdict", fontsize="medium")
    axes[0].legend(frameon=False, fontsize="small")
    return drawing


def main(argv=None):
    study, given, size = begin(__file__, __doc__, KEYS, SIZES, argv)
    study.run(cells(size), computer(size, given.data))
    study.publish(table(study.rows), findings(study.rows), lambda: figure(study.rows))


if __name__ == "__main__":
    main()
