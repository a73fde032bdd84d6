"""How soon may a run stop? Draws whose distribution is known, judged until judgements are in favour.

Chains are those of `verdict_calibration`, as rows of class probabilities. All rules judge the same draws: 300
a chain, then whole chunks of 150. Of the default tolerance, the worst rows (0.03) ask for most.

    python -m benchmarks.diagnostics.stopping [--quick | --toy]
"""

from functools import cache

import numpy as np

from benchmarks._shared.study import Study, every_cell, parser
from benchmarks.diagnostics.verdict_calibration import CLASSES, SCALE, stationary
from numpyro_bnn.diagnostics.diagnose import diagnose_draws

ROWS, FIRST, CHUNK, MOST = 50, 300, 150, 6000
# By name: draws at a judgement over those at the one before; judgements in a row that must be in favour.
RULES = {"half more, one": (1.5, 1), "half more, two": (1.5, 2), "a quarter more, two": (1.25, 2)}


def stops(within, growth, in_a_row):
    """The number of draws at which a rule stops; at most `MOST`."""
    count, good = FIRST, 0
    while count < MOST and good < in_a_row:
        good = good + 1 if within(count) else 0
        if good < in_a_row:
            count = int(np.ceil(growth * count / CHUNK)) * CHUNK
    return min(count, MOST)


def compute(correlation, run):
    rng = np.random.default_rng([round(1000 * correlation), run])
    x = stationary(rng, 4, MOST, correlation, ROWS * CLASSES, "light")
    # As wide as rows of the digits: the worst ones need hundreds of draws.
    widths = rng.gamma(1.0, 0.6, (ROWS, 1)) * SCALE
    probs = (0.1 + widths * x.reshape(4, MOST, ROWS, CLASSES)).astype(np.float32)
    judged = cache(lambda draws: diagnose_draws(None, {"probs": probs[:, :draws]}))
    for name, rule in RULES.items():
        draws = stops(lambda draws: judged(draws).verdict == "within_tolerance", *rule)
        off = 0.5 * np.abs(probs[:, :draws].mean((0, 1)) - 0.1).sum(-1)
        stated = judged(draws).monte_carlo_error.total_variation_99
        yield {"rule": name, "draws": draws, "stated": stated, "actual": np.quantile(off, 0.99)}


def summarized(rows):
    """A line for each autocorrelation and rule, of the runs that every rule stopped."""
    longest = {(r["correlation"], r["run"]) for r in rows if r["draws"] == MOST}
    for cell in every_cell(correlation=(0.5, 0.9), rule=RULES):
        of = [
            r
            for r in rows
            if cell.items() <= r.items() and (r["correlation"], r["run"]) not in longest
        ]
        means = {f"{k}, mean": np.mean([r[k] for r in of]) for k in ("draws", "stated", "actual")}
        yield (
            cell
            | {"runs": len(of)}
            | means
            | {"above .03": np.mean([r["actual"] > 0.03 for r in of])}
        )


def main(argv=None) -> None:
    given = parser(__doc__).parse_args(argv)
    study = Study(__file__, ("correlation", "run"), given)
    runs = range({"full": 40, "quick": 5, "toy": 1}[given.size])
    study.run(every_cell(correlation=(0.5, 0.9), run=runs), compute)
    study.publish(list(summarized(study.rows)))


if __name__ == "__main__":
    main()
