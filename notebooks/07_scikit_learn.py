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
# # 7. scikit-learn: from a data frame to intervals
#
# A Bayesian neural network does not predict a number, it predicts a distribution: every draw of the
# posterior is a network, and the average over all of them says what is likely and how sure one can be. The
# estimators `BNNRegressor` and `BNNClassifier` give this to people who work with scikit-learn: they take data
# frames, they live in pipelines and searches, and `predict` gives the mean of that distribution. What is new
# beside other regressors is the width: `return_std=True`, `predict_interval` and `predict_quantiles`.
#
# Ten lines are the whole way, on measurements of 442 diabetes patients that ship with scikit-learn.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn

x, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
settings = {"num_chains": 2, "num_warmup": 100, "num_samples": 100, "random_state": 0}
network = bnn.BNNRegressor(hidden=(8,), **settings).fit(x_train, y_train)
low, high = network.predict_interval(x_test, coverage=0.9)
order = np.argsort(network.predict(x_test))
place = np.arange(len(order))
plt.fill_between(place, low[order], high[order], alpha=0.3, label="90 % interval")
plt.plot(place, y_test.to_numpy()[order], ".", label="patients that were not trained on")
plt.xlabel("patients, ordered by their prediction")
plt.ylabel("progression after a year")
plt.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
plt.show()

# %% [markdown]
# How many of the new patients are inside? About nine in ten should be, and with 111 of them the share has a
# standard error of three percent: one number on one split is a check for blunders, no proof.

# %%
inside = (y_test > low) & (y_test < high)
print(f"{inside.mean():.0%} of {len(y_test)} patients; R² {network.score(x_test, y_test):.2f}")

# %% [markdown]
# ## What other libraries do not print
#
# Sampling can fail in silence, so every fit is judged. The report says whether the averages that you use are
# known as precisely as was asked, at the rows of the training data, and `fit` warns where they are not;
# `until=bnn.Tolerance()` with `max_minutes=` samples until they are. And `describe` shows what was
# assumed: which prior sits on which
# weight, layer by layer in the order in which they are called.

# %%
print(network.report_.verdict.words, "-", network.report_.headline)
print(bnn.describe(network))

# %% [markdown]
# ## Pipelines and searches
#
# Inputs are standardised inside, so that a scaler is not needed; a pipeline is for what comes before, such as
# categories and missing values. In a cross-validation the folds have the same shapes: the first compiles for
# some seconds, the others start at once.

# %%
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

mixed = x.assign(sex=np.where(x["sex"] == 1, "a", "b"))
mixed.loc[::50, "bmi"] = np.nan
ready = make_column_transformer(
    (OneHotEncoder(drop="if_binary"), ["sex"]),
    (SimpleImputer(add_indicator=True), ["bmi"]),
    remainder="passthrough",
)
pipeline = make_pipeline(ready, bnn.BNNRegressor(hidden=(8,), **settings))
assert isinstance(mixed, pd.DataFrame)
print("R² of three folds:", cross_val_score(pipeline, mixed, y, cv=3).round(2))

# %% [markdown]
# The spread of these three numbers is that of folds with 147 patients each; a difference between two settings
# that is smaller says nothing. Where a distribution is what you need, compare log scores instead:
# `bnn.scores.lppd(network.predictions(x_test), y_test)` is the mean log density that the network gave to what
# happened, and an interval that is too narrow or too wide costs there, as it should.

# %%
print(
    f"log score {bnn.scores.lppd(network.predictions(x_test), y_test.to_numpy()):.2f} nats a patient"
)
