"""What pages say of temperatures, by training rows and prior: lines of tables, and numbers in sentences."""

import itertools

import numpy as np
from pages_of_studies import line, number

from benchmarks._shared.sampled_runs import select
from benchmarks.priors import temperature_verdicts


def beside_full_batch(rows):
    """Lines of the table of minibatch runs beside HMC."""
    return [line(*row.values()) for row in temperature_verdicts.beside_hmc(rows)]


def _by_rows_and_prior(rows, shifts=temperature_verdicts.UNMOVED):
    return {(v.rows, v.prior): v for v in temperature_verdicts.by_shifts(rows)[shifts]}


def averages_of_few_draws(rows):
    """What T = 0.1 would gain over T = 1 by the scores of averages as they are, 1000 rows."""
    found = []
    for prior in (1, 2):
        own = select(rows, rows=1000, shifts="none", prior=prior, method="HMC")
        cold, one = (
            np.mean([r["log_score"] for r in own if r["temperature"] == t]) for t in (0.1, 1)
        )
        found.append(number(cold - one, 3))
    yield "T = 0.1 would gain {} and {} nats with 1000 rows and α = 1 and 2".format(*found)


def posterior_and_ensemble_without_end(rows):
    """T = 1 beside the ensemble: both as averages of what there is, and both without end."""
    lower, more, changed = [], [], {"log_score": [], "of the posterior": []}
    for v in temperature_verdicts.verdicts(rows):
        here = {"rows": v.rows, "shifts": v.shifts}
        one = select(rows, **here, prior=v.prior, temperature=1.0)
        runs = select(one, method=temperature_verdicts.LONG) or select(one, method="HMC")
        pairs = [(r, *select(rows, **here, subset=r["subset"], method="ensemble")) for r in runs]
        for found, k in ((lower, 0), (more, 1)):
            found.append(np.mean([p[k]["of the posterior"] - p[k]["log_score"] for p in pairs]))
        above = v.over_ensemble.value > 0 and v.over_ensemble.is_sure
        for kind, found in changed.items():
            gap = v.over_ensemble._replace(value=np.mean([r[kind] - e[kind] for r, e in pairs]))
            if above != (gap.value > 0 and gap.is_sure):
                name = f"{v.prior} prior" if isinstance(v.prior, str) else f"α = {v.prior:g}"
                found.append(f"{name} with {v.rows:,} rows ({gap})")
    yield f"scores up to {max(lower):.3f} nats less"
    yield f"which scores {min(more):.3f} to {max(more):.3f} more"
    yield f"for the {' and '.join(changed['log_score'])} no longer"
    yield f"and with both without end for {' and '.join(changed['of the posterior'])}"


def wide_priors_on_3000_rows(rows):
    """Gains of T = 0.03 and 3 with α = 1, and what repeats say."""
    found = _by_rows_and_prior(rows)
    plain = found[3000, 1]
    loss = str(plain.gains[3]).removeprefix("−")
    yield f"({plain.gains[0.03]} at T = 0.03); T = 3 is worse by {loss}"
    again = [r for r in rows if r["method"].endswith(", again")]
    keys = ("rows", "subset", "shifts", "prior", "temperature")
    gaps = {}
    for row in again:
        (first,) = select(
            rows, **{k: row[k] for k in keys}, method=row["method"].removesuffix(", again")
        )
        gaps.setdefault(first["method"], []).append(row["log_score"] - first["log_score"])
    runs = np.abs(gaps["HMC"])
    yield f"{runs.min():.3f} to {runs.max():.3f} nats from the first run at T = 1"
    yield f"scored {max(gaps['ensemble']):.3f} better"


