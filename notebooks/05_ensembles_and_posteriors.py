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
# # 5. Ensembles and posteriors
#
# There are many cheap stand-ins for a posterior: one trained network, several of them, a Gaussian
# around a solution, the path of an optimiser. How far is each from the real thing, and does it
# matter? We take one network on scikit-learn's digits, small enough to run NUTS as a reference,
# and put everything else beside it. All of them return draws of the same model, so that
# predictions, scores and plots are the same call for all.

# %%
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import NUTS
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn

pixels, digits = load_digits(return_X_y=True)
x, x_rest, y, y_rest = train_test_split(pixels, digits, train_size=400, random_state=0)
x_held, x_test, y_held, y_test = train_test_split(x_rest, y_rest, train_size=300, random_state=0)
x_test, y_test = x_test[:300], y_test[:300]
model = bnn.classification(bnn.MLP([8], 10), bnn.priors.FanIn(2.0), x, y)
quiet = {"progress_bar": False}

# %% [markdown]
# ## Each in a line
#
# - `map_estimate`: plain training; the prior is its weight decay.
# - `deep_ensemble`: several such runs from other starts, averaged.
# - `randomized_map`: the same, and each member gets its own noise in the data and the prior. For
#   a linear model its members are exact posterior draws.
# - `swag` and `constant_sgd`: what a noisy optimiser does around a solution, as a Gaussian or as
#   it is.
# - `laplace`: a Gaussian from the curvature at the mode, here with the network linearised, so
#   that the draws are about the functions near the mode.
# - `mean_field`: independent Gaussians, fitted by variational inference.
#
# `bnn.compare` runs all of them on the same rows, and NUTS as the reference.

# %%
methods = {
    "MAP": bnn.map_estimate,
    "deep ensemble": partial(bnn.deep_ensemble, num_members=4),
    "randomised MAP": partial(bnn.randomized_map, num_members=4),
    "SWAG": partial(
        bnn.swag, num_samples=50, num_members=2, batch_size=50, thinning=20, num_warmup=300
    ),
    "constant SGD": partial(
        bnn.constant_sgd, num_samples=50, num_members=2, batch_size=50, thinning=20, num_warmup=300
    ),
    "Laplace": partial(bnn.laplace, num_samples=100, linearized=True),
    "mean field": partial(bnn.mean_field, num_samples=100, num_steps=2000),
    "NUTS": NUTS(model, max_tree_depth=6),
}
comparison = bnn.compare(
    model,
    (x, y, x_test, y_test),
    methods,
    "NUTS",
    num_chains=4,
    num_warmup=80,
    num_samples=100,
    **quiet,
)
print(comparison)

# %% [markdown]
# How to read it. *Log score* is the mean log probability of the true class: higher is better. The
# column *– reference* is the difference from NUTS row by row, with its own standard error, which
# is much smaller than that of the score itself. *Agreement* is the share of rows with the same
# answer as NUTS, *tot. var.* how far the probabilities are from those of NUTS. The two questions
# have different answers: a method may be far from the posterior and predict as well.
#
# The reference first: its R-hat in the table says how well NUTS itself has converged at this
# length. If it is well above 1.01, a small distance from it means little, and a distance of that
# size is within the noise of the reference. It is so for most networks in a notebook's time.
#
# Do not expect the posterior to win. It is exact about the model that we wrote, and the model has
# a prior: `FanIn(2.0)` believes in small functions, and four hundred rows do not silence it. A
# trained network sits where the density is highest and is surer of itself than the average over
# everything that is plausible. Where NUTS has the lower log score, that is the prior speaking and
# not the sampler; the next picture shows in which way.
#
# ## Are the probabilities right?
#
# Of the rows that get a probability of 0.8, eight in ten should be right. Marks below the
# diagonal are overconfident, marks above it are not confident enough.

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 5), layout="constrained")
for ax, name in zip(axes, ("MAP", "deep ensemble", "NUTS")):
    bnn.plots.plot_reliability(comparison.predictions[name], y_test, num_bins=8, ax=ax)
    ax.set_title(name, pad=45)

# %% [markdown]
# With few errors on few rows the marks are uncertain; the bars say how much. If all three lie
# above the diagonal, the prior is too narrow for all of them, and averaging makes a careful
# network more careful. A prior whose scale the data choose (`Hierarchical`, notebook 2) is the
# remedy, not a temperature.
#
# ## Stacking
#
# Mixtures need not be equal. `bnn.stacking_weights` finds the mixture of methods with the best
# log score on rows that none of them has seen. For this we need log densities of held-out rows
# from each; here three methods, run once more.

# %%
mixed = ["MAP", "deep ensemble", "Laplace", "mean field", "NUTS"]


