"""Schedules: their values, what they refuse, and which steps of a cycle make draws.

What is no schedule is refused before the run, or the chain is frozen where it turns.
"""

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import data

import numpyro_bnn as bnn
from numpyro_bnn import schedules
from numpyro_bnn.samplers.sgmcmc.schedules import (
    as_schedule,
    constant,
    cyclical,
    from_learning_rate,
    polynomial,
)


def test_constant_and_numbers_do_not_change():
    for schedule in (constant(0.3), as_schedule(0.3), as_schedule(np.float32(0.3))):
        np.testing.assert_allclose(jax.vmap(schedule)(jnp.arange(3)), 0.3, rtol=1e-6)
    assert as_schedule(0.0, "temperature")(5) == 0.0
    assert as_schedule(3)(0).dtype == jnp.result_type(float)


def test_any_schedule_of_optax_is_one():
    schedule = optax.cosine_decay_schedule(0.1, 100)
    assert as_schedule(schedule) is schedule
    cycle = cyclical(0.1, 10)
    assert as_schedule(cycle) is cycle


def test_polynomial_decays_as_stated():
    schedule = polynomial(a=0.2, b=3.0, gamma=0.55)
    counts = np.array([0, 1, 10, 1000])
    expected = 0.2 * (3.0 + counts) ** -0.55
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(counts), expected, rtol=1e-6)


def test_cyclical_is_a_cosine_that_restarts():
    schedule = cyclical(peak=0.4, cycle_length=8, exploration=0.75)
    counts = np.arange(20)
    expected = 0.2 * (1 + np.cos(np.pi * (counts % 8) / 8))
    np.testing.assert_allclose(jax.vmap(schedule)(counts), expected, rtol=1e-5)
    assert schedule(0) == schedule(8) == np.float32(0.4)
    sampling = np.asarray(jax.vmap(schedule.is_sampling)(counts))
    np.testing.assert_array_equal(sampling, counts % 8 >= 6)
    assert (schedule.num_exploration, schedule.num_kept) == (6, 2)
    temperature = jax.vmap(schedule.temperature(0.5))(counts)
    np.testing.assert_array_equal(temperature, np.where(sampling, 0.5, 0.0))


@pytest.mark.parametrize("exploration", [0.0, 0.1, 0.5, 0.8, 0.89])
def test_as_many_draws_are_kept_as_were_asked_for_and_none_explores(exploration):
    schedule = cyclical(0.1, 10, exploration)
    count, ends = 0, []
    for _ in range(7):  # what a kernel does for 7 draws
        count += int(schedule.num_steps(count))
        ends.append(count - 1)
    assert all(schedule.is_sampling(end) for end in ends)
    # No draw is passed over: they are the first seven sampling steps there are.
    every = [t for t in range(100) if schedule.is_sampling(t)]
    assert ends == every[:7]


