"""The output layer of a classifier, drawn given all else: posteriors, joint distributions, refusals."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from exact_draws import exact_draw
from numpyro.infer import HMC
from scipy import stats
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors
from numpyro_bnn.moves import Bound, Interleaved, OutputLayerGibbs, PrecisionRedraw
from numpyro_bnn.potential.structure import structure_of
from numpyro_bnn.samplers.gibbs.output_layer import _are_apart, _gaussian_draw

RNG = np.random.default_rng(0)
ROWS = 12
X = jnp.asarray(RNG.normal(size=(ROWS, 2)) * [1.5, 0.7] + 0.4, jnp.float32)
GRID = np.linspace(-9.0, 9.0, 37)


def linear(x, y=None, *, kind="bernoulli", prior=None):
    """Three weights: two of inputs and a bias, or one of each of three classes."""
    prior = dist.Normal(0.3, 1.5) if prior is None else prior
    w = numpyro.sample("w", prior.expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        if kind == "softmax":
            distribution = dist.Categorical(logits=2.0 * x[:, :1] * w)
        elif kind == "binomial":
            distribution = dist.Binomial(jnp.arange(len(x)) % 4, logits=x @ w[:2] + w[2])
        else:
            distribution = dist.Bernoulli(logits=x @ w[:2] + w[2])
        numpyro.sample("y", distribution, obs=y)


def labels(kind):
    drawn = {"softmax": RNG.integers(0, 3, ROWS), "bernoulli": RNG.integers(0, 2, ROWS)}
    return jnp.asarray(drawn[kind] if kind in drawn else RNG.binomial(np.arange(ROWS) % 4, 0.6))


def moments_by_quadrature(model, x, y):
    """First and second moments of three weights, on a grid of 37³ points."""

    def log_joint(w):
        return Bound(model, (x, y), {}).log_joint({"w": w})

    points = np.stack(np.meshgrid(GRID, GRID, GRID, indexing="ij"), -1).reshape(-1, 3)
    logs = jax.jit(lambda p: jax.lax.map(log_joint, p, batch_size=5000))(
        jnp.asarray(points, jnp.float32)
    )
    mass = np.exp(np.asarray(logs, float) - float(logs.max()))
    mass /= mass.sum()
    second = points[:, :, None] * points[:, None]
    return mass @ points, np.einsum("i,ijk->jk", mass, second)[np.triu_indices(3)]


@pytest.mark.parametrize(
    ("kind", "prior"),
    [
        ("bernoulli", None),
        ("softmax", None),
        pytest.param("binomial", None, marks=pytest.mark.slow),
        pytest.param("softmax", dist.StudentT(5.0, 0.0, 1.0), marks=pytest.mark.slow),
    ],
)
def test_its_chains_have_the_moments_of_the_posterior(kind, prior):
    """Of 300 chains of the move alone, within 4.5 of their standard errors of a sum over a grid."""
    model = partial(linear, kind=kind, prior=prior)
    y = labels(kind)
    bound, move = Bound(model, (X, y), {}), OutputLayerGibbs()

    @jax.jit
    @jax.vmap
    def chain(key):
        def step(values, key):
            new = move(key, values, bound)
            return new, new["w"]

        return jax.lax.scan(step, {"w": jnp.zeros(3)}, jax.random.split(key, 40))[1][15:]

    drawn = np.asarray(chain(jax.random.split(jax.random.key(0), 300)), float)
    second = (drawn[..., :, None] * drawn[..., None, :])[..., *np.triu_indices(3)]
    for found, expected in zip((drawn, second), moments_by_quadrature(model, X, y)):
        of_chains = found.mean(1)
        error = of_chains.std(0) / np.sqrt(len(of_chains))
        np.testing.assert_array_less(np.abs(of_chains.mean(0) - expected), 4.5 * error)


@pytest.mark.parametrize("prior", [dist.Normal, partial(dist.StudentT, 5)])
def test_whole_numbers_in_a_prior_are_the_same_numbers(prior):
    y = labels("bernoulli")

    def drawn(*numbers):
        bound = Bound(partial(linear, prior=prior(*numbers)), (X, y), {})
        # Operation by operation each would compile by itself.
        draw = jax.jit(lambda key: OutputLayerGibbs()(key, {"w": jnp.ones(3)}, bound)["w"])
        return draw(jax.random.key(0))

    np.testing.assert_array_equal(drawn(0, 2), drawn(0.0, 2.0))


WIDTH = priors.Hierarchical.width
KERNEL = "net/Dense_1.kernel"
PRIOR = priors.ByPath(
    {
        "layer[-1].kernel": WIDTH(1.0, group=5.0, unit=6.0),
        "layer[-1].bias": WIDTH(1.0, group=5.0),
        "*": priors.Normal(1.0),
    }
)


def network(x, y=None, *, classes=3, prior=PRIOR):
    net = bnn.random_module("net", bnn.MLP((2,), classes), prior, x[:1])
    if classes == 1:
        likelihoods.bernoulli(lambda rows: net(rows).squeeze(-1), y, x=x)
    else:
        likelihoods.categorical(net, y, x=x)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 1])
def test_with_its_precisions_redrawn_it_keeps_the_joint_distribution(classes):
    """Weights, group and unit precisions and labels drawn together, then moved three times (Geweke 2004)."""
    model = partial(network, classes=classes)
    centered = bnn.parameterize(model, "centered")
    moves = (OutputLayerGibbs(), PrecisionRedraw())

    @jax.jit
    @jax.vmap
    def one(key_draw, key):
        values, y, _ = exact_draw(centered, key_draw, X)
        bound = Bound(model, (X, y), {})

        def again(now, key):
            for move, own in zip(moves, jax.random.split(key)):
                now = move(own, now, bound)
            return now, None

        after = jax.lax.scan(again, values, jax.random.split(key, 3))[0]
        logits = bound.sites(after)["y"]["fn"].logits.reshape(ROWS, -1)
        if classes == 1:
            gap = y - jax.nn.sigmoid(logits[:, 0])
        else:
            gap = (jax.nn.one_hot(y, classes) - jax.nn.softmax(logits)) * logits
        return after, gap.sum()

    after, gap = one(*jax.random.split(jax.random.key(8), (2, 2000)))
    after = {name: np.asarray(value, float) for name, value in after.items()}
    group, units = after[f"{KERNEL}.precision"], after[f"{KERNEL}.unit_precision"]
    standard = (after[KERNEL] * np.sqrt(units)[:, :, None]).reshape(2000, -1)
    for drawn, distribution in (
        (group, stats.gamma(2.5, scale=1 / 2.5)),
        (units[:, 1] / group, stats.gamma(3.0, scale=1 / 3.0)),
        ((standard**2).sum(1), stats.chi2(2 * classes)),
        (standard[:, 0], stats.norm()),
    ):
        assert stats.kstest(drawn, distribution.cdf).pvalue > 1e-4
    # Labels less their probabilities have mean zero in every direction, that of the logits too.
    assert abs(np.mean(gap)) < 4 * np.std(gap) / np.sqrt(2000)


@pytest.mark.parametrize(
    "coordinates", ["noncentered", pytest.param("centered", marks=pytest.mark.slow)]
)
def test_in_both_coordinates_the_layer_is_drawn_and_all_else_stays(coordinates):
    model = bnn.parameterize(network, coordinates)
    y = labels("softmax")
    kernel = bnn.RandomWalk(model, step_size=1e-6)
    potential = bnn.potential_of(model, X, y)
    z = nets.weights(model, X, y, seed=1)
    moved = Interleaved(kernel, [OutputLayerGibbs()])

    @jax.jit
    def step(key):
        state = moved.init(key, 0, z, (X, y), {})
        state = moved.sample(state, (X, y), {})
        before, after = (potential.constrain(at, deterministic=True) for at in (z, state.z))
        return before, after, state.potential_energy, potential(state.z)

    before, after, energy, again = step(jax.random.key(0))
    np.testing.assert_allclose(energy, again, rtol=1e-5)
    for name in (f"{KERNEL}.precision", f"{KERNEL}.unit_precision", "net/Dense_0.kernel"):
        np.testing.assert_allclose(after[name], before[name], rtol=1e-4)
    assert (np.abs(after[KERNEL] - before[KERNEL]) > 1e-3).all()


def test_in_single_precision_features_that_are_nearly_alike_do_no_harm():
    """The mean of a draw, in posterior standard deviations, against double precision."""
    x = RNG.normal(size=(400, 1))
    design = 20 * np.tanh(x + 1e-2 * RNG.normal(size=(400, 6))).T
    omega, kappa = RNG.uniform(0.05, 0.25, 400), RNG.choice([-0.5, 0.5], 400)
    single = [jnp.asarray(a, jnp.float32) for a in (design, omega, kappa, np.zeros(400))]
    found = np.asarray(_gaussian_draw(jax.random.key(0), *single), float)
    design, omega, kappa, _ = (np.asarray(a, float) for a in single)
    factor = np.linalg.qr(np.concatenate([(design * np.sqrt(omega)).T, np.eye(6)]))[1]
    noise = np.asarray(jax.random.normal(jax.random.key(0), (6,), jnp.float32), float)
    signs = np.sign(
        np.diag(
            np.asarray(
                jnp.linalg.qr(
                    jnp.concatenate([(single[0] * jnp.sqrt(single[1])).T, jnp.eye(6)]), mode="r"
                )
            )
        )
    )
    factor *= (signs * np.sign(np.diag(factor)))[:, None]
    mean = np.linalg.solve(factor.T @ factor, design @ kappa)
    # A whitened difference: in units of the posterior in every direction.
    gap = factor @ (found - mean) - noise
    assert np.abs(gap).max() < 2e-3


def shared(x, y=None):
    """Three classes with all weights in common."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        logits = (jnp.concatenate([x, x[:, :1]], 1) @ w)[:, None] * jnp.arange(3.0)
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


