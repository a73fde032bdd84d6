"""MNIST with Gibbs precisions and HMC, as in a course assignment, against SGHMC at equal cost.

A 784-100-10 softmax network with a sigmoid hidden layer and four groups of weights (two kernels, two
biases), each N(0, 1/λ) with λ ~ Gamma(α, β), α = β = 1. One sweep draws the four precisions from their
conditionals, λ | w ~ Gamma(α + n/2, β + |w|²/2), and then moves all weights given them: by one HMC
trajectory of L leapfrogs on all 60,000 rows, accepted or rejected, or by SGHMC on minibatches. The
weights have temperature T and momenta of mass σ² (`--temperature`, `--mass`), so that they follow
exp(-U/T) given the precisions; precisions are always drawn at T = 1, so that for another T sweeps
leave no density that could be written down unchanged.

All ten digits, and two that are hard to tell (3 and 5), which is the binary variant: two outputs.
An epoch is a pass over the rows: one full gradient, of which a trajectory takes L + 1 (the precisions
have changed at its start), or as many minibatches as fill it. Two chains from untrained starts, with
a fixed step. Error and log score on the test rows by epoch, of the last draw and of the average over
the later half of the draws so far (both chains); precisions beside their conditional means. A cell that
is interrupted goes on from its checkpoint.

    python -m benchmarks.mixing.mnist_gibbs [--quick | --toy] [--temperature 1] [--mass 1]

Source of the scheme: R. M. Neal, *Bayesian Learning for Neural Networks* (1996), section 3.2; of the
other sampler: Chen, Fox and Guestrin, *Stochastic gradient Hamiltonian Monte Carlo* (2014).
"""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.mnist_posteriors import convergence, quality, said_of
from benchmarks._shared.study import Row, Study, parser
from numpyro_bnn import preconditioners, priors

CONCENTRATION = RATE = 1.0
CHAINS, LEAPFROGS = 2, 60
SWEEP = LEAPFROGS + 1  # epochs
BATCH = 500
# Time steps over σ / √N. HMC's lies between 0.1 and 0.2, at which 4 of 5 and 2 of 3 trajectories of 40
# steps on 3000 rows were accepted; shorter trajectories from untrained starts get nowhere: after 12 of 10
# steps the error was 0.4 to 0.9. SGHMC's is what a learning rate of 0.1 for the mean loss, with a momentum
# coefficient of 0.9, amounts to.
HMC_STEP, LEARNING_RATE, DAMPING = 0.15, 0.1, 0.1
METHODS = ("Gibbs, HMC", "Gibbs, SGHMC")
LAYERS = ("Dense_0.kernel", "Dense_0.bias", "Dense_1.kernel", "Dense_1.bias")


class Task(NamedTuple):
    """Which digits, how many rows at most, hidden units, and sweeps of HMC."""

    digits: tuple[int, ...]
    rows: int
    tests: int
    hidden: int
    sweeps: int


TEN, TWO = tuple(range(10)), (3, 5)
TASKS = {
    "full": {
        "ten digits": Task(TEN, 60_000, 10_000, 100, 12),
        "two digits": Task(TWO, 60_000, 10_000, 100, 40),
    },
    "quick": {
        "ten digits": Task(TEN, 1_500, 1_000, 100, 8),
        "two digits": Task(TWO, 1_000, 1_000, 100, 8),
    },
    "toy": {
        "ten digits": Task(TEN, 500, 50, 5, 8),
        "two digits": Task(TWO, 500, 50, 5, 8),
    },
}


def network(task: Task) -> Any:
    return bnn.MLP([task.hidden], len(task.digits), jax.nn.sigmoid)


def kernel(method: str, model: Callable, rows: int, temperature: float, mass: float) -> Any:
    """Gibbs draws of the precisions, then weights by the method that the name ends in."""
    ingredients = {
        "temperature": temperature,
        "preconditioner": preconditioners.diagonal(1 / mass),
    }
    if method == METHODS[0]:
        step = HMC_STEP * math.sqrt(mass / rows)
        return bnn.neal(model, step_size=step, num_steps=LEAPFROGS, window=1, **ingredients)
    step = math.sqrt(LEARNING_RATE * mass / rows)
    return bnn.neal(
        model,
        bnn.SGHMC,
        step_size=step,
        friction=DAMPING / step,
        batch_size=min(BATCH, rows),
        **ingredients,
    )


