"""What kernels refuse, with the value in the message; and what they do where a chain explodes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import BATCH, data, model

import numpyro_bnn as bnn
from numpyro_bnn import MCMC, gradients, preconditioners, schedules
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Langevin, Splitting


def potential(z):
    return 0.5 * jnp.sum(z**2)


VALUES = [
    # Targets.
    (lambda: bnn.SGLD(step_size=0.1), "SGLD: expected either a model or potential_fn, got"),
    (lambda: bnn.SGLD(model, potential, step_size=0.1), "SGLD: expected either a model or"),
    # Step sizes and temperatures.
    (lambda: bnn.BAOAB(model, step_size=0.0), "BAOAB: the step size at count 0 is 0.0"),
    (lambda: bnn.BAOAB(model, step_size=-0.1), "BAOAB: step_size must be .* not negative.*-0.1"),
    (lambda: bnn.BAOAB(model, step_size=float("nan")), "step_size must be finite .*nan"),
    (lambda: bnn.BAOAB(model, step_size=float("inf")), "step_size must be finite.*inf"),
    (lambda: bnn.SGLD(model, step_size=0.1, temperature=-1.0), "temperature must be .*-1.0"),
    (
        lambda: bnn.SGHMC(model, step_size=optax.linear_schedule(0.0, 0.1, 10)),
        "SGHMC: the step size at count 0 is 0.0.*Give `friction=`",
    ),
    # Friction, momentum, noise, acceptance.
    (
        lambda: bnn.SGHMC(model, step_size=0.1, friction=-0.1),
        r"SGHMC: friction must be positive.*-0.1",
    ),
    (
        lambda: bnn.SGNHT(model, step_size=0.1, friction=0.0),
        r"SGNHT: friction must be positive.*0.0",
    ),
    (
        lambda: bnn.BAOAB(model, step_size=0.1, friction=-2.0),
        "BAOAB: friction must not be neg.*-2.0",
    ),
    (
        lambda: bnn.SGMCMC(model, dynamics=Langevin(), step_size=0.1, friction=2.0),
        "SGMCMC: friction=2.0, but .*no momentum",
    ),
    (
        lambda: bnn.SGMCMC(model, dynamics=Langevin(), step_size=0.1, resample_momentum=2),
        "SGMCMC: resample_momentum=2, but .*no momentum. Leave resample_momentum out",
    ),
    (
        lambda: bnn.SGHMC(model, step_size=0.5, friction=4.0),
        r"SGHMC: friction \* step_size must be below 2, got 4.0 \* 0.5",
    ),
    (
        lambda: bnn.SGHMC(model, step_size=0.1, resample_momentum=0),
        "resample_momentum must be a positive integer, got 0",
    ),
    (lambda: bnn.SGHMC(model, step_size=0.1, resample_momentum=1.5), "resample_momentum .*got 1.5"),
    (
        lambda: bnn.MALA(model, step_size=0.1, target_accept_prob=1.0),
        "target_accept_prob .*got 1.0",
    ),
    (lambda: bnn.SGLD(model, step_size=0.1, gradient_noise=-1.0), "is a variance .*got -1.0"),
    (
        lambda: bnn.SGLD(model, step_size=0.1, gradient_noise=1.0, accept="full"),
        "gradient_noise=1.0 is taken off .*without Metropolis",
    ),
    (
        lambda: bnn.SGMCMC(model, dynamics=Splitting("OBABO"), step_size=0.1, gradient_noise=2.0),
        "SGMCMC: gradient_noise=2.0 is taken off the noise of BAOAB, SGHMC, SGLD and PSGLD",
    ),
    (
        lambda: bnn.SGMCMC(
            model, dynamics=Splitting("BADODA"), step_size=0.1, gradient_noise="auto"
        ),
        "gradient_noise='auto' is taken off .*SGNHT absorbs noise of unknown size",
    ),
    (
        lambda: bnn.BAOAB(model, step_size=0.1, batch_size=4, gradient_noise="automatic"),
        "gradient_noise must be a variance or \"auto\", got 'automatic'",
    ),
    (
        lambda: bnn.BAOAB(
            model, step_size=0.1, gradient=gradients.minibatch(4), gradient_noise="auto"
        ),
        'independent of each other, and gradient=minibatch.*order="replacement"',
    ),
    # Minibatches.
    (lambda: bnn.SGLD(model, step_size=0.1, batch_size=0), "batch_size must be a positive .*got 0"),
    (lambda: bnn.SGLD(model, step_size=0.1, batch_size=2.0), "batch_size must be .*got 2.0"),
    (lambda: bnn.AMAGOLD(model, step_size=0.1, batch_size=-1), "AMAGOLD: batch_size must .*got -1"),
    (
        lambda: bnn.SGLD(model, step_size=0.1, batch_size=3, gradient=gradients.minibatch(4)),
        "SGLD: batch_size=3, but gradient=.* has batch_size=4",
    ),
    (lambda: bnn.MALA(model, step_size=0.1, batch_size=5), "MALA: it uses all rows.*takes 5"),
    (
        lambda: bnn.MALA(model, step_size=0.1, gradient=gradients.minibatch(5)),
        r"MALA: it uses all rows, but gradient=.*takes 5",
    ),
    (lambda: bnn.RandomWalk(model, step_size=0.1, batch_size=5), "RandomWalk: it uses all rows"),
    (
        lambda: bnn.SGMCMC(
            model,
            dynamics=Langevin(),
            step_size=0.1,
            metropolis=Metropolis(needs_all_rows=True),
            gradient=gradients.minibatch(5),
        ),
        r"SGMCMC: it uses all rows, but gradient=.* takes 5",
    ),
    # Corrections that would not be exact.
    (
        lambda: bnn.GGMC(model, step_size=0.1, gradient=gradients.minibatch(5)),
        "GGMC: gradient=.*permutation.* is not as likely in the opposite order",
    ),
    (
        lambda: bnn.AMAGOLD(model, step_size=0.1, gradient=gradients.control_variate(5)),
        "AMAGOLD: gradient=.* is not as likely in the opposite order",
    ),
    (
        lambda: bnn.SGLD(model, step_size=0.1, accept="full", gradient=gradients.svrg(5, 2)),
        r"SGLD: gradient=.*period=2.* depends on where the chain has been",
    ),
    (lambda: bnn.GGMC(model, step_size=0.1, num_steps=0), "GGMC: num_steps must be .*got 0"),
    (lambda: bnn.AMAGOLD(model, step_size=0.1, num_steps=1.5), "AMAGOLD: num_steps .*got 1.5"),
    (
        lambda: bnn.BAOAB(
            model, step_size=0.1, preconditioner=preconditioners.rmsprop(gamma_term=True)
        ),
        r"BAOAB: .*gamma_term=True.* goes on changing after warm-up",
    ),
]


@pytest.mark.parametrize(("make", "message"), VALUES)
def test_values_that_cannot_be_right_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bnn.SGLD(model, step_size=[0.1]),
            r"step_size must be a number or a schedule.*\[0.1",
        ),
        (lambda: bnn.BAOAB(model, step_size="automatic"), "step_size must be .*'automatic'"),
        (lambda: bnn.SGMCMC(model, dynamics=Langevin()), "step_size"),
        (lambda: bnn.SGLD(model, step_size=0.1, gradient="svrg"), "gradient must .* got 'svrg'"),
        (
            lambda: bnn.PSGLD(model, step_size=0.1, preconditioner="rmsprop"),
            "`bnn.preconditioners`",
        ),
    ],
)
def test_things_of_another_kind_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def mcmc_of(kernel, **more):
    settings = {"num_warmup": 5, "num_samples": 6, "num_chains": 1, "chain_method": "vectorized"}
    return MCMC(kernel, progress_bar=False, **(settings | more))


def starts(num_chains):
    lead = () if num_chains == 1 else (num_chains,)
    return {"weights": jnp.zeros((*lead, 2)), "scale": jnp.zeros(lead)}


def test_a_metric_from_warmup_needs_one():
    kernel = bnn.PSGLD(model, step_size=0.1)
    with pytest.raises(ValueError, match=r"PSGLD: .*estimated in warm-up, but num_warmup=0"):
        mcmc_of(kernel, num_warmup=0).run(jax.random.key(0), *data())


def cliff(z):
    """A unit Gaussian from which everything beyond 50 falls off for ever."""
    return jnp.sum(jnp.where(jnp.abs(z) < 50, 0.5 * z**2, -(jnp.abs(z) ** 4)))


@pytest.mark.parametrize(
    "kernel",
    [
        lambda: bnn.SGLD(potential_fn=cliff, step_size=0.1),
        lambda: bnn.BAOAB(potential_fn=cliff, step_size=0.3),
    ],
)
def test_a_chain_that_explodes_is_left_out_and_the_others_are_what_they_were(kernel):
    start = jnp.array([[0.5], [60.0], [-0.3]])
    mcmc = mcmc_of(kernel(), num_chains=3, num_warmup=20, num_samples=30)
    with pytest.warns(
        UserWarning, match=r"Left out 1 of 3 .*chain 1: exploded at step \d+"
    ) as said:
        mcmc.run(jax.random.key(0), init_params=start, extra_fields=("exploded_at",))
    assert "smaller step size" in str(said[0].message)
    assert list(mcmc.left_out) == [1]
    draws = mcmc.get_samples(group_by_chain=True)
    assert draws.shape == (2, 30, 1)
    last = mcmc.last_state
    exploded_at = np.asarray(last.exploded_at)
    assert exploded_at[0] == exploded_at[2] == -1
    assert 0 <= exploded_at[1] < 20
    assert mcmc.left_out[1] == f"exploded at step {exploded_at[1]}, warm-up included"
    assert np.all(np.isfinite(np.asarray(last.z)))  # frozen where it was last finite
    assert "exploded at" in mcmc.sampler.get_diagnostics_str(jax.tree.map(lambda x: x[1], last))
    draws, start = np.asarray(draws), start.at[1].set(0.6)
    mcmc.run(jax.random.key(0), init_params=start, extra_fields=("exploded_at",))
    assert not mcmc.left_out
    alone = np.asarray(mcmc.get_samples(group_by_chain=True))
    np.testing.assert_array_equal(alone[[0, 2]], draws)


def test_metropolis_rejects_what_would_explode():
    """A proposal that is not a number is refused, and the chain goes on from where it was."""

    def edge(z):
        return jnp.sum(jnp.where(jnp.abs(z) < 3, 0.5 * z**2, jnp.nan))

    mcmc = mcmc_of(bnn.RandomWalk(potential_fn=edge, step_size=5.0), num_samples=200)
    mcmc.run(jax.random.key(0), init_params=jnp.zeros(1))
    draws = np.asarray(mcmc.get_samples())
    assert not mcmc.left_out
    assert np.abs(draws).max() < 3
    assert len(np.unique(draws)) > 5


@pytest.mark.parametrize("corrected", [pytest.param(False, marks=pytest.mark.slow), True])
def test_exploration_draws_are_not_kept_and_the_number_is_what_was_asked(corrected):
    """The kept draws of a cyclical run are the sampling steps of the same run at every step."""
    cycle = schedules.cyclical(0.02, cycle_length=6, exploration=0.5)
    settings = {"batch_size": BATCH, "temperature": cycle.temperature(1.0)}
    settings |= {"accept": "full"} if corrected else {}
    num_cycles, fields = 3, ("count", "step_size", "temperature")
    runs = []
    for step_size, num_samples in ((cycle, 3 * num_cycles), (lambda t: cycle(t), 6 * num_cycles)):
        mcmc = mcmc_of(bnn.SGLD(model, step_size=step_size, **settings), num_samples=num_samples)
        mcmc.run(jax.random.key(0), *data(), init_params=starts(1), extra_fields=fields)
        runs.append((mcmc.get_samples()["weights"], mcmc.get_extra_fields()))
    (kept, marked), (everything, plain) = runs
    assert kept.shape == (3 * num_cycles, 2)
    sampling = np.concatenate([6 * c + np.arange(3, 6) for c in range(num_cycles)])
    np.testing.assert_array_equal(marked["count"], sampling + 1)
    np.testing.assert_allclose(kept, everything[sampling], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(marked["step_size"], plain["step_size"][sampling], rtol=1e-5)
    np.testing.assert_array_equal(marked["temperature"], 1.0)
    assert set(np.asarray(plain["temperature"])) == {0.0, 1.0}


def test_a_cycle_of_the_temperature_alone_is_one_too():
    cycle = schedules.cyclical(1.0, cycle_length=4, exploration=0.5)
    mcmc = mcmc_of(bnn.SGLD(potential_fn=potential, step_size=1e-3, temperature=cycle))
    mcmc.run(jax.random.key(0), init_params=jnp.zeros(2), extra_fields=("count",))
    np.testing.assert_array_equal(mcmc.get_extra_fields()["count"], [3, 4, 7, 8, 11, 12])
