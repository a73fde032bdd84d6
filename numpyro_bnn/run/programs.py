"""The compiled programs behind :class:`numpyro_bnn.MCMC`.

Two programs serve a whole run: `start` initialises the chains, `advance` takes steps and
writes draws into a buffer that it updates in place. A third, `refresh`, is compiled only for a run that
continues from a state of other data. Data are arguments of both, so that a second run, with new data of the
same shapes too, compiles nothing; nor does a run of an equal kernel over an equal model
(:mod:`numpyro_bnn.compilation.program_identity`). Nor does a run of another length: the buffer holds a fixed
number of draws, and the host empties it as often as it is full.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import nested_attrgetter

from numpyro_bnn._types import PyTree
from numpyro_bnn.compilation.program_identity import form_of, strong
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.convolutions import fast_convolutions
from numpyro_bnn.run.devices import DeviceRows, Placement
from numpyro_bnn.run.kernel_protocol import keeps_all_in_state, with_inner_kernels
from numpyro_bnn.samplers.kernels import uncorrected_block

# Bytes that a draw buffer should take, and the least and most draws that it holds.
_BUFFER_BYTES, _FEWEST, _MOST = 2**24, 64, 1024

State: TypeAlias = PyTree
Draws: TypeAlias = PyTree


@dataclass(eq=False)
class Programs:
    """The programs of one kernel and set of fields; several chains have a leading axis."""

    # Its `init` is traced again inside `advance`, where nothing of it is executed: kernels keep closures over
    # the arguments of the trace they live in. Those that keep none are spared it.
    kernel: MCMCKernel
    num_warmup: int | None  # For `kernel.init`; None: the number that comes last among the arrays
    static: tuple  # Description of the arguments, see :class:`Arguments`
    fields: tuple[str, ...]  # Dotted names of state fields to collect, the sample field first
    removed: tuple[str, ...]  # Sites not to collect
    postprocess: Callable | None  # Replaces the kernel's own post-processing
    record: Callable | None  # Maps the sites of a draw to the values to keep; None keeps all sites
    num_chains: int  # Chains that go through the programs together
    chain_method: str | Callable  # As of `MCMC`; not used for one chain
    least: int  # Draws that the buffer must hold
    placement: Placement  # Puts chains and rows on devices

    def __post_init__(self) -> None:
        self._block = uncorrected_block(self.kernel)
        parts = self.kernel, self.postprocess, self.record, self.chain_method
        form = form_of(parts) if keeps_all_in_state(self.kernel) else None
        numbers = self.num_warmup, self.num_chains, self.least
        same_as = form, (*numbers, self.static, self.fields, self.removed)
        compiled = partial(self.placement.compiled, self.num_chains, same_as)
        # What a kernel learns in `init` it learns again in each trace.
        self.start = compiled(self._initial, runs_once=True)
        self.zeros = compiled(self._zeros, runs_once=True)
        self.refresh = compiled(self._refresh, runs_once=True)
        self.advance = compiled(self._advance, donate_argnums=1)

    def _map_chains(self, function: Callable, chained: PyTree, arrays: Sequence[DeviceRows]) -> Any:
        """Apply ``function(chain, arrays)`` to every chain."""
        return self.placement.map_chains(
            fast_convolutions(function), chained, arrays, self.num_chains, self.chain_method
        )

    def _initial(self, keys: jax.Array, init_params: PyTree, arrays: Sequence[DeviceRows]) -> State:
        """The states of chains at their starts."""
        return self._map_chains(self._init, (keys, init_params), arrays)

    def _arguments(self, arrays: Sequence[DeviceRows]) -> tuple[tuple, dict[str, Any]]:
        return Arguments.join(arrays[:-1], self.static)

    def _init(self, start: tuple[jax.Array, PyTree], arrays: Sequence[DeviceRows]) -> State:
        (key, init_params), (args, kwargs) = start, self._arguments(arrays)
        num_warmup = arrays[-1] if self.num_warmup is None else self.num_warmup
        # HMC writes arrays of this trace into the blocks of a matrix that it finds.
        name = "_inverse_mass_matrix"
        found = [(k, getattr(k, name, None)) for k in with_inner_kernels(self.kernel)]
        given = [(k, blocks) for k, blocks in found if isinstance(blocks, dict)]
        for kernel, blocks in given:
            setattr(kernel, name, dict(blocks))
        try:
            return self.kernel.init(
                key, num_warmup, init_params, model_args=args, model_kwargs=kwargs
            )
        finally:
            for kernel, blocks in given:
                setattr(kernel, name, blocks)

    def _map_states(
        self,
        function: Callable,
        state: State,
        init_params: PyTree,
        arrays: Sequence[DeviceRows],
        *more: PyTree,
    ) -> Any:
        """Apply ``function(state, args, kwargs, *more)`` to every chain."""

        def one(chain: tuple, arrays: Sequence[DeviceRows]) -> Any:
            state, init_params, *others = chain
            if not keeps_all_in_state(self.kernel):
                # The kernel learns what its steps need in the trace that they are called in. Which key does
                # not matter where nothing is executed.
                key = getattr(state, "rng_key", jax.random.key(0))
                self._init((key, init_params), arrays)
            return function(state, *self._arguments(arrays), *others)

        return self._map_chains(one, (state, init_params, *more), arrays)

    def _refresh(self, state: State, init_params: PyTree, arrays: Sequence[DeviceRows]) -> State:
        """States with all that they keep of data computed again."""

        def renewed(state: State, args: tuple, kwargs: dict[str, Any]) -> State:
            renew = getattr(self.kernel, "state_for_data", self.kernel.refresh)
            made = renew(state, args, kwargs)
            # Other types than before would compile `advance` again.
            return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), made, state)

        return self._map_states(renewed, state, init_params, arrays)

    def _zeros(self, state: State, init_params: PyTree, arrays: Sequence[DeviceRows]) -> Draws:
        """An empty draw buffer."""
        collect = partial(self._map_states, self._collected)
        shapes = jax.eval_shape(collect, state, init_params, arrays)
        at = 0 if self.num_chains == 1 else 1
        # Draws of all chains that a buffer of some megabytes holds, to a power of two: chunks of nearly the
        # same size share a program.
        sizes = (leaf.size * np.dtype(np.float64).itemsize for leaf in jax.tree.leaves(shapes))
        fitting = min(max(_BUFFER_BYTES // max(1, sum(sizes)), _FEWEST), _MOST)
        size = 1 << (max(self.least, fitting) - 1).bit_length()

        def zeros(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.zeros((*leaf.shape[:at], size, *leaf.shape[at:]), leaf.dtype)

        return jax.tree.map(zeros, shapes)

    def _collected(self, state: State, args: tuple, kwargs: dict[str, Any]) -> Draws:
        values = [_field(state, name, self._block) for name in self.fields]
        postprocess = self.postprocess or self.kernel.postprocess_fn(args, kwargs)
        values[0] = postprocess(values[0])
        if self.record is not None:
            values[0] = _recorded(self.record(values[0]))
        unknown = [site for site in self.removed if site not in values[0]]
        if unknown:
            raise ValueError(
                f"MCMC: extra_fields leaves out the sites {unknown}, which are not among the draws: "
                f"{list(values[0])}."
            )
        if self.removed:
            values[0] = {k: v for k, v in values[0].items() if k not in self.removed}
        return dict(zip(self.fields, values))

    def _advance(
        self,
        state: State,
        draws: Draws,
        init_params: PyTree,
        slot: jax.Array,
        num_draws: jax.Array,
        thinning: jax.Array,
        arrays: Sequence[DeviceRows],
    ) -> tuple[State, Draws]:
        """Take ``num_draws * thinning`` steps, and write the draws into the buffer from index `slot` on."""

        def steps(
            state: State, args: tuple, kwargs: dict[str, Any], draws: Draws
        ) -> tuple[State, Draws]:
            def step(_: int, state: State) -> State:
                after = self.kernel.sample(state, args, kwargs)
                return jax.tree.map(lambda leaf: strong(jnp.asarray(leaf)), after)

            def draw(i: jax.Array, carry: tuple) -> tuple:
                state, draws = carry
                state = lax.fori_loop(0, thinning, step, state)
                values = self._collected(state, args, kwargs)
                write = partial(lax.dynamic_update_index_in_dim, index=slot + i, axis=0)
                return state, jax.tree.map(lambda b, v: write(b, jnp.asarray(v)), draws, values)

            return lax.fori_loop(0, num_draws, draw, (state, draws))

        return self._map_states(steps, state, init_params, arrays, draws)


def split_fields(fields: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields to collect, each once, and sites to leave out of the draws."""
    prefix = f"~{fields[0]}."
    removed = tuple(name.removeprefix(prefix) for name in fields if name.startswith(prefix))
    return tuple(dict.fromkeys(f for f in fields if not f.startswith(prefix))), removed


