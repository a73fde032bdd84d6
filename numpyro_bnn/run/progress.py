"""Progress bars of a run, and advice when memory runs out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from numpyro.infer.mcmc import MCMCKernel
from tqdm.auto import tqdm

from numpyro_bnn._types import PyTree
from numpyro_bnn.run.chain_states import chain_of

# Array by array the state of a chain takes a millisecond a leaf, at each of twenty updates.
_in_one_program = jax.jit(chain_of)


@contextmanager
def explain_memory() -> Iterator[None]:
    """Add advice to the error when memory runs out: settings that make the run smaller."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        # With several devices JAX reports the lack of memory as an internal error.
        lacking = "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
        if lacking or isinstance(error, MemoryError):
            error.add_note(
                "numpyro_bnn: not enough memory. If the draws are too many, stream them to disk "
                "with `MCMC(…, draws='run.zarr')`; if the gradient over all rows is too large, "
                "give `chunk_size=` to MCMC (or to `gradients.full` in a kernel of this package)."
            )
        raise


class ProgressBars:
    """Progress bars, one a chain, and a line of text below them."""

    def __init__(
        self, kernel: MCMCKernel, num_chains: int, total: int, done: int, compiling: bool = False
    ) -> None:
        self._kernel = kernel
        self._bars = [
            tqdm(total=total, initial=done, desc=f"chain {c}", position=c)
            for c in range(num_chains)
        ]
        for bar in self._bars if compiling else ():
            bar.set_postfix_str("compiling")
        self._text: Any = None

    def update(self, chains: range, steps: int, state: PyTree) -> None:
        """Move the bars of some chains on by `steps`."""
        for c in chains if self._bars else ():
            own = state if len(chains) == 1 else _in_one_program(state, c)
            self._bars[c].set_postfix_str(self._kernel.get_diagnostics_str(own), refresh=False)
            self._bars[c].update(steps)

    def extend(self, total: int) -> None:
        """Make the bars longer: the run takes more steps than announced."""
        for bar in self._bars:
            bar.total = total
            bar.refresh()

    def say(self, text: str) -> None:
        """Show a line of text below the bars, in place of the last one."""
        if not self._bars:
            return
        if self._text is None:
            self._text = tqdm(bar_format="{desc}", position=len(self._bars))
        self._text.set_description_str(text)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, *error: object) -> None:
        for bar in (*self._bars, *([] if self._text is None else [self._text])):
            bar.close()
