"""A chain whose position is one vector takes the same steps as one that keeps its sites apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import BATCH, data, make
from quiet import quiet

from numpyro_bnn import gradients, preconditioners
from numpyro_bnn.compilation.program_identity import separate_programs
from numpyro_bnn.potential.flat_position import FlatPosition
from numpyro_bnn.samplers.gibbs.moves import Interleaved
from numpyro_bnn.samplers.sgmcmc import kernel as kernels

ANCHOR = {"weights": jnp.asarray([0.8, -0.4]), "scale": jnp.asarray(-0.3)}
CASES = {
    "MCLMC": {},
    "BAOAB svrg": {
        "gradient": gradients.control_variate(BATCH, anchor=ANCHOR),
        "preconditioner": preconditioners.from_warmup(first_window=4),
        "friction": 2.0,
    },
    "SGHMC blocks, noise known": {
        "gradient_noise": {"weights": jnp.asarray([1.0, 2.0]), "scale": 0.5}
    },
}
WARMUP, STEPS = 6, 12
# Looking for a start compiles for longer than the steps.
START = {"weights": jnp.asarray([0.3, 0.1]), "scale": jnp.asarray(-0.5)}


def after_steps(name):
    """The state of a chain after warm-up and as many steps again."""
    kernel = make(name, **CASES[name])

    @jax.jit
    def last(key):
        state = kernel.init(key, WARMUP, START, data(), {})
        return jax.lax.fori_loop(0, STEPS, lambda _, s: kernel.sample(s, data(), {}), state)

    return last(jax.random.key(0))


@pytest.mark.parametrize("name", CASES)
def test_positions_and_temperatures_are_those_of_sites_apart(name, monkeypatch):
    flat = after_steps(name)
    monkeypatch.setattr(kernels, "flattened", lambda z: z)
    apart = after_steps(name)
    assert isinstance(flat.dynamics.position, FlatPosition)
    assert isinstance(apart.dynamics.position, dict)
    kept = ("z", "step_size", "kinetic_temperatures", "configurational_temperatures")
    # All of size one; sums in another order differ by 1e-7, which a dozen steps magnify a few hundred times.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
        {field: getattr(flat, field) for field in kept},
        {field: getattr(apart, field) for field in kept},
    )


def sampler(folder):
    return quiet(make("SGHMC blocks, noise known"), WARMUP, STEPS, checkpoint=folder)


def test_a_metric_of_other_sites_is_refused_by_name():
    metric = preconditioners.diagonal({"weights": 1.0})
    with pytest.raises(ValueError, match=r"inverse_mass_matrix has .*the position has .*'scale'"):
        jax.eval_shape(
            lambda key: make("SGLD", preconditioner=metric).init(key, 0, START, data(), {}),
            jax.random.key(0),
        )


def test_moves_leave_a_state_its_form():
    kernel = Interleaved(make("MALA exact"), [lambda key, values, bound: values])

    def states(key):
        first = kernel.init(key, 4, None, data(), {})
        return first, kernel.sample(first, data(), {})

    first, after = jax.eval_shape(states, jax.random.key(0))
    assert isinstance(first.dynamics.position, FlatPosition)
    assert jax.tree.structure(after) == jax.tree.structure(first)


def test_states_of_another_version_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("orbax.checkpoint")
    with monkeypatch.context() as patched, separate_programs():
        patched.setattr(kernels, "flattened", lambda z: z)
        sampler(tmp_path).run(jax.random.key(0), *data())
    with pytest.raises(ValueError, match=r"another version of numpyro_bnn: .* arrays.*`bnn\.load`"):
        sampler(tmp_path).resume(*data())
