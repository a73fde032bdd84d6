"""Ladders of the study `ladders` keep the density of every rung: known distributions, before and after."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from ladders import check_evidence, errors_of, hierarchical, hierarchy, hmc, sampler

import numpyro_bnn as bnn
from benchmarks.mixing import ladder_variants, ladders
from benchmarks.mixing.ladder_reference import ReferenceRedraw, log_moments, with_reference

# -- a learned reference ----------------------------------------------------------------------------

PRECISIONS = ("net/Dense_0.kernel.precision", "net/Dense_0.bias.precision")
# Far from prior and posterior: what is wrong of the reference is seen.
MOMENTS = dict.fromkeys(PRECISIONS, (1.0, 0.7))


@pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "with weights"])
def test_a_ladder_from_a_reference_has_the_evidence_and_the_posterior_of_the_model(integrated):
    data, evidence, mean, slope = hierarchy()
    model = bnn.integrate_output(hierarchical) if integrated else hierarchical
    again = [] if integrated else [ReferenceRedraw(hierarchical, MOMENTS)]
    tempered = with_reference(model, MOMENTS)
    mcmc = sampler(bnn.ParallelTempering(tempered, hmc(tempered, 4), 5, moves=again))
    mcmc.run(jax.random.key(2), *data)
    check_evidence(mcmc, evidence)
    draws = mcmc.get_samples(group_by_chain=True)
    assert errors_of(np.log(draws[PRECISIONS[0]]), mean) < 4
    assert errors_of(draws["net/Dense_0.kernel"][..., 0, 0], slope) < 4


def density(model, data):
    """The log density of a rung, by the logarithms of two precisions and the power, at weights of zero."""
    potential = bnn.potential_of(model, *data)
    structure = potential.structure
    weights = {n: jnp.zeros(structure.shapes[n]) for n in structure.latent if n not in PRECISIONS}

    @jax.jit
    def at(logs, power):
        prior, likelihood = potential.tempered(weights | dict(zip(PRECISIONS, logs)))
        return -prior - likelihood(power)

    return at


@pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "with weights"])
def test_the_ratio_of_prior_and_reference_is_tempered_with_the_likelihood(integrated):
    """Against the density of the model and of both distributions, at three powers."""
    data = hierarchy()[0]
    model = bnn.integrate_output(hierarchical) if integrated else hierarchical
    logs = jnp.array([0.4, -1.3])
    distribution = dist.Gamma(2.0, 1.0)
    by_distribution = [
        sum(one.log_prob(value) for value in jnp.exp(logs))
        for one in (distribution, dist.LogNormal(*MOMENTS[PRECISIONS[0]]))
    ]
    plain, found = density(model, data), density(with_reference(model, MOMENTS), data)
    for power in (0.0, 0.3, 1.0):
        expected = plain(logs, power) + (1 - power) * (by_distribution[1] - by_distribution[0])
        np.testing.assert_allclose(found(logs, power), expected, rtol=1e-4)
    # The Gamma conditionals and draws of the package are for the prior of the model.
    assert not bnn.potential_of(with_reference(model, MOMENTS), *data).structure.levels


def test_moments_are_those_of_logarithms():
    draws = {"a": np.exp([[1.0, 3.0]]), "b": np.array([[2.0, 2.0]])}
    found = log_moments(draws, ["a", "b"])
    np.testing.assert_allclose(found["a"], (2.0, 1.0))
    np.testing.assert_allclose(found["b"], (np.log(2.0), 0.05))


# -- what they cost ----------------------------------------------------------------------------------


def test_gradients_are_counted():
    def plain():
        numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal()), 1.0), obs=0.0)

    steps = np.full((4, 23), 0.1)
    of_hmc = ladder_variants.Variant(plain, hmc(plain, 64), num_rungs=24)
    assert of_hmc.gradients_a_sweep(steps) == 23 * 64
    mams = ladder_variants.Variant(plain, bnn.MAMS(plain, max_num_steps=64), num_rungs=24)
    rule = mams._rung_kernel.random_length
    keys = jax.random.split(jax.random.key(0), 4000)
    steps = np.tile(np.linspace(0.02, 0.2, 23), (4, 1))
    drawn = jax.vmap(lambda k: jax.vmap(lambda h: rule.draw_num_steps(k, h))(steps[0]))(keys)
    times = np.asarray(mams._rung_kernel.trajectories_per_sweep(steps[0]))
    expected = (np.asarray(drawn).mean(0) * times).sum()
    np.testing.assert_allclose(mams.gradients_a_sweep(steps), expected, rtol=0.05)
    assert set(ladder_variants.NAMES) < set(ladders.LADDERS)
