"""Which inputs a program is affine in, read off its operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from numpyro_bnn.models.affine_sites import is_affine

X = jnp.ones((5, 3))

CASES = {
    "a dense layer": (lambda w, c: X @ w + c, True),
    "without the axis of outputs": (lambda w, c: (X @ w + c).squeeze(-1), True),
    "scaled by the other": (lambda w, c: X @ (w * jnp.exp(c)), True),
    "inside jit": (lambda w, c: jax.jit(lambda v: 2 * (X @ v).T - c)(w), True),
    "rows of it": (lambda w, c: w[jnp.array([2, 0])] + lax.dynamic_slice(w, (1, 0), (2, 1)), True),
    "chosen by a constant": (lambda w, c: jnp.where(c > 0, w, -w), True),
    "sums and padding": (lambda w, c: jnp.pad(jnp.cumsum(w.sum(1)), 2) / c, True),
    "a convolution": (lambda w, c: jnp.convolve(jnp.arange(4.0), w[:, 0]) + c, True),
    "a relu of the constant": (lambda w, c: jax.nn.relu(c) * w, True),
    "unused": (lambda w, c: jax.nn.silu(c) + 0.0, True),
    "a relu": (lambda w, c: jax.nn.relu(X @ w), False),
    "its square": (lambda w, c: w * w, False),
    "a product inside jit": (lambda w, c: jax.jit(lambda a, b: a.T @ b)(w, w), False),
    "its inverse": (lambda w, c: c / w, False),
    "a choice by it": (lambda w, c: jnp.where(w > 0, w, c), False),
    "a maximum": (lambda w, c: jnp.max(w), False),
    "a slope that is hidden": (lambda w, c: lax.stop_gradient(w), False),
    "a loop": (lambda w, c: lax.fori_loop(0, 3, lambda i, v: v * v, w), False),
    "rounded": (lambda w, c: jnp.round(w), False),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_program_is_affine_in(case):
    function, expected = CASES[case]
    program = jax.make_jaxpr(function)(jnp.ones((3, 1)), jnp.ones(()))
    assert is_affine(program, 0, [True, False]) is expected


def test_each_output_is_told_apart():
    program = jax.make_jaxpr(lambda w, c: (X @ w, c**2, jnp.tanh(w)))(jnp.ones(3), jnp.ones(()))
    assert [is_affine(program, k, [True, False]) for k in range(3)] == [True, True, False]
    assert [is_affine(program, k, [False, True]) for k in range(3)] == [True, False, True]
    # Two layers: affine in each, and not in both.
    two = jax.make_jaxpr(lambda v, w: X @ v @ w)(np.ones((3, 2)), np.ones((2, 1)))
    assert is_affine(two, 0, [True, False])
    assert not is_affine(two, 0, [True, True])
