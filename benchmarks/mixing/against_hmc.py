"""How far is each method from the posterior, and does being near it predict better?

One network by problem and one posterior: 784-32-10 on 1000 images of MNIST, 13-16-1 and 11-16-1 on
the UCI tables boston and wine_red, relu, with independent normal weights. The reference is
full-batch HMC with trajectories πα/2 and several chains; HMC again from other starts and with
another key says how far two runs of the same posterior are (the noise floor). Against it: SGD (one
optimum), a deep ensemble, mean field, SGLD, SGHMC, cyclical SGHMC with and without an RMSprop
metric, BAOAB, AMAGOLD, all on minibatches, and MCLMC on all rows.

Printed and stored: agreement and total variation (classes), or the distance between the posteriors
of the mean and between predictive samples, 1-Wasserstein in standard deviations of the target
(regression); error or RMSE, log score, its difference from the reference with the standard error
over test rows, calibration, gradients in passes over all rows, seconds with compilation, and
whether predictions have converged. With the log score, the rank correlation of closeness and score.

    python -m benchmarks.mixing.against_hmc [--quick]

After table 4 and figure 8 of Izmailov, Vikram, Hoffman and Wilson, *What are Bayesian neural network
posteriors really like?* (2021); the methods are cited where the library has them.
"""

import functools
import math
import time

import jax
import numpy as np
import optax
from numpyro.infer import HMC
from scipy.stats import spearmanr

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import (
    convergence,
    hmc,
    leapfrogs,
    means,
    problem,
    publish,
    sampled,
    select,
    starts,
)
from benchmarks._shared.study import Row, Study, parser
from numpyro_bnn.samplers.sgmcmc import preconditioners, schedules
from numpyro_bnn.workflow.method_table import judged

# Of each problem: hidden units, prior scale, first leapfrog step, rows, test rows, minibatch.
PROBLEMS = {
    "mnist": ([32], 0.2, 0.01, 1000, 2000, 100),
    "boston": ([16], 0.5, 0.002, 0, 0, 50),
    "wine_red": ([16], 0.5, 0.002, 0, 0, 100),
}
# Leapfrogs of a trajectory while the noise of a regression is still that of the start: a step may
# have to be so short there that a trajectory of the right length would not end.
SHORT = 50
# Of each size: problems, chains, trajectories of warm-up and kept of HMC, steps of warm-up and
# steps of other samplers, draws kept of those, members of an ensemble, seeds.
SIZES = {
    "full": (("mnist", "boston", "wine_red"), 4, 100, 250, 2000, 10_000, 100, 10, (0, 1)),
    "quick": (("boston",), 4, 40, 100, 500, 2000, 100, 5, (0,)),
    "toy": (("boston",), 2, 4, 8, 8, 16, 8, 2, (0,)),
}
# Early, as in `function_space`.
ADAM_STEPS = {"full": 300, "quick": 300, "toy": 20}
# Of the RMSprop metric, in units of the gradient of the mean loss.
EPS = 0.1
# Agreement and total variation with HMC in table 4 of the paper: ResNet-20 on CIFAR-10, HMC against another
# of its chains.
PUBLISHED = {
    "SGD": (0.855, 0.190),
    "deep ensemble": (0.915, 0.115),
    "SGHMC": (0.920, 0.109),
    "cyclical SGHMC": (0.927, 0.099),
}
# Momentum of the samplers is forgotten over this share of a quarter of the prior's period.
MEMORY = 0.5


def settings(size: str, name: str):
    """The problem with the parts of its row above."""
    return PROBLEMS[name], SIZES[size]


@functools.cache
def given(folder, size: str, name: str):
    (hidden, scale, _, num_rows, num_test, _), _ = settings(size, name)
    if size == "toy":
        num_rows = 60
    prior = bnn.priors.Normal(scale)
    return problem(folder, name, hidden, prior, num_rows=num_rows, num_test=num_test)


@functools.cache
def begun(folder, size: str, name: str, seed: int):
    """Starts of all samplers with one seed."""
    return starts(*given(folder, size, name), 100 + seed, SIZES[size][1], ADAM_STEPS[size])


