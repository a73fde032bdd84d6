"""Hidden units that can be exchanged are found, and matched, without changing a prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from flax import nnx

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods
from numpyro_bnn.diagnostics import HiddenLayer, align, find_hidden_layers
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.draws import draws_of as draws_from

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
IMAGES = np.random.default_rng(1).normal(size=(6, 5, 5, 2)).astype(np.float32)


class Deep(nn.Module):
    """The output layer is made first, and so gets the first name."""

    @nn.compact
    def __call__(self, x):
        out = nn.Dense(2)
        x = nn.relu(nn.Dense(5)(x))
        return out(nn.tanh(nn.LayerNorm()(nn.Dense(4)(x))))


class Flattened(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(3, (2, 2))(x))
        return nn.Dense(2)(x.reshape(len(x), -1))


class Residual(nn.Module):
    """The units of the first layer are tied to those of the sum."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        return nn.Dense(2)(x + nn.Dense(4)(nn.tanh(x)))


class Unused(nn.Module):
    """A branch that nothing depends on, whose units could be called anything."""

    @nn.compact
    def __call__(self, x):
        branch = nn.Dense(2)(nn.tanh(nn.Dense(4)(x)))
        return nn.Dense(2)(nn.tanh(nn.Dense(5)(x))) + 0 * branch


def draws_of(module, x, chains=1, draws=3):
    model = bnn.classification(module, bnn.priors.Normal(1.0))
    labels = np.arange(len(x)) % 2
    structure = bnn.potential_of(model, x, labels).structure
    rng = np.random.default_rng(2)
    values = {
        name: rng.normal(size=(chains, draws, *structure.sites[name].shape)).astype(np.float32)
        for name in structure.latent
    }
    return Draws(values, model)


def d(number, what="kernel"):
    return f"net/Dense_{number}.{what}"


# Weights come from the prior; those of the module would only be compiled.
ZEROS = nnx.initializers.zeros_init()
UNITS = HiddenLayer(d(0), (d(0, "bias"),), d(1))
FOUND = {
    "tanh": (bnn.MLP([4], 2), X, {UNITS._replace(flips=True)}),
    "relu": (bnn.MLP([4], 2, activation=nn.relu), X, {UNITS._replace(scales=True)}),
    "sigmoid": (bnn.MLP([4], 2, activation=nn.sigmoid), X, {UNITS}),
    "units that mix": (bnn.MLP([4], 2, activation=jax.nn.standardize), X, {UNITS}),
    "deep, with a norm layer": (
        Deep(),
        X,
        {
            HiddenLayer(d(1), (d(1, "bias"),), d(2), scales=True),
            HiddenLayer(
                d(2), (d(2, "bias"), "net/LayerNorm_0.bias", "net/LayerNorm_0.scale"), d(0)
            ),
        },
    ),
    "flattened convolution": (
        Flattened(),
        IMAGES,
        {HiddenLayer("net/Conv_0.kernel", ("net/Conv_0.bias",), d(0), scales=True)},
    ),
    "tied units": (Residual(), X, set()),
    "linear": (nn.Dense(2), X, set()),
    "unused branch": (Unused(), X, {HiddenLayer(d(3), (d(3, "bias"),), d(2), flips=True)}),
    "nnx": (
        nnx.Sequential(
            nnx.Linear(3, 4, kernel_init=ZEROS, rngs=nnx.Rngs(0)),
            jnp.tanh,
            nnx.Linear(4, 2, kernel_init=ZEROS, rngs=nnx.Rngs(1)),
        ),
        X,
        {
            HiddenLayer(
                "net/layers.0.kernel", ("net/layers.0.bias",), "net/layers.2.kernel", flips=True
            )
        },
    ),
}


def check_found(case, scale=1.0):
    module, x, expected = FOUND[case]
    draws = draws_of(module, x)
    draws = Draws({name: np.float32(scale) * value for name, value in draws.items()}, draws.model)
    found = find_hidden_layers(draws, x)
    assert {la._replace(vectors=tuple(sorted(la.vectors))) for la in found} == expected


class TwoHeads(nn.Module):
    """Two outputs, each with an output layer of its own on the same hidden units."""

    @nn.compact
    def __call__(self, x):
        h = nn.tanh(nn.Dense(3)(x))
        return jnp.concatenate([nn.Dense(1)(h), nn.Dense(1)(h)], -1)


