"""The time limit of a fit: when its optimisation ends, and how many draws fit into what is left.

A run must know the length of its warm-up before it begins. So the lengths are planned once, after the
programs have compiled, from the time that a step takes; no draw depends on a clock after that.
"""

import math
import time
from concurrent.futures import Future

from numpyro_bnn.run.chain_states import ChainStates
from numpyro_bnn.workflow.mcmc import MCMC

# Shares of the limit for optimising, and for judging the run at its end, which takes some seconds more.
_OPTIMISING, _JUDGING, _MORE = 1 / 3, 0.02, 2.0
# Fewer draws of a chain than these are worth less than the optimised networks alone.
_FEWEST = 10


class TimeLimit:
    """Seconds from now on; without end where `minutes` is None."""

    def __init__(self, minutes: float | None) -> None:
        self.seconds = math.inf if minutes is None else 60.0 * minutes
        self.began = time.monotonic()

    @property
    def optimising_ends(self) -> float:
        """The time, by ``time.monotonic()``, at which the optimisation is to end."""
        return self.began + _OPTIMISING * self.seconds

    @property
    def left(self) -> float:
        """Seconds left for sampling."""
        return self.began + (1 - _JUDGING) * self.seconds - _MORE - time.monotonic()

    @property
    def minutes_left(self) -> float | None:
        """The limit of a run with a stopping rule; never zero, so that some draws are taken."""
        return None if self.seconds == math.inf else max(self.left / 60, 1e-3)

    def allows(self, mcmc: MCMC, chains: Future[ChainStates]) -> bool:
        """Whether there is time to sample; a run that would take longer is made shorter."""
        if self.seconds == math.inf:
            chains.result()
            return True
        try:
            seconds = chains.result(timeout=max(0.0, self.left)).seconds_a_step(mcmc.num_warmup)
        except TimeoutError:
            return False
        share = self.left / (seconds * (mcmc.num_warmup + mcmc.num_samples))
        if share < 1:
            lengths = (mcmc.num_warmup, mcmc.num_samples)
            mcmc.set_lengths(
                *(max(0, int(share * n)) // mcmc.thinning * mcmc.thinning for n in lengths)
            )
        return mcmc.num_samples >= _FEWEST * mcmc.thinning or share >= 1
