"""Places chains and rows of data on devices: one code path for one device, several, and several processes.

A mesh has an axis ``"chain"``, an axis ``"data"``, or both. Chains are shared out along the first:
each group of devices runs its own chains, at its own pace. Rows are shared out along the second,
and the compiler adds up what the devices of a group find (XLA's collectives). A program means the
same with rows on one device or on many, so that draws differ by the order of summation only.

The rows of a minibatch, which may be on any device, are exchanged so that each device works on an equal
part of them (:func:`taken_by_all`).

A number of rows that the devices do not divide is padded to one that they do, and cut back inside
the program, where it stays on its devices: the model never sees a padded row.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from numpyro_bnn._checks import is_typed_key
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.potential.rows import CHAIN, DATA, _shared_by


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Padded:
    """An array with rows of padding at its end."""

    array: jax.Array  # The padded array
    size: int = field(metadata={"static": True})  # Number of rows without the padding


# The rows of one array as programs take them.
DeviceRows: TypeAlias = Array | Padded


class Placement:
    """Puts chains and rows on the devices of a mesh."""

    def __init__(self, mesh: Mesh | None) -> None:
        # A mesh with explicit axes, the default of newer JAX, needs a sharding in every operation.
        self.mesh = None if mesh is None else Mesh(mesh.devices, mesh.axis_names)

    @classmethod
    def given(cls, mesh: Mesh | None, num_chains: int, chain_method: object) -> "Placement":
        """The placement for the argument `mesh` of ``MCMC``; where it is None, a rule decides."""
        if mesh is None:
            fitting = [d for d in range(1, jax.local_device_count() + 1) if num_chains % d == 0]
            devices = jax.local_devices()[: max(fitting) if chain_method == "parallel" else 1]
            return cls(Mesh(np.asarray(devices), (CHAIN,)) if len(devices) > 1 else None)
        if not set(mesh.axis_names) <= {CHAIN, DATA}:
            raise ValueError(
                f"MCMC: the axes of mesh must be among 'chain' and 'data', got {mesh.axis_names}."
            )
        if chain_method not in ("parallel", "vectorized"):
            raise ValueError(
                f"MCMC: a mesh goes with chain_method 'parallel' or 'vectorized', got {chain_method!r}."
            )
        groups = mesh.shape.get(CHAIN, 1)
        if num_chains % groups:
            raise ValueError(
                f"MCMC: the axis 'chain' of mesh has {groups} devices, which do not divide "
                f"num_chains={num_chains}. Choose a multiple of {groups}, or more devices for 'data'."
            )
        return cls(mesh)

    @property
    def spans_processes(self) -> bool:
        """Whether some of the devices belong to other processes."""
        devices = () if self.mesh is None else self.mesh.devices.flat
        return any(device.process_index != jax.process_index() for device in devices)

    @property
    def num_shards(self) -> int:
        """Devices that share the rows."""
        return 1 if self.mesh is None else self.mesh.shape.get(DATA, 1)

    def _sharding(self, *axes: str) -> NamedSharding:
        assert self.mesh is not None
        known = [a for a in axes if a in self.mesh.axis_names]
        return NamedSharding(self.mesh, PartitionSpec(*known))

    def rows(self, arrays: Sequence[Array], sizes: Collection[int]) -> list[DeviceRows]:
        """Put data on the devices."""
        if self.mesh is None:
            return [jnp.asarray(a) for a in arrays]
        shards = self.num_shards
        if shards > 1 and not sizes:
            raise ValueError(
                "MCMC: the devices along the axis 'data' of mesh share the rows of the plate around the "
                "observed sites, and there is none here. Put one there, or use the axis 'chain' alone."
            )
        on_devices: list[Any] = []
        for array in arrays:
            if shards == 1 or not np.ndim(array) or len(array) not in sizes:
                on_devices.append(_put(array, self._sharding()))
                continue
            size = len(array)
            more = [(0, -size % shards)] + [(0, 0)] * (np.ndim(array) - 1)
            library: Any = jnp if isinstance(array, jax.Array) else np
            padded = library.pad(array, more)
            on_devices.append(Padded(_put(padded, self._sharding(DATA)), size))
        return on_devices

    def chains(self, chained: PyTree, num_chains: int) -> PyTree:
        """Put arrays with a leading axis of chains (none for one chain) on the devices of their chains."""
        if self.mesh is None:
            return chained
        sharding = self._chain_sharding(num_chains)
        return jax.tree.map(lambda leaf: _put(leaf, sharding), chained)

    def abstract(self, chained: PyTree, num_chains: int) -> PyTree:
        """Shapes and types of arrays with a leading axis of chains, and where :meth:`chains` puts them."""
        sharding = None if self.mesh is None else self._chain_sharding(num_chains)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), chained
        )

    def _chain_sharding(self, num_chains: int) -> NamedSharding:
        return self._sharding(*([CHAIN] if num_chains > 1 else []))

    def compiled(
        self, num_chains: int, same_as: tuple, function: Callable, **options: Any
    ) -> Program:
        """`function`, compiled so that its results stay on the devices of their chains."""
        if self.mesh is not None:
            options["out_shardings"], same_as = self._chain_sharding(num_chains), (None,)
        return Program(function, same_as=(*same_as, function.__name__), **options)

    def map_chains(
        self,
        function: Callable,
        chained: PyTree,
        arrays: Sequence[DeviceRows],
        num_chains: int,
        chain_method: str | Callable,
    ) -> PyTree:
        """Apply ``function(chain, arrays)`` to every chain, the way `chain_method` says."""
        if self.mesh is None and num_chains > 1:
            transform: Any = jax.vmap if chain_method == "vectorized" else chain_method
            return transform(lambda chain: function(chain, arrays))(chained)

        def local(chained: Any, arrays: Sequence[DeviceRows]) -> Any:
            # Cut inside the program and inside its groups: outside, it would gather all rows first.
            own = [a.array[: a.size] if isinstance(a, Padded) else a for a in arrays]

            def each(chain: Any) -> Any:
                return function(chain, own)

            if num_chains == 1:
                return each(chained)
            return lax.map(each, chained) if one_by_one else jax.vmap(each)(chained)

        # Chains of one device follow each other on a CPU, where vectorising them gains nothing.
        on_cpu = self.mesh is not None and self.mesh.devices.flat[0].platform == "cpu"
        one_by_one = on_cpu and chain_method != "vectorized"
        with _shared_by(self.mesh if self.num_shards > 1 else None):
            if self.mesh is None or num_chains == 1 or CHAIN not in self.mesh.axis_names:
                return local(chained, arrays)
            return jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(PartitionSpec(CHAIN), PartitionSpec()),
                out_specs=PartitionSpec(CHAIN),
                axis_names={CHAIN},
                check_vma=False,
            )(chained, arrays)

    def gathered(self, tree: PyTree) -> PyTree:
        """Arrays of all chains, copied to this process; every process must call this."""
        if not self.spans_processes:
            return tree
        copied = jax.jit(lambda tree: tree, out_shardings=self._sharding())(tree)
        # All processes must run their programs in the same order.
        jax.block_until_ready(copied)
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), copied)


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and is_typed_key(leaf):
        data = _put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    # Every process has all values, and puts on its devices the part that belongs there.
    values = np.asarray(leaf)
    kind = jax.dtypes.canonicalize_dtype(values.dtype)
    return jax.make_array_from_callback(
        values.shape, sharding, lambda index: values[index].astype(kind)
    )
