"""Weights of rows: a row of weight w counts as w equal rows, in the distribution and in the units."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from flax import linen as nn
from numpyro.infer.util import log_density

import numpyro_bnn as bnn
from numpyro_bnn.potential.potential import Potential

RNG = np.random.default_rng(0)
X, Y = RNG.normal(2.0, 3.0, (5, 2)), RNG.normal(-4.0, 2.0, 5)
LABELS = np.array([0, 1, 1, 0, 1])
WEIGHTS = np.array([1.0, 3.0, 0.0, 2.0, 1.0])
ROWS = np.repeat(np.arange(5), WEIGHTS.astype(int))

MODELS = {
    "gaussian": (lambda: bnn.regression(nn.Dense(1), bnn.priors.FanIn()), Y),
    "student_t": (
        lambda: bnn.regression(nn.Dense(1), bnn.priors.FanIn(), likelihood="student_t"),
        Y,
    ),
    "heteroscedastic": (
        lambda: bnn.regression(nn.Dense(2), bnn.priors.FanIn(), likelihood="heteroscedastic"),
        Y,
    ),
    "categorical": (lambda: bnn.classification(nn.Dense(2), bnn.priors.FanIn()), LABELS),
    "bernoulli": (lambda: bnn.classification(nn.Dense(1), bnn.priors.FanIn()), LABELS),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_weight_repeats_a_row(name):
    make, y = MODELS[name]
    weighted, repeated = make(), make()
    given = (X, y), {"weights": WEIGHTS}
    weighted.learn(X, y, WEIGHTS)
    repeated.learn(X[ROWS], y[ROWS])
    for one, two in zip(weighted.standardization[:4], repeated.standardization[:4]):
        np.testing.assert_allclose(one, two, rtol=1e-12)
    energies = [
        Potential(model, *model.prepare(args, kwargs))
        for model, args, kwargs in ((weighted, *given), (repeated, (X[ROWS], y[ROWS]), {}))
    ]

    @jax.jit
    def both():
        z = energies[0].unconstrain(energies[0].prior_draw(jax.random.key(1)))
        return energies[0](z), energies[1](z)

    np.testing.assert_allclose(*both(), rtol=1e-5)


def test_minibatches_take_the_weights_of_their_rows():
    model = bnn.regression(nn.Dense(1), bnn.priors.FanIn())
    model.learn(X, Y, WEIGHTS)
    potential = Potential(model, *model.prepare((X, Y), {"weights": WEIGHTS}))

    @jax.jit
    def energies():
        z = potential.unconstrain(potential.prior_draw(jax.random.key(1)))
        one = jax.vmap(lambda row: potential.minibatch(z, row[None], "data"))
        return one(jnp.arange(5)).mean(), potential(z)

    np.testing.assert_allclose(*energies(), rtol=1e-5)


def test_numpyro_sees_the_same_distribution():
    """Called without this package: the target stays in the user's units, and so does its density."""
    model = bnn.regression(nn.Dense(1), bnn.priors.FanIn(), X[ROWS], Y[ROWS])
    draw = {k: abs(v) for k, v in nets.weights(model, X[ROWS], Y[ROWS]).items()}

    @jax.jit
    def both(draw):
        repeated = log_density(model, (X[ROWS], Y[ROWS]), {}, draw)[0]
        return log_density(model, (X, Y), {"weights": WEIGHTS}, draw)[0], repeated

    weighted, repeated = both(draw)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (np.ones(4), r"weights has shape \(4,\), expected \(5,\)"),
        (np.array([1.0, -1, 1, 1, 1]), "got -1.0 in row 1"),
        (np.zeros(5), "got zeros alone"),
    ],
)
def test_wrong_weights_are_refused(weights, text):
    model = bnn.regression(nn.Dense(1), bnn.priors.FanIn())
    with pytest.raises(ValueError, match=text):
        bnn.optimize(model, jax.random.key(0), X, Y, weights=weights, progress_bar=False)


@pytest.mark.slow
def test_fit_takes_weights():
    model = bnn.regression(nn.Dense(1), bnn.priors.FanIn())
    settings = {"num_chains": 1, "num_warmup": 4, "num_samples": 6, "thinning": 1}
    fitted = bnn.fit(
        *(model, X, Y), weights=WEIGHTS, kernel="baoab", progress_bar=False, **settings
    )
    np.testing.assert_allclose(model.standardization.y_mean, Y[ROWS].mean())
    with pytest.warns(UserWarning, match="rows of this run have weights"):
        exported = bnn.to_inference_data(fitted.mcmc)
    assert exported["posterior"].sizes["draw"] == 6
