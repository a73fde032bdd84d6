"""A sampler that the package does not have is put together from outside, from the same ingredients."""

import ast
import inspect
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from catalogue import BATCH, SAMPLERS, data, make
from linear_gaussian import within_errors
from quiet import quiet, together
from separate_programs import separate_programs

import numpyro_bnn as bnn
from numpyro_bnn import BAOAB, MALA, MCLMC, gradients, preconditioners
from numpyro_bnn.potential.flat_position import FlatPosition
from numpyro_bnn.samplers.gibbs.moves import Interleaved
from numpyro_bnn.samplers.sgmcmc import kernel as kernels
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import drift, kick
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics, PersistentMomentum, Splitting
from numpyro_bnn.samplers.sgmcmc.tuning import AcceptanceTuning, CurvatureTuning


# Twenty lines from here: HMC whose momenta persist (Horowitz 1991), with a metric from warm-up.
class PersistentHMC(bnn.SGMCMC):
    """Leapfrog trajectories of a fixed number of steps; part of each momentum is kept."""

    def __init__(self, model=None, potential_fn=None, *, num_steps=5, persistence=0.5):
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("BAB", metropolis=True),
            step_size="auto",
            preconditioner=preconditioners.from_warmup(),
            friction=0.0,
            metropolis=Metropolis(num_steps, needs_all_rows=True),
            resample_momentum=PersistentMomentum(persistence),
            tuning=AcceptanceTuning(0.9),
        )


SCALES = jnp.array([0.5, 2.0, 7.0])


def energy(z):
    return 0.5 * jnp.sum(((z - 1.0) / SCALES) ** 2)


def run(kernel, num_warmup=600, num_samples=2000, num_chains=8):
    mcmc = together(kernel, num_warmup, num_samples, num_chains)
    mcmc.run(jax.random.key(1), init_params=jnp.ones((num_chains, 3)))
    return mcmc


def test_a_sampler_from_outside_has_the_distribution_of_its_target():
    mcmc = run(PersistentHMC(potential_fn=energy))
    z = np.asarray(mcmc.get_samples(group_by_chain=True), np.float64)
    assert 0.8 < float(np.mean(mcmc.get_extra_fields()["accept_prob"])) < 0.97
    for value, expected in ((z, 1.0), ((z - 1.0) ** 2, np.square(SCALES))):
        within_errors(value.mean(1), expected)


class Damped(Dynamics):
    """A method of one's own: kick, drift, and a momentum that is drawn afresh at every step."""

    def complete(self, state, gradient, noises, settings):
        momentum = jax.tree.map(lambda xi: jnp.sqrt(settings.temperature) * xi, noises[0])
        momentum = kick(momentum, gradient, 0.5 * settings.step_size)
        position = drift(state.position, momentum, settings.step_size, settings)
        return state._replace(position=position, momentum=momentum)


def test_dynamics_from_outside_run_without_any_of_ours():
    # One leapfrog step from a fresh momentum is SGLD at epsilon = h²: covariance (H - h²/4 H²)⁻¹.
    kernel = bnn.SGMCMC(potential_fn=energy, dynamics=Damped(), step_size=0.6)
    z = np.asarray(run(kernel, 50, num_chains=32).get_samples(group_by_chain=True), np.float64)
    expected = np.square(SCALES) / (1 - 0.09 / np.square(SCALES))
    within_errors(((z - 1.0) ** 2).mean(1), expected)


class Averaging(bnn.BAOAB):
    """A kernel that keeps a value of its data from `init`, which is one of the trace it is called in."""

    def init(self, rng_key, num_warmup, init_params=None, model_args=(), model_kwargs=None):
        self.mean = jnp.mean(model_args[0])
        return super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)

    def sample(self, state, model_args, model_kwargs):
        return super().sample(state, model_args, model_kwargs)._replace(energy_error=self.mean)


def test_what_a_kernel_from_outside_learns_in_init_it_learns_in_every_program():
    def model(x):
        numpyro.sample("y", dist.Normal(numpyro.sample("slope", dist.Normal()) * x), obs=x)

    kernel = Averaging(model, step_size=0.01)
    run = bnn.MCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False)
    run.run(jax.random.key(0), jnp.arange(6.0), extra_fields=("energy_error",))
    np.testing.assert_allclose(run.get_extra_fields()["energy_error"], 2.5)


class Halving:
    """A tuning of one's own: the first guess of the curvature, halved once warm-up is over."""

    def begin(self, context, start):
        return CurvatureTuning().begin(context, start)._replace(direction=None)

    def at_gradient(self, context, tuned, product, inverse_mass_matrix, warming):
        return tuned

    def after_step(self, context, before, after):
        over = before.i + 1 == before.num_warmup
        tuned = after.adaptation
        step_size = jnp.where(over, tuned.step_size / 2, tuned.step_size)
        return after._replace(adaptation=tuned._replace(step_size=step_size))


def test_a_tuning_from_outside_sets_the_step():
    def steps(tuning):
        kernel = bnn.SGMCMC(
            potential_fn=energy, dynamics=Splitting("BAOA"), step_size="auto", tuning=tuning
        )
        return run(kernel, 10, 3, 2).get_extra_fields()["step_size"]

    found = steps(Halving())
    np.testing.assert_allclose(found, 0.25 * 2 * 0.5 / 2, rtol=1e-3)


NAMED = sorted({kernel for kernel, _ in SAMPLERS.values()}, key=lambda kernel: kernel.__name__)


@pytest.mark.parametrize("kernel", NAMED, ids=lambda kernel: kernel.__name__)
def test_a_named_sampler_is_ingredients_and_a_docstring(kernel):
    assert kernel.__mro__[1] is bnn.SGMCMC
    members = {name for name, value in vars(kernel).items() if callable(value)}
    assert members == {"__init__"}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kernel.__init__))).body
    lines = definition.body[-1].end_lineno - definition.body[0].lineno + 1
    assert lines <= 25, f"the body of {kernel.__name__} has {lines} lines"
    stored = [
        node
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    assert not stored, f"{kernel.__name__} sets attributes after construction"


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
        sampler(tmp_path).resume(*data(), accept=["program"])


@pytest.mark.skipif(jax.__version_info__ < (0, 11, 2), reason="XLA fused across barriers on CPUs")
@pytest.mark.parametrize("kind", [MCLMC, BAOAB, MALA])
def test_the_compiled_step_computes_the_energy_once(kind):
    # Left to itself, XLA repeats the arithmetic of a prior in each of the many small loops after it.
    def energy(z):
        return jnp.sum(z["weights"] ** 2) + z["scale"] ** 2 + jnp.ceil(z["scale"])

    kernel = kind(potential_fn=energy, step_size="auto")
    state = jax.eval_shape(lambda key: kernel.init(key, 4, START), jax.random.key(0))
    step = jax.jit(lambda state: kernel.sample(state, (), None))
    assert step.lower(state).compile().as_text().count(" ceil(") == 1
