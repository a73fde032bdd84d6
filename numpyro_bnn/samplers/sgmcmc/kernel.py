"""One kernel, five ingredients: dynamics, gradients, preconditioner, step size, temperature.

:class:`SGMCMC` drives any method of :mod:`~numpyro_bnn.samplers.sgmcmc.dynamics.methods` over a NumPyro
    model:
each step advances the dynamics to where a gradient is wanted, asks the gradient estimator for
it, and completes the step. The named samplers in
:mod:`~numpyro_bnn.samplers.sgmcmc.named.langevin_and_momentum` only choose ingredients; what an
accept-reject step adds is in :mod:`~numpyro_bnn.samplers.sgmcmc.accept`.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import constrain_fn
from numpyro.util import identity, is_prng_key

from numpyro_bnn.potential.potential import Potential, transforms_of
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.potential.sites import Structure
from numpyro_bnn.potential.subsampling import own_batch_size
from numpyro_bnn.samplers.sgmcmc import gradients, preconditioners
from numpyro_bnn.samplers.sgmcmc.accept import Decision, Metropolis, propose, trajectory
from numpyro_bnn.samplers.sgmcmc.branches import where_needed
from numpyro_bnn.samplers.sgmcmc.checks import (
    check_all_rows,
    check_first_step,
    check_fit,
    check_friction,
    check_gradient_noise,
    check_kinds,
    check_numbers,
    check_step_size,
    check_target,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.elementary import Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.metric_updates import (
    conditioned,
    diagonal_by_probe,
    hessian_product,
    learned_metric,
    reconditioned,
)
from numpyro_bnn.samplers.sgmcmc.model_rows import rows_of, start_of
from numpyro_bnn.samplers.sgmcmc.noise import normal_like, normals_like
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.schedules import Cyclical, as_schedule
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState, begun, freeze, record
from numpyro_bnn.samplers.sgmcmc.step_size import Adaptation, adapted, begin_adaptation, followed

PyTree = Any
_OF_THE_GRADIENT = ("grad_norm", "configurational_temperature", "configurational_temperatures")


class SGMCMC(MCMCKernel):
    r"""Any stochastic-gradient sampler, put together from its ingredients.

    The target density is proportional to exp(-U/T). Use a named sampler
    (:class:`~numpyro_bnn.samplers.sgmcmc.named.langevin_and_momentum.BAOAB`, …) unless you bring your own
    dynamics.

    :param model: a NumPyro model; minibatches need a plate around its observed sites.
    :param potential_fn: a potential energy instead, function of the position.
    :param dynamics: the method.
    :param step_size: a number, which is never adapted; a schedule of the step count from the
        end of warm-up; or ``"auto"``: from the curvature at the start and, in warm-up, for
        Metropolis methods from the acceptance (`target_accept_prob`), for all others from the
        curvature where the chain goes, a Hessian-vector product a step.
    :param batch_size: rows in a minibatch; where None, as many as the plate of the model subsamples
        (``subsample_size=``), or all rows.
    :param temperature: a number (1: the posterior) or a schedule.
    :param gradient: an estimator of :mod:`~numpyro_bnn.samplers.sgmcmc.gradients`; by default a
        minibatch of `batch_size` rows, or all rows.
    :param preconditioner: see :mod:`~numpyro_bnn.samplers.sgmcmc.preconditioners`; default identity.
    :param friction: per unit time; 0.1 / step_size at the start where None, or what the sampler
        finds in warm-up (:class:`~numpyro_bnn.samplers.sgmcmc.named.underdamped.Underdamped`).
    :param gradient_noise: known variance of the gradient, taken off the noise that is added.
    :param metropolis: an accept-reject rule, or None.
    :param resample_momentum: calls of `sample` between fresh momenta; never where None.
    :param target_accept_prob: of Metropolis methods with ``step_size="auto"``.
    :param plate: the data plate, where the model has several.
    :raises ValueError: for values out of range and ingredients that do not fit each other.
    """

    sample_field = "z"
    # Whether momenta may last longer than ten steps where no friction is given.
    _lasting = False
    # Whether it is right on minibatches.
    _takes_minibatches = True
    # Rows are read where they are, see run/kernel_protocol.py.
    takes_host_rows = True

    def __init__(
        self,
        model: Callable | None = None,
        potential_fn: Callable | None = None,
        *,
        dynamics: Dynamics,
        step_size: Any,
        batch_size: int | None = None,
        temperature: Any = 1.0,
        gradient: Estimator | None = None,
        preconditioner: Preconditioner | None = None,
        friction: float | None = None,
        gradient_noise: PyTree = 0.0,
        metropolis: Metropolis | None = None,
        resample_momentum: int | None = None,
        target_accept_prob: float = 0.65,
        plate: str | None = None,
    ) -> None:
        name = type(self).__name__
        self._chooses_rows = gradient is not None or batch_size is not None
        if gradient is None:
            gradient = gradients.full() if batch_size is None else gradients.minibatch(batch_size)
        preconditioner = preconditioners.identity() if preconditioner is None else preconditioner
        check_kinds(name, gradient, preconditioner)
        check_target(name, model, potential_fn, batch_size, gradient)
        check_step_size(name, step_size)
        check_friction(name, friction, dynamics)
        check_numbers(name, resample_momentum, target_accept_prob, dynamics)
        check_gradient_noise(name, gradient_noise, dynamics, metropolis)
        check_fit(name, dynamics, gradient, preconditioner, metropolis)
        self._model = model
        self._potential_fn = potential_fn
        self.dynamics = dynamics
        self.gradient = self._all_rows = gradient
        self.preconditioner = preconditioner
        self._auto = isinstance(step_size, str)
        # "auto" begins from the curvature instead: no schedule is asked then.
        self._step_size = as_schedule(1.0 if self._auto else step_size, "step_size", name)
        self._temperature = as_schedule(temperature, "temperature", name)
        schedules = (self._step_size, self._temperature)
        self._cycle = next((s for s in schedules if isinstance(s, Cyclical)), None)
        self._friction = friction
        if dynamics.has_momentum and friction is None and not self._auto:
            check_first_step(name, self._step_size)
        self._gradient_noise = gradient_noise
        self._metropolis = metropolis
        self._resample_momentum = resample_momentum
        self._target_accept_prob = target_accept_prob
        self._plate = plate
        self._num_warmup = 0
        # NumPyro initialises kernels without this attribute again on every run.
        self._sample_fn = self._step

    @property
    def model(self) -> Callable | None:
        return self._model

    @property
    def num_steps(self) -> int:
        """Steps of the dynamics in one call of `sample`, outside a cycle."""
        return 1 if self._metropolis is None else self._metropolis.num_steps

    def is_cold(self, num_steps: int) -> bool:
        """Whether it samples nothing: the temperature is 0 in all of so many steps."""
        return not bool(jnp.any(jax.vmap(self._temperature)(jnp.arange(num_steps))))

    @property
    def default_fields(self) -> tuple[str, ...]:
        fields = ["z", "potential_energy", "step_size", "temperature"]
        if self.dynamics.uses_gradient:
            fields += ["configurational_temperature", "configurational_temperatures"]
        if self.dynamics.has_momentum:
            fields += ["kinetic_temperature", "kinetic_temperatures"]
        if self._metropolis is not None:
            fields.append("accept_prob")
            fields += [] if self._metropolis.trajectory_length is None else ["num_steps"]
        return tuple(fields)

    def get_diagnostics_str(self, state: SGMCMCState) -> str:
        text = f"step {float(state.step_size):.2e}, energy {float(state.potential_energy):.4g}"
        if self._metropolis is not None:
            text += f", acc. prob={float(state.mean_accept_prob):.2f}"
        if int(state.exploded_at) >= 0:
            text += f", exploded at {int(state.exploded_at)}"
        return text

    def take_batch_size(self, structure: Structure) -> None:
        """Take minibatches of the size that the model subsamples, where no other was given.

        :param structure: of the model.
        :raises ValueError: if this method needs all rows.
        """
        if self._chooses_rows:
            return
        name = type(self).__name__
        size = own_batch_size(name, structure, self._plate)
        gradient = self._all_rows
        if size is not None:
            gradient = gradients.minibatch(size)
            if self._judges_all_rows and self.dynamics.tracks_work:
                gradient = gradients.minibatch(size, "replacement")
            try:
                if not self._takes_minibatches:
                    check_all_rows(name, size, None)
                check_fit(name, self.dynamics, gradient, self.preconditioner, self._metropolis)
            except ValueError as error:
                raise ValueError(
                    f"{error} Here the model subsamples {size} rows of its data plate: remove "
                    "`subsample_size=` for a method that uses all of them."
                ) from error
        self.gradient = gradient

    def _rows(self, args: tuple, kwargs: dict | None) -> Rows:
        if self._model is None:
            return Rows(self._potential_fn)
        return rows_of(self._model, args, kwargs, self.gradient.needs_rows, self._plate)

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: PyTree = None,
        model_args: tuple = (),
        model_kwargs: dict | None = None,
    ) -> SGMCMCState:
        if not is_prng_key(rng_key):
            init = partial(self.init, model_args=model_args, model_kwargs=model_kwargs)
            return jax.vmap(lambda key, z: init(key, num_warmup, z))(rng_key, init_params)
        if self.preconditioner.needs_warmup and not num_warmup:
            raise ValueError(
                f"{type(self).__name__}: {self.preconditioner} is estimated in warm-up, but "
                "num_warmup=0. Give it some steps."
            )
        self._num_warmup = num_warmup
        rows = self._rows(model_args, model_kwargs)
        key_start, key_momentum, key_batches, key_curvature, rng_key = jax.random.split(rng_key, 5)
        z = start_of(type(self).__name__, rows, key_start, init_params, model_kwargs)
        estimator = self.gradient.init(rows, z, key_batches)
        preconditioner = conditioned(self.preconditioner, self.preconditioner.init(z), rows)
        inverse_mass = self.preconditioner.inverse_mass_matrix(preconditioner)
        initial = None if self._auto else self._step_size(0)
        adaptation = begin_adaptation(
            rows,
            z,
            inverse_mass,
            key_curvature,
            initial,
            self.dynamics,
            self._friction,
            follow=self._follows_curvature,
            lasting=self._lasting,
        )
        settings = self._settings(jnp.zeros((), jnp.int32), adaptation, preconditioner)
        value, gradient, estimator = self._look(rows, z, estimator)
        noise = normal_like(key_momentum, z)
        dynamics = self.dynamics.init(z, noise, settings, gradient)
        if self._metropolis is not None and self._metropolis.caches_gradient:
            dynamics = dynamics._replace(gradient=gradient)
        state = begun(dynamics, estimator, preconditioner, adaptation, rng_key)
        return record(state, dynamics, value, gradient, z, settings)

    def _look(self, rows: Rows, z: PyTree, estimator: Any) -> tuple[jax.Array, PyTree, Any]:
        """U, ∇U and the estimator's state at a position that the chain did not step to.

        A gradient that the next step begins with is an estimate like all others: were it exact,
        a trajectory would not be as likely backwards.
        """
        if not self.dynamics.uses_gradient:
            return rows.potential(z), None, estimator
        value, gradient, after = self.gradient.estimate(rows, z, estimator)
        if self.gradient.batch_size is not None and self._judges_all_rows:
            value = rows.potential(z)
        return value, gradient, after if self.dynamics.reuses_gradient else estimator

    @property
    def _judges_all_rows(self) -> bool:
        return self._metropolis is not None and self._metropolis.exact

    @property
    def _follows_curvature(self) -> bool:
        """Whether "auto" steps go on looking at the curvature in warm-up."""
        return self._metropolis is None

    def _settings(self, count: jax.Array, adaptation: Adaptation, preconditioner: Any) -> Settings:
        step_size = adaptation.step_size if self._auto else self._step_size(count)
        return Settings(
            step_size=step_size,
            temperature=self._temperature(count),
            inverse_mass_matrix=self.preconditioner.inverse_mass_matrix(preconditioner),
            friction=adaptation.friction,
            gradient_noise=self._gradient_noise,
            divergence=self.preconditioner.divergence(preconditioner),
        )

    def sample(
        self, state: SGMCMCState, model_args: tuple, model_kwargs: dict | None
    ) -> SGMCMCState:
        """One draw: a step, a trajectory, or all steps to the next draw that a cycle keeps."""
        if state.i.ndim:
            return jax.vmap(lambda s: self.sample(s, model_args, model_kwargs))(state)
        rows = self._rows(model_args, model_kwargs)
        move = partial(self._step if self._metropolis is None else self._decide, rows)
        after = self._refresh_momentum(state)
        if self._cycle is None:
            after = freeze(state, move(after))
        else:
            steps = jnp.where(state.i < self._num_warmup, 1, self._cycle.num_steps(state.count))
            after = lax.fori_loop(0, steps, lambda _, s: freeze(s, move(s)), after)
        return after._replace(i=state.i + 1)

    def _refresh_momentum(self, state: SGMCMCState) -> SGMCMCState:
        if self._resample_momentum is None:
            return state
        rng_key, key = jax.random.split(state.rng_key)
        settings = self._settings(state.count, state.adaptation, state.preconditioner)
        dynamics, old = state.dynamics, state.dynamics.momentum
        fresh = self.dynamics.init(
            dynamics.position, normal_like(key, old), settings, dynamics.gradient
        ).momentum
        due = state.i % self._resample_momentum == 0
        momentum = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, old)
        return state._replace(dynamics=dynamics._replace(momentum=momentum), rng_key=rng_key)

    def _step(self, rows: Rows, state: SGMCMCState) -> SGMCMCState:
        """Advance, estimate, complete."""
        rng_key, key, key_probe = jax.random.split(state.rng_key, 3)
        warming = state.i < self._num_warmup
        noises = normals_like(key, self.dynamics.num_noises, state.z)
        settings = self._settings(state.count, state.adaptation, state.preconditioner)
        dynamics = self.dynamics.advance(state.dynamics, noises, settings)
        at = dynamics.position
        estimate = self.gradient.estimate(rows, at, state.estimator)
        product = partial(hessian_product, self.gradient, rows, at, state.estimator)
        curvature = (
            diagonal_by_probe(product, at, key_probe) if self.preconditioner.varies else None
        )
        learned, momentum = learned_metric(
            self.preconditioner,
            state.preconditioner,
            rows.size,
            dynamics.momentum,
            estimate.gradient,
            at,
            warming,
            curvature,
        )
        dynamics = dynamics._replace(momentum=momentum)
        adaptation = state.adaptation
        if adaptation.direction is not None:
            metric = self.preconditioner.inverse_mass_matrix(learned)

            def follow() -> Adaptation:
                by_step = self._friction is None and not self._lasting
                return followed(adaptation, product, metric, self.dynamics, by_step)

            adaptation = where_needed(warming, follow, adaptation)
        settings = self._settings(state.count, adaptation, learned)
        dynamics = self.dynamics.complete(dynamics, estimate.gradient, noises, settings)
        return record(state, dynamics, estimate.value, estimate.gradient, at, settings)._replace(
            estimator=estimate.state,
            preconditioner=learned,
            adaptation=adaptation,
            count=state.count + ~warming,
            rng_key=rng_key,
        )

    @property
    def _judge(self) -> Callable[..., Decision]:
        return trajectory if self.dynamics.tracks_work else propose

    def _decide(self, rows: Rows, state: SGMCMCState) -> SGMCMCState:
        """A proposal or a trajectory, accepted or rejected."""
        assert self._metropolis is not None
        rng_key, key = jax.random.split(state.rng_key)
        warming = state.i < self._num_warmup
        settings = self._settings(state.count, state.adaptation, state.preconditioner)
        result = self._judge(
            self._metropolis,
            self.dynamics,
            self.gradient,
            rows,
            state.dynamics,
            state.potential_energy,
            state.estimator,
            settings,
            key,
        )
        adaptation = state.adaptation
        if self._auto:
            last = state.i + 1 >= self._num_warmup
            adaptation = adapted(
                adaptation, result.accept_prob, self._target_accept_prob, warming, last
            )
        dynamics, gradient = result.dynamics, result.gradient
        learned = state.preconditioner
        if gradient is not None:
            learned, momentum = learned_metric(
                self.preconditioner,
                state.preconditioner,
                rows.size,
                dynamics.momentum,
                gradient,
                dynamics.position,
                warming,
            )
            dynamics = dynamics._replace(momentum=momentum)
        seen = jnp.where(warming, state.i, state.count) + 1
        mean = state.mean_accept_prob + (result.accept_prob - state.mean_accept_prob) / seen
        after = record(state, dynamics, result.energy, gradient, dynamics.position, settings)
        # After a rejection the last gradient is that of a place where the chain is not.
        of_gradient = {
            name: jax.tree.map(
                partial(jnp.where, result.accepted), getattr(after, name), getattr(state, name)
            )
            for name in _OF_THE_GRADIENT
        }
        return after._replace(
            estimator=result.estimator,
            preconditioner=learned,
            adaptation=adaptation,
            accept_prob=result.accept_prob,
            mean_accept_prob=mean,
            num_steps=jnp.asarray(result.num_steps, jnp.int32),
            count=state.count + ~warming,
            rng_key=rng_key,
            **of_gradient,
        )

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        if self._model is None:
            return identity
        model = Potential(self._model, model_args, model_kwargs).bound
        return partial(
            constrain_fn, model, model_args, model_kwargs or {}, return_deterministic=True
        )

    def refresh(
        self, state: SGMCMCState, model_args: tuple, model_kwargs: dict | None
    ) -> SGMCMCState:
        """Recompute what is cached, after Gibbs changed the values that it is conditioned on."""
        rows = self._rows(model_args, model_kwargs)
        estimator = self.gradient.refresh(rows, state.estimator)
        learned, momentum = reconditioned(
            self.preconditioner, state.preconditioner, rows, state.dynamics.momentum
        )
        dynamics = state.dynamics._replace(momentum=momentum)
        state = state._replace(estimator=estimator, preconditioner=learned, dynamics=dynamics)
        cached = state.dynamics.gradient is not None
        if not cached and not self._judges_all_rows:
            return state
        energy, gradient, estimator = self._look(rows, state.z, estimator)
        dynamics = state.dynamics._replace(gradient=gradient) if cached else state.dynamics
        energy = jnp.asarray(energy, state.potential_energy.dtype)
        return state._replace(estimator=estimator, dynamics=dynamics, potential_energy=energy)

    def get_constrain_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Constrained values of the sites that this kernel moves, from their supports alone."""
        if self._model is None:
            return identity
        transforms = transforms_of(self._model, model_args, model_kwargs)
        return lambda z: {name: transforms[name](value) for name, value in z.items()}

    def wrap_model(self, wrapper: Callable) -> "SGMCMC":
        if self._model is None:
            raise ValueError(
                f"{type(self).__name__}: a kernel over potential_fn has no model to wrap."
            )
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        return kernel
