"""Likelihoods of counts and of quantiles against SciPy's densities, and what a posterior makes of them.

Class labels of any kind: of ready models, and of the user's own categorical distributions.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.infer import HMC
from scipy import stats
from site_densities import log_prob

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors
from numpyro_bnn.data.arguments import check_labels

F = np.array([-1.0, 0.0, 0.7, 2.0, 3.0])
COUNTS = np.array([0, 2, 1, 9, 20])


def test_a_prior_on_the_concentration_is_a_site():
    prior = dist.Gamma(2.0, 1.0)
    found = log_prob(
        lambda: likelihoods.negative_binomial(jnp.asarray(F), COUNTS, concentration=prior),
        values={"y.concentration": 1.5},
    )
    assert found["y.concentration"] == pytest.approx(stats.gamma(2.0).logpdf(1.5), rel=1e-5)
    distribution = stats.nbinom(1.5, 1.5 / (1.5 + np.exp(F)))
    np.testing.assert_allclose(found["y"], distribution.logpmf(COUNTS), rtol=1e-4)


def test_the_pinball_loss_over_the_scale():
    y, level, scale = np.array([-2.0, 0.5, 0.7, 1.0, 5.0]), 0.9, 0.3
    found = log_prob(lambda: likelihoods.quantile(jnp.asarray(F), y, level=level, scale=scale))["y"]
    loss = np.where(y > F, level * (y - F), (1 - level) * (F - y))
    np.testing.assert_allclose(found, np.log(level * (1 - level) / scale) - loss / scale, rtol=1e-4)


def test_the_mode_is_the_quantile():
    y = np.random.default_rng(0).gamma(2.0, size=400)

    def model(x, y=None):
        f = numpyro.sample("f", dist.Normal(0.0, 100.0))
        likelihoods.quantile(jnp.full(jnp.shape(x)[0], f), y, level=0.8, scale=0.1)

    grid = np.linspace(1.0, 6.0, 2001)
    with handlers.block():
        joint = jax.jit(
            jax.vmap(
                lambda f: numpyro.infer.util.log_density(model, (y[:, None], y), {}, {"f": f})[0]
            )
        )
    assert grid[np.argmax(joint(jnp.asarray(grid)))] == pytest.approx(np.quantile(y, 0.8), abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": COUNTS - 1}, "whole numbers from 0, got -1 in row 0"),
        ({"y": COUNTS + 0.5}, "whole numbers from 0, got 0.5 in row 0"),
        ({"y": np.where(COUNTS == 9, np.nan, COUNTS)}, "whole numbers from 0, got nan in row 3"),
        ({"y": COUNTS[:, None]}, "f has shape|with a row for every target"),
        ({"f": F[:, None]}, "one prediction a row"),
    ],
)
@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_what_is_no_count_is_refused(name, change, message):
    given = {"f": jnp.asarray(F), "y": COUNTS} | change
    options = {"concentration": 1.0} if name == "negative_binomial" else {}
    with handlers.seed(rng_seed=0), pytest.raises(ValueError, match=message):
        getattr(likelihoods, name)(jnp.asarray(given["f"]), given["y"], **options)


@pytest.mark.parametrize("level", [0, 1, -0.1, True, "0.9", [0.1, 0.9]])
def test_levels_that_are_no_probability_are_refused(level):
    with (
        handlers.seed(rng_seed=0),
        pytest.raises(ValueError, match="strictly between 0 and 1, got"),
    ):
        likelihoods.quantile(jnp.asarray(F), F, level=level, scale=1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf")])
def test_scales_and_concentrations_must_be_positive(value):
    with handlers.seed(rng_seed=0):
        with pytest.raises(ValueError, match="scale must be one positive number"):
            likelihoods.quantile(jnp.asarray(F), F, level=0.5, scale=value)
        with pytest.raises(ValueError, match="concentration must be one positive number"):
            likelihoods.negative_binomial(jnp.asarray(F), COUNTS, concentration=value)


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
        r"'y' \(Categorical\) has dtype float.*`y\.astype\(int\)`",
        r"y has dtype float.*expected whole numbers from 0 to 1.*`y\.astype\(int\)`",
    ),
    "strings": (
        np.where(LABELS, "yes", "no"), TypeError,
        r"y is of type ndarray of <U3.*`np\.searchsorted\(classes, y\)`",
        r"y is of type ndarray of <U3.*`np\.searchsorted\(classes, y\)`",
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
        r"'y' \(Categorical\) has values from 1 to 2, expected whole numbers from 0 to 1.*all classes",
        "y has values from 1 to 2, expected whole numbers from 0 to 1, as there are 2 classes",
    ),
    "below zero": (
        LABELS - 1, ValueError,
        r"'y' \(Categorical\) has values from -1 to 0",
        "y has values from -1 to 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("label", "is_class"), [(2, True), (3, False)])
def test_a_label_may_be_a_number_of_python(label, is_class):
    def model(x):
        numpyro.sample(
            "class", dist.Categorical(logits=numpyro.sample("w", dist.Normal()) * x), obs=label
        )

    with contextlib.nullcontext() if is_class else pytest.raises(ValueError, match="from 3 to 3"):
        assert bnn.potential_of(model, np.ones(3, np.float32)).structure.targets == ["class"]


def test_a_missing_label_is_named_before_its_type():
    with pytest.raises(ValueError, match=f"^y has {LABELS.sum()} NaN. Leave out rows without"):
        check_labels("y", np.where(LABELS, np.nan, 0.0), 2)


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
        with pytest.raises(ValueError, match=r"'y' \(Bernoulli\) has val"):
            bnn.potential_of(coin, X, bad)
