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
# # 3. Stochastic gradients
#
# HMC and NUTS look at all rows for each gradient. Stochastic-gradient samplers look at a
# minibatch, as training does. They are cheap, and wrong in ways that one can measure: too large a
# step and too noisy a gradient both make the posterior too wide. This notebook runs one unchanged
# model under both kinds, on a problem that is small enough for a reference, and shows where the
# errors appear before you trust a run that has no reference.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn

table = load_breast_cancer()
columns = (table.data - table.data.mean(0)) / table.data.std(0)
# The ten means of each image; training rows and test rows.
x, x_test, y, y_test = train_test_split(
    columns[:, :10], table.target, test_size=169, random_state=0
)
print(x.shape, x_test.shape)


# %% [markdown]
# ## The model, once
#
# What makes minibatches possible is the plate, with every row-wise array taken through
# `numpyro.subsample`. Under NUTS that does nothing. A minibatch kernel substitutes the plate's
# indices from outside, and the log likelihood of B rows is scaled by N/B. A model whose
# likelihood does not follow the minibatch is refused.


# %%
def model(inputs, target=None):
    net = bnn.random_module("net", bnn.MLP([8], 2), bnn.priors.FanIn(), inputs[:1])
    with numpyro.plate("data", inputs.shape[0]):
        rows = numpyro.subsample(inputs, event_dim=1)
        seen = None if target is None else numpyro.subsample(target, event_dim=0)
        numpyro.sample("y", dist.Categorical(logits=net(rows)), obs=seen)


starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=2, progress_bar=False)


def sample(kernel, num_warmup, num_samples, thinning=1):
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        thinning=thinning,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), x, y, init_params=starts)
    return mcmc


nuts = sample(NUTS(model, max_tree_depth=6), 150, 400)
reference = bnn.diagnose(nuts, x_test)
print(reference.explanation)

# %% [markdown]
# NUTS is the reference here, no more exact than the lines above say.
#
# ## A step size from a learning rate
#
# A learning rate on the mean loss, such as trains this network well, is a step size in other
# units: `schedules.from_learning_rate` converts it. BAOAB is the momentum kernel that we
# recommend; its `friction` stands for the optimiser's momentum. All of this is the same model;
# only the kernel is new. One step is one gradient of 40 rows, a tenth of what a step of NUTS
# looks at.

# %%
num_rows, batch_size = len(x), 40


def step_of(learning_rate, momentum):
    return bnn.schedules.from_learning_rate(learning_rate, num_rows, momentum=momentum)


friction = 5.0


def at_rate(kernel, rate, **ingredients):
    """A thousand draws a chain at a learning rate, one in eight steps."""
    if kernel is bnn.BAOAB:
        ingredients["friction"] = friction
    step_size = step_of(rate, momentum=kernel is bnn.BAOAB)
    batches = {} if "gradient" in ingredients else {"batch_size": batch_size}
    return sample(kernel(model, step_size=step_size, **batches, **ingredients), 1000, 8000, 8)


baoab = at_rate(bnn.BAOAB, 0.1)
baoab_report = bnn.diagnose(baoab, x_test)
print(f"h = {float(step_of(0.1, True)(0)):.4f}; verdict: {baoab_report.verdict}")

# %% [markdown]
# ## Bias against the step
#
# Now larger and smaller steps, for BAOAB and for plain Langevin dynamics (SGLD). What we look at
# is the spread of the posterior: the standard deviation of the log odds of each test row over the
# draws, as a share of NUTS's, the median over rows. It should be 1. Expect it to rise with the
# learning rate: to the discretisation comes the noise of the minibatch, which a larger step
# averages less. Small steps are not the whole answer either, since they move slowly, and a chain
# that has not moved through the posterior is too *narrow*.


# %%
def spread(run):
    probs = bnn.predict(model, run, x_test).probs
    odds = np.log(np.clip(probs[..., 1], 1e-6, 1)) - np.log(np.clip(probs[..., 0], 1e-6, 1))
    return odds.std((0, 1))