def two_parameters(f, y, df=None):
    likelihoods.heteroscedastic(f, y)


def two_sites(f, y, df=None):
    likelihoods.gaussian(f[:, 0], y, noise=0.5, name="one")
    likelihoods.student_t(f[:, 1], y, noise=0.5, df=df, name="two", plate="others")


def by_heads(module, distribution, df=3.0):
    def model(x, y=None):
        distribution(bnn.random_module("net", module, bnn.priors.Normal(1.0), x[:1])(x), y, df)

    structure = bnn.potential_of(model, X, X[:, 0]).structure
    rng = np.random.default_rng(2)
    shapes = {name: (2, 4, *structure.sites[name].shape) for name in structure.latent}
    return Draws({n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}, model)


@pytest.mark.parametrize(
    ("distribution", "site"), [(two_parameters, None), (two_sites, "one"), (two_sites, "two")]
)
def test_units_that_two_heads_share_have_no_symmetry_by_one_of_them(distribution, site):
    assert find_hidden_layers(by_heads(TwoHeads(), distribution), X, site=site) == ()


@pytest.mark.parametrize("distribution", [two_parameters, two_sites])
@pytest.mark.parametrize("df", [3.0, 2.0, 1.0])
def test_no_parameter_of_any_target_changes_by_alignment(distribution, df):
    """One output layer of both has a symmetry, also without a variance (df 2) or a mean (df 1)."""
    draws = by_heads(bnn.MLP([3], 2), distribution, df)
    site = "one" if distribution is two_sites else None
    layers = find_hidden_layers(draws, X, site=site)
    assert [(la.incoming, la.outgoing, la.flips) for la in layers] == [(d(0), d(1), True)]
    moved = Draws(align(draws, layers), draws.model)
    assert any((moved[name] != draws[name]).any() for name in draws)
    for name in ("one", "two") if distribution is two_sites else ("y",):
        before, after = (bnn.predict(None, each, X, site=name).values for each in (draws, moved))
        for key in before:
            np.testing.assert_allclose(before[key], after[key], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", FOUND)
def test_what_can_be_exchanged_is_found(case):
    check_found(case)


@pytest.mark.parametrize("case", ["tanh", "relu", "deep, with a norm layer"])
def test_draws_that_are_sure_of_every_class_hide_no_symmetry_and_feign_none(case):
    check_found(case, scale=30.0)


@pytest.mark.parametrize(
    "case", ["tanh", "relu", "deep, with a norm layer", "flattened convolution"]
)
def test_alignment_undoes_relabelling_and_keeps_predictions(case):
    module, x, _ = FOUND[case]
    one = draws_of(module, x, draws=1)
    layers = find_hidden_layers(one, x)
    rng = np.random.default_rng(3)
    copies = {name: np.repeat(value, 20, axis=1) for name, value in one.items()}
    for layer in layers:
        for t in range(19):  # the last stays as it is: the reference
            order = rng.permutation(copies[layer.incoming].shape[-1])
            sign = rng.choice([-1.0, 1.0], order.size) if layer.flips else np.ones(order.size)
            factor = sign * (rng.uniform(0.5, 2.0, order.size) if layer.scales else 1.0)
            for name in (layer.incoming, *layer.vectors):
                copies[name][0, t] = copies[name][0, t][..., order] * factor
            out = copies[layer.outgoing][0, t]
            by_unit = out.reshape(*out.shape[:-2], -1, order.size, out.shape[-1])
            by_unit = by_unit[..., order, :] / factor[:, None]
            copies[layer.outgoing][0, t] = by_unit.reshape(out.shape)
    relabelled = Draws(copies, one.model)
    before = bnn.predict(None, relabelled, x).probs
    np.testing.assert_allclose(before[:, :-1], before[:, 1:], atol=1e-5)
    aligned = align(relabelled, layers)
    after = bnn.predict(None, Draws(aligned, one.model), x).probs
    np.testing.assert_allclose(after, before, atol=1e-5)
    for value in aligned.values():
        np.testing.assert_allclose(value, np.broadcast_to(value[:, -1:], value.shape), atol=1e-5)
    if any(layer.scales for layer in layers):
        return
    for name, value in aligned.items():
        np.testing.assert_allclose(value[:, -1], one[name][:, 0], atol=1e-6)


@pytest.mark.slow
def test_what_accompanies_a_hierarchical_weight_is_left_alone():
    model = bnn.classification(bnn.MLP([4], 2), bnn.priors.Hierarchical())
    kernel = bnn.BAOAB(model, step_size=0.01)
    mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=100, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), X, np.arange(len(X)) % 2)
    assert any(name.endswith(".base") for name in mcmc.get_samples())
    draws = draws_from(mcmc)
    assert find_hidden_layers(draws, X) == tuple(FOUND["tanh"][2])
    assert bnn.diagnose(mcmc, X).relabelling is not None


