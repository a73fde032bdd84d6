"""Results of parallel tempering besides draws: log evidence, swap rates, round trips."""

from collections.abc import Callable

import numpy as np
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._types import PyTree
from numpyro_bnn.run.kernel_protocol import evidence_of
from numpyro_bnn.samplers.tempering.evidence import Tempering


class LadderResults:
    """Attributes of an ``MCMC`` whose kernel can tell the log evidence."""

    sampler: MCMCKernel
    _states: PyTree
    get_extra_fields: Callable

    @property
    def tempering(self) -> Tempering:
        """Swap rates, barrier, round trips and log evidence of :class:`ParallelTempering`.

        :raises AttributeError: for another kernel, and before `run`.
        """
        has_run = self._states is not None
        result = evidence_of(self.sampler, self.get_extra_fields(True)) if has_run else None
        if result is None:
            raise AttributeError(
                f"MCMC: only a finished run of ParallelTempering knows the evidence, and this is "
                f"{type(self.sampler).__name__}{'' if has_run else ' before `run`'}."
            )
        return result

    @property
    def log_evidence(self) -> np.ndarray:
        """log p(y) in nats of every chain, by stepping stones over the rungs of
        :class:`~numpyro_bnn.samplers.tempering.kernel.ParallelTempering`; (num_chains,)."""
        return self.tempering.log_evidence

    @property
    def log_evidence_error(self) -> np.ndarray:
        """Monte Carlo standard error of `log_evidence`, in nats, (num_chains,)."""
        return self.tempering.log_evidence_error
