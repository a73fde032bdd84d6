"""The private half of ``MCMC``: trace the model with its data, compile once, sample, warn of what failed.

The public class with its arguments and promises is :class:`numpyro_bnn.MCMC`.

A run may continue from a given state: after ``warmup``, or from a ``post_warmup_state``. A state holds
numbers that were computed from data: a potential energy, a gradient, the anchor of a control variate. With
other data they are wrong, and a Metropolis step or an anchored gradient goes on with them. So this file
remembers for which data a state was made. States of other data, or of unknown ones, are computed again at the
same position; a state of the same data is left as it is, and gives the same draws bit for bit.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import _is_under_jax_transform, is_prng_key

from numpyro_bnn._calls import all_or_nothing
from numpyro_bnn._checks import check_key, is_typed_key, refuse_equal_keys, warn
from numpyro_bnn._text import constructor_of
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.data.columns import Columns
from numpyro_bnn.data.not_finite import advice_on_data, not_finite
from numpyro_bnn.potential.compiled_arguments import Arguments, Fixed, fixed_in
from numpyro_bnn.potential.starts import BoundModel, starts_for
from numpyro_bnn.potential.structure import explain_tracing
from numpyro_bnn.run.chain_states import ChainStates, Plan
from numpyro_bnn.run.devices import Placement
from numpyro_bnn.run.kernel_protocol import (
    after_pilot,
    can_recompute,
    ignores_row_count,
    is_zero_temperature,
    over_model,
    takes_traced_warmup,
    with_inner_kernels,
)
from numpyro_bnn.run.programs import Programs, split_fields
from numpyro_bnn.run.recorder import Disk
from numpyro_bnn.run.refusals import check_call
from numpyro_bnn.run.sampling import Judge, Sampling, explain_memory
from numpyro_bnn.samplers import suspects
from numpyro_bnn.samplers.kernels import fields_of, warn_of_momenta
from numpyro_bnn.samplers.tempering.evidence import Tempering
from numpyro_bnn.storage.checkpoints import Start
from numpyro_bnn.storage.processes import Processes
from numpyro_bnn.storage.same_run import Facts, environment, facts_of
from numpyro_bnn.storage.stored_array import StoredArray

# Fewer draws than these say little of a spread; numbers of draws on disk that are read at a time.
_ENOUGH_FOR_A_SPREAD, _BLOCK = 20, 2**22
# Attributes of a run that decide its draws, or how they are cut into chunks.
_SETTINGS = ("num_warmup", "num_samples", "num_chains", "thinning", "chain_method", "chunk_size")


class CompiledRuns(NumPyroMCMC):
    """NumPyro's ``MCMC`` with compiled programs; :class:`numpyro_bnn.MCMC` sets its attributes."""

    sampler: MCMCKernel
    left_out: dict[int, str]
    suspect: dict[int, str]
    columns: Columns
    stopped: Any
    record: Callable | None
    chunk_size: int | None
    _placement: Placement
    _programs: dict[tuple, Programs]
    # The state after the last run, and the posterior that it belongs to.
    _made: tuple[PyTree, "Origin | None"]
    _processes: Processes
    _disk: Disk | None
    _kernel: MCMCKernel
    _args: tuple
    _kwargs: dict[str, PyTree]

    warmup = all_or_nothing(NumPyroMCMC.warmup)

    def _set_collection_params(self, *args: Any, **kwargs: Any) -> None:
        # A new dict: what is to be run must not stay in the old one where the run is refused.
        self._collection_params: dict[str, Any] = {}
        super()._set_collection_params(*args, **kwargs)

    @property
    def model(self) -> Callable | None:
        """The model of the kernel; None for a kernel over a potential function."""
        return getattr(self.sampler, "model", None)

    def _begin(
        self,
        rng_key: jax.Array,
        args: tuple,
        kwargs: dict[str, Any],
        extra_fields: tuple[str, ...],
        init_params: Any,
        make_judge: Callable[[], Judge] | None = None,
    ) -> None:
        """Start a run of a fixed number of draws, or a run that a stopping rule ends."""
        check_key("MCMC.run", rng_key, self.num_chains)
        if not is_prng_key(rng_key) and not is_zero_temperature(self.sampler, self.num_samples):
            refuse_equal_keys("MCMC.run", rng_key)
        check_chains(self._warmup_state, self.num_chains)
        fit = self._see(args, kwargs)
        start = self._start_of(rng_key, fit, init_params)._replace(extra_fields=extra_fields)
        judge = None if make_judge is None else make_judge()
        if judge is not None:
            start = start._replace(until=judge.settings, at=judge.at)
        if self._disk is not None:
            self._refuse_parts()
        with self._on_disk(resumed=False), explain_tracing(), explain_memory():
            self._sample(start, fit, None, judge)

    def _start_of(self, rng_key: jax.Array, fit: BoundModel | None, starts: Any) -> Start:
        """A key and a position for each chain."""
        starts = starts_for(self.sampler, fit, starts, self.num_chains)
        if starts is None and fit is None and self._warmup_state is not None:
            # Kernels over a potential learn the form of a position from a start.
            starts = getattr(self._warmup_state, self._sample_field)
        several = self.num_chains > 1 and is_prng_key(rng_key)
        keys = jax.random.split(rng_key, self.num_chains) if several else rng_key
        return Start(keys, starts, ())

    def set_lengths(self, num_warmup: int, num_samples: int) -> None:
        """Change the numbers of steps of the next run; its programs stay."""
        self.num_warmup, self.num_samples = num_warmup, num_samples
        self._set_collection_params()

    def prepared(
        self, rng_key: jax.Array, *args: Any, init_params: PyTree, **kwargs: Any
    ) -> ChainStates:
        """Chains at their starts, with the programs of a run, which another thread may compile."""
        fit = self._see(args, kwargs)
        # In stages, so that a run with a stopping rule has these programs too.
        plan = self._plan().in_stages()
        states = self._chain_states(self._start_of(rng_key, fit, init_params), plan, fit)
        states.start()
        states.fresh_buffers()
        states.compile()
        return states

    def _on_disk(self, resumed: bool) -> AbstractContextManager[None]:
        """Lock the folders of this run, so that no other run writes to them meanwhile."""
        return nullcontext() if self._disk is None else self._disk.locked(resumed)

    @property
    def _is_numpyros_own(self) -> bool:
        """Whether NumPyro's own `run` does the work: inside transformations, and for ensembles."""
        return _is_under_jax_transform() or self.sampler.is_ensemble_kernel

    def _see(self, args: tuple, kwargs: dict[str, Any]) -> BoundModel | None:
        """Trace the model with its data, and refuse what the kernel cannot sample correctly."""
        fit = check_call(self.sampler, self.model, self.chunk_size is not None, args, kwargs)
        self._args, self._kwargs = (args, kwargs) if fit is None else fit.arrays
        if fit is not None and (values := fixed_in(fit.model)) and not fixed_in(self.model):
            # From here on the run is one of a model with these values of its fixed parameters.
            fix = partial(Fixed, data=values)
            self.sampler, self._kernel = (over_model(k, fix) for k in (self.sampler, self._kernel))
        if self._warmup_state is None:
            for kernel in with_inner_kernels(self.sampler):
                if hasattr(kernel, "check_num_warmup"):
                    kernel.check_num_warmup(self.num_warmup)
        self.columns = [] if fit is None else fit.columns
        return fit

    def _facts(self, disk: Disk, fit: BoundModel | None) -> Facts:
        """Facts about settings, data and libraries; read before the run, which may change arrays in place."""
        settings = {name: getattr(self, name) for name in _SETTINGS} | disk.settings
        mesh = self._placement.mesh
        settings["mesh"] = None if mesh is None else dict(mesh.shape)
        sites = {} if fit is None else {n: str(s.shape) for n, s in fit.structure.sites.items()}
        settings |= {"sites": sites} | ({} if fit is None else fit.facts)
        return facts_of(settings | {"data": [self._args, self._kwargs]}) | environment()

    def _refuse_parts(self) -> None:
        plan = self._collection_params
        whole = (self.num_warmup, self.num_warmup + self.num_samples)
        if self._warmup_state is not None or (plan["lower"], plan["upper"]) != whole:
            raise ValueError(
                "MCMC: a run on disk (checkpoint=, draws=) is warm-up and sampling together, and "
                "starts anew. Call `run` alone, without `warmup` or `post_warmup_state`."
            )

    def _plan(self) -> Plan:
        """The lengths of the run, of its segments and of its chunks."""
        bounds = 0, self.num_samples
        if self._warmup_state is None:
            bounds = self._collection_params["lower"], self._collection_params["upper"]
        every = None if self._disk is None else self._disk.every
        return Plan.of_phase(bounds, self.thinning, self.progress_rate, every)

    def _chain_states(self, start: Start, plan: Plan, fit: BoundModel | None) -> ChainStates:
        """States of the chains, which run together or (chain_method "sequential") one after another."""
        args, kwargs = (self._args, self._kwargs) if fit is None else (fit.args, fit.kwargs)
        if fit is not None and self._placement.mesh is None and ignores_row_count(self._kernel):
            args, kwargs = fit.padded
        self._kernel = after_pilot(self._kernel, start.keys, args, kwargs)
        arguments = Arguments.split(args, kwargs)
        one_by_one = self.chain_method == "sequential" and self.num_chains > 1
        least = 1 if plan.every is None else plan.chunk
        num_warmup = steps_of_warmup(self._warmup_state, self.num_warmup)
        fixed = None if takes_traced_warmup(self._kernel) else num_warmup
        fields = (self._sample_field, *fields_of(self.sampler), *start.extra_fields)
        collected, removed = split_fields(fields)
        key = (arguments.static, collected, removed, fixed)
        try:
            programs = self._programs.get(key)
        except TypeError as error:
            raise TypeError(
                f"MCMC: arguments of the model must be arrays or hashable constants ({error}). "
                "Convert tables and the like with `np.asarray`."
            ) from error
        if programs is None or programs.least < least:
            programs = self._programs[key] = Programs(
                kernel=self._kernel,
                num_warmup=fixed,
                static=arguments.static,
                fields=collected,
                removed=removed,
                postprocess=self.postprocess_fn,
                record=self.record,
                num_chains=1 if one_by_one else self.num_chains,
                chain_method=self.chain_method,
                least=least,
                placement=self._placement,
            )
        return ChainStates(
            programs,
            self.num_chains,
            one_by_one,
            start.keys,
            start.init_params,
            [*arguments.arrays, np.asarray(num_warmup, np.int32)],
            set() if fit is None else fit.structure.row_counts,
        )

    def _sample(
        self,
        start: Start,
        fit: BoundModel | None,
        accept: Collection[str] | None,
        judge: Judge | None = None,
    ) -> None:
        """Run the chains from their start (`accept` is None), or from the last checkpoint."""
        plan = self._plan() if judge is None else self._plan().in_stages()
        chain_states = self._chain_states(start, plan, fit)
        # Chains of another process are not in this one's memory, and cannot be checked here.
        shown = self.progress_bar and not self._processes.several
        # Before the run: arrays may be changed in place while it goes on, or after it.
        origin = origin_of(self.sampler, self._args, self._kwargs)
        # A state that was changed, loaded or made by another run belongs to no known posterior.
        last, made_for = self._made
        before = made_for if self._warmup_state is last else None
        sampling = Sampling(
            kernel=self.sampler,
            sample_field=self._sample_field,
            start=start,
            fit=fit,
            chain_states=chain_states,
            plan=plan,
            disk=self._disk,
            processes=self._processes,
            num_bars=self.num_chains if shown else 0,
            warmed_up=self._warmup_state,
            stale=is_stale(self._kernel, self._warmup_state, before, origin),
            judge=judge,
        )
        if self._disk is not None:

            def program() -> dict[str, str]:
                return {"kernel": constructor_of(self.sampler), "program": chain_states.text()}

            if accept is None:
                self._disk.begin(start, self._facts(self._disk, fit), program)
            else:
                self._disk.refuse_other_program(program(), accept)
        self._states, bad, num_draws = sampling.run(resumed=accept is not None)
        self._last_state = chain_states.stacked
        self._made = self._last_state, origin
        self._states_flat = None
        suspect = self._find_suspects(self._collection_params["phase"])
        self.left_out = suspects.exploded_chains(self._last_state) | not_finite(bad)
        if self.left_out:
            about_data = advice_on_data(self.model, self._args, self._kwargs)
            suspects.warn_of_failed(self.left_out, self.num_chains, about_data)
            self._states = without_chains(self._states, self.left_out, self.num_chains)
        self.suspect = {c: why for c, why in suspect.items() if c not in self.left_out}
        self.stopped = None if judge is None else judge.stopped(num_draws)
        can_resume = self._disk is not None and self._disk.checkpoint is not None
        warn_of_early_end(self.stopped, num_draws, plan.draws, can_resume)
        if self._disk is not None:
            self._processes.first(partial(self._note, self._disk))
            if self._disk.dtype is not None:
                latent = getattr(self._last_state, self._sample_field, {})
                sites = self._states[self._sample_field]
                recorded = [name for name in latent if name in sites]
                warn_of_rounding(sites, recorded, self._disk.dtype)
        self._set_collection_params()
        suspects.warn_of_run(self.suspect, self.num_chains)
        if not self.suspect:
            warn_of_momenta(self._states)

    def _note(self, disk: Disk) -> None:
        """Write what is known at the end of a run beside its draws."""
        raise NotImplementedError

    def _find_suspects(self, phase: str | None) -> dict[int, str]:
        """Find chains that never moved or whose moves failed after warm-up: reason by chain."""
        if phase == "warmup":
            return {}
        stats = {n: values for n, values in self._states.items() if n != self._sample_field}
        batch_size = getattr(getattr(self.sampler, "gradient", None), "batch_size", None)
        sites, given = self._states[self._sample_field], (self._last_state, self.thinning)
        return suspects.suspect_chains(sites, stats, *given, batch_size is None)

    @property
    def tempering(self) -> Tempering:
        """Swap rates, barrier, round trips and log evidence of :class:`ParallelTempering`.

        :raises AttributeError: for another kernel, and before `run`.
        """
        has_run = self._states is not None
        evidence_of = getattr(self.sampler, "evidence_of", lambda fields: None)
        result = evidence_of(self.get_extra_fields(True)) if has_run else None
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

    def _get_states_flat(self) -> Any:
        if self._states_flat is None:
            # Draws on disk are read here: all chains in a row have no order on disk.
            self._states_flat = jax.tree.map(
                lambda x: jnp.reshape(
                    x if isinstance(x, jax.Array) else np.asarray(x),
                    (x.shape[0] * x.shape[1], *x.shape[2:]),
                ),
                self._states,
            )
        return self._states_flat

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_programs": {}, "_made": (None, None)}