def relabelled_chains(chains=4, draws=400):
    """One mode, whose units every chain counts in another order and with other signs."""
    rng = np.random.default_rng(4)
    one = draws_of(bnn.MLP([4], 2), X, draws=1)
    noise = 0.05
    values = {
        name: (value + noise * rng.normal(size=(chains, draws, *value.shape[2:]))).astype(
            np.float32
        )
        for name, value in one.items()
    }
    for c in range(chains):
        order, sign = rng.permutation(4), rng.choice([-1.0, 1.0], 4).astype(np.float32)
        values[d(0)][c] = values[d(0)][c][..., order] * sign
        values[d(0, "bias")][c] = values[d(0, "bias")][c][..., order] * sign
        values[d(1)][c] = values[d(1)][c][:, order] * sign[:, None]
    return Draws(values, one.model)


def test_a_report_tells_relabelling_from_the_rest():
    draws = relabelled_chains()
    report = bnn.diagnose(draws, X)
    assert report.verdict == "within_tolerance"
    assert report.weights.max_rhat > 2
    assert report.relabelling.space.max_rhat < 1.01
    assert report.relabelling.before > 0.9
    assert report.relabelling.after < 0.02
    assert "weights, aligned" in report.details()
    assert "once units are matched" in report.explanation


def test_modes_that_are_no_relabelling_stay_apart():
    draws = relabelled_chains()
    values = dict(draws) | {d(1, "bias"): draws[d(1, "bias")] + np.arange(4.0)[:, None, None]}
    values[d(1, "bias")][..., 1:] = draws[d(1, "bias")][..., 1:]
    report = bnn.diagnose(Draws(values, draws.model), X)
    assert report.verdict == "chains_disagree"
    assert report.relabelling.space.max_rhat > 2
    matched = align(Draws(values, draws.model), find_hidden_layers(draws, X))
    again = bnn.diagnose(Draws(matched, draws.model), X)
    assert "Matching hidden units changes little" in again.explanation


def test_alignment_can_be_declined_and_is_left_out_for_nan():
    draws = relabelled_chains(2, 100)
    assert bnn.diagnose(draws, X, align_units=False).relabelling is None
    broken = dict(draws) | {d(0): np.where(np.arange(100)[:, None, None] > 50, np.nan, draws[d(0)])}
    assert bnn.diagnose(Draws(broken, draws.model), X).verdict == "invalid"


def test_a_reference_can_be_given():
    draws = relabelled_chains(1, 5)
    layers = find_hidden_layers(draws, X)
    order = np.array([2, 0, 3, 1])
    reference = {name: np.asarray(value[0, 0]) for name, value in draws.items()}
    for name in (d(0), d(0, "bias")):
        reference[name] = reference[name][..., order]
    reference[d(1)] = reference[d(1)][order]
    aligned = align(draws, layers, reference)
    for name, value in reference.items():
        np.testing.assert_allclose(aligned[name][0, 0], value, atol=1e-6)
    assert jax.tree.all(jax.tree.map(lambda a, b: a.shape == b.shape, dict(aligned), dict(draws)))


def a_group_beside(f, y, df=None):
    with numpyro.plate("groups", 5):
        numpyro.sample("z", dist.Normal(0.0, 1.0), obs=None if y is None else jnp.zeros(5))
    likelihoods.gaussian(f[:, 0], y, noise=0.5, name="one")


def test_a_target_that_is_not_by_row_is_no_error():
    draws = by_heads(bnn.MLP([3], 2), a_group_beside)
    assert find_hidden_layers(draws, X, site="one") == ()
    assert bnn.diagnose(draws, X, site="one").num_chains == 2
