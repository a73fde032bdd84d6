"""What a user sees while chains run: progress bars, and advice when memory runs out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from numpyro.infer.mcmc import MCMCKernel
from tqdm.auto import tqdm

from numpyro_bnn.run.chain_states import chain_of


@contextmanager
def explain_memory() -> Iterator[None]:
    """Say what makes a run smaller when memory runs out."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        # Several devices report it as an internal error.
        if "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error):
            error.add_note(
                "numpyro_bnn: not enough memory. If the draws are too many, stream them to disk "
                "with `MCMC(…, draws='run.zarr')`; if the gradient over all rows is too large, "
                "give `chunk_size=` to MCMC (or to `gradients.full` in a kernel of this package)."
            )
        raise


@contextmanager
def progress_bars(
    kernel: MCMCKernel, num_chains: int, total: int, done: int
) -> Iterator[Callable[[range, int, Any], None]]:
    """Progress bars, one a chain; yields ``update(chains, steps, state of these chains)``.

    :param kernel: says how its chains are doing.
    :param num_chains: number of bars; none where 0.
    :param total: steps of the whole run.
    :param done: steps taken before.
    """
    if not num_chains or total == 0:
        yield lambda chains, steps, state: None
        return
    places = range(num_chains)
    bars = [tqdm(total=total, initial=done, desc=f"chain {c}", position=c) for c in places]

    def update(chains: range, steps: int, state: Any) -> None:
        for c in chains:
            own = state if len(chains) == 1 else chain_of(state, c)
            bars[c].set_postfix_str(kernel.get_diagnostics_str(own), refresh=False)
            bars[c].update(steps)

    try:
        yield update
    finally:
        for bar in bars:
            bar.close()
