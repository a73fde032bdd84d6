"""What the page of mixing says of stored rows: lines of tables, and numbers as they stand in sentences."""

from functools import partial

import numpy as np
from pages_of_studies import line

from benchmarks._shared.sampled_runs import select
from benchmarks.mixing import (
    acceptance,
    bias_by_dimension,
    hidden_heat,
    mnist_gibbs_long,
    mnist_gibbs_words,
    modes_by_width,
    networks_beside_full_batch,
)


def heat_by_method(rows):
    """Variances of predictions by method and setting, and temperatures of momenta, over what is right."""

    def short(value):
        return "above 900" if value > 900 else f"{value:.2f}" if value < 10 else f"{value:.0f}"

    table = hidden_heat.averaged(rows)
    for method in hidden_heat.METHODS:
        own = [row for row in table if row["method"] == method]
        heat = sorted(row["kinetic"] for row in own)
        momenta = "" if np.isnan(heat).any() else f"{short(heat[0])} to {short(heat[-1])}"
        yield line(method, *(short(row["variance of predictions"]) for row in own), momenta)


def acceptance_by_method(rows):
    """Lines of the table, and what SGLD would lose where MALA loses one percent."""
    for row in acceptance.summary(rows):
        yield line(*map(str, row.values()))
    scales, lost = zip(
        *(acceptance.rejected_where_mala_loses_one_percent(rows, m) for m in acceptance.MODELS)
    )
    yield "where MALA rejects 1 % (h = {:.3f} and {:.3f})".format(*scales)
    yield "be rejected {:.0f} % and {:.0f} % of the time".format(*(100 * share for share in lost))
    least = [
        100 * acceptance.of_method(rows, model, acceptance.ALL_ROWS)[0]["rejected"]
        for model in acceptance.MODELS
    ]
    yield "At the smallest steps here {:.0f} % and {:.0f} % still are".format(*least)


def acceptance_in_a_sentence(rows):
    """What SGLD would lose on either model where MALA loses one percent."""
    for model in acceptance.MODELS:
        _, lost = acceptance.rejected_where_mala_loses_one_percent(rows, model)
        yield f"would be rejected {100 * lost:.0f} % of the time where MALA's lose 1 %"


def shared_noise_in_a_sentence(rows):
    ratios = {row["method"]: row["D = 1000"].split()[0] for row in bias_by_dimension.averaged(rows)}
    yield f"predictions vary {ratios['BAOAB, noise taken off']} times too much while momenta are right"
    yield f"with control variates {ratios['BAOAB, control variate']} times"


def bias_by_rows_and_weights(rows):
    """How much too wide predictions are by rows and by weights, and what momenta say."""
    table = {row["method"]: row for row in bias_by_dimension.averaged(rows)}
    own = [table["BAOAB"][f"{rows}D = 1000"] for rows in ("500 rows, ", "", "10,000 rows, ")]
    few, usual, many = (cell.split()[0] for cell in own)
    yield f"{few} times too wide with 500 rows, {usual} with 2000 and {many} with 10,000"
    found = [
        select(rows, method="BAOAB", dimension=1000, rows=count) for count in (500, 2000, 10_000)
    ]
    heat, steps = (
        [np.mean([r[name] for r in some]) for some in found] for name in ("kinetic", "step size")
    )
    yield "momenta of BAOAB are at {:.2f}, {:.2f} and {:.2f}".format(*heat)
    yield "({:.3f}, {:.3f} and {:.3f})".format(*steps)
    wide = [
        table[method][f"D = {dimension}"].split()[0]
        for method in ("BAOAB", "SGHMC")
        for dimension in (1000, 4000, 32_000, 100_000)
    ]
    low, high = (pick(float(v) for v in wide) for pick in (min, max))
    yield f"{low:.1f} to {high:.1f} times too wide from D = 1000 to 100,000"
    yield "{:.0f} and {:.0f} times too wide at D = 4000 and 32,000".format(
        *(float(table["MCLMC"][f"D = {d}"].split()[0]) for d in (4000, 32_000))
    )


def minibatches_of_networks_in_a_sentence(rows):
    ratios = {
        row["method"]: row["256 units, 100 rows"].split()[0]
        for row in networks_beside_full_batch.averaged(rows)
    }
    off, svrg = (ratios[f"BAOAB, {name}noise taken off"] for name in ("", "SVRG, "))
    yield f"{off} times with its noise taken off, {svrg} with SVRG"


def ends_of_images(rows):
    """The last row of each run as it is, by task and method, and of starts by where they come from."""
    words = mnist_gibbs_words
    return {(row["task"], words.name_of(row)): row for row in words.ends(rows)}


def images_and_precisions(rows):
    """Both tables of the four precisions, and what is said of them."""
    for table in (mnist_gibbs_words.predictions, mnist_gibbs_words.sampling):
        for row in table(rows):
            yield line(*row.values())
    ends, both = (
        ends_of_images(rows),
        partial(mnist_gibbs_words.both_chains, layer="Dense_0.kernel"),
    )
    for method in ("Gibbs, HMC", "HMC, collapsed"):
        found = [both(ends[task, method]) for task in ("ten digits", "two digits")]
        yield "{} on ten digits and {} on two".format(
            *(pair.replace(",", " and") for pair in found)
        )
    more = "ten digits, 10,000 images"
    methods = ("Gibbs, HMC", "HMC, collapsed", "Gibbs, SGHMC", mnist_gibbs_words.REFERENCE)
    first, second, third, last = (
        both(ends[more, method]).replace(",", " and") for method in methods
    )
    yield f"to {first} with Gibbs and HMC, to {second} with precisions integrated out"
    yield f"to {third} with SGHMC, still falling, and to {last} with the reference"
    gap = ends[more, "Gibbs, SGHMC"]
    yield f"{gap['difference']:.3f} ± {gap['its error']:.3f} nats below SGHMC"
    first = next(r for r in rows if r["method"] == "HMC, non-centred, moves")
    assert first["task"] == "ten digits"
    yield f"ran to a precision of {first['mean Dense_0.kernel']:.3f} in warm-up and was at"
    svrg = ends["ten digits", "BAOAB, non-centred, SVRG, noise taken off"]
    sghmc = [ends[task, "Gibbs, SGHMC"] for task in ("ten digits", "two digits")]
    yield "{:.0f} and {:.0f} along gradients".format(*(r["gradient temperature"] for r in sghmc))
    yield f"({svrg['gradient temperature']:.1f} with SVRG)"
    own = [ends[task, "HMC, non-centred, moves, long"] for task in ("ten digits", "two digits")]
    yield "{:.3f} and {:.3f} from each other".format(*(r["chains apart"] for r in own))
    dead = ends["ten digits", "start, optimize"]
    yield f"error {dead['error, average']:.3f} on ten digits"