def _recorded(values: Any) -> dict[str, Any]:
    """What `record` returned, if it is a mapping of arrays by name."""
    numbers = (bool, int, float, complex, np.ndarray, np.generic, jax.Array)
    leaves = jax.tree.leaves(dict(values)) if isinstance(values, Mapping) else []
    wrong = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, numbers)]
    if not leaves or wrong or not all(isinstance(name, str) for name in values):
        keys = f" with the keys {list(values)}" if isinstance(values, Mapping) else ""
        of = f" and values of {wrong}" if wrong else ""
        raise TypeError(
            f"MCMC: record must return a dict of arrays by name, got {type(values).__name__}{keys}{of}; "
            "nothing was sampled. End the function with `return {'name': values}`."
        )
    return dict(values)


def _field(state: State, name: str, block: int | None) -> Any:
    """A field of a state by its dotted name; of several blocks of a Gibbs sampler with it that of `block`."""
    # The names of sites may hold dots themselves.
    field, dot, site = name.partition(".")
    if not hasattr(state, field):
        # Of a Gibbs sampler: a field that one of its blocks has.
        blocks = getattr(state, "block_states", ())
        owners = [i for i, state_of_one in enumerate(blocks) if hasattr(state_of_one, field)]
        own = owners[0] if len(owners) == 1 else block
        if own is not None and own in owners:
            state = blocks[own]
    values = getattr(state, field, None)
    if dot and isinstance(values, dict) and site in values:
        return values[site]
    # The state of a kernel may hold that of an inner kernel: "hmc_state.energy".
    try:
        return nested_attrgetter(name)(state)
    except (AttributeError, TypeError, KeyError) as error:
        its = [*getattr(state, "_fields", ())]
        raise ValueError(
            f"MCMC: extra_fields names {name!r}, which the state has not: it has {its}."
        ) from error
