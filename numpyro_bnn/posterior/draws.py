"""Posterior draws that carry their model: the one type for draws of samplers, ensembles and files."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.data.arguments import about_numbers, as_arrays, bound_by_row, units_of
from numpyro_bnn.data.columns import about_inputs, check_columns, check_row_shapes
from numpyro_bnn.data.units import native
from numpyro_bnn.posterior.fitted import arguments_of, held_by, inputs_of
from numpyro_bnn.potential.compiled_arguments import like
from numpyro_bnn.samplers.kernels import has_exact_energy
from numpyro_bnn.samplers.suspects import suspects_in

# Reason for chains of a file that were not selected.
NOT_READ = "not read"


class Draws(Mapping[str, Any]):
    """Values of every site, shaped like ``mcmc.get_samples(group_by_chain=True)``.

    :param values: arrays (chain, draw, …) by site name.
    :param model: the model that they are draws of.
    :param stats: arrays (chain, draw) about the sampler: ``diverging``, ``num_steps``,
        ``potential_energy``, ….
    :param info: facts about the run: ``kernel``, ``num_warmup``, …; ``approximation`` is true of draws that
        do not come from a sampler of the posterior.
    """

    def __init__(
        self,
        values: Mapping[str, ArrayLike],
        model: Callable | None = None,
        stats: Mapping[str, ArrayLike] | None = None,
        info: Mapping[str, object] | None = None,
    ) -> None:
        shapes = {name: np.shape(value)[:2] for name, value in values.items()}
        if not shapes or len(set(shapes.values())) > 1 or len(next(iter(shapes.values()))) != 2:
            raise ValueError(
                "Draws need arrays with the same two leading axes (chain, draw) for every site, "
                f"got leading axes {shapes}."
            )
        # Files of netCDF-3, for one, hold numbers in a byte order that JAX does not take.
        self.values_by_site: dict[str, Any] = {n: native("Draws", n, v) for n, v in values.items()}
        self.info: dict[str, Any] = dict(info or {})
        # Numbers that the fit was given are part of its model; one that the caller binds comes first.
        numbers, bound = self.info.get("numbers", {}), bound_by_row(model, None)
        more = {name: value for name, value in numbers.items() if name not in bound}
        self.model = partial(model, **more) if model is not None and more else model
        self.stats: dict[str, Any] = {n: native("Draws", n, v) for n, v in (stats or {}).items()}
        # Arguments of the model in the fit, where they are kept.
        self._args: tuple = ()
        self._kwargs: dict[str, PyTree] = {}

    def bound_to(self, by_row: Mapping[str, PyTree]) -> "Draws":
        """These draws, with values of further arguments of their model, such as an offset of each row."""
        if not by_row or self.model is None:
            return self
        return Draws(self, partial(self.model, **by_row), self.stats, self.info)

    def __getitem__(self, site: str) -> Any:
        return self.values_by_site[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_site)

    def __len__(self) -> int:
        return len(self.values_by_site)

    def __repr__(self) -> str:
        kernel = self.info.get("kernel", "")
        return f"Draws({kernel}: {self.num_chains} chains × {self.num_draws} draws, {list(self)})"

    @property
    def left_out(self) -> dict[int, str]:
        """Chains (or members) that failed and are not among these draws: reason by number."""
        return {int(chain): why for chain, why in self.info.get("left_out", {}).items()}

    @property
    def suspect(self) -> dict[int, str]:
        """Chains among these draws that never moved or mostly diverged: reason by number in the run."""
        return suspects_in(self.info)

    @property
    def has_exact_energy(self) -> bool:
        """Whether ``stats["potential_energy"]`` is the energy on all rows at each of these draws.

        Of steps without a Metropolis decision most have it at the draw before, and minibatches estimate it.
        Draws of older versions do not say it; if their steps have a temperature, it is not relied on.
        """
        return bool(self.info.get("exact_energy", "temperature" not in self.stats))

    @property
    def num_chains(self) -> int:
        """Number of chains, or of members of an ensemble."""
        return np.shape(next(iter(self.values())))[0]

    @property
    def num_draws(self) -> int:
        """Number of draws of each chain."""
        return np.shape(next(iter(self.values())))[1]


class HasDraws(Protocol):
    """The result of an analysis that holds draws, such as :class:`numpyro_bnn.Fit`."""

    @property
    def draws(self) -> Draws:
        """The draws to predict with."""


class FittedDraws(Protocol):
    """An estimator that was fitted, such as :class:`numpyro_bnn.BNNRegressor`."""

    draws_: Draws


# A run: whatever holds draws of a model. A mapping holds arrays (chain, draw, …) by name of the site.
Run: TypeAlias = NumPyroMCMC | Draws | HasDraws | FittedDraws | Mapping[str, ArrayLike]


def draws_of(run: Run, model: Callable | None = None, owner: str = "draws_of") -> Draws:
    """The draws of a run, a fit, an estimator, a :class:`Draws` or a mapping, as :class:`Draws`."""
    if isinstance(inside := held_by(run, "draws"), Draws):
        run = inside
    if isinstance(run, Draws):
        _refuse_other_units(owner, run.model, model)
        return run if model is None else Draws(run, like(model, run.model), run.stats, run.info)
    if isinstance(run, NumPyroMCMC):
        if run._states is None:
            raise ValueError(f"{owner}: the MCMC has no draws yet; call `run` first.")
        _refuse_other_units(owner, getattr(run.sampler, "model", None), model)
        samples = run.get_samples(group_by_chain=True)
        stats = stats_by_site(run.get_extra_fields(group_by_chain=True))
        info = {
            "kernel": type(run.sampler).__name__,
            "num_warmup": run.num_warmup,
            "thinning": run.thinning,
            "exact_energy": has_exact_energy(run.sampler),
            **limits_of(run.sampler),
        }
        # NumPyro's own MCMC records neither.
        about = {name: getattr(run, name, {}) for name in ("left_out", "suspect")}
        info |= {name: dict(chains) for name, chains in about.items() if chains}
        info |= {} if hasattr(run, "left_out") else {"fixed_anew": True}
        # NumPyro's own MCMC keeps the tables that it was given, and no names.
        info |= about_inputs(inputs_of(run, model), getattr(run, "columns", ()), samples)
        own = getattr(run.sampler, "model", None)
        info |= about_numbers(own, *arguments_of(run))
        return Draws(samples, like(model, own) or own, stats, info)
    if isinstance(run, Mapping):
        return Draws(run, model)
    raise TypeError(
        f"{owner}: expected an MCMC after `run`, what `fit` returned, a fitted estimator, or draws by "
        f"site name, got {type(run).__name__}."
    )


def _refuse_other_units(owner: str, own: Callable | None, given: Callable | None) -> None:
    """Refuse a ready model that keeps the units of other data than the model that was run."""
    ours, theirs = units_of(own), units_of(given)
    if ours is None or theirs is None:
        return
    for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
        values = getattr(ours, name), getattr(theirs, name)
        if not np.array_equal(*values):
            raise ValueError(
                f"{owner}: the model that was given keeps the units of other data than the model of the run: "
                f"{name} {values[1].tolist()}, and {values[0].tolist()} in the run. Give the model that was "
                "run, or None."
            )


def checked_inputs(
    owner: str, model: Callable | None, about: Mapping[str, Any], x: PyTree
) -> PyTree:
    """Inputs as arrays, whose columns are those of the fit that `about` is about."""
    check_columns(owner, "x", about.get("columns", []), x)
    (arrays,), _ = as_arrays(model, (x,), {})
    check_row_shapes(owner, "x", about, arrays)
    return arrays


def stats_by_site(stats: Mapping[str, PyTree]) -> dict[str, Array]:
    """Statistics with one array for all sites, split into one array a site: ``"name[site]"``."""
    flat: dict[str, Array] = {}
    for name, value in stats.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}[{site}]": leaf for site, leaf in value.items()}
        else:
            flat[name] = value
    return flat


def limits_of(sampler: MCMCKernel) -> dict[str, int | None]:
    """The most steps of a trajectory: ``"max_num_steps"`` of NUTS, ``"trajectory_limit"`` of MAMS."""
    if type(sampler).__name__ == "Interleaved":
        sampler = sampler.kernel
    depth, rule = (getattr(sampler, name, None) for name in ("_max_tree_depth", "metropolis"))
    tree = None
    if type(sampler).__name__ == "NUTS" and depth is not None:
        tree = 2 ** (depth[1] if isinstance(depth, tuple) else depth) - 1
    has_length = getattr(rule, "trajectory_length", None) is not None
    longest = {"trajectory_limit": getattr(rule, "num_steps", None)} if has_length else {}
    return {"max_num_steps": tree, **longest}


def group_by_chain(samples: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict:
    """Give flat draws (draw, …) a chain axis of one; leave (chain, draw, …) as it is."""
    known = [name for name in samples if name in shapes]
    extra = {np.ndim(samples[name]) - len(shapes[name]) for name in known}
    if extra == {1}:
        return {name: value[None] for name, value in samples.items()}
    if extra != {2}:
        found = {name: np.shape(samples[name]) for name in known}
        raise ValueError(
            f"Draws must have leading axes (draw,) or (chain, draw); got shapes {found} for sites "
            f"of shapes { {name: shapes[name] for name in known} }."
        )
    return dict(samples)


def one_draw(draws: Mapping[str, Any], chain: int, draw: int) -> dict[str, np.ndarray]:
    """One draw on the host, by site."""
    on_device = {name: value for name, value in draws.items() if isinstance(value, jax.Array)}
    found = _at(on_device, chain, draw)
    # In the order of the draws.
    return {n: np.asarray(found[n] if n in found else v[chain, draw]) for n, v in draws.items()}


@jax.jit
def _at(values: dict[str, jax.Array], chain: int, draw: int) -> dict[str, jax.Array]:
    # One program for all sites: each shape would compile separately otherwise.
    return {name: value[chain, draw] for name, value in values.items()}
