"""Schedules: their values, what they refuse, and which steps of a cycle make draws."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

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
        (ValueError, lambda: cyclical(0.1, 10, 1.0), "exploration=1.0"),
        (ValueError, lambda: cyclical(0.1, 10, 0.99), "no draw is kept"),
        (ValueError, lambda: from_learning_rate(0.1, 0, momentum=True), "data_size=0"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
