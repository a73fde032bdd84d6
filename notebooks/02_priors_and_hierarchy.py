# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 2. Priors and hierarchy
#
# A prior over weights is a prior over functions, and that is where to look at it. This notebook
# looks: what functions do common priors give? Then it lets the data choose the scales
# (hierarchical precisions, down to one for each input), samples the same posterior in three ways,
# and ends with the log evidence, which says which prior the data prefer.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from flax import linen as nn
from numpyro.infer import NUTS
from sklearn.datasets import load_diabetes

import numpyro_bnn as bnn
from numpyro_bnn import priors

table = load_diabetes()


def standard(values):
    return (values - values.mean(0)) / values.std(0)


class Net(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        hidden = jnp.tanh(nn.Dense(self.width)(x))  # made first, so this is Dense_0
        return nn.Dense(1)(hidden).squeeze(-1)


def model_of(width, prior, noise):
    def model(x, y=None):
        net = bnn.random_module("net", Net(width), prior, x[:1])
        bnn.likelihoods.gaussian(net, y, x=x, noise=noise)

    return model


# %% [markdown]
# ## What functions?
#
# Three priors over a network of one input: the same normal distribution for every weight; `FanIn`, whose
# variance is divided by the number of inputs of a unit; and one of our own, with heavy tails. Any
# function from the path and the shape of a parameter to a NumPyro distribution is a prior: here a
# Cauchy distribution whose scale is divided by the number of inputs. `bnn.prior_predictive` draws all
# sites. From the weights among them, `bnn.predict` gives the functions. Each with few hidden
# units and with many:


# %%
def cauchy(path, shape):
    num_inputs = shape[0] if path.endswith("kernel") else 1
    return dist.Cauchy(0.0, 1.0 / num_inputs)


grid = np.linspace(-4, 4, 81)[:, None]
choices = {"Normal(1)": priors.Normal(1.0), "FanIn(1)": priors.FanIn(), "Cauchy": cauchy}


def functions(width, prior, num_samples):
    model = model_of(width, prior, 0.1)
    drawn = bnn.prior_predictive(model, jax.random.key(0), grid, num_samples)
    weights = {name: value for name, value in drawn.items() if name != "y"}
    return bnn.predict(model, weights, grid).mean[0]  # (draw, row)


widths = (10, 500)
figure, axes = plt.subplots(2, 3, figsize=(13, 6), sharex=True, layout="constrained")
for row, width in zip(axes, widths):
    for ax, (name, prior) in zip(row, choices.items()):
        curves = functions(width, prior, 300)
        ax.plot(grid[:, 0], curves[:10].T, linewidth=1)
        middle = np.diff(np.quantile(curves[:, 50], [0.16, 0.84]))[0] / 2
        ax.set_title(f"{name}, {width} units: f(1) within ± {middle:.2g} at 68 %")
for ax in axes[1]:
    ax.set_xlabel("x")
for ax in axes[:, 0]:
    ax.set_ylabel("f(x)")

# %% [markdown]
# Mind the axes. Under `Normal` a wider network is a larger function: its scale must be chosen
# again for every width. Under `FanIn` it stays, and so it does with `scale_by_fan_in`. With
# normal weights a wide layer is nearly a Gaussian process, to which no single unit matters; with
# heavy tails single units still show as steps in the pictures.
#
# ## Let the data say: precisions
#
# `Hierarchical` puts a Gamma precision over each array, so its scale is learned. With `unit=`
# there is one more for each unit that weights come from. In the first layer these are the inputs:
# *automatic relevance determination*. We take four columns of the diabetes table and put four
# columns of noise beside them. The model does not know which is which.

# %%
names = ["bmi", "bp", "s5", "sex", "noise 1", "noise 2", "noise 3", "noise 4"]
columns = [table.feature_names.index(name) for name in names[:4]]
noise = np.random.default_rng(0).normal(size=(len(table.target), 4))
x = standard(np.concatenate([table.data[:, columns], noise], 1))
y = standard(table.target)
relevance = priors.ByPath(
    {
        "Dense_0.kernel": priors.Hierarchical.width(0.3, unit=2.0),
        "*": priors.Hierarchical.width(0.5, group=2.0, groups="layer"),
    }
)
model = model_of(4, relevance, noise=0.7)

# %% [markdown]
# ## One posterior, three ways
#
# Precisions and weights depend on each other strongly, so coordinates matter:
#
# - *non-centred* (the default): standard normal values are sampled, and multiplied by the scale.
#   Good where the data say little about a weight.
# - *centred*: the weights themselves are sampled. Good where the data say much.
# - *Gibbs*: precisions are drawn from their exact distribution given the weights, the weights by a
#   gradient kernel given the precisions. `bnn.neal` is Neal's scheme.
#
# The model is not written again for any of them: `bnn.parameterize` changes the coordinates from
# outside, and precisions are among the draws under each. Which of them wins depends on the
# problem, so compare.

# %%
starts = bnn.optimize(model, jax.random.key(1), x, y, num_chains=2, progress_bar=False)
centred = bnn.parameterize(model, "centered")
routes = {
    "non-centred NUTS": (NUTS(model, max_tree_depth=6), 150, 200, 1),
    "centred NUTS": (NUTS(centred, max_tree_depth=6), 150, 200, 1),
    "Gibbs": (bnn.neal(model, num_steps=20), 150, 200, 1),
}
runs = {}
for name, (kernel, num_warmup, num_samples, thinning) in routes.items():
    begin = time.perf_counter()
    runs[name] = bnn.MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        thinning=thinning,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    runs[name].run(jax.random.key(2), x, y, init_params=starts)
    report = bnn.diagnose(runs[name], x[:100])
    print(
        f"{name:17s} {time.perf_counter() - begin:3.0f} s  {report.verdict}  "
        f"precisions: worst R-hat {report.precisions.max_rhat:.3f}, "
        f"fewest effective draws {report.precisions.min_ess:.0f}; "
        f"predictions: {report.predictions.max_rhat:.3f}, {report.predictions.min_ess:.0f}; "
        f"divergences {report.sampler.divergences}"
    )

# %% [markdown]
# Divergences mark the funnel: where a precision is large, the weights have to be tiny, and a step
# that is right elsewhere is too long there. Read the R-hat of the precisions before anything
# else. Precisions mix more slowly than predictions, and in the seconds that a notebook has, none
# of the three may meet the limits: then the picture below is a sketch, in which differences
# between the routes are Monte Carlo error, and longer runs are what it asks for.
#
# ## Which inputs matter?
#
# The scale of an input is its precision to the power -½. If all is well, the routes agree, and
# the noise columns lie lower than the useful ones.

# %%
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
site = "net/Dense_0.kernel.unit_precision"
for k, (name, run) in enumerate(runs.items()):
    scales = np.asarray(run.get_samples()[site]).reshape(-1, len(names)) ** -0.5
    low, middle, high = np.quantile(scales, [0.05, 0.5, 0.95], axis=0)
    place = np.arange(len(names)) + 0.2 * (k - 1)
    color = bnn.plots.PALETTE[k]
    ax.errorbar(middle, place, xerr=[middle - low, high - middle], fmt="o", color=color, label=name)
ax.set_yticks(range(len(names)), names)
ax.set(xscale="log", xlabel="scale of the input's weights, median and 90 %")
ax.invert_yaxis()
ax.legend(frameon=False)

# %%
scales = np.asarray(runs["non-centred NUTS"].get_samples()[site]) ** -0.5
for useful in names[:4]:
    larger = (scales[:, [names.index(useful)]] > scales[:, 4:]).mean()
    print(f"P(scale of {useful:4s} > scale of a noise column) = {larger:.2f}")

# %% [markdown]
# A probability near 0.5 means that the data cannot tell this column from noise; among real
# columns too that happens. Four hundred rows give wide intervals: relevance is a matter of degree
# here.
#
# ## Which prior do the data prefer?
#
# The log evidence, log p(y), is the log score of the prior before it has seen any row.
# `bnn.ParallelTempering` runs a ladder of chains from prior to posterior, whose swaps cross
# modes, and gives the evidence with its error. We ask on a problem small enough to be quick:
# forty rows, one input, three hidden units; either the scale of all weights is fixed, or that of
# the first layer is learned.

# %%
few = np.random.default_rng(1).permutation(len(y))[:40]
bmi = x[few, :1]
target = y[few]
learned = {"Dense_0.kernel": priors.Hierarchical(), "*": priors.Normal(1.0)}
candidates = {"Normal(10)": priors.Normal(10.0), "learned": priors.ByPath(learned)}
for name, prior in candidates.items():
    tempering = bnn.MCMC(
        bnn.ParallelTempering(model_of(3, prior, noise=0.8), num_rungs=7),
        num_warmup=100,
        num_samples=200,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    tempering.run(jax.random.key(3), bmi, target)
    found = tempering.tempering
    print(
        f"{name:10s} log evidence "
        + " and ".join(
            f"{value:.2f} ± {error:.2f}"
            for value, error in zip(found.log_evidence, found.log_evidence_error)
        )
        + f" nats; round trips {found.round_trips.astype(int)}"
    )

# %% [markdown]
# Each prior has two replicas of the whole ladder. Where they differ by much more than their
# errors, the errors are too small and the number is not to be used; where there are no round
# trips, nothing has come down from the prior. Differences of a nat or two are worth little; one
# of five is worth a factor of a hundred and fifty.
#
# Evidence punishes what a prior wastes. A scale that is too large spreads its bets over wild
# functions; one that is too small cannot bend (try `priors.Normal(0.1)`). A prior that learns its
# scale pays a little for not knowing it and is never far from the best: that is what it is for.
# Check it against what is printed above.
#
# ## Where to go on
#
# - `benchmarks/neal/README.md`: `tempering` and `posteriors`, Neal's own examples, and what has
#   not converged there.
# - R. M. Neal, *Bayesian Learning for Neural Networks* (1996): wide networks, the hierarchy,
#   Gibbs and HMC. D. MacKay, *Probable networks and plausible predictions* (1995): relevance and
#   evidence. S. Syed and others, *Non-reversible parallel tempering* (2022). M. Betancourt and M.
#   Girolami, *Hamiltonian Monte Carlo for hierarchical models* (2015): centred and non-centred.
