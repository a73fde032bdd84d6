"""The page of bad inputs: what a user in a hurry gives, and the sentence that comes back.

Each line is a name, the call, and the part of the message that tells what to do about it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from flax import nnx
from numpyro import handlers
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors

KEY = jax.random.key(0)
ROWS = 5
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = np.arange(float(ROWS))
CLASSES = np.array([0, 1, 2, 0, 1])
NORMAL = priors.Normal()
F, LOGITS = jnp.zeros(ROWS), jnp.zeros((ROWS, 3))


def network(module, prior, *args, **options):
    """What `random_module` says inside a model."""
    return handlers.seed(partial(bnn.random_module, "net", module, prior, *args, **options), 0)()


def mlp(prior, **options):
    return network(nets.MLP(), prior, X[:1], **options)


def inside(call, *args, **options):
    """Call a helper inside a model."""
    return jax.eval_shape(lambda: handlers.seed(call, 0)(*args, **options))


def regression(*data, outputs=1, **options):
    return bnn.regression(nets.MLP(outputs=outputs), NORMAL, *data, **options)


def classification(*data, outputs=3):
    return bnn.classification(nets.MLP(outputs=outputs), NORMAL, *data)


def look(model, *args):
    """What any fit does first."""
    return bnn.optimize(model, KEY, *args, num_steps=0, progress_bar=False)


def mcmc(model, **options):
    settings = {"num_warmup": 1, "num_samples": 1, "progress_bar": False} | options
    return bnn.MCMC(HMC(model), **settings)


def streams(module):
    return bnn.random_module("net", module, NORMAL, apply_rng=["dropout"])(X)


def in_a_plate():
    with numpyro.plate("data", ROWS):
        bnn.random_module("net", nets.MLP(), NORMAL, X[:1])


def summed(x, y):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("data", ROWS):
        rows = numpyro.subsample(jnp.asarray(y), event_dim=0)
        numpyro.factor("likelihood", -jnp.sum((rows - w) ** 2))


def predicted(y):
    """Log scores of targets under two draws."""
    model = regression(X, Y, noise=1.0)
    draws = {k: jnp.stack([v, v]) for k, v in nets.weights(model, X, Y).items()}
    return bnn.predict(model, draws, X).log_prob(y)


def line(x):
    likelihoods.gaussian(numpyro.sample("w", dist.Normal()) * x[:, 0], noise=1.0)


class Named(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="a.b")(x)


def nan_at(values, index):
    values = values.copy()
    values[index] = np.nan
    return values


# name: (call, what the message says, the type of the error where it is no ValueError)
BAD = {
    # -- networks and priors
    "a module class": (lambda: network(nets.MLP, NORMAL, X), r"Make one first: `MyMod", TypeError),
    "no module": (
        lambda: network(jnp.tanh, NORMAL),
        "expected a flax.linen or flax.nnx",
        TypeError,
    ),
    "no parameters": (
        lambda: network(nn.Dropout(0.5), NORMAL, X, deterministic=True),
        "Dropout has no parameters",
    ),
    "a stream that is not there": (
        lambda: inside(streams, nets.NNXMLP(nnx.Rngs(0))),
        "has no random stream 'dropout'",
    ),
    "a dot in a name": (lambda: network(Named(), NORMAL, X), "is named 'a.b'"),
    "a network inside the plate": (
        lambda: inside(in_a_plate),
        "Call random_module outside every plate",
    ),
    "a prior class": (lambda: mlp(priors.FanIn), "FanIn", TypeError),
    "a dict as prior": (
        lambda: mlp({"*": NORMAL}),
        r"patterns use `bnn\.priors\.ByPath`",
        TypeError,
    ),
    "a prior of another shape": (
        lambda: mlp(dist.Normal(jnp.zeros(7), 1)),
        r"has shape \(7,\), which does not broadcast to the parameter's shape \(2,\)",
    ),
    "a rate below zero": (lambda: priors.Hierarchical(1, -2), "got rate=-2"),
    "a pattern with a slip": (
        lambda: mlp(priors.ByPath({"Dence_0.*": NORMAL, "*": NORMAL})),
        r"'Dence_0\.\*' matches no parameter.*\n.*Dense_0\.bias +\(2,\)",
    ),
    "fixed without a value": (
        lambda: mlp(priors.ByPath({"*.bias": NORMAL, "*": None})),
        r"\['Dense_0\.kernel', 'Dense_1\.kernel'\] are not random .* Pass them as `params=`",
    ),
    "fixed at another shape": (
        lambda: mlp(
            priors.ByPath({"*.bias": NORMAL, "*": None}),
            params={"Dense_0": {"kernel": X}, "Dense_1": {"kernel": X}},
        ),
        r"'Dense_0\.kernel' the shape \(5, 3\), the module needs \(4, 2\)",
    ),
    "trained weights of another network": (
        lambda: mlp(priors.pretrained({"Dense_7": {"kernel": X}})),
        r"no trained value for 'Dense_0\.bias'.*\n.*Dense_7\.kernel",
    ),
    "parameters in a list": (lambda: bnn.from_params([X]), "must be nested dicts", TypeError),
    "draws of two networks": (
        lambda: bnn.to_params({"a/w": X, "b/w": X}),
        r"networks \['a', 'b'\] .* Say which with `name=`",
    ),
    # -- data
    "a column of predictions": (
        lambda: inside(likelihoods.gaussian, F[:, None], Y, noise=1.0),
        r"compares every prediction with every target.*`f\.squeeze\(-1\)`",
    ),
    "fewer predictions than targets": (
        lambda: inside(likelihoods.gaussian, F[:-1], Y, noise=1.0),
        "Give as many targets as inputs",
    ),
    "fewer targets than inputs": (
        lambda: look(regression(), X, Y[:-1]),
        r"x has shape \(5, 3\) and y \(4,\)",
    ),
    "a list of targets": (
        lambda: inside(likelihoods.categorical, LOGITS, [0, 1, 2, 0, 1]),
        r"y is of type list.*`np\.asarray\(y\)`",
        TypeError,
    ),
    "NaN in the inputs": (
        lambda: look(regression(), nan_at(X, (1, 2)), Y),
        r"x has 1 NaN.*\(1, 2\)\. Remove or impute those rows",
    ),
    "one-hot classes": (
        lambda: inside(likelihoods.categorical, LOGITS, np.eye(3, dtype=int)[CLASSES]),
        r"one class a row\. Take `y\.argmax\(-1\)` of one-hot classes",
    ),
    "a column of classes": (
        lambda: inside(likelihoods.categorical, LOGITS, CLASSES[:, None]),
        r"y has shape \(5, 1\), expected \(N,\), one class a row",
    ),
    "one output for classes": (
        lambda: inside(likelihoods.categorical, F[:, None], CLASSES),
        "with two or more outputs",
    ),
    "one output for mean and scale": (
        lambda: inside(likelihoods.heteroscedastic, F, Y),
        "with 2 outputs",
    ),
    "noise below zero": (
        lambda: inside(likelihoods.gaussian, F, Y, noise=-1.0),
        r"noise must be one positive number or a distribution over it, got -1\.0",
    ),
    "noise of any sign": (
        lambda: inside(likelihoods.gaussian, F, Y, noise=dist.Normal(0, 1)),
        r"support Real\(\), expected one positive value.*HalfNormal",
    ),
    "a noise a row": (
        lambda: inside(likelihoods.gaussian, F, Y, noise=dist.HalfNormal(jnp.ones(ROWS))),
        r"prior on noise has shape \(5,\)",
    ),
    "no degrees of freedom": (
        lambda: inside(likelihoods.student_t, F, Y, noise=1.0, df=0),
        "df must be one positive number or a distribution over it, got 0",
    ),
    "a network without inputs": (
        lambda: inside(likelihoods.gaussian, lambda x: x, Y, noise=1.0),
        "f is of type function, expected an array of numbers",
        TypeError,
    ),
    "inputs in one dimension": (
        lambda: regression(X[:, 0], Y),
        r"expected \(N, columns\) and \(N,\)\. Use `x\[:, None\]`",
    ),
    "a column of targets": (
        lambda: look(regression(), X, Y[:, None]),
        r"y has shape \(5, 1\), expected \(N,\).* Use `y\.squeeze\(-1\)`",
    ),
    "other columns than trained on": (
        lambda: look(regression(X, Y), X[:, :2]),
        r"x has shape \(.*2\), .*fit had the shape \(3,\)",
    ),
    "two outputs for one target": (
        lambda: look(regression(outputs=2), X, Y),
        r"needs 1 output unit\(s\) a row",
    ),
    "a model that saw no data": (
        lambda: bnn.prior_predictive(regression(), KEY, X, 2),
        "has not seen its training data. Fit it first",
    ),
    # -- fitting
    "a number as key": (
        lambda: bnn.optimize(regression(), 0, X, Y),
        r"such as `jax\.random\.key\(0\)`, got 0",
        TypeError,
    ),
    "the key forgotten": (
        lambda: mcmc(regression()).run(X, Y),
        r"got an array of shape \(5, 3\)\. The key comes before",
        TypeError,
    ),
    "a minibatch larger than the data": (
        lambda: bnn.optimize(regression(), KEY, X, Y, batch_size=50),
        "batch_size=50 is larger than the 5 rows of the plate 'data'",
    ),
    "a network for the model of a kernel": (
        lambda: bnn.BAOAB(nets.MLP(), step_size=0.1),
        r"Expected a NumPyro model, got the network MLP, .* `bnn.regression\(MLP\(…\), prior\)`",
        TypeError,
    ),
    "a network for the model of a kernel of NumPyro": (
        lambda: bnn.MCMC(NUTS(nets.MLP()), num_warmup=1, num_samples=1),
        "Expected a NumPyro model, got the network MLP",
        TypeError,
    ),
    "a model for a kernel": (
        lambda: bnn.MCMC(regression(), num_warmup=1, num_samples=1),
        "Wrap the model in a kernel first",
        TypeError,
    ),
    "an argument that is no array": (
        lambda: mcmc(lambda words: numpyro.sample("w", dist.Normal())).run(KEY, {1, 2}),
        "must be arrays or hashable constants.*unhashable type: 'set'",
        TypeError,
    ),
    # -- predicting
    "draws without a model": (
        lambda: bnn.predict(None, {"w": X}, X),
        "carry no model to predict with",
    ),
    "no draws at all": (
        lambda: bnn.predict(summed, 3, X),
        "predict: expected an MCMC after `run`, .* got int",
        TypeError,
    ),
    "draws of another shape": (
        lambda: bnn.predict(line, {"w": np.zeros(())}, X, site="y"),
        r"leading axes \(draw,\) or \(chain, draw\)",
    ),
    "no rows": (lambda: bnn.predict(summed, {"w": Y}, X[:0]), "positive number of rows"),
    "scores of a column": (
        lambda: predicted(Y[:, None]),
        r"y has shape \(5, 1\), but the predictions are for targets of shape \(5,\)",
    ),
    "a file of a run that did not run": (
        lambda: bnn.save(bnn.MCMC(NUTS(summed), num_warmup=1, num_samples=1), "nowhere"),
        "save: the MCMC has no draws yet",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_is_answered_with_what_to_do(name):
    call, message, *kind = BAD[name]
    with pytest.raises(*kind or [ValueError], match=f"(?s){message}"):
        call()
