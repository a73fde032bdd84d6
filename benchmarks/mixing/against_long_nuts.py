"""Do stochastic gradients sample the posterior? BAOAB with control variates against long NUTS.

Logistic regression on scikit-learn's breast-cancer table and a network with one hidden layer on
its diabetes table. Posterior mean and standard deviation of the prediction at every test input,
from minibatches and from NUTS, compared in units of the NUTS standard deviation beside their
Monte Carlo errors. And the bias of plain SGLD on the logistic regression as its step grows,
against the stationary covariance of its linearisation (a discrete Lyapunov equation with the
covariance of the minibatch noise, averaged over the posterior).

    python -m benchmarks.mixing.against_long_nuts [--quick]
"""

import platform
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from numpyro.infer import NUTS
from scipy.linalg import solve_discrete_lyapunov
from sklearn.datasets import load_breast_cancer, load_diabetes

import numpyro_bnn as bnn
from benchmarks._shared import sampled_runs
from benchmarks._shared.study import Results, parser
from numpyro_bnn.diagnostics import ess, mcse_mean, rhat

CHAINS = 8


class Logistic(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x).squeeze(-1)


class OneHiddenLayer(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(4)(x))).squeeze(-1)


def logistic(x, y=None):
    f = bnn.random_module("net", Logistic(), bnn.priors.Normal(1.0), x[:1])
    with numpyro.plate("data", x.shape[0]):
        logits = f(numpyro.subsample(x, event_dim=1))
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=target)


def network(x, y=None):
    f = bnn.random_module("net", OneHiddenLayer(), bnn.priors.Normal(0.5), x[:1])
    with numpyro.plate("data", x.shape[0]):
        mean = f(numpyro.subsample(x, event_dim=1))
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mean, 0.7), obs=target)