def test_learning_rates_become_the_step_sizes_of_the_same_motion():
    rate, rows = 0.1, 50
    epsilon = from_learning_rate(rate, rows, momentum=False)(0)
    h = from_learning_rate(rate, rows, momentum=True)(0)
    # The drift epsilon/2 of the gradient of U = rows * loss is a step of gradient descent.
    np.testing.assert_allclose(epsilon / 2 * rows, rate, rtol=1e-6)
    np.testing.assert_allclose(h**2 * rows, rate, rtol=1e-6)
    np.testing.assert_allclose(epsilon, 2 * h**2, rtol=1e-6)
    decay = from_learning_rate(optax.linear_schedule(0.1, 0.0, 10), rows, momentum=False)
    np.testing.assert_allclose(decay(5), 2 * 0.05 / rows, rtol=1e-6)
    cycle = cyclical(rate, 10, 0.5)
    step = from_learning_rate(cycle, rows, momentum=True)
    np.testing.assert_allclose(step(3), np.sqrt(cycle(3) / rows), rtol=1e-6)
    assert step.num_steps(0) == 6
    assert step.is_sampling(5)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: polynomial(0.1, 1.0, 0.5), "gamma=0.5: .*their squares none"),
        (
            ValueError,
            lambda: polynomial(0.1, 1.0, 1.1),
            "gamma=1.1: beyond 1 steps have a finite sum",
        ),
        (ValueError, lambda: polynomial(0.1, 1.0, float("nan")), "gamma=nan"),
        (ValueError, lambda: polynomial(-0.1, 1.0, 0.6), "a must be positive and finite.* a=-0.1"),
        (ValueError, lambda: polynomial(0.1, 0.0, 0.6), "b must be positive and finite.* b=0.0"),
        (ValueError, lambda: constant(float("nan")), "value=nan"),
        (ValueError, lambda: as_schedule(-1.0, "temperature"), "temperature must be finite"),
        (
            ValueError,
            lambda: as_schedule(lambda t: -1.0),
            "step_size is the schedule .*, whose value",
        ),
        (TypeError, lambda: as_schedule("small"), "got 'small'"),
        (TypeError, lambda: as_schedule(np.ones(3)), "must be a number or a schedule"),
        (TypeError, lambda: as_schedule(lambda t: np.ones(3)), r"has the shape \(3,\)"),
        (ValueError, lambda: cyclical(0.0, 10), "peak=0.0"),
        (ValueError, lambda: cyclical(0.1, 10.0), "cycle_length must be an integer .* got 10.0"),
        (ValueError, lambda: cyclical(0.1, True), "cycle_length must be an integer .* got True"),
        (ValueError, lambda: cyclical(0.1, 1), "cycle_length must be an integer .* got 1"),
        (ValueError, lambda: cyclical(0.1, 10, 1.0), "exploration is a share .*1.0"),
        (ValueError, lambda: cyclical(0.1, 10, 0.99), "no draw is kept"),
        (ValueError, lambda: from_learning_rate(0.1, 0, momentum=True), "data_size=0"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


START = {"weights": jnp.array([0.9, -0.4]), "scale": jnp.array(-0.3)}
WARMUP, TURNS = 2, 3


def turning(good, bad):
    """A schedule that is fine for some steps."""
    return lambda count: jnp.where(count < TURNS, good, bad)


def bowl(z):
    """A target that compiles fast."""
    return 0.5 * (jnp.sum(z["weights"] ** 2) + z["scale"] ** 2)


def run(kernel, num_chains=1, **options):
    settings = {"num_warmup": WARMUP, "num_samples": 6, "progress_bar": False} | options
    mcmc = bnn.MCMC(kernel, num_chains=num_chains, **settings)
    if kernel.model is None:  # one chain, which has no axis
        mcmc.run(jax.random.key(0), init_params=START)
        return mcmc
    starts = jax.tree.map(lambda x: np.stack([x] * num_chains), START)
    mcmc.run(jax.random.key(0), *data(), init_params=starts)
    return mcmc


# A sampler of the catalogue, what turns, and what into.
TURNING = [
    ("SGLD", "step_size", -1e-3),
    ("SGLD", "temperature", -1.0),
    ("SGLD exact", "temperature", np.nan),
    ("PSGLD", "step_size", np.inf),
    ("PSGLD gamma", "step_size", -1e-3),
    ("SGHMC", "step_size", -0.03),
    ("SGNHT", "temperature", -0.5),
    ("BAOAB svrg", "step_size", np.nan),
    ("MALA exact", "step_size", -0.03),
    ("GGMC exact", "step_size", -0.03),
    ("AMAGOLD exact", "temperature", -1.0),
    ("MCLMC", "step_size", -0.03),
    ("MAMS exact", "temperature", np.inf),
    ("WindowedHMC exact", "step_size", -0.2),
    ("RandomWalk exact", "step_size", -0.15),
]
# The two tests below this one turn the temperature and the step size of others.
FAST = {("GGMC exact", "step_size")}


@pytest.mark.parametrize(
    ("name", "what", "bad"),
    [case if case[:2] in FAST else pytest.param(*case, marks=pytest.mark.slow) for case in TURNING],
)
def test_a_schedule_that_turns_ends_the_chain_and_says_where(name, what, bad):
    """Its last sound step is the one before the count at which it turns."""
    good = 1.0
    if what == "step_size":
        given = catalogue.SAMPLERS[name][1]["step_size"]
        good = 0.01 if given == "auto" else given
    kernel = catalogue.make(name, **{what: turning(good, bad)})
    told = what.replace("_", " ")
    number = "nan" if np.isnan(bad) else f"{bad:.4g}"
    message = (
        f"its schedule gave the {told} {number} at step {WARMUP + TURNS}, .*Correct the schedule"
    )
    with pytest.raises(RuntimeError, match=message):
        run(kernel)


def test_an_exploring_cycle_does_not_hide_it():
    """Steps that end in no draw are looked at too: only the second of five is negative."""
    kernel = catalogue.make(
        "SGHMC cyclical", temperature=lambda count: jnp.where(count % 5 == 1, -1.0, 1.0)
    )
    with pytest.raises(RuntimeError, match="gave the temperature -1 at step 2, warm-up included"):
        run(kernel)


def test_a_schedule_of_optax_that_passes_zero():
    kernel = bnn.SGLD(potential_fn=bowl, step_size=optax.linear_schedule(1e-3, -1e-3, 6))
    with pytest.raises(RuntimeError, match=r"gave the step size -0\.0003333 at step 6"):
        run(kernel)


def test_a_step_of_zero_is_none_of_these():
    """Steps that shrink to nothing are common, and the chain stands still."""
    mcmc = run(bnn.SGLD(potential_fn=bowl, step_size=turning(1e-3, 0.0)), thinning=1)
    assert not mcmc.left_out
    draws = np.asarray(mcmc.get_samples()["scale"])
    assert len(np.unique(draws)) == TURNS


def two(count, scale):
    return scale / (1 + count)


def none(count):
    pass


class Schedule:
    def __init__(self, value):
        self.value = value

    def __call__(self, count):
        return self.value


# JAX or Python says what is wrong with these.
UNTRACED = {
    "two arguments": two,
    "no argument": lambda: 0.1,
    "None": none,
    "words": lambda count: "small",
    "branches": lambda count: 0.1 if count < 3 else 0.01,
    "whole numbers": lambda count: [0.1, 0.01][int(count > 3)],
    "NumPy": lambda count: 0.1 * np.exp(-count),
    "an object": Schedule(None),
}
FAULTS = {
    "vector": (lambda count: jnp.full(3, 0.1), r"value has the shape \(3,\), expected a scalar"),
    "list": (lambda count: [0.1, 0.2], r"value has the shape \(2,\)"),
    "negative at once": (lambda count: -0.1, "value at count 0 is -0.1"),
}
KERNELS = {
    "SGLD": lambda **k: bnn.SGLD(catalogue.model, **{"step_size": 0.1, **k}),
    "BAOAB": lambda **k: bnn.BAOAB(catalogue.model, **{"step_size": 0.1, **k}),
    "MAMS": lambda **k: bnn.MAMS(catalogue.model, **{"step_size": 0.1, **k}),
}


@pytest.mark.parametrize("fault", UNTRACED)
def test_what_cannot_be_traced_is_refused_at_once(fault):
    with pytest.raises((TypeError, ValueError)):
        bnn.BAOAB(catalogue.model, step_size=UNTRACED[fault])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("what", ["step_size", "temperature"])
def test_what_is_no_schedule_is_refused_with_its_name(fault, kernel, what):
    schedule, message = FAULTS[fault]
    error = ValueError if "negative" in fault else TypeError
    with pytest.raises(error, match=f"^{kernel}: {what} is the schedule .*{message}"):
        KERNELS[kernel](**{what: schedule})


def test_a_learning_rate_is_looked_at_too():
    with pytest.raises(ValueError, match="None"):
        from_learning_rate(none, 10, momentum=True)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda count: 1,
        lambda count: 0.1 / (1 + count),
        lambda count: np.float64(0.1),
        lambda count, power=1: 0.1 * 0.5 ** (count * power),
        Schedule(0.1),
        optax.warmup_cosine_decay_schedule(0.0, 0.1, 5, 20),
        optax.join_schedules([optax.constant_schedule(0.1), lambda count: 0.1 / (1 + count)], [5]),
        schedules.cyclical(0.1, 10),
    ],
)
def test_good_schedules_are_taken_as_they_are(schedule):
    assert as_schedule(schedule) is schedule
