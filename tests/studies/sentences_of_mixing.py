"""What the page of mixing says of stored rows: lines of tables, and numbers as they stand in sentences."""

import numpy as np
from pages_of_studies import line, number

from benchmarks._shared.sampled_runs import select
from benchmarks.mixing import (
    acceptance,
    bias_by_dimension,
    hidden_heat,
    mnist_gibbs,
    mnist_gibbs_long,
    mnist_gibbs_words,
    modes_by_width,
    networks_beside_full_batch,
)
from benchmarks.mixing.mnist_gibbs_methods import TRAINED


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


def heat_in_a_sentence(rows):
    """Variances at T = 1 with the noise taken off, with 10,000 rows and fewer and with all images."""
    table = select(hidden_heat.averaged(rows), method="BAOAB, noise taken off", temperature=1)
    few, many = (
        [r["variance of predictions"] for r in table if (r["rows"] > 10_000) == larger]
        for larger in (False, True)
    )
    heat = [r["kinetic"] for r in table]
    assert max(np.abs(np.subtract(heat, 1))) <= 0.05
    yield f"off {min(few):.2f} to {max(few):.2f} times at T = 1 with up to 10,000 rows"
    yield "({:.2f} and {:.2f} with 60,000".format(*many)


def acceptance_by_method(rows):
    """Lines of the table, and what SGLD would lose where MALA loses one percent."""
    for row in acceptance.summary(rows):
        yield line(*map(str, row.values()))
    scales, lost = zip(
        *(acceptance.rejected_where_mala_loses_one_percent(rows, m) for m in acceptance.MODELS)
    )
    yield "where MALA rejects 1 % (h = {:.3f} and {:.3f})".format(*scales)
    yield "be rejected {:.0f} % and {:.0f} % of the time".format(*(100 * share for share in lost))
    own = select(acceptance.summary(rows), method="SGLD, accepted by its minibatch")
    yield "minibatch SGLD has {} and {} where 3 is known".format(*(r["power"] for r in own))
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
    off = "BAOAB, noise taken off"
    heat = [r["kinetic"] for r in select(rows, rows=2000, dimension=1000, method=off)]
    assert np.abs(np.subtract(heat, 1)).max() < 0.05
    yield f"momenta are as near, and predictions vary {ratios[off]} times too much"
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
    yield f"and by four with 10,000 rows, where it shows {heat[-1]:.1f}"
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
    ends = ends_of_images(rows)
    for method in ("Gibbs, HMC", "HMC, collapsed"):
        found = [kernels_of(ends[task, method]) for task in ("ten digits", "two digits")]
        yield "{} on ten digits and {} on two".format(*found)
    more = "ten digits, 10,000 images"
    methods = ("Gibbs, HMC", "HMC, collapsed", "Gibbs, SGHMC", mnist_gibbs_words.REFERENCE)
    first, second, third, last = (kernels_of(ends[more, method]) for method in methods)
    yield f"to {first} with Gibbs and HMC, to {second} with precisions integrated out"
    yield f"to {third} with SGHMC, still falling, and to {last} with the reference"
    gap = ends[more, "Gibbs, SGHMC"]
    yield f"{gap['difference']:.3f} ± {gap['its error']:.3f} nats below SGHMC"
    far = [
        [
            r["mean Dense_0.kernel"]
            for r in select(rows, task=task, method="HMC, non-centred, moves", start=TRAINED)
        ]
        for task in ("ten digits", mnist_gibbs.OTHER_TWO)
    ]
    yield "ran to a precision of {:.3f} and {:.3f} in warm-up and were at {:.3g} and {:.3g}".format(
        *(run[0] for run in far), *(run[-1] for run in far)
    )
    left = ends["two digits", "HMC, non-centred, moves, end of SGHMC"]
    yield f"the end of SGHMC the two digits come to {kernels_of(left)}"
    svrg = ends["ten digits", "BAOAB, non-centred, SVRG, noise taken off"]
    sghmc = [ends[task, "Gibbs, SGHMC"] for task in ("ten digits", "two digits")]
    yield "{:.0f} and {:.0f} along gradients".format(*(r["gradient temperature"] for r in sghmc))
    yield f"({svrg['gradient temperature']:.1f} with SVRG)"
    own = [ends[task, "HMC, non-centred, moves, long"] for task in ("ten digits", "two digits")]
    yield "{:.3f} and {:.3f} from each other".format(*(r["chains apart"] for r in own))
    mended = ends["ten digits", "start, optimize"]
    yield f"does no longer (error {mended['error, average']:.3f})"
    yield from second_pair(ends, methods)
    yield from temperature_and_mass(ends)