def hierarchical_on_many_rows(rows):
    """T = 1 beside the ensemble and by two samplers, and what is not known of other temperatures."""
    found, kind = _by_rows_and_prior(rows), temperature_verdicts.HIERARCHICAL
    few, many = (found[n, kind] for n in (3000, 10_000))
    yield f"by {few.over_ensemble} and {many.over_ensemble} nats with 3000 and 10,000 rows"
    here = select(rows, prior=kind, shifts="none")

    def score(count, method):
        (row,) = select(here, rows=count, subset=0, temperature=1, method=method)
        return f"{number(row['of the posterior'], 3)} ± {row['log_score chains']:.3f}"

    long, full = temperature_verdicts.LONG, temperature_verdicts.FULL_BATCH
    pairs = ["{} and {}".format(*(score(n, m) for n in (3000, 10_000))) for m in (long, full)]
    yield "scores {} by these runs, {} by HMC on all rows".format(*pairs)
    warm = str(few.gains[3]).removeprefix("−")
    yield f"T = 0.1 gains {few.gains[0.1]} by HMC with 3000 rows, T = 3 loses {warm}"
    (stuck,) = select(here, rows=3000, temperature=0.3, method=full)
    assert np.isinf(stuck["worst R-hat"])
    (none,) = select(here, rows=10_000, temperature=0.1, method="HMC, none accepted")
    assert none["accepted"] == 0
    yield f"with trajectories of {none['leapfrogs']:.0f} leapfrogs"
    cold = [r for n in (3000, 10_000) for r in select(here, rows=n, temperature=0.1, method=long)]
    yield "R-hats of {:.2f} and {:.2f}".format(*(r["median R-hat"] for r in cold))
    yield "along gradients {:.0f} and {:.0f} times too hot".format(
        *(r["along gradients"] for r in cold)
    )


def decays_of_ensembles(rows):
    found = sorted({r["decay"] for r in rows if r["method"] == "ensemble"})
    *others, last = (f"{value:g}" for value in found)
    yield f"chose α = {', '.join(others)} or {last}"


def cold_in_a_sentence(rows):
    """By how much T = 0.1 is better than T = 1 with 1000 images, and T = 1 than the ensemble."""
    found = _by_rows_and_prior(rows)
    cold = [str(found[1000, prior].gains[0.1]) for prior in (0.3, 1, 2)]
    over = [str(found[1000, prior].over_ensemble) for prior in (0.3, 1, 2)]
    yield "T = 0.1 gains {} nats over T = 1 with α = 0.3, {} with α = 1, {} with α = 2".format(
        *cold
    )
    yield "T = 1 gains {}, {} and {} over a deep ensemble".format(*over)
    many = [str(found[10_000, prior].gains[0.1]) for prior in (0.3, 1, 2)]
    yield "On 10,000 images T = 0.1 gains {}, {} and {}".format(*many)
    yield from cold_with_shifts_in_a_sentence(rows)


def cold_with_shifts(rows):
    """What T = 0.1 gains over T = 1 with shifts, and where either is above the ensemble."""
    shifts, counts, wide = temperature_verdicts.SHIFTED, (300, 1000, 3000, 10_000), (1, 2)
    moved = _by_rows_and_prior(rows, shifts)
    gains = [
        "{}, {} and {}".format(*(moved[n, a].gains[0.1] for a in (0.3, *wide))) for n in counts
    ]
    yield "gains {} nats with 300 rows, {} with 1000 (α = 0.3, 1 and 2), {} with 3000, {} with 10,000".format(
        *gains
    )
    plain = _by_rows_and_prior(rows)
    times = {
        (n, a): moved[n, a].gains[0.1].value / plain[n, a].gains[0.1].value
        for n in counts
        for a in (0.3, *wide)
    }
    narrow = [v for (_, a), v in times.items() if a == 0.3]
    yield f"{min(narrow):.1f} to {max(narrow):.1f} times as much as without for α = 0.3"
    yield f"{min(v for (_, a), v in times.items() if a in wide):.1f} times and more for the others"
    one = {key: v.over_ensemble for key, v in moved.items()}
    assert all(gap.value < 0 and gap.is_sure for (n, _), gap in one.items() if n <= 1000)
    yield "{} and {} with 3000".format(*(one[3000, a] for a in wide))
    yield "above it by {} and {} with 10,000".format(*(one[10_000, a] for a in wide))
    cold = select(rows, shifts=shifts, temperature=0.1, method="HMC")
    above = [
        "{} and {}".format(
            *(
                number(np.mean([r["over ensemble"] for r in select(cold, rows=n, prior=a)]), 3)
                for a in wide
            )
        )
        for n in counts
    ]
    yield "{} nats above it with 300 rows, {} with 1000, {} with 3000 and {} with 10,000".format(
        *above
    )
    yield "{} and {} with 3000 and 10,000".format(
        *(moved[n, 0.1].gains[0.1] for n in (3000, 10_000))
    )