by_probabilities = row_model(
    lambda x, w: dist.Bernoulli(jax.nn.sigmoid(x @ w)),
    w=dist.Normal(0.0, 1.0).expand([2]).to_event(1),
)


def regression(x, y=None):
    net = bnn.random_module("net", bnn.MLP((2,), 1), PRIOR, x[:1])
    likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), 1.0 * y, x=x, noise=1.0)


def sum_to_zero(x, y=None):
    """A soft constraint on weights that the logits are linear in."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
    numpyro.sample("sum_zero", dist.Normal(0.0, 0.1), obs=w.sum())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + bias), obs=y)


def test_weights_in_an_observed_value_are_left_to_the_kernel():
    bound = Bound(sum_to_zero, (X, labels("bernoulli")), {})
    before = {"w": jnp.array([0.3, -0.3]), "bias": jnp.array(0.2)}
    after = jax.jit(lambda key: OutputLayerGibbs()(key, before, bound))(jax.random.key(0))
    np.testing.assert_array_equal(after["w"], before["w"])
    assert after["bias"] != before["bias"]


def subsampled(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(x), subsample_size=4) as i:
        numpyro.sample("y", dist.Bernoulli(logits=x[i] @ w), obs=y[i])


REFUSED = {
    "a regression": (regression, {}, r"\{'y': 'Normal'\}.*`bnn\.integrate_output\(model\)`"),
    "probabilities": (by_probabilities, {}, r"'BernoulliProbs'.*`logits=`, not `probs=`"),
    "Laplace weights": (
        partial(linear, prior=dist.Laplace(0.0, 1.0)),
        {},
        r"no latent site has a Gaussian or Student's t prior and a logit of 'y' that is affine",
    ),
    "a subsample": (subsampled, {}, r"'y' is scaled \(a minibatch, or weights of rows\)"),
    "a hidden layer": (network, {"sites": "net/Dense_0.kernel"}, r"the logit of 'y' is not"),
    "a weight in an observed value": (
        sum_to_zero,
        {"sites": ["w"]},
        r"at once: the value of 'sum_zero' depends on them",
    ),
    "shared weights": (
        shared,
        {},
        r"3 classes of 'y' do not each have weights of their own in 'w'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_exact_draw_is_refused(case):
    model, options, message = REFUSED[case]
    y = labels("bernoulli")
    bound = Bound(model, (X, y), {})
    sites = structure_of(bound.model, (X, y), {}).sites
    values = {name: np.ones(sites[name].shape, np.float32) for name in bound.latent}
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            lambda key: OutputLayerGibbs(**options)(key, values, bound), jax.random.key(0)
        )


def test_ladders_and_minibatches_are_refused():
    bound = Bound(linear, (X, labels("bernoulli")), {}, 0.5)
    with pytest.raises(ValueError, match=r"to the power 0\.5, as on the rungs of a ladder"):
        OutputLayerGibbs()(jax.random.key(0), {"w": jnp.zeros(3)}, bound)
    small = bnn.SGLD(network, step_size=1e-3, batch_size=4)
    with pytest.raises(ValueError, match=r"OutputLayerGibbs draws .* SGLD takes minibatches of 4"):
        Interleaved(small, [OutputLayerGibbs()])
    assert Interleaved(small, [PrecisionRedraw()]).moves
    assert Interleaved(HMC(network), [OutputLayerGibbs()]).moves


def test_each_class_has_weights_of_its_own_or_not():
    """The program may take logarithms of data, which are not known while it is traced."""
    a = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)

    def is_apart(function, axis, shape=(3, 2)):
        program = jax.make_jaxpr(function)(jnp.ones(shape))
        return _are_apart(SimpleNamespace(shapes={"w": shape}, program=program), 0, "w", axis)

    assert is_apart(lambda w: a @ w + 1.0, 1)
    traced = jax.eval_shape(lambda a: a if is_apart(lambda w: jnp.log(a) @ w, 1) else None, a)
    assert traced is not None
    assert is_apart(lambda w: (w.T @ a.T)[None].reshape(2, 4).T, 1)
    assert is_apart(lambda w: jnp.broadcast_to(w.sum(0), (4, 2)), 1)
    assert is_apart(lambda w: a @ w.T, 0, (2, 3))
    assert not is_apart(lambda w: a @ w, 0, (3, 3))
    assert not is_apart(lambda w: a @ w[:, ::-1], 1)
    assert not is_apart(lambda w: a @ w @ jnp.array([[1.0, 1e-4], [0.0, 1.0]]), 1)
