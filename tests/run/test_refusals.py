"""The page of bad inputs: what a user in a hurry gives, and the sentence that comes back.

Each line is a name, the call, and the part of the message that tells what to do about it.
"""

import jax.numpy as jnp
import nets
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from flax import linen as nn
from flax import nnx
from refused_calls import (
    CLASSES,
    KEY,
    LOGITS,
    NORMAL,
    ROWS,
    F,
    Named,
    X,
    Y,
    classification,
    in_a_plate,
    inside,
    look,
    mlp,
    nan_at,
    network,
    outer_product,
    regression,
    streams,
)

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors

# name: (call, type of the error, what the message says)
BAD = {
    # -- networks and priors
    "a module class": (lambda: network(nets.MLP, NORMAL, X), TypeError, r"Make one first: `MyMod"),
    "no module": (
        lambda: network(jnp.tanh, NORMAL),
        TypeError,
        "expected a flax.linen or flax.nnx",
    ),
    "no example input": (lambda: network(nets.MLP(), NORMAL), ValueError, "needs an example input"),
    "no parameters": (
        lambda: network(nn.Dropout(0.5), NORMAL, X, deterministic=True),
        ValueError,
        "Dropout has no parameters",
    ),
    "batch norm": (
        lambda: network(nets.BatchNorm(), NORMAL, X),
        ValueError,
        "Running statistics are estimated from the data.*Use GroupNorm",
    ),
    "wrong statistics": (
        lambda: network(nets.BatchNorm(), NORMAL, X, batch_stats={"mean": X}),
        ValueError,
        r"`batch_stats` lacks \{'BatchNorm_0\.mean': \(3,\)",
    ),
    "a stream that is not there": (
        lambda: inside(streams, nets.NNXMLP(nnx.Rngs(0))),
        ValueError,
        "has no random stream 'dropout'",
    ),
    "a dot in a name": (lambda: network(Named(), NORMAL, X), ValueError, "is named 'a.b'"),
    "a network inside the plate": (
        lambda: inside(in_a_plate),
        ValueError,
        "Call random_module outside every plate",
    ),
    "a prior class": (lambda: mlp(priors.FanIn), TypeError, "FanIn"),
    "a dict as prior": (
        lambda: mlp({"*": NORMAL}),
        TypeError,
        r"patterns use `bnn\.priors\.ByPath`",
    ),
    "a prior that returns a number": (
        lambda: mlp(lambda path, shape: 1.0),
        AttributeError,
        "'float' object has no attribute 'support'",
    ),
    "a prior of another shape": (
        lambda: mlp(dist.Normal(jnp.zeros(7), 1)),
        ValueError,
        r"has shape \(7,\), which does not broadcast to the parameter's shape \(2,\)",
    ),
    "a positive prior": (
        lambda: mlp(dist.Gamma(1.0, 1.0)),
        ValueError,
        "weight of a network is any",
    ),
    "a scale of zero": (lambda: priors.Normal(0.0), ValueError, "must be positive.*scale=0.0"),
    "a scale of text": (lambda: priors.Laplace("1"), TypeError, "must be a number, got scale='1'"),
    "a rate below zero": (lambda: priors.Hierarchical(1, -2), ValueError, "got rate=-2"),
    "unknown coordinates": (
        lambda: bnn.parameterize(None, "centred"),
        ValueError,
        r"'centred'; choose one of .*'collapsed'",
    ),
    "a pattern with a slip": (
        lambda: mlp(priors.ByPath({"Dence_0.*": NORMAL, "*": NORMAL})),
        ValueError,
        r"'Dence_0\.\*' matches no parameter.*\n.*Dense_0\.bias +\(2,\)",
    ),
    "a pattern behind a wider one": (
        lambda: mlp(priors.ByPath({"*": NORMAL, "*.bias": NORMAL})),
        ValueError,
        "taken by patterns before it; move it up",
    ),
    "a parameter without a pattern": (
        lambda: mlp(priors.ByPath({"*.bias": NORMAL})),
        ValueError,
        r"no pattern matches the parameter 'Dense_0\.kernel' \(4, 2\)",
    ),
    "fixed without a value": (
        lambda: mlp(priors.ByPath({"*.bias": NORMAL, "*": None})),
        ValueError,
        r"\['Dense_0\.kernel', 'Dense_1\.kernel'\] are not random .* Pass them as `params=`",
    ),
    "fixed at another shape": (
        lambda: mlp(
            priors.ByPath({"*.bias": NORMAL, "*": None}),
            params={"Dense_0": {"kernel": X}, "Dense_1": {"kernel": X}},
        ),
        ValueError,
        r"'Dense_0\.kernel' the shape \(5, 3\), the module needs \(4, 2\)",
    ),
    "trained weights of another network": (
        lambda: mlp(priors.pretrained({"Dense_7": {"kernel": X}})),
        ValueError,
        r"no trained value for 'Dense_0\.bias'.*\n.*Dense_7\.kernel",
    ),
    "trained weights of another shape": (
        lambda: mlp(priors.pretrained({"Dense_0": {"bias": np.ones(9)}})),
        ValueError,
        r"has shape \(9,\), the network needs \(2,\)",
    ),
    "parameters in a list": (lambda: bnn.from_params([X]), TypeError, "must be nested dicts"),
    "draws of two networks": (
        lambda: bnn.to_params({"a/w": X, "b/w": X}),
        ValueError,
        r"networks \['a', 'b'\] .* Say which with `name=`",
    ),
    # -- data
    "a column of predictions": (
        lambda: inside(likelihoods.gaussian, F[:, None], Y, noise=1.0),
        ValueError,
        r"compares every prediction with every target.*`f\.squeeze\(-1\)`",
    ),
    "fewer predictions than targets": (
        lambda: inside(likelihoods.gaussian, F[:-1], Y, noise=1.0),
        ValueError,
        "Give as many targets as inputs",
    ),
    "fewer targets than inputs": (
        lambda: look(regression(), X, Y[:-1]),
        ValueError,
        r"x has shape \(5, 3\) and y \(4,\)",
    ),
    "an outer product by hand": (
        lambda: look(outer_product, X, Y),
        ValueError,
        "every value would be compared with every prediction",
    ),
    "a list of targets": (
        lambda: inside(likelihoods.categorical, LOGITS, [0, 1, 2, 0, 1]),
        TypeError,
        r"y is of type list.*`np\.asarray\(y\)`",
    ),
    "a table with words": (
        lambda: look(regression(), pd.DataFrame(X).assign(colour="red"), pd.Series(Y)),
        TypeError,
        r"x is a DataFrame whose columns 'colour' \(.*\) hold no numbers",
    ),
    "words as classes": (
        lambda: look(classification(), X, np.array(list("abcab"))),
        TypeError,
        "y is of type ndarray of <U1",
    ),
    "NaN in the target": (
        lambda: inside(likelihoods.student_t, F, nan_at(Y, 2), noise=1.0),
        ValueError,
        r"y has 1 NaN or infinite values, the first at index \(2,\)",
    ),
    "NaN in the inputs": (
        lambda: look(regression(), nan_at(X, (1, 2)), Y),
        ValueError,
        r"x has 1 NaN.*\(1, 2\)\. Remove or impute those rows",
    ),
    "one-hot classes": (
        lambda: inside(likelihoods.categorical, LOGITS, np.eye(3, dtype=int)[CLASSES]),
        ValueError,
        r"looks one-hot\. Pass class numbers, for example `y\.argmax\(-1\)`",
    ),
    "classes as floats": (
        lambda: look(classification(), X, CLASSES.astype(float)),
        TypeError,
        r"dtype float.*, expected integer class numbers from 0 to 2\. Convert with `y\.astype",
    ),
    "classes from one": (
        lambda: look(classification(), X, CLASSES + 1),
        ValueError,
        "labels from 1 to 3, but the network has 3 classes, 0 to 2",
    ),
    "a column of classes": (
        lambda: inside(likelihoods.categorical, LOGITS, CLASSES[:, None]),
        ValueError,
        r"y has shape \(5, 1\), expected \(N,\), one class a row",
    ),
    "three classes for a Bernoulli": (
        lambda: inside(likelihoods.bernoulli, F, CLASSES),
        ValueError,
        "labels from 0 to 2, but the network has 2 classes",
    ),
    "one output for classes": (
        lambda: inside(likelihoods.categorical, F[:, None], CLASSES),
        ValueError,
        "with two or more outputs",
    ),
    "one output for mean and scale": (
        lambda: inside(likelihoods.heteroscedastic, F, Y),
        ValueError,
        "with 2 outputs",
    ),
    "noise below zero": (
        lambda: inside(likelihoods.gaussian, F, Y, noise=-1.0),
        ValueError,
        r"noise must be one positive number or a distribution over it, got -1\.0",
    ),
    "noise of any sign": (
        lambda: inside(likelihoods.gaussian, F, Y, noise=dist.Normal(0, 1)),
        ValueError,
        r"support Real\(\), expected one positive value.*HalfNormal",
    ),
    "a noise a row": (
        lambda: inside(likelihoods.gaussian, F, Y, noise=dist.HalfNormal(jnp.ones(ROWS))),
        ValueError,
        r"prior on noise has shape \(5,\)",
    ),
    "no degrees of freedom": (
        lambda: inside(likelihoods.student_t, F, Y, noise=1.0, df=0),
        ValueError,
        "df must be one positive number or a distribution over it, got 0",
    ),
    "a network without inputs": (
        lambda: inside(likelihoods.gaussian, lambda x: x, Y, noise=1.0),
        TypeError,
        "f is of type function, expected an array of numbers",
    ),
    "inputs in one dimension": (
        lambda: regression(X[:, 0], Y),
        ValueError,
        r"expected \(N, columns\)\. For one input column use `x\[:, None\]`",
    ),
    "a column of targets": (
        lambda: look(regression(), X, Y[:, None]),
        ValueError,
        r"y has shape \(5, 1\), expected \(N,\)\. Use `y\.squeeze\(-1\)`",
    ),
    "other columns than trained on": (
        lambda: look(regression(X, Y), X[:, :2]),
        ValueError,
        "x has 2 columns, and the fit had 3 columns",
    ),
    "two outputs for one target": (
        lambda: look(regression(outputs=2), X, Y),
        ValueError,
        r"needs 1 output unit\(s\) a row",
    ),
    "a model that saw no data": (
        lambda: bnn.prior_predictive(regression(), KEY, X, 2),
        ValueError,
        "has not seen its training data. Fit it first",
    ),
    "other data": (
        lambda: look(regression(X, Y), X + 1, Y),
        ValueError,
        "keeps the units of the data it was first fitted to",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_is_answered_with_what_to_do(name):
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=f"(?s){message}"):
        call()
