"""Is "within tolerance" true on real posteriors? Averages of short runs against references.

A reference that a long run of the same sampler makes shares the bias of its step: the Monte Carlo error is
compared alone.

    python -m benchmarks.diagnostics.against_references [--quick | --toy]
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import publish, sampler, select, starts
from benchmarks._shared.study import Results, Row, begin, every_cell
from benchmarks.mixing.hierarchical_posteriors import Posterior, posterior
from benchmarks.neal import posteriors
from numpyro_bnn.diagnostics import diagnose_draws, mean_errors
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import row_distances, units_of
from numpyro_bnn.plots.style import color_at, label_axes

CHAINS = 4
TEST_ROWS = 200
# A scalar is covered if it is as near to the reference as an error of this many sd allows: 90 %.
COVERED = 1.645


class Case(NamedTuple):
    """A posterior, how it is sampled, and the steps to a draw."""

    posterior: str
    kernel: Callable[[Any], Any]
    thinning: int
    neal: bool = False  # whether Neal's program knows its predictions


CASES = {
    "digits, MCLMC": Case("digits", lambda model: bnn.MCLMC(model, energy_variance=1e-5), 20),
    "rdata, MCLMC": Case("rdata", lambda model: bnn.MCLMC(model), 100, neal=True),
    "rdata, tempered": Case("rdata", lambda model: bnn.ParallelTempering(model), 2, neal=True),
    "yacht, MCLMC, output layer integrated out": Case(
        "yacht", lambda model: bnn.MCLMC(bnn.integrate_output(model)), 100
    ),
}


class Size(NamedTuple):
    """Runs of each case; draws of each chain at which they are judged; those of a reference; rows."""

    runs: int
    looks: tuple[int, ...]
    reference: int
    rows: int


SIZES = {
    "full": Size(6, (150, 300, 600), 6000, 0),
    "quick": Size(2, (100, 200), 400, 200),
    "toy": Size(1, (20,), 20, 40),
}


def predictions_of(case: Case, given: Posterior, seed: int, draws: int) -> dict[str, np.ndarray]:
    """Sample, and predict at test rows: probabilities, or means and scales, (chain, draw, input…)."""
    model = case.kernel(given.model)
    latent = bnn.potential_of(model.model, given.split.x, given.split.y).structure.latent
    begin = starts(given.model, given.split, seed, CHAINS, 1000)
    warmup = max(1, draws * case.thinning // 3)
    mcmc = sampler(model, CHAINS, warmup, draws, case.thinning, chain_method="parallel")
    mcmc.run(
        jax.random.key(seed),
        given.split.x,
        given.split.y,
        # Of an integrated layer there is nothing to start: it is drawn.
        init_params={name: value for name, value in begin.items() if name in latent},
    )
    values = bnn.predict(None, mcmc, given.split.x_test[:TEST_ROWS]).values
    names = ("probs",) if "probs" in values else ("mean", "scale")
    return {name: np.asarray(values[name], np.float64) for name in names}


def reference_of(name: str, size: Size, given: Posterior, results: Results) -> dict[str, Any]:
    """Averages that a run is held against, their errors and verdict; a long run is stored, and read again."""
    case = CASES[name]
    if case.neal:
        with np.load(posteriors.SHARED / "predictions_open.npz") as file:
            mean, error = file["rdata_mean_function_mean"], file["rdata_mean_function_mcse"]
        return {"mean": mean[:TEST_ROWS], "error": error[:TEST_ROWS], "told": "Neal's program"}
    path = results.path("npz")
    path = path.with_stem(f"{path.stem}_{name.split(',')[0]}")
    if not path.is_file():
        found = predictions_of(case, given, 1000, size.reference)
        errors = mean_errors(next(iter(found.values())))
        told = diagnose_draws(predictions=found, min_draws=1).verdict
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, mean=errors.mean, error=errors.error, told=told)
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def judged(values: dict[str, np.ndarray], reference: dict[str, Any]) -> Row:
    """What a run is told, and how far its averages are from those of the reference."""
    report = diagnose_draws(predictions=values, min_draws=1)
    of = next(iter(values))
    errors = {name: mean_errors(array) for name, array in values.items()}
    off = np.abs(errors[of].mean - reference["mean"])
    (actual,) = row_distances({of: off}, units_of(values, errors)).values()
    stated = report.monte_carlo_error
    joint = np.hypot(errors[of].error, reference["error"])
    return {
        "verdict": report.verdict,
        "stated": np.sqrt(2 / np.pi) * stated.relative if of == "mean" else stated.total_variation,
        "actual": float(actual.mean()),
        "actual, worst rows": float(np.quantile(actual, 0.99)),
        "covered": float((off <= COVERED * joint).mean()),
        "worst R-hat": report.predictions.max_rhat,
        "reference": str(reference["told"]),
    }


TABLE = {
    "case": "posterior and sampler",
    "draws": "draws a chain",
    "runs": "runs",
    "within": "within tolerance",
    "on average": "on average",
    "disagree": "disagree",
    "known": "error of all scalars known",
    "stated": "stated error, median",
    "actual": "actual error, median",
    "covered": "covered",
    "covered, within": "covered, within tolerance or on average",
    "reference": "verdict of the reference",
}


def summary(rows: list[Row]) -> list[Row]:
    """One row for each case and number of draws; medians, as an unknown error is infinite on average."""
    found = []
    for case in dict.fromkeys(row["case"] for row in rows):
        for draws in dict.fromkeys(row["draws"] for row in select(rows, case=case)):
            here = select(rows, case=case, draws=draws)
            told = [row["verdict"] for row in here]
            errors = [row["stated"] for row in here]
            middle = float(np.median(errors))
            known = [row["covered"] for row in here if row["verdict"].startswith("within")]
            found.append(
                {
                    "case": case,
                    "draws": draws,
                    "runs": len(here),
                    "within": told.count("within_tolerance"),
                    "on average": told.count("within_tolerance_on_average"),
                    "disagree": told.count("chains_disagree"),
                    "known": int(np.isfinite(errors).sum()),
                    "stated": middle if np.isfinite(middle) else "unknown",
                    "actual": float(np.median([row["actual"] for row in here])),
                    "covered": float(np.mean([row["covered"] for row in here])),
                    "covered, within": float(np.mean(known)) if known else "",
                    "reference": here[0]["reference"],
                }
            )
    return found


def findings(rows: list[Row]) -> Iterator[str]:
    known = [row for row in rows if row["verdict"].startswith("within")]
    yield f"{len(known)} of {len(rows)} judgements are within tolerance, on average at least."
    if known:
        yield (
            f"Of their scalars {100 * np.mean([r['covered'] for r in known]):.0f} % are within 1.645 "
            f"joint errors of the reference (90 % where errors are true). The actual error is "
            f"{np.mean([r['actual'] for r in known]) / np.mean([r['stated'] for r in known]):.2f} times "
            "the stated one, that of the reference included."
        )


def draw(rows: list[Row]) -> Any:
    figure, ax = plt.subplots(figsize=(5.4, 4.2), layout="constrained")
    known = [row for row in rows if np.isfinite(row["stated"])]
    for i, case in enumerate(dict.fromkeys(row["case"] for row in known)):
        here = select(known, case=case)
        ax.plot(
            [row["stated"] for row in here],
            [row["actual"] for row in here],
            "o",
            color=color_at(ax, i),
            label=case,
        )
    ends = (
        [0.7 * min(row["stated"] for row in known), 1.4 * max(row["actual"] for row in known)]
        if known
        else [0.001, 1]
    )
    ax.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
    ax.set_xscale("log")
    ax.set_yscale("log")
    label_axes(ax, "stated Monte Carlo error", "actual distance from the reference")
    # In short forms no run may know its errors.
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return figure


def main(argv: Any = None) -> None:
    study, given, size = begin(__file__, __doc__, ("case", "seed"), SIZES, argv)

    def compute(case: str, seed: int) -> Iterator[Row]:
        target = posterior(given.data, CASES[case].posterior, size.rows)
        reference = reference_of(case, size, target, study)
        values = predictions_of(CASES[case], target, seed, size.looks[-1])
        for draws in size.looks:
            first = {name: array[:, :draws] for name, array in values.items()}
            yield {"draws": draws} | judged(first, reference)

    cells = every_cell(case=CASES, seed=range(size.runs))
    study.run(cells, compute)
    publish(study, summary(study.rows), TABLE, findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
