"""How fast acceptance goes to one as steps become small: the ground on which SGLD leaves out the test.

For small h one minus it is a power of h; for the random walk and for SGLD its factor is known too:
E|g| h/√(2π), where g is the gradient, or the noise of the minibatch's.

    python -m benchmarks.mixing.acceptance [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import sampler
from benchmarks._shared.study import Row, Study, every_cell, parser
from benchmarks.predictions.step_size import BATCH, MODELS, ROWS, data, hmc, run

SCALES = tuple(0.4 / 2**k for k in range(7))
LENGTH = 1.0
RANDOM_WALK, ALL_ROWS = "random walk", "SGLD, accepted by all rows"
# The power of h that one minus acceptance falls with: Roberts and Rosenthal (1998) for MALA, Beskos and
# others (2013) for HMC; for the others the first term of the logarithm of the ratio.
POWERS = {RANDOM_WALK: 1, ALL_ROWS: 1, "SGLD, accepted by its minibatch": 3, "MALA": 3, "HMC": 2}
SIZES = {
    "full": {"long run": (8, 1000), "starts": 64, "steps": 100, "scales": SCALES},
    "quick": {"long run": (4, 400), "starts": 32, "steps": 20, "scales": SCALES[::2]},
    "toy": {"long run": (2, 20), "starts": 8, "steps": 5, "scales": SCALES[2:4]},
}
# Powers are those between the two smallest scales at which more than this is rejected: energies of a hundred
# nats are known to 10⁻⁵ in single precision.
ROUNDING = 2e-5


@cache
def starts_of(name: str, size: str) -> Any:
    """Draws of a long HMC run, far from each other."""
    model, numbers = MODELS[name], SIZES[size]
    made = run("HMC", model, hmc(model), *numbers["long run"])
    draws = {n: np.asarray(v) for n, v in made.get_samples().items()}
    last = len(next(iter(draws.values()))) - 1
    chosen = np.linspace(0, last, numbers["starts"]).astype(int)
    return {n: v[chosen] for n, v in draws.items()}


def kernel_of(method: str, model: Callable, scale: float) -> Any:
    """A kernel whose proposals have the standard deviation `scale`."""
    if method == RANDOM_WALK:
        return bnn.RandomWalk(model, step_size=scale)
    if method == "MALA":
        return bnn.MALA(model, step_size=scale**2)
    if method.startswith("SGLD"):
        rule = "full" if method == ALL_ROWS else "minibatch"
        return bnn.SGLD(model, step_size=scale**2, batch_size=BATCH, accept=rule)
    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False, "trajectory_length": None}
    return HMC(model, step_size=scale, num_steps=round(LENGTH / scale), **fixed)


@cache
def mean_slope(name: str, size: str, of_noise: bool) -> float:
    """Mean norm over the starts: of the gradient, or of the noise that a minibatch adds to it."""
    potential = bnn.potential_of(MODELS[name], *data())
    plate, _ = potential.data_plate()

    @jax.jit
    def norm(z: Any, rows: jax.Array) -> jax.Array:
        slope = ravel_pytree(jax.grad(potential)(z))[0]
        if of_noise:
            slope -= ravel_pytree(jax.grad(lambda z: potential.minibatch(z, rows, plate))(z))[0]
        return (slope**2).sum() ** 0.5

    starts, rng = starts_of(name, size), np.random.default_rng(0)
    count, batches = SIZES[size]["starts"], 20 if of_noise else 1
    return float(
        np.mean(
            [
                norm({n: v[i] for n, v in starts.items()}, rng.permutation(ROWS)[:BATCH])
                for i in range(count)
                for _ in range(batches)
            ]
        )
    )


def cell(model: str, method: str, scale: float, size: str) -> Iterator[Row]:
    """The mean probability of acceptance of one kernel."""
    numbers = SIZES[size]
    mcmc = sampler(kernel_of(method, MODELS[model], scale), numbers["starts"], 0, numbers["steps"])
    key = jax.random.fold_in(jax.random.key(0), sum(map(ord, method)) + round(1e5 * scale))
    starts = starts_of(model, size)
    mcmc.run(key, *data(), init_params=starts, extra_fields=("accept_prob",))
    rejected = 1 - np.asarray(mcmc.get_extra_fields(True)["accept_prob"], np.float64).mean(1)
    known: float | str = ""
    if POWERS[method] == 1:
        known = scale * mean_slope(model, size, method == ALL_ROWS) / (2 * np.pi) ** 0.5
    yield {
        "rejected": float(rejected.mean()),
        "error": float(rejected.std(ddof=1) / len(rejected) ** 0.5),
        "rejected, first order": known,
    }


def of_method(rows: Sequence[Row], model: str, method: str) -> list[Row]:
    """Rows of one method on one model, from the smallest scale."""
    own = [r for r in rows if (r["model"], r["method"]) == (model, method)]
    return sorted(own, key=lambda r: r["scale"])


def power(rows: Sequence[Row]) -> tuple[float, float]:
    """The power of the scale that rejections fall with between the two smallest, and its error."""
    one, two = [r for r in rows if r["rejected"] > ROUNDING][:2]
    ratio = np.log(two["scale"] / one["scale"])
    found = np.log(two["rejected"] / one["rejected"]) / ratio
    return float(found), float(np.hypot(*(r["error"] / r["rejected"] for r in (one, two))) / ratio)


def curve(own: Sequence[Row]) -> np.ndarray:
    """Logarithms of scales and rejections of one method, (2, scale)."""
    return np.log([[r["scale"], r["rejected"]] for r in own]).T


def scale_at_one_percent(own: Sequence[Row]) -> float:
    """The scale at which one proposal in a hundred is rejected, between two that were run."""
    scales, rejected = curve(own)
    return float(np.exp(np.interp(np.log(0.01), rejected, scales)))


def rejected_where_mala_loses_one_percent(rows: Sequence[Row], model: str) -> tuple[float, float]:
    """The scale at which MALA rejects 1 %, and what SGLD on minibatches would reject there."""
    at = scale_at_one_percent(of_method(rows, model, "MALA"))
    rejected = np.interp(np.log(at), *curve(of_method(rows, model, ALL_ROWS)))
    return at, float(np.exp(rejected))


def summary(rows: Sequence[Row]) -> list[Row]:
    """One row for each model and method: powers, and steps at which one in a hundred is rejected."""
    made = []
    for model in MODELS:
        for method, expected in POWERS.items():
            own = of_method(rows, model, method)
            found, error = power(own)
            smallest = own[0]
            between = smallest["rejected"] < 0.01 < own[-1]["rejected"]
            known = smallest["rejected, first order"]
            made.append(
                {
                    "model": model,
                    "method": method,
                    "power": f"{found:.2f} ± {error:.2f}",
                    "power known": expected,
                    "h at 1 % rejected": f"{scale_at_one_percent(own):.2g}" if between else "",
                    "smallest h: rejected": f"{smallest['rejected']:.2g} ± {smallest['error']:.1g}",
                    "of the first order": f"{smallest['rejected'] / known:.2f}" if known else "",
                }
            )
    return made


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """The power of the step with which one minus acceptance falls, and what SGLD's proposals cost."""
    table = summary(rows)
    told = []
    for method, known in POWERS.items():
        own = [r["power"] for r in table if r["method"] == method]
        told.append(f"{method} {' and '.join(own)} (known: {known})")
    yield f"One minus acceptance falls as the step to the power of: {', '.join(told)}."
    for model in MODELS:
        at, rejected = rejected_where_mala_loses_one_percent(rows, model)
        yield (
            f"{model}: where MALA rejects 1 % of its proposals (h = {at:.2g}), those of SGLD, accepted by "
            f"all rows, would be rejected {100 * rejected:.0f} % of the time."
        )