def kernels_of(row):
    """The precision of the first kernel, of both chains, in words."""
    return mnist_gibbs_words.both_chains(row, "Dense_0.kernel").replace(",", " and")


def second_pair(ends, methods):
    """What becomes of 4 and 9: precisions by method, and log scores beside the reference's."""
    own = {name: row for (task, name), row in ends.items() if task == mnist_gibbs.OTHER_TWO}
    start = own["start, trained under N(0, 1)"]
    first, second, third, last = (kernels_of(own[method]) for method in methods)
    yield f"From {kernels_of(start)} the precision of the first kernel came to {first} with Gibbs and HMC"
    yield f"to {second} with precisions integrated out, to {third} with SGHMC"
    yield f"and to {last} with the reference"
    gaps = [f"{-own[m]['difference']:.3f} ± {own[m]['its error']:.3f}" for m in methods[:3]]
    yield "Their averages are {}, {} and {} nats below that of the reference".format(*gaps)
    yield f"alone are {start['difference']:.3f} ± {start['its error']:.3f} above it"


def temperature_and_mass(ends):
    """Two digits at T = 0.1 and with mass 4: where precisions end."""
    own = {name: row for (task, name), row in ends.items() if task == mnist_gibbs.TWO}

    def hundreds(row):
        values = (row["mean Dense_0.kernel"], row["mean Dense_0.kernel, second chain"])
        return "{:,.0f} and {:,.0f}".format(*(round(v, -2) for v in values))

    cold, hot = (own[f"{m}, T = 0.1"] for m in ("Gibbs, SGHMC", "Gibbs, HMC"))
    yield f"{hundreds(cold)} with SGHMC (error {cold['error, average']:.3f}"
    yield f"kinetic temperature {cold['kinetic temperature']:.2f} in place of 0.1), {hundreds(hot)} with HMC"
    yield f"(error {hot['error, average']:.3f}, log score {number(hot['log score, average'], 3)})"
    sghmc, hmc = ((own[m], own[f"{m}, mass 4"]) for m in ("Gibbs, SGHMC", "Gibbs, HMC"))
    yield f"{kernels_of(sghmc[1])} where mass 1 comes to {kernels_of(sghmc[0])} with as many passes"
    lost = sghmc[0]["log score, average"] - sghmc[1]["log score, average"]
    yield f"and {lost:.3f} nats less for the average"
    yield f"({hmc[1]['time']:.2f} for {hmc[0]['time']:.2f})"
    yield f"comes to {kernels_of(hmc[1])} where mass 1 has {kernels_of(hmc[0])}"


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
        return kernels_of(ends[task, method])

    begin, long = pair("start, trained under N(0, 1)"), pair("HMC, non-centred, moves, long")
    passes = ends["ten digits", "HMC, collapsed"]["gradients"]
    yield f"In {passes:,} passes the precision of the first kernel comes from {begin} (two chains)"
    yield f"to {pair('Gibbs, HMC')} by Gibbs with HMC, {pair('HMC, collapsed')} by HMC with precisions"
    yield f"{pair('Gibbs, SGHMC')} by Gibbs with SGHMC"
    yield f"to {long} by non-centred HMC with moves"


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
