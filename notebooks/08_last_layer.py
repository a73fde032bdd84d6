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
# # 8. The last layer of a trained network
#
# You have a trained network and want to know how sure it is, without sampling all of its weights. A
# common way is to keep everything below the last layer as it was trained, and to put a prior on the
# last layer only. The network below then is a fixed function that turns an image into features, and
# what is sampled is a logistic regression on these features: a few hundred weights instead of
# thousands, and a posterior that chains can really reach.
#
# We train a small convolutional network with Optax on scikit-learn's images of digits (8 × 8
# pixels), sample its last layer under a hierarchical prior, and compare log scores on images that
# were not trained on. Only 300 images are for training, so that there is something to be unsure
# about.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn

table = load_digits()
x, x_test, y, y_test = train_test_split(
    table.images[..., None].astype("float32") / 16, table.target, train_size=300, random_state=0
)
print(x.shape, x_test.shape)

# %% [markdown]
# ## Train a network, as ever
#
# Nothing in this cell is Bayesian or knows of this package: a Flax module, a loss, Adam. The method
# `features` is everything below the last layer.


# %%
class ConvNet(nn.Module):
    def setup(self):
        self.first = nn.Conv(8, (3, 3))
        self.second = nn.Conv(16, (3, 3), strides=2)
        self.hidden = nn.Dense(32)
        self.last = nn.Dense(10)

    def features(self, images):
        images = nn.relu(self.second(nn.relu(self.first(images))))
        return nn.tanh(self.hidden(images.reshape(len(images), -1)))

    def __call__(self, images):
        return self.last(self.features(images))


network = ConvNet()
params = network.init(jax.random.key(0), x[:1])["params"]
optimizer = optax.adam(1e-3)


def loss(params, images, labels):
    logits = network.apply({"params": params}, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def step(carry, key):
    params, state = carry
    rows = jax.random.choice(key, len(x), (50,), replace=False)
    value, gradient = jax.value_and_grad(loss)(params, jnp.asarray(x)[rows], jnp.asarray(y)[rows])
    updates, state = optimizer.update(gradient, state, params)
    return (optax.apply_updates(params, updates), state), value


keys = jax.random.split(jax.random.key(1), 1500)
(params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), keys)
logits = network.apply({"params": params}, x_test)
print(f"loss {losses[:50].mean():.3f} at the beginning, {losses[-50:].mean():.5f} at the end")
print(f"errors on new images: {(logits.argmax(-1) != y_test).mean():.1%}")

# %% [markdown]
# The loss at the end is nearly zero: on its training images the network has no doubt left, and
# nothing in it says how far that doubt should go elsewhere.
#
# ## Which weights are random
#
# With `ByPath` each parameter gets its own prior, and `None` means that it keeps the value in
# `params=`. `describe` shows what that came to. This is the model to write when more layers than
# the last are random, or when the network has to see images at every prediction.


# %%
def whole(images, labels=None):
    prior = bnn.priors.ByPath({"last.*": bnn.priors.Hierarchical(), "*": None})
    net = bnn.random_module("net", network, prior, images[:1], params=params)
    bnn.likelihoods.categorical(net, labels, x=images)


print(bnn.describe(whole, x, y))

# %% [markdown]
# ## Sample the last layer
#
# With the last layer alone there is a shortcut that costs nothing: the features do not change while
# we sample, so they are computed once, and the model is one dense layer on them. Each draw then
# costs a thousandth of a pass through the convolutions. The prior is the same: weights are normal,
# and the precision of the kernel and that of the biases are found from the data.
#
# Four chains of `fit`'s own sampler (MCLMC, fifty steps to a draw) begin at optimised weights
# of that layer. The report judges the predictions on the new images.


# %%
def features(images):
    return np.asarray(network.apply({"params": params}, images, method="features"))


def last_layer(inputs, labels=None):
    net = bnn.random_module("net", nn.Dense(10), bnn.priors.Hierarchical(), inputs[:1])
    bnn.likelihoods.categorical(net, labels, x=inputs)


fitted = bnn.fit(
    last_layer,
    features(x),
    y,
    x_test=features(x_test),
    y_test=y_test,
    num_chains=4,
    num_warmup=200,
    num_samples=400,
    progress_bar=False,
)
fitted.print()

# %% [markdown]
# Compare the table with that of a network whose layers are all sampled (notebook 4): a last layer
# has no hidden units that could be renumbered, so the *weights* mix as well as the predictions.
# This is the great advantage of the method. Its price comes below.
#
# ## Was it worth it?
#
# Three predictions for the same images: the network as it was trained; the last layer at its most
# probable weights under the same prior (MAP); and the average over the posterior. The log score is
# the mean log probability of the right digit, in nats an image. The second table is for the same
# images with noise added to the pixels, which no network here was trained on.

