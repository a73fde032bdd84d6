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
# # 9. A network of images
#
# All weights of a small network, on images of 28 × 28 pixels: no layer is kept fixed. The point of
# this notebook is what changes with size, and what the report then says. There are thousands of
# weights, and a gradient over all images is dear, so the sampler takes minibatches. Its steps are
# not accepted or rejected, so temperatures have to be looked at, and the error of the step has to
# be measured. The verdict is printed as it comes.
#
# The images are MNIST's, from a file `mnist.npz` with the arrays `x_train`, `y_train`, `x_test`,
# `y_test`. Put one into `shared/data/` beside the checkout, or name it in the variable MNIST.
# Nothing is downloaded. Where there is no such file, scikit-learn's digits of 8 × 8 pixels are
# enlarged to 28 × 28: all cells run, with other numbers than the text mentions.

# %%
import os
from importlib.util import find_spec
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from flax import linen as nn
from scipy.ndimage import zoom
from sklearn.datasets import load_digits

import numpyro_bnn as bnn

checkout = Path(find_spec("numpyro_bnn").origin).parents[1]
file = Path(os.environ.get("MNIST", checkout.parent / "shared" / "data" / "mnist.npz"))
if file.is_file():
    with np.load(file) as mnist:
        images, labels = mnist["x_train"][:500] / 255, mnist["y_train"][:500]
        new, new_labels = mnist["x_test"][:500] / 255, mnist["y_test"][:500]
    print("500 images of MNIST to train with, 500 to test with")
else:
    digits = load_digits()
    enlarged = np.clip(zoom(digits.images, (1, 3.5, 3.5), order=1) / 16, 0, 1)
    images, labels = enlarged[:500], digits.target[:500]
    new, new_labels = enlarged[500:1000], digits.target[500:1000]
    print(f"There is no {file.name}: scikit-learn's digits, enlarged, stand in for MNIST")
x, x_test = (part[..., None].astype("float32") for part in (images, new))
y, y_test = labels.astype(int), new_labels.astype(int)
print(x.shape, x_test.shape)

# %% [markdown]
# ## The model
#
# The picture is cut into 49 patches of 4 × 4 pixels, the same eight features are taken of each, and
# a dense layer sees them all: a convolution with a kernel of 4 × 4 and a stride of 4, written as a
# product of matrices, which is quicker for many chains at once on a processor.
#
# The scale of the prior matters more here than for a table. `FanIn()` would give the weights of the
# last layer a standard deviation of 1/√392, and logits of size one: such a network cannot be sure
# of any digit. So the last layer gets N(0, 0.3²), with logits of size six where all features are
# on, and the first one twice the standard deviation of `FanIn()`. `describe` shows that each prior
# sits on the layer that was meant.


# %%
class PatchNet(nn.Module):
    @nn.compact
    def __call__(self, images):
        patches = images.reshape(-1, 7, 4, 7, 4).swapaxes(2, 3).reshape(-1, 49, 16)
        seen = nn.tanh(nn.Dense(8)(patches))
        return nn.Dense(10)(seen.reshape(len(images), -1))


prior = bnn.priors.ByPath({"layer[0].*": bnn.priors.FanIn(4.0), "*": bnn.priors.Normal(0.3)})


def model(images, labels=None):
    net = bnn.random_module("net", PatchNet(), prior, images[:1])
    bnn.likelihoods.categorical(net, labels, x=images)


print(bnn.describe(model, x, y))

# %% [markdown]
# ## Train, then sample
#
# Four networks are optimised, and four chains of BAOAB begin at them. BAOAB is Langevin dynamics
# with momentum. Each step looks at 100 of the 500 images, and every fortieth step is kept. The
# learning rate of 0.01 is in the units of stochastic gradient descent with momentum on the mean
# loss; `from_learning_rate` turns it into a time step.


# %%
def sample(key, learning_rate, num_draws, thinning):
    kernel = bnn.BAOAB(
        model,
        step_size=bnn.schedules.from_learning_rate(learning_rate, len(x), momentum=True),
        batch_size=100,
        friction=5.0,
    )
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=50 * thinning,
        num_samples=num_draws * thinning,
        thinning=thinning,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(key, x, y, init_params=starts)
    return mcmc


starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=4, progress_bar=False)
mcmc = sample(jax.random.key(1), 0.01, 700, 40)
print(bnn.diagnose(mcmc, x_test, y_test))

# %% [markdown]
# Read it from above. With these 500 images of MNIST the predictions are known within tolerance,
# while the worst R-hat of the weights is 1.7. Both are true. The eight features can stand in any
# order and with either sign, and the lines *weights, aligned* show what is left once they are
# matched: 1.02. It is the predictions that are going to be used.
#
# The *kinetic* and the *configurational temperature* are one within a few thousandths, as they
# should be. With twice this learning rate and a prior of N(0, 1) on all weights the temperature of
# the first layer was 1.3: the noise of the minibatches had heated it. The report said so, and asked
# for fourteen times as many draws.
#
# ## Is the step small enough?
#
# The last sentence of the report says what no number of chains can show: the error of the step
# itself, which all chains share. The way to see it is a second run with half the step. A quarter of
# the learning rate is half the time step, since a learning rate is a step squared; each draw takes
# twice as many steps, so that both runs move for the same time.

