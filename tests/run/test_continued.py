"""Runs that continue from a state: with other data, with the same ones, from another number of chains."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS, BarkerMH
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn import gradients
from numpyro_bnn.samplers.gibbs.moves import Interleaved

ROWS, PRIOR_SD = 40, 10.0
FIRST = np.random.default_rng(0).normal(size=ROWS)
SECOND = FIRST + 5.0
# Steps so long that every proposal is rejected: chains stay at the position of the given state.
LONG = 50.0


def model(y):
    """A normal mean with a normal prior."""
    mean = numpyro.sample("m", dist.Normal(0.0, PRIOR_SD))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=numpyro.subsample(y, event_dim=0))


def energy(m, y):
    """-log p(m, y) in closed form."""
    logs = dist.Normal(0.0, PRIOR_SD).log_prob(m), dist.Normal(m, 1.0).log_prob(y).sum()
    return -float(sum(logs))


def slope(m, y):
    """dU/dm in closed form."""
    return m / PRIOR_SD**2 + np.sum(m - y)


def starts(mcmc):
    """Looking for them compiles for longer than the steps."""
    return {"m": np.zeros(mcmc.num_chains)}


def continued(kernel, *, then=SECOND, by_hand=False, num_warmup=3, num_samples=4, **options):
    """An MCMC that sampled `then` from a state that the first data gave."""
    mcmc = quiet(kernel, num_warmup, num_samples, **options)
    if by_hand:
        mcmc.run(jax.random.key(0), FIRST, init_params=starts(mcmc))
        mcmc.post_warmup_state = mcmc.last_state
    else:
        mcmc.warmup(jax.random.key(0), FIRST, init_params=starts(mcmc))
    mcmc.run(jax.random.key(1), then, extra_fields=("potential_energy",))
    return mcmc


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_anchor_gets_the_gradient_of_the_new_data(by_hand):
    kernel = bnn.BAOAB(model, step_size=0.01, gradient=gradients.control_variate(10))
    mcmc = continued(kernel, by_hand=by_hand)
    known = mcmc.last_state.estimator
    anchor = float(np.ravel(jax.tree.leaves(known.anchor)[0])[0])
    gradient = float(np.ravel(jax.tree.leaves(known.gradient)[0])[0])
    np.testing.assert_allclose(gradient, slope(anchor, SECOND), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.* suspect and kept")
@pytest.mark.parametrize(
    "kernel",
    [
        bnn.RandomWalk(model, step_size=LONG),
        bnn.MALA(model, step_size=LONG),
        bnn.GGMC(model, step_size=LONG),
        bnn.AMAGOLD(model, step_size=LONG, batch_size=10),
        HMC(model, step_size=LONG, num_steps=3, trajectory_length=None, adapt_step_size=False),
        bnn.WindowedHMC(model, step_size=LONG, num_steps=8, window=2),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_a_chain_that_stays_where_it_is_has_the_energy_of_the_new_data(kernel):
    mcmc = continued(kernel, num_chains=2)
    found = mcmc.get_extra_fields(group_by_chain=True)["potential_energy"][:, -1]
    places = mcmc.get_samples(group_by_chain=True)["m"][:, -1]
    expected = [energy(m, SECOND) for m in places]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_a_run_on_the_same_data_keeps_its_draws_bit_for_bit(shift):
    # Copies: what counts are the values. Minibatches would be others if anything were computed again.
    kernel = bnn.BAOAB(model, step_size=0.05, gradient=gradients.control_variate(10))
    whole = bnn.MCMC(kernel, num_warmup=3, num_samples=4, progress_bar=False)
    whole.run(jax.random.key(0), FIRST, init_params=starts(whole))
    parts = bnn.MCMC(kernel, num_warmup=3, num_samples=4, progress_bar=False)
    parts.warmup(jax.random.key(0), FIRST, init_params=starts(parts))
    parts.run(parts.post_warmup_state.rng_key, FIRST.copy() + shift)
    assert np.array_equal(parts.get_samples()["m"], whole.get_samples()["m"]) == (shift == 0.0)


def test_data_that_changed_in_place_are_other_data():
    data = FIRST.copy()
    kernel = bnn.RandomWalk(model, step_size=LONG)
    mcmc = bnn.MCMC(kernel, num_warmup=3, num_samples=4, progress_bar=False)
    mcmc.warmup(jax.random.key(0), data, init_params=starts(mcmc))
    data += 5.0
    mcmc.run(jax.random.key(1), data, extra_fields=("potential_energy",))
    found = mcmc.get_extra_fields()["potential_energy"][-1]
    np.testing.assert_allclose(found, energy(mcmc.get_samples()["m"][-1], SECOND), rtol=1e-4)


def test_kernels_that_cannot_recompute_their_state_refuse_other_data():
    with pytest.raises(ValueError, match=r"BarkerMH cannot continue .* other data.*`run` alone"):
        continued(BarkerMH(model, step_size=0.1))
    same = continued(BarkerMH(model, step_size=0.1), then=FIRST)
    # A copy is a state of unknown data.
    same.post_warmup_state = jax.tree.map(lambda leaf: leaf.copy(), same.last_state)
    with pytest.warns(UserWarning, match="not known for which data this state of BarkerMH"):
        same.run(jax.random.key(2), FIRST)


def test_a_state_without_a_finite_energy_on_the_new_data_is_refused():
    kernel = bnn.MALA(model, step_size=0.01)
    broken = np.where(np.arange(ROWS) == 3, np.nan, SECOND)
    with pytest.raises(ValueError, match="potential energy is not finite"):
        continued(kernel, then=broken)


@pytest.mark.parametrize("chain_method", ["sequential", "vectorized"])
@pytest.mark.parametrize(("before", "now"), [(2, 4), (4, 2), (1, 2), (2, 1)])
def test_states_of_another_number_of_chains_are_refused(chain_method, before, now):
    def run(num_chains):
        kernel = bnn.BAOAB(model, step_size=0.02)
        return quiet(kernel, 2, 2, num_chains, chain_method=chain_method)

    first, second = run(before), run(now)
    first.warmup(jax.random.key(0), FIRST, init_params=starts(first))
    second.post_warmup_state = first.post_warmup_state
    with pytest.raises(ValueError, match=f"of {before} chain.* num_chains={now}"):
        second.run(jax.random.key(1), FIRST)


@pytest.mark.parametrize(
    "kernel",
    [NUTS(model), bnn.ParallelTempering(model, num_rungs=3), Interleaved(NUTS(model), [])],
    ids=lambda kernel: type(kernel).__name__,
)
def test_a_run_with_other_data_has_their_posterior(kernel):
    mcmc = continued(kernel, num_warmup=50, num_samples=300)
    assert abs(np.mean(mcmc.get_samples()["m"][100:]) - SECOND.mean()) < 0.2


ADAPTING = {
    "HMC": (lambda: HMC(model), lambda state: state.adapt_state.step_size),
    "MALA": (lambda: bnn.MALA(model, step_size="auto"), lambda state: state.adaptation.step_size),
    "tempering": (
        lambda: bnn.ParallelTempering(model, num_rungs=3),
        lambda state: state.adaptation.step_size,
    ),
    "interleaved": (lambda: Interleaved(HMC(model), []), lambda state: state.adapt_state.step_size),
}


@pytest.mark.parametrize("name", ADAPTING)
def test_a_longer_warmup_does_not_adapt_what_continues(name):
    make, step_size = ADAPTING[name]
    short = bnn.MCMC(make(), num_warmup=20, num_samples=2, progress_bar=False)
    short.run(jax.random.key(0), FIRST, init_params=starts(short))
    then = bnn.MCMC(make(), num_warmup=400, num_samples=30, progress_bar=False)
    then.post_warmup_state = short.last_state
    then.run(jax.random.key(1), FIRST)
    assert np.array_equal(step_size(then.last_state), step_size(short.last_state))