@functools.cache
def hmc_run(folder, size: str, name: str, seed: int):
    """Full-batch HMC: the run, its passes over all rows, its least step and its seconds."""
    (_, scale, step, *_), (_, num_chains, warmup, draws, *_) = settings(size, name)
    model, (x, y, *_) = given(folder, size, name)
    begin = time.perf_counter()
    init_params = begun(folder, size, name, seed)
    run = functools.partial(sampled, num_warmup=warmup)
    if not given(folder, size, name).has_classes:
        short = HMC(
            model,
            step_size=step,
            num_steps=SHORT,
            trajectory_length=None,
            adapt_mass_matrix=False,
        )
        first = run(short, jax.random.key(50 + seed), x, y, starts=init_params, num_samples=8)
        init_params = first.last_state.z
        step = float(np.min(first.get_extra_fields()["adapt_state.step_size"]))
    kernel = hmc(model, step, math.pi / 2 * scale)
    mcmc = run(kernel, jax.random.key(seed), x, y, starts=init_params, num_samples=draws)
    # Trajectories of warm-up are counted as if they were as long as the others.
    passes = num_chains * (warmup + draws) * leapfrogs(mcmc)
    adapted = float(np.min(mcmc.get_extra_fields()["adapt_state.step_size"]))
    return mcmc, passes, adapted, time.perf_counter() - begin


@functools.cache
def predicted(folder, size: str, name: str, seed: int):
    """Predictions of HMC at the test rows."""
    return bnn.predict(None, hmc_run(folder, size, name, seed)[0], given(folder, size, name)[1][2])


def kernels(model, step: float, scale: float, batch_size: int, cycle_length: int) -> dict:
    """Samplers by name, with steps that are stable where that of HMC is.

    Momentum methods take h, half the leapfrog step, and SGLD ε = 2h², as far as they go without
    momentum. The metric is at most 1 / EPS: with h √EPS it is stable as well.
    """
    h, friction = step / 2, 1 / (MEMORY * math.pi / 2 * scale)
    cycle = functools.partial(schedules.cyclical, cycle_length=cycle_length, exploration=0.5)
    some = {"batch_size": batch_size}
    return {
        "SGLD": bnn.SGLD(model, step_size=2 * h**2, **some),
        "SGHMC": bnn.SGHMC(model, step_size=h, friction=friction, **some),
        "cyclical SGHMC": bnn.SGHMC(model, step_size=cycle(2 * h), friction=friction, **some),
        "preconditioned cyclical SGHMC": bnn.SGHMC(
            model,
            step_size=cycle(2 * h * EPS**0.5),
            friction=friction / EPS**0.5,
            preconditioner=preconditioners.rmsprop(eps=EPS),
            **some,
        ),
        "BAOAB": bnn.BAOAB(model, step_size=h, friction=friction, **some),
        "AMAGOLD": bnn.AMAGOLD(model, step_size=h, friction=friction, num_steps=10, **some),
        "MCLMC": bnn.MCLMC(model),
    }


