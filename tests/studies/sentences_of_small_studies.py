"""What pages say of the studies of a single question: lines of tables, and numbers in sentences."""

import math

import numpy as np
from pages_of_studies import line, number, with_error

from benchmarks._shared.sampled_runs import select
from benchmarks.predictions import regression_band
from benchmarks.priors import cold_posteriors, prior_scale


def one(rows, **wanted):
    (found,) = select(rows, **wanted)
    return found


def gains_of_cold(rows):
    """What a temperature gains over T = 1, three ways, and how cold the coldest are."""
    table = cold_posteriors.averaged(rows)

    def gain(mode, temperature, scored="one label"):
        row = one(table, mode=mode, temperature=temperature, scored=scored)
        return row["difference"], row["total_se"]

    yield f"| plain, T = 0.01 | {with_error(gain('plain', 0.01), 3)} above |"
    yield f"| plain, T = 3 | {number(-gain('plain', 3)[0], 3)} below |"
    yield f"| with shifts, T = 0.01 | {with_error(gain('shifts', 0.01), 3)} above |"
    yield f"by one label's score | {with_error(gain('labels', 0.1), 3)} above |"
    best = gain("labels", 0.3, "consensus")
    assert best == max(gain("labels", t, "consensus") for t in (0.01, 0.03, 0.1, 0.3, 1, 3))
    yield f"the best | +{with_error(best, 3)} |"
    yield f"scored as a consensus | {gain('labels', 0.01, 'consensus')[0]:.1f}, far worse |"
    flat, cold = (one(table, mode="plain", temperature=t) for t in (1, 0.01))
    yield "calibration error {:.2f}, {:.2f} at T = 0.01".format(
        flat["calibration"], cold["calibration"]
    )
    moved = one(table, mode="shifts", temperature=0.01)
    yield f"{cold['heat']:.1f} times the temperature at T = 0.01, {moved['heat']:.1f} times with shifts"
    others = [r["worst R-hat"] for r in rows if r["mode"] != "labels"]
    yield f"worst R-hat {min(others):.2f} to {max(others):.2f}"
    powers = [
        max(r["worst R-hat"] for r in rows if (r["mode"], r["temperature"]) == ("labels", t))
        for t in (0.3, 0.1, 0.03, 0.01)
    ]
    yield "3.3, 10, 33 and 100 up to {:.1f}, {:.1f}, {:.1f} and {:.1f}".format(*powers)


def cold_in_a_clause(rows):
    """What the coldest posterior gains over T = 1, without shifts and with them."""
    plain, moved = (
        one(cold_posteriors.averaged(rows), mode=mode, temperature=0.01)
        for mode in ("plain", "shifts")
    )
    gain = with_error((plain["difference"], plain["total_se"]), 3)
    yield f"T = 0.01 is {gain} nats above T = 1 ({moved['difference']:.3f} with random shifts)"


def scores_by_scale(rows):
    """By table, N(0, α²): the best score, how flat it is above, what too narrow a prior loses; precisions."""
    table = prior_scale.averaged(rows)
    lost, learned = {}, {}
    for name in prior_scale.PROBLEMS:
        own = select(table, problem=name, family=prior_scale.FAMILIES[0])
        best = max(own, key=lambda r: r["log_score"])
        lost[name] = {r["alpha"]: best["log_score"] - r["log_score"] for r in own}, best
        over = max(
            (r for r in table if r["problem"] == name and r["family"] != prior_scale.HIERARCHICAL),
            key=lambda r: r["log_score"],
        )
        learned[name] = over["difference"], over["difference_se"]
    (yacht, top), (boston, _), (mnist, single) = (lost[n] for n in ("yacht", "boston", "mnist"))
    wide = (0.3, 1, 3, 10)
    flat = max(yacht[a] for a in wide)
    within = f"{flat:.2f} nats of it for α from 0.3 to 10"
    yield line("yacht", f"{top['log_score']:.2f}", within, f"by {yacht[0.1]:.1f} at 0.1")
    yield f"| {max(boston[a] for a in wide):.2f} from 0.3 on | by {boston[0.1]:.2f} at 0.1 |"
    yield (
        f"| {single['log_score']:.3f} at α = {single['alpha']:g}, narrow | | by {mnist[0.3]:.3f} at 0.3, "
        f"{mnist[3]:.2f} at 3 |"
    )
    below, error = learned["boston"]
    yield f"({number(-below, 4)} ± {error:.3f})"
    yield f"yacht ({learned['yacht'][0]:.3f} ± {learned['yacht'][1]:.3f} below)"
    yield f"MNIST ({learned['mnist'][0]:.3f} ± {learned['mnist'][1]:.3f} below)"


