"""Schedules that are no schedules: refused before the run, or the chain is frozen where they turn."""

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import data

import numpyro_bnn as bnn
from numpyro_bnn import schedules
from numpyro_bnn.samplers.sgmcmc.schedules import as_schedule, from_learning_rate

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
