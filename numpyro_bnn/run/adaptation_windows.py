"""The windows in which HMC, NUTS and BarkerMH of NumPyro adapt, for a length of warm-up that is traced.

NumPyro builds the windows in Python, so that each length is another program. All that it makes of them is
a table of their ends. This file teaches NumPyro's function to give that table for a traced number;
for any other it gives what it always gave.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import SA, hmc_util
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn.run.kernel_protocol import with_inner_kernels

# Windows of the mass matrix: enough for a hundred million steps.
_MOST = 22


def windows(num_steps: jax.Array) -> jax.Array:
    """Begin and end of each window, as :func:`numpyro.infer.hmc_util.build_adaptation_schedule` has them.

    The table has more rows than windows. Rows after the last window of the mass matrix end at -1, at no step.
    """
    is_short = num_steps < 150
    first = jnp.where(is_short, 15 * num_steps // 100, 75)
    stop = num_steps - jnp.where(is_short, num_steps // 10, 50)
    size = jnp.where(is_short, stop - first, 25) << jnp.arange(_MOST)
    begin = first + size - size[0]
    # Each window is twice as long as the one before, and the last takes what is left.
    doubles = 3 * size <= stop - begin
    end = jnp.where(doubles, begin + size, stop)
    is_window = jnp.roll(doubles, 1).at[0].set(num_steps >= 20)
    end = jnp.where(is_window, end, 0)
    start = jnp.where(num_steps < 20, num_steps, first)
    return jnp.stack([jnp.r_[0, begin, 0], jnp.r_[start, end, 0] - 1], 1)


def takes_traced_warmup(sampler: MCMCKernel) -> bool:
    """Whether ``init`` is that of NumPyro or of this package: others may need a number of Python."""
    kernels = list(with_inner_kernels(sampler))
    homes = {type(k).init.__module__.partition(".")[0] for k in kernels}
    # SA keeps the number where another trace finds it.
    is_known = homes <= {"numpyro", __name__.partition(".")[0]}
    return is_known and not any(isinstance(k, SA) for k in kernels)


def _also_traced(build: Callable) -> Callable:
    def build_adaptation_schedule(num_steps: Any) -> Any:
        return (windows if isinstance(num_steps, jax.core.Tracer) else build)(num_steps)

    return build_adaptation_schedule


hmc_util.build_adaptation_schedule = _also_traced(hmc_util.build_adaptation_schedule)