# %%
half = sample(jax.random.key(2), 0.0025, 400, 80)
compared = bnn.diagnose(mcmc, x_test, y_test, second=half)
print(compared.second)
p, q = (bnn.average(bnn.predict(model, run, x_test)) for run in (mcmc, half))
print(
    f"total variation between the two averages: {bnn.scores.total_variation(p, q):.4f} on average"
)

# %% [markdown]
# The two runs are compared at every probability, in units of their joint Monte Carlo errors:
# `num_parted` counts the means and quantiles that differ by more than chance allows. None did here.
# The distance between the averages has to be read beside the errors of both: each is known to about
# 0.01 of total variation, so that two of them may well be 0.016 apart without any error of the
# step.
#
# ## What did averaging bring?
#
# Beside the posterior we put one trained network, and the average of the four that the chains began
# at: a deep ensemble. All were trained with the same prior as a penalty.

# %%
ensemble = bnn.Draws({site: value[:, None] for site, value in starts.items()}, model)
members = bnn.predict(None, ensemble, x_test).probs
predicted = {
    "one trained network": members[:1],
    "deep ensemble of 4": members,
    "posterior average": bnn.predict(None, mcmc, x_test).probs,
}


def log_score(p):
    """Log probability of the right digit of each image, averaged over draws before the logarithm."""
    right = p[..., np.arange(len(y_test)), y_test]
    return bnn.scores.lppd(np.log(np.maximum(right, 1e-37)), pointwise=True)


rows = {name: log_score(p) for name, p in predicted.items()}
for name, p in predicted.items():
    print(
        f"{name:20s} log score {rows[name].mean():.3f} ± {bnn.scores.standard_error(rows[name]):.3f}"
        f"   errors {1 - bnn.scores.accuracy(p, y_test):.1%}"
        f"   calibration error {bnn.scores.expected_calibration_error(p, y_test):.3f}"
    )
for name in list(predicted)[:2]:
    gain = bnn.scores.paired_difference(rows["posterior average"], rows[name])
    print(
        f"posterior average - {name}: {gain.difference:+.3f} ± {gain.standard_error:.3f} nats an image"
    )

# %% [markdown]
# Here averaging brought nothing: the posterior average makes as many errors as the trained networks
# and loses 0.07 nats an image, because it is too careful. That is not a fault of the sampler, since
# the averages are known within tolerance. It is a statement about the model: with this prior and
# 500 images the posterior is wider than what predicts best. `benchmarks/priors/README.md`
# (`temperature_by_rows`) measured the same on 300 to 10,000 images, where a temperature below one, the
# `temperature=` of the kernel, scores higher; and `prior_scale` has the scales of the prior. Only a
# run that is known to be right can tell this apart from a run that is too short.
#
# ## The images that it is least sure about
#
# The entropy of the averaged probabilities ranks images by doubt. A network that knows what it does
# not know is wrong mostly among these.

# %%
averaged = np.asarray(bnn.average(bnn.predict(None, mcmc, x_test)))
order = np.argsort(-bnn.scores.entropy(averaged))
wrong = averaged.argmax(-1) != y_test
tenth = len(order) // 10
print(f"errors among the tenth with most doubt: {wrong[order[:tenth]].mean():.0%}")
print(f"errors among the half with least doubt: {wrong[order[5 * tenth :]].mean():.1%}")
figure, axes = plt.subplots(2, 6, figsize=(9, 3.6), layout="constrained")
for ax, row in zip(axes.flat, order):
    ax.imshow(x_test[row, ..., 0], cmap="gray")
    ax.set_axis_off()
    named, sure = averaged[row].argmax(), averaged[row].max()
    ax.set_title(f"{named} ({sure:.0%}), is {y_test[row]}", fontsize=9)

# %% [markdown]
# More than half of the tenth with most doubt is wrong, and one in a hundred of the half with least.
# That is what the probabilities are for: such a network can hand over the images that it does not
# know.
#
# ## Where to go on
#
# - Larger networks: only a part of the weights random (notebook 8), or `chunk_size=` and several
#   devices (notebook 6).
# - `benchmarks/mixing/README.md`: 1000 images with eleven methods beside HMC (`against_hmc`), and four
#   precisions on 2000 images (`mnist_gibbs_verdict`). `benchmarks/priors/README.md`: which scale of
#   the prior MNIST wants (`prior_scale`). `benchmarks/cifar10/README.md`: convolutional networks.
# - P. Izmailov and others, *What are Bayesian neural network posteriors really like?* (2021): HMC
#   on image networks at full size, on 512 TPU devices.
