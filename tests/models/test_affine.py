"""Which inputs a program is affine in, read off its operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from numpyro_bnn.models.jaxpr_dependence import AFFINE, CONSTANT, OTHER, dependence

X = jnp.ones((5, 3))

CASES = {
    "a dense layer": (lambda w, c: X @ w + c, AFFINE),
    "without the axis of outputs": (lambda w, c: (X @ w + c).squeeze(-1), AFFINE),
    "scaled by the other": (lambda w, c: X @ (w * jnp.exp(c)), AFFINE),
    "inside jit": (lambda w, c: jax.jit(lambda v: 2 * (X @ v).T - c)(w), AFFINE),
    "rows of it": (
        lambda w, c: w[jnp.array([2, 0])] + lax.dynamic_slice(w, (1, 0), (2, 1)),
        AFFINE,
    ),
    "chosen by a constant": (lambda w, c: jnp.where(c > 0, w, -w), AFFINE),
    "sums and padding": (lambda w, c: jnp.pad(jnp.cumsum(w.sum(1)), 2) / c, AFFINE),
    "a convolution": (lambda w, c: jnp.convolve(jnp.arange(4.0), w[:, 0]) + c, AFFINE),
    "a relu of the constant": (lambda w, c: jax.nn.relu(c) * w, AFFINE),
    "unused": (lambda w, c: jax.nn.silu(c) + 0.0, CONSTANT),
    "a relu": (lambda w, c: jax.nn.relu(X @ w), OTHER),
    "its square": (lambda w, c: w * w, OTHER),
    "a product inside jit": (lambda w, c: jax.jit(lambda a, b: a.T @ b)(w, w), OTHER),
    "its inverse": (lambda w, c: c / w, OTHER),
    "a choice by it": (lambda w, c: jnp.where(w > 0, w, c), OTHER),
    "a maximum": (lambda w, c: jnp.max(w), OTHER),
    "a slope that is hidden": (lambda w, c: lax.stop_gradient(w), OTHER),
    "a loop": (lambda w, c: lax.fori_loop(0, 3, lambda i, v: v * v, w), OTHER),
    "rounded": (lambda w, c: jnp.round(w), OTHER),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_program_is_affine_in(case):
    function, expected = CASES[case]
    program = jax.make_jaxpr(function)(jnp.ones((3, 1)), jnp.ones(())).jaxpr
    assert dependence(program, [AFFINE, CONSTANT]) == [expected]


def test_each_output_is_told_apart():
    program = jax.make_jaxpr(lambda w, c: (X @ w, c**2, jnp.tanh(w)))(jnp.ones(3), jnp.ones(()))
    assert dependence(program.jaxpr, [AFFINE, CONSTANT]) == [AFFINE, CONSTANT, OTHER]
    assert dependence(program.jaxpr, [CONSTANT, AFFINE]) == [CONSTANT, OTHER, CONSTANT]
    # Two layers: affine in each, and not in both.
    two = jax.make_jaxpr(lambda v, w: X @ v @ w)(np.ones((3, 2)), np.ones((2, 1)))
    assert dependence(two.jaxpr, [AFFINE, CONSTANT]) == [AFFINE]
    assert dependence(two.jaxpr, [AFFINE, AFFINE]) == [OTHER]