def other_temperatures_with_shifts(rows):
    """Gains over T = 1 with shifts, and which part of that of T = 0.1 is there at T = 0.3."""
    shifts = temperature_verdicts.SHIFTED
    moved = _by_rows_and_prior(rows, shifts)

    def pair(t, *where):
        return "{} and {}".format(*(moved[one].gains[t] for one in where))

    wide = ((300, 1), (300, 2))
    yield f"T = 0.03 gains {pair(0.03, *wide)} over T = 1 with α = 1 and 2"
    middle = ((1000, 0.3), (1000, 1))
    yield f"T = 0.3 gains {pair(0.3, *wide)}; with 1000 rows, two subsets, T = 0.03"
    yield f"T = 0.03 gains {pair(0.03, *middle)} and T = 0.3 gains {pair(0.3, *middle)} with α = 0.3 and 1"
    yield f"with 3000 rows {pair(0.3, (3000, 0.3), (3000, 1))}"
    assert all(moved[one].gains[3.0].value < 0 for one in wide)
    yield f"worse, by {pair(3.0, *wide).replace('−', '')} with 300 rows"
    assert all(moved[one].gains[3.0].is_sure for one in middle)
    yield f"by {pair(3.0, *middle).replace('−', '')} with 1000 and α = 0.3 and 1"
    yield f"T = 3 gains {pair(3.0, (300, 0.1), (1000, 0.1))} with 300 and 1000 rows"
    yield f"and {moved[3000, 0.1].gains[3.0]} with 3000"
    many = moved[10_000, 0.3].gains
    yield f"α = 1 T = 3 loses {moved[3000, 1].gains[3.0]}".replace("−", "")
    yield f"10,000 and α = 0.3 {many[3.0]}".replace("−", "")
    yield f"α = 0.3 T = 0.3 gains {many[0.3]} and T = 0.03 gains {many[0.03]}"
    assert all(v.better for v in moved.values())
    parts = []
    for n, prior in (*wide, (300, 0.3), *itertools.product((1000, 3000), (0.3, 1)), (10_000, 0.3)):
        own = select(rows, rows=n, prior=prior, shifts=shifts, method="HMC")
        warm = {r["subset"]: r["gain"] for r in own if r["temperature"] == 0.3}
        cold = {r["subset"]: r["gain"] for r in own if r["temperature"] == 0.1}
        parts.append(sum(warm.values()) / sum(cold[subset] for subset in warm))
    yield f"{100 * min(parts):.0f} to {100 * max(parts):.0f} % of what T = 0.1 gains"


def cold_with_shifts_in_a_sentence(rows):
    """By number of rows, α = 1: what T = 0.1 gains, and T = 1 over the ensemble."""
    shifts = temperature_verdicts.by_shifts(rows)[temperature_verdicts.SHIFTED]
    own = [v for v in shifts if v.prior == 1]
    gains = [f"{v.gains[0.1].value:.3f}" for v in own]
    yield "it gains {}, {}, {} and {} nats with 300, 1000, 3000 and 10,000 images (α = 1)".format(
        *gains
    )
    yield f"T = 1 is {own[-1].over_ensemble} above the ensemble with 10,000"


def both_subsets_of_many_rows(rows):
    """What T = 0.1 gains over T = 1 with 10,000 rows, on each subset."""
    cold = select(rows, rows=10_000, temperature=0.1, shifts="none")
    gains = [[number(r["gain"], 4) for r in select(cold, prior=a)] for a in (0.1, 0.3, 1, 2)]
    yield (
        "{} and {} nats with α = 0.1, {} and {} with 0.3, {} and {} with 1); with α = 2 they are {} and {}"
    ).format(*itertools.chain(*gains))
