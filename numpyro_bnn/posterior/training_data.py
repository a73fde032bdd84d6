"""The data of a run: inputs, targets, and the other arguments of its model, such as an offset or a mask.

A model may take its arguments in any order and under any names; the first one holds the inputs. The model
itself tells which arguments are targets: values of observed sites are computed from them, and no distribution
is. Predictions at the rows of a fit need all others, such as an offset. Values that ``condition`` gives to
weights are no data (:func:`~numpyro_bnn.potential.data_dependencies.given_sites`).

A model may observe something made of its target: a logarithm, or the target less a mean. Predictions are
about what it observes, and so are densities and errors of targets beside them (:func:`observed_targets`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._calls import result_or_error
from numpyro_bnn._types import PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import (
    about_numbers,
    as_array,
    as_arrays,
    bound_by_row,
    by_place,
    innermost,
    inputs_of_call,
    is_by_row,
    is_ready,
    names_of,
    prepared,
    targets_of,
)
from numpyro_bnn.data.columns import about_inputs
from numpyro_bnn.data.fingerprints import noted_rows
from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.distributions.unwrap import blanks
from numpyro_bnn.posterior.draws import Run
from numpyro_bnn.posterior.fitted import arguments_of, model_of
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.data_dependencies import Place, SiteSources, sources_of
from numpyro_bnn.potential.sites import all_rows, counted
from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.potential.structure import structure_of


class TrainingData(NamedTuple):
    """Inputs, observed values and other arguments of a model."""

    x: PyTree = None  # the first argument; None where it is not known
    # In the user's units, NaN where the target is missing
    observed: Mapping[str, np.ndarray] = {}
    # The arguments that only the values of each observed site are computed from
    targets: Mapping[str, frozenset[Place]] = {}
    others: Mapping[Place, PyTree] = {}  # all arguments but inputs and targets
    # Which values enter the log density: those that are known and no mask hides
    counted: Mapping[str, np.ndarray] = {}
    # Of sites with missing targets, which values are known (`obs_mask=`)
    known: Mapping[str, np.ndarray] = {}
    # Observed sites whose log density is multiplied by anything but 1
    weighted: frozenset[str] = frozenset()
    # Observed sites whose values change with latent ones, and are no data alone
    moving: frozenset[str] = frozenset()

    def counted_rows(self, site: str) -> np.ndarray:
        """Which rows of an observed site have any value that no mask hides, (row,)."""
        entries = self.counted[site]
        return entries.reshape(len(entries), -1).any(1)

    def with_gaps(self, site: str) -> np.ndarray:
        """Values of an observed site, NaN where they are missing: labels too, as real numbers then."""
        value = self.observed[site]
        return np.where(self.known[site], value, np.nan) if site in self.known else value


def call_with(arguments: Mapping[Place, PyTree]) -> tuple[tuple, dict[str, PyTree]]:
    """Positional and keyword arguments from arguments by place; None stands where one was taken out."""
    count = 1 + max((place for place in arguments if isinstance(place, int)), default=-1)
    named = {place: value for place, value in arguments.items() if isinstance(place, str)}
    return tuple(arguments.get(number) for number in range(count)), named


def training_data(
    owner: str,
    model: Callable | None,
    run: Run | None,
    x: PyTree = None,
    y: Any = None,
    site: str | None = None,
) -> TrainingData:
    """The data of a run; or those of given rows `x` and `y`, with the other arguments of the run."""
    known = TrainingData()
    # Data on the host are read at the given rows only.
    own = model_of(run) or model
    given = {} if holds_host_rows(run) else by_place(own, *arguments_of(run))
    if given:
        known = TrainingData(given.get(0)) if own is None else data_of(own, given)
    if x is None:
        return known
    bound = bound_by_row(model, len(jax.tree.leaves(x)[0]))
    names: dict[Place, Place] = dict(enumerate(names_of(model))) if bound else {}
    others = {
        place: value
        for place, value in known.others.items()
        if names.get(place, place) not in bound
    }
    _refuse_unknown_rows(owner, known._replace(others=others), x)
    if y is not None:
        others[_place_of_target(owner, known, site) if given else place_by_name(model)] = y
    arguments = {0: x} | {names.get(place, place): value for place, value in others.items()}
    return TrainingData(x) if model is None else data_of(model, arguments)


def others_at(
    owner: str, form: str, known: Mapping[str, PyTree], size: int, given: Mapping[str, PyTree]
) -> dict[Any, PyTree]:
    """Arguments beside x and y at other rows: those of the fit that are constant, and those given."""
    constants = {name: value for name, value in known.items() if not is_by_row(value, size)}
    if missing := [name for name in known if name not in {*constants, *given}]:
        values = ", ".join(f"'{name}': …" for name in missing)
        raise ValueError(
            f"{owner}: the model has a value for each training row in {missing}, and none of the rows in "
            f"{form}. Give {form}=(x, y, {{{values}}}), with None for what predictions can do without."
        )
    return constants | dict(given)


def holds_host_rows(run: Run | None) -> bool:
    """Whether the data of a run stay on the host (:class:`~numpyro_bnn.OnHost`)."""
    return any(isinstance(leaf, OnHost) for leaf in jax.tree.leaves(arguments_of(run)))


def _place_of_target(owner: str, known: TrainingData, site: str | None) -> Place:
    """The one argument that the target is."""
    places = known.targets.get(site, frozenset()) if site else frozenset()
    places = places or frozenset[Place]().union(*known.targets.values())
    if len(places) != 1:
        raise ValueError(
            f"{owner}: y was given, and the observed values of this run are computed from "
            f"{len(places)} arguments. Leave x and y out, to take the data of the run."
        )
    return next(iter(places))


def place_by_name(model: Callable | None) -> Place:
    """Where a model takes its target, as far as its signature says: as `y`, or second."""
    return "y" if "y" in names_of(model)[1:] else 1


def _refuse_unknown_rows(owner: str, known: TrainingData, x: PyTree) -> None:
    """Refuse inputs of other rows, where the model also needs other arguments of them."""
    size = len(jax.tree.leaves(known.x)[0]) if known.others else 0
    by_row = [
        f"{place!r}" if isinstance(place, str) else f"number {place + 1}"
        for place, value in known.others.items()
        if is_by_row(value, size)
    ]
    new, old = jax.tree.leaves(x), jax.tree.leaves(known.x)
    if by_row and not (len(new) == len(old) and all(map(np.array_equal, new, old))):
        raise ValueError(
            f"{owner}: x holds other rows than the run, whose model also has a value for every row in its "
            f"argument {', '.join(by_row)}, not known for these. Give it by its name, or leave x and y out."
        )


def refuse_moving(owner: str, data: TrainingData, site: str) -> None:
    """Refuse an observed site whose values change with latent ones: no one number is that of its row."""
    if site in data.moving:
        raise ValueError(
            f"{owner}: the observed values of '{site}' are computed from latent sites, so that they are "
            "others in every draw, and predictions cannot be compared with them. Write the model so that it "
            "observes the data themselves: what is taken off them belongs to the mean of the distribution."
        )


def target_places(model: Callable, given: dict[Place, PyTree]) -> frozenset[Place]:
    """The arguments that observed values are computed from, and no distribution is."""
    args, kwargs = prepared(model, *call_with(given))
    targets = structure_of(model, args, kwargs).targets
    found = _targets(model, sources_of(_shaped(model), args, kwargs, []), targets)
    return frozenset[Place]().union(*found.values())


def rows_of_call(
    model: Callable | None, args: tuple, kwargs: Mapping[str, PyTree]
) -> dict[str, Any]:
    """What draws keep of the rows in a call of a model, by which these are known later."""

    def targets() -> frozenset[Place]:
        if model is None:
            return frozenset()
        found = result_or_error(lambda: target_places(model, by_place(model, args, kwargs)))
        return frozenset() if isinstance(found, Exception) else found

    return noted_rows(model, args, kwargs, targets)


def known_rows(fitted: object) -> dict[str, Any]:
    """What draws keep of the training rows of a run; nothing where there are none."""
    model = model_of(fitted)
    return rows_of_call(model, *as_arrays(model, *arguments_of(fitted)))


def data_facts(bound: BoundModel, draws: Mapping[str, Any]) -> dict[str, Any]:
    """What draws keep of the data that a model was fitted to."""
    inputs = inputs_of_call(bound.model, *bound.arrays)
    facts = about_inputs(inputs, bound.columns, draws) | rows_of_call(bound.model, *bound.arrays)
    return facts | about_numbers(bound.model, *bound.arrays)


def _shaped(model: Callable) -> Callable[[jax.Array], Callable]:
    """A model with all rows, as a function of a blank number that its latent values are."""

    def shaped(blank: jax.Array) -> Callable:
        return seed(substitute(all_rows(model), substitute_fn=blanks(blank)), jax.random.key(0))

    return shaped


def _targets(model: Any, sources: SiteSources, sites: list[str]) -> dict[str, frozenset[Place]]:
    """The arguments that are the target of each site."""
    # Of a ready model, distributions also depend on which targets are missing.
    own = {} if is_ready(model) else sources.distributions
    others = frozenset[Place]({0}).union(*(one.places for one in own.values()))
    return {name: sources.values[name].places - others for name in sites}


def data_of(model: Callable, given: dict[Place, PyTree]) -> TrainingData:
    """What a model does with its arguments."""
    args, kwargs = prepared(model, *call_with(given))
    structure = structure_of(model, args, kwargs)
    sites = structure.targets
    # The data are arguments of the program, which must not keep them.
    arguments = Arguments.split(args, kwargs)
    shaped = _shaped(model)

    def observed(blank: jax.Array, arrays: list[jax.Array]) -> dict[str, Any]:
        args, kwargs = Arguments.join(arrays, arguments.static)
        found = trace(shaped(blank)).get_trace(*args, **kwargs)
        own = ((name, found[name]) for name in sites)
        return {n: (s["value"], s["scale"], counted(s), s["infer"].get("known")) for n, s in own}

    values = Program(observed)(0.0, arguments.arrays) if sites else {}
    sources = sources_of(shaped, args, kwargs, [])
    targets = _targets(model, sources, structure.data)
    # A ready model takes the mean off its target; what was given is in the user's units.
    is_ready = getattr(innermost(model), "shift", None) is not None
    found = {name: np.asarray(values[name][0]) for name in sites}
    for name, value in found.items() if is_ready else ():
        (place,) = targets[name]
        own = np.asarray(as_array("training_data", "y", given[place]), np.float64)
        found[name] = own.reshape(value.shape)
    known = {n: np.asarray(k) for n, (*_, k) in values.items() if k is not None}
    for name, is_known in known.items():
        # Labels stay whole numbers, which have no NaN: they are missing in whole rows, which do not count.
        if found[name].dtype.kind == "f":
            found[name] = np.where(is_known, found[name], np.nan)
    entries = {name: np.asarray(values[name][2]) & ~np.isnan(found[name]) for name in sites}
    taken_out = frozenset[Place]().union(*targets.values())
    # NumPyro splits a target with missing values (`obs_mask=`) into two sites of one name.
    bare = {n: n.removesuffix("_observed") for n in sites}
    named = {n: b if f"{b}_unobserved" in structure.sites else n for n, b in bare.items()}
    weights = {n: s for n, (_, s, *_) in values.items() if s is not None}
    return TrainingData(
        given.get(0),
        {named[n]: value for n, value in found.items()},
        {named[n]: targets[n] for n in sites},
        {place: value for place, value in given.items() if place != 0 and place not in taken_out},
        {named[n]: value for n, value in entries.items()},
        {named[n]: value for n, value in known.items()},
        frozenset(named[n] for n, s in weights.items() if (np.asarray(s) != 1).any()),
        frozenset(named[n] for n in sites if sources.values[n].latent),
    )


def observed_targets(
    owner: str, fitted: object, model: Callable | None, x: PyTree, y: ArrayLike, site: str | None
) -> np.ndarray:
    """Values of the observed site at some rows, which the model makes of targets as a user has them."""
    return as_observed(owner, fitted, model, x, targets_of(fitted, y, owner), site)


def as_observed(
    owner: str, fitted: object, model: Callable | None, x: PyTree, y: Any, site: str | None
) -> np.ndarray:
    """As :func:`observed_targets`, of targets with numbers of classes in place of their names."""
    y = np.asarray(as_array(owner, "y", y))
    if model is None or is_ready(model):
        # A ready model predicts in the units of its user.
        return y
    place, data = _at_rows(fitted, model, x, y)
    # Another site may be observed without arguments.
    names = [n for n in data.observed if site in (None, n) and place in data.targets[n]]
    if len(names) != 1:
        return y
    refuse_moving(owner, data, names[0])
    made = data.with_gaps(names[0])
    if made.shape[:1] != y.shape[:1]:
        return y
    made = _with_gaps(made, y)
    same = made.shape == y.shape and np.array_equal(
        made, y.astype(made.dtype), equal_nan=made.dtype.kind == "f"
    )
    return y if same else made


def _with_gaps(made: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What is observed, unknown where the target is: a model that masks missing targets fills them."""
    if y.dtype.kind != "f" or not y.ndim:
        return made
    gaps = np.isnan(y)
    if made.shape != y.shape:
        gaps = gaps.reshape(len(y), -1).any(1).reshape(-1, *(1,) * (made.ndim - 1))
    return np.where(gaps, np.nan, made) if gaps.any() else made


def _at_rows(
    fitted: object, model: Callable, x: PyTree, y: np.ndarray
) -> tuple[Place | None, TrainingData]:
    """Where the target is in the call, and what the model observes at some rows."""
    own = model_of(fitted)
    given = by_place(own, *arguments_of(fitted))

    def found() -> tuple[Place, TrainingData]:
        places = target_places(own, given) if given and own is not None else frozenset()
        place = next(iter(places)) if len(places) == 1 else place_by_name(model)
        size = next((np.shape(leaf)[0] for leaf in jax.tree.leaves(given.get(0))), 0)
        # Other arguments of the run belong to the call where they have no value for each of its rows.
        others = {p: value for p, value in given.items() if not is_by_row(value, size)}
        others = {p: value for p, value in others.items() if p != 0 and p not in places}
        # None at the place of an argument that is bound by its name would be given beside it.
        names: dict[Place, Place] = {}
        if bound_by_row(model, None):
            names = dict(enumerate(names_of(model)))
        place = names.get(place, place)
        others = {names.get(p, p): value for p, value in others.items()}
        return place, data_of(model, others | {0: x, place: y})

    # The model may need more arguments.
    made = result_or_error(found)
    return (None, TrainingData()) if isinstance(made, Exception) else made
