"""A kernel with exact moves after each of its steps.

:class:`Interleaved` converts the state of any kernel to constrained values of all sites in centred
coordinates, applies the moves of :mod:`numpyro_bnn.samplers.gibbs.moves`, and returns a state of the kernel
at the new values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from numpyro.distributions import biject_to
from numpyro.handlers import seed, trace
from numpyro.infer.gibbs import CustomGibbs, DiscreteGibbs, Gibbs, with_conditioning
from numpyro.infer.hmc import HMCState
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._text import ReprMixin
from numpyro_bnn._types import PyTree
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.potential.flat_position import flat_like
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.starts import own_coordinates
from numpyro_bnn.priors.precision_conditionals import GammaScaleMixture
from numpyro_bnn.samplers.fields import fields_of, has_exact_energy
from numpyro_bnn.samplers.gibbs.moves import Bound, Move
from numpyro_bnn.samplers.gibbs.precision_gibbs import PrecisionGibbs
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState
from numpyro_bnn.samplers.temperature_of_kernels import refuse_temperature


class Interleaved(ReprMixin, MCMCKernel):
    """A kernel over a model, and moves after each of its steps.

    :param kernel: HMC, NUTS or a kernel of this package over the model in centred or non-centred
        coordinates, or ``Gibbs`` of them (:func:`numpyro_bnn.neal`).
    :param moves: steps that leave the posterior as it is, in order.
    :raises TypeError: if `kernel` is no kernel over a model.
    :raises ValueError: for a kernel at another temperature than 1, or that takes minibatches, with a move
        that needs all rows; when run, for collapsed coordinates, which have no precisions to move.
    """

    def __init__(self, kernel: MCMCKernel, moves: Sequence[Move]) -> None:
        if not isinstance(kernel, MCMCKernel) or getattr(kernel, "model", None) is None:
            raise TypeError(f"Interleaved: expected a kernel over a model, got {kernel!r}.")
        _check_kernel(kernel, moves)
        self.kernel: Any = kernel.as_part() if isinstance(kernel, SGMCMC) else kernel
        self.moves = tuple(moves)
        self._sample_fn: Callable | None = None

    @property
    def model(self) -> Callable:
        """The model of the inner kernel."""
        return self.kernel.model

    @property
    def sample_field(self) -> str:
        """The state field that holds the position, as the inner kernel names it."""
        return self.kernel.sample_field

    @property
    def default_fields(self) -> tuple[str, ...]:
        """State fields that are collected of each draw: those of the inner kernel."""
        return fields_of(self.kernel)

    @property
    def has_exact_energy(self) -> bool:
        """Whether ``potential_energy`` is exact at the draw, as that of the inner kernel is."""
        return has_exact_energy(self.kernel)

    def get_diagnostics_str(self, state: PyTree) -> str:
        """Text for the progress bar, from the inner kernel."""
        return self.kernel.get_diagnostics_str(state)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """The function that turns a position into values of sites, from the inner kernel."""
        return self.kernel.postprocess_fn(model_args, model_kwargs)

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: PyTree,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> PyTree:
        """The first state of a chain: that of the inner kernel.

        :raises ValueError: for collapsed coordinates, which have no precisions to move.
        """
        state = self.kernel.init(rng_key, num_warmup, init_params, model_args, model_kwargs)
        self._check(Bound(self.model, model_args, model_kwargs), getattr(state, self.sample_field))
        self._sample_fn = self._sample_one
        return state

    def _check(self, bound: Bound, z: Values) -> None:
        if isinstance(self.kernel, Gibbs):
            hidden = [name for name in bound.latent if name not in z]
        else:
            sites = trace(seed(self.model, jax.random.key(0))).get_trace(
                *bound.args, **bound.kwargs
            )
            distributions = {
                n: unwrapped(s["fn"]) for n, s in sites.items() if s["type"] == "sample"
            }
            hidden = [
                n
                for n, distribution in distributions.items()
                if isinstance(distribution, GammaScaleMixture)
            ]
        if hidden:
            raise ValueError(
                f"Interleaved: moves need weights and precisions, and the kernel has none at {hidden}: it "
                "integrates them out, or sees the model in other coordinates. Build it over "
                '`bnn.parameterize(model, "noncentered")` or "centered", or with `bnn.neal(model)`.'
            )

    def state_for_data(self, state: PyTree, model_args: tuple, model_kwargs: dict | None) -> PyTree:
        """The state with what the inner kernel keeps of the data recomputed; moves keep nothing."""
        return self.kernel.refresh(state, model_args, model_kwargs)

    def sample(self, state: PyTree, model_args: tuple, model_kwargs: dict | None) -> PyTree:
        """One step of the inner kernel, then each move in order."""
        assert self._sample_fn is not None
        return self._sample_fn(state, model_args, model_kwargs)

    def _sample_one(self, state: PyTree, args: tuple, kwargs: dict | None) -> PyTree:
        state = self.kernel.sample(state, args, kwargs)
        key, *keys = jax.random.split(state.rng_key, 1 + len(self.moves))
        bound = Bound(self.model, args, kwargs)
        values = centered_values(self.kernel, getattr(state, self.sample_field), bound)
        for key_move, move in zip(keys, self.moves):
            values = move(key_move, values, bound)
        return state_at(self.kernel, state._replace(rng_key=key), values, bound)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sample_fn": None}


def _check_kernel(kernel: MCMCKernel, moves: Sequence[Move]) -> None:
    """Refuse other temperatures than 1, and minibatches under a move that needs all rows."""
    parts = [part for part, _ in kernel.blocks] if isinstance(kernel, Gibbs) else [kernel]
    for part in parts:
        refuse_temperature(
            part,
            "Moves keep the posterior, the distribution at temperature 1. Leave the moves out, or sample at "
            "temperature 1.",
        )
        rows = part.gradient.batch_size if isinstance(part, SGMCMC) else None
        for move in moves:
            if rows is not None and getattr(move, "needs_all_rows", False):
                name = type(part).__name__
                raise ValueError(
                    f"Interleaved: {type(move).__name__} draws from the posterior given all rows, and {name} "
                    f"takes minibatches of {rows}. Use a kernel on all rows, such as HMC or {name} without "
                    "`batch_size=` and `gradient=`, or leave the move out."
                )


def centered_values(kernel: MCMCKernel, z: Values, bound: Bound) -> Values:
    """Constrained values of all sites of the model in centred coordinates."""
    if isinstance(kernel, Gibbs):
        return dict(kernel.get_constrain_fn(bound.args, bound.kwargs)(z))
    own = Potential(kernel.model, bound.args, bound.kwargs).constrain(z, deterministic=True)
    return {name: own[name] for name in bound.latent}


def state_at(kernel: MCMCKernel, state: PyTree, values: Values, bound: Bound) -> PyTree:
    """The state of a kernel moved to other values of its sites; energies and gradients are recomputed."""
    args, kwargs = bound.args, bound.kwargs
    if not isinstance(kernel, Gibbs):
        z = own_coordinates(Potential(kernel.model, args, kwargs), values)
        after = kernel.refresh(_at(z, state, kernel), args, kwargs)
        if not isinstance(state, HMCState):
            return after
        # HMC records the total energy of each draw: now that of the new position and the same momentum.
        change = after.potential_energy - state.potential_energy
        return after._replace(energy=state.energy + change)
    states: list[Any] = []
    merged: Values = {}
    for (part, _), own in zip(kernel.blocks, state.block_states):
        z = _native(part, getattr(own, part.sample_field), values, bound)
        others = {name: value for name, value in values.items() if name not in z}
        own = part.refresh(_at(z, own, part), args, with_conditioning(kwargs, others))
        states.append(own)
        merged |= z
    return state._replace(z=merged, block_states=tuple(states))


def _at(z: Values, state: PyTree, kernel: MCMCKernel) -> PyTree:
    """A state with another position and its own momentum."""
    if isinstance(state, SGMCMCState):
        position = flat_like(state.dynamics.position, z)
        return state._replace(dynamics=state.dynamics._replace(position=position))
    return state._replace(**{kernel.sample_field: z})


def _native(kernel: MCMCKernel, z: Values, values: Values, bound: Bound) -> Values:
    """Values of the sites in the form of the kernel's state: constrained for Gibbs, else unconstrained."""
    if isinstance(kernel, (PrecisionGibbs, CustomGibbs, DiscreteGibbs)):
        return {name: values[name] for name in z}
    sites = bound.sites(values)
    return {name: biject_to(sites[name]["fn"].support).inv(values[name]) for name in z}