def table(load):
    x, y = load(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    if len(np.unique(y)) > 2:
        y = (y - y.mean()) / y.std()
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype(np.float32), y[order].astype(np.float32)
    cut = len(x) * 3 // 4
    return x[:cut], y[:cut], x[cut:]


def sampled(kernel, num_warmup, num_samples, thinning, x, y, starts):
    """A finished run, and its seconds."""
    numbers = {"num_warmup": num_warmup, "num_samples": num_samples, "thinning": thinning}
    begin = time.perf_counter()
    mcmc = sampled_runs.sampled(kernel, jax.random.key(1), x, y, starts=starts, **numbers)
    return mcmc, time.perf_counter() - begin


def functions(module, mcmc, x):
    """f at every input under every draw, (chain, draw, input)."""
    params = bnn.to_params(mcmc.get_samples(group_by_chain=True))
    apply = jax.jit(jax.vmap(jax.vmap(lambda p: module.apply({"params": p}, x))))
    return np.asarray(apply(params), np.float64)


def agreement(name, model, module, batch_size, step_size, friction, x, y, x_test, quick):
    """Rows of the table for one model."""
    scale = 10 if quick else 1
    starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=CHAINS, progress_bar=False)
    reference, seconds = sampled(
        NUTS(model, max_tree_depth=7), 1000 // scale, 4000 // scale, 1, x, y, starts
    )
    exact = functions(module, reference, x_test)
    # All chains begin at one mode's optimum but correct around their own.
    kernel = bnn.BAOAB(
        model,
        step_size=step_size,
        friction=friction,
        gradient=bnn.gradients.control_variate(batch_size),
    )
    run, seconds_ours = sampled(kernel, 20_000 // scale, 4000 // scale, 200, x, y, starts)
    ours = functions(module, run, x_test)
    sd = exact.std((0, 1))
    mean_gap = np.abs(ours.mean((0, 1)) - exact.mean((0, 1))) / sd
    sd_gap = np.abs(ours.std((0, 1)) / sd - 1)
    error = np.hypot(mcse_mean(ours), mcse_mean(exact)) / sd
    effective = [float(np.min(ess(f))) for f in (exact, ours)]
    sd_error = np.sqrt(0.5 / np.min(ess((exact - exact.mean((0, 1))) ** 2)))
    return (
        {
            "model": name,
            "rows": len(x),
            "batch_size": batch_size,
            "step_size": step_size,
            "NUTS worst R-hat": np.max(rhat(exact)),
            "NUTS least ESS": effective[0],
            "BAOAB worst R-hat": np.max(rhat(ours)),
            "BAOAB least ESS": effective[1],
            "mean, rms gap in sd": np.sqrt(np.mean(mean_gap**2)),
            "mean, worst gap in sd": mean_gap.max(),
            "mean, largest Monte Carlo error in sd": error.max(),
            "sd, rms relative gap": np.sqrt(np.mean(sd_gap**2)),
            "sd, worst relative gap": sd_gap.max(),
            "sd, Monte Carlo error": sd_error,
            "NUTS seconds": seconds,
            "BAOAB seconds": seconds_ours,
        },
        reference,
    )


def linearised(potential, draws, batch_size, size):
    """Covariance of the draws, and what the gradient adds around its linear part.

    A gradient on B rows drawn independently has 1/B of the covariance V of a gradient on one
    row, which is averaged over the posterior: at the optimum alone it is smaller. The full
    gradient has E[∇U ∇Uᵀ] = E[∇²U] under the posterior, of which the linear part accounts for
    the inverse covariance.
    """
    flat = jax.vmap(lambda z: ravel_pytree(z)[0])(draws)
    unravel = ravel_pytree({name: value[0] for name, value in draws.items()})[1]

    def of_row(theta, row):
        return potential.minibatch(unravel(theta), row[None], "data")

    def noise(theta):
        each = jax.vmap(jax.grad(of_row), in_axes=(None, 0))(theta, jnp.arange(size))
        return jnp.cov(each, rowvar=False, bias=True) / batch_size

    def curvature(theta):
        return jax.hessian(lambda t: potential(unravel(t)))(theta)

    some = flat[:: max(1, len(flat) // 400)]
    both = jax.jit(lambda: jax.lax.map(lambda theta: (noise(theta), curvature(theta)), some))()
    mean_noise, mean_curvature = (np.asarray(v, np.float64).mean(0) for v in both)
    covariance = np.cov(np.asarray(flat, np.float64), rowvar=False)
    return covariance, mean_noise, mean_curvature - np.linalg.inv(covariance)


def inflated(covariance, extra, step, design):
    """Predictive variance of SGLD over that of the posterior, mean over inputs.

    θ' = θ - (ε/2)(Σ⁻¹ θ + ν) + √ε ξ with Cov ν = extra: S = A S Aᵀ + ε I + (ε²/4) extra.
    """
    eye = np.eye(len(covariance))
    move = eye - step / 2 * np.linalg.inv(covariance)
    stationary = solve_discrete_lyapunov(move, step * eye + step**2 / 4 * extra)
    ratio = [np.einsum("ni,ij,nj->n", design, c, design) for c in (stationary, covariance)]
    return float((ratio[0] / ratio[1]).mean())


def bias(model, batch_size, x, y, x_test, reference, quick):
    """Inflation of the predictive variance by SGLD's step: measured and by theory."""
    potential = bnn.potential_of(model, x, y)
    net = Logistic()
    draws = reference.get_samples()
    covariance, noise, excess = linearised(potential, draws, batch_size, len(x))
    flat, unravel = ravel_pytree({name: value[0] for name, value in draws.items()})
    outputs = jax.jacobian(lambda t: net.apply({"params": bnn.to_params(unravel(t))}, x_test))
    design = np.asarray(outputs(flat), np.float64)
    exact = functions(net, reference, x_test).var((0, 1))
    starts = {n: v[:, -1] for n, v in reference.get_samples(group_by_chain=True).items()}
    largest = 1 / np.linalg.eigvalsh(covariance)[0]
    rows = []
    for share in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
        step = share / largest
        order = bnn.gradients.minibatch(batch_size, order="replacement")
        kernel = bnn.SGLD(model, step_size=step, gradient=order)
        steps = int((4 if quick else 40) * 50 / share)
        thinning = max(1, int(2 / share))
        run, _ = sampled(kernel, steps // 5, steps // thinning * 10, thinning, x, y, starts)
        f = functions(net, run, x_test)
        squares = (f - f.mean((0, 1))) ** 2
        by_chain = (squares.mean(1) / exact).mean(1)
        rows.append(
            {
                "step_size": step,
                "step_size * largest precision": share,
                "variance over NUTS, measured": by_chain.mean(),
                "its standard error": by_chain.std(ddof=1) / np.sqrt(CHAINS),
                "theory": inflated(covariance, noise + excess, step, design),
                "theory, without minibatch noise": inflated(covariance, excess, step, design),
            }
        )
    return rows


def figure(rows):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    share = [row["step_size * largest precision"] for row in rows]
    measured = [row["variance over NUTS, measured"] for row in rows]
    errors = [2 * row["its standard error"] for row in rows]
    ax.errorbar(share, measured, errors, fmt="o", color="#0072B2", label="SGLD, ± 2 s.e.")
    ax.plot(
        share,
        [row["theory"] for row in rows],
        color="#D55E00",
        label="theory: discrete Lyapunov equation",
    )
    ax.plot(
        share,
        [row["theory, without minibatch noise"] for row in rows],
        color="0.5",
        linestyle="--",
        label="theory, without minibatch noise",
    )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="step size × largest posterior precision",
        ylabel="variance of predictions / that of NUTS",
        title="Bias of plain SGLD, logistic regression",
    )
    ticks = [1.0, 1.1, 1.2, 1.4, 1.6]
    for axis, values in ((ax.xaxis, share), (ax.yaxis, ticks)):
        axis.set_minor_formatter(NullFormatter())
        axis.set_ticks(values, labels=[f"{value:g}" for value in values])
    ax.legend(frameon=False)
    return fig


def show(rows):
    for row in rows:
        print()
        for key, value in row.items():
            print(f"  {key:<40}{value if isinstance(value, (str, int)) else f'{value:.4g}':>14}")


def main(argv=None):
    options = parser(__doc__, toy=False).parse_args(argv)
    quick = options.size == "quick"
    print(f"JAX {jax.__version__}, Python {platform.python_version()}")
    x, y, x_test = table(load_breast_cancer)
    first, reference = agreement(
        "logistic", logistic, Logistic(), 64, 0.01, 5.0, x, y, x_test, quick
    )
    show([first])
    rows = bias(logistic, 32, x, y, x_test, reference, quick)
    show(rows)
    of_bias = Results(__file__, options, "sgld_bias")
    of_bias.write_rows(rows)
    of_bias.figure(figure(rows), dpi=120)
    x, y, x_test = table(load_diabetes)
    second, _ = agreement("10-4-1", network, OneHiddenLayer(), 64, 0.005, 5.0, x, y, x_test, quick)
    show([second])
    Results(__file__, options).write_rows([first, second])


if __name__ == "__main__":
    main()
