"""What the page of diagnostics says of the judge of a run, in parts of sentences."""

import numpy as np

from benchmarks._shared.sampled_runs import select

DRAWS = (50, 5000)


def told_of_known_distributions(rows):
    """How true stated errors are in runs within tolerance, with many scalars and with one."""
    told = [r for r in rows if r["part"] == "null" and r["within"] > 0]
    many = [r for r in told if r["scalars"] > 1]
    single = [r for r in told if r["scalars"] == 1]
    yield f"in the mean over {counted(told):.0f} runs within tolerance {100 * mean(told, 'covered'):.1f} %"
    yield f"in the {counted(many):.0f} with many scalars {100 * mean(many, 'covered'):.1f} %"
    yield f"the stated error of the {counted(single):.0f} with one scalar"
    for name, own, at in (
        (
            "these is {:.2f} times the actual one",
            many,
            "({:.2f} at 50 draws a chain, {:.2f} at 5000)",
        ),
        ("by its standard deviation, {:.2f} times", single, "({:.2f} and {:.2f})"),
    ):
        yield name.format(over_actual(own))
        yield at.format(*(over_actual([r for r in own if r["draws"] == d]) for d in DRAWS))
    drift = [r for r in rows if r["part"] == "power" and "drift" in r["case"]]
    called = sum(r["disagree"] * r["runs"] for r in drift)
    yield f"Drift is called disagreement in {called:.0f} of {sum(r['runs'] for r in drift):.0f} runs"
    assert not any(r["within"] for r in drift)
    # A chain stays in its mode for twenty draws, and has the right mass in the other one.
    mass, dwell = 0.04, 20
    away = (1 - mass) * (1 - mass / (1 - mass) / dwell) ** 4999
    yield f"in one of {round(1 / away, -3):,.0f}"


def counted(rows):
    """Runs within tolerance."""
    return sum(r["within"] * r["runs"] for r in rows)


def mean(rows, column):
    """The mean over runs within tolerance."""
    return np.average([r[column] for r in rows], weights=[r["within"] * r["runs"] for r in rows])


def over_actual(rows):
    """The stated error over the actual one."""
    return mean(rows, "stated") / mean(rows, "actual")


def told_of_real_posteriors(rows):
    """Judgements by what they say, and how true errors are that are not within tolerance yet."""
    assert all(len(select(rows, case=c, draws=150)) == 6 for c in {r["case"] for r in rows})
    apart = select(rows, verdict="chains_disagree")
    tempered = [r for r in apart if r["case"] == "rdata, tempered"]
    yield f"{len(apart)} judgements are that chains disagree: {len(tempered)} of the tempered runs"
    assert sorted(r["draws"] for r in tempered) == [150, 300]
    assert sorted(r["case"] for r in apart if r not in tempered) == [
        "digits, MCLMC",
        "rdata, MCLMC",
    ]
    own = select(rows, case="rdata, tempered")
    covered = {d: np.mean([r["covered"] for r in own if r["draws"] == d]) for d in (150, 300, 600)}
    first, *later = (100 * value for value in covered.values())
    yield f"cover {first:.0f} % of the scalars after 150 draws"
    yield "{:.0f} % after 300 and {:.0f} % after 600".format(*later)
    last = [r["covered"] for r in own if r["draws"] == 600]
    yield f"{100 * min(last):.0f} to {100 * max(last):.0f} % by run"
    missed = {}
    for case in ("digits, MCLMC", "rdata, MCLMC", "rdata, tempered"):
        known = [
            r
            for r in select(rows, case=case)
            if np.isfinite(r["stated"]) and not r["verdict"].startswith("within")
        ]
        missed[case] = np.mean([r["actual"] for r in known]) / np.mean([r["stated"] for r in known])
    digits, *both = missed.values()
    yield f"digits {digits:.1f} times, rdata by MCLMC and by the ladder {both[0]:.2f} times"
    assert f"{both[0]:.2f}" == f"{both[1]:.2f}"
