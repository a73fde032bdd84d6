"""Radford Neal's examples as a story: what each route finds, what his program found, and at what cost.

Nothing is sampled here: it tells the rows that `posteriors` and `tempering` have stored, those of earlier
runs too. The mass of a mode that is seen seldom has a larger error than its draws say: a ladder comes to a
mode anew at most once in a round trip. Its error here is at least that of as many independent draws.

    python -m benchmarks.neal.story
"""

import csv
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks._shared.sampled_runs import RHAT_LIMIT
from benchmarks._shared.study import Results, parser
from numpyro_bnn.plots import style as plots_style

STORED = Path(__file__).parent / "results" / "posteriors.csv"
EARLIER = STORED.with_name("posteriors_earlier_runs.csv")
PROBLEMS = ("rdata", "cdata", "bdata", "odata", "surv")
COMPARED = ("log_sigma_", "test_log_predictive", "minor_mode_mass")


def read(path):
    """{(problem, route): {quantity: row}}, numbers as floats and NaN where there is none."""
    found = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = {
                k: float(row[k] or "nan")
                for k in ("mean", "mcse", "rhat", "reference", "reference_mcse")
            }
            found.setdefault((row["problem"], row["route"]), {})[row["quantity"]] = numbers
    for route in found.values():
        widen_minor_mode(route)
    order = {name: i for i, name in enumerate(PROBLEMS)}
    return dict(sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1])))


def widen_minor_mode(route):
    """Give the mass of the minor mode an error of no more independent visits than round trips."""
    mass, trips = route.get("minor_mode_mass"), route.get("round_trips")
    if mass is not None:
        mass["of its draws"] = mass["mcse"]
    if mass is not None and trips is not None:
        by_trips = (mass["mean"] * (1 - mass["mean"]) / trips["mean"]) ** 0.5
        mass["mcse"] = max(mass["mcse"], by_trips)


def mean(route, quantity):
    return route.get(quantity, {}).get("mean", float("nan"))


def compared(route):
    """Quantities that can be compared with the reference or another route."""
    return [q for q in route if q.startswith(COMPARED) and np.isfinite(route[q]["mcse"])]


def from_reference(route):
    """z of every quantity that the reference has, in joint Monte Carlo errors."""
    return {
        q: (row["mean"] - row["reference"]) / np.hypot(row["mcse"], row["reference_mcse"])
        for q, row in route.items()
        if q in compared(route) and np.isfinite(row["reference_mcse"])
    }


def from_route(one, other):
    """z of every quantity that both routes have."""
    both = [q for q in compared(one) if q in compared(other)]
    joint = {q: np.hypot(one[q]["mcse"], other[q]["mcse"]) for q in both}
    return {q: (one[q]["mean"] - other[q]["mean"]) / joint[q] for q in both if joint[q] > 0}


def worst_rhat(route):
    """Worst R-hat of log σ and of predictions."""
    found = [row["rhat"] for q, row in route.items() if q.startswith("log_sigma_")]
    found.append(mean(route, "predictions_max_rhat"))
    return float(np.nanmax(found))


def log_evidence(route):
    """Mean over replicas, half of their range, and the error that they say themselves."""
    rows = [row for q, row in route.items() if q.startswith("log_evidence_replica")]
    if not rows:
        return None
    values, errors = (np.array([row[k] for row in rows]) for k in ("mean", "mcse"))
    return (
        float(values.mean()),
        float(np.ptp(values) / 2),
        float(np.linalg.norm(errors)) / len(rows),
    )


def line(problem, route, rows):
    """A line of the table."""
    z, evidence = from_reference(rows), log_evidence(rows)
    worst = worst_rhat(rows)
    score, mode = rows["test_log_predictive"], rows.get("minor_mode_mass")
    trips, gradients = (mean(rows, what) for what in ("round_trips", "gradients"))
    return {
        "example": problem,
        "route": route,
        "converged": "yes" if worst <= RHAT_LIMIT else "no",
        "worst R-hat": f"{worst:.3f}",
        "log probability of test rows": f"{score['mean']:.4f} ± {score['mcse']:.4f}",
        "of FBM": "" if np.isnan(score["reference"]) else f"{score['reference']:.4f}",
        "largest z": f"{max(map(abs, z.values())):.1f}" if z else "",
        "minor mode": "" if mode is None else f"{mode['mean']:.3f} ± {mode['mcse']:.3f}",
        "draws of log σ over FBM's, by CPU second": speed_over(rows, "cpu_second_log_sigma_of_all"),
        "by gradient": speed_over(rows, "million_gradients_log_sigma"),
        "of predictions, by CPU second": speed_over(rows, "cpu_second_predictions_of_all"),
        "of predictions, by gradient": speed_over(rows, "million_gradients_predictions"),
        "log evidence": "" if evidence is None else f"{evidence[0]:.2f} ± {evidence[2]:.2f}",
        "round trips": "" if np.isnan(trips) else f"{trips:.0f}",
        "gradients": "" if np.isnan(gradients) else f"{gradients:.2g}",
    }


