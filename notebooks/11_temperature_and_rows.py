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
# # 11. Is the posterior best as it is?
#
# The posterior is proportional to exp(-U), where U is minus the log prior minus the log likelihood.
# Several papers found that networks predict better from a *colder* distribution, exp(-U/T) with T
# below 1, and others that they do not. If colder were always better, something would be wrong: with
# the prior, with the likelihood, or with the sampler.
#
# This notebook asks the question in small, where every run takes seconds: the digits of
# scikit-learn, one hidden layer, a prior N(0, α²) for every weight. Then it shows the answer in
# large, a study of 237 runs (all but ten of full-batch Hamiltonian Monte Carlo) on up to 10,000
# images, whose rows are stored with this package's benchmarks.
#
# Source of the question: Wenzel et al., *How good is the Bayes posterior in deep neural networks
# really?* (2020).

# %%
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn

pixels, digits = load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)
x_all, x_test, y_all, y_test = train_test_split(pixels, digits, test_size=600, random_state=0)
ROWS, ALPHAS, TEMPERATURES = (100, 800), (0.3, 1.0), (0.1, 0.3, 1.0, 3.0)
network = bnn.MLP([16], 10, jax.nn.relu)

# %% [markdown]
# ## One cell
#
# A temperature is an argument of the samplers of this package. Chains begin at trained networks,
# one each. What is compared is the log score of test rows, in nats a row: the log of the average
# probability of the right class. Differences are paired by row, so that rows that are hard for both
# cancel; their standard error is that of the rows.


# %%
def log_scores(rows, alpha, temperature):
    """Log score of each test row, and the median R-hat of the predictions."""
    x, y = x_all[:rows], y_all[:rows]
    model = bnn.classification(network, bnn.priors.Normal(alpha), x, y)
    starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=4, progress_bar=False)
    kernel = bnn.WindowedHMC(model, step_size="auto", num_steps=25, temperature=temperature)
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=100,
        num_samples=150,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), x, y, init_params=starts)
    predictions = bnn.predict(model, mcmc, x_test)
    space = bnn.diagnostics.diagnose_draws(predictions=predictions.values).predictions
    return np.asarray(bnn.scores.lppd(predictions, y_test, pointwise=True)), space.median_rhat


found = {
    (rows, alpha, t): log_scores(rows, alpha, t)
    for rows in ROWS
    for alpha in ALPHAS
    for t in TEMPERATURES
}

# %% [markdown]
# ## What a temperature gains
#
# Each line is the log score over that at T = 1, with two standard errors.

# %%
figure, axes = plt.subplots(1, len(ROWS), figsize=(9, 3.4), sharey=True, layout="constrained")
for ax, rows in zip(axes, ROWS):
    for alpha in ALPHAS:
        base = found[rows, alpha, 1.0][0]
        gaps = [bnn.scores.paired_difference(found[rows, alpha, t][0], base) for t in TEMPERATURES]
        values = [gap.difference for gap in gaps]
        errors = [2 * gap.standard_error for gap in gaps]
        ax.errorbar(TEMPERATURES, values, errors, marker="o", capsize=2, label=f"α = {alpha:g}")
    ax.axhline(0, color="0.5", linestyle=":")
    ax.set_xscale("log")
    ax.set_title(f"{rows} rows")
    ax.set_xlabel("temperature T")
axes[0].set_ylabel("log score – that at T = 1, nats")
axes[0].legend(frameon=False)
plt.show()
print("largest median R-hat:", round(max(rhat for _, rhat in found.values()), 2))

# %% [markdown]
# Colder is better here, under both priors, and with 800 rows it gains a third of what it gains with
# 100. The prior is why: with few rows it has much to say, and N(0, α²) for every weight says more
# about the functions of this network than anyone believes, most of it wrong. At T = 0.1 data and prior
# count ten times as much, the modes of both stay, and what lies between them goes. More rows do the
# same at T = 1. A cold posterior is then a patch for a prior, and one may mend the prior instead.
#
# A part of each gain is no virtue of the temperature: an average of few draws loses less where draws
# differ less. The study below takes that part off, by a jackknife over chains.
#
# ## The same in large
#
# `benchmarks/priors/temperature_by_rows.py` has a 196-32-10 network on MNIST: four numbers of rows,
# five priors, five temperatures, eight chains each, and deep ensembles whose weight decay was chosen
# on held-out rows. Its rows are in a table.

