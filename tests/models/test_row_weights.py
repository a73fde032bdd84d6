"""Weights of rows: a row of weight w counts as w equal rows; ready models get rows of weight 0 as padding.

With padding data sets of nearly one size share their programs.
"""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from flax import linen as nn
from numpyro.infer import NUTS
from numpyro.infer.util import log_density

import numpyro_bnn as bnn
from numpyro_bnn.approximations.stopping import num_held, rows_by_member
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import prepared
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.rows_in_parts import padded_size, with_padding
from numpyro_bnn.run.kernel_protocol import ignores_row_count

RNG = np.random.default_rng(0)
SIZE = 41
X, Y = RNG.normal(2.0, 3.0, (SIZE, 2)), RNG.normal(-4.0, 2.0, SIZE)
WEIGHTS = RNG.permutation(np.arange(SIZE) % 4).astype(float)
ROWS = np.repeat(np.arange(SIZE), WEIGHTS.astype(int))
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
    # To draw from the prior compiles for longer.
    shapes = jax.eval_shape(
        lambda key: potentials[0].unconstrain(potentials[0].prior_draw(key)), jax.random.key(0)
    )
    rng = np.random.default_rng(0)
    z = {name: 0.5 * rng.normal(size=leaf.shape) for name, leaf in shapes.items()}
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


@pytest.mark.parametrize("outputs", [1, 2])
def test_folds_of_unequal_size_share_their_programs(outputs, monkeypatch):
    bound, texts = Program.bound, {}

    def noting(self, *args):
        if self._same_as is not None and not self._executables:
            texts.setdefault(self._same_as, []).append(self._jitted.lower(*args).as_text())
        return bound(self, *args)

    def run(size):
        model = bnn.regression(bnn.MLP((2,), outputs), FAN_IN)
        data = X[:size], np.stack([Y, 9 * Y], 1)[:size, :outputs].squeeze()
        options = {"num_steps": 20, "progress_bar": False}
        starts = bnn.optimize(model, jax.random.key(0), *data, **options)
        kernel = bnn.MCLMC(model, step_size=0.1, friction=1.0)
        mcmc = bnn.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
        mcmc.run(jax.random.key(0), *data, init_params=starts)
        return mcmc

    monkeypatch.setattr(Program, "bound", noting)
    run(SIZE - 1)
    with nets.compilations() as compiled:
        mcmc = run(SIZE)
    # Arrays are copied to the device in 10 ms a shape.
    assert all("jit(stage)" in line for line in compiled)
    # Programs that are not traced again are those that tracing gives.
    assert all(len(found) == 2 and len(set(found)) == 1 for found in texts.values())
    assert len(texts) > 6
    # All but the programs see the rows that were given.
    assert mcmc.arguments[0][0].shape == X.shape
    assert mcmc.model.standardization.x_mean == pytest.approx(X.mean(0))


@pytest.mark.parametrize(
    "name", ["gaussian", "student_t", "heteroscedastic", "categorical", "bernoulli"]
)
def test_a_weight_repeats_a_row(name):
    make, y = MODELS[name]
    weighted, repeated = make(), make()
    wild = np.where(WEIGHTS > 0, y, 1e20) if y.dtype == float else y  # Its square overflows.
    given = (X, wild), {"weights": WEIGHTS}
    weighted.learn(X, wild, WEIGHTS)
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
    model = bnn.regression(nn.Dense(1), FAN_IN)
    model.learn(X, Y, WEIGHTS)
    potential = Potential(model, *model.prepare((X, Y), {"weights": WEIGHTS}))

    @jax.jit
    def energies():
        z = potential.unconstrain(potential.prior_draw(jax.random.key(1)))
        one = jax.vmap(lambda row: potential.minibatch(z, row[None], "data"))
        return one(jnp.arange(SIZE)).mean(), potential(z)

    np.testing.assert_allclose(*energies(), rtol=1e-5)


def test_numpyro_sees_the_same_distribution():
    """Called without this package: the target stays in the user's units, and so does its density."""
    model = bnn.regression(nn.Dense(1), FAN_IN, X[ROWS], Y[ROWS])
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
        (np.ones(4), r"weights has shape \(4,\), expected \(41,\)"),
        (np.where(np.arange(SIZE) == 1, -1.0, 1.0), "got -1.0 in row 1"),
        (np.zeros(SIZE), "got zeros alone"),
    ],
)
def test_wrong_weights_are_refused(weights, text):
    model = bnn.regression(nn.Dense(1), FAN_IN)
    with pytest.raises(ValueError, match=text):
        bnn.optimize(model, jax.random.key(0), X, Y, weights=weights, progress_bar=False)


@pytest.mark.slow
def test_fit_takes_weights():
    model = bnn.regression(nn.Dense(1), FAN_IN)
    settings = {"num_chains": 1, "num_warmup": 4, "num_samples": 6, "thinning": 1}
    fitted = bnn.fit(
        *(model, X, Y), weights=WEIGHTS, kernel="baoab", progress_bar=False, **settings
    )
    np.testing.assert_allclose(model.standardization.y_mean, Y[ROWS].mean())
    with pytest.warns(UserWarning, match="rows of this run have weights"):
        exported = bnn.to_inference_data(fitted.mcmc)
    assert exported["posterior"].sizes["draw"] == 6