def conditional_mean(squares: Any, count: int) -> Any:
    """Mean of λ | w ~ Gamma(α + n/2, β + |w|²/2), from the sum of squares of n weights."""
    return (CONCENTRATION + count / 2) / (RATE + squares / 2)


def recorder(task: Task, x_test: np.ndarray) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What is kept of a draw: its test probabilities, its precisions and their conditional means."""
    net = network(task)

    def record(sites: Mapping[str, Any]) -> dict[str, Any]:
        weights = {f"net/{layer}": sites[f"net/{layer}"] for layer in LAYERS}
        logits = net.apply({"params": bnn.to_params(weights)}, x_test)
        kept = {"probs": jax.nn.softmax(logits)}
        for layer in LAYERS:
            site = sites[f"net/{layer}"]
            kept[f"λ {layer}"] = sites[f"net/{layer}.precision"]
            kept[f"mean {layer}"] = conditional_mean((site**2).sum(), site.size)
        return kept

    return record


def later_half(values: np.ndarray, draw: int) -> np.ndarray:
    """Mean over chains and over the later half of the draws up to this one, of (chain, draw, …)."""
    return values[:, (draw + 1) // 2 : draw + 1].mean((0, 1))


def draws(
    task: Task, method: str, temperature: float, mass: float, data: Any, folder: Path
) -> dict[str, np.ndarray]:
    """Recorded draws, (chain, sweep, …), from the checkpoint in the folder where there is one."""

    def model(x: Any, y: Any = None) -> None:
        prior = priors.Hierarchical(CONCENTRATION, RATE)
        net = bnn.random_module("net", network(task), prior, x[:1])
        bnn.likelihoods.categorical(net, y, x=x)

    rows = len(data.x)
    steps = 1 if method == METHODS[0] else SWEEP * max(1, rows // BATCH)
    mcmc = bnn.MCMC(
        kernel(method, model, rows, temperature, mass),
        num_warmup=0,
        num_samples=task.sweeps * steps,
        num_chains=CHAINS,
        thinning=steps,
        chain_method="sequential",
        record=recorder(task, data.x_test),
        checkpoint=folder,
        checkpoint_every=steps * max(1, task.sweeps // 5),
        progress_bar=False,
    )
    try:
        mcmc.resume(data.x, data.y)
    except FileNotFoundError:
        # Prior draws, kernels shrunk: nothing is trained before the first epoch.
        starts = bnn.optimize(
            model,
            jax.random.key(0),
            data.x,
            data.y,
            num_chains=CHAINS,
            num_steps=0,
            progress_bar=False,
        )
        mcmc.run(jax.random.key(1), data.x, data.y, init_params=starts)
    return {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}


def cell(
    wanted: Task, source: Path | None, folder: Path, method: str, temperature: float, mass: float
) -> Iterator[Row]:
    """A row for every sweep of one method on one task."""
    data = data_sets.mnist(source, wanted.rows, wanted.tests, digits=wanted.digits)
    found = draws(wanted, method, temperature, mass, data, folder)
    facts = convergence(found["probs"][:, wanted.sweeps // 2 :]) | {"rows": len(data.x)}
    # A rejected trajectory leaves the weights, and with them every conditional mean.
    means = found[f"mean {LAYERS[0]}"]
    facts["moved"] = float(np.mean(means[:, 1:] != means[:, :-1]))
    for draw in range(wanted.sweeps):
        last = [quality(p[draw], data.y_test) for p in found["probs"]]
        average = quality(later_half(found["probs"], draw), data.y_test)
        row: Row = {"epoch": (draw + 1) * SWEEP}
        for name in ("error", "log score"):
            row[f"{name}, last"] = float(np.mean([one[name] for one in last]))
            row[f"{name}, average"] = average[name]
        row |= {k: float(v[0, draw]) for k, v in found.items() if k != "probs"}
        yield row | facts


def summary(rows: list[Row]) -> Iterator[Row]:
    """The last epoch of every cell."""
    ends = {}
    for row in rows:
        ends[row["task"], row["method"], row["temperature"], row["mass"]] = row
    for row in ends.values():
        line = {k: row[k] for k in ("task", "rows", "method", "temperature", "mass", "epoch")}
        for name in ("error", "log score"):
            line |= {k: row[k] for k in (f"{name}, last", f"{name}, average")}
        line |= {k: row[k] for k in ("moved", "worst R-hat", "median R-hat", "least ESS")}
        line["verdict"] = said_of("posterior", row["worst R-hat"])
        yield line


def findings(rows: list[Row]) -> Iterator[str]:
    """Who is ahead at the end and on the way, and whether precisions have settled."""
    for task in dict.fromkeys(r["task"] for r in rows):
        curves = [[r for r in rows if r["task"] == task and r["method"] == m] for m in METHODS]
        hmc, sghmc = curves
        ahead = {
            name: sum(a[name] > b[name] for a, b in zip(hmc, sghmc))
            for name in ("log score, average", "log score, last")
        }
        for name, count in ahead.items():
            yield f"{task}, {name}: HMC ahead of SGHMC at {count} of {len(hmc)} equal costs."
        level = hmc[-1]["error, average"]
        first = next((r["epoch"] for r in sghmc if r["error, average"] <= level), None)
        yield (
            f"{task}: HMC's average ends at an error of {level:.4f} after {hmc[-1]['epoch']} epochs; "
            + (f"SGHMC's has it after {first}." if first else "SGHMC's never has it.")
        )
        for method, curve in zip(METHODS, curves):
            end = curve[-1]
            said = said_of("posterior", end["worst R-hat"])
            half_way = curve[len(curve) // 2]
            precisions = "; ".join(
                f"{layer} {half_way[f'mean {layer}']:.3g}, {end[f'mean {layer}']:.3g}"
                for layer in LAYERS
            )
            yield (
                f"{task}, {method}: sweeps that moved {end['moved']:.2f}; worst R-hat of probabilities "
                f"{end['worst R-hat']:.2f}, median {end['median R-hat']:.2f}: {said}. Conditional means "
                f"of precisions half way and at the end: {precisions}."
            )


def figure(rows: list[Row]) -> Any:
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(r["task"] for r in rows))
    fig, axes = plt.subplots(
        len(tasks), 3, figsize=(14, 4 * len(tasks)), layout="constrained", squeeze=False
    )
    for line, task in zip(axes, tasks):
        curves = {m: [r for r in rows if r["task"] == task and r["method"] == m] for m in METHODS}
        for ax, name in zip(line, ("error", "log score")):
            for color, (method, curve) in zip(bnn.plots.PALETTE, curves.items()):
                epochs = [r["epoch"] for r in curve]
                for what, style in (("average", "-"), ("last", ":")):
                    values = [abs(r[f"{name}, {what}"]) for r in curve]
                    ax.plot(epochs, values, style, color=color, label=f"{method}, {what}")
            shown = name if name == "error" else "negative log score, nats"
            ax.set(yscale="log", xlabel="epoch (full gradients)", ylabel=shown, title=task)
        line[0].legend(frameon=False, fontsize=8)
        for color, layer in zip(bnn.plots.PALETTE, LAYERS):
            curve = curves[METHODS[0]]
            epochs = [r["epoch"] for r in curve]
            for key, style in (("λ", "."), ("mean", "-")):
                values = [r[f"{key} {layer}"] for r in curve]
                label = layer if key == "mean" else None
                line[2].plot(epochs, values, style, color=color, label=label)
        line[2].set(
            yscale="log",
            xlabel="epoch",
            ylabel="precision λ",
            title=f"{task}, {METHODS[0]}: draws (dots), conditional means",
        )
        line[2].legend(frameon=False, fontsize=8)
    return fig


def main(argv: list[str] | None = None) -> None:
    made = parser(__doc__)
    made.add_argument("--temperature", type=float, default=1.0, help="of the weights, T")
    made.add_argument("--mass", type=float, default=1.0, help="of the momenta, σ²")
    given = made.parse_args(argv)
    keys = ("task", "method", "temperature", "mass", "epoch")
    study = Study(__file__, keys, given)
    own = {"temperature": given.temperature, "mass": given.mass}
    cells = [{"task": t, "method": m, **own} for t in TASKS[given.size] for m in METHODS]
    unfinished = study.folder / "mnist_gibbs_runs"

    def compute(task: str, method: str, temperature: float, mass: float) -> Iterator[Row]:
        wanted = TASKS[given.size][task]
        folder = unfinished / f"{task} {method} {temperature} {mass}".replace(" ", "_")
        return cell(wanted, given.data, folder, method, temperature, mass)

    study.run(cells, compute)
    shutil.rmtree(unfinished, ignore_errors=True)
    shown = [r for r in study.rows if all(r[k] == v for k, v in own.items())]
    study.publish(list(summary(study.rows)), findings(shown), figure(shown))


if __name__ == "__main__":
    main()
