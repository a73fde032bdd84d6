"""``MCMC``: NumPyro's, compiled once, and refusing what would be silently wrong."""

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import HMC
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer.gibbs import Gibbs, prototype_trace
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import _is_under_jax_transform, find_stack_level, is_prng_key
from tqdm.auto import tqdm

from numpyro_bnn.chains import Arguments, Programs, devices_for
from numpyro_bnn.potential import Potential, Structure, begin_fit, check_key, explain_tracing
from numpyro_bnn.start import check_names, complete


class MCMC(NumPyroMCMC):
    """Runs a kernel; every argument and attribute of :class:`numpyro.infer.MCMC` is kept.

    Beyond it:

    - The data are arguments of the compiled program: a second `run` with arrays of the same
      shapes compiles nothing. Arguments that are not arrays are constants of the program.
    - Chains are placed by a rule. ``"parallel"`` (the default) gives every device the same
      number of chains, on as many devices as divide `num_chains`; with one device, or none
      that divides, chains follow each other. Draws do not depend on the placement, up to
      floating-point rounding. ``"vectorized"`` runs any kernel under ``jax.vmap``.
    - Ctrl-C during sampling ends the run after the steps under way and keeps the draws so far
      (of every chain the same number); during warm-up it raises ``KeyboardInterrupt``.
    - A chain whose draws become non-finite is left out of the samples with a warning that
      names it (:attr:`left_out`); if no chain is left, `run` raises.
    - HMC and NUTS also collect energy, acceptance, number of steps and step size of each draw.
    - `init_params` may have a leading axis of one for a single chain, and may give only the
      weights of a hierarchical prior (see :func:`numpyro_bnn.from_params`).

    :param sampler: the kernel; it can be used in several ``MCMC``.
    :param num_warmup: number of warm-up steps.
    :param num_samples: number of steps after warm-up, of which one in `thinning` is kept.
    :param num_chains: number of chains.
    :param thinning: keep every so many steps.
    :param postprocess_fn: replaces the kernel's own post-processing.
    :param chain_method: ``"parallel"``, ``"sequential"``, ``"vectorized"`` or a transformation
        such as ``jax.vmap``.
    :param progress_bar: show one progress bar a chain.
    :param progress_rate: steps between updates of the bars; by default a twentieth of the run.
    :param jit_model_args: accepted for compatibility; arguments are always compiled as such.
    :raises ValueError: for the values that NumPyro refuses.
    """

    def __init__(
        self,
        sampler: MCMCKernel,
        *,
        num_warmup: int,
        num_samples: int,
        num_chains: int = 1,
        thinning: int = 1,
        postprocess_fn: Callable | None = None,
        chain_method: str | Callable = "parallel",
        progress_bar: bool = True,
        progress_rate: int | None = None,
        jit_model_args: bool = True,
    ) -> None:
        if not isinstance(sampler, MCMCKernel):
            raise TypeError(
                f"MCMC: expected a kernel such as NUTS(model), got {sampler!r}. Wrap the model in "
                "a kernel first."
            )
        if not isinstance(num_chains, int) or num_chains < 1:
            raise ValueError(f"MCMC: num_chains must be a positive integer, got {num_chains!r}.")
        if chain_method == "parallel" and devices_for(num_chains) == 1:
            chain_method = "sequential"
        with warnings.catch_warnings():
            # NumPyro wants a device for every chain; here several may share one.
            warnings.filterwarnings("ignore", message="There are not enough devices")
            super().__init__(
                sampler,
                num_warmup=num_warmup,
                num_samples=num_samples,
                num_chains=num_chains,
                thinning=thinning,
                postprocess_fn=postprocess_fn,
                chain_method=chain_method,
                progress_bar=progress_bar,
                progress_rate=progress_rate,
                jit_model_args=jit_model_args,
            )
        self.chain_method = chain_method
        self.left_out: dict[int, str] = {}
        self._programs: dict[tuple, Programs] = {}

    @property
    def model(self) -> Callable | None:
        """The model of the kernel; None for a kernel over a potential function."""
        return getattr(self.sampler, "model", None)

    def run(
        self,
        rng_key: jax.Array,
        *args: Any,
        extra_fields: tuple[str, ...] | list[str] = (),
        init_params: Any = None,
        **kwargs: Any,
    ) -> None:
        """Run the chains and collect draws.

        :param rng_key: one key, or one a chain.
        :param args: arguments of the model.
        :param extra_fields: dotted names of state fields to collect beside the samples;
            ``"~z.site"`` leaves a site out.
        :param init_params: unconstrained start of each latent site, with a leading axis of
            `num_chains`, such as :func:`numpyro_bnn.optimize` returns.
        :param kwargs: keyword arguments of the model.
        :raises ValueError: if HMC or NUTS would run over a model that subsamples, if an
            observed site broadcasts to an outer product, if starts have the wrong shape, or if
            a chain starts where the energy is not finite.
        :raises RuntimeError: if every chain becomes non-finite.
        """
        if not isinstance(extra_fields, (tuple, list)):
            raise TypeError(f"extra_fields must be a tuple of names, got {extra_fields!r}.")
        if _is_under_jax_transform() or self.sampler.is_ensemble_kernel:
            super().run(
                rng_key, *args, extra_fields=extra_fields, init_params=init_params, **kwargs
            )
            return
        check_key("MCMC.run", rng_key, self.num_chains)
        self._args, self._kwargs = args, kwargs
        structure = None if self.model is None else begin_fit(self.model, args, kwargs)
        if structure is not None and isinstance(self.sampler, HMC):
            _refuse_subsampling(self.sampler, structure)
        init_params = self._starts(init_params, structure)
        if init_params is None and structure is None and self._warmup_state is not None:
            # Kernels over a potential learn the form of a position from a start.
            init_params = getattr(self._warmup_state, self._sample_field)
        keys = rng_key
        if self.num_chains > 1 and is_prng_key(rng_key):
            keys = jax.random.split(rng_key, self.num_chains)
        with explain_tracing():
            self._run_lanes(keys, init_params, tuple(extra_fields))

    def _run_lanes(self, keys: jax.Array, init_params: Any, extra_fields: tuple[str, ...]) -> None:
        """Run the chains in lanes: all together, or one after another ("sequential")."""
        plan = self._collection_params
        kept_steps = plan["upper"] - plan["lower"]
        warm_steps = plan["lower"] + kept_steps % self.thinning
        num_draws = kept_steps // self.thinning
        size = (plan["collection_size"] or kept_steps) // self.thinning
        arguments = Arguments.split(self._args, self._kwargs)
        one_by_one = self.chain_method == "sequential" and self.num_chains > 1
        programs = self._compiled(arguments.static, extra_fields, size, one_by_one)
        arrays = programs.place(arguments.arrays)

        lanes = range(self.num_chains) if one_by_one else range(1)

        def lane(tree: Any, i: int) -> Any:
            return jax.tree.map(lambda leaf: leaf[i], tree) if one_by_one else programs.spread(tree)

        starts = [lane(init_params, i) for i in lanes]
        if self._warmup_state is not None:
            resumed = self._warmup_state._replace(rng_key=keys)
            states = [lane(resumed, i) for i in lanes]
            warm_steps, num_draws, size = 0, self.num_samples // self.thinning, size
        else:
            states = [programs.start(lane(keys, i), starts[i], arrays) for i in lanes]
            self._check_energy(_stack(states, one_by_one))
        draws = [programs.empty(state, start, arrays) for state, start in zip(states, starts)]

        done = 0
        total = warm_steps + num_draws * self.thinning
        rate = self.progress_rate or max(1, total // 20)
        with self._bars(total) as update, _finish_before_interrupt() as interrupted:
            for slot, count, thinning in _chunks(warm_steps, num_draws, self.thinning, rate):
                for i in lanes:
                    states[i], draws[i] = programs.advance(
                        states[i], draws[i], starts[i], slot, count, thinning, arrays
                    )
                    jax.block_until_ready(states[i])
                    chains = range(i, i + 1) if one_by_one else range(self.num_chains)
                    update(chains, count * thinning, states[i])
                warming = thinning * count > 0 and done < warm_steps
                done += count * thinning
                if interrupted():
                    if warming or done <= warm_steps:
                        raise KeyboardInterrupt
                    break
        kept = max(0, done - warm_steps) // self.thinning
        self._store(states, draws, one_by_one, kept)
        if kept < num_draws:
            warnings.warn(
                f"Interrupted: kept {kept} of {num_draws} draws of each chain.",
                stacklevel=find_stack_level(),
            )
        self._set_collection_params()

    def _store(self, states: list, draws: list, one_by_one: bool, kept: int) -> None:
        self._last_state = _stack(states, one_by_one)
        collected = _stack(draws, one_by_one)
        if self.num_chains == 1:
            collected = jax.tree.map(lambda leaf: leaf[None], collected)
        self._states = jax.tree.map(lambda leaf: leaf[:, :kept], collected)
        self._states_flat = None
        self._leave_out_failed()

    def _leave_out_failed(self) -> None:
        """Drop chains with non-finite draws: they must never be averaged in."""
        finite = np.asarray(_finite_by_chain(self._states[self._sample_field]))
        self.left_out = _exploded(self._last_state)
        for chain in np.flatnonzero(~finite.all(1)):
            first = int(np.argmin(finite[chain]))
            self.left_out[int(chain)] = f"draw {first} is not finite"
        if not self.left_out:
            return
        reasons = "; ".join(f"chain {chain}: {why}" for chain, why in self.left_out.items())
        advice = "Use a smaller step size, or start from `bnn.optimize`."
        if len(self.left_out) == self.num_chains:
            raise RuntimeError(f"No chain stayed finite ({reasons}). {advice}")
        warnings.warn(
            f"Left out {len(self.left_out)} of {self.num_chains} chains ({reasons}). {advice}",
            stacklevel=find_stack_level(),
        )
        good = np.setdiff1d(np.arange(self.num_chains), list(self.left_out))
        self._states = jax.tree.map(lambda leaf: leaf[good], self._states)

    def _compiled(
        self, static: tuple, extra_fields: tuple[str, ...], size: int, one_by_one: bool
    ) -> Programs:
        prefix = f"~{self._sample_field}."
        fields = (self._sample_field, *self._default_fields, *extra_fields)
        if isinstance(self.sampler, HMC):
            fields += _HMC_FIELDS
        removed = tuple(f.removeprefix(prefix) for f in fields if f.startswith(prefix))
        collected = tuple(dict.fromkeys(f for f in fields if not f.startswith(prefix)))
        key = (static, collected, removed, size)
        try:
            programs = self._programs.get(key)
        except TypeError as error:
            raise TypeError(
                f"MCMC: arguments of the model must be arrays or hashable constants ({error}). "
                "Convert tables and the like with `np.asarray`."
            ) from error
        if programs is None:
            programs = self._programs[key] = Programs(
                self.sampler,
                self.num_warmup,
                static,
                collected,
                removed,
                self.postprocess_fn,
                1 if one_by_one else self.num_chains,
                self.chain_method,
                size,
            )
        return programs

    def _starts(self, init_params: Any, structure: Structure | None) -> Any:
        """Starts for every chain, in the form that the kernel wants."""
        if init_params is None:
            return None
        init_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_params)
        if structure is not None and isinstance(init_params, dict):
            shapes = {name: structure.sites[name].shape for name in structure.latent}
            if self.num_chains == 1:
                init_params = _drop_chain_axis(init_params, structure.deterministic | shapes)
            init_params = self._complete(init_params, structure)
        leading = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(init_params)}
        if self.num_chains > 1 and leading != {(self.num_chains,)}:
            raise ValueError(
                f"init_params must have a leading axis of num_chains={self.num_chains} on every "
                f"array, got leading axes {sorted(leading)}. For starts of every chain use "
                f"`bnn.optimize(model, key, …, num_chains={self.num_chains})`."
            )
        return init_params

    def _complete(self, init_params: dict, structure: Structure) -> dict:
        assert self.model is not None
        if set(init_params) != set(structure.latent) and structure.groups:
            potential = Potential(self.model, self._args, self._kwargs)
            lead = self.num_chains > 1
            init_params = complete(potential, init_params, batched=lead)
        elif isinstance(self.sampler, HMC):
            # Discrete sites are summed out under HMC, and have no start.
            own = [n for n in structure.latent if not structure.sites[n].discrete]
            check_names(init_params, own, own)
        if isinstance(self.sampler, Gibbs):
            init_params = self._constrain_blocks(init_params)
        return init_params

    def _constrain_blocks(self, init_params: dict) -> dict:
        """NumPyro's Gibbs takes constrained starts for every block that is not HMC."""
        sites = prototype_trace(self.model, jax.random.key(0), self._args, self._kwargs)
        by_hmc: set[str] = set()
        named: set[str] = set()
        for kernel, spec in self.sampler.blocks:
            names = () if spec is None else spec(sites) if callable(spec) else spec
            named |= set(names)
            by_hmc |= set(names) if isinstance(kernel, HMC) else set()
        if any(spec is None and isinstance(k, HMC) for k, spec in self.sampler.blocks):
            by_hmc |= set(init_params) - named
        assert self.model is not None
        potential = Potential(self.model, self._args, self._kwargs)
        constrain = jax.vmap(potential.constrain) if self.num_chains > 1 else potential.constrain
        values = constrain(init_params)
        return {k: v if k in by_hmc else values[k] for k, v in init_params.items()}

    def _check_energy(self, state: Any) -> None:
        energy = getattr(state, "potential_energy", None)
        if energy is None or self.model is None:
            return
        bad = np.flatnonzero(~np.isfinite(np.atleast_1d(np.asarray(energy))))
        if not bad.size:
            return
        chain = int(bad[0])
        z = getattr(state, self._sample_field)
        z = z if self.num_chains == 1 else _chain(z, chain)
        potential = Potential(self.model, self._args, self._kwargs)
        # Compiled, because distributions refuse concrete values that are NaN.
        by_site = jax.jit(lambda z: potential.log_joint_by_site(potential.constrain(z)))(z)
        sites = {k: float(v) for k, v in by_site.items() if not np.isfinite(v)}
        raise ValueError(
            f"Chain {chain} starts where the potential energy is not finite; log densities by "
            f"site: {sites or 'all finite, but their sum is not'}. Check the data for NaN or "
            "infinite values, and start from `bnn.optimize(model, key, …)`."
        )

    @contextmanager
    def _bars(self, total: int) -> Iterator[Callable]:
        """Progress bars, one a chain; yields ``update(chains, steps, state of these chains)``."""
        if not self.progress_bar or total == 0:
            yield lambda chains, steps, state: None
            return
        bars = [tqdm(total=total, desc=f"chain {c}", position=c) for c in range(self.num_chains)]

        def update(chains: range, steps: int, state: Any) -> None:
            for c in chains:
                own = state if len(chains) == 1 else _chain(state, c)
                bars[c].set_postfix_str(self.sampler.get_diagnostics_str(own), refresh=False)
                bars[c].update(steps)

        try:
            yield update
        finally:
            for bar in bars:
                bar.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_programs": {}}


