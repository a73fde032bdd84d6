"""One kernel, five ingredients: dynamics, gradients, preconditioner, step size, temperature.

:class:`SGMCMC` drives any method of :mod:`~numpyro_bnn.sgmcmc.dynamics` over a NumPyro model:
each step advances the dynamics to where a gradient is wanted, asks the gradient estimator for
it, and completes the step. The named samplers in :mod:`~numpyro_bnn.sgmcmc.algorithms` only
choose ingredients; what an accept-reject step adds is in
:mod:`~numpyro_bnn.sgmcmc.metropolis`.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer.gibbs import GIBBS_SITES_KWARG
from numpyro.infer.mcmc import MCMCKernel
from numpyro.infer.util import constrain_fn
from numpyro.util import identity, is_prng_key

from numpyro_bnn.potential import Potential
from numpyro_bnn.sgmcmc import gradients, preconditioners
from numpyro_bnn.sgmcmc.adaptation import Adaptation, adapted, begin_adaptation
from numpyro_bnn.sgmcmc.dynamics import Dynamics
from numpyro_bnn.sgmcmc.gradients import Estimator, Rows
from numpyro_bnn.sgmcmc.metropolis import Metropolis, propose, trajectory
from numpyro_bnn.sgmcmc.movements import DynamicsState, Settings, kinetic_temperature
from numpyro_bnn.sgmcmc.noise import normal_like, normals_like
from numpyro_bnn.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.sgmcmc.schedules import Cyclical, as_schedule
from numpyro_bnn.start import gentle_start

PyTree = Any


class SGMCMCState(NamedTuple):
    """State of an :class:`SGMCMC` chain.

    - **i** - calls of `sample` so far, warm-up included
    - **count** - steps since the end of warm-up: the clock of the schedules
    - **dynamics** - position, momentum, … (:class:`~numpyro_bnn.sgmcmc.movements.DynamicsState`)
    - **estimator**, **preconditioner**, **adaptation** - states of the ingredients
    - **potential_energy** - U where the last gradient was taken, in nats: an estimate under
      minibatches, exact at the position for Metropolis methods
    - **step_size**, **temperature** - of the last step
    - **accept_prob**, **mean_accept_prob** - of the last Metropolis decision, and their mean
      over this phase; 1 for methods without
    - **grad_norm** - Euclidean norm of the last gradient
    - **kinetic_temperature** - pᵀM⁻¹p / D, which should average to the temperature; NaN without
      momentum
    - **configurational_temperature** - θᵀ∇U / D, which should too
    - **exploded_at** - call of `sample` at which the chain became non-finite and was frozen;
      -1 for a sound chain
    - **rng_key** - for the next step
    """

    i: jax.Array
    count: jax.Array
    dynamics: DynamicsState
    estimator: Any
    preconditioner: Any
    adaptation: Adaptation
    potential_energy: jax.Array
    step_size: jax.Array
    temperature: jax.Array
    accept_prob: jax.Array
    mean_accept_prob: jax.Array
    grad_norm: jax.Array
    kinetic_temperature: jax.Array
    configurational_temperature: jax.Array
    exploded_at: jax.Array
    rng_key: jax.Array

    @property
    def z(self) -> PyTree:
        """Unconstrained position."""
        return self.dynamics.position


class SGMCMC(MCMCKernel):
    r"""Any stochastic-gradient sampler, put together from its ingredients.

    The target density is proportional to exp(-U/T). Use a named sampler
    (:class:`~numpyro_bnn.sgmcmc.algorithms.BAOAB`, …) unless you bring your own dynamics.

    :param model: a NumPyro model; minibatches need a plate around its observed sites.
    :param potential_fn: a potential energy instead, function of the position.
    :param dynamics: the method.
    :param step_size: a number, which is never adapted; a schedule of the step count from the
        end of warm-up; or ``"auto"``: from the curvature at the start, and, for Metropolis
        methods, adapted to `target_accept_prob` in warm-up.
    :param batch_size: rows in a minibatch; all rows where None.
    :param temperature: a number (1: the posterior) or a schedule.
    :param gradient: an estimator of :mod:`~numpyro_bnn.sgmcmc.gradients`; by default a
        minibatch of `batch_size` rows, or all rows.
    :param preconditioner: see :mod:`~numpyro_bnn.sgmcmc.preconditioners`; default identity.
    :param friction: per unit time; 0.1 / step_size at the start where None.
    :param gradient_noise: known variance of the gradient, taken off the noise that is added.
    :param metropolis: an accept-reject rule, or None.
    :param resample_momentum: calls of `sample` between fresh momenta; never where None.
    :param target_accept_prob: of Metropolis methods with ``step_size="auto"``.
    :param plate: the data plate, where the model has several.
    :raises ValueError: for values out of range and ingredients that do not fit each other.
    """

    sample_field = "z"

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
        if (model is None) == (potential_fn is None):
            raise ValueError(f"{name}: give either a model or potential_fn, and not both.")
        if batch_size is not None:
            gradients.check_batch_size(name, batch_size)
            if gradient is not None and gradient.batch_size != batch_size:
                raise ValueError(
                    f"{name}: batch_size={batch_size}, but gradient={gradient} has "
                    f"batch_size={gradient.batch_size}. Give the size to the estimator only."
                )
        if friction is not None and not friction >= 0:
            raise ValueError(
                f"{name}: friction must not be negative, got friction={friction}. For no friction "
                "use HMC."
            )
        if resample_momentum is not None and not resample_momentum >= 1:
            raise ValueError(
                f"{name}: resample_momentum must be a positive number of draws, got "
                f"{resample_momentum}."
            )
        self._model = model
        self._potential_fn = potential_fn
        self.dynamics = dynamics
        self._auto = isinstance(step_size, str)
        if self._auto and step_size != "auto":
            raise ValueError(
                f'{name}: step_size must be a number, a schedule or "auto", got {step_size!r}.'
            )
        self._step_size = None if self._auto else as_schedule(step_size, "step_size")
        self._temperature = as_schedule(temperature, "temperature")
        if gradient is None:
            gradient = gradients.full() if batch_size is None else gradients.minibatch(batch_size)
        self.gradient = gradient
        self.preconditioner = preconditioner or preconditioners.identity()
        if self.preconditioner.varies and (dynamics.has_momentum or metropolis is not None):
            raise ValueError(
                f"{name}: {self.preconditioner} goes on changing after warm-up, which only SGLD and "
                "PSGLD correct for. Freeze it (gamma_term=False)."
            )
        self._friction = friction
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
    def default_fields(self) -> tuple[str, ...]:
        fields = ("z", "potential_energy", "step_size", "temperature", "configurational_temperature")
        if self.dynamics.has_momentum:
            fields += ("kinetic_temperature",)
        return fields if self._metropolis is None else (*fields, "accept_prob")

    def get_diagnostics_str(self, state: SGMCMCState) -> str:
        text = f"step {float(state.step_size):.2e}, energy {float(state.potential_energy):.4g}"
        if self._metropolis is not None:
            text += f", acc. prob={float(state.mean_accept_prob):.2f}"
        if int(state.exploded_at) >= 0:
            text += f", exploded at {int(state.exploded_at)}"
        return text

    def _rows(self, args: tuple, kwargs: dict | None) -> Rows:
        """The potential for these arguments, and its data plate where one is needed."""
        if self._model is None:
            if self.gradient.batch_size is not None:
                raise ValueError(
                    f"{type(self).__name__}: minibatches need a model; potential_fn is a function of "
                    "the position alone."
                )
            return Rows(self._potential_fn)
        potential = Potential(self._model, args, kwargs)
        if self.gradient.batch_size is None and getattr(self.gradient, "chunk_size", None) is None:
            return Rows(potential)
        return Rows(potential, *potential.data_plate(self._plate))

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
        z = self._start(rows, key_start, init_params, model_kwargs)
        estimator = self.gradient.init(rows, z, key_batches)
        preconditioner = self.preconditioner.init(z)
        inverse_mass = self.preconditioner.inverse_mass_matrix(preconditioner)
        initial = None if self._auto else self._step_size(0)
        adaptation = begin_adaptation(
            rows, z, inverse_mass, key_curvature, initial, self.dynamics, self._friction
        )
        settings = self._settings(jnp.zeros((), jnp.int32), adaptation, preconditioner)
        value, gradient = self._exact(rows, z)
        noise = normal_like(key_momentum, z)
        dynamics = self.dynamics.init(z, noise, settings, gradient)
        if self._metropolis is not None and self._metropolis.caches_gradient:
            dynamics = dynamics._replace(gradient=gradient)
        real = jnp.result_type(float)
        nan = jnp.full((), jnp.nan, real)
        return SGMCMCState(
            i=jnp.zeros((), jnp.int32),
            count=jnp.zeros((), jnp.int32),
            dynamics=dynamics,
            estimator=estimator,
            preconditioner=preconditioner,
            adaptation=adaptation,
            potential_energy=jnp.asarray(value, real),
            step_size=jnp.asarray(settings.step_size, real),
            temperature=jnp.asarray(settings.temperature, real),
            accept_prob=jnp.ones((), real),
            mean_accept_prob=jnp.ones((), real),
            grad_norm=nan,
            kinetic_temperature=nan,
            configurational_temperature=nan,
            exploded_at=jnp.full((), -1, jnp.int32),
            rng_key=rng_key,
        )

    def _exact(self, rows: Rows, z: PyTree) -> tuple[jax.Array, PyTree]:
        """U and ∇U at a position: all rows, where they are needed later; else what is cheap."""
        exact = self._metropolis is not None and self._metropolis.exact
        if exact and not self.dynamics.uses_gradient:
            return rows.potential(z), None
        if exact or self.dynamics.reuses_gradient or self.gradient.batch_size is None:
            return rows.full(z)
        indices = jnp.arange(min(self.gradient.batch_size, rows.size))
        return rows.some(z, indices)

    def _start(self, rows: Rows, key: jax.Array, init_params: PyTree, kwargs: dict | None) -> PyTree:
        if self._model is None:
            if init_params is None:
                raise ValueError(
                    f"{type(self).__name__}: potential_fn says nothing about where to start. Give "
                    "`init_params=` to `MCMC.run`."
                )
            return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x, float)), init_params)
        if init_params is None:
            return gentle_start(rows.potential, key)
        if kwargs and GIBBS_SITES_KWARG in kwargs:
            # NumPyro's Gibbs hands constrained values to every block that is not HMC.
            return rows.potential.unconstrain(init_params)
        return dict(init_params)

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
        after = self._refresh_momentum(state)
        if self._metropolis is not None:
            after = self._decide(rows, after)
        elif isinstance(self._step_size, Cyclical):
            steps = jnp.where(state.i < self._num_warmup, 1, self._step_size.num_steps(state.count))
            after = lax.fori_loop(0, steps, lambda _, s: self._step(rows, s), after)
        else:
            after = self._step(rows, after)
        return _freeze(state, after._replace(i=state.i + 1))

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
        rng_key, key = jax.random.split(state.rng_key)
        warming = state.i < self._num_warmup
        noises = normals_like(key, self.dynamics.num_noises, state.z)
        settings = self._settings(state.count, state.adaptation, state.preconditioner)
        dynamics = self.dynamics.advance(state.dynamics, noises, settings)
        at = dynamics.position
        estimate = self.gradient.estimate(rows, at, state.estimator)
        curvature = self._curvature(rows, at, state.estimator)
        preconditioner = self.preconditioner.update(
            state.preconditioner, estimate.gradient, at, warming, curvature
        )
        settings = self._settings(state.count, state.adaptation, preconditioner)
        dynamics = self.dynamics.complete(dynamics, estimate.gradient, noises, settings)
        return self._record(
            state, dynamics, estimate.value, estimate.gradient, at, settings
        )._replace(
            estimator=estimate.state,
            preconditioner=preconditioner,
            count=state.count + ~warming,
            rng_key=rng_key,
        )

    def _curvature(self, rows: Rows, at: PyTree, estimator: Any) -> PyTree:
        """Diagonal of the Hessian by one probe, for a metric that keeps changing."""
        if not self.preconditioner.varies:
            return None
        key = jax.random.fold_in(jax.random.key(0), estimator.count)
        probe = jax.tree.map(lambda x: jnp.sign(x) + (x == 0), normal_like(key, at))

        def gradient(z: PyTree) -> PyTree:
            return self.gradient.estimate(rows, z, estimator).gradient

        _, product = jax.jvp(gradient, (at,), (probe,))
        return jax.tree.map(jnp.multiply, probe, product)

    def _decide(self, rows: Rows, state: SGMCMCState) -> SGMCMCState:
        """A proposal or a trajectory, accepted or rejected."""
        assert self._metropolis is not None
        rng_key, key = jax.random.split(state.rng_key)
        warming = state.i < self._num_warmup
        settings = self._settings(state.count, state.adaptation, state.preconditioner)
        run = trajectory if self.dynamics.tracks_work else propose
        result = run(
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
        gradient = result.gradient
        position = result.dynamics.position
        preconditioner = state.preconditioner
        if gradient is not None:
            preconditioner = self.preconditioner.update(
                preconditioner, gradient, position, warming
            )
        seen = jnp.where(warming, state.i, state.i - self._num_warmup) + 1
        mean = state.mean_accept_prob + (result.accept_prob - state.mean_accept_prob) / seen
        after = self._record(
            state, result.dynamics, result.energy, gradient, position, settings
        )
        return after._replace(
            estimator=result.estimator,
            preconditioner=preconditioner,
            adaptation=adaptation,
            accept_prob=result.accept_prob,
            mean_accept_prob=mean,
            count=state.count + ~warming,
            rng_key=rng_key,
        )

    def _record(
        self,
        state: SGMCMCState,
        dynamics: DynamicsState,
        energy: jax.Array,
        gradient: PyTree,
        at: PyTree,
        settings: Settings,
    ) -> SGMCMCState:
        real = jnp.result_type(float)
        size = sum(leaf.size for leaf in jax.tree.leaves(at))
        record = state._replace(
            dynamics=dynamics,
            potential_energy=jnp.asarray(energy, real),
            step_size=jnp.asarray(settings.step_size, real),
            temperature=jnp.asarray(settings.temperature, real),
        )
        if gradient is not None:
            record = record._replace(
                grad_norm=jnp.sqrt(_dot(gradient, gradient)),
                configurational_temperature=_dot(at, gradient) / size,
            )
        if dynamics.momentum is not None:
            kinetic = kinetic_temperature(dynamics.momentum, settings.inverse_mass_matrix)
            record = record._replace(kinetic_temperature=kinetic)
        return record

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
        cached = state.dynamics.gradient is not None
        if not cached and not (self._metropolis is not None and self._metropolis.exact):
            return state._replace(estimator=estimator)
        energy, gradient = self._exact(rows, state.z)
        dynamics = state.dynamics._replace(gradient=gradient) if cached else state.dynamics
        energy = jnp.asarray(energy, state.potential_energy.dtype)
        return state._replace(estimator=estimator, dynamics=dynamics, potential_energy=energy)

    def wrap_model(self, wrapper: Callable) -> "SGMCMC":
        if self._model is None:
            raise ValueError(
                f"{type(self).__name__}: a kernel over potential_fn has no model to wrap."
            )
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        return kernel


def _dot(a: PyTree, b: PyTree) -> jax.Array:
    real = jnp.result_type(float)
    return sum(
        (jnp.vdot(x, y).astype(real) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))),
        start=jnp.zeros((), real),
    )


def _freeze(before: SGMCMCState, after: SGMCMCState) -> SGMCMCState:
    """Keep the last finite state of a chain that explodes, and remember when it did."""
    finite = jnp.isfinite(after.potential_energy) & jnp.isfinite(_dot(after.z, after.z))
    sound = finite & (before.exploded_at < 0)
    kept = jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, before)
    exploded_at = jnp.where(finite | (before.exploded_at >= 0), before.exploded_at, before.i)
    return kept._replace(i=after.i, exploded_at=exploded_at)
