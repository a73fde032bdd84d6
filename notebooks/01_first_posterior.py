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
# # 1. A first posterior
#
# How much does diabetes progress within a year, given the body mass index (BMI) of a patient? And
# how sure may we be of the answer? We fit a small network to the table that ships with
# scikit-learn, read what the report says line by line, predict in the units of the table, and
# keep the result.
#
# You need to know NumPyro: a model is a function, `numpyro.sample` names its random variables,
# `MCMC` runs a kernel over it. That is all that is used here; a network is one more line of a
# model.

# %%
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from numpyro.infer import NUTS
from sklearn.datasets import load_diabetes

import numpyro_bnn as bnn

table = load_diabetes(scaled=False)
bmi = table.data[:, table.feature_names.index("bmi"), None]  # (442, 1), kg/m²
progression = table.target  # (442,), a score from 25 to 346
order = np.random.default_rng(0).permutation(len(bmi))
train, test = order[:300], order[300:]
x, y = bmi[train], progression[train]

# %% [markdown]
# ## A network in an ordinary model
#
# `bnn.random_module` samples every weight of a Flax module, by the prior that it is given, and
# returns the network with those weights. The rest is NumPyro: a scale for the noise, a plate over
# the rows, an observed site. `numpyro.subsample` does nothing here. It is what will let the same
# model run on minibatches (notebook 3).
#
# A network wants inputs and targets of size one, so the model below works in standard units. That
# is the one nuisance of writing it out: what it predicts must be brought back by hand.


