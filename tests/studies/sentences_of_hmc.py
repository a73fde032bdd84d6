"""What pages say of methods beside long HMC: lines of tables, and numbers as they stand in sentences."""

from pages_of_studies import line, number

from benchmarks.mixing import against_hmc_prior, against_hmc_words
from benchmarks.mixing.against_hmc_methods import AGAIN, CHOSEN, EQUAL, NARROW, REFERENCE, SVRG

PAIR = ("deep ensemble", "mean field")


def prior_scales(rows):
    """Lines of the table of scales, and which is taken."""
    for r in rows:
        yield line(
            f"{r['scale']:g}",
            f"{number(r['calibration, held out'], 3)} ± {number(r['its error, held out'], 3)}",
            number(r["too sure, held out"], 3),
            number(r["calibration, test"], 3),
            f"{number(r['log score, test'], 3)} ± {number(r['over chains, test'], 3)}",
        )
    scale = against_hmc_prior.chosen(rows)
    (row,) = (r for r in rows if r["scale"] == scale)
    yield f"The choice is s = {scale:g}"
    yield f"are still {number(-row['too sure, held out'], 3)} too low"
    best = max(rows, key=lambda r: r["log score, test"])
    yield f"its log score is best at s = {best['scale']:g}"


def of(rows, problem):
    """Means over seeds by method."""
    found = against_hmc_words.averaged(rows)
    return {r["method"]: r for r in found if r["problem"] == problem}


def tables_beside_hmc(rows):
    """Distances, differences of log scores and calibration by method and posterior."""
    found = against_hmc_words.averaged(rows)
    for table in ("distances", "score_differences", "calibrations"):
        yield from getattr(against_hmc_words, table)(found)


def nearer_than_mean_field(rows):
    """The sentence about ensembles, and its table."""
    found = against_hmc_words.averaged(rows)
    near = list(against_hmc_words.nearer(found, *PAIR))
    count = len(against_hmc_words.problems(rows))
    every = against_hmc_words.in_all_seeds(rows, *PAIR)
    yield (
        f"A deep ensemble is nearer to HMC than mean field on {len(near)} of {count} posteriors, "
        f"by every seed on {every}"
    )
    for name in against_hmc_words.problems(rows):
        here = of(rows, name)
        methods = (*PAIR, EQUAL, AGAIN)
        # "Neither is as near as HMC itself at their budget."
        assert all(here[EQUAL]["total_variation"] < here[m]["total_variation"] for m in PAIR)
        yield line(name, *(number(here[m]["total_variation"], 3) for m in methods))


def ensembles_in_a_sentence(rows):
    found = against_hmc_words.averaged(rows)
    near = list(against_hmc_words.nearer(found, *PAIR))
    count = len(against_hmc_words.problems(rows))
    here = of(rows, CHOSEN)
    one, other = (here[m]["total_variation"] for m in PAIR)
    yield f"a deep ensemble ({one:.3f}) is nearer than mean field ({other:.3f}) on {len(near)} of {count}"


def listed(parts):
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def named(name):
    return {NARROW: "images under the narrow prior", CHOSEN: "images under the chosen one"}.get(
        name, name
    )


def findings_beside_hmc(rows):
    """What the page concludes, in parts of sentences."""
    found, names = against_hmc_words.averaged(rows), against_hmc_words.problems(rows)
    narrow, chosen = of(rows, NARROW), of(rows, CHOSEN)
    for method, subject in (("SGD", "SGD scores"), (PAIR[0], "the ensemble")):
        above, below = narrow[method]["difference"], -chosen[method]["difference"]
        assert above > 0 < below
        within = "" if abs(narrow[method]["sure"]) > 2 else " (within errors)"
        yield f"{subject} {above:.3f} nats above HMC there{within} and {below:.3f} below it under the chosen"
    off = (-narrow[m]["difference"] for m in ("SGHMC", "BAOAB", SVRG))
    yield "SGHMC and plain BAOAB score {:.3f} and {:.3f} below HMC, BAOAB with SVRG {:.3f}".format(
        *off
    )
    yield f"too flat (calibration error {narrow[REFERENCE]['calibration']:.2f})"
    stuck = min(chosen[m]["worst R-hat"] for m in (SVRG, "AMAGOLD", "SGLD", EQUAL))
    yield f"(worst R-hat {stuck:.1f} and more)"
    errors = (chosen[m]["calibration"] for m in (PAIR[0], REFERENCE))
    yield "calibration error of {:.3f}, HMC {:.3f}".format(*errors)
    near = []
    for name in names:
        here = of(rows, name)
        methods = here.keys() - {REFERENCE, AGAIN}
        best = min(methods, key=lambda m: here[m]["total_variation"])
        near.append(
            f"{best} on {named(name)} ({here[best]['total_variation']:.3f}; HMC from itself "
            f"{here[AGAIN]['total_variation']:.3f})"
        )
    yield listed(near)
    pairs = [against_hmc_words.differing(found, name) for name in names]
    above, below = (sum(len(pair[k]) for pair in pairs) for k in (0, 1))
    count = sum(r["method"] not in (REFERENCE, AGAIN) for r in found)
    yield f"{above} of {count} pairs of a method and a posterior score above HMC by more than two"
    yield f"{below} below"
    yield f"{sum(len(pair[0]) for pair in pairs[2:])} of the former on the tables"
    ranks = [number(against_hmc_words.rank_correlation(found, name)) for name in names]
    yield f"Rank correlations of distance and log score are {listed(ranks)}"
    within, all_pairs = against_hmc_words.seeds_within(rows)
    yield f"{within} of {all_pairs} pairs of seeds"
    worst = [f"{of(rows, name)[REFERENCE]['worst R-hat']:.2f}" for name in names]
    yield f"worst R-hat {listed(worst)}"


def conclusion_in_a_sentence(rows):
    """Of evidence: scores of optimisers over HMC under either prior, and what is nearest."""
    narrow, chosen = of(rows, NARROW), of(rows, CHOSEN)
    above, below = (here["SGD"]["difference"] for here in (narrow, chosen))
    yield f"SGD scores {above:.3f} nats above HMC under a prior that is too narrow, {-below:.3f} below"
    distances = (chosen[m]["total_variation"] for m in ("BAOAB", "SGHMC", EQUAL))
    yield "BAOAB {:.3f}, SGHMC {:.3f}, HMC itself {:.3f}".format(*distances)
