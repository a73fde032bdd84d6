"""``MCMC``: NumPyro's class, whose programs are compiled once, and which refuses silently wrong set-ups."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import _is_under_jax_transform

from numpyro_bnn._calls import all_or_nothing
from numpyro_bnn._checks import check_key, check_whole
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import about_numbers, refuse_network
from numpyro_bnn.data.columns import Columns, about_inputs
from numpyro_bnn.posterior.archive import known_predictions
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.posterior.fitted import arguments_of, inputs_of
from numpyro_bnn.posterior.training_data import known_rows
from numpyro_bnn.potential.potential import chunked_kernel
from numpyro_bnn.potential.starts import starts_for
from numpyro_bnn.potential.structure import explain_tracing
from numpyro_bnn.run.compiled_runs import CompiledRuns
from numpyro_bnn.run.devices import Placement
from numpyro_bnn.run.programs import Programs
from numpyro_bnn.run.recorder import Disk
from numpyro_bnn.run.sampling import explain_memory
from numpyro_bnn.samplers.kernels import has_exact_energy
from numpyro_bnn.samplers.suspects import warn_of_run
from numpyro_bnn.storage.processes import Processes
from numpyro_bnn.storage.same_run import check_accept

if TYPE_CHECKING:
    # Only runs that are judged import what judges them.
    from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
    from numpyro_bnn.workflow.until import StopReason


class MCMC(CompiledRuns):
    """Runs chains of a kernel. It has every argument and attribute of :class:`numpyro.infer.MCMC`.

    What is different from NumPyro's class:

    - The data are arguments of the compiled program: a second `run` with arrays of the same
      shapes compiles nothing. Arguments that are not arrays are constants of the program.
    - Chains are assigned to devices by a fixed rule. ``"parallel"`` (the default) gives every
      device the same number of chains, on the largest number of devices that divides
      `num_chains`; on a single device chains run one after another. Draws do not depend on the
      devices, up to floating-point rounding. ``"vectorized"`` runs any kernel under ``jax.vmap``.
    - Ctrl-C during sampling ends the run after the current steps and keeps the draws so far
      (of every chain the same number); during warm-up it raises ``KeyboardInterrupt``. A run on
      disk finishes its chunk first, and treats SIGTERM like Ctrl-C.
    - With `checkpoint` a run can be continued in another process, even after this one was killed,
      and gives the very same draws (:meth:`resume`). With `draws` its memory does not grow with
      their number.
    - A chain whose draws become non-finite is left out of the samples with a warning that
      names it (:attr:`left_out`); if no chain is left, `run` raises.
    - A chain that never moves, accepts hardly any proposal or mostly diverges is kept. A warning
      names it, also later when its draws are used (:attr:`suspect`: number to reason).
    - :meth:`run_until` samples until the averages of predictions are known (:attr:`stopped` says
      why it ended).
    - A run may continue from the state of a warm-up (`warmup`, `post_warmup_state`) with other data:
      energies and gradients that the state keeps are computed again, and what the warm-up learned
      (step size, mass) stays. With the same data the draws are those of one long run, bit for bit. A
      state must have as many chains as the run. A state that was loaded, changed or made by another
      ``MCMC`` counts as one of other data. Hashing arrays to compare them takes a second or two a gigabyte.
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
    :param checkpoint: a folder for everything that :meth:`resume` needs; without `draws` the draws
        are in it too. Needs ``pip install "numpyro-bnn[storage]"``, as `draws` does.
    :param checkpoint_every: steps between checkpoints, warm-up included, and in a chunk of draws.
        Storing a checkpoint takes some 50 ms: choose so many steps that they take a second or more.
    :param draws: a folder, such as ``"run.zarr"``, that draws are written to while sampling goes on.
        xarray opens it at any time (``xarray.open_datatree(path, engine="zarr")``), and
        arrays of ``get_samples(group_by_chain=True)`` are read from it when they are indexed.
    :param draws_dtype: type of the draws on disk: ``"float16"``, ``"float32"`` or ``"float64"``; None
        for the type of the sampler. Statistics of the sampler are never rounded.
    :param record: ``record(sites)``, called with the sites of each draw that is kept, returns the
        dict of arrays to keep in their place: function values, or some of the weights.
    :param chunk_size: rows at a time in the potential of HMC or NUTS, for memory that does not
        grow with their number; the same energy and gradient to floating-point rounding. The
        kernels of this package take ``gradient=gradients.full(chunk_size=…)``.
    :param mesh: devices that share chains and rows, such as ``jax.make_mesh((2, 4), ("chain",
        "data"))``: two groups of four devices, each with half of the chains and a quarter of the
        rows on every device. The mesh may span several processes after
        ``jax.distributed.initialize()``. Each process then calls `run` with the same arguments and
        has all the draws; the first process writes the folders of `checkpoint` and `draws`, which
        all processes must share. The rows of a minibatch are exchanged in every step, and each
        device works on its part of them: sharing pays where the gradient takes longer than the
        exchange. By default chains are assigned by the rule above, on the devices of this process.
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
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 100,
        draws: str | Path | None = None,
        draws_dtype: str | None = None,
        record: Callable | None = None,
        chunk_size: int | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        if not isinstance(sampler, MCMCKernel):
            raise TypeError(
                f"MCMC: expected a kernel such as NUTS(model), got {sampler!r}. Wrap the model in "
                "a kernel first."
            )
        refuse_network(getattr(sampler, "model", None))
        num_chains = check_whole("MCMC", "num_chains", num_chains)
        num_warmup = check_whole("MCMC", "num_warmup", num_warmup, least=0)
        thinning = check_whole("MCMC", "thinning", thinning)
        num_samples = check_whole("MCMC", "num_samples", num_samples, least=thinning)
        if progress_rate is not None:
            progress_rate = check_whole("MCMC", "progress_rate", progress_rate)
        self._placement = Placement.given(mesh, num_chains, chain_method)
        if chain_method == "parallel" and self._placement.mesh is None:
            chain_method = "sequential"
        super().__init__(
            sampler,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            thinning=thinning,
            postprocess_fn=postprocess_fn,
            # NumPyro warns of "parallel" unless every chain has a device; here chains may share one.
            chain_method="sequential" if chain_method == "parallel" else chain_method,
            progress_bar=progress_bar,
            progress_rate=progress_rate,
            jit_model_args=jit_model_args,
        )
        self.chain_method = chain_method
        self.left_out: dict[int, str] = {}
        self.suspect: dict[int, str] = {}
        self.columns: Columns = []
        self.stopped: StopReason | None = None
        self._programs: dict[tuple, Programs] = {}
        self._made = None, None
        self._processes = Processes(self._placement.spans_processes)
        self._disk = Disk.given(checkpoint, checkpoint_every, draws, draws_dtype, self._processes)
        self.record = record
        self.chunk_size = chunk_size
        self._kernel = sampler if chunk_size is None else chunked_kernel(sampler, chunk_size)

    def __repr__(self) -> str:
        kernel = type(self.sampler)
        # The `repr` of NumPyro's kernels shows nothing but an address in memory.
        tells = kernel.__repr__ is not object.__repr__
        names = ("num_warmup", "num_samples", "num_chains", "thinning")
        settings = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"MCMC({repr(self.sampler) if tells else kernel.__name__}, {settings})"

    @property
    def arguments(self) -> tuple[tuple, dict[str, PyTree]]:
        """Arguments and keyword arguments of the model in the last run.

        :raises AttributeError: before the first run.
        """
        if not hasattr(self, "_args"):
            raise AttributeError("MCMC: there are no arguments before the first `run`.")
        return self._args, self._kwargs

    @all_or_nothing
    def run(
        self,
        rng_key: jax.Array,
        *args: object,
        extra_fields: tuple[str, ...] | list[str] = (),
        init_params: PyTree | None = None,
        **kwargs: object,
    ) -> None:
        """Run the chains and collect draws.

        :param rng_key: one key, or one a chain.
        :param args: arguments of the model.
        :param extra_fields: dotted names of state fields to collect beside the samples;
            ``"~z.site"`` leaves a site out.
        :param init_params: unconstrained start of each latent site, with a leading axis of
            `num_chains`, such as :func:`numpyro_bnn.optimize` returns.
        :param kwargs: keyword arguments of the model.
        :raises ValueError: if HMC or NUTS would run over a model that subsamples, if a value of an
            observed site would count several times or none is observed, if starts lack a site,
            have an unknown one or another shape, if a chain starts where the energy is not
            finite, if two chains have the same key, or if the state to continue from is of another
            number of chains, or of other data and of a kernel that cannot compute it again.
        :raises RuntimeError: if every chain becomes non-finite.
        """
        if self._is_numpyros_own:
            if self._disk is not None or self.record is not None or self.chunk_size is not None:
                raise ValueError(
                    "MCMC: checkpoint=, draws=, record= and chunk_size= are not for runs inside a JAX "
                    f"transformation or ensemble kernels, and this is {type(self.sampler).__name__}. "
                    "Call `run` outside of transformations, with another kernel."
                )
            fit = self._see(args, kwargs)
            init_params = starts_for(self.sampler, fit, init_params, self.num_chains)
            phase = self._collection_params["phase"]
            super().run(
                rng_key, *args, extra_fields=extra_fields, init_params=init_params, **kwargs
            )
            if not _is_under_jax_transform():
                self.suspect = self._find_suspects(phase)
                warn_of_run(self.suspect, self.num_chains)
            return
        self._begin(rng_key, args, kwargs, tuple(extra_fields), init_params)

    @all_or_nothing
    def run_until(
        self,
        rng_key: jax.Array,
        *args: object,
        test_data: tuple[PyTree, ...] | None = None,
        until: "Tolerance | None" = None,
        max_minutes: float | None = None,
        at: tuple[PyTree, ...] | None = None,
        extra_fields: tuple[str, ...] | list[str] = (),
        init_params: PyTree | None = None,
        **kwargs: object,
    ) -> "StopReason":
        """Run the chains until the averages of predictions, and parameters that are no weights, are known.

        The run is judged after `num_samples` steps, and again whenever there are a quarter more draws.
        It stops when two judgements in a row find all averages within the tolerance and the
        chains in agreement. It also stops when the chains disagree although each by itself is within
        the tolerance (``"modes: temper"``, with a warning), when chains do not move, or when the time
        is over. Draws at the beginning are dropped while the two halves of the rest differ. The draws
        equal those of a :meth:`run` of the same length, bit for bit, and nothing is compiled between
        judgements. Ctrl-C keeps the draws so far. With `checkpoint`, :meth:`resume` continues the run;
        it needs the data and no other argument, and its time limit begins anew.

        Predictions of all draws so far are held in memory: chains × draws × rows of `test_data`.

        :param rng_key: one key, or one a chain.
        :param args: arguments of the model.
        :param test_data: inputs and targets ``(x, y)`` at which predictions are to be known; y may be
            None, and then nothing is asked of the log score. A model with more arguments by row needs their
            values there: ``(x, y, {"offset": offset_test})``.
        :param until: the Monte Carlo error that is accepted; default ``bnn.Tolerance()``.
        :param max_minutes: time limit of compiling, warm-up, sampling and judging together. Compiling,
            warm-up and the first half of `num_samples` are never cut short, so that a run may take
            longer. Without it the run goes on until it is known.
        :param at: the older name of `test_data`.
        :param extra_fields: see :meth:`run`.
        :param init_params: see :meth:`run`.
        :param kwargs: keyword arguments of the model.
        :return: why the run stopped, and the results of each judgement; also :attr:`stopped`.
        :raises ValueError: if `test_data` does not fit the model, for a time that is not
            positive, for `record`, and as :meth:`run` does.
        :raises TypeError: for another kind of `until`, `test_data` or `max_minutes`.
        """
        check_key("MCMC.run_until", rng_key, self.num_chains)
        if self.model is None or self.record is not None or self._is_numpyros_own:
            raise ValueError(
                f"run_until: predictions need a kernel over a model, draws of all its sites and chains "
                f"of their own, and this is {type(self.sampler).__name__}"
                f"{' with record=' if self.record is not None else ''}. Use `run`, and judge by "
                "`bnn.diagnose`."
            )
        from numpyro_bnn.workflow.until import UntilKnown

        where = at if test_data is None else test_data
        make_rule = partial(UntilKnown, self, until, where, max_minutes)
        self._begin(rng_key, args, kwargs, tuple(extra_fields), init_params, make_rule)
        assert self.stopped is not None
        return self.stopped

    @all_or_nothing
    def resume(self, *args: object, accept: Collection[str] = (), **kwargs: object) -> None:
        """Continue the run in the folder `checkpoint`, to the draws that it would have given.

        The draws are equal bit for bit on the same machine. For a finished run, all its draws are
        returned. The key, the starts and the `extra_fields` are those of `run`.

        The run is compared with the stored one: the program that kernel and model lower to, with all
        numbers in it, the data, the settings and the versions of libraries. A function that JAX calls on
        the host (`jax.pure_callback`) is compared by its name alone.

        :param args: arguments of the model: the same data.
        :param accept: names of differences to ignore, as in the message of a refused call, such as
            `"program"`; `"data"` stands for all names that begin so.
        :param kwargs: keyword arguments of the model.
        :raises FileNotFoundError: if nothing was stored yet; `run` is what to call then.
        :raises ValueError: if anything that decides the draws differs from what began the run
            (model, kernel, settings, data, libraries), naming it; if files are damaged, naming the
            draws that are safe; without `checkpoint=`.
        """
        if self._disk is None or self._disk.checkpoint is None:
            raise ValueError(
                "resume: there is nothing to continue from. Give `MCMC` the folder of the run, "
                "`checkpoint=…`."
            )
        self._refuse_parts()
        accept = check_accept(accept)
        fit = self._see(args, kwargs)
        with self._on_disk(resumed=True), explain_tracing(), explain_memory():
            start = self._disk.read_start(self._facts(self._disk, fit), accept)
            judge = None
            if start.until is not None:
                from numpyro_bnn.workflow.until import stored_judge

                judge = stored_judge(self, start)
            self._sample(start, fit, accept, judge)

    def _note(self, disk: Disk) -> None:
        facts = {"suspect": self.suspect} if self.suspect else {}
        # A kernel may have a potential energy in place of a model.
        draws = None if self.model is None else draws_of(self)
        inputs = about_inputs(inputs_of(self), self.columns, draws) | known_rows(self)
        inputs |= about_numbers(self.model, *arguments_of(self))
        inputs["exact_energy"] = has_exact_energy(self.sampler)
        known = None if draws is None else known_predictions(draws)
        disk.store.note(inputs=inputs, predictions=known, **facts)