def log_scores(inputs, targets):
    return np.array(
        [
            bnn.scores.lppd(
                bnn.predict(None, comparison.draws[name], inputs), targets, pointwise=True
            )
            for name in mixed
        ]
    )


weights = bnn.stacking_weights(log_scores(x_held, y_held))
on_test = log_scores(x_test, y_test)
for name, weight, score in zip(mixed, weights, on_test.mean(1)):
    print(f"{name:15s} weight {weight:.2f}   log score {score:.4f}")
mixture = np.log(weights @ np.exp(on_test))
equal = np.log(np.exp(on_test).mean(0))
print(f"stacked {mixture.mean():.4f}, equal weights {equal.mean():.4f}")

# %% [markdown]
# A method with weight 0 adds nothing to the others, which is not the same as being bad.
# `bnn.stack` does this for the chains of one run, and `bnn.fit(…, combine="stack")` from the
# start.
#
# ## When the inputs shift
#
# Now test rows that are not like the training rows: noise, blur and rotation, in five severities.
# The band is over the three kinds of shift.


# %%
def shifted(images, kind, severity, rng):
    images = images.reshape(-1, 8, 8)
    if kind == "noise":
        images = images + 2.0 * severity * rng.normal(size=images.shape)
    elif kind == "blur":
        images = ndimage.gaussian_filter(images, (0, 0.25 * severity, 0.25 * severity))
    else:
        images = ndimage.rotate(images, 12.0 * severity, axes=(2, 1), reshape=False, order=1)
    return images.reshape(-1, 64)


rng = np.random.default_rng(0)
KINDS = ("noise", "blur", "rotation")
images = np.concatenate([shifted(x_test, k, s, rng) for k in KINDS for s in range(6)])


def scores_of(draws, images):
    """Log scores of copies of the test rows that follow one another, one number a copy."""
    copies = len(images) // len(y_test)
    predicted = bnn.predict(None, draws, images)
    each = bnn.scores.lppd(predicted, np.tile(y_test, copies), pointwise=True)
    return np.reshape(each, (copies, -1)).mean(axis=1)


shown = ("MAP", "deep ensemble", "mean field", "NUTS")
under_shift = {n: scores_of(comparison.draws[n], images).reshape(3, 6) for n in shown}
middle = {n: (np.arange(6), np.median(found, 0)) for n, found in under_shift.items()}
bnn.plots.plot_score_against_time(middle, against="severity of the shift (0: none)", log=False)

# %% [markdown]
# Under strong shifts averages should hold up better than one trained network, since their members
# stop agreeing where the data end. That is the usual argument for them. But it depends on the
# shift.
#
# ## Dead pixels: where the average is worse
#
# Some pixels of these images are black in every training row. The data say nothing about the
# weights that start there, so their posterior is the prior. MAP puts them at 0. Now let those
# pixels light up at test time: every draw adds its own noise, while the trained network does not
# notice. This is a deliberately unkind shift, along the directions in which the training data
# have no variance.

# %%
dead = np.flatnonzero(x.std(0) == 0)
levels = np.arange(6)
lit = np.stack([x_test] * len(levels))
lit[:, :, dead] += 0.5 * levels[:, None, None]
under_light = {n: scores_of(comparison.draws[n], np.concatenate(lit)) for n in shown}
print(f"{len(dead)} dead pixels: {dead}")
bnn.plots.plot_score_against_time(
    {n: (levels, found) for n, found in under_light.items()},
    against="light in the dead pixels, in steps of 0.5 (of 16)",
    log=False,
)

# %% [markdown]
# Nothing is wrong with the sampler here. The prior says that an unseen pixel matters as much as
# any other, and the posterior keeps saying so. The remedy is a prior that says what we believe:
# leave dead columns out, give their weights a small scale (`priors.ByPath` or a prior of your
# own), or let the data set the scale of each input (notebook 2).
#
# ## Where to go on
#
# - `bnn.compare` from the terminal: `python -m numpyro_bnn compare diabetes`.
#   `benchmarks/README.md` lists the longer studies by theme; those of `benchmarks/neal` ask the
#   same of Neal's own problems.
# - B. Lakshminarayanan and others, *Deep ensembles* (2017); W. Maddox and others, *SWAG* (2019);
#   S. Mandt and others, *Stochastic gradient descent as approximate Bayesian inference* (2017);
#   T. Pearce and others, *Approximately Bayesian ensembling* (2020); E. Daxberger and others,
#   *Laplace redux* (2021); Y. Yao and others, *Using stacking to average Bayesian predictive
#   distributions* (2018).
# - P. Izmailov and others, *Dangers of Bayesian model averaging under covariate shift* (2021):
#   the dead pixels.