def scales_in_a_sentence(rows):
    """How flat the score is above, and what too narrow a prior loses, on the tables."""
    table = prior_scale.averaged(rows)
    by = {
        name: {r["alpha"]: r["log_score"] for r in select(table, problem=name, family="N(0, α²)")}
        for name in ("boston", "yacht")
    }
    flat = max(max(own.values()) - own[a] for own in by.values() for a in (0.3, 1, 3, 10))
    losses = [f"{max(own.values()) - own[0.1]:.1f}" for own in by.values()]
    yield f"N(0, α²) is within {flat:.2f} nats of its best for α from 0.3 to 10 on two tables"
    yield "loses {} and {} nats at 0.1".format(*losses)


def distance_from_a_process(rows):
    """Differences from the Gaussian process by width, and the powers of the width that they go with."""
    *seen, last = sorted(rows, key=lambda r: r["width"])
    cells = [number(r["mean: rms difference"]) for r in seen]
    yield line("difference", *cells, f"below its error ({last['mean: rms error']:.2f})")
    assert last["mean: rms difference"] < last["mean: rms error"]
    widest = [r for r in rows if r["sd: rms difference"] > r["sd: rms error"]][-1]
    yield "That of the sd falls from {:.2f} to {:.2f}.".format(
        seen[0]["sd: rms difference"], widest["sd: rms difference"]
    )
    powers = []
    for name in ("mean", "sd"):
        known = [r for r in rows if r[f"{name}: rms difference"] > 2 * r[f"{name}: rms error"]]
        logs = (np.log([r[column] for r in known]) for column in ("width", f"{name}: gap"))
        powers.append(np.polyfit(*logs, 1)[0])
    yield "to the {:.1f} and {:.1f}".format(*powers)
    assert all(r["converged"] == "yes" for r in rows)


def widths_of_bands(rows):
    """Widths in the gap and at the data, over those of HMC, and how many fresh rows intervals hold."""
    yield f"{span(widening(rows, 'HMC'), 1)} times as wide in the gap as at the data"
    for name in regression_band.METHODS:
        gap, data = (over_hmc(rows, name, part) for part in ("in the gap", "at the data"))
        held = f"{span([100 * v for v in held_in_the_gap(rows, name)], 1)} %"
        own = ("1", "1") if name == "HMC" else (span(gap), span(data))
        yield line(name, *own, span(widening(rows, name), 1), held)
    (full,) = (r for r in regression_band.averaged(rows) if r["method"] == "HMC")
    yield f"worst R-hat {full['worst R-hat']:.2f}, least ESS {full['least ESS']:.0f}"


def span(values, digits=2):
    """The least and the largest."""
    return f"{number(min(values), digits)} to {number(max(values), digits)}"


def widening(rows, method):
    """How many times as wide a band is in the gap as at the data, by data set."""
    return [r["sd in the gap"] / r["sd at the data"] for r in select(rows, method=method)]


def over_hmc(rows, method, part):
    """The width of a band there over that of HMC on the same data set."""
    own, full = (
        {r["seed"]: r[f"sd {part}"] for r in select(rows, method=name)} for name in (method, "HMC")
    )
    return [own[seed] / full[seed] for seed in full]


def held_in_the_gap(rows, method):
    """Shares of fresh rows in the gap that 90 % intervals hold, by data set."""
    return [r["coverage, rows in the gap"] for r in select(rows, method=method)]


def bands_in_a_sentence(rows):
    """Widths over those of HMC, and what intervals hold in the gap: the least and most of the data sets."""
    yield f"HMC's is {span(widening(rows, 'HMC'), 1)} times as wide in a gap as at the data"
    stochastic = [over_hmc(rows, "SGHMC", part) for part in ("in the gap", "at the data")]
    yield "SGHMC's is {} of HMC's there and {} at the data".format(*map(span, stochastic))
    others = [over_hmc(rows, name, "in the gap") for name in ("mean field", "deep ensemble")]
    yield "mean field's {} there, a deep ensemble's {}".format(*map(span, others))
    held = [
        span([100 * v for v in held_in_the_gap(rows, name)], 0) for name in ("deep ensemble", "HMC")
    ]
    yield "its 90 % intervals hold {} % of fresh rows of the gap, HMC's {} %".format(*held)


