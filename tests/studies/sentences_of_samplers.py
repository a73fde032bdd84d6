"""What pages say, from stored rows, of samplers beside each other, matched units and Neal's posteriors."""

from functools import cache

import numpy as np
import pytest
from pages_of_studies import line, number, rows_of
from sentences_of_studies import of_tables

from benchmarks._shared.sampled_runs import RHAT_LIMIT, select
from benchmarks.mixing import which_sampler
from benchmarks.neal import story
from benchmarks.predictions import tabular_report

# The tables of `which_sampler`: one run of each method, more seeds of one, and two seeds of some.
FIRST, SEEDS, ADDED = (f"mixing/which_sampler{end}" for end in ("", "_seeds", "_added"))
RHATS = ("functions_max_rhat", "precisions_max_rhat")
DRAWS = ("functions_min_by_1000", "precisions_min_by_1000")
MCLMC, MAMS, MALA = (f"{name}, non-centred" for name in ("MCLMC", "MAMS", "MALA"))
LONG = "HMC, non-centred, long, moves"
LADDER = "tempering, HMC, non-centred"
CAREFUL, PLAIN = "NUTS, non-centred", "NUTS, non-centred, accepting 0.8"
DEEP = "NUTS, non-centred, depth 10, moves"
NAMES = {CAREFUL: "NUTS, non-centred, accepting 0.95"}
ON_DIGITS = (MCLMC, which_sampler.SMALL, "MCLMC, collapsed", LONG, MAMS, PLAIN, DEEP, CAREFUL)
ON_RDATA = (MCLMC, LADDER, "HMC, collapsed, long", "MCLMC, collapsed", MAMS, LONG, CAREFUL, PLAIN)
ON_DIGITS += (MALA,)
ON_RDATA += (which_sampler.SMALL, MALA)
# Of a row of Neal's posteriors.
COLUMNS = ("mean", "mcse", "rhat", "reference", "reference_mcse")


def told_of(tell, changing):
    """A function of the rows of one of the three tables; the others are those that are stored."""
    stored = cache(rows_of)
    return lambda rows: tell(
        {n: rows if n == changing else stored(n) for n in (FIRST, SEEDS, ADDED)}
    )


def runs_of(tables, problem, method):
    """All runs of a method: (name, row) in the order in which they were made."""
    wanted = {"problem": problem, "method": method}
    yield from (("first table, seed 0", row) for row in select(tables[FIRST], **wanted))
    # Their first row is that of the first table, rounded.
    for row in select(tables[SEEDS], **wanted)[1:]:
        yield f"[more seeds](results/which_sampler_seeds.csv), seed {row['seed']}", row
    for row in select(tables[ADDED], **wanted):
        yield f"second table, seed {row['seed']}", row


def values(tables, problem, method, column):
    """One number of all runs of a method of which it is stored."""
    return [row[column] for _, row in runs_of(tables, problem, method) if column in row]


def medians(tables, problem, method):
    """R-hat and effective draws by 1000 gradients, of functions and of log precisions."""
    return [float(np.median(values(tables, problem, method, c))) for c in (*RHATS, *DRAWS)]


def count_of_runs(tables, problem, method):
    return len([*runs_of(tables, problem, method)])


def runs_on_the_digits(tables):
    """The table of all runs of MCLMC there, and the files that the table names."""
    for name, row in runs_of(tables, "digits", MCLMC):
        draws = [f"{row[c]:.{1 if 'seeds' in name else 2}f}" if c in row else "" for c in DRAWS]
        yield line(name, *(f"{row[c]:.2f}" for c in RHATS), *draws)


def methods_on_both(tables):
    """The tables of medians, and what they leave out."""
    for method in ON_DIGITS:
        found = medians(tables, "digits", method)
        runs = count_of_runs(tables, "digits", method)
        yield line(NAMES.get(method, method), str(runs), *(f"{v:.2f}" for v in found))
    for method in ON_RDATA:
        *rhats, functions, precisions = medians(tables, "rdata", method)
        by_million = (f"{1000 * v:.2g}" for v in (functions, precisions))
        runs = count_of_runs(tables, "rdata", method)
        yield line(NAMES.get(method, method), str(runs), *(f"{v:.2f}" for v in rhats), *by_million)
    others = {
        row["method"]: medians(tables, "digits", row["method"])
        for row in (*tables[FIRST], *tables[ADDED])
        if row["problem"] == "digits" and row["method"] not in ON_DIGITS
    }
    rhats = [found[0] for found in others.values()]
    yield f"The other {len(others)} have {min(rhats):.2f} to {max(rhats):.2f} for functions"


