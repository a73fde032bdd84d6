"""Variational inference: NumPyro's automatic guides, on minibatches of the same models.

The default guide is ``AutoNormal``, the independent Gaussians of mean-field inference. A fit evaluates the
user's model at rows that it chooses itself, so a guide has to be made for that model, and begin where the fit
begins (:func:`guide_for`).
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoNormal,
    AutoSemiDAIS,
    AutoSurrogateLikelihoodDAIS,
)
from tqdm.auto import tqdm

from numpyro_bnn._checks import check_key, check_positive, check_whole
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import innermost
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.training_data import data_facts
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.convolutions import fast_convolutions
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.potential.starts import BoundModel, complete, gentle_start
from numpyro_bnn.potential.structure import explain_tracing
from numpyro_bnn.samplers.sgmcmc.gradients import next_rows
from numpyro_bnn.storage.checkpoints import Checkpoint, Progress, Start
from numpyro_bnn.storage.same_run import Facts, environment, facts_of

GuideLike: TypeAlias = AutoGuide | type[AutoGuide] | Callable[[Callable], AutoGuide] | None
# These evaluate the model by themselves, on the data that they were set up with.
_ALL_ROWS = (AutoLaplaceApproximation, AutoDAIS, AutoSemiDAIS, AutoSurrogateLikelihoodDAIS)
# Steps between two evaluations of the loss.
_BLOCK = 500


@explain_tracing()
def mean_field(
    model: Callable,
    key: jax.Array,
    *args: Any,
    guide: GuideLike = None,
    num_samples: int = 1000,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 10_000,
    batch_size: int | None = None,
    num_particles: int = 1,
    init_params: Values | None = None,
    init_scale: float = 0.1,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10_000,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Draws:
    """Draws from the independent Gaussians nearest to the posterior, or from another family.

    Nearest in KL(q ‖ p), in unconstrained coordinates, estimated with reparameterised draws. The family is
    that of `guide`: with ``AutoMultivariateNormal`` all correlations are kept (P² numbers for P
    parameters), with ``AutoLowRankMultivariateNormal`` the strongest ones, and flows
    (``AutoBNAFNormal``, ``AutoIAFNormal``) are not Gaussian; ``AutoDelta`` is a point, the mode of the
    density of constrained values.

    The default has no correlations. Around a Gaussian posterior
    of precision P the variances come out as 1 / diag(P): too small by the factor
    (P⁻¹)_kk P_kk for the k-th parameter, as large as the correlations are strong. Hierarchical
    precisions are parameters like the others, in the model's own coordinates; the
    non-centred ones, its default, suit independence better.

    Source: Kucukelbir et al., *Automatic differentiation variational inference* (2017), eq. 5.

    :param model: a NumPyro model.
    :param key: random key.
    :param args: its arguments.
    :param guide: the family: an automatic guide of NumPyro as a class; as an object that was made for
        `model`; or as a function from a model to a guide, such as
        ``functools.partial(AutoLowRankMultivariateNormal, rank=5)``. None for ``AutoNormal``. The name of
        another guide is the ``info["kernel"]`` of the draws.
    :param num_samples: draws from the fitted guide.
    :param optimizer: an optax optimiser of the negative ELBO in nats; default Adam whose step
        falls from 0.01 to 0 over `num_steps` along a cosine, because the noise of the gradient
        does not vanish by itself.
    :param num_steps: steps to take; all of them.
    :param batch_size: rows in a minibatch, drawn without replacement; all rows where None, which
        ``AutoLaplaceApproximation`` and ``AutoDAIS`` need.
    :param num_particles: draws that estimate the gradient of a step.
    :param init_params: weights to begin at, such as :func:`numpyro_bnn.from_params` gives, with
        precisions at their conditional means; or unconstrained values of all latent sites. Prior
        draws where None, with kernels shrunk to variance 1/fan-in, unless a guide has an `init_loc_fn`.
    :param init_scale: standard deviations at the start, of guides that are given as a class that has them.
    :param checkpoint: a folder that keeps the fit: the same call after the process was ended goes
        on with it, to the very same draws. Needs orbax.
    :param checkpoint_every: steps between checkpoints, in whole blocks of 500.
    :param progress_bar: show the ELBO while it rises.
    :param kwargs: keyword arguments of the model.
    :return: one chain; ``info["elbo"]`` is the mean ELBO of the last 500 steps, nats (of ``AutoDelta`` and
        ``AutoLaplaceApproximation``, which is a point while it is fitted, the log joint density).
    :raises TypeError: for a `guide` that is none.
    :raises ValueError: if a number is out of range, `init_params` name other sites than the model
        has or lack some, the guide is of another model or cannot take minibatches, the checkpoint is of
        another fit, or the fit does not stay finite.

    >>> from numpyro.infer.autoguide import AutoMultivariateNormal
    >>> draws = bnn.mean_field(model, key, x, y, guide=AutoMultivariateNormal)      # doctest: +SKIP
    """
    num_samples = check_whole("mean_field", "num_samples", num_samples)
    num_steps = check_whole("mean_field", "num_steps", num_steps)
    num_particles = check_whole("mean_field", "num_particles", num_particles)
    checkpoint_every = check_whole("mean_field", "checkpoint_every", checkpoint_every)
    check_positive("mean_field", init_scale=init_scale)
    check_key("mean_field", key)
    if optimizer is None:
        optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, num_steps))
    member_optimizer = MemberOptimizer("mean_field", BoundModel.of(model, args, kwargs), batch_size)
    key_start, key_rows, key_svi, key_draws = jax.random.split(key, 4)

    model = member_optimizer.model
    fit = _Programs(model, member_optimizer, batch_size)
    start = fit.start(key_start, init_params)
    fit.guide = guide_for(guide, model, fit.on_rows, start, init_scale, init_params is not None)
    if batch_size is not None and isinstance(fit.guide, _ALL_ROWS):
        raise ValueError(
            f"mean_field: {type(fit.guide).__name__} evaluates the model on the rows that it was set up "
            f"with, and batch_size={batch_size} would set it up with one minibatch. Leave batch_size out."
        )
    svi = fit.svi = SVI(fit.on_rows, fit.guide, optimizer, Trace_ELBO(num_particles))
    all_rows = Rows(member_optimizer.whole, member_optimizer.plate, member_optimizer.size)
    batches = member_optimizer.estimator.init(all_rows, {}, key_rows)
    first_rows = fit.next_batch(batches)[0]
    try:
        carry: tuple = (svi.init(key_svi, first_rows, member_optimizer.arrays), batches)
    except ValueError as error:
        # NumPyro checks the parameters of distributions here, and says nothing of the data.
        if about_data := member_optimizer.about_data():
            raise ValueError(f"mean_field: {about_data}The model says: {error}") from error
        raise
    stored = None if checkpoint is None else Checkpoint(checkpoint)
    every = max(1, checkpoint_every // _BLOCK) * _BLOCK
    loss, first_step = jnp.zeros(()), 0
    if stored is not None:
        origin = {"key": key, "guide": guide, "init_params": init_params, "init_scale": init_scale}
        settings = {"num_steps": num_steps, "start": origin} | member_optimizer.bound.facts
        facts = facts_of(settings | {"data": [args, kwargs]}) | environment()
        text = fit.advance.text(carry, 1, member_optimizer.arrays)
        carry, loss, first_step = _resumed(stored, (carry, loss), key, facts, text)
    member_optimizer.count(first_step * num_particles)
    with tqdm(
        total=num_steps, initial=first_step, desc="mean_field", disable=not progress_bar
    ) as bar:
        left = num_steps - first_step
        while left:
            # The short block comes first: the ELBO is the mean over the last one.
            count = left % _BLOCK or _BLOCK
            carry, loss = fit.advance(carry, count, member_optimizer.arrays)
            left -= count
            if stored is not None and left % every == 0:
                stored.save((carry, loss), Progress(num_steps - left, 0))
            member_optimizer.count(count * num_particles)
            bar.set_postfix_str(f"ELBO {-float(loss):.4g}", refresh=False)
            bar.update(count)
    if stored is not None:
        stored.close()
    params = svi.get_params(carry[0])
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves([loss, params])):
        raise ValueError(
            f"mean_field: the fit is not finite. {member_optimizer.about_data()}Use a smaller learning "
            "rate: `optimizer=optax.adam(1e-3)`."
        )
    values = fit.draw(params, jax.random.split(key_draws, num_samples), member_optimizer.arrays)
    family = type(fit.guide)
    info: dict[str, Any] = {"kernel": "mean_field" if family is AutoNormal else family.__name__}
    info |= {"approximation": True, "elbo": -float(loss), "gradients": member_optimizer.gradients}
    values = {name: value[None] for name, value in values.items()}
    info |= data_facts(member_optimizer.bound, values)
    return Draws(values, model, info=info)


class _Programs:
    """The compiled programs of a fit: its start, blocks of its steps, and draws from the guide."""

    svi: SVI
    guide: AutoGuide

    def __init__(
        self, model: Callable, member_optimizer: MemberOptimizer, batch_size: int | None
    ) -> None:
        self.model, self.data, self.batch_size = model, member_optimizer, batch_size
        # Computed here, since a trace inside the model would be seen by NumPyro's handlers.
        self.own, self.static = member_optimizer.whole.original, member_optimizer.static
        self.start = jax.jit(self._start)
        self.advance = Program(fast_convolutions(self._advance))
        self.draw = Program(self._draw)

    def on_rows(self, rows: jax.Array | None, arrays: list[Any]) -> Any:
        """The model at some rows of the data; at all where None."""
        bound = self.own.bound if rows is None else self.own.rows_of(rows, self.data.plate)
        given, named = Arguments.join(arrays, self.static)
        return bound(*given, **named)

    def next_batch(self, batches: Any) -> tuple[jax.Array | None, Any]:
        """The rows of the next step, and the state of the order in which they are taken."""
        if self.batch_size is None:
            return None, batches
        return next_rows(batches, self.data.size, self.batch_size, "permutation")

    def _start(self, key: jax.Array, given: Values | None) -> Values:
        z = gentle_start(self.own, key) if given is None else complete(self.own, given, ())
        return self.own.constrain(z)

    def _advance(self, carry: tuple, count: jax.Array, arrays: list[Any]) -> tuple:
        def step(_: int, carry: tuple) -> tuple:
            state, batches, total = carry
            rows, batches = self.next_batch(batches)
            state, loss = self.svi.update(state, rows, arrays)
            return state, batches, total + loss

        state, batches, total = lax.fori_loop(0, count, step, (*carry, jnp.zeros(())))
        return (state, batches), total / count

    def _draw(self, params: Values, keys: jax.Array, arrays: list[Any]) -> Values:
        potential = Potential(self.model, *Arguments.join(arrays, self.static))

        def one(key: jax.Array) -> Values:
            found = self.guide.sample_posterior(key, dict(params), None, arrays)
            values = {name: found[name] for name in potential.structure.latent}
            return potential.constrain(potential.unconstrain(values), deterministic=True)

        return lax.map(one, keys)


def _resumed(
    stored: Checkpoint, start: tuple[Any, jax.Array], key: jax.Array, facts: Facts, text: str
) -> tuple[Any, jax.Array, int]:
    """The state to continue from, the loss before it, and the steps taken so far."""
    program = {"kernel": "mean_field", "program": text}
    if not stored.holds_run:
        stored.begin(Start(key, None, ()), facts, program)
    stored.read_start(facts)
    stored.refuse_other_program(program)
    if (last := stored.last_step()) is None:
        return *start, 0
    state, progress = stored.load(start, last)
    return *state, progress.steps


def guide_for(
    given: GuideLike,
    model: Callable,
    on_rows: Callable,
    start: Mapping[str, jax.Array],
    init_scale: float,
    is_told: bool,
) -> AutoGuide:
    """The guide of a fit, from what the user gave; None stands for ``AutoNormal``."""
    given = AutoNormal if given is None else given
    begin = init_to_value(values=dict(start))
    if isinstance(given, type) and issubclass(given, AutoGuide):
        options = {"init_loc_fn": begin, "init_scale": init_scale}
        taken = inspect.signature(given).parameters
        return given(on_rows, **{name: v for name, v in options.items() if name in taken})
    if isinstance(given, AutoGuide):
        if innermost(given.model) is not innermost(model) and given.model != model:
            raise ValueError(
                f"mean_field: the guide {type(given).__name__} was made for another model than the one that "
                "is fitted. Give the class, or make the guide for this model."
            )
        guide = copy.copy(given)
        # The user's own object stays as it is, also where it was set up before.
        guide.model, guide.prototype_trace = on_rows, None
    else:
        guide = given(on_rows) if callable(given) and not isinstance(given, type) else given
        if not isinstance(guide, AutoGuide) or guide.model is not on_rows:
            raise TypeError(
                f"mean_field: guide must be an automatic guide of NumPyro, its class, or a function that "
                f"makes one for the model that it is given, got {given!r}. Write for example "
                "`guide=AutoMultivariateNormal`."
            )
    own = inspect.signature(type(guide)).parameters.get("init_loc_fn")
    if is_told or own is None or guide.init_loc_fn is own.default:
        guide.init_loc_fn = begin
    return guide