def averaged_boundaries(rows):
    """Total variations from the reference."""
    by = {(r["model"], r["method"]): r for r in rows}
    point = "MAP"
    linear = {name: r["total variation"] for (m, name), r in by.items() if m == "logistic"}
    at_mode, hot = linear.pop(point), linear.pop("SGHMC")
    assert len(linear) == 7
    yield (
        f"MAP is {at_mode:.3f} from the exact probabilities, SGHMC {hot:.3f}, the seven other samplers "
        f"{max(linear.values()):.3f} at most"
    )
    own = {name: r for (m, name), r in by.items() if m == "network"}
    descent, full = own["momentum SGD"], own["HMC"]
    rest = [
        r["total variation"]
        for name, r in own.items()
        if name not in (point, "momentum SGD", "HMC")
    ]
    yield f"{full['total variation']:.3f} (HMC), {min(rest):.3f} to {max(rest):.3f}"
    yield (
        f"SGD with momentum {descent['total variation']:.3f} ({descent['relative spread']:.2f} of the "
        f"spread), MAP {own[point]['total variation']:.3f} (log score "
        f"{own[point]['lppd, fresh rows']:.3f} against {full['lppd, fresh rows']:.3f})"
    )


def cost_of_steps(rows):
    """Variances over the exact one, from the least to the largest step."""
    names = {
        "SGLD": "| SGLD | ",
        "SGLD, all rows": "| SGLD on all rows | ",
        "MALA": "| MALA | ",
        "SGLD, accept minibatch": "| accepting by the minibatch | ",
        "SGHMC": "| SGHMC at 2h² = ε | ",
    }
    for method, begin in names.items():
        own = [r["variance over the exact one"] for r in select(rows, method=method)]
        most = max(own)
        yield f"{begin}{min(own):.2f} to {f'{most:.1f}' if most > 10 else f'{most:.2f}'}"


def steps_in_a_sentence(rows):
    """Variances of SGLD over the exact one at three steps."""
    by = {r["step"]: r["variance over the exact one"] for r in select(rows, method="SGLD")}
    yield f"{by[0.0025]:.2f} at ε = 0.0025, {by[0.02]:.1f} at 0.02, {by[0.1]:.0f} at 0.1"


def descent_in_a_sentence(rows):
    """Variances of descent at the recommended rate over the exact ones."""
    linear, logistic = (
        one(rows, model=m, method="constant SGD", multiple=1) for m in ("linear", "logistic")
    )
    yield (
        f"(variance {number(linear['variance over the exact one'])} times the exact one, and "
        f"{over_sampled(rows, logistic)} times HMC's)"
    )


def descent_as_inference(rows):
    """Variances of descent and of randomised MAP over the exact ones; spreads and scores on a network."""
    value, error = "variance over the exact one", "its error"
    recommended = [
        one(rows, model=m, method="constant SGD", multiple=1) for m in ("linear", "logistic")
    ]
    linear, logistic = recommended
    yield (
        f"| {number(linear[value])} ± {number(linear[error])} (discrete theory "
        f"{linear['theory, this step']:.3f}, small-step theory 1) | {over_sampled(rows, logistic)} |"
    )
    quarter = [
        number(one(rows, model=m, method="constant SGD", multiple=0.25)[value])
        for m in ("linear", "logistic")
    ]
    yield line("SGD's iterates at a quarter of the rate", *quarter)
    exact, sampled = (one(rows, model=m, method="randomised MAP") for m in ("linear", "logistic"))
    own = f"{number(exact[value])} ± {number(exact[error])}"
    yield line("randomised MAP", own, over_sampled(rows, sampled))
    network = select(rows, model="network")
    descent = select(network, method="constant SGD")
    spreads = [r["relative sd"] for r in descent]
    randomised = one(network, method="randomised MAP")["relative sd"]
    yield (
        f"SGD has {min(spreads):.2f} to {max(spreads):.2f} of HMC's spread, randomised MAP "
        f"{randomised:.1f} times"
    )
    best = [one(network, method="constant SGD", multiple=1), one(network, method="HMC")]
    best.append(one(network, method="randomised MAP"))
    yield "{:.2f} of SGD and ensembles, {:.2f} of HMC, {:.2f} of randomised MAP".format(
        *(r["lppd"] for r in best)
    )


def over_sampled(rows, row):
    """A variance of the logistic model, over that of HMC, with the error of both."""
    value, error = "variance over the exact one", "its error"
    own = one(rows, model="logistic", method="HMC")[error]
    return f"{number(row[value])} ± {row[value] * math.hypot(row[error] / row[value], own):.2f}"