rates = [0.1, 0.3, 1.0]
exact = spread(nuts)
runs = {("BAOAB", 0.1): baoab}
for kernel in (bnn.BAOAB, bnn.SGLD):
    for rate in rates:
        name = (kernel.__name__, rate)
        runs[name] = runs.get(name) or at_rate(kernel, rate)
ratio = {
    name: [np.median(spread(runs[name, rate]) / exact) for rate in rates]
    for name in ("BAOAB", "SGLD")
}
for name, values in ratio.items():
    print(name, *(f"{rate}: {value:.2f}" for rate, value in zip(rates, values)), sep="  ")
ax = bnn.plots.plot_score_against_time(
    {name: (rates, values) for name, values in ratio.items()},
    against="learning rate on the mean loss",
    score="posterior sd of log odds / NUTS",
    reference=1.0,
)

# %% [markdown]
# The same learning rate is the same drift in both kernels. What differs is how long the noise of
# a minibatch stays in the momentum: the heating goes with one over the friction. SGLD is the
# limit of large friction: less heated, and slower to move. So a bias that is too large can be
# paid off with friction as well as with the step.
#
# ## What shows without a reference: temperatures
#
# A momentum kernel at the right temperature has momenta of variance 1 (in units of the mass), in
# every layer. The kinetic temperature measures that. The configurational one measures the same at
# the positions, from the gradient. Where they lie above 1, the step is too large for the
# curvature or the minibatch too noisy, and the report says in which layer. Here a step on purpose
# too large, beside a modest one:

# %%
hot = runs["BAOAB", 1.0]
hot_report = bnn.diagnose(hot, x_test)
figure, axes = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
for ax, (title, each) in zip(axes, {"0.1": baoab_report, "1.0": hot_report}.items()):
    bnn.plots.plot_layer_temperature(each.sampler.temperatures, ax=ax)
    ax.set_title(f"learning rate {title}")
print(hot_report.explanation)

# %% [markdown]
# R-hat compares chains with each other. To a bias that all of them share it is blind, so a run
# that is too hot may get a good verdict, and the warning before it is the part to read.
#
# Read both pictures with their own axes. A temperature above 1 in one layer is a reason to lower
# the step, or to raise `batch_size` or `friction`. A temperature of 1 everywhere is necessary and
# not sufficient.
#
# ## Less noise: control variates
#
# Noise can be taken out of the gradient itself. A control variate subtracts the minibatch
# gradient at a fixed anchor, here each chain's optimised start, and adds the full one. It costs
# two minibatch gradients a step, and pays while the chain stays near the anchor. With a network
# it may not: measure it.

# %%
steady = at_rate(bnn.BAOAB, 0.3, gradient=bnn.gradients.control_variate(batch_size))
plain, corrected = ratio["BAOAB"][rates.index(0.3)], np.median(spread(steady) / exact)
print(
    f"spread / NUTS at learning rate 0.3: plain {plain:.2f}, with a control variate {corrected:.2f}"
)

# %% [markdown]
# ## Exact ones
#
# AMAGOLD and GGMC take minibatch gradients and decide at intervals, with the energy on all rows,
# whether to accept. What comes out is the posterior, at any step; too large a step shows as
# rejections instead of bias. `step_size="auto"` finds a step in warm-up.

# %%
amagold = sample(
    bnn.AMAGOLD(
        model, step_size=step_of(0.03, True), batch_size=batch_size, num_steps=10, friction=friction
    ),
    300,
    1000,
)
ggmc = sample(bnn.GGMC(model, step_size="auto", num_steps=10), 300, 1000)
for name, run in {"AMAGOLD": amagold, "GGMC": ggmc}.items():
    accepted = bnn.diagnose(run, x_test).sampler.acceptance.mean()
    print(
        f"{name:8s} acceptance {accepted:.2f}, spread / NUTS {np.median(spread(run) / exact):.2f}"
    )