def spread(tables, problem, method):
    """The largest number of effective draws over the least, of log precisions and of functions."""
    for column in DRAWS[::-1]:
        found = values(tables, problem, method, column)
        yield max(found) / min(found)


def runs_that_differ(tables):
    """How far runs of a method are apart, and how MCLMC's stand to those of NUTS, MAMS and long HMC."""
    apart = {(p, m): [*spread(tables, p, m)] for p in ("digits", "rdata") for m in (MCLMC, MAMS)}
    own = apart["digits", MCLMC]
    yield "a factor of {:.1f} in log precisions and of {:.0f} in functions".format(*own)
    yield "the three on rdata by {:.0f} and {:.0f}".format(*apart["rdata", MCLMC])
    yield "by {:.1f} and {:.1f} on the digits".format(*apart["digits", MAMS])
    yield "by {:.1f} and {:.0f} on rdata".format(*apart["rdata", MAMS])
    yield f"runs, which differ by up to {max(map(max, apart.values())):.0f} times"
    limits = medians(tables, "digits", PLAIN)
    counts = [
        f"{sum(v < limit for v in found)} of {len(found)}"
        for limit, column in zip(limits, RHATS)
        for found in [values(tables, "digits", MCLMC, column)]
    ]
    yield f"{counts[0]} have a lower R-hat of functions and {counts[1]} of log precisions"
    for other, name in (
        (PLAIN, "NUTS accepting 0.8"),
        (MAMS, "MAMS"),
        (LONG, "long HMC"),
        (MALA, "MALA"),
    ):
        ours, theirs = (medians(tables, "digits", m)[2:] for m in (MCLMC, other))
        ratios = (a / b for a, b in zip(ours[::-1], theirs[::-1]))
        yield "{:.1f} and {:.1f} times those of {}".format(*ratios, name)


def by_second(tables):
    """Effective draws by second of MCLMC, of tempering on rdata, of long HMC on the digits, and of MALA."""
    for problem, other, name in (
        ("rdata", LADDER, "tempering"),
        ("rdata", MALA, "MALA"),
        ("digits", LONG, "long HMC"),
        ("digits", MALA, "MALA"),
    ):
        cells = [
            " ".join(
                f"{float(f'{v:.2g}'):g}" for v in values(tables, problem, m, f"{of}_min_by_second")
            )
            for m in (MCLMC, other)
            for of in ("precisions", "functions")
        ]
        yield line(problem, "MCLMC, non-centred", *cells[:2])
        yield line(problem, name, *cells[2:])


def what_fit_rests_on(tables):
    """The one run of small steps beside those of long HMC and NUTS, on both posteriors."""
    small = which_sampler.SMALL
    of = {
        (p, m): "{:.2f} and {:.2f}".format(*medians(tables, p, m)[:2])
        for p in ("digits", "rdata")
        for m in (small, LONG, PLAIN, CAREFUL)
    }
    assert all(count_of_runs(tables, *key) == 1 for key in of)
    yield (
        f"R-hats of {of['digits', small]} (functions, log precisions) for {of['digits', PLAIN]} of NUTS "
        f"accepting 0.8 and {of['digits', LONG]} of long HMC"
    )
    yield f"R-hats of {of['rdata', small]} for {of['rdata', PLAIN]}, and for {of['rdata', CAREFUL]} accepting"
    longer = [
        "{:.3f} and {:.3f}".format(*(row[c] for c in RHATS))
        for method in (small, LONG)
        for row in rows_of("mixing/hard_posteriors", problem="digits", method=method)
        if row["gradients"] == 1e5
    ]
    yield "they have {} where long HMC has {}".format(*longer)


def tempering_on_the_digits(tables):
    """Its effective draws there are the most that so few draws can have."""
    (row,) = select(tables[FIRST], problem="digits", method=LADDER)
    # Of n draws there are at most n log₁₀ n effective ones, and of such short chains no fewer than n.
    draws = 32
    assert row["precisions_min_ess"] == pytest.approx(draws * np.log10(draws), rel=1e-4)
    yield (
        f"{draws // which_sampler.CHAINS} draws a chain, which are too few to count effective draws: its "
        f"R-hats are {row['functions_max_rhat']:.2f} and {row['precisions_max_rhat']:.2f}"
    )


def seeds_begin_with_the_first_table(rows):
    """The stored seeds begin with the run that the first table has in full."""
    first = rows_of(FIRST, problem="digits", method=MCLMC)[0]
    for column in (*RHATS, DRAWS[1]):
        assert rows[0][column] == pytest.approx(
            first[column], abs=0.05 if "1000" in column else 0.005
        )
    every = [
        *values({FIRST: [first], SEEDS: rows, ADDED: rows_of(ADDED)}, "digits", MCLMC, DRAWS[1])
    ]
    yield (
        f"MCLMC at its own step has {min(every):.1f} to {max(every):.1f} in {len(every)} runs of "
        "`which_sampler`"
    )


