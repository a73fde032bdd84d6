"""Is the posterior best at T = 1? Log score against temperature, three ways.

A 196-32-10 relu network on 1000 images of MNIST (28 × 28 pixels, averaged two by two), prior
N(0, 0.3²), minibatch BAOAB with small steps; density proportional to exp(-U/T) for T from 1/100 to
3. Three posteriors:

- *plain*: the images as they are.
- *shifts*: augmentation by shifts of up to two pixels each way. The data plate has 25 N rows, one
  for each image and shift, and each row counts 1/25: U = -log p(θ) - Σ_i mean_s log p(y_i | shift_s
  x_i, θ). Every minibatch is drawn from all of these rows, so that shifts are new each time and
  the gradient is unbiased: a likelihood in which an image counts once, through its mean log
  probability over shifts. (That is a bound of the invariant likelihood, mean over s inside the
  logarithm, and the usual meaning of augmentation: Nabarro et al. 2022.)
- *labels*: prior at T = 1 and the likelihood to the power S = 1/T, as if S labellers had agreed on
  every label that was kept (Aitchison 2021, equation 6). Test labels are scored in two ways: as one
  labeller's, p(y), and as a consensus, E[p(y)^S] / Σ_c E[p(c)^S].

Printed and stored: the log score, its difference from T = 1 with the standard error over test rows,
R-hat of the test predictions, and the kinetic temperature over the one asked for, which minibatch
noise would raise.

    python -m benchmarks.priors.cold_posteriors [--quick]

Sources: Wenzel et al., *How good is the Bayes posterior in deep neural networks really?* (2020);
Izmailov et al., *What are Bayesian neural network posteriors really like?* (2021), section 7;
Aitchison, *A statistical theory of cold posteriors in deep neural networks* (2021); Nabarro et al.,
*Data augmentation in Bayesian neural networks and the cold posterior effect* (2022).
"""

import functools
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import scale
from scipy.special import logsumexp

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import mnist
from benchmarks._shared.sampled_runs import (
    convergence,
    means,
    paired,
    publish,
    sampler,
    score,
    select,
    starts,
)
from benchmarks._shared.study import Row, Study, every_cell, parser
from numpyro_bnn.plots.style import MARKERS, label_axes, line_style

TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MODES = ("plain", "shifts", "labels")
REACH = 2
NUM_SHIFTS = (2 * REACH + 1) ** 2
PRIOR_SCALE, HIDDEN = 0.3, 32
# Rows, test rows, minibatch, chains, steps of warm-up and after it, draws, seeds, temperatures.
SIZES = {
    "full": (1000, 5000, 100, 4, 4000, 12_000, 120, (0, 1), TEMPERATURES),
    "quick": (300, 500, 100, 2, 300, 900, 50, (0,), (0.03, 1.0)),
    "toy": (40, 30, 10, 2, 10, 24, 8, (0,), (0.1, 1.0)),
}
STEP, FRICTION = 0.01, 3.0


def pooled(images: jax.Array) -> jax.Array:
    """Means of two by two pixels: (rows, 784) to (rows, 196)."""
    return images.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)


def shifted(images: jax.Array, shift: jax.Array) -> jax.Array:
    """Images (rows, 784) moved by one of the NUM_SHIFTS shifts each, zeros coming in."""
    wide = jnp.pad(images.reshape(-1, 28, 28), ((0, 0), (REACH, REACH), (REACH, REACH)))
    corner = jnp.stack(jnp.divmod(shift, 2 * REACH + 1), -1)
    cut = jax.vmap(lambda image, at: jax.lax.dynamic_slice(image, at, (28, 28)))
    return cut(wide, corner).reshape(-1, 784)


