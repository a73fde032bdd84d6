"""Class labels of any kind: of ready models, and of the user's own categorical distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(6, 2))
LABELS = np.array([0, 1, 1, 0, 1, 0])


def own(distribution):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal().expand([2, 2]).to_event(2))
        with numpyro.plate("data", 6):
            numpyro.sample("y", distribution(jnp.asarray(x) @ w), obs=y)

    return model


def by_helper(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([2, 2]).to_event(2))
    likelihoods.categorical(jnp.asarray(x) @ w, y)


OWN = {
    "logits": own(lambda f: dist.Categorical(logits=f)),
    "probs": own(lambda f: dist.Categorical(probs=jax.nn.softmax(f))),
    "with an event": own(lambda f: dist.Categorical(logits=f).expand_by(()).to_event(0)),
}
READY = {
    "categorical": lambda: bnn.classification(bnn.MLP((2,), 2), priors.Normal(1.0)),
    "bernoulli": lambda: bnn.classification(bnn.MLP((2,), 1), priors.Normal(1.0)),
    "helper": lambda: by_helper,
}
DOORS = {
    "run": lambda model, y: bnn.MCMC(HMC(model), num_warmup=1, num_samples=1).run(KEY, X, y),
    "optimize": lambda model, y: bnn.optimize(model, KEY, X, y, num_steps=0, progress_bar=False),
    "potential": lambda model, y: bnn.potential_of(model, X, y),
    "fit": lambda model, y: bnn.fit(model, X, y, progress_bar=False),
}
# Labels, and what is said of them: by the user's own distribution, and by our likelihoods.
BAD = {
    "floats": (
        LABELS.astype(float), TypeError,
        r"'y' is Categorical and its values have dtype float.*`y\.astype\(int\)`",
        r"y has dtype float.*expected integer class numbers from 0 to 1.*`y\.astype\(int\)`",
    ),
    "strings": (
        np.where(LABELS, "yes", "no"), TypeError,
        r"y is of type ndarray of <U3.*`np\.unique\(y, return_inverse=True\)\[1\]`",
        r"y is of type ndarray of <U3.*`np\.unique\(y, return_inverse=True\)\[1\]`",
    ),
    "objects": (
        np.array(["a", "b", None, "a", "b", "a"], object), TypeError,
        "y is of type ndarray of object", "y is of type ndarray of object",
    ),
    "a series of strings": (
        pd.Series(np.where(LABELS, "yes", "no")), TypeError,
        "y is of type Series of", "y is of type Series of",
    ),
    "from one": (
        LABELS + 1, ValueError,
        "'y' is Categorical with the classes 0 to 1, and has values from 1 to 2.*from 0",
        "y has labels from 1 to 2, but the network has 2 classes",
    ),
    "below zero": (
        LABELS - 1, ValueError,
        "'y' is Categorical with the classes 0 to 1, and has values from -1 to 0",
        "y has labels from -1 to 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("distribution", OWN)
def test_labels_that_an_own_distribution_cannot_take_are_refused(distribution, case, door):
    y, kind, message, _ = BAD[case]
    with pytest.raises(kind, match=message):
        DOORS[door](OWN[distribution], y)


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", READY)
def test_labels_that_a_likelihood_cannot_take_are_refused(name, case):
    y, kind, _, message = BAD[case]
    with pytest.raises(kind, match=message):
        DOORS["optimize"](READY[name](), y)


@pytest.mark.parametrize(
    "y", [LABELS.astype(bool), pd.Series(LABELS), list(LABELS), jnp.array(LABELS)]
)
@pytest.mark.parametrize("name", READY)
def test_booleans_series_and_lists_are_the_classes_that_they_say(name, y):
    if name == "helper" and isinstance(y, list):
        y = [int(label) for label in y]
    energies = []
    for labels in (LABELS, y):
        potential = bnn.potential_of(READY[name](), X, labels)
        z = {n: 0.3 * np.ones(s.shape) for n, s in potential.structure.sites.items() if n != "y"}
        energies.append(float(jax.jit(potential)(z)))
    assert energies[0] == energies[1]


def test_bernoulli_labels_of_an_own_distribution_are_zero_or_one():
    def coin(x, y=None):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("data", 6):
            numpyro.sample("y", dist.Bernoulli(p), obs=y)

    for fine in (LABELS, LABELS.astype(float), LABELS.astype(bool)):
        bnn.potential_of(coin, X, fine)
    for bad in (LABELS + 1, LABELS - 0.5, 2 * LABELS):
        with pytest.raises(
            ValueError, match="'y' is Bernoulli with the classes 0 to 1, and has val"
        ):
            bnn.potential_of(coin, X, bad)
