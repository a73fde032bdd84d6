"""No random key is used twice: by JAX's own checker, and where that looks away by the draws.

The checker follows keys through the traced program of a sampler, so that nothing is compiled. It
does not compare the numbers that are folded into a key, nor two elements of one array of keys.
"""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.infer import HMC, NUTS, CustomGibbs, Gibbs

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.approximations.member_optimizer import Descent
from numpyro_bnn.moves import Interleaved, PrecisionRedraw, RidgeScaling, UnitRescaling
from numpyro_bnn.samplers.sgmcmc.noise import normal_like, normals_like

sys.path.insert(0, str(Path(__file__).parent / "sgmcmc"))
import catalogue
import test_contract

checker = pytest.importorskip("jax.experimental.key_reuse._core")


def network(x, y=None):
    net = bnn.random_module("net", bnn.MLP([3], 1), priors.Hierarchical(), x[:1])
    noise = bnn.likelihoods.Precision()
    bnn.likelihoods.gaussian(lambda x: net(x)[:, 0], y, x=x, noise=noise)


def rows():
    x = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)
    return x, x[:, 0]


centered = bnn.parameterize(network, "centered")


def moves():
    rescaling = UnitRescaling("net/Dense_0.kernel", "net/Dense_1.kernel", ["net/Dense_0.bias"])
    return [RidgeScaling(), PrecisionRedraw(), rescaling]


def mixed():
    inner = (catalogue.make("BAOAB svrg", test_contract.hierarchical), ["weights", "scale"])
    return Gibbs([(CustomGibbs(test_contract.draw_precision), ["precision"]), inner])


# Kernel, and the arguments of its model.
COMPOSED = {
    "HMC": (lambda: HMC(network), rows),
    "NUTS": (lambda: NUTS(network), rows),
    "NUTS of all likelihoods in chunks": (lambda: NUTS(bnn.chunked.Chunked(network, 2)), rows),
    "Neal's Gibbs": (lambda: bnn.neal(network), rows),
    "Neal's Gibbs, NUTS": (lambda: bnn.neal(network, NUTS), rows),
    "Gibbs of minibatches": (mixed, catalogue.data),
    "moves": (lambda: Interleaved(HMC(centered), moves()), rows),
    "moves after Gibbs": (lambda: Interleaved(bnn.neal(network), moves()), rows),
    "tempering by HMC": (lambda: bnn.ParallelTempering(network, num_rungs=3), rows),
    "tempering by NUTS": (lambda: bnn.ParallelTempering(network, NUTS, num_rungs=3), rows),
    "tempering by MAMS": (lambda: bnn.ParallelTempering(network, bnn.MAMS, num_rungs=3), rows),
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


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_uses_a_key_twice(name):
    make, arguments = KERNELS[name]
    check(make(), arguments())


def test_the_checker_sees_a_key_that_a_kernel_uses_twice(monkeypatch):
    """What it would say of the faults that the tests above are there for."""
    planted = {
        "one for noise and the next step": ("numpyro_bnn.samplers.sgmcmc.kernel", "normals_like"),
        "one for noise and the decision": ("numpyro_bnn.samplers.sgmcmc.accept", "normals_like"),
    }
    for module, name in planted.values():
        with monkeypatch.context() as patch:
            true = getattr(importlib.import_module(module), name)

            def twice(key, *rest, true=true):
                jax.random.normal(key)
                return true(key, *rest)

            patch.setattr(f"{module}.{name}", twice)
            kernel = "SGLD" if "kernel" in module else "MALA exact"
            with pytest.raises(jax.errors.KeyReuseError):
                check(catalogue.make(kernel), catalogue.data())


def correlations(columns):
    found = np.corrcoef(np.stack([np.ravel(c) for c in columns]))
    return np.abs(found - np.eye(len(found))).max()


def test_vectors_of_noise_are_independent_of_each_other_and_of_the_next_step():
    """Numbers that are folded into a key, and elements of an array of keys, no checker compares.

    Of 2000 numbers a correlation above 0.12 has a chance below 1e-6."""
    tree = {"a": jnp.zeros(1000), "b": jnp.zeros(1000), "c": jnp.zeros((2, 500))}
    keys = jax.random.split(jax.random.key(0), 2)
    parts = [*normals_like(keys[0], 2, tree), normal_like(keys[1], tree)]
    assert correlations([leaf for part in parts for leaf in jax.tree.leaves(part)]) < 0.16


@pytest.mark.parametrize(
    "name", ["SGLD", "SGHMC", "BAOAB full in chunks", "GGMC exact", "MAMS exact"]
)
def test_no_two_steps_of_a_sampler_have_the_same_noise(name, monkeypatch):
    """On a flat target a step is its noise: those of 8 steps, of 3 chains, are all different."""
    kernel, arguments = catalogue.SAMPLERS[name]
    kept = {k: v for k, v in arguments.items() if k not in ("batch_size", "gradient")}
    sampler = kernel(potential_fn=lambda z: 0.0 * jnp.sum(z), **kept)

    def steps(key):
        state = sampler.init(key, 0, jnp.zeros(400), (), {})
        step = lambda s, _: 2 * (sampler.sample(s, (), {}),)  # noqa: E731
        return jax.lax.scan(step, state, None, 8)[1]

    states = jax.jit(jax.vmap(steps))(jax.random.split(jax.random.key(1), 3))
    moment = states.dynamics.momentum
    moves = np.diff(states.z, axis=1) if moment is None else np.asarray(moment)
    if moment is not None and name not in ("MAMS exact",):
        # What is left of the momentum before is no noise of this step.
        before, after = moves[:, :-1], moves[:, 1:]
        share = (before * after).sum(-1, keepdims=True) / (before**2).sum(-1, keepdims=True)
        moves = after - share * before
    assert correlations(moves.reshape(-1, 400)) < 0.35


def test_members_of_an_ensemble_begin_and_go_on_apart():
    descent = Descent("test", network, rows(), {}, batch_size=2)
    z = descent.begin(jax.random.key(0), 3, None)
    assert (
        correlations([np.concatenate([np.ravel(v[i]) for v in z.values()]) for i in range(3)])
        < 0.99
    )
    moments = jax.vmap(optax.adam(0.1).init)(z)
    keys = descent.members(jax.random.key(0), z, moments).batches.rng_key
    assert len({bytes(k) for k in np.asarray(jax.random.key_data(keys))}) == 3


def test_a_fit_uses_no_key_twice():
    """Starts, minibatches and the draws of precisions, of an ensemble."""
    descent = Descent("test", network, rows(), {}, batch_size=2)

    def fit(key):
        key_start, key_rows, key_draws = jax.random.split(key, 3)
        z = descent.begin(key_start, 2, None)
        members = descent.members(key_rows, z, jax.vmap(optax.adam(0.1).init)(z))
        members, _ = descent.advance(optax.adam(0.1))(members, 2, None, descent.arrays)
        around = descent.whole
        return jax.vmap(around.draw)(members.z, jax.random.split(key_draws, 2))

    checker.check_key_reuse(fit, jax.random.key(0))
