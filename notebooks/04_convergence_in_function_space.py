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
# # 4. Convergence in function space
#
# The R-hat of a network's weights is bad, in nearly every run that anyone has made. Is the run
# then useless? This notebook takes one small network apart. It shows why weights do not mix, what
# of that matters, and how `bnn.diagnose` tells the two kinds of trouble apart: chains that only
# number their hidden units differently, and chains that predict differently.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import NUTS
from sklearn.datasets import make_moons

import numpyro_bnn as bnn

x, y = make_moons(200, noise=0.2, random_state=0)
model = bnn.classification(bnn.MLP([5], 2), bnn.priors.FanIn(10.0), x, y)
num_hidden = 5
near = np.stack(np.meshgrid(np.linspace(-2, 3, 15), np.linspace(-1.5, 2, 15)), -1).reshape(-1, 2)

# %% [markdown]
# ## Four chains
#
# Each chain starts from its own trained network. We keep the energy of every draw to look at
# later.

# %%
starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=4, progress_bar=False)
settings = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
mcmc = bnn.MCMC(NUTS(model, max_tree_depth=6), num_warmup=250, num_samples=300, **settings)
mcmc.run(jax.random.key(1), x, y, init_params=starts, extra_fields=("potential_energy",))
report = bnn.diagnose(mcmc, near)
print(report)

# %% [markdown]
# Expect two different pictures. On the left the R-hat of every weight, on the right that of the
# class probabilities at a grid of inputs. The dashed line is the limit.

# %%
report.plot()

# %% [markdown]
# ## Why weights do not mix
#
# Take one draw. Number its hidden units in another order, and flip the signs of what goes in and
# out of one of them. The tanh of a negated sum is the negated tanh, so the network is the same
# function; the prior is the same for all units and symmetric, so the density is the same too.
# `bnn.potential_of` gives the energy -log p(weights, data) of a model, in nats.

# %%
draws = mcmc.get_samples(group_by_chain=True)
draw = {name: np.asarray(value[0, -1]) for name, value in draws.items()}
rng = np.random.default_rng(0)
order, signs = rng.permutation(num_hidden), rng.choice([-1.0, 1.0], num_hidden)
twin = {
    "net/Dense_0.kernel": draw["net/Dense_0.kernel"][:, order] * signs,
    "net/Dense_0.bias": draw["net/Dense_0.bias"][order] * signs,
    "net/Dense_1.kernel": draw["net/Dense_1.kernel"][order] * signs[:, None],
    "net/Dense_1.bias": draw["net/Dense_1.bias"],
}
potential = bnn.potential_of(model, x, y)
one, other = (
    bnn.predict(model, {name: value[None] for name, value in each.items()}, near).probs
    for each in (draw, twin)
)
print(f"energies: {float(potential(draw)):.4f} and {float(potential(twin)):.4f} nats")
print(f"largest difference of a probability: {np.abs(one - other).max():.1e}")
moved = np.concatenate([np.ravel(twin[name] - draw[name]) for name in draw])
print(f"distance between the weights: {np.linalg.norm(moved):.1f}")

# %% [markdown]
# With H hidden units there are H! 2^H such twins, all equally likely. A chain visits a few of
# them at best. So a bad R-hat of weights is expected, and by itself it is no reason to throw a
# run away.
#
# The picture below is the density in the plane through a draw of each of the first three chains,
# in nats below its highest point. Between the draws lie valleys. Read their depth from the
# colours: a valley of ten nats is crossed once in tens of thousands of tries.

# %%
last = [{name: value[c, -1] for name, value in draws.items()} for c in range(3)]
bnn.plots.plot_density_surface(potential, last)

# %% [markdown]
# ## Matching the units
#
# Hidden units can be matched across draws before weights are compared: an assignment problem for
# each draw. `diagnose` does so by itself (the rows *weights, aligned* above). By hand it is two
# calls, and nothing has to be declared: which units can be exchanged is found out by trying. How
# much of the variance of each weight lies between the chains, before and after?

