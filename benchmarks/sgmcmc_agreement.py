"""Do stochastic gradients sample the posterior? BAOAB with control variates against long NUTS.

Logistic regression on scikit-learn's breast-cancer table and a network with one hidden layer on
its diabetes table. Posterior mean and standard deviation of the prediction at every test input,
from minibatches and from NUTS, compared in units of the NUTS standard deviation beside their
Monte Carlo errors. And the bias of plain SGLD on the logistic regression as its step grows,
against the stationary covariance of its linearisation at the optimum (a discrete Lyapunov
equation with the covariance of the minibatch noise).

    python benchmarks/sgmcmc_agreement.py [--quick]
"""

import argparse
import csv
import platform
import time
from pathlib import Path

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
from numpyro_bnn.diagnostics import ess, mcse_mean, rhat

RESULTS = Path(__file__).parent / "results"
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
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples * thinning,
        thinning=thinning,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    begin = time.perf_counter()
    mcmc.run(jax.random.key(1), x, y, init_params=starts)
    jax.block_until_ready(mcmc.last_state)
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
        starts,
        exact,
    )


def linearised(potential, start, batch_size, size):
    """Optimum, Hessian, and covariance of the minibatch gradient there, by Newton's method."""
    flat, unravel = ravel_pytree(start)

    def energy(theta):
        return potential(unravel(theta))

    def of_row(theta, row):
        return potential.minibatch(unravel(theta), row[None], "data")

    newton = jax.jit(lambda t: t - jnp.linalg.solve(jax.hessian(energy)(t), jax.grad(energy)(t)))
    for _ in range(20):
        flat = newton(flat)
    # A gradient on B rows drawn independently is the mean of B gradients on one row.
    each = jax.vmap(jax.grad(of_row), in_axes=(None, 0))(flat, jnp.arange(size))
    noise = np.cov(np.asarray(each, np.float64), rowvar=False, bias=True) / batch_size
    return unravel(flat), np.asarray(jax.hessian(energy)(flat), np.float64), noise


def bias(model, batch_size, x, y, x_test, starts, exact, quick):
    """Inflation of the predictive variance by SGLD's step: measured and by theory."""
    potential = bnn.potential_of(model, x, y)
    start = {name: value[0] for name, value in starts.items()}
    optimum, hessian, noise = linearised(potential, start, batch_size, len(x))
    flat, unravel = ravel_pytree(optimum)
    net = Logistic()
    design = jax.jacobian(lambda t: net.apply({"params": bnn.to_params(unravel(t))}, x_test))(flat)
    design = np.asarray(design, np.float64)
    laplace = np.einsum("ni,ij,nj->n", design, np.linalg.inv(hessian), design)
    largest = np.linalg.eigvalsh(hessian)[-1]
    rows = []
    for share in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
        step = share / largest
        move = np.eye(len(hessian)) - step / 2 * hessian
        stationary = solve_discrete_lyapunov(
            move, step * np.eye(len(hessian)) + step**2 / 4 * noise
        )
        theory = np.einsum("ni,ij,nj->n", design, stationary, design) / laplace
        order = bnn.gradients.minibatch(batch_size, order="replacement")
        kernel = bnn.SGLD(model, step_size=step, gradient=order)
        steps = int((4 if quick else 40) * 50 / share)
        thinning = max(1, int(2 / share))
        run, _ = sampled(kernel, steps // 5, steps // thinning * 10, thinning, x, y, starts)
        f = functions(net, run, x_test)
        squares = (f - f.mean((0, 1))) ** 2
        inflation = squares.mean((0, 1)) / exact.var((0, 1))
        by_chain = (squares.mean(1) / exact.var((0, 1))).mean(1)
        rows.append(
            {
                "step_size": step,
                "step_size * largest curvature": share,
                "variance over NUTS, measured": inflation.mean(),
                "its standard error": by_chain.std(ddof=1) / np.sqrt(CHAINS),
                "variance over Laplace, theory": theory.mean(),
                "without minibatch noise, theory": _clean(hessian, design, laplace, step),
            }
        )
    return rows


def _clean(hessian, design, laplace, step):
    move = np.eye(len(hessian)) - step / 2 * hessian
    stationary = solve_discrete_lyapunov(move, step * np.eye(len(hessian)))
    return (np.einsum("ni,ij,nj->n", design, stationary, design) / laplace).mean()


def figure(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    share = [row["step_size * largest curvature"] for row in rows]
    measured = [row["variance over NUTS, measured"] for row in rows]
    errors = [2 * row["its standard error"] for row in rows]
    ax.errorbar(share, measured, errors, fmt="o", color="#0072B2", label="SGLD, ± 2 s.e.")
    ax.plot(
        share,
        [row["variance over Laplace, theory"] for row in rows],
        color="#D55E00",
        label="theory: Lyapunov equation at the optimum",
    )
    ax.plot(
        share,
        [row["without minibatch noise, theory"] for row in rows],
        color="0.5",
        linestyle="--",
        label="theory, without minibatch noise",
    )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="step size × largest curvature",
        ylabel="variance of predictions / that of NUTS",
        title="Bias of plain SGLD, logistic regression",
    )
    ax.legend(frameon=False)
    fig.savefig(path, dpi=120)


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def show(rows):
    for row in rows:
        print()
        for key, value in row.items():
            print(f"  {key:<40}{value if isinstance(value, (str, int)) else f'{value:.4g}':>14}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    quick = parser.parse_args().quick
    print(f"JAX {jax.__version__}, Python {platform.python_version()}")
    x, y, x_test = table(load_breast_cancer)
    first, starts, exact = agreement(
        "logistic", logistic, Logistic(), 32, 0.02, 1.0, x, y, x_test, quick
    )
    show([first])
    rows = bias(logistic, 32, x, y, x_test, starts, exact, quick)
    show(rows)
    x, y, x_test = table(load_diabetes)
    second, _, _ = agreement(
        "10-4-1", network, OneHiddenLayer(), 64, 0.005, 5.0, x, y, x_test, quick
    )
    show([second])
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        write(RESULTS / "sgmcmc_agreement.csv", [first, second])
        write(RESULTS / "sgld_bias.csv", rows)
        figure(rows, RESULTS / "sgld_bias.png")


if __name__ == "__main__":
    main()