def samplers_in_a_sentence(tables):
    """The medians of both posteriors, in the table of evidence."""
    of = {
        (p, m): medians(tables, p, m)[0]
        for p in ("rdata", "digits")
        for m in (MCLMC, CAREFUL, PLAIN, MAMS, DEEP)
    }
    own = values(tables, "digits", MCLMC, RHATS[0])
    yield (
        f"{of['rdata', MCLMC]:.2f} on Neal's rdata ({count_of_runs(tables, 'rdata', MCLMC)} runs; NUTS "
        f"accepting 0.95 and 0.8: {of['rdata', CAREFUL]:.2f} and {of['rdata', PLAIN]:.2f})"
    )
    yield (
        f"{of['digits', MCLMC]:.2f} on the digits ({len(own)} runs, {min(own):.2f} to {max(own):.2f}; NUTS "
        f"{of['digits', CAREFUL]:.2f} and {of['digits', PLAIN]:.2f}, with depth 10 and moves "
        f"{of['digits', DEEP]:.2f}, MAMS {of['digits', MAMS]:.2f})"
    )
    small = [medians(tables, p, which_sampler.SMALL)[0] for p in ("rdata", "digits")]
    assert small[0] > of["rdata", CAREFUL]
    yield "it has {:.2f} and {:.2f} (one run each)".format(*small)


def samplers_in_the_guide(tables):
    """MCLMC on the digits beside NUTS, MAMS and long HMC, and what its one run of small steps has."""
    own = values(tables, "digits", MCLMC, RHATS[0])
    low, high = min(own), max(own)
    of = {m: "{:.2f} and {:.2f}".format(*medians(tables, "digits", m)[:2]) for m in ON_DIGITS}
    yield f"five runs at its own step, has R-hat {of[MCLMC]} (functions, log precisions)"
    yield f"{low:.2f} to {high:.2f} by run for functions"
    plain, careful, long = (of[m].replace(" and", ",") for m in (PLAIN, CAREFUL, LONG))
    yield f"NUTS {plain} (target acceptance 0.8) and {careful} (0.95), long HMC {long}"
    yield f"MAMS, three runs, {of[MAMS]}"
    yield f"small steps of `fit` it has {of[which_sampler.SMALL]}"
    yield "by factors of {:.1f} and {:.0f}".format(*spread(tables, "digits", MCLMC))
    small, nuts = (medians(tables, "digits", m)[0] for m in (which_sampler.SMALL, PLAIN))
    yield f"one run of it has a lower R-hat than one of NUTS on the digits ({small:.2f} for {nuts:.2f})"


def chains_that_never_meet(rows):
    assert which_sampler.informative(rows, "functions") == ["rdata", "digits"]
    assert which_sampler.informative(rows, "precisions") == ["rdata", "digits"]
    most = [
        max(max(r["functions_min_ess"], r["precisions_min_ess"]) for r in rows if r["problem"] == p)
        for p in ("yacht", "airfoil")
    ]
    return ["no method has more than {:.1f} and {:.1f} there".format(*most)]


def beside_nuts(rows, name="digits"):
    """Effective draws of small steps over those of NUTS, at both targets of acceptance."""
    return [
        f"{ratio:.1f}"
        for nuts in (CAREFUL, PLAIN)
        for ratio in which_sampler.times(rows, name, which_sampler.SMALL, nuts)
    ]


def _share(value, digits=1):
    return f"{100 * value:.{digits}f}"


def units_matched(rows):
    """The table of shares between chains, and what the index says of them."""
    columns = ("between chains", "between, matched")
    for row in rows:
        units = f"{row['width']} {row['activation']}"
        yield line(row["table"], units, *(f"{_share(row[c])} %" for c in columns))
    by = {(r["table"], r["width"], r["activation"]): r for r in rows}
    yacht = sorted(row["between, matched"] for row in select(rows, table="yacht"))
    boston = [
        by["boston", width, kind]["between, matched"]
        for width, kind in ((4, "tanh"), (4, "relu"), (16, "tanh"))
    ]
    yield f"matching hidden units leaves {_share(yacht[0])} to {_share(yacht[-1])} % of the weights'"
    yield "and {:.0f}, {:.0f} and {:.1f} % on boston".format(*(100 * value for value in boston))
    last = by["boston", 16, "relu"]
    yield "from {} to {} % with 16 relu".format(*(_share(last[c], 0) for c in columns))


