"""No random key is used twice: by JAX's own checker, and where that looks away by the draws.

The checker follows keys through the traced program of a sampler, so that nothing is compiled. To it
folding a number into a key is no use of that key, and it does not know which elements of an array of
keys are equal: those are found by a ledger of the keys of programs that run eagerly.
"""

import importlib
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from key_ledger import Ledger
from linear_gaussian import members
from numpyro.infer import HMC, NUTS, CustomGibbs, Gibbs

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer, TrainingOptions
from numpyro_bnn.moves import (
    Bound,
    Interleaved,
    PrecisionRedraw,
    RidgeScaling,
    UnitRefresh,
    UnitRescaling,
)
from numpyro_bnn.potential.flat_position import normal_like, normals_like
from numpyro_bnn.potential.potential import Chunked
from numpyro_bnn.potential.structure import structure_of

sys.path.insert(0, str(Path(__file__).parent / "sgmcmc"))
import catalogue
import test_contract

checker = pytest.importorskip("jax.experimental.key_reuse._core")
# What runs eagerly compiles operation by operation.


PRIOR = priors.Hierarchical()


def network(x, y=None, prior=PRIOR):
    net = bnn.random_module("net", bnn.MLP([3], 1), prior, x[:1])
    noise = bnn.likelihoods.Precision()
    bnn.likelihoods.gaussian(lambda x: net(x)[:, 0], y, x=x, noise=noise)