def long_runs_of_images(rows):
    """Three tables of the long runs, and what becomes of the precisions."""
    for table in (
        mnist_gibbs_long.agreement,
        mnist_gibbs_words.predictions,
        mnist_gibbs_words.sampling,
    ):
        for row in table(rows):
            yield line(*row.values())
    found = ends_of_images(rows)
    gaps = {
        name: "{:.3f} ± {:.3f}".format(abs(row["difference"]), row["its error"])
        for (_, name), row in found.items()
        if row["difference"] != ""
    }
    yield f"alone score {gaps['start, trained under N(0, 1)']} above it, SGHMC {gaps['Gibbs, SGHMC']}"
    yield f"collapsed HMC {gaps['Gibbs, HMC']} and {gaps['HMC, collapsed']} below"
    both = found["two digits", f"{mnist_gibbs_long.AXES}, both starts"]
    yield f"scores −{-both['log score, average']:.4f} ± {both['its error, chains']:.4f}"
    worst, median = (both[f"{of} R-hat, precisions"] for of in ("worst", "median"))
    yield f"a worst R-hat of {worst:.2f} with a median of {median:.2f}"
    shared = found["two digits", f"{mnist_gibbs_long.SHARED}, both starts"]
    each = ", ".join(f"{shared[f'R-hat {layer}']:.2f}" for layer in mnist_gibbs_long.LAYERS)
    yield f"the four R-hats are {each} (first"
    pairs = [
        "−{:.4f} and −{:.4f}".format(
            *(
                -found["two digits", method + start]["log score, average"]
                for method in mnist_gibbs_long.LONG_METHODS
            )
        )
        for start in ("", ", optimize")
    ]
    yield f"trained weights score {pairs[0]} along the two kinds of axes, from `optimize` {pairs[1]}"
    ends = [
        value
        for start in mnist_gibbs_long.START_KINDS
        for row in mnist_gibbs_words.ends(rows)
        if (row["method"], row["start"]) == (mnist_gibbs_long.SHARED, start)
        for value in (row["mean Dense_0.bias"], row["mean Dense_0.bias, second chain"])
    ]
    yield f"13,000 passes to {min(ends):.0f} to {max(ends):.1f} at the end"


def precisions_in_a_sentence(rows):
    ends = ends_of_images(rows)

    def pair(method, task="ten digits"):
        row = ends[task, method]
        names = ("mean Dense_0.kernel", "mean Dense_0.kernel, second chain")
        return "{:.3g} and {:.3g}".format(*(row[name] for name in names))

    sghmc = ends["ten digits", "Gibbs, SGHMC"]
    begin, long = pair("start, trained under N(0, 1)"), pair("HMC, non-centred, moves, long")
    yield f"non-centred HMC with moves takes the precision of the first kernel from {begin} to {long}"
    yield f"Gibbs with HMC to {pair('Gibbs, HMC')}, collapsed HMC to {pair('HMC, collapsed')}"
    yield f"SGHMC to {pair('Gibbs, SGHMC')}"
    yield f"{sghmc['difference']:.3f} ± {sghmc['its error']:.3f} nats"
    methods = ("HMC, non-centred, moves, long", "Gibbs, HMC", "HMC, collapsed", "Gibbs, SGHMC")
    more = (pair(method, "ten digits, 10,000 images") for method in methods)
    yield f"On 10,000 images the same order: {', '.join(more)}"


def modes_in_sentences(rows):
    found = modes_by_width.means(rows)

    def of(units, count):
        (row,) = modes_by_width.by_width([r for r in found if r["width"] == units], "energy", count)
        return row

    deep, wide = ([of(units, count) for count in (100, 200)] for units in (4, 64))
    yield "{:.0f} and {:.0f} nats above the least".format(
        *(row["median above the least"] for row in deep)
    )
    widest = [row for row in found if row["width"] == 64]
    yield f"at most {max(row['median above the least'] for row in widest):.2f} nats above the least"
    flat = [100 * row["flat"] for row in widest]
    yield f"{min(flat):.0f} to {max(flat):.0f} % of directions are flat"
    yield "{:.2f} and {:.2f} standard deviations of the noise apart".format(
        *(row["low ones apart"] for row in wide)
    )
    yield f"low modes are {of(64, 30)['low ones apart']:.2f} apart with 64 units"


def modes_in_a_sentence(rows):
    found = modes_by_width.by_width(modes_by_width.means(rows), "energy", 200)
    four, widest = (next(r for r in found if r["width"] == units) for units in (4, 64))
    yield f"lies {four['median above the least']:.0f} nats above the least with 4 units, and"
    yield f"{widest['median above the least']:.2f} with 64, where {100 * widest['flat']:.0f} % of"
