"""Under which prior does the posterior average fail under covariate shift, and is its reason the one given?

The reason given is that weights that see no data keep the spread of the prior in the posterior and are zero
at MAP: stored are weights of dead pixels, of others and along null components, over their spread under the
prior.

    python -m benchmarks.predictions.shift_by_prior [--quick | --toy]

Minutes on a GPU (with ``JAX_DEFAULT_MATMUL_PRECISION=highest``), hours on a processor. Source: Izmailov,
Nicholson, Lotfi and Wilson (2021, *Dangers of Bayesian model averaging under covariate shift*).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.gaps import Gap
from benchmarks._shared.mnist_posteriors import component_root, convergence
from benchmarks._shared.sampled_runs import paired, select
from benchmarks._shared.study import Results, Row, begin
from benchmarks._shared.words import span
from benchmarks.predictions.corruptions import null_and_first, shifts
from benchmarks.priors import common_step_hmc as hmc
from numpyro_bnn import priors
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


HIDDEN, CLASSES = 50, 10
# The scale of N(0, α²) whose functions vary as much as those of EmpCov.
EMPCOV_SCALE = 0.3
FIRST_STEP = 0.01
# Test images whose class probabilities are judged for convergence.
JUDGED = 500


class Size(NamedTuple):
    """What is run."""

    subsets: tuple[tuple[int, int], ...]  # numbers of training images, and how many subsets of each
    priors: tuple[float | str, ...]  # α of N(0, α²), or EmpCov
    tests: int  # test images
    chains: int  # of HMC, and networks of the ensemble
    trajectories: tuple[int, int, int]  # of HMC: short ones, warm-up and draws of a quarter turn
    training: int  # steps of Adam


ALL_PRIORS = (0.1, 0.3, 1.0, EMPCOV)
SIZES = {
    "full": Size(((3000, 2), (10_000, 1)), ALL_PRIORS, 2000, 10, (80, 15, 40), 2000),
    "quick": Size(((300, 1),), (0.1, EMPCOV), 200, 4, (40, 5, 10), 300),
    "toy": Size(((40, 1),), (0.3, EMPCOV), 20, 2, (10, 2, 4), 20),
}


class Inputs(NamedTuple):
    """What the first layer sees of images: ``(images - shift) @ root``, its weights N(0, 1)."""

    shift: np.ndarray
    root: np.ndarray

    def of(self, images: np.ndarray) -> np.ndarray:
        return (images - self.shift).astype(np.float32) @ self.root.astype(np.float32)


def inputs_under(prior: float | str, x: np.ndarray) -> Inputs:
    """The prior of the weights of the pixels, as a root of its covariance."""
    pixels = x.shape[1]
    if prior != EMPCOV:
        return Inputs(np.zeros(pixels), float(prior) * np.eye(pixels))
    shift = x.mean(0, dtype=np.float64)
    return Inputs(shift, component_root(x - shift, EMPCOV_SCALE))


PRIOR = priors.ByPath({"Dense_1.kernel": priors.FanIn(2.0), "*": priors.Normal(1.0)})


@cache
def module_of(units: int) -> Any:
    return bnn.MLP([units], CLASSES, jax.nn.relu)


@cache
def model_of(units: int) -> Callable:
    """The model of a network with that many hidden units."""

    def model(x: Any, y: Any = None) -> None:
        net = bnn.random_module("net", module_of(units), PRIOR, x[:1])
        bnn.likelihoods.categorical(net, y, x=x)

    return model


@cache
def full_batch(lengths: tuple[int, int, int], units: int) -> Callable:
    """A run of HMC, a function of a key, starts and data."""

    def run(key: Any, begin: Any, x: Any, y: Any) -> hmc.Found:
        energy = bnn.potential_of(model_of(units), x, y)
        return hmc.sample(energy, key, begin, *lengths, FIRST_STEP)

    return jax.jit(run)


@jax.jit
def log_probs(w: Any, x: Any) -> jax.Array:
    """Log class probabilities of draws (chain, draw, …), (chain, draw, image, class)."""
    module = module_of(w["net/Dense_0.bias"].shape[-1])

    def one(w: Any) -> jax.Array:
        return jax.nn.log_softmax(module.apply({"params": bnn.to_params(w)}, x))

    return jax.vmap(jax.vmap(one))(w)


@jax.jit
def log_averages(w: Any, x: Any) -> jax.Array:
    """Log of the class probabilities averaged over the draws of each chain, (chain, image, class)."""
    logs = log_probs(w, x)
    return jax.nn.logsumexp(logs, 1) - jnp.log(logs.shape[1])


@lru_cache(maxsize=1)
def images_of(
    folder: Path | None, rows: int, tests: int, subset: int
) -> tuple[data_sets.Split, dict[str, list[np.ndarray]]]:
    """A subset of the training images, and the test images, which all share, by kind at each severity."""
    train, test = (
        data_sets.mnist(folder, n, m, seed=s) for n, m, s in ((rows, 1, subset), (1, tests, 0))
    )
    data = data_sets.Split(train.x, train.y, test.x_test, test.y_test)
    return data, {"none": [data.x_test]} | dict(shifts(data))


def sizes_of(w: Any, inputs: Inputs, dead: np.ndarray, null: np.ndarray) -> Row:
    """Root mean square weights of dead and of live pixels and along null components, over the prior's."""
    kernels = np.asarray(w["net/Dense_0.kernel"], np.float64)
    kernels = kernels.reshape(-1, *kernels.shape[-2:])
    weights = inputs.root @ kernels
    spread = np.sqrt((inputs.root**2).sum(1))[None, :, None]
    along = null @ weights / np.sqrt(((null @ inputs.root) ** 2).sum(1))[None, :, None]

    def size(values: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0

    scaled = weights / spread
    return {
        "dead weights": size(scaled[:, dead]),
        "live weights": size(scaled[:, ~dead]),
        "null weights": size(along),
    }


class Fitted(NamedTuple):
    """What came of one training set and prior."""

    inputs: Inputs  # what the first layer sees
    networks: dict[str, Any]  # by method, weights by site, (chain, draw, …)
    facts: Row  # of the run of HMC


def fitted(
    data: data_sets.Split, subset: int, prior: float | str, *, size: Size, units: int = HIDDEN
) -> Fitted:
    """MAP, the ensemble and the posterior."""
    inputs = inputs_under(prior, data.x)
    x = inputs.of(data.x)
    begin = bnn.optimize(
        model_of(units),
        jax.random.key(subset),
        x,
        data.y,
        num_chains=size.chains,
        num_steps=size.training,
        # Weights without data must have the time to reach their mode.
        tolerance=0.0,
        progress_bar=False,
    )
    run = full_batch(size.trajectories, units)(jax.random.key(1000 + subset), begin, x, data.y)
    draws = {name: jnp.swapaxes(v, 0, 1) for name, v in run.draws.items()}
    members = {name: v[:, None] for name, v in begin.items()}
    networks = {
        MAP: {name: v[:1] for name, v in members.items()},
        ENSEMBLE: members,
        POSTERIOR: draws,
        TEN: {name: v[:, -1:] for name, v in draws.items()},
    }
    shown = np.exp(log_probs(draws, inputs.of(data.x_test[:JUDGED])))
    facts = {
        "accepted": float(run.accept),
        "step size": float(run.step_size),
        "leapfrogs": float(run.leapfrogs),
        "gradients": int(run.spent),
        **convergence(shown),
    }
    return Fitted(inputs, networks, facts)


def scores_of(found: Fitted, severities: list[np.ndarray], y: np.ndarray) -> dict[str, ByImage]:
    """Of each method, means over severities of the same images."""
    seen = [found.inputs.of(one) for one in severities]
    return {
        method: by_image([np.asarray(log_averages(w, one), np.float64) for one in seen], y)
        for method, w in found.networks.items()
    }


def cell(
    rows: int, subset: int, prior: float | str, *, size: Size, folder: Path | None
) -> Iterator[Row]:
    """MAP, the ensemble and the posterior on every shift, a row each for the mean over severities."""
    data, images = images_of(folder, rows, size.tests, subset)
    inputs, networks, facts = run = fitted(data, subset, prior, size=size)
    unseen = data.x.max(0) == 0, null_and_first(data.x)[0]
    sizes = {method: sizes_of(w, inputs, *unseen) for method, w in networks.items()}
    for kind, severities in images.items():
        found = scores_of(run, severities, data.y_test)
        for method, own in found.items():
            yield {
                "method": method,
                "kind": kind,
                "error": float(own.wrong.mean()),
                "log score": float(own.scores.mean()),
                **beyond(own, found[MAP], "MAP"),
                **beyond(own, found[ENSEMBLE], "ensemble"),
                **sizes[method],
                **facts,
            }


def main(argv: list[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, KEYS, SIZES, argv)
    cells = [
        {"rows": rows, "subset": subset, "prior": prior}
        for rows, subsets in size.subsets
        for subset in range(subsets)
        for prior in size.priors
    ]
    study.run(cells, partial(cell, size=size, folder=given.data))
    beyond_map = beside(study.rows, MAP)
    study.publish(beyond_map, findings(study.rows), lambda: picture(study.rows))
    for name, method in (("ensemble", POSTERIOR), ("ten_draws", TEN)):
        table = beside(study.rows, ENSEMBLE, method)
        Results(__file__, given, name).report(table)


if __name__ == "__main__":
    main()