# %%
table = "benchmarks/priors/results/temperature_by_rows.csv"
stored = next(p for up in (".", "..") if (p := Path(up) / table).is_file())
rows = pd.read_csv(stored)
rows = rows.assign(prior=rows["prior"].astype(str).str.removesuffix(".0"))
# How T = 1 stands to the ensemble is better known by long minibatch runs, where there are any.
study = rows[rows["method"] == "HMC"]
long = rows[(rows["method"] == "BAOAB, SVRG, long") & (rows["temperature"] == 1)]
same = [study.set_index(["rows", "prior"]).index, long.set_index(["rows", "prior"]).index]
beside_ensembles = pd.concat([study[~same[0].isin(same[1])], long])


def diagram(column, temperature, shifts="none"):
    """Means over subsets, by prior and training rows; without shifts, or with them ("one pixel")."""
    runs = beside_ensembles if column == "over ensemble" else study
    chosen = runs[(runs["temperature"] == temperature) & (runs["shifts"] == shifts)]
    return chosen.pivot_table(index="prior", columns="rows", values=column)


figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
titles = ("T = 0.1 over T = 1", "T = 1 over the deep ensemble")
for ax, title, cells in zip(axes, titles, (diagram("gain", 0.1), diagram("over ensemble", 1.0))):
    ax.imshow(cells.clip(-0.15, 0.15), cmap="RdBu", vmin=-0.25, vmax=0.25, aspect="auto")
    for i, j in np.ndindex(cells.shape):
        if np.isfinite(cells.iloc[i, j]):
            ax.text(j, i, f"{cells.iloc[i, j]:+.3f}", ha="center", va="center")
    ax.set_xticks(range(cells.shape[1]), [f"{n:,}" for n in cells.columns])
    ax.set_yticks(range(cells.shape[0]), cells.index)
    ax.set(title=title, xlabel="training rows", ylabel="α of the prior")
plt.show()
print(diagram("gain", 0.1).round(3))

# %% [markdown]
# Augmentation is where most cold posteriors were found. In the study each image then has five rows,
# as it is and moved by one pixel to each side, and each row counts a fifth.

# %%
print("T = 0.1 over T = 1, with shifts:", diagram("gain", 0.1, "one pixel").round(3), sep="\n")
print("T = 1 over ensemble:", diagram("over ensemble", 1.0, "one pixel").round(3), sep="\n")

# %% [markdown]
# Read the first by lines. With α = 0.3 a colder posterior is better at each number of rows; the gain
# falls from 0.03 nats to 0.014 as rows grow to 10,000. With α = 1 it is 0.015 or less from 1000 rows
# on, and with α = 2 no difference from T = 1 is seen there; the hierarchical prior with 3000 rows is
# known to 0.08 nats only. The posterior at T = 1 is worse than a deep ensemble under narrow priors and
# better under wide ones, once there are 1000 rows.
#
# With shifts T = 0.1 gains up to three times as much as without under α = 0.3, five times and more
# under the wider priors, the less the more rows there are: 0.36 nats with 300 and 0.04 with 10,000 under
# α = 1. Most of it is there at T = 0.3 already: 0.30 of the 0.36. T = 1 is below the ensemble up to 1000
# rows, and above it with 10,000 under the wide priors. The prior is the same, so that this gain is made
# by a likelihood that counts five images as one; at T = 0.2 each of the five would count once.
#
# So the papers may all be right, each with its own prior, likelihood and number of images: there is no
# temperature that is best for networks as such.
#
# ## What would change it
#
# - *Mixing.* No run of the study has converged by the limit of all studies here (R-hat 1.01 of every
#   prediction). Cold chains with 10,000 rows stay near the networks that they began at, so that
#   their scores are those of an ensemble as much as of a distribution.
# - *Errors.* Of the widest priors differences below about 0.02 nats are not seen with 1000 and 3000
#   rows. The errors of every cell, over test rows, chains and subsets, are in the table of the study.
# - *Convolutions*, with which most published gains were seen, are not part of it.
#
# To ask the question of your own network, change `network` and the data above, and look at R-hat
# before you look at the scores. To run the study: `python -m benchmarks.priors.temperature_by_rows`
# from the root of the checkout, some eight hours on one core without the parts that a GPU computed.