def plain(x, y):
    """The sites of the catalogue without transforms: what runs eagerly compiles each operation."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(x @ weights + scale, 1.0), obs=y)


def rows():
    x = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)
    return x, x[:, 0]


centered = bnn.parameterize(network, "centered")


def moves():
    rescaling = UnitRescaling("net/Dense_0.kernel", "net/Dense_1.kernel", ["net/Dense_0.bias"])
    refresh = UnitRefresh("net/Dense_0.kernel", ["net/Dense_0.bias"])
    return [RidgeScaling(), PrecisionRedraw(), rescaling, refresh]


def mixed():
    inner = (catalogue.make("BAOAB svrg", test_contract.hierarchical), ["weights", "scale"])
    return Gibbs([(CustomGibbs(test_contract.draw_precision), ["precision"]), inner])


# Kernel, and the arguments of its model.
COMPOSED = {
    "HMC": (lambda: HMC(network), rows),
    "NUTS": (lambda: NUTS(network), rows),
    "NUTS of all likelihoods in chunks": (lambda: NUTS(Chunked(network, 2)), rows),
    "Neal's Gibbs": (lambda: bnn.neal(network), rows),
    "Neal's Gibbs, NUTS": (lambda: bnn.neal(network, NUTS), rows),
    "Gibbs of minibatches": (mixed, catalogue.data),
    "moves": (lambda: Interleaved(HMC(centered), moves()), rows),
    "moves after Gibbs": (lambda: Interleaved(bnn.neal(network), moves()), rows),
    "tempering by HMC": (lambda: bnn.ParallelTempering(network, num_rungs=3), rows),
    "tempering by NUTS": (lambda: bnn.ParallelTempering(network, NUTS, num_rungs=3), rows),
    "tempering by MAMS": (lambda: bnn.ParallelTempering(network, bnn.MAMS, num_rungs=3), rows),
    "tempering with moves": (
        lambda: bnn.ParallelTempering(network, num_rungs=3, moves=moves()),
        rows,
    ),
}
KERNELS = COMPOSED | {
    name: (lambda name=name: catalogue.make(name), catalogue.data) for name in catalogue.SAMPLERS
}


@pytest.fixture(autouse=True)
def conditions_on_one_operand(monkeypatch):
    """NumPyro gives both branches of a condition the same state, which looks like a key used twice."""

    def cond(flag, true_operand, true_fun, false_operand, false_fun):
        return jax.lax.cond(flag, lambda: true_fun(true_operand), lambda: false_fun(false_operand))

    for module in ("gibbs", "hmc", "hmc_util"):
        monkeypatch.setattr(importlib.import_module(f"numpyro.infer.{module}"), "cond", cond)


def check(kernel, arguments, init=None):
    """Trace two steps, the first one of warm-up."""
    if init is None:
        # NumPyro itself looks for starts with keys that it has used.
        init = not isinstance(kernel, (HMC, Gibbs, Interleaved))

    def begin(key):
        return kernel.init(key, 1, None, arguments, {})

    def run(state):
        state = begin(state) if init else state
        for _ in range(2):
            state = kernel.sample(state, arguments, {})
        return state

    key = jax.random.key(0)
    checker.check_key_reuse(run, key if init else jax.eval_shape(begin, key))


FAST = {"NUTS", "Neal's Gibbs", "Gibbs of minibatches"}
SLOW = set(COMPOSED) - FAST | test_contract.VARIANTS


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in KERNELS]
)
def test_no_kernel_uses_a_key_twice(name):
    make, arguments = KERNELS[name]
    check(make(), arguments())


def test_the_checker_sees_a_key_that_a_kernel_uses_twice(monkeypatch):
    """What it would say of the faults that the tests above are there for."""
    planted = {
        "one for noise and the next step": (
            "numpyro_bnn.samplers.sgmcmc.transitions",
            "normals_like",
        ),
        "one for noise and the decision": ("numpyro_bnn.samplers.sgmcmc.accept", "normals_like"),
    }
    for module, name in planted.values():
        with monkeypatch.context() as patch:
            true = getattr(importlib.import_module(module), name)

            def twice(key, *rest, true=true):
                jax.random.normal(key)
                return true(key, *rest)

            patch.setattr(f"{module}.{name}", twice)
            kernel = "SGLD" if "transitions" in module else "MALA exact"
            with pytest.raises(jax.errors.KeyReuseError, match="already consumed"):
                check(catalogue.make(kernel), catalogue.data())


def correlations(columns):
    found = np.corrcoef(np.stack([np.ravel(c) for c in columns]))
    return np.abs(found - np.eye(len(found))).max()


def test_vectors_of_noise_are_independent_of_each_other_and_of_the_next_step():
    """Small leaves, which are drawn together, large ones and those of half precision.

    Of 1000 numbers a correlation above 0.16 has a chance below 1e-6."""
    single = np.zeros(1000, np.float32)
    tree = {"a": single, "b": single, "c": single.reshape(2, 500)}
    tree |= dict.fromkeys(("half", "half too"), np.zeros(1000, np.float16))
    too_large = [np.zeros((1 << 16) + 1, np.float32)] * 2  # to be drawn together

    @jax.jit
    def drawn(key):
        keys = jax.random.split(key, 2)
        parts = [*normals_like(keys[0], 2, tree), normal_like(keys[1], tree)]
        return parts, normal_like(keys[0], too_large)

    parts, large = drawn(jax.random.key(0))
    assert correlations([leaf for part in parts for leaf in jax.tree.leaves(part)]) < 0.16
    assert correlations(large) < 0.02


START = {"weights": jnp.array([0.3, 0.1]), "scale": jnp.array(-0.5)}
# Plain steps, an anchor, momenta that are drawn anew, and two corrections.
EAGER = {"SGLD", "BAOAB svrg", "SGHMC", "GGMC exact", "MAMS exact"}


def followed(kernel, arguments, num_steps=2):
    """The uses of keys in a few steps, the first one of warm-up, run eagerly."""
    key = jax.random.key(3)
    ledger = Ledger(key)
    with jax.disable_jit():
        with ledger:
            state = kernel.init(key, 1, START, arguments, {})
        for leaf in jax.tree.leaves(getattr(state, "estimator", None)):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                ledger.orders.add(ledger.name(leaf))
        with ledger:
            for _ in range(num_steps):
                state = kernel.sample(state, arguments, {})
    assert len(ledger.used) > 5
    return ledger.faults


@pytest.mark.parametrize(
    "name",
    [n if n in EAGER else pytest.param(n, marks=pytest.mark.slow) for n in catalogue.SAMPLERS],
)
def test_no_sampler_comes_to_the_same_key_twice(name):
    """By whatever way: also by a number folded in twice, or one key for a row of them."""
    assert not followed(catalogue.make(name, plain), catalogue.data())


def test_no_rung_moves_by_the_key_of_another():
    hmc = HMC(plain, num_steps=1, trajectory_length=None)
    kernel = bnn.ParallelTempering(plain, hmc, num_rungs=2)
    assert not followed(kernel, catalogue.data(), 1)


# Two arrays in a group, each weight with a precision of its own.
SINGLE = priors.Hierarchical.width(0.5, group=1.0, weight=3.0, groups="layer")


@pytest.mark.parametrize(
    ("move", "model"),
    [*((move, network) for move in moves()), (PrecisionRedraw(), partial(network, prior=SINGLE))],
    ids=[*(type(move).__name__ for move in moves()), "PrecisionRedraw of single weights"],
)
def test_no_move_comes_to_the_same_key_twice(move, model):
    key = jax.random.key(3)
    bound = Bound(model, rows(), {})
    sites = structure_of(bnn.parameterize(model, "centered"), rows(), {}).sites
    values = {name: jnp.ones(sites[name].shape) for name in bound.latent}
    with jax.disable_jit(), Ledger(key) as ledger:
        move(key, values, bound)
    assert len(ledger.used) > 2
    assert not ledger.faults


def test_members_of_an_ensemble_have_keys_of_their_own(monkeypatch):
    # Candidates of one member are compared on the same rows, drawn by the same key on purpose.
    monkeypatch.setattr("numpyro_bnn.approximations.member_optimizer._CANDIDATES", 1)
    descent = members(plain, catalogue.data(), batch_size=2)
    key_start, key_rows = jax.random.split(jax.random.key(3))
    with Ledger(key_start) as ledger, jax.disable_jit():
        z = descent.begin(key_start, 3, None)
    assert not ledger.faults
    assert len(np.unique(z["weights"], axis=0)) == len(np.unique(z["scale"])) == 3
    batches = descent.members(key_rows, z, jax.vmap(optax.adam(0.1).init)(z)).batches
    assert len(set(Ledger.names(batches.rng_key))) == 3


def test_a_fit_gives_its_starts_and_its_minibatches_two_keys(monkeypatch):
    given = []

    def noting(name, true):
        def noted(self, key, *rest):
            given.append((name, Ledger.name(key)))
            return true(self, key, *rest)

        return noted

    for name in ("begin", "members"):
        monkeypatch.setattr(MemberOptimizer, name, noting(name, getattr(MemberOptimizer, name)))
    key = jax.random.key(0)
    training = TrainingOptions(num_steps=0, batch_size=2, progress_bar=False)
    members(plain, catalogue.data(), batch_size=2).fit(key, 2, training)
    assert [name for name, _ in given] == ["begin", "members"]
    assert len({Ledger.name(key), *(name for _, name in given)}) == 3


def test_a_fit_uses_no_key_twice():
    """Starts, minibatches and the draws of precisions, of an ensemble."""
    descent = members(network, rows(), batch_size=2)

    def fit(key):
        key_start, key_rows, key_draws = jax.random.split(key, 3)
        # Starts as `begin` draws them; there candidates of one member share a key of rows on purpose.
        z = jax.vmap(lambda k: descent.whole.begin(k, {}))(jax.random.split(key_start, 2))
        members = descent.members(key_rows, z, jax.vmap(optax.adam(0.1).init)(z))
        members, *_ = descent.advance(optax.adam(0.1))(members, 2, None, descent.arrays)
        return jax.vmap(descent.whole.draw)(members.z, jax.random.split(key_draws, 2))

    checker.check_key_reuse(fit, jax.random.key(0))
