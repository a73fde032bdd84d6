"""Flax networks as parts of NumPyro models, linen and NNX, against Flax itself."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import errors, nnx
from flax import linen as nn
from numpyro import handlers
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density

import numpyro_bnn as bnn
from numpyro_bnn.potential import starts as start

NORMAL = bnn.priors.Normal(0.5)
LINEN = {
    "MLP": (nets.MLP, "rows"),
    "setup and a list of submodules": (nets.SetupMLP, "rows"),
    "shared parameters": (nets.Shared, "rows"),
    "convolution": (nets.Conv, "image"),
    "attention": (nets.Attention, "tokens"),
    "LSTM": (nets.Recurrent, "sequence"),
}
NNX = {
    "MLP": (nets.NNXMLP, "rows"),
    "shared parameters": (nets.NNXShared, "rows"),
    "convolution": (nets.NNXConv, "image"),
    "attention": (nets.NNXAttention, "tokens"),
    "LSTM": (nets.NNXRecurrent, "sequence"),
}


def model_of(module, prior=NORMAL, call=None, **options):
    """A model ``model(x)`` that returns the output of the network."""

    def model(x):
        example = (x[:1],) if isinstance(module, nn.Module) else ()
        net = bnn.random_module("net", module, prior, *example, **options)
        return numpyro.deterministic("f", net(x, **(call or {})))

    return model


def run(model, x):
    """Sites of one run of the model, by name, with made-up weights."""
    return runner(model)(x, nets.weights(model, x), 0)


def runner(model):
    """One program for many runs of a model, of its inputs, weights and random seed."""

    @jax.jit
    def values(x, given, seed):
        filled = handlers.substitute(handlers.seed(model, jax.random.key(seed)), data=given)
        sites = handlers.trace(filled).get_trace(x)
        return {name: site["value"] for name, site in sites.items()}

    return values


@pytest.fixture(scope="module")
def x():
    return nets.inputs("rows")


@pytest.mark.parametrize("name", LINEN)
def test_a_linen_network_with_sampled_weights_is_module_apply(name):
    make, kind = LINEN[name]
    module, x = make(), nets.inputs(kind)
    draw = run(model_of(module), x)
    params = bnn.to_params(draw)
    own = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    shape_of = partial(jax.tree.map, jnp.shape)
    assert shape_of(params) == shape_of(own)
    expected = jax.jit(module.apply)({"params": params}, x)
    np.testing.assert_allclose(draw["f"], expected, rtol=1e-5, atol=1e-6)
    back = bnn.from_params(params)
    assert back.keys() == draw.keys() - {"f"}
    assert all(np.array_equal(back[site], draw[site]) for site in back)


@pytest.mark.parametrize("name", NNX)
def test_an_nnx_network_with_sampled_weights_is_the_module_with_those(name):
    make, kind = NNX[name]
    module, x = make(nnx.Rngs(0)), nets.inputs(kind)
    draw = run(model_of(module), x)
    params = bnn.to_params(draw)
    state = nnx.state(module, nnx.Param)
    assert bnn.from_params(state).keys() == draw.keys() - {"f"}
    nnx.replace_by_pure_dict(state, params)
    nnx.update(module, state)
    own = nnx.jit(lambda module, x: module(x))(module, x)
    np.testing.assert_allclose(draw["f"], own, rtol=1e-5, atol=1e-6)


def test_shared_parameters_are_one_site(x):
    assert run(model_of(nets.Shared()), x).keys() == {"net/Dense_0.kernel", "net/Dense_0.bias", "f"}
    tied = run(model_of(nets.NNXShared(nnx.Rngs(0))), x)
    assert tied.keys() == {"net/first.kernel", "net/first.bias", "f"}


@pytest.mark.parametrize(
    ("module", "first", "last"), [(nets.MLP(outputs=1), 1, 0), (bnn.MLP([4], 1), 0, 1)]
)
def test_the_log_density_is_that_of_the_network_written_by_hand(x, module, first, last):
    y = jnp.array([0.3, -1.0, 2.0])

    def wrapped(x, y):
        net = bnn.random_module("net", module, NORMAL, x[:1])
        numpyro.sample("y", dist.Normal(net(x[None])[0].squeeze(-1), 0.1), obs=y)

    def by_hand(x, y):
        def weight(name, *shape):
            return numpyro.sample(f"net/{name}", dist.Normal(0, 0.5).expand(shape).to_event())

        hidden = jnp.tanh(
            x @ weight(f"Dense_{first}.kernel", 3, 4) + weight(f"Dense_{first}.bias", 4)
        )
        f = hidden @ weight(f"Dense_{last}.kernel", 4, 1) + weight(f"Dense_{last}.bias", 1)
        numpyro.sample("y", dist.Normal(f.squeeze(-1), 0.1), obs=y)

    @jax.jit
    def both(point):
        return [log_density(m, (x, y), {}, point)[0] for m in (wrapped, by_hand)]

    for seed in range(3):
        ours, theirs = both(nets.weights(wrapped, x, y, seed=seed))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_shapes_are_found_without_a_forward_pass(x):
    traced = []
    weights = {"net/Dense_0.kernel": np.ones((3, 2)), "net/Dense_0.bias": np.ones(2)}

    class Spy(nn.Module):
        @nn.compact
        def __call__(self, x):
            traced.append(isinstance(x, jax.core.Tracer))
            return nn.Dense(2)(x)

    with handlers.seed(rng_seed=0), handlers.substitute(data=weights):
        net = bnn.random_module("net", Spy(), NORMAL, x[:1])
        assert traced == [True]
        net(x)
    assert traced == [True, False]


def test_the_structure_of_a_network_too_large_for_memory_is_found():
    def model(x):
        net = bnn.random_module("net", nn.Dense(2**20), NORMAL, x)
        numpyro.sample("y", dist.Normal(net(x), 1), obs=jnp.zeros(2**20))

    structure = bnn.potential_of(model, jnp.ones((1, 2**20))).structure
    assert structure.sites["net/kernel"].shape == (2**20, 2**20)


@pytest.mark.parametrize("make", [nets.BatchNorm, lambda: nets.NNXBatchNorm(nnx.Rngs(0))])
def test_running_statistics_are_refused_unless_frozen(make, x):
    module = make()
    with pytest.raises(ValueError, match=r"running statistics|batch_stats.*estimated from the da"):
        run(model_of(module), x)
    if isinstance(module, nn.Module):
        shapes = jax.eval_shape(module.init, jax.random.key(0), x)["batch_stats"]
        own = jax.tree.map(lambda s: np.full(s.shape, 2.0, np.float32), shapes)
        own["BatchNorm_0"]["var"] += 1.0
        stats, weight = own, {"train": True}
    else:
        stats, weight = (
            {"norm": {"mean": np.full(3, 2.0), "var": np.full(3, 3.0)}},
            {"train": True},
        )
    draw = run(model_of(module, batch_stats=stats), x)
    kind = "BatchNorm_0" if isinstance(module, nn.Module) else "norm"
    head = "Dense_0" if isinstance(module, nn.Module) else "head"
    site = {k.removeprefix("net/"): np.asarray(v) for k, v in draw.items()}
    normed = (np.asarray(x) - 2.0) / np.sqrt(3.0 + 1e-5) * site[f"{kind}.scale"] + site[
        f"{kind}.bias"
    ]
    expected = normed @ site[f"{head}.kernel"] + site[f"{head}.bias"]
    np.testing.assert_allclose(draw["f"], expected, rtol=1e-4, atol=1e-5)
    said = 'collection "batch_stats" is immutable|tries to update its running statistics'
    with pytest.raises((ValueError, errors.ModifyScopeVariableError), match=said):
        run(model_of(module, batch_stats=stats, call=weight), x)
    with pytest.raises(ValueError, match=r"`batch_stats` lacks .*\.mean"):
        run(model_of(module, batch_stats={"other": {"mean": jnp.zeros(3)}}), x)


@pytest.mark.parametrize("linen", [True, False])
def test_dropout_is_off_unless_a_stream_is_given(linen, x):
    module = nets.Dropout() if linen else nets.NNXDropout(nnx.Rngs(0))
    call = {} if linen else {"deterministic": False}  # the module insists on dropping
    layer = "Dense_0" if linen else "layer"
    draw = run(model_of(module, call=call), x)
    draw = jax.tree.map(np.asarray, draw)
    full = np.asarray(x) @ draw[f"net/{layer}.kernel"] + draw[f"net/{layer}.bias"]
    np.testing.assert_allclose(draw["f"], full, rtol=1e-4, atol=1e-5)

    weights = {k: v for k, v in draw.items() if k != "f"}
    dropping = model_of(module, apply_rng=["dropout"])
    again = runner(dropping)
    masks = [np.asarray(again(x, weights, seed)["f"]) / full for seed in (1, 1, 2)]
    for mask in masks:  # dropped, or scaled up by the inverse of the rate that is kept
        np.testing.assert_allclose(mask, np.where(np.abs(mask) < 0.5, 0.0, 2.0), atol=1e-4)
    assert (masks[0] == masks[1]).all()
    assert (masks[0] != masks[2]).any()


def test_two_calls_and_two_layers_drop_differently(x):
    class Twice(nnx.Module):
        def __init__(self, rngs):
            self.bias = nnx.Param(jnp.zeros(()))
            self.one, self.two = nnx.Dropout(0.5, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.bias[...] + jnp.stack([self.one(x), self.two(x)])

    def model(x):
        net = bnn.random_module("net", Twice(nnx.Rngs(0)), NORMAL, apply_rng="dropout")
        numpyro.deterministic("masks", jnp.concatenate([net(x), net(x)]))

    masks = np.asarray(run(model, np.ones(64, np.float32))["masks"])
    assert len({tuple((mask > masks.mean()).tolist()) for mask in masks}) == 4


def test_an_nnx_module_is_not_changed_by_its_calls(x):
    module = nets.NNXDropout(nnx.Rngs(0))
    before = jax.tree.leaves(nnx.state(module, nnx.RngCount, nnx.Param))
    run(model_of(module, apply_rng=["dropout"]), x)
    after = jax.tree.leaves(nnx.state(module, nnx.RngCount, nnx.Param))
    assert all(a is b for a, b in zip(before, after))
    assert not module.drop.deterministic


def test_whole_numbers_among_nnx_parameters_stay_fixed(x):
    module = nets.NNXTable(nnx.Rngs(0))
    draw = run(model_of(module), x)
    assert draw.keys() == {"net/layer.kernel", "net/layer.bias", "f"}
    kernel, bias = (np.asarray(draw[f"net/layer.{part}"]) for part in ("kernel", "bias"))
    expected = np.asarray(x)[:, [2, 0]] @ kernel + bias
    np.testing.assert_allclose(draw["f"], expected, rtol=1e-5, atol=1e-6)


def test_an_abstract_nnx_module_is_enough(x):
    abstract = nnx.eval_shape(lambda: nets.NNXMLP(nnx.Rngs(0)))
    real = nets.NNXMLP(nnx.Rngs(0))
    np.testing.assert_array_equal(run(model_of(abstract), x)["f"], run(model_of(real), x)["f"])
    last = bnn.priors.ByPath({"layers.1.*": NORMAL, "*": None})
    with pytest.raises(ValueError, match=r"layers\.0\.bias.*no values"):
        run(model_of(abstract, last), x)


def test_a_bayesian_last_layer_on_trained_features(x):
    module = nets.MLP()
    trained = jax.tree.map(np.asarray, jax.jit(module.init)(jax.random.key(3), x)["params"])
    last = bnn.priors.ByPath({"Dense_0.*": NORMAL, "*": None})
    draw = jax.tree.map(np.asarray, run(model_of(module, last, params=trained), x))
    assert draw.keys() == {"net/Dense_0.kernel", "net/Dense_0.bias", "f"}
    features = np.tanh(np.asarray(x) @ trained["Dense_1"]["kernel"] + trained["Dense_1"]["bias"])
    expected = features @ draw["net/Dense_0.kernel"] + draw["net/Dense_0.bias"]
    np.testing.assert_allclose(draw["f"], expected, rtol=1e-5, atol=1e-6)
    batch = {k: np.stack([v, v]) for k, v in draw.items() if k != "f"}
    params = bnn.to_params(batch, params=trained)
    assert params["Dense_1"]["kernel"].shape == (2, 3, 4)
    outputs = jax.jit(jax.vmap(lambda p: module.apply({"params": p}, x)))(params)
    np.testing.assert_allclose(outputs, np.stack([draw["f"]] * 2), rtol=1e-5, atol=1e-6)


def test_the_values_of_an_nnx_module_serve_where_the_prior_leaves_it_fixed(x):
    module = nets.NNXMLP(nnx.Rngs(4))
    draw = run(model_of(module, bnn.priors.ByPath({"layers.1.bias": NORMAL, "*": None})), x)
    assert draw.keys() == {"net/layers.1.bias", "f"}
    own = nnx.jit(lambda module, x: module(x))(module, x)
    expected = own - np.asarray(module.layers[1].bias[...]) + draw["net/layers.1.bias"]
    np.testing.assert_allclose(draw["f"], expected, rtol=1e-5, atol=1e-6)


def test_draws_go_through_vmap_and_numpyros_predictive(x):
    module = nets.MLP()
    model = model_of(module)
    draws = Predictive(model, num_samples=5)(jax.random.key(1), x)
    params = bnn.to_params(draws)
    assert params.keys() == {"Dense_0", "Dense_1"}
    assert params["Dense_0"].keys() == {"kernel", "bias"}
    outputs = jax.jit(jax.vmap(lambda p: module.apply({"params": p}, x)))(params)
    np.testing.assert_allclose(outputs, draws["f"], rtol=1e-4, atol=1e-5)


def test_handlers_reach_the_weights(x):
    model = model_of(nets.MLP())
    bias = jnp.array([1.0, 2.0])
    observed = {}

    def conditioned():
        given = handlers.condition(model, {"net/Dense_0.bias": bias})
        sites = handlers.trace(handlers.seed(given, 0)).get_trace(x)
        observed.update({name: site.get("is_observed") for name, site in sites.items()})

    jax.eval_shape(conditioned)
    assert observed["net/Dense_0.bias"]
    assert not observed["net/Dense_0.kernel"]
    scoped = run(handlers.scope(model, prefix="a"), x)
    assert "a/net/Dense_0.kernel" in scoped
    params = bnn.to_params(scoped, name="a/net")
    np.testing.assert_array_equal(params["Dense_0"]["kernel"], scoped["a/net/Dense_0.kernel"])


def test_a_hierarchical_model_under_scope_keeps_its_groups(x):
    def model(x):
        net = bnn.random_module("net", nets.MLP(), bnn.priors.Hierarchical(), x[:1])
        numpyro.sample("y", dist.Normal(net(x), 1).to_event(2), obs=jnp.zeros((3, 2)))

    scoped = handlers.scope(model, prefix="a")
    structure = bnn.potential_of(scoped, x).structure
    assert structure.groups["a/net/Dense_0.bias.precision"].members == ("a/net/Dense_0.bias",)
    weights = nets.weights(bnn.parameterize(scoped, "centered"), x)
    given = {k: v for k, v in weights.items() if k not in structure.groups}
    complete = jax.jit(lambda w: start.complete(bnn.potential_of(scoped, x), w, ()))
    values = complete(given)
    site = "a/net/Dense_0.kernel"
    shape, rate = 1 + 8 / 2, 1 + np.sum(given[site] ** 2) / 2
    assert values[f"{site}.precision"] == pytest.approx(np.log(shape / rate), rel=1e-5)
    np.testing.assert_allclose(
        values[f"{site}.base"], given[site] * (shape / rate) ** 0.5, rtol=1e-5
    )


def test_variational_inference_runs_over_the_weights(x):
    def model(x, y):
        net = bnn.random_module("net", nets.Linear(), NORMAL, x[:1])
        numpyro.sample("y", dist.Normal(net(x), 0.5).to_event(1), obs=y)

    guide = AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.05), Trace_ELBO(num_particles=8))
    result = svi.run(jax.random.key(0), 300, x, x[:, 0], progress_bar=False)
    # The exact posterior mean of a linear model (the weights are close to independent here).
    inputs = np.c_[x, np.ones(3)]
    precision = inputs.T @ inputs / 0.25 + np.eye(4) / 0.25
    exact = np.linalg.solve(precision, inputs.T @ np.asarray(x[:, 0]) / 0.25)
    found = guide.median(result.params)
    ours = np.r_[found["net/Dense_0.kernel"][:, 0], found["net/Dense_0.bias"]]
    np.testing.assert_allclose(ours, exact, atol=0.1)


def test_a_network_leaves_no_site_of_its_own(x):
    def model(x):
        net = bnn.random_module("net", nets.MLP(), NORMAL, x[:1])
        return numpyro.deterministic("net", net(x))

    kinds = set()

    def traced():
        sites = handlers.trace(handlers.seed(model, 0)).get_trace(x)
        kinds.update(site["type"] for site in sites.values())

    jax.eval_shape(traced)
    assert kinds == {"sample", "deterministic"}


def test_render_model_draws_the_weights(x):
    pytest.importorskip("graphviz", reason="the Python package graphviz draws the graph")
    assert "net/Dense_0.kernel" in numpyro.render_model(model_of(nets.MLP()), (x,)).source


def test_what_render_model_reads_of_a_model(x):
    relations = numpyro.infer.inspect.get_model_relations(model_of(nets.MLP()), (x,))
    assert relations["sample_sample"]["net/Dense_0.kernel"] == []
    assert relations["sample_dist"]["net/Dense_0.kernel"] == "Normal"