def units_in_a_sentence(rows):
    by = {(r["table"], r["width"], r["activation"]): r for r in rows}

    def left_of(*key):
        return "{} of {} %".format(
            *(_share(by[key][c]) for c in ("between, matched", "between chains"))
        )

    tanh = [by["yacht", width, "tanh"]["between chains"] for width in (4, 16)]
    yield "nearly: {} and {} % of".format(*map(_share, tanh))
    yield f"leaves {left_of('boston', 4, 'tanh')} (4 tanh), {left_of('boston', 4, 'relu')} (4 relu)"
    yield f"and {left_of('boston', 16, 'tanh')} (16 tanh)"
    yield "takes nothing away with 16 relu units ({1} of {0} %)".format(
        *(_share(by["boston", 16, "relu"][c]) for c in ("between chains", "between, matched"))
    )


def means_within_modes(rows):
    """Joint errors between means of converged routes and his, over all draws and within modes."""
    routes = {}
    for row in rows:
        numbers = {k: float("nan") if row[k] == "" else row[k] for k in COLUMNS}
        routes.setdefault((row["problem"], row["route"]), {})[row["quantity"]] = numbers
    every, modes, predictions = [], {}, []
    for (_, route), found in routes.items():
        story.widen_minor_mode(found)
        z = story.from_reference(found)
        if not z or story.worst_rhat(found) > RHAT_LIMIT:
            continue
        every.append(max(map(abs, z.values())))
        predictions.append(story.mean(found, "predictions_max_abs_z"))
        within = {q: _joint_errors(row) for q, row in found.items() if _is_of_a_mode(q)}
        if within:
            quantity = max(within, key=within.get)
            modes[route.removeprefix("tempering noncentered").strip() or "HMC"] = (
                quantity,
                within[quantity],
            )
    assert len(every) == 4
    assert modes["NUTS"][0] == "main_mode_test_log_predictive"
    yield f"means within {max(every):.1f} joint errors, predictions {max(predictions):.1f}"
    yield (
        f"within the modes of rdata {modes['HMC'][1]:.1f} (HMC), {modes['NUTS'][1]:.1f} (NUTS, score of the "
        f"main mode), {modes['MAMS'][1]:.1f} (MAMS)"
    )


def _is_of_a_mode(quantity):
    return quantity.startswith(("main_mode_", "minor_mode_")) and quantity != "minor_mode_mass"


def _joint_errors(row):
    return abs(row["mean"] - row["reference"]) / np.hypot(row["mcse"], row["reference_mcse"])


def pairs_of_the_guide(rows):
    """What learned precisions gain of the evidence, in pairs of models of the function."""
    keys = ("width", "layers", "activation")
    found = select(rows, data="function")
    assert {row["verdict"] for row in found} == {"replicas agree"}
    fixed = {tuple(r[k] for k in keys): r["log_evidence"] for r in select(found, prior="fan_in")}
    gains = [
        r["log_evidence"] - fixed[tuple(r[k] for k in keys)] for r in select(found, prior="group")
    ]
    assert min(gains) > 0
    yield f"by {min(gains):.1f} to {max(gains):.0f} nats in all {len(gains)} pairs of models"


def ensembles_of_the_guide(rows):
    """What ensembles score below MCLMC on tables, what MCLMC scores above NUTS, and what they cost."""
    gains, errors = zip(*(map(float, cell.split(" ± ")) for cell in of_tables(rows, "MCLMC")))
    assert all(gain > 2 * error for gain, error in zip(gains, errors))
    yield f"{min(gains):.2f} to {max(gains):.2f} nats below MCLMC with the same network and prior"
    yield f"{min(gains):.2f} to {max(gains):.2f} nats less on six tables"
    small = ("yacht", "energy", "concrete", "airfoil")
    over = [float(cell.split()[0]) for cell in of_tables(rows, "MCLMC", "NUTS", small)]
    yield f"{min(over):.2f} to {max(over):.2f} nats above NUTS on four tables"
    spent = {
        method: [
            np.mean([r["CPU seconds"] for r in select(rows, table=name, method=method)])
            for name in tabular_report.TABLES
        ]
        for method in ("deep ensemble", "MCLMC")
    }
    yield "{:.0f} to {:.0f} CPU seconds where MCLMC takes {:.0f} to {:.0f}".format(
        *(end(spent[m]) for m in ("deep ensemble", "MCLMC") for end in (min, max))
    )


def ensembles_of_one_network(rows):
    """Log scores of an ensemble and of HMC on the small network."""
    of = {r["method"]: r["lppd"] for r in select(rows, model="network")}
    yield f"{number(of['deep ensemble'])} against HMC's {number(of['HMC'])} nats"