# What diagnoses of HMC and NUTS look at.
_HMC_FIELDS = ("potential_energy", "energy", "accept_prob", "num_steps", "adapt_state.step_size")


def _chunks(
    warm_steps: int, num_draws: int, thinning: int, rate: int
) -> Iterator[tuple[int, int, int]]:
    """Pieces of a run: (first slot, number of draws, steps a draw); warm-up overwrites slot 0."""
    for begin in range(0, warm_steps, rate):
        yield 0, 1, min(rate, warm_steps - begin)
    draws = max(1, rate // thinning)
    for begin in range(0, num_draws, draws):
        yield begin, min(draws, num_draws - begin), thinning


def _chain(tree: Any, chain: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[chain], tree)


def _stack(lanes: list[Any], one_by_one: bool) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes) if one_by_one else lanes[0]


def _exploded(state: Any) -> dict[int, str]:
    """Chains that a kernel, or a block of Gibbs, has frozen."""
    left_out = {}
    for part in (state, *getattr(state, "block_states", ())):
        steps = np.atleast_1d(np.asarray(getattr(part, "exploded_at", -1)))
        for chain in np.flatnonzero(steps >= 0):
            left_out[int(chain)] = f"exploded at step {int(steps[chain])}, warm-up included"
    return left_out


@jax.jit
def _finite_by_chain(samples: Any) -> jax.Array:
    """Whether every scalar is finite, by chain and draw."""
    leaves = [leaf for leaf in jax.tree.leaves(samples) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    first = jax.tree.leaves(samples)[0]
    finite = jnp.ones(first.shape[:2], bool)
    for leaf in leaves:
        finite &= jnp.isfinite(leaf).all(axis=tuple(range(2, leaf.ndim)))
    return finite


def _drop_chain_axis(init_params: dict, shapes: dict[str, tuple[int, ...]]) -> dict:
    """Accept starts with a leading axis of one for a single chain."""
    known = [name for name in init_params if name in shapes]
    extra = {jnp.ndim(init_params[n]) - len(shapes[n]) for n in known}
    if known and extra == {1} and all(jnp.shape(v)[0] == 1 for v in init_params.values()):
        return {name: value[0] for name, value in init_params.items()}
    return init_params


def _refuse_subsampling(sampler: HMC, structure: Structure) -> None:
    for name, (size, subsample_size) in structure.plates.items():
        if subsample_size < size:
            kernel = type(sampler).__name__
            raise ValueError(
                f"{kernel}: the plate '{name}' subsamples {subsample_size} of {size} rows, and "
                f"{kernel} would freeze one such batch for the whole run. Remove "
                "`subsample_size=` to use all rows, or use a stochastic-gradient kernel with "
                "`batch_size=`."
            )


@contextmanager
def _finish_before_interrupt() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C take effect between compiled steps; a second one takes effect at once."""
    asked: list[int] = []

    def ask(signum: int, frame: FrameType | None) -> None:
        asked.append(signum)
        signal.signal(signal.SIGINT, previous)

    try:
        previous = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not in the main thread, where Python delivers no signals
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, previous)