# %%
point = bnn.map_estimate(last_layer, jax.random.key(2), features(x), y, progress_bar=False)


def predictions_at(images):
    """Class probabilities of each draw by method: (chain, draw, image, digit), or (image, digit)."""
    inputs = features(images)
    return {
        "trained network": np.asarray(nn.softmax(network.apply({"params": params}, images))),
        "MAP of the last layer": bnn.predict(None, point, inputs).probs,
        "posterior of the last layer": fitted.predict(inputs).probs,
    }


def log_score(p):
    """Log probability of the right digit of each image, averaged over draws before the logarithm."""
    right = p[..., np.arange(len(y_test)), y_test]
    # A single draw may give the right digit a probability that rounds to zero.
    return bnn.scores.lppd(np.log(np.maximum(right, 1e-37)), pointwise=True)


noisy = x_test + np.random.default_rng(1).normal(scale=0.3, size=x_test.shape).astype("float32")
for title, images in {"new images": x_test, "new images with noise": noisy}.items():
    print(title)
    probs = predictions_at(images)
    rows = {name: log_score(p) for name, p in probs.items()}
    for name, p in probs.items():
        print(
            f"  {name:28s} log score {rows[name].mean():.3f} ± "
            f"{bnn.scores.standard_error(rows[name]):.3f}   errors "
            f"{1 - bnn.scores.accuracy(p, y_test):.1%}   calibration error "
            f"{bnn.scores.expected_calibration_error(p, y_test):.3f}"
        )
    for name in list(probs)[:2]:
        gain = bnn.scores.paired_difference(rows["posterior of the last layer"], rows[name])
        print(
            f"  posterior - {name}: {gain.difference:+.3f} ± {gain.standard_error:.3f} nats an image"
        )

# %%
probs = predictions_at(x_test)
figure, axes = plt.subplots(1, 2, figsize=(10, 4.8), layout="constrained")
for ax, name in zip(axes, ["trained network", "posterior of the last layer"]):
    bnn.plots.plot_reliability(probs[name], y_test, ax=ax, label=name)

# %% [markdown]
# On new images of the same kind the posterior does not win here: it loses 0.03 nats an image to the
# network as it was trained, which happened to be calibrated on them. The MAP of the same prior
# loses 0.06, of which averaging regains half. With noise on the pixels the difference to the
# trained network is within its error, and the MAP is a little better than both. This is one data
# set and one split; the way to know for yours is this cell.
#
# Why is it too careful? The features were made so that the 300 training images can be told apart.
# Any weights along them fit, and the prior, which knows nothing of that, spreads the posterior over
# all such weights, sure and unsure ones alike.
#
# ## What it can and cannot know
#
# What the posterior does bring shows away from the data. Below are the same images upside down, and
# pure noise. The mean of the largest probability says how sure each prediction is; on noise
# anything far above one tenth is too much.

# %%
noise = np.random.default_rng(0).uniform(size=x_test.shape).astype("float32")
for name, images in {"new": x_test, "upside down": x_test[:, ::-1], "noise": noise}.items():
    trained = np.asarray(nn.softmax(network.apply({"params": params}, images)))
    averaged = bnn.average(fitted.predict(features(images)))
    print(
        f"{name:12s} largest probability: trained {trained.max(-1).mean():.2f}, "
        f"posterior {np.asarray(averaged).max(-1).mean():.2f}"
    )

# %% [markdown]
# The posterior is less sure where it should be, and still far from ignorance. The features were
# learnt from the same 300 images, and the posterior takes them for given: it is unsure about the
# weights on the features, never about the features. An image unlike all others can be mapped to the
# same place as a clear three, and is then called a three.
#
# ## Where to go on
#
# - Start from a trained network and sample *all* of its weights: `bnn.from_params(params)` makes
#   starts of trained weights, notebook 9 samples a network of images whole.
# - `bnn.laplace(model, key, x, y)` is the Gaussian approximation of the last layer: quicker, and
#   compared with sampling in notebook 5.
# - J. Snoek and others, *Scalable Bayesian optimization using deep neural networks* (2015), is an
#   early use of a Bayesian last layer; A. Kristiadi, M. Hein and P. Hennig, *Being Bayesian, even
#   just a bit, fixes overconfidence in ReLU networks* (2020), say what it can promise.