def without_chains(fields: PyTree, left_out: Collection[int], num_chains: int) -> PyTree:
    """Draws without those of some chains, so that values that are not finite are never averaged."""
    kept = np.setdiff1d(np.arange(num_chains), list(left_out))
    return jax.tree.map(
        lambda x: x.take_chains(kept) if isinstance(x, StoredArray) else x[kept], fields
    )


def warn_of_rounding(sites: Mapping[str, Array], latent: Collection[str], dtype: str) -> None:
    """Warn of sites whose draws on disk are too coarse: spacing of `dtype` above a tenth of the spread."""
    kind = jnp.finfo(dtype)
    for name in latent:
        draws = sites[name]
        count = draws.shape[0] * draws.shape[1] if draws.size else 0
        if count < _ENOUGH_FOR_A_SPREAD or not np.issubdtype(draws.dtype, np.floating):
            continue
        first = np.asarray(draws[:1, :1], np.float64)[0, 0]
        total, squares = np.zeros_like(first), np.zeros_like(first)
        step = max(1, _BLOCK * draws.shape[1] // draws.size)
        for begin in range(0, draws.shape[1], step):
            off = np.asarray(draws[:, begin : begin + step], np.float64) - first
            total += off.sum((0, 1))
            squares += (off**2).sum((0, 1))
        off = total / count
        spread = np.sqrt(np.maximum(squares / count - off**2, 0.0))
        exponent = np.frexp(first + off)[1] - 1
        spacing = np.maximum(np.ldexp(float(kind.eps), exponent), float(kind.smallest_subnormal))
        coarse = spacing > 0.1 * spread
        if coarse.any():
            worst = np.unravel_index(np.argmax(spacing - 0.1 * spread), coarse.shape)
            warn(
                f"MCMC: draws_dtype={dtype!r} is too coarse for {coarse.sum()} of {coarse.size} numbers of "
                f"'{name}': around {(first + off)[worst]:.4g} its values lie {spacing[worst]:.2g} apart, and "
                f"the stored draws have a standard deviation of {spread[worst]:.2g}. Their spread on disk "
                "is that of rounding. Run again with draws_dtype=None."
            )


def warn_of_early_end(stopped: Any, num_draws: int, planned: int, can_resume: bool) -> None:
    """Warn that a run was interrupted, or ended before its averages were known."""
    if stopped is None:
        early = num_draws < planned
        text = f"Interrupted: kept {num_draws} of {planned} draws of each chain."
    else:
        early, text = stopped.is_warned_of, str(stopped)
    if early:
        more = " Go on with `mcmc.resume(…)`." if can_resume else ""
        warn(f"{text}{more}")


# The posterior that a state belongs to: the model (or the kernel without one); the structure of the arguments
# and a hash of each array; all other arguments, data on the host among them.
Origin: TypeAlias = tuple[object, Facts, tuple]


def origin_of(sampler: MCMCKernel, args: tuple, kwargs: dict[str, Any]) -> Origin:
    """The posterior of a run. All arrays in memory are read, a second for some gigabytes."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    is_array = [isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves]
    arrays = [leaf if a else None for leaf, a in zip(leaves, is_array)]
    others = tuple(leaf for leaf, a in zip(leaves, is_array) if not a)
    target = getattr(sampler, "model", None) or sampler
    return target, facts_of({"data": arrays, "structure": str(structure)}), others


def is_stale(
    kernel: MCMCKernel, state: PyTree | None, before: Origin | None, origin: Origin
) -> bool:
    """Whether a run has to compute again what a given state holds of data; `before` is its posterior."""
    if state is None or origin == before:
        return False
    if can_recompute(kernel):
        return True
    name = type(kernel).__name__
    if before is not None:
        raise ValueError(
            f"MCMC: {name} cannot continue from a state of other data or of another model: the state keeps "
            "energies of those, and NumPyro has no way to compute them again. Call `run` alone, without "
            "`warmup` or `post_warmup_state`."
        )
    warn(
        f"MCMC: it is not known for which data this state of {name} was made, and energies that it keeps "
        "cannot be computed again. Draws are wrong if the data were others."
    )
    return False


def check_chains(state: PyTree | None, num_chains: int) -> None:
    """Refuse a state of another number of chains than the run has."""
    if (key := getattr(state, "rng_key", None)) is None:
        return
    lead = key.shape if is_typed_key(key) else key.shape[:-1]
    given = lead[0] if lead else 1
    if given != num_chains:
        raise ValueError(
            f"MCMC: the state to continue from (`warmup`, `post_warmup_state`) is of {given} "
            f"chain{'s' if given != 1 else ''}, and this run has num_chains={num_chains}. Take "
            f"num_chains={given}, or call `run` without a state."
        )


def steps_of_warmup(state: PyTree | None, num_warmup: int) -> int:
    """The steps at which a kernel adapts: none after those that a given state has behind it."""
    if state is None:
        return num_warmup
    counts = [
        int(jnp.min(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if getattr(path[-1], "name", None) == "i"
    ]
    return min([num_warmup, *counts])