def picture(rows: Sequence[Row]) -> Any:
    """One minus acceptance against the scale; dotted where the first order is known."""
    figure, panels = plt.subplots(
        1, len(MODELS), figsize=(9, 4.2), layout="constrained", sharey=True
    )
    for ax, model in zip(panels, MODELS):
        for k, method in enumerate(POWERS):
            own = of_method(rows, model, method)
            x = [r["scale"] for r in own]
            color = bnn.plots.PALETTE[k]
            ax.errorbar(
                x,
                [r["rejected"] for r in own],
                yerr=[2 * r["error"] for r in own],
                marker="os^Dv"[k],
                color=color,
                label=method,
                capsize=2,
            )
            if POWERS[method] == 1:
                first = [min(r["rejected, first order"], 1.0) for r in own]
                label = "first order in h" if method == RANDOM_WALK else None
                ax.plot(x, first, color="0.3", linestyle=":", zorder=3, label=label)
        ax.set(xscale="log", yscale="log", xlabel="standard deviation h of a proposal", title=model)
    panels[0].set_ylabel("1 - acceptance (± 2 errors)")
    named = panels[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside upper center", ncols=3, frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    study = Study(__file__, ("model", "method", "scale"), given)
    study.run(
        every_cell(model=MODELS, method=POWERS, scale=SIZES[given.size]["scales"]),
        lambda model, method, scale: cell(model, method, scale, given.size),
    )
    study.publish(summary(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
