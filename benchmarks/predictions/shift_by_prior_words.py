"""What `shift_by_prior` says of its rows: differences by image, a table, sentences, and the figure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.gaps import Gap
from benchmarks._shared.sampled_runs import paired, select
from benchmarks._shared.study import Row
from benchmarks._shared.words import span
from numpyro_bnn.plots.style import color_at, label_axes

MAP, ENSEMBLE, POSTERIOR = "MAP", "ensemble", "posterior"
TEN = "posterior, last draws"
EMPCOV = "EmpCov, centred"
KEYS = ("rows", "subset", "prior", "method", "kind")


class ByImage(NamedTuple):
    """Means over severities."""

    wrong: np.ndarray  # whether the class is wrong, of each test image
    scores: np.ndarray  # log score of each test image, nats
    # Mean log score without each chain or network, (chain,); empty where there is one
    without: np.ndarray

    @property
    def monte_carlo(self) -> float:
        """Error of the mean log score over chains, or over networks of an ensemble; none of a single one."""
        return jackknife_error(self.without) if len(self.without) else 0.0


def by_image(logs: Sequence[np.ndarray], y: np.ndarray) -> ByImage:
    """From log probabilities at each severity, of averages over draws: (chain, image, class)."""
    chains, every = len(logs[0]), np.arange(len(y))
    averages = [logsumexp(one, 0) - math.log(chains) for one in logs]
    wrong = np.mean([(one.argmax(1) != y).astype(float) for one in averages], 0)
    scores = np.mean([one[every, y] for one in averages], 0)
    if chains == 1:
        return ByImage(wrong, scores, np.empty(0))
    without = np.mean([without_each(one[:, every, y]).mean(1) for one in logs], 0)
    return ByImage(wrong, scores, without)


def beyond(own: ByImage, other: ByImage, name: str) -> Row:
    """Error and log score beyond those of another method, errors over images, and over chains."""
    row: Row = {}
    for column, a, b in (("error", own.wrong, other.wrong), ("score", own.scores, other.scores)):
        gap = paired(a, b)
        row |= {
            f"{column} beyond {name}": gap["difference"],
            f"{column} beyond {name}, se": gap["difference_se"],
        }
    chains = 0.0 if own is other else math.hypot(own.monte_carlo, other.monte_carlo)
    return row | {f"score beyond {name}, chains": chains}


def over_subsets(rows: Sequence[Row], column: str, where: Mapping[str, Any]) -> Gap:
    """A column of :func:`beyond`, the mean over subsets; older rows have no Monte Carlo error."""
    own = select(rows, **where)
    found, by_image = ([r[column + of] for r in own] for of in ("", ", se"))
    by_chain = [r.get(f"{column}, chains", "") for r in own]
    return Gap.over_subsets(found, by_image, [one for one in by_chain if one != ""])


def groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Numbers of rows with priors, in the order of a table."""
    pairs = dict.fromkeys((r["rows"], r["prior"]) for r in rows)
    return [
        {"rows": n, "prior": p} for n, p in sorted(pairs, key=lambda pair: (pair[0], str(pair[1])))
    ]


def kinds_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(r["kind"] for r in rows))


def beside(rows: Sequence[Row], other: str, method: str = POSTERIOR) -> list[Row]:
    """Log score of the posterior beyond that of another method, by kind of shift."""
    return [
        {
            **where,
            **{
                kind: str(
                    over_subsets(
                        rows, f"score beyond {other}", {**where, "kind": kind, "method": method}
                    )
                )
                for kind in kinds_of(rows)
            },
        }
        for where in groups(rows)
    ]


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Log score of the posterior beyond that of MAP, by kind of shift."""
    return beside(rows, MAP)


# Shifts that move what is in an image.
MOVED = ("rotation", "shift", "occlusion")


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """What noise at dead pixels costs, and where averages of many and of few draws are ahead."""

    def costs(settings: Sequence[Row], method: str) -> str:
        found = []
        for where in settings:
            plain, noisy = (
                np.mean([r["log score"] for r in select(rows, **where, method=method, kind=kind)])
                for kind in ("none", "dead pixels")
            )
            found.append(float(plain - noisy))
        return span(found, 3)

    def gaps(settings: Sequence[Row], kinds: Sequence[str], other: str, method: str) -> list[Gap]:
        return [
            over_subsets(rows, f"score beyond {other}", {**where, "kind": kind, "method": method})
            for where in settings
            for kind in kinds
        ]

    every = groups(rows)
    normal = [where for where in every if where["prior"] != EMPCOV]
    for name, settings in (("N(0, α²)", normal), (EMPCOV, [w for w in every if w not in normal])):
        posterior, one, ten = (costs(settings, m) for m in (POSTERIOR, MAP, ENSEMBLE))
        yield (
            f"{name}: noise at dead pixels costs the posterior {posterior} nats, MAP {one} and an "
            f"ensemble of ten {ten}."
        )
    wide = [where for where in normal if float(where["prior"]) >= 0.3]
    for text, other, method in (
        ("400 draws beyond MAP", MAP, POSTERIOR),
        ("400 draws beyond the ensemble of ten", ENSEMBLE, POSTERIOR),
        ("Ten draws beyond the ensemble of ten", ENSEMBLE, TEN),
    ):
        found = span([gap.value for gap in gaps(wide, MOVED, other, method)])
        yield f"{text}, under rotation, shift and occlusion with α of 0.3 and 1: {found} nats."


def picture(rows: Sequence[Row]) -> Any:
    """Log score of the posterior beyond MAP's and beyond the ensemble's, by kind of shift."""
    kinds = kinds_of(rows)
    numbers = sorted({r["rows"] for r in rows})
    figure, axes = plt.subplots(
        2, len(numbers), figsize=(1 + 5.5 * len(numbers), 7), layout="constrained", squeeze=False
    )
    for line, other in zip(axes, (MAP, ENSEMBLE)):
        for ax, number in zip(line, numbers):
            here = [where for where in groups(rows) if where["rows"] == number]
            for i, where in enumerate(here):
                values = [
                    over_subsets(
                        rows, f"score beyond {other}", {**where, "kind": kind, "method": POSTERIOR}
                    )
                    for kind in kinds
                ]
                at = np.arange(len(kinds)) + 0.18 * (i - (len(here) - 1) / 2)
                means, errors = np.array(values).T
                prior = where["prior"]
                label = prior if isinstance(prior, str) else f"α = {prior:g}"
                ax.errorbar(
                    at, means, 2 * errors, fmt="o", ms=3, color=color_at(ax, i), label=label
                )
            ax.axhline(0, color="0.5", linewidth=1)
            ax.set_yscale("symlog", linthresh=0.1)
            ax.set_xticks(range(len(kinds)), kinds, rotation=60, ha="right", fontsize=8)
            ax.set_title(f"{number:g} rows", fontsize=10)
            whose = "MAP's" if other == MAP else "the ensemble's"
            label_axes(ax, "", f"log score beyond {whose}, nats")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure
