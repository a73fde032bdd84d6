"""One kernel for all ingredients: dynamics, gradients, metric, step size, temperature, tuning.

:class:`SGMCMC` drives any method of :mod:`~numpyro_bnn.samplers.sgmcmc.dynamics.methods` over a
NumPyro model. It holds the ingredients and implements NumPyro's interface; one step with them is in
 :mod:`~numpyro_bnn.samplers.sgmcmc.transitions`. The named samplers (``named.py``) only
choose ingredients.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Required, TypedDict

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer.gibbs import GIBBS_SITES_KWARG
from numpyro.infer.gibbs import conditioned as conditioned_on_others
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import identity, is_prng_key

from numpyro_bnn._calls import show_options, with_descriptions
from numpyro_bnn._checks import check_share, check_whole
from numpyro_bnn._text import call_of
from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.flat_position import flattened, normals_like
from numpyro_bnn.potential.potential import Potential, constrained_by_support
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.potential.sites import Structure, own_batch_size
from numpyro_bnn.potential.starts import gentle_start
from numpyro_bnn.samplers.sgmcmc import checks, gradients, preconditioners, transitions
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.checks import GradientNoise
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics, FreshMomentum, MomentumRefresh
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator, anchored_in_warmup, begin_noise
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.schedules import Schedule, as_schedule, steps_per_draw
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState, freeze, initial_state, record
from numpyro_bnn.samplers.sgmcmc.tuning import (
    AcceptanceTuning,
    ChainStart,
    CurvatureTuning,
    Ingredients,
    Tuning,
)

Model = Callable | None
StepSize = float | Schedule | Literal["auto"]


# Ingredients that the text of a kernel shows.
_SHOWN = ["dynamics", "step_size", "temperature", "gradient", "preconditioner", "friction"]
_SHOWN += ["metropolis", "resample_momentum", "tuning"]


class Options(TypedDict, total=False):
    """Ingredients that every named sampler takes; :class:`SGMCMC` describes them."""

    batch_size: int | None
    temperature: float | Schedule
    gradient: Estimator | None
    preconditioner: Preconditioner | None
    plate: str | None


class StepOptions(Options, total=False):
    """Those of samplers whose step size has no default."""

    step_size: Required[StepSize]


class NoisyStepOptions(StepOptions, total=False):
    """Those that also take known noise of minibatches off the noise that they add."""

    gradient_noise: GradientNoise


class MomentumOptions(Options, total=False):
    """Those of samplers with momenta that may take minibatches."""

    friction: float | None
    resample_momentum: int | MomentumRefresh | None


class LangevinOptions(MomentumOptions, StepOptions, total=False):
    """Those of samplers with momenta whose step size has no default."""


class NoisyLangevinOptions(MomentumOptions, NoisyStepOptions, total=False):
    """Those that also take known noise of minibatches off the noise that they add."""


class SGMCMC(Ingredients, MCMCKernel):
    r"""A stochastic-gradient sampler, composed of ingredients.

    The target density is proportional to exp(-U/T). Use a named sampler
    (:class:`~numpyro_bnn.samplers.sgmcmc.named.BAOAB`, …) unless you bring your own
    dynamics.

    :param model: a NumPyro model; minibatches need a plate around its observed sites.
    :param potential_fn: a potential energy instead, function of the position.
    :param dynamics: the method.
    :param step_size: a number, which is never adapted; a schedule of the step count from the
        end of warm-up; or ``"auto"``: first from the curvature at the start, and in warm-up from the
        acceptance (`target_accept_prob`) for Metropolis methods, or from the curvature along the chain for
        all others, at one Hessian-vector product a step.
    :param batch_size: rows in a minibatch; where None, as many as the plate of the model subsamples
        (``subsample_size=``), or all rows.
    :param temperature: a number (1: the posterior) or a schedule.
    :param gradient: an estimator of :mod:`~numpyro_bnn.samplers.sgmcmc.gradients`; by default a
        minibatch of `batch_size` rows, or all rows.
    :param preconditioner: see :mod:`~numpyro_bnn.samplers.sgmcmc.preconditioners`; default identity.
    :param friction: per unit time; where None it is tuned, or 0.1 / step_size.
    :param gradient_noise: known variance of the gradient, subtracted from the variance of the noise that is
        added; or ``"auto"``: estimated in warm-up from pairs of independent minibatches, at one gradient more
        a step (:mod:`~numpyro_bnn.samplers.sgmcmc.gradients`). With ``step_size="auto"`` the step is
        then also so small that kicks add no more than 8 % of the energy of a momentum. What is taken off
        is that of each weight by itself: noise that many weights share stays. Means over weights do not show
        it; ``gradient_temperature`` does, and a report complains of it. Give
        ``gradient=gradients.svrg(batch_size, order="replacement")`` there: predictions of a network of 256
        units then vary as they should, and a third too much without
        (``benchmarks/mixing/networks_beside_full_batch.py``).
    :param metropolis: an accept-reject rule, or None.
    :param resample_momentum: calls of `sample` between fresh momenta, or another rule of
        :mod:`~numpyro_bnn.samplers.sgmcmc.dynamics.methods`; never where None. Costs: :meth:`as_part`.
    :param target_accept_prob: acceptance that Metropolis methods aim at with ``step_size="auto"``.
    :param tuning: tuning of step size and friction in warm-up, see
        :mod:`~numpyro_bnn.samplers.sgmcmc.tuning`; by default the step size, from the acceptance where there
        is a rule and from the curvature elsewhere.
    :param plate: the data plate, where the model has several.
    :raises ValueError: for values out of range and ingredients that do not fit each other.
    """

    sample_field = "z"
    # Data may stay on the host (see `run/kernel_protocol.py`).
    takes_host_rows = True
    # Without this attribute NumPyro initialises a kernel again in every run.
    _sample_fn = True

    def __init__(
        self,
        model: Callable | None = None,
        potential_fn: Callable | None = None,
        *,
        dynamics: Dynamics,
        step_size: StepSize,
        batch_size: int | None = None,
        temperature: float | Schedule = 1.0,
        gradient: Estimator | None = None,
        preconditioner: Preconditioner | None = None,
        friction: float | None = None,
        gradient_noise: GradientNoise = 0.0,
        metropolis: Metropolis | None = None,
        resample_momentum: int | MomentumRefresh | None = None,
        target_accept_prob: float = 0.65,
        tuning: Tuning | None = None,
        plate: str | None = None,
    ) -> None:
        name = type(self).__name__
        self._chooses_rows = gradient is not None or batch_size is not None
        if gradient is None and batch_size is not None:
            order = _order_for(gradient_noise, dynamics, metropolis)
            gradient = gradients.minibatch(check_whole(name, "batch_size", batch_size), order)
        gradient = gradients.full() if gradient is None else gradient
        preconditioner = preconditioners.identity() if preconditioner is None else preconditioner
        checks.check_part(name, "gradient", gradient, Estimator)
        checks.check_part(name, "preconditioner", preconditioner, Preconditioner)
        checks.check_target(name, model, potential_fn, batch_size, gradient)
        checks.check_friction(name, friction, dynamics)
        check_share(name, "target_accept_prob", target_accept_prob)
        checks.check_gradient_noise(name, gradient_noise, dynamics, metropolis, gradient)
        checks.check_fit(name, dynamics, gradient, preconditioner, metropolis)
        self._model = model
        self._potential_fn = potential_fn
        self.dynamics = dynamics
        self.gradient = self._all_rows = gradient
        self.preconditioner = preconditioner
        self.tunes_step_size = isinstance(step_size, str) and step_size == "auto"
        # With "auto" the step size comes from the curvature, and this schedule is not used.
        value: Any = 1.0 if self.tunes_step_size else step_size
        self.step_size = as_schedule(value, "step_size", name)
        self.temperature = as_schedule(temperature, "temperature", name)
        self.friction = friction
        if dynamics.has_momentum and friction is None and not self.tunes_step_size:
            reason = "the friction is 0.1 / step_size where none is given. Give `friction=`."
            checks.check_first(name, "step size", self.step_size, reason)
        self.gradient_noise = gradient_noise
        self.metropolis = metropolis
        checks.check_momentum(name, dynamics, resample_momentum=resample_momentum)
        if resample_momentum is not None and not callable(resample_momentum):
            every = check_whole(name, "resample_momentum", resample_momentum)
            resample_momentum = FreshMomentum(every)
        if resample_momentum is not None:
            checks.check_changed(name, dynamics)
        self.resample_momentum = resample_momentum
        self.target_accept_prob = target_accept_prob
        if tuning is None and metropolis is None:
            tuning = CurvatureTuning()
        self.tuning = AcceptanceTuning(target_accept_prob) if tuning is None else tuning
        self._plate = plate
        self.is_part = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show and describe the ingredients that a named sampler passes on by ``**options``."""
        super().__init_subclass__(**kwargs)
        options = vars(cls).get("__init__", cls).__annotations__.get("options")
        if options is not None:
            show_options(cls.__init__, SGMCMC, options.__args__[0].__annotations__)
            cls.__doc__ = with_descriptions(cls, SGMCMC)

    def __repr__(self) -> str:
        over = self._potential_fn if self._model is None else self._model
        noise = "auto" if isinstance(self.gradient_noise, str) else None
        settings: dict[str, Any] = {name: getattr(self, name) for name in _SHOWN}
        settings |= {"gradient_noise": noise, "plate": self._plate}
        settings |= {"step_size": "auto"} if self.tunes_step_size else {}
        given = {name: value for name, value in settings.items() if value is not None}
        return call_of(type(self).__name__, given, (over,))

    @property
    def model(self) -> Callable | None:
        """The model; None for a kernel over `potential_fn`."""
        return self._model

    @property
    def num_steps(self) -> int:
        """Steps of the dynamics in one call of `sample`, outside a cycle."""
        return 1 if self.metropolis is None else self.metropolis.num_steps

    @property
    def has_exact_energy(self) -> bool:
        """Whether ``potential_energy`` of a state is exact and at its own position, not at the one before."""
        if self.metropolis is not None:
            return self.metropolis.exact
        # A step that ends with a kick has taken its gradient at its end.
        return self.dynamics.reuses_gradient and self.gradient.batch_size is None

    @property
    def ignores_row_count(self) -> bool:
        """Whether rows of weight 0 would change nothing: no minibatches, and no metric by mean gradients."""
        fills_in = getattr(self.preconditioner, "data_size", 0) is None
        return not (self.gradient.needs_rows or fills_in)

    def is_zero_temperature(self, num_steps: int) -> bool:
        """Whether the temperature is 0 in all of `num_steps` steps, so that the kernel only optimises."""
        # The first step decides for most kernels, without compiling a program.
        if self.temperature(0) > 0:
            return False
        return not bool(jnp.any(jax.vmap(self.temperature)(jnp.arange(num_steps))))

    @property
    def default_fields(self) -> tuple[str, ...]:
        """State fields that are collected of each draw."""
        fields = ["z", "potential_energy", "step_size", "temperature"]
        if self.dynamics.uses_gradient:
            fields += ["configurational_temperature", "configurational_temperatures"]
        if self.dynamics.has_momentum:
            fields += ["kinetic_temperature", "kinetic_temperatures"]
        if self.metropolis is not None:
            fields.append("accept_prob")
            fields += [] if self.metropolis.trajectory_length is None else ["num_steps"]
        elif self.dynamics.tracks_work and self.gradient.batch_size is None:
            fields.append("energy_error")
        if self.dynamics.has_momentum and self.metropolis is None and self.gradient.batch_size:
            fields.append("gradient_temperature")
        return tuple(fields)

    def get_diagnostics_str(self, state: SGMCMCState) -> str:
        """Step size, energy and acceptance in words, for the progress bar."""
        text = f"step {float(state.step_size):.2e}, energy {float(state.potential_energy):.4g}"
        if self.metropolis is not None:
            text += f", acc. prob={float(state.mean_accept_prob):.2f}"
        if int(state.exploded_at) >= 0:
            text += f", exploded at {int(state.exploded_at)}"
        return text

    def take_batch_size(self, structure: Structure) -> None:
        """Take minibatches of the size that the model subsamples, where no other was given."""
        if self._chooses_rows:
            return
        name = type(self).__name__
        size = own_batch_size(name, structure, self._plate)
        gradient = self._all_rows
        if size is not None:
            order = _order_for(self.gradient_noise, self.dynamics, self.metropolis)
            gradient = gradients.minibatch(size, order)
            name = f"{name}, whose model subsamples {size} rows (`subsample_size=`)"
            checks.check_fit(name, self.dynamics, gradient, self.preconditioner, self.metropolis)
        self.gradient = gradient

    def _rows(self, args: tuple, kwargs: dict | None) -> Rows:
        if self._model is None:
            return Rows(self._potential_fn)
        return rows_of(self._model, args, kwargs, self.gradient.needs_rows, self._plate)

    def check_num_warmup(self, num_warmup: int) -> None:
        """Refuse a warm-up that is too short for what is estimated in it."""
        name = type(self).__name__
        if self.preconditioner.needs_warmup and not num_warmup:
            raise ValueError(
                f"{name}: {self.preconditioner} is estimated in warm-up, but num_warmup=0. Give it some "
                "steps."
            )
        if self.estimates_noise:
            checks.check_noise_in_warmup(name, self.gradient, num_warmup)

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int | jax.Array,
        init_params: PyTree = None,
        model_args: tuple = (),
        model_kwargs: dict | None = None,
    ) -> SGMCMCState:
        """The first state of a chain, or of all chains for an array of keys.

        :raises ValueError: for ingredients that do not fit each other, the model or the length of warm-up.
        """
        if not is_prng_key(rng_key):
            init = partial(self.init, model_args=model_args, model_kwargs=model_kwargs)
            return jax.vmap(lambda key, z: init(key, num_warmup, z))(rng_key, init_params)
        if not isinstance(num_warmup, jax.core.Tracer):
            self.check_num_warmup(int(num_warmup))
        rows = self._rows(model_args, model_kwargs)
        checks.refuse_integrals(self, rows)
        key_start, key_noise, key_batches, rng_key = jax.random.split(rng_key, 4)
        z = flattened(start_of(type(self).__name__, rows, key_start, init_params, model_kwargs))
        estimator = self.gradient.init(rows, z, key_batches)
        metric_state = self.preconditioner.init(z)
        preconditioner = transitions.conditioned(self.preconditioner, metric_state, rows)
        parts = self._ingredients(num_warmup)
        metric = self.preconditioner.inverse_mass_matrix(preconditioner)
        step_size = None if self.tunes_step_size else self.step_size(0)
        direction, noise = normals_like(key_noise, 2, z)
        start = ChainStart(rows, z, metric, direction, step_size, self.dynamics)
        adaptation = self.tuning.begin(parts, start)
        if parts.estimates_noise:
            adaptation = adaptation._replace(noise=begin_noise(z))
        settings = parts.settings(jnp.zeros((), jnp.int32), adaptation, preconditioner)
        value, gradient, estimator = parts.evaluate(rows, z, estimator)
        dynamics = self.dynamics.init(z, noise, settings, gradient)
        if self.metropolis is not None and self.metropolis.caches_gradient:
            dynamics = dynamics._replace(gradient=gradient)
        state = initial_state(num_warmup, dynamics, estimator, preconditioner, adaptation, rng_key)
        return record(state, dynamics, value, gradient, z, settings)

    def _ingredients(self, num_warmup: int | jax.Array) -> Ingredients:
        kernel = copy.copy(self)
        kernel.gradient = anchored_in_warmup(self.gradient, self.gradient_noise, num_warmup)
        return kernel

    def sample(
        self, state: SGMCMCState, model_args: tuple, model_kwargs: dict | None
    ) -> SGMCMCState:
        """Take a step, a trajectory, or all steps to the next draw that a cycle keeps."""
        if state.i.ndim:
            return jax.vmap(lambda s: self.sample(s, model_args, model_kwargs))(state)
        rows = self._rows(model_args, model_kwargs)
        parts = self._ingredients(state.num_warmup)

        move = transitions.unadjusted_step if self.metropolis is None else transitions.adjusted_step

        def step(before: SGMCMCState) -> SGMCMCState:
            return freeze(before, move(parts, rows, before))

        start = transitions.refresh_momentum(parts, state)
        if (steps := steps_per_draw(self.step_size, self.temperature)) is None:
            return step(start)._replace(i=state.i + 1)
        count = jnp.where(state.i < state.num_warmup, 1, steps(state.count))
        return lax.fori_loop(0, count, lambda _, s: step(s), start)._replace(i=state.i + 1)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """The function that turns a position into values of all sites; the identity without a model."""
        if self._model is None:
            return identity
        potential = Potential(self._model, model_args, model_kwargs)
        return partial(potential.constrain, deterministic=True)

    def refresh(
        self, state: SGMCMCState, model_args: tuple, model_kwargs: dict | None
    ) -> SGMCMCState:
        """Recompute cached energy and gradient, after Gibbs changed the values of other blocks."""
        rows = self._rows(model_args, model_kwargs)
        estimator = self.gradient.refresh(rows, state.estimator)
        learned, momentum = transitions.reconditioned(
            self.preconditioner, state.preconditioner, rows, state.dynamics.momentum
        )
        dynamics = state.dynamics._replace(momentum=momentum)
        state = state._replace(estimator=estimator, preconditioner=learned, dynamics=dynamics)
        cached = state.dynamics.gradient is not None
        parts = self._ingredients(state.num_warmup)
        if not cached and not parts.judges_all_rows:
            return state
        energy, gradient, estimator = parts.evaluate(rows, state.dynamics.position, estimator)
        dynamics = state.dynamics._replace(gradient=gradient) if cached else state.dynamics
        energy = jnp.asarray(energy, state.potential_energy.dtype)
        return state._replace(estimator=estimator, dynamics=dynamics, potential_energy=energy)

    def get_constrain_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Constrained values of the sites that this kernel moves, from their supports alone."""
        if self._model is None:
            return identity
        return constrained_by_support(self._model, model_args, model_kwargs)

    def wrap_model(self, wrapper: Callable) -> "SGMCMC":
        """This kernel with `wrapper` applied to its model."""
        # Other blocks of Gibbs change the potential between the steps of this one.
        kernel = self.as_part() if wrapper is conditioned_on_others else copy.copy(self)
        kernel._model = wrapper(self._model)
        return kernel

    def as_part(self) -> "SGMCMC":
        """This kernel for use beside others, which change its position or its potential between its steps.

        The half of a kick that a step of BAOAB, SGHMC and SGNHT leaves to the next one is then done within
        the step, at one gradient more. Left to the next, it would be that of another potential, and heat.

        :raises ValueError: for a splitting whose word ends with its only kick.
        """
        checks.check_changed(type(self).__name__, self.dynamics)
        kernel = copy.copy(self)
        kernel.is_part = True
        return kernel


def _order_for(
    gradient_noise: GradientNoise, method: Dynamics, rule: Metropolis | None
) -> gradients.Order:
    """The order of rows where none is given."""
    # Minibatches are independent where their noise is estimated, and where a decision needs that those of a
    # trajectory are as likely in the opposite order.
    reversible = rule is not None and rule.exact and method.tracks_work
    return "replacement" if reversible or isinstance(gradient_noise, str) else "permutation"


def rows_of(
    model: Callable, args: tuple, kwargs: dict | None, needs_rows: bool, plate: str | None
) -> Rows:
    """The potential of a model for these arguments, and its data plate if minibatches are taken."""
    potential = Potential(model, args, kwargs)
    if needs_rows:
        return Rows(potential, *potential.data_plate(plate))
    sites = (potential.structure.sites[name] for name in potential.structure.data)
    sizes = [potential.structure.plates[p].size for p in {p for site in sites for p in site.plates}]
    return Rows(potential, size=sizes[0] if len(sizes) == 1 else 0)


def start_of(
    owner: str, rows: Rows, key: jax.Array, init_params: PyTree, kwargs: dict | None
) -> PyTree:
    """The unconstrained position at which a chain begins; by default a prior draw without extreme values."""
    if not isinstance(rows.potential, Potential):
        if init_params is None:
            raise ValueError(
                f"{owner}: potential_fn says nothing about where to start. Give `init_params=` to "
                "`MCMC.run`."
            )
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x, float)), init_params)
    if init_params is None:
        return gentle_start(rows.potential, key)
    if kwargs and GIBBS_SITES_KWARG in kwargs:
        # NumPyro's Gibbs passes constrained values to every block that is not HMC.
        return rows.potential.unconstrain(init_params)
    return dict(init_params)
