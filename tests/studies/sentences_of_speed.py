"""What the page of speed says of steps of samplers, in lines and parts of sentences."""

from pages_of_studies import line
from sentences_of_small_studies import one


def steps_by_order(rows):
    """Steps in the default order of rows, which gathers, beside the order of the table and other software."""
    settings = [(m, b) for m in ("SGLD", "SGHMC") for b in (100, 1000)]
    ours = [ratio(rows, *at, "ours, permutation") for at in settings]
    yield "| ours, by the default order | {:.2f} | {:.2f} | {:.2f} | {:.2f} |".format(*ours)
    for contender, said in (
        ("by hand", "the hand-written scan's"),
        ("BlackJAX in a scan", "BlackJAX's"),
    ):
        times = [ratio(rows, *at, contender) / own for at, own in zip(settings, ours)]
        yield "{:.2f}, {:.2f}, {:.2f} and {:.2f} times ".format(*times) + said


def ratio(rows, method, batch, contender):
    """A step on blocks over a step of another contender."""
    return one(rows, method=method, batch_size=batch, contender=contender)["ratio_of_ours"]


def steps_with_convolutions(rows):
    """A step and a gradient on convolutional networks, inside of loops and outside."""
    for row in rows:
        yield line(
            row["problem"],
            row["contender"],
            f"{row['step']:.3f}",
            f"{row['ratio']:.2f}",
            f"{row['least_ratio']:.2f} to {row['largest_ratio']:.2f}",
            f"{row['first']:.0f}",
        )
    small, large = (
        [row for row in rows if row["contender"] == "BAOAB" and row["problem"].startswith(side)]
        for side in ("28", "32")
    )
    yield f"{small[0]['ratio']:.1f} and {large[0]['ratio']:.2f} times"
    plain = [row["ratio"] for row in rows if row["contender"] == "BAOAB, not rewritten"]
    yield "it would cost {:.1f} and {:.0f} times".format(*plain)
