"""MCLMC and MAMS against BlackJAX's own on the same potential energy, at equal numbers of gradients.

BlackJAX gets its own tuning, with a diagonal metric, in its leapfrog and in its default integrator of two
gradients a step. Tuning is counted in neither.

    python -m benchmarks.mixing.against_blackjax [--quick]
"""

from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from numpyro.infer import NUTS
from sklearn.datasets import load_breast_cancer, load_diabetes

import numpyro_bnn as bnn
from benchmarks._shared import sampled_runs
from benchmarks._shared.study import Results, machine, parser, read_rows
from benchmarks._shared.words import span
from numpyro_bnn.diagnostics import ess, rhat

CHAINS = 4
# What `bde` aims at; ours is 5e-4.
ROUGH = 0.1
INTEGRATORS = {
    "leapfrog": (blackjax.mcmc.integrators.isokinetic_velocity_verlet, 1),
    "McLachlan": (blackjax.mcmc.integrators.isokinetic_mclachlan, 2),
}


class Network(nn.Module):
    hidden: int

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(self.hidden)(x)) if self.hidden else x
        return nn.Dense(1)(x).squeeze(-1)


def logistic(x, y=None):
    f = bnn.random_module("net", Network(0), bnn.priors.Normal(1.0), x[:1])
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=f(x)), obs=y)


def network(x, y=None):
    f = bnn.random_module("net", Network(4), bnn.priors.Normal(0.5), x[:1])
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(f(x), 0.5), obs=y)


def standard(values):
    return (values - values.mean(0)) / values.std(0)


def targets():
    """Name: potential energy of a flat vector, starts, and what is looked at, a function of it."""
    scales = np.geomspace(1.0, 30.0, 100)
    starts = np.random.default_rng(0).normal(size=(CHAINS, 100)) * scales

    def gaussian(z):
        return 0.5 * jnp.sum((z / scales) ** 2)

    yield "Gaussian, 100", gaussian, jnp.asarray(starts), lambda z: z / scales, np.ones(100)
    cancer, diabetes = load_breast_cancer(), load_diabetes()
    problems = {
        "logistic, 31": (logistic, standard(cancer.data), cancer.target),
        "network, 49": (network, standard(diabetes.data), standard(diabetes.target)),
    }
    for name, (model, x, y) in problems.items():
        x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
        potential = bnn.potential_of(model, x, y)
        points = bnn.optimize(model, jax.random.key(0), x, y, num_chains=CHAINS, progress_bar=False)
        _, restore = jax.flatten_util.ravel_pytree(jax.tree.map(lambda v: v[0], points))
        flat = jax.vmap(lambda z: jax.flatten_util.ravel_pytree(z)[0])(points)
        net = Network(0 if model is logistic else 4)

        def functions(z, net=net, restore=restore, x=x):
            return net.apply({"params": bnn.to_params(restore(z), "net")}, x[:50])

        yield name, lambda z, p=potential, r=restore: p(r(z)), flat, functions, None


def judged(looked, gradients, truth):
    """Effective draws by 1000 gradients, of scalars and squares; variances over the true ones."""
    centred = looked - looked.mean((0, 1))
    sizes = np.concatenate([ess(looked), ess(centred**2)])
    variance = centred.var((0, 1))
    ratios = variance / (variance if truth is None else truth)
    return {
        "mean ESS": 1000 * sizes.mean() / gradients,
        "least ESS": 1000 * sizes.min() / gradients,
        "variance": float(np.mean(ratios)),
        "worst variance": float(ratios[np.argmax(np.abs(np.log(ratios)))]),
        "worst R-hat": float(rhat(looked).max()),
        "of": variance,
    }


def ours(kernel, potential, starts, num_warmup, num_samples, thinning=1):
    made = kernel(potential_fn=potential)
    mcmc = sampled_runs.sampler(made, CHAINS, num_warmup, num_samples, thinning)
    fields = () if isinstance(made, bnn.MCLMC) else ("num_steps",)
    mcmc.run(jax.random.key(1), init_params=starts, extra_fields=fields)
    steps = mcmc.get_extra_fields().get("num_steps")
    # Every trajectory counts, also those that thinning leaves out.
    gradients = CHAINS * num_samples * thinning if steps is None else int(steps.sum()) * thinning
    return mcmc.get_samples(group_by_chain=True), gradients


