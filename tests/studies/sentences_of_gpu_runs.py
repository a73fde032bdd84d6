"""What the page of mixing says of the runs on a GPU."""

from pages_of_studies import line

from benchmarks.mixing import mnist_gibbs_words


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