def sampler_run(folder, size: str, name: str, method: str, seed: int):
    """Draws of a sampler, and its passes over all rows."""
    (_, scale, _, _, _, batch_size), (_, num_chains, _, _, *counts, _, _) = settings(size, name)
    warmup, steps, draws = counts
    step = hmc_run(folder, size, name, 0)[2]
    model, (x, y, *_) = given(folder, size, name)
    kernel = kernels(model, step, scale, batch_size, max(2, steps // 10))[method]
    share = 1.0 if method == "MCLMC" else batch_size / len(y)
    # A draw of AMAGOLD is a trajectory; what a cycle explores is not counted as draws by `MCMC`.
    by_call = kernel.num_steps
    calls = steps // by_call // (2 if "cyclical" in method else 1)
    mcmc = sampled(
        kernel,
        jax.random.key(10 + seed),
        x,
        y,
        starts=begun(folder, size, name, seed),
        num_warmup=warmup // by_call,
        num_samples=min(draws, calls),
        thinning=max(1, calls // draws),
    )
    # The exact correction of AMAGOLD is an energy of all rows a trajectory, without gradients.
    return mcmc, num_chains * (warmup + steps) * share


def optimised(folder, size: str, name: str, method: str, seed: int):
    """Draws of a method that optimises, and its passes over all rows."""
    batch_size = PROBLEMS[name][-1]
    members, warmup, steps, draws = (SIZES[size][k] for k in (7, 4, 5, 6))
    model, (x, y, *_) = given(folder, size, name)
    run = {
        "SGD": bnn.map_estimate,
        "deep ensemble": functools.partial(bnn.deep_ensemble, num_members=members),
        "mean field": functools.partial(bnn.mean_field, num_samples=4 * draws),
    }[method]
    options = {"num_steps": warmup + steps, "batch_size": batch_size, "progress_bar": False}
    if method != "mean field":
        rate = optax.cosine_decay_schedule(0.005 / len(y), warmup + steps)
        options |= {"optimizer": optax.sgd(rate, momentum=0.9), "tolerance": -np.inf}
    found = run(model, jax.random.key(20 + seed), x, y, **options)
    passes = found.info.get("gradients", (warmup + steps) * batch_size / len(y))
    return found, passes


OPTIMISED = ("SGD", "deep ensemble", "mean field")
SAMPLED = (
    "SGLD",
    "SGHMC",
    "cyclical SGHMC",
    "preconditioned cyclical SGHMC",
    "BAOAB",
    "AMAGOLD",
    "MCLMC",
)
# One of each kind, to see in seconds whether it runs.
IN_TOY = ("SGD", "mean field", "preconditioned cyclical SGHMC", "AMAGOLD")
REFERENCE, AGAIN = "HMC", "HMC again"


def one_method(folder, size: str, name: str, method: str, seed: int):
    """The row of one method, as ``bnn.compare`` judges it, with the predictive distance and R-hat."""
    reference = hmc_run(folder, size, name, 0)
    model, data = given(folder, size, name)
    theirs = predicted(folder, size, name, 0)
    begin = time.perf_counter()
    if method in (REFERENCE, AGAIN):
        which = 0 if method == REFERENCE else 1
        _, passes, _, seconds = reference if which == 0 else hmc_run(folder, size, name, which)
        mine = predicted(folder, size, name, which)
    else:
        compute = optimised if method in OPTIMISED else sampler_run
        run, passes = compute(folder, size, name, method, seed)
        seconds = time.perf_counter() - begin
        mine = bnn.predict(model, run, data.x_test)
    found = judged(method, mine, theirs, data.y_test, math.nan, passes, seconds)
    row = found._asdict()
    del row["method"], row["max_rhat"]
    row["predictive"] = ""
    if not given(folder, size, name).has_classes:
        row["agreement"] = ""
        keys = jax.random.split(jax.random.key(0))
        samples = [p.sample(key) for p, key in zip((mine, theirs), keys)]
        row["predictive"] = bnn.scores.wasserstein(*samples)
    yield row | {"fit_seconds": row.pop("seconds")} | convergence(mine.values)


def cells(size: str):
    """One by problem, method and seed; the reference and its repeat have their own seeds."""
    names, *_, seeds = SIZES[size]
    for name in names:
        for method in (REFERENCE, AGAIN):
            yield {"problem": name, "method": method, "seed": 0}
        for method in IN_TOY if size == "toy" else (*OPTIMISED, *SAMPLED):
            for seed in seeds:
                yield {"problem": name, "method": method, "seed": seed}


def averaged(rows: list[Row]) -> list[Row]:
    """Means over the seeds of a method; standard errors over test rows are averaged too."""
    out = []
    for same, mean in means(rows, "problem", "method"):
        good = all(r["converged"] == "yes" for r in same)
        out.append(mean | {"converged": same[0]["converged"] and ("yes" if good else "no")})
    return out


def findings(rows: list[Row]):
    """What the rows say, in sentences."""
    for name in dict.fromkeys(r["problem"] for r in rows):
        here = {r["method"]: r for r in select(rows, problem=name)}
        hmc_row, floor = here.pop(REFERENCE), here.pop(AGAIN)
        yield (
            f"{name}: HMC has {'' if hmc_row['converged'] == 'yes' else 'not '}converged (worst R-hat "
            f"of predictions {hmc_row['worst R-hat']:.3f}, median {hmc_row['median R-hat']:.3f}, least "
            f"ESS {hmc_row['least ESS']:.0f}); log score {hmc_row['log_score']:.4f} ± "
            f"{hmc_row['log_score_error']:.4f}, again {floor['log_score']:.4f}; distance of the "
            f"two {floor['total_variation']:.4f}."
        )
        order = sorted(here, key=lambda m: here[m]["total_variation"])
        yield f"{name}: nearest to HMC first: " + ", ".join(
            f"{m} {here[m]['total_variation']:.3f}" for m in order
        )
        sure = {m: r["difference"] / max(r["difference_error"], 1e-12) for m, r in here.items()}
        better = [f"{m} ({here[m]['difference']:+.4f})" for m, t in sure.items() if t > 2]
        worse = [f"{m} ({here[m]['difference']:+.4f})" for m, t in sure.items() if t < -2]
        yield (
            f"{name}: log score above that of HMC by more than two standard errors: "
            f"{', '.join(better) or 'none'}; below: {', '.join(worse) or 'none'}."
        )
        rank = spearmanr(*([here[m][k] for m in here] for k in ("total_variation", "log_score")))
        yield f"{name}: rank correlation of distance and log score {rank.statistic:+.2f}."
    found = [
        f"{name} {a:.3f}, {b:.3f}" for name, a, b in nearer(rows, "deep ensemble", "mean field")
    ]
    yield f"A deep ensemble is nearer to HMC than mean field on {len(found)}: {'; '.join(found)}."


def beside_published(rows: list[Row]):
    """Lines of a table: distance from HMC here, on images, and in the paper."""
    here = {r["method"]: r for r in select(rows, problem="mnist")}
    for method, (agreement, variation) in PUBLISHED.items():
        if method in here:
            row = here[method]
            yield (
                f"| {method} | {row['agreement']:.3f} | {agreement:.3f} | "
                f"{row['total_variation']:.3f} | {variation:.3f} |"
            )


def nearer(rows: list[Row], one: str, other: str):
    """A distance from HMC of each of two methods by problem, where the first is the nearer one."""
    for name in dict.fromkeys(r["problem"] for r in rows):
        here = {r["method"]: r["total_variation"] for r in select(rows, problem=name)}
        if {one, other} <= here.keys() and here[one] < here[other]:
            yield name, here[one], here[other]


def draw(rows: list[Row]):
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    names = list(dict.fromkeys(r["problem"] for r in rows))
    figure, axes = plt.subplots(
        len(names),
        2,
        figsize=(9, 3.1 * len(names)),
        layout="constrained",
        squeeze=False,
        sharey="row",
    )
    for (left, right), name in zip(axes, names):
        others = [r for r in select(rows, problem=name) if r["method"] != REFERENCE]
        others.sort(key=lambda r: -r["total_variation"])
        floor = next(r["total_variation"] for r in others if r["method"] == AGAIN)
        for place, row in enumerate(others):
            color = "0.4" if row["method"] == AGAIN else color_at(left, 0)
            left.plot(row["total_variation"], place, "o", color=color)
            gap, error = row["difference"], 2 * row["difference_error"]
            right.errorbar(gap, place, xerr=error, fmt="o", color=color, capsize=2)
        left.set_yticks(range(len(others)), [r["method"] for r in others])
        left.axvline(floor, color="0.4", linestyle=":", linewidth=1)
        right.axvline(0, color="0.4", linestyle=":", linewidth=1)
        right.xaxis.get_major_locator().set_params(nbins=5)
        left.set_title(f"{name} (dotted: HMC against HMC)", fontsize=10)
        what = "total variation" if others[0]["agreement"] != "" else "1-Wasserstein distance"
        label_axes(left, f"{what} from HMC", "")
        label_axes(right, "log score – that of HMC (nats, ± 2 s.e.)", "")
    return figure


TABLE = {
    "problem": "problem",
    "method": "method",
    "agreement": "agreement",
    "total_variation": "total variation, or distance of the mean",
    "predictive": "distance of predictive samples",
    "error": "error or RMSE",
    "log_score": "log score",
    "difference": "– HMC",
    "difference_error": "± s.e.",
    "calibration": "calibration error, or cover of 90 %",
    "gradients": "passes over all rows",
    "fit_seconds": "seconds",
    "median R-hat": "median R-hat",
    "worst R-hat": "worst R-hat",
    "least ESS": "least ESS",
    "converged": "predictions converged",
}


def main(argv=None) -> None:
    asked = parser(__doc__).parse_args(argv)
    study = Study(__file__, ["problem", "method", "seed"], asked)
    study.run(
        cells(asked.size),
        lambda problem, method, seed: one_method(asked.data, asked.size, problem, method, seed),
    )
    rows = averaged(study.rows)
    publish(study, rows, TABLE, findings(rows), draw(rows))


if __name__ == "__main__":
    main()