def model_of(mode: str, temperature: float, hidden: int = HIDDEN):
    """The model whose posterior at `temperature` is the one of that mode.

    *labels* are sampled at temperature 1/S with a wider prior: (S log p(y | θ) + log p(θ)) is
    (log p(y | θ) + log p(θ) / S) / T, and a normal prior to the power 1/S has √S times its scale.
    """
    wider = temperature**-0.5 if mode == "labels" else 1.0
    prior, module = bnn.priors.Normal(PRIOR_SCALE * wider), bnn.MLP([hidden], 10, jax.nn.relu)

    def model(x, y=None):
        net = bnn.random_module("net", module, prior, jnp.zeros((1, 196)))
        if mode != "shifts" or y is None:
            bnn.likelihoods.categorical(lambda rows: net(pooled(rows)), y, x=x)
            return
        images, labels = jnp.asarray(x), jnp.asarray(y)
        with numpyro.plate("data", NUM_SHIFTS * len(images)) as rows, scale(scale=1 / NUM_SHIFTS):
            image, shift = jnp.divmod(rows, NUM_SHIFTS)
            logits = net(pooled(shifted(images[image], shift)))
            numpyro.sample("y", dist.Categorical(logits=logits), obs=labels[image])

    return model


def consensus(probs: np.ndarray, labellers: float) -> np.ndarray:
    """Probability of each class, given that so many labellers agree.

    :param probs: (…, row, class) by draw.
    :return: (row, class).
    """
    flat = np.asarray(probs, np.float64).reshape(-1, *np.shape(probs)[-2:])
    power = logsumexp(labellers * np.log(np.maximum(flat, 1e-300)), 0)
    return np.exp(power - logsumexp(power, -1, keepdims=True))