def mixing_of_functions(rows):
    """R-hats of weights, of units matched, and of functions."""
    for name in ("boston", "wine_red"):
        weights, matched, functions = (
            one(rows, problem=name, trajectory=1, what=what)
            for what in ("weights", "weights, aligned", "predictions")
        )
        share = 100 * weights["not_mixing"]
        yield line(
            name,
            f"{share:.0f} % ({100 * matched['not_mixing']:.1f} %)",
            f"{100 * functions['not_mixing']:.1f} %",
            number(weights["max_rhat"]),
            number(functions["max_rhat"]),
        )
    weights, functions = (one(rows, problem="mnist", what=w) for w in ("weights", "predictions"))
    yield (
        f"{weights['scalars']:,} weights, median {weights['mid_rhat']:.3f} and worst "
        f"{weights['max_rhat']:.2f}, probabilities {functions['mid_rhat']:.3f} and "
        f"{functions['max_rhat']:.2f}"
    )
    gains, worst = [], []
    for name in ("boston", "wine_red"):
        long, short = (
            one(rows, problem=name, trajectory=t, what="predictions") for t in (1, 0.125)
        )
        gains.append(long["ess_per_1000"] / short["ess_per_1000"])
        worst.append(f"{long['max_rhat']:.2f} against {short['max_rhat']:.2f}")
    yield "give {:.1f} (boston) and {:.2f} times (wine, no difference)".format(*gains)
    yield "({}, {})".format(*worst)


def functions_in_a_sentence(rows):
    """Shares above R-hat 1.1 of weights and functions on two tables, and the worst on images."""
    shares = [
        "{:.0f} and {:.0f} %".format(
            *(
                100 * one(rows, problem=name, trajectory=1, what=what)["not_mixing"]
                for name in ("boston", "wine_red")
            )
        )
        for what in ("weights", "predictions")
    ]
    yield "R-hat above 1.1 for {} of the weights and {} of the functions".format(*shares)
    worst = (one(rows, problem="mnist", what=w)["max_rhat"] for w in ("weights", "predictions"))
    yield "both mix (worst {:.2f} and {:.2f})".format(*worst)


def draws_beside_blackjax(rows):
    """Effective draws by 1000 gradients, and what a larger energy variance does."""
    targets = ("Gaussian, 100", "logistic, 31", "network, 49")
    names = {
        "MCLMC": "MCLMC, ours",
        "MCLMC, BlackJAX, leapfrog": "MCLMC, BlackJAX leapfrog",
        "MCLMC, BlackJAX, McLachlan": "MCLMC, BlackJAX default",
        "MAMS": "MAMS, ours",
        "MAMS, BlackJAX, leapfrog": "MAMS, BlackJAX leapfrog",
        "MAMS, BlackJAX, McLachlan": "MAMS, BlackJAX default",
        "NUTS": "NUTS",
        "MCLMC, energy variance 0.1": "MCLMC, ours, energy variance 0.1",
    }
    for sampler, name in names.items():
        found = [one(rows, target=t, sampler=sampler)["mean ESS"] for t in targets]
        yield line(name, *(f"{v:.1f}" if v < 10 else f"{v:.0f}" for v in found))
    hot, usual = (
        [one(rows, target=t, sampler=s) for t in targets]
        for s in ("MCLMC, energy variance 0.1", "MCLMC")
    )
    for sampler, verb in (("MCLMC", " has"), ("MAMS", "")):
        ratios = [
            one(rows, target=t, sampler=sampler)["mean ESS"]
            / one(rows, target=t, sampler=f"{sampler}, BlackJAX, {integrator}")["mean ESS"]
            for t in targets
            for integrator in ("leapfrog", "McLachlan")
        ]
        yield f"{sampler}{verb} {min(ratios):.1f} to {max(ratios):.1f} times"
    yield "has variances of {:.2f}, {:.2f} and {:.2f} times".format(*(r["variance"] for r in hot))
    yield "and {:.1f}, {:.1f} and {:.1f} times at worst".format(*(r["worst variance"] for r in hot))
    yield "(0.0005: {:.2f}, {:.2f}, {:.2f})".format(*(r["worst variance"] for r in usual))
    yield f"and an R-hat of {hot[0]['worst R-hat']:.2f} on the Gaussian"
    network = [
        one(rows, target=targets[2], sampler=s)["worst R-hat"]
        for s in ("MCLMC", "MCLMC, BlackJAX, leapfrog", "MCLMC, BlackJAX, McLachlan")
    ]
    yield f"on the network is {min(network):.2f} to {max(network):.2f}"


def beside_a_long_run(rows):
    """The largest differences of means and spreads from those of NUTS."""
    mean, sd = (
        max(r[c] for r in rows) for c in ("mean, worst gap in sd", "sd, worst relative gap")
    )
    yield f"Means are within {mean:.3f} sd and sd within {100 * sd:.1f} % at every test row"
