"""Samplers whose steps begin with a whole kick, beside others that change what they see between two steps.

Half of the kick belongs to the step before. The splitting BAOAB does both halves where they belong, so that
the sampler BAOAB must make the same draws as it does.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer.gibbs import CustomGibbs, Gibbs
from quiet import together

import numpyro_bnn as bnn
from numpyro_bnn import gradients
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import PersistentMomentum, SemiImplicit, Splitting
from numpyro_bnn.samplers.sgmcmc.transitions import half_kick

STEP, FRICTION, SLOPE = 0.3, 1.0, 0.8
SETTINGS = {"step_size": STEP, "friction": FRICTION}


def model():
    """Both coordinates have variance 1, and given the other one 0.36."""
    a = numpyro.sample("a", dist.Normal())
    numpyro.sample("b", dist.Normal(SLOPE * a, 0.6))


def draw_b(rng_key, gibbs_sites, hmc_sites):
    return {"b": SLOPE * hmc_sites["a"] + 0.6 * jax.random.normal(rng_key)}


def draws(kernel, num_samples=60, num_chains=1, num_warmup=0, sites=("a", "b")):
    mcmc = together(kernel, num_warmup, num_samples, num_chains)
    start = {name: jnp.zeros((num_chains,) * (num_chains > 1)) for name in sites}
    mcmc.run(jax.random.key(3), init_params=start)
    return mcmc.get_samples(group_by_chain=True)


def square_of_a(kernel, sites=("a", "b")):
    """E a² and its Monte Carlo error."""
    squares = np.asarray(draws(kernel, 4000, 16, 100, sites)["a"], np.float64) ** 2
    return squares.mean(), squares.std() / np.sqrt(effective_sample_size(squares))


def beside(kernel):
    return Gibbs([(kernel, ["a"]), (CustomGibbs(draw_b), ["b"])])


def palindrome(**options):
    return bnn.SGMCMC(model, dynamics=Splitting("BAOAB"), **SETTINGS, **options)


class Turn:
    """A move that leaves the posterior as it is, and changes the potential's slope at every step."""

    def __call__(self, key, values, bound):
        return {name: -value for name, value in values.items()}


PAIRS = {
    "a block of Gibbs": (beside(bnn.BAOAB(model, **SETTINGS)), beside(palindrome())),
    "moves": (
        bnn.moves.Interleaved(bnn.BAOAB(model, **SETTINGS), [Turn()]),
        bnn.moves.Interleaved(palindrome(), [Turn()]),
    ),
    "fresh momenta": (
        bnn.BAOAB(model, **SETTINGS, resample_momentum=2),
        palindrome(resample_momentum=2),
    ),
    "momenta kept in part": (
        bnn.SGMCMC(
            model, dynamics=Splitting("BAOA"), **SETTINGS, resample_momentum=PersistentMomentum(0.7)
        ),
        palindrome(resample_momentum=PersistentMomentum(0.7)),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_its_draws_are_those_of_the_splitting_with_both_halves(name):
    found, expected = map(draws, PAIRS[name])
    for site in expected:
        np.testing.assert_allclose(found[site], expected[site], rtol=2e-3, atol=2e-4)
    assert np.ptp(expected["a"]) > 0.5


def test_words_say_what_is_pending():
    pending = {word: Splitting(word).pending_kick for word in ("BAOA", "BADODA", "AOAB", "ABOBA")}
    assert pending == {"BAOA": 0.5, "BADODA": 0.5, "AOAB": -0.5, "ABOBA": 0}
    assert Splitting("BAOAB").pending_kick == Splitting("OBABO").pending_kick == 0
    assert SemiImplicit().pending_kick == 0.5


def second_moment(heat):
    """E a² where `a` given `b` has `heat` times its variance, and `b` is drawn exactly."""
    return (SLOPE**2 * 0.36 + 0.36 * heat) / (1 - SLOPE**4)


CURVATURE = 1 / 0.36
EXPECTED = {
    "BAOAB": 1.0,
    "SGHMC": second_moment(1 / (1 - CURVATURE * STEP**2 / (4 - 2 * FRICTION * STEP))),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_block_of_gibbs_has_the_error_that_it_has_alone(name):
    """The half kick of another potential made 1.16 of either."""
    kernel = beside(getattr(bnn, name)(model, **SETTINGS))
    found, error = square_of_a(kernel)
    assert error < 0.025
    assert abs(found - EXPECTED[name]) < 4 * error


def test_fresh_momenta_have_an_error_of_second_order():
    """Momenta drawn afresh at each step, of which the whole kick was taken: 0.57 came out."""
    step, kept = 0.5, np.exp(-0.1)

    def one():
        numpyro.sample("a", dist.Normal())

    kernel = bnn.BAOAB(one, step_size=step, friction=0.2, resample_momentum=1)
    found, error = square_of_a(kernel, ("a",))
    assert error < 0.03
    assert abs(found - 1 / (1 - step**2 * (1 + kept) / 8)) < 4 * error


ROWS = np.random.default_rng(0).normal(0.5, 1.0, 40).astype(np.float32)


def with_rows(y):
    a = numpyro.sample("a", dist.Normal())
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=numpyro.subsample(y, event_dim=0))


MINIBATCHES = {
    "BAOAB": partial(bnn.BAOAB, gradient=gradients.svrg(10, order="replacement")),
    "SGHMC": partial(bnn.SGHMC, batch_size=10, gradient_noise="auto"),
    "SGNHT": partial(bnn.SGNHT, batch_size=10),
}


@pytest.mark.parametrize("name", MINIBATCHES)
def test_kick_and_kick_back_take_the_same_minibatch(name):
    """Where nothing changes between the steps, the draws are those of the kernel by itself."""
    kernel = MINIBATCHES[name](with_rows, step_size=0.02, friction=2.0)

    @jax.jit
    def found(key):
        state = kernel.init(key, 20, None, (ROWS,), {})
        part = kernel.as_part()
        # The first momentum is drawn: of the one before the half kick, of the other after it.
        parts, rows = kernel._ingredients(20), kernel._rows((ROWS,), {})
        at = state.dynamics.position
        gradient = parts.gradient.estimate(rows, at, state.estimator).gradient
        settings = parts.settings(state.count, state.adaptation, state.preconditioner)
        kicked = state._replace(dynamics=half_kick(parts, state.dynamics, gradient, settings, 1))

        def step(pair, _):
            own, other = (k.sample(s, (ROWS,), {}) for k, s in zip((kernel, part), pair))
            return (own, other), (own.z["a"], other.z["a"])

        return jax.lax.scan(step, (state, kicked), length=30)[1]

    own, other = found(jax.random.key(0))
    assert np.ptp(own) > 0.1
    np.testing.assert_allclose(other, own, rtol=1e-3, atol=1e-4)


def test_a_word_that_ends_with_its_kick_is_refused_beside_others():
    kernel = bnn.SGMCMC(model, dynamics=Splitting("AOAB"), **SETTINGS)
    said = r"ends with its kick.*begin the word with the kick, as in Splitting\('BAOA'\)"
    with pytest.raises(ValueError, match=said):
        beside(kernel)
    with pytest.raises(ValueError, match=said):
        bnn.moves.Interleaved(kernel, [Turn()])
    with pytest.raises(ValueError, match=said):
        bnn.SGMCMC(model, dynamics=Splitting("AOAB"), resample_momentum=2, **SETTINGS)