@functools.cache
def run_of(size: str, mode: str, temperature: float):
    """The run of a posterior and temperature, which all seeds share: it is compiled once."""
    _, _, batch_size, num_chains, num_warmup, num_steps, draws, *_ = SIZES[size]
    kernel = bnn.BAOAB(
        model_of(mode, temperature),
        step_size=STEP,
        friction=FRICTION,
        batch_size=batch_size,
        temperature=temperature,
    )
    return sampler(kernel, num_chains, num_warmup, draws, num_steps // draws)


@functools.cache
def data(folder, size: str):
    return mnist(folder, *SIZES[size][:2])


@functools.cache
def begun(folder, size: str, seed: int):
    """Starts of all runs with one seed: optima of the plain posterior."""
    *_, num_chains, num_warmup, _, _, _, _ = SIZES[size]
    model, split = model_of("plain", 1.0), data(folder, size)
    return starts(model, split, seed, num_chains, min(1000, num_warmup))


def one_temperature(folder, size: str, mode: str, seed: int, temperature: float):
    """Rows of one run with the log score of every test row: one, or two for *labels*."""
    x, y, x_test, y_test = data(folder, size)
    # At T = 1 a label is one labeller's, and the posterior the plain one.
    same = mode == "labels" and temperature == 1
    mcmc = run_of(size, "plain" if same else mode, temperature)
    mcmc.run(jax.random.key(10 + seed), x, y, init_params=begun(folder, size, seed))
    predictions = bnn.predict(None, mcmc, x_test)
    heat = float(np.mean(mcmc.get_extra_fields()["kinetic_temperature"])) / temperature
    common = convergence(predictions.values) | {"temperature": temperature, "heat": heat}
    found, rows = score(predictions, y_test)
    yield common | found | {"scored": "one label"}, rows
    if mode == "labels":
        probs = consensus(predictions.probs, 1 / temperature)
        rows = np.log(np.maximum(probs[np.arange(len(y_test)), y_test], 1e-300))
        calibration = bnn.scores.expected_calibration_error(probs[None], y_test)
        found = found | {
            "log_score": float(rows.mean()),
            "log_score_se": bnn.scores.standard_error(rows),
            "error": 1 - float(bnn.scores.accuracy(probs[None], y_test)),
            "calibration": float(calibration),
        }
        yield common | found | {"scored": "consensus"}, rows


def one_cell(folder, size: str, mode: str, seed: int):
    """All temperatures of one posterior and seed, compared with T = 1 row by row."""
    found = [
        pair
        for temperature in SIZES[size][-1]
        for pair in one_temperature(folder, size, mode, seed, temperature)
    ]
    at_one = {row["scored"]: rows for row, rows in found if row["temperature"] == 1}
    for row, rows in found:
        yield row | paired(rows, at_one[row["scored"]])


def averaged(rows: list[Row]) -> list[Row]:
    """Means over seeds, and the spread of the difference from T = 1 between them."""
    out = []
    for same, mean in means(rows, "mode", "scored", "temperature"):
        gaps = [r["difference"] for r in same]
        between = float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else 0.0
        good = all(r["converged"] == "yes" for r in same)
        more = {"between_seeds": between, "converged": "yes" if good else "no"}
        # Test rows are shared by the seeds: their error does not shrink with them.
        out.append(mean | more | {"total_se": math.hypot(mean["difference_se"], between)})
    return out


def findings(rows: list[Row]):
    """What the rows say, in sentences."""
    for mode, scored in dict.fromkeys((r["mode"], r["scored"]) for r in rows):
        here = select(rows, mode=mode, scored=scored)
        best = max(here, key=lambda r: r["log_score"])
        sure = best["difference"] > 2 * best["total_se"]
        verdict = "T = 1 is best"
        if best["temperature"] != 1:
            verdict = (
                f"best at T = {best['temperature']:g}, {best['difference']:+.4f} ± "
                f"{best['total_se']:.4f} from T = 1: "
                f"{'more' if sure else 'not more'} than two standard errors"
            )
        cold = min(here, key=lambda r: r["temperature"])
        mixed = [f"{r['temperature']:g}" for r in here if r["converged"] == "yes"]
        yield (
            f"{mode}, scored as {scored}: {verdict}; T = {cold['temperature']:g} gives "
            f"{cold['difference']:+.4f} ± {cold['total_se']:.4f}; predictions converged at T = "
            f"{', '.join(mixed) or 'none'}; worst R-hat {max(r['worst R-hat'] for r in here):.2f}; "
            f"kinetic temperature over T at most {max(r['heat'] for r in here):.3f}."
        )


def draw(rows: list[Row]):
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for index, (mode, scored) in enumerate(dict.fromkeys((r["mode"], r["scored"]) for r in rows)):
        here = select(rows, mode=mode, scored=scored)
        t = [r["temperature"] for r in here]
        style = line_style(axes[0], index) | {"marker": MARKERS[index]}
        label = mode + (f", {scored}" if mode == "labels" else "")
        axes[0].errorbar(
            t,
            [r["log_score"] for r in here],
            [2 * r["log_score_se"] for r in here],
            capsize=2,
            label=label,
            **style,
        )
        gap, error = ([r[k] for r in here] for k in ("difference", "total_se"))
        axes[1].errorbar(t, gap, 2 * np.array(error), capsize=2, label=label, **style)
    axes[1].axhline(0, color="0.4", linestyle=":", linewidth=1)
    # One label's score shows what is asked; a consensus that is sure and wrong falls off the scale.
    single = [r for r in rows if r["scored"] != "consensus"]
    for ax, column in zip(axes, ("log_score", "difference")):
        low, high = (limit(r[column] for r in single) for limit in (min, max))
        ax.set_ylim(low - 0.3 * (high - low), high + 0.15 * (high - low))
    axes[0].set_title("a consensus may lie below", fontsize="medium")
    for ax, what in zip(axes, ("log score (nats)", "log score – that at T = 1")):
        ax.set_xscale("log")
        label_axes(ax, "temperature T (labels: power 1/T of the likelihood)", f"{what}, ± 2 s.e.")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=4, frameon=False)
    return figure


TABLE = {
    "mode": "posterior",
    "scored": "scored as",
    "temperature": "T",
    "log_score": "log score",
    "log_score_se": "± s.e.",
    "difference": "– T = 1",
    "difference_se": "± s.e. over rows",
    "between_seeds": "± over seeds",
    "error": "error",
    "calibration": "calibration error",
    "heat": "kinetic temperature / T",
    "median R-hat": "median R-hat",
    "worst R-hat": "worst R-hat",
    "converged": "predictions converged",
}


def main(argv=None) -> None:
    asked = parser(__doc__).parse_args(argv)
    study = Study(__file__, ["mode", "seed", "scored", "temperature"], asked)
    seeds = SIZES[asked.size][-2]
    study.run(
        every_cell(seed=seeds, mode=MODES),
        lambda mode, seed: one_cell(asked.data, asked.size, mode, seed),
    )
    rows = averaged(study.rows)
    publish(study, rows, TABLE, findings(rows), lambda: draw(rows))


if __name__ == "__main__":
    main()
