"""Unadjusted kernels with momentum, which learn in warm-up how fast their momenta should forget."""

from typing import Any

import jax
import jax.numpy as jnp
from numpyro.util import is_prng_key

from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.branches import where_needed
from numpyro_bnn.samplers.sgmcmc.energy_error_tuning import Decoherence
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState


class Underdamped(SGMCMC):
    """A kernel whose friction is found in warm-up, where none is given and it sees all rows.

    Momenta that forget within ten steps, as 0.1 / step_size has it, diffuse: right with
    minibatches, whose noise heats a momentum that lasts, and a waste of gradients without.

    Takes what :class:`~numpyro_bnn.samplers.sgmcmc.kernel.SGMCMC` takes.
    """

    def __init__(self, *model: Any, **ingredients: Any) -> None:
        super().__init__(*model, **ingredients)
        finds = self._friction is None and self._auto and not self._some_rows
        self._lasting = finds
        self._tuning = Decoherence(energy_variance=None, finds_friction=finds)

    @property
    def _some_rows(self) -> bool:
        return self.gradient.batch_size is not None

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Any = None,
        model_args: tuple = (),
        model_kwargs: dict | None = None,
    ) -> SGMCMCState:
        state = super().init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        if not is_prng_key(rng_key) or not self._tuning.learns:
            # Each chain of several came through here by itself.
            return state
        learned = self._tuning.init(state.z)
        return state._replace(adaptation=state.adaptation._replace(averaging=learned))

    def _step(self, rows: Rows, state: SGMCMCState) -> SGMCMCState:
        return self._learned(state, super()._step(rows, state))

    def _learned(self, before: SGMCMCState, after: SGMCMCState) -> SGMCMCState:
        """With what warm-up learns from a step."""
        return self._tuned(before, after, jnp.zeros(()))

    def _tuned(
        self, before: SGMCMCState, after: SGMCMCState, energy_error: jax.Array
    ) -> SGMCMCState:
        """The same, given the step's energy error over the temperature."""
        if not self._tuning.learns:
            return after

        def learn() -> Any:
            metrics = [
                self.preconditioner.inverse_mass_matrix(s.preconditioner) for s in (before, after)
            ]
            energy = after.potential_energy / before.temperature
            return self._tuning.update(
                after.adaptation,
                energy_error,
                energy,
                after.z,
                metrics,
                before.i,
                self._num_warmup,
            )

        warming = before.i < self._num_warmup
        return after._replace(adaptation=where_needed(warming, learn, after.adaptation))