def theirs(integrator, per_step, potential, start, num_tuning, num_samples, adjusted, key):
    """One chain of BlackJAX: positions and gradients."""

    def logdensity(z):
        return -potential(z)

    key_start, key_tune, key_run = jax.random.split(key, 3)
    if adjusted:
        build = partial(
            blackjax.mcmc.adjusted_mclmc_dynamic.build_kernel,
            integration_steps_fn=lambda key, mean: jnp.ceil(
                jax.random.uniform(key) * 2 * mean
            ).astype(int),
        )
        module, tune = blackjax.mcmc.adjusted_mclmc_dynamic, {"target": 0.9}
        find = blackjax.adjusted_mclmc_find_L_and_step_size
    else:
        build, module, tune = blackjax.mcmc.mclmc.build_kernel, blackjax.mcmc.mclmc, {}
        find = blackjax.mclmc_find_L_and_step_size
    kernel = build(integrator=integrator)
    state = module.init(start, logdensity, key_start)
    state, tuned, _ = find(
        mclmc_kernel=kernel,
        num_steps=num_tuning,
        state=state,
        rng_key=key_tune,
        logdensity_fn=logdensity,
        **tune,
    )
    settings = {"step_size": tuned.step_size, "inverse_mass_matrix": tuned.inverse_mass_matrix}
    if adjusted:
        settings["integration_steps_params"] = (tuned.L / tuned.step_size,)
    else:
        settings["L"] = tuned.L

    @jax.jit
    def run(state, keys):
        def step(state, key):
            state, info = kernel(rng_key=key, state=state, logdensity_fn=logdensity, **settings)
            return state, (state.position, info.num_integration_steps if adjusted else 1)

        return jax.lax.scan(step, state, keys)[1]

    positions, steps = run(state, jax.random.split(key_run, num_samples))
    return np.asarray(positions), int(np.sum(steps)) * per_step


def rows_of(name, potential, starts, functions, truth, num_gradients):
    """One row a sampler."""
    look = jax.jit(jax.vmap(jax.vmap(functions)))

    def row(sampler, positions, gradients, truth):
        return {"target": name, "sampler": sampler} | judged(
            np.asarray(look(positions), np.float64), gradients, truth
        )

    nuts, steps = ours(partial(NUTS), potential, starts, 1000, max(200, num_gradients // 10))
    first = row("NUTS", nuts, steps, truth)
    truth = first["of"] if truth is None else truth
    yield first
    long = num_gradients
    yield row("MCLMC", *ours(bnn.MCLMC, potential, starts, 2000, long), truth)
    rough = partial(bnn.MCLMC, energy_variance=ROUGH)
    yield row(f"MCLMC, energy variance {ROUGH}", *ours(rough, potential, starts, 2000, long), truth)
    yield row("MAMS", *ours(bnn.MAMS, potential, starts, 1000, long // 4), truth)
    for adjusted, sampler in ((False, "MCLMC"), (True, "MAMS")):
        for label, (integrator, per_step) in INTEGRATORS.items():
            num_samples = long // per_step // (3 if adjusted else 1)
            keys = jax.random.split(jax.random.key(2), CHAINS)
            runs = [
                theirs(
                    integrator, per_step, potential, start, num_samples, num_samples, adjusted, key
                )
                for start, key in zip(starts, keys)
            ]
            positions = np.stack([positions for positions, _ in runs])
            gradients = sum(count for _, count in runs)
            yield row(f"{sampler}, BlackJAX, {label}", positions, gradients, truth)


def by_sampler(rows):
    """Effective draws by 1000 gradients, a line a sampler."""
    names = list(dict.fromkeys(row["target"] for row in rows))
    for sampler in dict.fromkeys(row["sampler"] for row in rows):
        own = {row["target"]: row["mean ESS"] for row in rows if row["sampler"] == sampler}
        yield {"mean effective draws by 1000 gradients": sampler} | {n: own[n] for n in names}


def findings(rows):
    """Our effective draws over BlackJAX's, and what a larger energy variance does."""
    by = {(row["sampler"], row["target"]): row for row in rows}
    names = list(dict.fromkeys(row["target"] for row in rows))
    for sampler in ("MCLMC", "MAMS"):
        ratios = [
            by[sampler, n]["mean ESS"] / by[f"{sampler}, BlackJAX, {label}", n]["mean ESS"]
            for n in names
            for label in INTEGRATORS
        ]
        yield f"{sampler} has {span(ratios, 1)} times the mean effective draws by gradient of BlackJAX's."
    for sampler in (f"MCLMC, energy variance {ROUGH}", "MCLMC"):
        told = ", ".join(
            f"{by[sampler, n]['variance']:.2f} and {by[sampler, n]['worst variance']:.2f} ({n})"
            for n in names
        )
        yield f"{sampler}, variances over the true ones on average and at worst: {told}."


def main(argv=None):
    options = parser(__doc__, toy=False).parse_args(argv)
    num_gradients = 20_000 if options.size == "full" else 2000
    results = Results(__file__, options)
    if options.report:
        table = read_rows(results.path("csv"))
    else:
        print(f"{machine()}, BlackJAX {blackjax.__version__}")
        table = []
        for name, potential, starts, functions, truth in targets():
            for row in rows_of(name, potential, starts, functions, truth, num_gradients):
                row.pop("of")
                table.append(row)
        results.write_rows(table)
    results.report(list(by_sampler(table)), findings(table))


if __name__ == "__main__":
    main()
