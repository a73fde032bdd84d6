"""What the pages say of the runs on a GPU."""

import numpy as np
from pages_of_studies import line

from benchmarks._shared.sampled_runs import select
from benchmarks.mixing import mnist_gibbs_long, mnist_gibbs_verdict, mnist_gibbs_words


def cost_on_a_gpu(rows):
    """Milliseconds of both coordinates by precision, and the ratios of a sentence."""
    cost = {(row["coordinates"], row["bits"]): row["milliseconds"] for row in rows}
    plain, integrated = "as it is", "output layer integrated out"
    for name in (plain, integrated):
        single, double = cost[name, 32], cost[name, 64]
        yield line(name, f"{single:.3g}", f"{double:#.3g}", f"{double / single:.1f}")
    ratio = cost[integrated, 32] / cost[plain, 32], cost[integrated, 64] / cost[plain, 64]
    yield "costs {:.1f} times a plain gradient, and {:.0f} times in double".format(*ratio)


def replicas_on_a_gpu(rows):
    """Lines of the table of ladders with 64 replicas."""
    for row in rows:
        yield line(
            row["problem"],
            str(row["draws"]),
            f"{row['gradients'] / 1e5:.1f}·10⁵",
            f"{row['run_seconds'] / 60:.1f}",
            f"{row['functions_max_rhat']:.2f} ({row['functions_median_rhat']:.2f})",
            f"{row['precisions_max_rhat']:.2f}",
            f"{row['log_score']:.2f}",
            f"{row['log_score_of_a_chain']:.2f}",
        )


def all_images(rows):
    """Ends of the runs on all images: their cells from the passes on, beside their starts."""
    words = mnist_gibbs_words
    ends = words.ends(rows)
    begin = {r["start"]: words.both_chains(r, "Dense_0.kernel") for r in ends if not r["time"]}
    for row in ends:
        if row["method"] != words.START:
            yield line(
                f"{row['gradients']:,}",
                ", ".join(f"{float(v):.0f}" for v in begin[row["start"]].split(",")),
                words.both_chains(row, "Dense_0.kernel"),
                words.short(row["accept prob"]),
                *(words.short(row[f"log score, {of}"]) for of in ("last", "average")),
            )


def settled_images(rows):
    """Three tables of eight chains on two and on ten digits, and what is said of them."""
    words = mnist_gibbs_words
    for table in (mnist_gibbs_verdict.starts_agree, words.predictions, words.sampling):
        for row in table(rows):
            yield line(*row.values())
    ends = {(row["task"], words.name_of(row)): row for row in words.ends(rows)}
    two, ten = "two digits", "ten digits"
    shared = mnist_gibbs_long.SHARED

    def score(task, start):
        row = ends[task, shared + start]
        return f"−{-row['log score, average']:.4f} ± {row['its error, chains']:.4f}"

    def above(method):
        return "{} and {}".format(*(beside_all_chains(ends, task, method) for task in (two, ten)))

    yield (
        f"{score(ten, '')} and {score(ten, ', optimize')} from the two starts, "
        f"{score(ten, ', both starts')} over all"
    )
    yield f"{score(two, '')} and {score(two, ', optimize')}. Of the"
    both = ends[ten, f"{shared}, both starts"]
    yield f"a worst R-hat of {both['worst R-hat']:.2f} with a median of {both['median R-hat']:.2f}"
    apart = [
        ends[ten, shared + start]["chains apart"] for start in (", both starts", "", ", optimize")
    ]
    yield "{:.3f} apart in total variation if they are of both starts, {:.3f} and {:.3f}".format(
        *apart
    )
    yield f"{beside_all_chains(ends, ten, 'Gibbs, SGHMC')} below"
    climbing = select(rows, task=ten, method="Gibbs, SGHMC")
    few, many = (f"−{-climbing[i]['log score, average']:.3f}" for i in (0, -1))
    yield f"{few} after {climbing[0]['gradients']:,} passes, {many} after"
    yield f"{beside_all_chains(ends, two, 'Gibbs, SGHMC')} on two"
    yield f"{above('start, trained under N(0, 1)')} above it"
    yield f"{above('start, optimize')} below"
    yield f"Gibbs with HMC is {above('Gibbs, HMC')} below"
    yield f"out {above('HMC, collapsed')}"
    yield f"in pixels is {above('HMC, non-centred, moves')}"
    last = (-ends[task, f"{shared}, both starts"]["log score, last"] for task in (two, ten))
    yield "−{:.2f} and −{:.2f}, where it has".format(*last)
    yield from _ranges_of_hidden_biases(select(rows, task=two, method=shared))


def beside_all_chains(ends, task, method):
    """How far an average scores from that of all long chains; the error of images and of those chains."""
    long, own = ends[task, f"{mnist_gibbs_long.SHARED}, both starts"], ends[task, method]
    error = np.hypot(own["its error"], long["its error, chains"])
    return f"{abs(own['difference']):.3f} ± {error:.3f}"


def _ranges_of_hidden_biases(rows):
    """Of the four stored chains, between 74,000 and 138,000 passes: the one apart, and the others."""
    runs = {}
    for start in mnist_gibbs_long.START_KINDS:
        for row in select(rows, start=start):
            if 74_000 < row["gradients"] < 139_000:
                for chain in ("", ", second chain"):
                    runs.setdefault((start, chain), []).append(row[f"mean Dense_0.bias{chain}"])
    low, *others = sorted(runs.values(), key=np.mean)
    assert len(others) == 3
    rest = np.concatenate(others)
    yield (
        f"of {min(low):.2f} to {max(low):.2f} from 74,000 to 138,000 passes, the others "
        f"{rest.min():.1f} to {rest.max():.1f}"
    )


def posterior_of_ten_digits(rows):
    """How the average of all chains on ten digits scores, and SGHMC and trained weights beside it."""
    ten = "ten digits"
    ends = {(r["task"], mnist_gibbs_words.name_of(r)): r for r in mnist_gibbs_words.ends(rows)}
    row = ends[ten, f"{mnist_gibbs_long.SHARED}, both starts"]
    score = f"−{-row['log score, average']:.3f} ± {row['its error, chains']:.3f}"
    yield f"score {score} (verdict: {row['verdict']})"
    yield f"24 of SGHMC {beside_all_chains(ends, ten, 'Gibbs, SGHMC')} less"
    more = beside_all_chains(ends, ten, "start, trained under N(0, 1)")
    yield f"trained weights alone {more} more"


def resumed_on_a_gpu(rows):
    """What a checkpoint of a ladder takes, and whether the resumed one has the same draws."""
    (row,) = rows
    assert row["same_draws"] == "yes"
    states, size = row["rungs"] * row["replicas"], row["checkpoint_megabytes"]
    yield f"A checkpoint of all {states} states has {size:.0f} MiB"
