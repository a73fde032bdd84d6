"""The posterior given more rows, or fewer, from the draws that are there.

Draws of p(θ | y) become draws of p(θ | y, y_new) by the weights p(y_new | θ): by resampling where these are
even enough, else along powers of the likelihood that is new, with moves between. Without some rows the power
goes from 1 to 0. The mean weight is the evidence of the new rows given the old, their prequential score.

Each chain is resampled for itself (of less than 50 draws, joined with others): chains stay independent, and
are compared as before. That is systematic, in the order of draws. So copies are neighbours, and Monte Carlo
errors, those of dependent draws, count the old draws' dependence, uneven weights, and moves that go nowhere.

Sources: Chopin, *A sequential particle filter method for static models* (2002); Del Moral, Doucet and Jasra,
*Sequential Monte Carlo samplers* (2006); the error of the evidence, from the weight that each first draw
hands down: Lee and Whiteley, *Variance estimation in the particle filter* (2018).
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
    is_ready,
    names_of,
    num_rows,
    prepared,
    targets_of,
)
from numpyro_bnn.data.columns import about_inputs
from numpyro_bnn.data.fingerprints import KNOWN_ROWS
from numpyro_bnn.data.units import taken
from numpyro_bnn.diagnostics.checked_draws import distinct_chains
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import mean_errors
from numpyro_bnn.fit_check.loo import LEAST_DRAWS
from numpyro_bnn.posterior import training_data
from numpyro_bnn.posterior.draws import Draws, Run, checked_inputs, draws_of
from numpyro_bnn.posterior.fitted import arguments_of
from numpyro_bnn.posterior.leave_one_out import smoothed, why_not_the_posterior
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.known_indices import refuse_unknown_indices
from numpyro_bnn.workflow.row_energies import RowEnergies, room_for, run_in_blocks

# A posterior is reached where half as many draws are effective as in the run, in chains, and 80: the first
# estimate that reaches a number is too high, and errors need 50. Importance weights alone leave a tenth of
# those that are no copies. Errors are a quarter too small after ten steps that leave half of all draws each.
_HALF, _NEEDED, _TENTH, _OF_STEP, _EVEN = 0.5, 80.0, 0.1, 0.8, 0.9
# The error of a log evidence is known up to this, in nats: that of two chains out of four that decide.
_UNKNOWN = 0.5
# Chains are joined to so many draws. Twice as many are moved as are effective, at least so many of each
# chain, which `diagnose` needs for a verdict, and at most so many in all.
_JOINED, _OF_CHAIN, _MOVED = 50, 100, 2000
# Most powers, and trajectories at one power.
_POWERS, _ROUNDS = 60, 20
# The longest trajectory, in units of the metric and in steps, where rows come, and where they go: the
# posterior widens then, and draws that moved by a third of that stayed behind it.
_COMING, _GOING = (1.0, 8), (3.0, 24)
# Acceptance of trajectories that step sizes are adapted to, and the least that counts as a move.
_ACCEPTANCE, _LEAST_ACCEPTANCE = 0.8, 0.4
# A draw whose weight is so many nats below the best of its chain has none.
_NO_WEIGHT = 700.0

Sites = dict[str, np.ndarray]


class NotReached(RuntimeError):
    """The new posterior cannot be reached from these draws: fit again."""


class Updated(Draws):
    """Draws of the posterior given other rows than those of the run that they come from.

    - **log_evidence** - log density of the rows of these draws, less that of the rows before, in nats: of new
      rows given the old
    - **log_evidence_error** - its Monte Carlo error; infinite where chains, or few draws, decide
    - **k_hat** - Pareto k̂ of the importance weights of the run
    - **effective_size** - effective draws of the log density of the rows that came or went, within chains
    - **moves** - trajectories that each draw has made; none where the run was resampled at once
    """

    def __init__(
        self,
        values: Mapping[str, ArrayLike],
        model: Callable,
        info: dict[str, Any],
        arguments: tuple[tuple, dict[str, PyTree]] = ((), {}),
        energies: RowEnergies | None = None,
    ) -> None:
        super().__init__(values, model, info=info)
        self._args, self._kwargs = arguments
        # Programs for the next change of rows.
        self._energies = energies
        found = info["updated"]
        self.log_evidence: float = found["log_evidence"]
        self.log_evidence_error: float = found["log_evidence_error"]
        self.k_hat: float = found["k_hat"]
        self.effective_size: float = found["effective_size"]
        self.moves: int = found["moves"]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_energies": None}


class _Change(NamedTuple):
    """A change of the rows of a run, and arguments of its model that hold those before and after."""

    owner: str
    draws: Draws
    given: dict[Place, PyTree]
    by_row: frozenset[Place]
    changing: np.ndarray  # which rows come or go, (row,)
    key: jax.Array | None
    removed: bool = False
    known: bool = True  # whether the rows before are among them


def update(
    run: Run, x_new: PyTree, y_new: Any, *, key: jax.Array | None = None, **by_row: PyTree
) -> Updated:
    """The posterior given the rows of a run and new ones, from the draws that are there.

    The draws are weighted by the likelihood of the new rows, with Pareto smoothing. Where k̂ is good and half
    of what was effective is left, 80 draws at least, they are resampled: seconds. Otherwise sequential Monte
    Carlo goes to the new posterior by powers of the new likelihood, each followed by trajectories of HMC on
    all rows that keep part of their momentum, of at most 2000 draws. They leave each posterior invariant.
    Chains that disagreed do so afterwards, and :func:`~numpyro_bnn.diagnose` says so.

    The result is a run like any other: for :func:`~numpyro_bnn.predict`, :func:`~numpyro_bnn.diagnose`,
    :func:`~numpyro_bnn.save`, and the next update, which compiles nothing for batches of the same size. A
    ready model keeps the units of its first fit. Draws of a file do not keep their rows: they can be
    resampled, and not moved.

    :param run: an ``MCMC`` after `run`, what :func:`~numpyro_bnn.fit` returned, a fitted estimator, or draws
        of a sampler with a model.
    :param x_new: inputs of the new rows.
    :param y_new: their targets.
    :param key: random key; default ``jax.random.key(0)``, folded with the number of rows.
    :param by_row: further arguments of the model with a value for each new row, by name.
    :return: draws, often of another number, with ``log_evidence`` (log p(y_new | x_new, old rows), with
        ``log_evidence_error``), ``k_hat`` and ``effective_size``; deterministic sites with a value for each
        row are left out.
    :raises ValueError: for draws that are none of the posterior at temperature 1, a model whose rows depend
        on one another or have latent values, or rows of another form than those of the run.
    :raises RuntimeError: if the new posterior cannot be reached from these draws: fit again.

    >>> more = bnn.update(mcmc, x_new, y_new)                               # doctest: +SKIP
    >>> more.log_evidence, more.k_hat                                       # doctest: +SKIP
    """
    draws, given = _known("update", run, key)
    if hasattr(run, "classes_"):
        y_new = targets_of(run, y_new, "update")
    x_new = checked_inputs("update", draws.model, draws.info, x_new)
    size = _count("update", {0: given[0]}) if given else 0
    names = {name: i for i, name in enumerate(names_of(draws.model)) if i in given}
    if size and "weights" in by_row and is_ready(draws.model):
        given.setdefault(names.get("weights", "weights"), np.ones(size))
    named = {names.get(name, name): value for name, value in by_row.items()}
    # The first row tells which argument the target is.
    first = {place: taken(value, slice(1), size) for place, value in given.items()}
    places = training_data.target_places(draws.model, first) - {*named} if first else ()
    target = next(iter(places)) if len(places) == 1 else training_data.place_by_name(draws.model)
    args, kwargs = training_data.call_with({0: x_new, target: y_new, **named})
    new = by_place(draws.model, *as_arrays(draws.model, args, kwargs))
    new = {place: value for place, value in new.items() if value is not None}
    more = _count("update", new)
    if not given:
        every = np.ones(more, bool)
        return _after(_Change("update", draws, new, frozenset(new), every, key, known=False))
    if other := {place for place, value in given.items() if is_by_row(value, size)} ^ set(new):
        said = sorted(next((n for n, i in names.items() if i == p), str(p)) for p in other)
        raise ValueError(
            "update: the run and the new rows must have values for each row in the same arguments of the "
            f"model, got {said} in one of them. Give those of the run, by their names."
        )
    try:
        for place, value in new.items():
            given[place] = jax.tree.map(lambda a, b: np.concatenate([a, b]), given[place], value)
    except ValueError as error:
        more, its = (jax.tree.map(np.shape, rows) for rows in (value, given[place]))
        raise ValueError(
            f"update: new rows have another form than those of the run: shapes {more} and {its}."
        ) from error
    changing = np.arange(size + more) >= size
    return _after(_Change("update", draws, given, frozenset(new), changing, key))


def without(run: Run, rows: ArrayLike, *, key: jax.Array | None = None) -> Updated:
    """The posterior without some rows of a run: for who asks to be forgotten, or to leave groups out.

    The opposite of :func:`update`, by the same means: the likelihood of these rows is taken away.

    :param run: an ``MCMC`` after `run`, what :func:`~numpyro_bnn.fit` returned, a fitted estimator, or what
        :func:`update` returned.
    :param rows: numbers of the rows to take away, or a mask of all rows that is true for them.
    :param key: see :func:`update`.
    :return: see :func:`update`; ``log_evidence`` is minus the log density of these rows given the others.
    :raises ValueError: for rows that are not there, for all of them or none, or as :func:`update`.
    :raises RuntimeError: as :func:`update`.

    >>> forgotten = bnn.without(mcmc, [17])                                 # doctest: +SKIP
    """
    draws, given = _known("without", run, key)
    if not given:
        raise ValueError(
            "without: these draws do not keep the rows of their fit. Give the run itself."
        )
    size = _count("without", {0: given[0]})
    mask, rows = np.zeros(size, bool), np.asarray(rows)
    try:
        mask[rows] = True
    except IndexError as error:
        raise ValueError(
            f"without: rows must be numbers from 0 to {size - 1}, or a mask of {size} rows: {error}."
        ) from error
    if mask.all() or not mask.any():
        raise ValueError(
            f"without: rows are {mask.sum()} of {size} rows. Take one away or more, and leave one."
        )
    by_row = frozenset(place for place, value in given.items() if is_by_row(value, size))
    return _after(_Change("without", draws, given, by_row, mask, key, removed=True))


def _known(owner: str, run: Any, key: jax.Array | None) -> tuple[Any, dict[Place, PyTree]]:
    """The draws of a run that can be updated, and its arguments as arrays; none where they are not known."""
    if key is not None:
        check_key(owner, key)
    draws, why = distinct_chains(draws_of(run, owner=owner)), None
    if draws.model is None:
        why = "these draws carry no model. Load them with theirs."
    elif draws.info.get("approximation"):
        kernel = draws.info.get("kernel", "optimisation")
        why = f"these draws are of an approximation ({kernel}), not of the posterior. Approximate it again."
    elif draws.num_chains * draws.num_draws < LEAST_DRAWS or draws.num_draws < 4:
        few = f"{owner}: draws of shape {draws.num_chains} × {draws.num_draws} are too few to be weighted."
        raise NotReached(f"{few} Give at least {LEAST_DRAWS}, and 4 of each chain.")
    elif training_data.holds_host_rows(run):
        why = "data of this run stay on the host (`OnHost`): they are needed in memory. Fit again."
    if why := why or why_not_the_posterior(draws):
        raise ValueError(f"{owner}: {why}")
    given = by_place(draws.model, *as_arrays(draws.model, *arguments_of(run)))
    given = {place: value for place, value in given.items() if value is not None}
    if given and (bound := bound_by_row(draws.model, _count(owner, {0: given[0]}))):
        raise ValueError(
            f"{owner}: `functools.partial` binds values for each row to the model, {list(bound)}. Give them "
            "to the run as arguments."
        )
    return draws, given


def _count(owner: str, arguments: Mapping[Place, PyTree]) -> int:
    """The number of rows of arguments that all have a value for each."""
    return num_rows(f"{owner}: inputs, targets, others by row", list(arguments.values()))


def _after(change: _Change) -> Updated:
    """The run after a change of its rows."""
    owner, draws, changing, size = change.owner, change.draws, change.changing, change.changing.size
    model: Any = draws.model
    args, kwargs = prepared(model, *training_data.call_with(change.given))
    by_row = [
        place in change.by_row and leaf.shape[:1] == (size,)
        for place, value in (*enumerate(args), *sorted(kwargs.items()))
        for leaf in jax.tree.leaves(value)
        if isinstance(leaf, (np.ndarray, jax.Array))
    ]
    known = draws._energies if isinstance(draws, Updated) else None
    energies = known and known.at(model, (args, kwargs), by_row, size)
    if energies is None:
        room = room_for(size, 0 if change.removed else int(changing.sum()))
        energies = RowEnergies(model, (args, kwargs), by_row, size, room)
    if energies.structure.takes_keys:
        raise ValueError(
            f"{owner}: the model draws random numbers that are no sites, as dropout does, so that a row has "
            "no one likelihood. Leave dropout out, and fit again."
        )
    refuse_unknown_indices(owner, model, energies.structure, *energies.checked_at(changing))
    latent = _latent(owner, draws, energies)
    sites = {name: np.asarray(value) for name, value in draws.items()}
    if not isinstance(draws, Updated):
        again = energies.sites_at(owner, latent)
        sites = {n: v for n, v in sites.items() if n in latent or _is_same(v, again.get(n))}
    found, made = _reached(change, energies, latent, sites)
    info = draws.info | {"updated": found}
    if not change.known:
        return Updated(made, model, info, energies=energies)
    info.pop(KNOWN_ROWS, None)
    left = change.given
    if change.removed:
        left |= {place: taken(left[place], ~changing, size) for place in change.by_row}
    info |= about_inputs(left[0], draws.info.get("columns", ()), made)
    return Updated(made, model, info, training_data.call_with(left), energies)


def _latent(owner: str, draws: Draws, energies: RowEnergies) -> Sites:
    """Draws of all latent sites, (draw, …), none of which has a value for each row."""
    shapes = {name: energies.structure.sites[name].shape for name in energies.structure.latent}
    for name, shape in shapes.items():
        if name not in draws or np.shape(draws[name])[2:] != shape:
            there = f"shape {np.shape(draws[name])[2:]}" if name in draws else "no draws"
            raise ValueError(
                f"{owner}: the latent site '{name}' has {there} in this run, and shape {shape} at one row. "
                "Draws of all latent sites are needed (of `….base` sites, from files that were written with "
                "`base_sites=True`), and a value for each row is not known of new rows."
            )
    return {name: np.asarray(draws[name]).reshape(-1, *shape) for name, shape in shapes.items()}


def _is_same(stored: np.ndarray, again: Any) -> bool:
    """Whether a deterministic site has its stored values at another row: those of rows are left out."""
    some = stored[0, :2]
    return again is not None and some.shape == again.shape and np.allclose(some, again, 1e-3, 1e-5)


def _reached(
    change: _Change, energies: RowEnergies, latent: Sites, sites: Sites
) -> tuple[dict[str, float], Sites]:
    """What was found on the way to the new posterior, and its draws."""
    owner, (chains, draws) = change.owner, next(iter(sites.values())).shape[:2]
    # Short chains are joined: weights of few draws would be those of the old posterior still.
    fit = [n for n in range(1, chains + 1) if chains % n == 0 and chains * draws >= n * _JOINED]
    shape = fit[-1], chains * draws // fit[-1]
    key = jax.random.fold_in(jax.random.key(0) if change.key is None else change.key, energies.size)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    z = run_in_blocks(energies.unconstrain, latent, energies.arrays)
    log_weights = _log_weights(change, energies, z, shape)
    if not np.isfinite(log_weights).all():
        raise ValueError(
            f"{owner}: the log density of these {change.changing.sum()} rows is not finite under some draws. "
            "Check them for missing values, and for targets that the model holds impossible."
        )
    share = np.exp(log_weights - _log_mean(log_weights))
    found = smoothed(-log_weights[..., None], _size(share) / share.size)
    weights, k_hat = softmax(found.log_weights[..., 0], 1), float(found.pareto_k[0])
    # Copies of a draw are neighbours.
    same = [(v[1:] == v[:-1]).reshape(len(v) - 1, -1).all(1) for v in z.values()]
    of_each = np.bincount(np.append(0, np.cumsum(~np.all(same, 0))), weights.ravel())
    effective = len(weights) ** 2 / np.sum(of_each**2)
    if not np.isfinite(k_hat) and effective >= _EVEN * of_each.size:
        # The largest weights are equal, as those of probabilities that are 1, and have no tail.
        k_hat = 0.0
    chosen = _systematic(weights, rng)
    had = min(_size(log_weights), weights.size)
    of_chain = np.clip(2 * had, _OF_CHAIN * shape[0], _MOVED) / shape[0]
    kept = {"needed": max(_HALF * had, _NEEDED), "moved": int(of_chain), "step_size": 0.0}
    # Errors must not grow from update to update, and as many draws are moved, by the same program.
    kept = {name: change.draws.info.get("updated", {}).get(name, kept[name]) for name in kept}
    log_evidence, size, moves = _log_mean(log_weights), _size(np.take(log_weights, chosen)), 0
    if k_hat <= found.good_k and effective >= _TENTH * of_each.size and size >= kept["needed"]:
        made = {name: value.reshape(-1, *value.shape[2:])[chosen] for name, value in sites.items()}
    elif change.known:
        evenly = np.linspace(0, shape[1] - 1, min(shape[1], kept["moved"])).round().astype(int)
        chosen = np.arange(weights.size).reshape(shape)[:, evenly]
        z, shape = {name: value[chosen.ravel()] for name, value in z.items()}, chosen.shape
        way = _moved(change, energies, z, np.take(log_weights, chosen), kept, rng)
        z, share, log_evidence, size, moves = way
        made = energies.constrain(z, energies.arrays)
    else:
        raise NotReached(
            f"{owner}: these draws cannot be resampled (Pareto k̂ {k_hat:.2f}, {effective:.0f} of "
            f"{of_each.size} by weights, {size:.0f} effective of {kept['needed']:.0f} needed), and do not "
            "keep the rows of their fit, which moves need. Fit again on all rows."
        )
    # Between chains that disagree, each has one weight.
    between = share.mean(1).std(ddof=1) / np.sqrt(len(share)) if len(share) > 1 else 0.0
    error = max(float(mcse_mean(share)), float(between))
    return {
        "log_evidence": log_evidence,
        "log_evidence_error": error if error <= _UNKNOWN else np.inf,
        "k_hat": k_hat,
        "effective_size": size,
        "moves": moves,
        **kept,
    }, {name: np.asarray(made[name]).reshape(*shape, *v.shape[2:]) for name, v in sites.items()}


def _moved(
    change: _Change, energies: RowEnergies, z: Sites, log_weights: np.ndarray, kept: Any, rng: Any
) -> tuple[Sites, np.ndarray, float, float, int]:
    """Sequential Monte Carlo: draws, weight of each first draw, log evidence, effective size, moves."""
    shape, count = log_weights.shape, log_weights.size
    needed = min(kept["needed"], _HALF * count)
    first, evidences = np.arange(count), np.zeros((len(log_weights), 1))
    width, kind = sum(v[0].size for v in z.values()), np.result_type(*z.values())
    momenta = rng.standard_normal((count, width)).astype(kind)
    # Single steps find the step size, where no update before has found one.
    step_size = kept["step_size"] or width**-0.25
    length, most = _GOING if change.removed else _COMING
    steps = most if kept["step_size"] else 1
    done, moves, accepted, size = 0.0, 0, 0.0, 0.0
    for _ in range(_POWERS):
        part = _part((1 - done) * log_weights)
        weighted = part * (1 - done) * log_weights
        done = 1.0 if part == 1 else done + part * (1 - done)
        evidences += logsumexp(weighted, 1, keepdims=True) - np.log(shape[1])
        weights = softmax(weighted, 1)
        share = shape[1] * np.bincount(first, weights.ravel(), count).reshape(shape)
        chosen = _systematic(weights, rng).ravel()
        z, momenta = {name: value[chosen] for name, value in z.items()}, momenta[chosen]
        copies, first = np.diff(chosen, prepend=-1) == 0, first[chosen]
        # Copies of a draw go different ways.
        momenta[copies] = rng.standard_normal((copies.sum(), width))
        power = 1 - done if change.removed else done
        target = energies.weighted(np.where(change.changing, power, 1.0))
        for _ in range(_ROUNDS):
            fresh = rng.standard_normal((count, width), np.float32).astype(kind, copy=False)
            noise = fresh, rng.uniform(size=(count, 2)).astype(kind)
            within = {n: v.reshape(*shape, *v.shape[1:]).var(1).mean(0) for n, v in z.items()}
            spread = {n: np.maximum(v, 1e-10).astype(z[n].dtype) for n, v in within.items()}
            step = np.float32(step_size), np.int32(max(1, min(steps, int(length / step_size))))
            made = energies.move((z, momenta), noise, step, spread, energies.arrays, target)
            (z, momenta), accepted = jax.tree.map(np.asarray, made)
            log_weights = _log_weights(change, energies, z, shape, 1 - done)
            kept["step_size"] = step_size = step_size * float(np.exp(accepted - _ACCEPTANCE))
            moves, size = moves + 1, _size(log_weights)
            if accepted < _LEAST_ACCEPTANCE:
                continue
            if steps == most and (done < 1 or size >= needed):
                break
            steps = most
        else:
            break
        if done == 1:
            log_evidence = _log_mean(evidences)
            return z, share * np.exp(evidences - log_evidence), log_evidence, size, moves
    raise NotReached(
        f"{change.owner}: the posterior after this change of {change.changing.sum()} rows was not reached "
        f"from these draws: {moves} trajectories of each went {done:.0%} of the way, {accepted:.0%} of the "
        f"last are accepted, and {size:.0f} draws are effective, {needed:.0f} needed. Fit again on all rows."
    )


def _log_weights(
    change: _Change, energies: RowEnergies, z: Sites, shape: Any, left: float = 1.0
) -> np.ndarray:
    """Log weights of draws by the rows that come or go, (chain, draw); a power of `left` is to go."""
    rows = energies.arrays, energies.weighted(change.changing)
    likelihood = run_in_blocks(energies.likelihood, z, *rows).astype(np.float64).reshape(shape)
    log_weights = -likelihood if change.removed else likelihood
    least = log_weights.max(1, keepdims=True) - _NO_WEIGHT / max(left, 1 / _NO_WEIGHT**2)
    return np.maximum(log_weights, least)


def _size(values: np.ndarray) -> float:
    """Effective draws of a number of each draw, (chain, draw), within chains; all of a constant."""
    return float(mean_errors(values).ess)


def _log_mean(log_weights: np.ndarray) -> float:
    return float(logsumexp(log_weights) - np.log(log_weights.size))


def _part(log_weights: np.ndarray) -> float:
    """The largest part of log weights at which `_OF_STEP` of the draws are effective, at most 1."""

    def missing(part: float) -> float:
        sizes = 1 / np.sum(softmax(part * log_weights, 1) ** 2, 1)
        return sizes.sum() - _OF_STEP * log_weights.size

    return 1.0 if missing(1.0) >= 0 else float(brentq(missing, 0.0, 1.0, rtol=1e-3))


def _systematic(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of the draws that are taken from each chain, (chain, draw), in their order."""
    chains, draws = weights.shape
    points = (np.arange(draws) + rng.uniform(size=(chains, 1))) / draws
    ends = np.cumsum(weights, 1) / weights.sum(1, keepdims=True)
    own = [np.searchsorted(end, point, side="right") for end, point in zip(ends, points)]
    return np.minimum(own, draws - 1) + np.arange(chains)[:, None] * draws