def findings(found):
    """Which examples converge, how far these are from his program, and from each other."""
    good = {key: rows for key, rows in found.items() if worst_rhat(rows) <= RHAT_LIMIT}
    names = dict.fromkeys(problem for problem, _ in found)
    told = ", ".join(f"{name} by {sum(p == name for p, _ in good)}" for name in names)
    yield f"Routes that converge: {told}."
    known = {key: rows for key, rows in good.items() if from_reference(rows)}
    if known:
        means = max(abs(z) for rows in known.values() for z in from_reference(rows).values())
        predictions = max(mean(rows, "predictions_max_abs_z") for rows in known.values())
        yield (
            f"Converged routes beside his program: all means within {means:.1f} joint errors, predictions "
            f"within {predictions:.1f}."
        )
    z = [
        abs(value)
        for (one, first), (other, second) in combinations(good, 2)
        if one == other
        for value in from_route(good[one, first], good[other, second]).values()
    ]
    if z:
        yield f"Converged routes to one example differ by at most {max(z):.1f} joint errors."


def speed_over(rows, what):
    """Worst effective draws by what they cost, warm-up included, over those of his program."""
    speed = rows.get(f"worst_ess_per_{what}")
    known = speed is not None and np.isfinite(speed["reference"])
    return f"{speed['mean'] / speed['reference']:.2g}" if known else ""


def ladders_of(found):
    """All non-centred ladders of rdata that count their round trips."""
    return [
        rows
        for (problem, route), rows in found.items()
        if problem == "rdata"
        and route.startswith("tempering noncentered")
        and {"minor_mode_mass", "round_trips"} <= rows.keys()
    ]


def minor_mode(ladders):
    """The mass of the minor mode by ladder, and by all of them.

    :return: masses, their errors, the sums of squared deviations in units of the errors of the draws and of
        these errors, the mean over all round trips and its error.
    """
    masses, errors, stated = (
        np.array([rows["minor_mode_mass"][k] for rows in ladders])
        for k in ("mean", "mcse", "of its draws")
    )
    trips = np.array([mean(rows, "round_trips") for rows in ladders])
    pooled = float((trips * masses).sum() / trips.sum())
    scatter = []
    for own in (stated, errors):
        middle = (masses / own**2).sum() / (1 / own**2).sum()
        scatter.append(float((((masses - middle) / own) ** 2).sum()))
    return masses, errors, *scatter, pooled, (pooled * (1 - pooled) / trips.sum()) ** 0.5


def of_all_runs(found):
    """The mass of the minor mode by every run of the non-centred ladder of rdata."""
    ladders = ladders_of(found)
    if len(ladders) > 1:
        masses, errors, by_draws, by_trips, pooled, error = minor_mode(ladders)
        listed = ", ".join(f"{m:.3f} ± {e:.3f}" for m, e in zip(masses, errors))
        his = ladders[0]["minor_mode_mass"]
        yield (
            f"rdata, all {len(masses)} non-centred ladders, earlier ones last: minor mode {listed}; sum "
            f"of squares {by_trips:.1f} on {len(masses) - 1} degrees of freedom ({by_draws:.1f} with "
            f"the errors of the draws); over all round trips {pooled:.3f} ± {error:.3f}; his program "
            f"{his['reference']:.3f} ± {his['reference_mcse']:.3f}."
        )


def figure(found):
    """Mean log σ by route, a panel for each example."""
    problems = [p for p in PROBLEMS if any(p == key[0] for key in found)]
    drawing, axes = plt.subplots(
        1, len(problems), figsize=(3.4 * len(problems), 4), layout="constrained", squeeze=False
    )
    styles = {route: i for i, route in enumerate(dict.fromkeys(route for _, route in found))}
    for ax, problem in zip(axes[0], problems):
        mine = {route: rows for (name, route), rows in found.items() if name == problem}
        names = list(dict.fromkeys(q for r in mine.values() for q in r if q[:10] == "log_sigma_"))
        names = [q for q in names if q != "log_sigma_max_rhat"]
        at = np.arange(len(names))
        known = next(iter(mine.values()))
        if np.isfinite([known[q]["reference"] for q in names]).all():
            reference = [known[q]["reference"] for q in names]
            error = [2 * known[q]["reference_mcse"] for q in names]
            ax.errorbar(at, reference, error, fmt="_", color="black", markersize=26, label="FBM")
        for i, (route, rows) in enumerate(mine.items()):
            filled = worst_rhat(rows) <= RHAT_LIMIT
            color, marker = (
                plots_style.color_at(ax, styles[route]),
                plots_style.marker_at(styles[route]),
            )
            look = {"color": color, "marker": marker, "linestyle": "none"}
            look |= {} if filled else {"markerfacecolor": "none"}
            values, errors = np.array([(rows[q]["mean"], 2 * rows[q]["mcse"]) for q in names]).T
            shift = 0.12 * (i - (len(mine) - 1) / 2)
            ax.errorbar(at + shift, values, errors, capsize=2, label=route, **look)
        plots_style.label_axes(ax, "", "mean of log σ, ± 2 Monte Carlo errors")
        ax.set_xticks(at, [q.removeprefix("log_sigma_") for q in names], rotation=30)
        ax.set_title(f"{problem} (open: not converged)", fontsize="medium")
    shown = {}
    for ax in axes[0]:
        shown |= {label: handle for handle, label in zip(*ax.get_legend_handles_labels())}
    drawing.legend(
        shown.values(), shown, loc="outside lower center", ncols=len(shown), frameon=False
    )
    return drawing


def main(argv=None):
    given = parser(__doc__, toy=False).parse_args(argv)
    found, results = read(STORED), Results(__file__, given)
    lines = [line(problem, route, rows) for (problem, route), rows in found.items()]
    said = [*findings(found), *of_all_runs(found | read(EARLIER))]
    results.report(lines, said)
    if not given.report:
        results.figure(figure(found))


if __name__ == "__main__":
    main()