# %%
class Curve(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        hidden = nn.tanh(nn.Dense(8)(inputs))
        return nn.Dense(1)(hidden).squeeze(-1)


def by_hand(inputs, target=None):
    net = bnn.random_module("net", Curve(), bnn.priors.FanIn(), inputs[:1])
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", inputs.shape[0]):
        rows = numpyro.subsample(inputs, event_dim=1)
        seen = None if target is None else numpyro.subsample(target, event_dim=0)
        numpyro.sample("y", dist.Normal(net(rows), noise), obs=seen)


inputs, target = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
starts = bnn.optimize(by_hand, jax.random.key(0), inputs, target, num_chains=2, progress_bar=False)
mcmc = bnn.MCMC(
    NUTS(by_hand, max_tree_depth=5),
    num_warmup=100,
    num_samples=100,
    num_chains=2,
    progress_bar=False,
)
mcmc.run(jax.random.key(1), inputs, target, init_params=starts)
for name, draws in mcmc.get_samples().items():
    print(f"{name:35s} {draws.shape}")

# %% [markdown]
# The names of the sites are the paths of the parameters in Flax. `FanIn()` is a normal prior
# whose variance is 1 over the number of inputs of a unit; notebook 2 has others. `bnn.MCMC` is
# NumPyro's `MCMC` with a few things added; `bnn.optimize` gave it trained weights to start from,
# one set a chain. A network that starts from a prior draw can be stuck for thousands of steps.
#
# ## The same in two lines
#
# `bnn.regression` is this model with the units of the data kept inside. `bnn.fit` does all the
# rest: it optimises one start a chain, samples from each, and judges the draws, here at a grid of
# inputs. Its own choice of sampler is `MCLMC`; NUTS, asked for by name, is what you may know.

# %%
model = bnn.regression(bnn.MLP([8], 1), bnn.priors.FanIn())
grid = np.linspace(15, 45, 121)[:, None]
fitted = bnn.fit(
    model,
    x,
    y,
    kernel="nuts",
    x_test=grid,
    num_chains=4,
    num_warmup=300,
    num_samples=300,
    max_tree_depth=7,
    progress_bar=False,
)
fitted

# %% [markdown]
# ## The report, line by line

# %%
fitted.print()
print(fitted.report.details())

# %% [markdown]
# - **Verdict.** One of six, and what to do: *within tolerance*; *within tolerance on average*, where a
#   few inputs are known less well; *run longer*, and how much longer; *chains disagree*; *too short* to
#   say; *invalid* where there is a NaN. Below it are the two numbers that carry it, the parameters of the
#   model that are no weights (here the noise), and what was not looked at.
# - **The first line of the details** is about the sampler. Divergences are as in any NumPyro model. A
#   *saturated tree* is a trajectory that ended at the tree depth we allowed, before it turned
#   around by itself. A few cost speed, many mean that chains move less than they should.
# - **weights**: R-hat and effective draws (ESS) of every weight, by site. Do not be surprised if
#   these look bad. The eight hidden units can be numbered in any order and their signs flipped,
#   so two chains that agree in everything that can be observed may differ in every weight. Where
#   the data say little, as here, chains wander through many numberings and weights can look fine;
#   notebook 4 has the other case.
# - **weights, aligned**: the same after the units of all chains have been matched. What improves
#   from the line above was only a different numbering.
# - **log joint**: the log density of weights and data along the way.
# - **predictions**: R-hat and ESS of the mean and of the noise at each of the inputs that we
#   gave. These are what the verdict is about, because these are what we are going to use.
# - **parameters**: the noise has a table of its own, with Monte Carlo errors of its mean and standard
#   deviation. Both are to be known to a tenth of the standard deviation.
# - **The last lines** say all of it in words, and name the worst input.
#
# Two questions are answered apart. *How precisely are the averages known?* Their Monte Carlo errors
# are compared with what is accepted: by default 0.05 predictive standard deviations on average
# and 0.1 in the worst inputs, or what `bnn.Tolerance` says. *Do the chains tell the same story?* A
# test of all inputs together says so, and knows how many there are. R-hat stays in the table, beside
# the limit that belongs to so many numbers. The worst scalars are named by what they are:
# `mean[3]` is the curve at the fourth input, `scale[0]` the noise, which in this model is the same
# at all inputs.

# %%
worst = fitted.report.predictions.worst(3)
print(
    "worst:",
    *(f"{w.site}: R-hat {w.rhat:.3f}, {w.ess:.0f} effective draws" for w in worst),
    sep="\n  ",
)
fitted.report.plot()

# %% [markdown]
# ## What it predicts, in units
#
# The line is the mean of the posterior, the bands are ± ½ and ± 2 standard deviations of a new
# patient: the noise of the data and the disagreement of the draws together. Thin lines are single
# draws. They agree where there are patients and part where there are none.

# %%
at_grid = fitted.predict(grid)
ax = bnn.plots.plot_predictive_band(grid, at_grid, data=(x, y), num_draws=12)
ax.set(xlabel="BMI (kg/m²)", ylabel="progression after a year (score)")

# %% [markdown]
# Any question about a patient is a mean over draws. `sample` draws new targets, one for each
# posterior draw.

# %%
patients = np.array([[20.0], [27.0], [35.0], [44.0]])
predicted = fitted.predict(patients)
drawn = predicted.sample(jax.random.key(2))  # (chain, draw, patient)
low, high = np.quantile(drawn, [0.05, 0.95], axis=(0, 1))
for k, (value,) in enumerate(patients):
    curve = predicted.mean[..., k]
    print(
        f"BMI {value:.0f}: expected {curve.mean():.0f} ± {curve.std():.0f}, "
        f"90 % of such patients in {low[k]:.0f} to {high[k]:.0f}, "
        f"P(score > 200) = {(drawn[..., k] > 200).mean():.2f}"
    )

# %% [markdown]
# ## Is it right?
#
# The test rows can tell. The share of them inside each central interval should be the level of
# the interval; the grey band is what chance allows. The log score is the mean log density of the
# test targets, in nats a row, and we put a plain training run (MAP) beside it.

# %%
at_test = fitted.predict(bmi[test])
point = bnn.map_estimate(model, jax.random.key(3), x, y, progress_bar=False)
at_test_map = bnn.predict(None, point, bmi[test])
for name, predictions in {"posterior": at_test, "MAP": at_test_map}.items():
    rows = bnn.scores.lppd(predictions, progression[test], pointwise=True)
    print(
        f"{name:10s} log score {rows.mean():.4f} ± {bnn.scores.standard_error(rows):.4f}"
        f"   RMSE {bnn.scores.rmse(predictions, progression[test]):.1f}"
    )
gain = bnn.scores.paired_difference(
    bnn.scores.lppd(at_test, progression[test], pointwise=True),
    bnn.scores.lppd(at_test_map, progression[test], pointwise=True),
)
print(f"posterior - MAP, row by row: {gain.difference:+.4f} ± {gain.standard_error:.4f}")
bnn.plots.plot_pit(bnn.scores.pit(at_test, progression[test]))

# %% [markdown]
# Compare the difference with its error before you believe it. With one input and three hundred
# rows noise is nearly all there is, and averaging has little to improve inside the data. Its use
# is the spread of the curve outside of them: a single trained network has none.
#
# One thing is wrong and stays wrong however long we sample: the model. Its noise is normal and
# has one size, so the band reaches below the lowest score there is, and it is too wide for slim
# patients. `bnn.regression(…, likelihood="heteroscedastic")` with two outputs lets the noise
# follow the input.
#
# ## Keep it
#
# `bnn.save` writes one NumPy archive, with no pickle inside. Another process makes the same
# model, which need not have seen the data: their units come back with the draws.

# %%
path = bnn.save(fitted, "progression.npz")
again = bnn.load(path, bnn.regression(bnn.MLP([8], 1), bnn.priors.FanIn()))
same = bnn.predict(None, again, grid).mean
print(
    f"{path}, {path.stat().st_size / 1e6:.1f} MB, largest difference {np.abs(same - at_grid.mean).max()}"
)

# %% [markdown]
# And all of ArviZ is one call away, of either generation:

# %%
idata = bnn.to_inference_data(fitted.mcmc, predict={"grid": grid})
print([name.lstrip("/") for name in idata.groups])

# %% [markdown]
# ## Where to go on
#
# - The priors, and what the precisions are for: notebook 2. Why weights do not mix: notebook 4.
# - The page *What the verdict lets you do*: the same report on all ten columns and on the digits, with longer
#   runs in `benchmarks/mixing/README.md` (`verdicts`).
# - R. M. Neal, *Bayesian Learning for Neural Networks* (1996): the model and its priors. A.
#   Vehtari and others, *Rank-normalization, folding, and localization: an improved R-hat* (2021):
#   the limits.
