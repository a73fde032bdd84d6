"""The posterior given more rows, or fewer, from the draws that are there.

Draws of p(θ | y) become draws of p(θ | y, y_new) by the weights p(y_new | θ): by resampling where these are
even enough, else step by step along powers b of the likelihood that is new, with moves between
(:func:`along`). Without some rows the power goes from 1 to 0. The mean weight is the evidence of the new rows
given the old, p(y_new | y), their prequential score.

Resampling is systematic, in the order of chains and draws. So copies of a draw are neighbours, the result is
a run of the same number of chains, and what the autocorrelation of its draws says of its Monte Carlo errors
counts the dependence of the old draws, uneven weights, and moves that go nowhere.

Sources: Chopin, *A sequential particle filter method for static models* (2002); Del Moral, Doucet and Jasra,
*Sequential Monte Carlo samplers* (2006); the error of the evidence is that of the weights that first draws
hand down, Lee and Whiteley, *Variance estimation in the particle filter* (2018).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax

from numpyro_bnn._checks import check_key
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import (
    as_arrays,
    bound_by_row,
    by_place,
    is_by_row,
    names_of,
    prepared,
)
from numpyro_bnn.data.columns import about_inputs
from numpyro_bnn.data.row_hashes import KNOWN_ROWS
from numpyro_bnn.diagnostics.convergence.rhat import ess, mcse_mean
from numpyro_bnn.fit_check.loo import LEAST_DRAWS
from numpyro_bnn.posterior.draws import Draws, Run, checked_inputs, draws_of
from numpyro_bnn.posterior.fitted import arguments_of, targets_of
from numpyro_bnn.posterior.leave_one_out import smoothed
from numpyro_bnn.posterior.loo_preconditions import why_not_the_posterior
from numpyro_bnn.posterior.training_data import (
    call_with,
    holds_host_rows,
    place_by_name,
    target_places,
)
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.known_indices import refuse_unknown_indices
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.workflow.row_energies import RowEnergies, room_for
from numpyro_bnn.workflow.training_rows import refuse_new_rows

# Weights are even enough at half as many effective draws as draws; a resampled run must have half of the
# effective draws that the run had.
_HALF = 0.5
# Most draws that are moved, powers, and trajectories at one power.
_MOVED, _POWERS, _ROUNDS = 2000, 60, 20
# Acceptance of trajectories that step sizes are adapted to, and the least that counts as a move.
_ACCEPTANCE, _LEAST_ACCEPTANCE = 0.8, 0.4


class Updated(Draws):
    """Draws of the posterior given more rows, or fewer, than the run had that they come from.

    - **log_evidence** - log p of the rows of these draws less that of the rows before, in nats: that of new
      rows given the old
    - **log_evidence_error** - its Monte Carlo error
    - **k_hat** - Pareto k̂ of the importance weights from the run to these draws
    - **effective_size** - effective draws of the log density of the rows that came or went
    - **moves** - trajectories that each draw has made; none in a run that was resampled at once
    """

    _args: tuple = ()
    _kwargs: dict[str, PyTree] = {}  # noqa: RUF012
    room = 0

    def _told(self, name: str) -> Any:
        return self.info["updated"][name]

    @property
    def log_evidence(self) -> float:
        """Log evidence gained, in nats."""
        return float(self._told("log_evidence"))

    @property
    def log_evidence_error(self) -> float:
        """Monte Carlo error of the log evidence."""
        return float(self._told("log_evidence_error"))

    @property
    def k_hat(self) -> float:
        """Pareto k̂ of the importance weights."""
        return float(self._told("k_hat"))

    @property
    def effective_size(self) -> float:
        """Effective draws of the log density of the rows that came or went."""
        return float(self._told("effective_size"))

    @property
    def moves(self) -> int:
        """Trajectories of each draw."""
        return int(self._told("moves"))


class _Change(NamedTuple):
    """The arguments of a model with the rows before and after, and which rows come or go."""

    given: dict[Place, PyTree]
    by_row: frozenset[Place]
    size: int
    changing: np.ndarray  # (row,)
    removed: bool
    known: bool  # whether the rows before are among them


def update(
    run: Run,
    x_new: PyTree,
    y_new: ArrayLike,
    *,
    key: jax.Array | None = None,
    fitted_rows: tuple[PyTree, ArrayLike] | None = None,
    **by_row: PyTree,
) -> Updated:
    """The posterior given the rows of a run and new ones, from the draws that are there.

    The draws are weighted by the likelihood of the new rows, with Pareto smoothing. Where k̂ is good and half
    of the draws are effective, they are resampled: seconds. Otherwise sequential Monte Carlo goes from the old
    posterior to the new one: powers of the new likelihood, each with half of the draws effective, and
    trajectories of HMC on all rows at each (of at most 2000 draws, evenly taken). The run's own kernel is not
    used: its step size is that of another posterior, and not every kernel leaves its target exactly invariant.

    The result is a run like any other: for :func:`~numpyro_bnn.predict`, :func:`~numpyro_bnn.diagnose`,
    :func:`~numpyro_bnn.save`, and the next update, which compiles nothing for batches of the same size. A ready
    model keeps the units of its first fit.

    :param run: an ``MCMC`` after `run`, what :func:`~numpyro_bnn.fit` returned, a fitted estimator, or draws
        of a sampler with a model.
    :param x_new: inputs of the new rows.
    :param y_new: their targets.
    :param key: random key; default ``jax.random.key(0)``, folded with the number of rows.
    :param fitted_rows: inputs and targets of the run, for draws that do not keep them, such as those of a file.
        Without them such draws can be resampled, and not moved.
    :param by_row: further arguments of the model with a value for each new row, by name.
    :return: draws with ``log_evidence`` (log p(y_new | x_new, old rows), with ``log_evidence_error``), ``k_hat``
        and ``effective_size``.
    :raises ValueError: for draws that are none of the posterior at temperature 1, a model whose rows depend on
        one another or have latent values, or rows of another form than those of the run.
    :raises RuntimeError: if the new posterior cannot be reached from these draws: fit again.

    >>> more = bnn.update(mcmc, x_new, y_new)                               # doctest: +SKIP
    >>> more.log_evidence, more.k_hat                                       # doctest: +SKIP
    """
    draws = _checked("update", run, key)
    given = _arguments("update", run, draws, fitted_rows)
    if hasattr(run, "classes_"):
        y_new = targets_of(run, y_new, "update")
    x_arrays = checked_inputs("update", draws, x_new)
    target = _target_place(draws.model, given, by_row)
    names = {name: i for i, name in enumerate(names_of(draws.model)) if i in given}
    new: dict[Place, PyTree] = {0: x_arrays, target: y_new}
    new |= {names.get(name, name): value for name, value in by_row.items()}
    new_args, new_kwargs = as_arrays(draws.model, *call_with(new))
    new = {p: v for p, v in by_place(draws.model, new_args, new_kwargs).items() if p in new}
    more = _rows_in("update", new)
    size = _rows_in("update", {p: given[p] for p in new if p in given}) if given else 0
    _refuse_other_rows(given, new, size)
    whole = dict(given)
    for place, value in new.items():
        whole[place] = _joined(place, given[place], value) if given else value
    changing = np.arange(size + more) >= size
    change = _Change(whole, frozenset(new), size + more, changing, False, bool(given))
    return _changed("update", run, draws, change, more, key)


def without(
    run: Run,
    rows: ArrayLike,
    *,
    key: jax.Array | None = None,
    fitted_rows: tuple[PyTree, ArrayLike] | None = None,
) -> Updated:
    """The posterior without some rows of a run: for who asks to be forgotten, or to leave groups out.

    The opposite of :func:`update`, by the same means: the likelihood of these rows is taken away.

    :param run: see :func:`update`.
    :param rows: numbers of the rows to take away, or a mask of all rows that is true for them.
    :param key: see :func:`update`.
    :param fitted_rows: see :func:`update`.
    :return: see :func:`update`; ``log_evidence`` is minus the log density of these rows given the others.
    :raises ValueError: for rows that are not there, for all of them or none, or as :func:`update`.
    :raises RuntimeError: as :func:`update`.

    >>> forgotten = bnn.without(mcmc, [17])                                 # doctest: +SKIP
    """
    draws = _checked("without", run, key)
    given = _arguments("without", run, draws, fitted_rows)
    if not given:
        raise ValueError(
            "without: these draws do not keep the rows of their fit. Give them as `fitted_rows=(x, y)`."
        )
    size = _rows_in("without", {0: given[0]})
    rows = np.asarray(rows)
    mask = np.zeros(size, bool)
    is_mask = rows.dtype == bool
    if rows.ndim != 1 or (rows.shape != (size,) if is_mask else rows.dtype.kind not in "iu"):
        raise ValueError(
            f"without: rows must be numbers of rows, or a mask of {size} rows, got {rows.dtype} of shape "
            f"{rows.shape}."
        )
    if not is_mask and rows.size and not (rows.min() >= 0 and rows.max() < size):
        wrong = rows[(rows < 0) | (rows >= size)][0]
        raise ValueError(f"without: there is no row {wrong}; the run has rows 0 to {size - 1}.")
    mask[rows] = True
    if mask.all() or not mask.any():
        raise ValueError(
            f"without: rows names {mask.sum()} of {size} rows. Name at least one, and leave one."
        )
    by_row = frozenset(place for place, value in given.items() if is_by_row(value, size))
    change = _Change(given, by_row, size, mask, True, True)
    return _changed("without", run, draws, change, int(mask.sum()), key)


def _checked(owner: str, run: Run, key: jax.Array | None) -> Draws:
    """The draws of a run that can be updated."""
    if key is not None:
        check_key(owner, key)
    draws = draws_of(run, owner=owner)
    if draws.model is None:
        raise ValueError(f"{owner}: these draws carry no model. Load them with theirs.")
    if why := why_not_the_posterior(draws):
        raise ValueError(f"{owner}: {why}")
    if draws.info.get("approximation"):
        raise ValueError(
            f"{owner}: these draws are of an approximation ({draws.info.get('kernel', 'optimisation')}), and "
            "weights need draws of the posterior. Approximate again with all rows, or sample first."
        )
    if draws.num_chains * draws.num_draws < LEAST_DRAWS or draws.num_draws < 4:
        raise ValueError(
            f"{owner}: {draws.num_chains} chains of {draws.num_draws} draws are too few to be weighted. Give at "
            f"least {LEAST_DRAWS} draws, and 4 of each chain."
        )
    return draws


def _arguments(
    owner: str, run: Any, draws: Draws, fitted_rows: tuple[PyTree, ArrayLike] | None
) -> dict[Place, PyTree]:
    """The arguments of a run as arrays, by place; none where they are not known."""
    if holds_host_rows(run):
        raise ValueError(
            f"{owner}: the data of this run stay on the host (`OnHost`), and rows are needed in memory. Fit "
            "again with all rows."
        )
    args, kwargs = arguments_of(run)
    if fitted_rows is not None:
        x, y = fitted_rows
        y = targets_of(run, y, owner) if hasattr(run, "classes_") else y
        refuse_new_rows(owner, run, x, y)
        known = draws.info.get(KNOWN_ROWS, {}).get("rows", len(y))
        if not args and not kwargs and known != len(y):
            raise ValueError(f"{owner}: fitted_rows has {len(y)} rows, and the fit had {known}.")
        args, kwargs = call_with({0: x, place_by_name(draws.model): y})
    given = by_place(draws.model, *as_arrays(draws.model, args, kwargs))
    if given and (bound := bound_by_row(draws.model, len(jax.tree.leaves(given[0])[0]))):
        raise ValueError(
            f"{owner}: `functools.partial` binds {list(bound)} to the model, with a value for each row of the "
            "fit. Give it to the run as an argument."
        )
    return {place: value for place, value in given.items() if value is not None}


def _target_place(model: Any, given: dict[Place, PyTree], by_row: Mapping[str, PyTree]) -> Place:
    """The argument that the target is: the one that no name of `by_row` means."""
    names = names_of(model)
    meant = {*by_row, *(names.index(name) for name in by_row if name in names)}
    places = target_places(model, given) - meant if given else frozenset()
    place = next(iter(places)) if len(places) == 1 else place_by_name(model)
    # A target that the run got by position, or by name.
    other = names.index(place) if isinstance(place, str) and place in names else place
    return other if given and place not in given and other in given else place


def _rows_in(owner: str, arguments: Mapping[Place, PyTree]) -> int:
    """The number of rows of arguments that all have a value for each."""
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(list(arguments.values()))}
    if len(sizes) != 1 or sizes & {(), (0,)}:
        raise ValueError(
            f"{owner}: inputs, targets and arguments by row must have the same positive number of rows, got "
            f"{sorted(sizes)}."
        )
    return int(sizes.pop()[0])


def _refuse_other_rows(given: dict[Place, PyTree], new: dict[Place, PyTree], size: int) -> None:
    """Refuse a call that lacks an argument by row of the run, or has one more."""
    absent = [p for p, value in given.items() if p not in new and is_by_row(value, size)]
    if absent:
        raise ValueError(
            f"update: the model of this run also has a value for every row in its argument {absent[0]!r}. Give "
            "that of the new rows by its name."
        )
    if given and (unknown := [place for place in new if place not in given]):
        raise ValueError(
            f"update: the run was not given the argument {unknown[0]!r}, so that its rows have no value of it. "
            "Leave it out, or fit again with it."
        )


def _joined(place: Place, old: PyTree, new: PyTree) -> PyTree:
    try:
        return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a), np.asarray(b)]), old, new)
    except ValueError as error:
        raise ValueError(
            f"update: new rows of argument {place!r} have another form than those of the run: {error}"
        ) from error


def _changed(
    owner: str, run: Any, draws: Draws, change: _Change, more: int, key: jax.Array | None
) -> Updated:
    """The run after a change of its rows."""
    model: Any = draws.model
    args, kwargs = prepared(model, *call_with(change.given))
    whole = Potential(model, args, kwargs).structure
    if whole.takes_keys:
        raise ValueError(
            f"{owner}: the model draws random numbers that are no sites, as dropout does, so that a row has no "
            "one likelihood. Leave dropout out, and fit again."
        )
    refuse_unknown_indices(owner, model, args, kwargs)
    kept = getattr(run, "room", 0)
    room = kept if kept >= change.size else room_for(change.size, 0 if change.removed else more)
    places = [*enumerate(args), *sorted(kwargs.items())]
    by_row = [
        place in change.by_row and leaf.shape[:1] == (change.size,)
        for place, value in places
        for leaf in jax.tree.leaves(value)
        if isinstance(leaf, (np.ndarray, jax.Array))
    ]
    energies = RowEnergies(model, args, kwargs, by_row, change.size, room)
    values = _latent(owner, draws, energies)
    sites = {name: np.asarray(value) for name, value in draws.items()}
    if not isinstance(run, Updated):
        again = energies.refuse_dependent_rows(owner, values)
        sites = {n: v for n, v in sites.items() if n in values or _is_same(v, again.get(n))}
    key = jax.random.key(0) if key is None else key
    key = jax.random.fold_in(key, change.size)
    found = _reached(owner, energies, draws, values, change, key)
    if found.z is None:
        made = {n: v.reshape(-1, *v.shape[2:])[found.taken] for n, v in sites.items()}
    else:
        made = {n: np.asarray(v) for n, v in energies.constrain(found.z).items() if n in sites}
    made = {n: v.reshape(*found.shape, *v.shape[1:]) for n, v in made.items()}
    info = {n: v for n, v in draws.info.items() if n != KNOWN_ROWS} if change.known else draws.info
    result = Updated(made, model, info={**info, "updated": found.told})
    result.room = room
    if change.known:
        left = change.given
        if change.removed:
            stay = ~change.changing
            left = {
                p: jax.tree.map(lambda a: np.asarray(a)[stay], v) if p in change.by_row else v
                for p, v in left.items()
            }
        result._args, result._kwargs = call_with(left)
        result.info |= about_inputs(left[0], draws.info.get("columns", ()), made)
    return result


def _latent(owner: str, draws: Draws, energies: RowEnergies) -> Values:
    """Draws of all latent sites, (draw, …), none of which has a value for each row."""
    found = {}
    for name in energies.structure.latent:
        shape = energies.structure.sites[name].shape
        if name not in draws:
            raise ValueError(
                f"{owner}: there are no draws of the latent site '{name}', so that rows have no likelihood. Run "
                "without `record=`, or fit again on all rows."
            )
        if np.shape(draws[name])[2:] != shape:
            raise ValueError(
                f"{owner}: the latent site '{name}' has shape {np.shape(draws[name])[2:]} in the draws, and "
                f"{shape} at one row: it has values for each row. New rows have none; fit again on all rows."
            )
        found[name] = np.asarray(draws[name]).reshape(-1, *shape)
    return found


def _is_same(stored: np.ndarray, again: Any) -> bool:
    """Whether a deterministic site has its stored values at another row: those of rows are left out."""
    some = stored[0, :2]
    return again is not None and some.shape == again.shape and np.allclose(some, again, 1e-3, 1e-5)


class _Reached(NamedTuple):
    """Draws of the new posterior: numbers of the old ones, or unconstrained values after moves."""

    told: dict[str, float]
    shape: tuple[int, int]
    taken: np.ndarray | None = None
    z: Values | None = None


def _reached(
    owner: str, energies: RowEnergies, draws: Draws, values: Values, change: _Change, key: jax.Array
) -> _Reached:
    """Resample the draws, or move them."""
    changing = energies.weighted(change.changing)
    z, likelihood = energies.look(values, changing)
    shape = (draws.num_chains, draws.num_draws)
    log_weights = -likelihood if change.removed else likelihood
    if (
        np.isnan(log_weights).any()
        or not log_weights.max() > -np.inf
        or log_weights.max() == np.inf
    ):
        raise ValueError(
            f"{owner}: the log density of these {change.changing.sum()} rows is not finite under some draws. "
            "Check them for missing values, and for targets that the model holds impossible."
        )
    # A draw under which the rows are impossible has no weight.
    log_weights = np.maximum(log_weights, log_weights.max() - 700)
    share = np.exp(log_weights - _log_mean(log_weights)).reshape(shape)
    relative = float(ess(share, method="mean")) / share.size
    found = smoothed(-log_weights.reshape(*shape, 1), relative if np.isfinite(relative) else 1.0)
    weights = np.exp(found.log_weights.ravel())
    k_hat = float(found.pareto_k[0])
    # Copies of a draw count as one.
    copies = np.unique(log_weights, return_inverse=True)[1]
    effective = 1 / np.sum(np.bincount(copies, weights) ** 2)
    told = {"k_hat": k_hat}
    if k_hat <= found.good_k and effective >= _HALF * weights.size:
        taken = _systematic(weights, key)
        told |= _evidence(_log_mean(log_weights), share)
        told |= {"effective_size": float(_size(likelihood[taken], shape)), "moves": 0}
        return _Reached(told, shape, taken)
    if not change.known:
        raise RuntimeError(
            f"{owner}: these draws cannot be resampled (Pareto k̂ {k_hat:.2f}, {effective:.0f} effective draws of "
            f"{weights.size}), and they do not keep the rows of their fit, which moves need. Give these as "
            "`fitted_rows=(x, y)`, or fit again on all rows."
        )
    stride = -(-weights.size // _MOVED)
    chosen = np.arange(weights.size).reshape(shape)[:, ::stride]
    z = {name: value[chosen.ravel()] for name, value in z.items()}
    return _moved(owner, energies, z, likelihood[chosen], change, key, told)


def _moved(
    owner: str,
    energies: RowEnergies,
    z: Values,
    likelihood: np.ndarray,
    change: _Change,
    key: jax.Array,
    told: dict[str, float],
) -> _Reached:
    """Sequential Monte Carlo from the old posterior to the new one."""
    shape, count = likelihood.shape, likelihood.size
    had = min(_size(likelihood, shape), count)
    likelihood, first, share = likelihood.ravel(), np.arange(count), np.ones(count)
    power, end = (1.0, 0.0) if change.removed else (0.0, 1.0)
    step_size = sum(value[0].size for value in z.values()) ** -0.25
    changing, log_evidence, moves, size = energies.weighted(change.changing), 0.0, 0, 0.0
    for _ in range(_POWERS):
        log_weights = (end - power) * likelihood
        fraction = _fraction(log_weights)
        log_weights = fraction * log_weights
        power = end if fraction == 1 else power + fraction * (end - power)
        log_evidence += _log_mean(log_weights)
        weights = softmax(log_weights)
        share = count * np.bincount(first, weights, count)
        key, key_taken = jax.random.split(key)
        taken = _systematic(weights, key_taken)
        z, first = {name: value[taken] for name, value in z.items()}, first[taken]
        likelihood = likelihood[taken]
        target = energies.weighted(np.where(change.changing, power, 1.0))
        for _ in range(_ROUNDS):
            key, key_moves = jax.random.split(key)
            spread = {n: _variance(v.reshape(*shape, *v.shape[1:])) for n, v in z.items()}
            z, accepted, likelihood = energies.move(
                z, key_moves, step_size, spread, target, changing
            )
            step_size *= np.exp(accepted - _ACCEPTANCE)
            moves, size = moves + 1, _size(likelihood, shape)
            if accepted >= _LEAST_ACCEPTANCE and (power != end or size >= _HALF * had):
                break
        else:
            raise RuntimeError(
                f"{owner}: the posterior after this change of {change.changing.sum()} rows was not reached: at "
                f"power {power:.2g} of their likelihood, after {_ROUNDS} trajectories of each draw, {accepted:.0%} "
                f"of these are accepted and {size:.0f} draws are effective of {had:.0f} before. Fit again on all "
                "rows."
            )
        if power == end:
            told |= _evidence(log_evidence, share.reshape(shape))
            return _Reached({**told, "effective_size": float(size), "moves": moves}, shape, z=z)
    raise RuntimeError(
        f"{owner}: the posterior after this change of {change.changing.sum()} rows is far: after {_POWERS} powers "
        f"of their likelihood the power is {power:.2g}. Fit again on all rows."
    )


def _variance(values: np.ndarray) -> np.ndarray:
    """Variance of each parameter within chains, (chain, draw, …) to (…)."""
    return np.maximum(values.var(1).mean(0), 1e-10).astype(values.dtype)


def _size(values: np.ndarray, shape: tuple[int, int]) -> float:
    """Effective draws of a number of each draw."""
    return float(np.nan_to_num(ess(values.reshape(shape), method="mean"), nan=1.0))


def _log_mean(log_weights: np.ndarray) -> float:
    return float(logsumexp(log_weights) - np.log(log_weights.size))


def _evidence(log_evidence: float, share: np.ndarray) -> dict[str, float]:
    """The log evidence with its error, from the weights that first draws hand down, of mean 1."""
    error = float(np.nan_to_num(mcse_mean(share)))
    return {"log_evidence": log_evidence, "log_evidence_error": error}


def _fraction(log_weights: np.ndarray) -> float:
    """The largest part of log weights at which half of the draws are effective, at most 1."""

    def missing(part: float) -> float:
        return 1 / np.sum(softmax(part * log_weights) ** 2) - _HALF * log_weights.size

    return 1.0 if missing(1.0) >= 0 else float(brentq(missing, 0.0, 1.0, rtol=1e-3))


def _systematic(weights: np.ndarray, key: jax.Array) -> np.ndarray:
    """Numbers of the draws that are taken, in their order, as many as there are."""
    points = (np.arange(weights.size) + float(jax.random.uniform(key))) / weights.size
    ends = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(ends, points, side="right"), weights.size - 1)