# %% [markdown]
# ## A cyclical schedule
#
# Any schedule of the step count can be a step size, those of Optax included. The cyclical one
# starts each cycle with a large step to leave the mode, and keeps only the draws of its last part.
# The draws are as many as asked for; a kernel runs through the exploration by
# itself.

# %%
schedule = bnn.schedules.cyclical(0.3, 1000, 0.6)  # a learning rate, by step
step_size = bnn.schedules.from_learning_rate(schedule, num_rows, momentum=True)
cyclical = sample(
    bnn.BAOAB(
        model,
        step_size=step_size,
        temperature=step_size.temperature(1.0),
        batch_size=batch_size,
        friction=friction,
    ),
    1000,
    2000,
    2,
)
plt.plot(step_size(np.arange(3000)))
plt.gca().set(xlabel="step after warm-up", ylabel="step size (units of the kernel)")

# %% [markdown]
# ## Inside Gibbs
#
# With a hierarchical prior the precisions have an exact conditional distribution. `bnn.neal` draws them
# from it and leaves the weights to any kernel, one on minibatches too.


# %%
def hierarchical(inputs, target=None):
    net = bnn.random_module("net", bnn.MLP([8], 2), bnn.priors.Hierarchical(), inputs[:1])
    bnn.likelihoods.categorical(net, target, x=inputs)


starts = bnn.optimize(hierarchical, jax.random.key(2), x, y, num_chains=2, progress_bar=False)
gibbs = sample(
    bnn.neal(
        hierarchical,
        bnn.BAOAB,
        step_size=step_of(0.03, True),
        batch_size=batch_size,
        friction=friction,
    ),
    500,
    3000,
    3,
)
scales = {
    name: value**-0.5 for name, value in gibbs.get_samples().items() if name.endswith("precision")
}
for name, value in scales.items():
    low, middle, high = np.quantile(value, [0.05, 0.5, 0.95])
    print(
        f"scale of {name.removesuffix('.precision'):20s} {middle:.2f}  (90 %: {low:.2f} to {high:.2f})"
    )

# %% [markdown]
# ## Side by side
#
# `bnn.compare` takes finished runs as well as kernels. The last columns are what each costs and
# how far its predictions are from the reference's. The Gibbs run has another prior, so it need
# not agree.

# %%
methods = {
    "NUTS": nuts,
    "BAOAB, 0.1": baoab,
    "BAOAB, 1.0": hot,
    "control variate, 0.3": steady,
    "AMAGOLD": amagold,
    "GGMC": ggmc,
    "cyclical": cyclical,
    "hierarchical, Gibbs": bnn.Draws(gibbs.get_samples(group_by_chain=True), hierarchical),
}
comparison = bnn.compare(model, (x, y, x_test, y_test), methods, "NUTS", progress_bar=False)
print(comparison)

# %% [markdown]
# Look at the log scores beside their errors: on a table as small as this one even a posterior
# that is too wide predicts well. That is why a score alone is no test of a sampler, and why the
# spread and the temperatures are worth the trouble. The R-hat column has its own message: two
# chains of this length, at the worst of the probabilities.
#
# ## Where to go on
#
# - `benchmarks/mixing/README.md`: `networks_beside_full_batch` is a long comparison, and
#   `benchmarks/predictions/README.md` has SGLD's bias by step. `benchmarks/speed/README.md`:
#   *How fast is a step* says what one costs.
# - M. Welling and Y. W. Teh, *Bayesian learning via stochastic gradient Langevin dynamics*
#   (2011); T. Chen, E. Fox and C. Guestrin, *Stochastic gradient Hamiltonian Monte Carlo* (2014);
#   B. Leimkuhler and C. Matthews, *Rational construction of stochastic numerical methods for
#   molecular sampling* (2013); R. Zhang and others, *Cyclical stochastic gradient MCMC* (2020)
#   and *AMAGOLD* (2020); J. Baker and others, *Control variates for stochastic gradient MCMC*
#   (2019); F. Wenzel and others, *How good is the Bayes posterior in deep neural networks
#   really?* (2020), on temperatures.
