"""Rows of weight 0 that ready models get, so that data sets of nearly one size share their programs."""

import jax
import nets
import numpy as np
import pytest
from flax import linen as nn
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn.approximations.stopping import num_held, rows_by_member
from numpyro_bnn.data.arguments import prepared
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.rows_in_parts import padded_size, with_padding
from numpyro_bnn.run.kernel_protocol import ignores_row_count

RNG = np.random.default_rng(0)
SIZE = 41
X, Y = RNG.normal(2.0, 3.0, (SIZE, 2)), RNG.normal(-4.0, 2.0, SIZE)
LABELS, FAN_IN = (Y > -4).astype(int), bnn.priors.FanIn()


def of(likelihood, outputs=1, y=Y, **options):
    return lambda: bnn.regression(nn.Dense(outputs), FAN_IN, likelihood=likelihood, **options), y


MODELS = {
    "gaussian": of("gaussian"),
    "student_t": of("student_t"),
    "cases": of("gaussian", noise=bnn.likelihoods.Precision(case=4.0)),
    "heteroscedastic": of("heteroscedastic", 2),
    "two targets": of("gaussian", 2, np.stack([Y, X[:, 0]], 1)),
    "correlated": of("gaussian", 2, np.stack([Y, X[:, 0]], 1), correlation=1.0),
    "bernoulli": (lambda: bnn.classification(nn.Dense(1), FAN_IN), LABELS),
    "categorical": (lambda: bnn.classification(nn.Dense(2), FAN_IN), LABELS),
}


class Centred(nn.Module):
    """A network that relates rows."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x - x.mean(0))


def both(model, *args, **kwargs):
    """Prepared arguments of a model, without and with padding."""
    plain = prepared(model, args, kwargs)
    return plain, with_padding(model, *plain)


@pytest.mark.parametrize(
    ("name", "weights"),
    [*((name, None) for name in MODELS), ("gaussian", RNG.uniform(0.0, 2.0, SIZE))],
)
def test_density_and_gradient_are_those_of_the_rows(name, weights):
    make, y = MODELS[name]
    with nets.double():
        compare(make(), y, weights)


def compare(model, y, weights):
    plain, padded = both(model, X, y, **({} if weights is None else {"weights": weights}))
    assert len(padded[1]["x"].rows) == padded_size(SIZE) > SIZE
    potentials = [Potential(model, *arguments) for arguments in (plain, padded)]
    z = potentials[0].unconstrain(jax.jit(potentials[0].prior_draw)(jax.random.key(0)))
    (value, slope), found = (jax.jit(jax.value_and_grad(p))(z) for p in potentials)
    np.testing.assert_allclose(found[0], value, rtol=1e-10)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), found[1], slope
    )


@pytest.mark.parametrize(
    "model",
    [
        bnn.regression(nn.Dense(1), FAN_IN, integrate_output=True),
        bnn.regression(Centred(), FAN_IN),
        bnn.parameterize(bnn.regression(nn.Dense(1), FAN_IN), "noncentered"),
    ],
    ids=["integrated", "related rows", "a handler around it"],
)
def test_what_padding_would_change_is_left_alone(model):
    plain, padded = both(model, X, Y)
    assert padded == plain


@pytest.mark.parametrize("size", [1, 8, 16, 40, 133, 161, 200, 353, 1347, 20_000])
def test_padding_is_short_and_shared_by_neighbours(size):
    assert size < padded_size(size) <= max(size + 18, 1.08 * size)
    # Round numbers of rows begin no new size.
    assert padded_size(size) == padded_size(size + 1)


def test_no_member_holds_out_padding():
    held = rows_by_member(jax.random.key(0), [padded_size(SIZE)], 3, padded_size(SIZE) - SIZE)
    (rows,) = held.values()
    assert (rows.sum(1) == num_held(SIZE)).all()
    assert not rows[:, SIZE:].any()
    assert rows.sum(0).max() == 1


MODEL = bnn.regression(bnn.MLP((2,), 1), FAN_IN)
KERNELS = {
    "NUTS": (NUTS(MODEL), True),
    "MCLMC": (bnn.MCLMC(MODEL), True),
    "minibatches": (bnn.BAOAB(MODEL, step_size=0.1, friction=1.0, batch_size=4), False),
    "mean gradients": (bnn.PSGLD(MODEL, step_size=1e-3), False),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_that_use_the_number_of_rows_see_no_padding(name):
    kernel, ignores = KERNELS[name]
    assert ignores_row_count(kernel) is ignores


def test_folds_of_unequal_size_share_their_programs():
    def run(size):
        model, data = bnn.regression(bnn.MLP((2,), 1), FAN_IN), (X[:size], Y[:size])
        options = {"num_steps": 20, "progress_bar": False}
        starts = bnn.optimize(model, jax.random.key(0), *data, **options)
        kernel = bnn.MCLMC(model, step_size=0.1, friction=1.0)
        mcmc = bnn.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
        mcmc.run(jax.random.key(0), *data, init_params=starts)
        return mcmc

    run(SIZE - 1)
    with nets.compilations() as compiled:
        mcmc = run(SIZE)
    # Arrays are copied to the device in 10 ms a shape.
    assert all("jit(stage)" in line for line in compiled)
    # All but the programs see the rows that were given.
    assert mcmc.arguments[0][0].shape == X.shape
    assert mcmc.model.standardization.x_mean == pytest.approx(X.mean(0))