# %%
sampled = bnn.Draws(draws, model)
layers = bnn.diagnostics.find_hidden_layers(sampled, near)
aligned = bnn.diagnostics.align(sampled, layers)
print(*layers, sep="\n")
for name in sampled:
    before, after = (
        bnn.diagnostics.variance_parts(each[name]).share.mean() for each in (sampled, aligned)
    )
    print(f"{name:20s} {before:6.1%} between chains, {after:6.1%} once units are matched")

# %% [markdown]
# Matching can only repair relabelling. What is left are real differences between chains, and slow
# directions: with relu units every unit can also be scaled up on one side and down on the other;
# with tanh units a large weight can grow with little effect. None of these need hurt a prediction
# either.
#
# ## The verdicts
#
# A verdict is about one run *and one set of inputs*. Four cases on the same model:
#
# 1. the run above, near the data;
# 2. the same draws, far from the data, where the prior has more to say;
# 3. the first sixty draws alone;
# 4. a run cut short: no optimised start, hardly any warm-up, short trajectories.

# %%
far = near * 6
few = {name: value[:, :60] for name, value in draws.items()}
short = bnn.MCMC(NUTS(model, max_tree_depth=3), num_warmup=30, num_samples=120, **settings)
short.run(jax.random.key(2), x, y)
cases = {
    "near the data": report,
    "far from the data": bnn.diagnose(mcmc, far),
    "sixty draws": bnn.diagnose(few, near, model=model),
    "cut short": bnn.diagnose(short, near),
}
for name, case in cases.items():
    print(f"{name}: {case.verdict}")
    print(f"    predictions: worst R-hat {case.predictions.max_rhat:.3f}, ", end="")
    print(f"fewest effective draws {case.predictions.min_ess:.0f}")

# %% [markdown]
# Whatever the first verdict is, say it with the result. *Run longer* comes with how many times as
# many draws it takes (`report.needed`). *Chains disagree* says that they predict different things, and
# more draws help only chains that cross from one story to the other. What is said of the case that
# was cut short:

# %%
print(cases["cut short"].explanation)
worst = int(np.nanargmax(cases["cut short"].predictions.groups[0].rhat[:, 1]))
figure, axes = plt.subplots(1, 2, figsize=(12, 3.2), sharey=True, layout="constrained")
for ax, (name, run) in zip(axes, {"full run": mcmc, "cut short": short}.items()):
    at_worst = bnn.predict(model, run, near[[worst]]).probs[:, :, 0, 1]
    bnn.plots.plot_trace(at_worst, label=f"P(class 1) at input {worst}", ax=ax)
    ax.set_title(name)

# %% [markdown]
# ## A second opinion
#
# R-hat compares the chains of one run. It cannot see what all of them miss in the same way, such
# as a narrow neck that the step size does not enter. `bnn.second_opinion` samples the same model
# again from other starts, with another kernel, and compares means and quantiles of all
# predictions in joint Monte Carlo errors. Here the other kernel is MAMS, a microcanonical sampler
# with a Metropolis correction.

# %%
opinion = bnn.second_opinion(
    mcmc,
    near,
    kernel=bnn.MAMS(model, max_num_steps=31),
    num_warmup=250,
    num_samples=250,
    progress_bar=False,
)
second = opinion.second
print(
    f"{second.num_compared} numbers compared, {second.num_parted} part by more than {second.limit:.1f} errors"
)
print("the samplers agree" if second.agrees else "the samplers do not agree")
print(opinion.verdict)

# %% [markdown]
# If they part, believe neither before you know why. If they agree, two samplers that make
# different mistakes have found the same functions; for a network this is about the best evidence
# there is.
#
# ## Where to go on
#
# - `benchmarks/mixing/README.md`: `verdicts` has the same six-line story on real tables, longer
#   runs included. `benchmarks/speed/README.md`: what a diagnosis of 79,510 weights costs.
# - P. Izmailov and others, *What are Bayesian neural network posteriors really like?* (2021):
#   R-hat in weight and function space at full size. A. Vehtari and others, *Rank-normalization,
#   folding, and localization: an improved R-hat* (2021). T. Papamarkou and others, *Challenges in
#   Markov chain Monte Carlo for Bayesian neural networks* (2022): the symmetries.
