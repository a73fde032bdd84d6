"""Predictions of every draw, computed in blocks of draws and rows to need little memory."""

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import primitives
from numpyro.handlers import substitute
from numpyro.primitives import Messenger

from numpyro_bnn._calls import result_or_error
from numpyro_bnn._checks import check_whole
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.compilation.program_identity import traced_once
from numpyro_bnn.data.arguments import bound_by_row, innermost, is_by_row, num_rows, prepared
from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.data.units import taken
from numpyro_bnn.likelihoods.noisy_inputs import given_measurements
from numpyro_bnn.posterior.draws import Draws, Run, checked_inputs, draws_of, group_by_chain
from numpyro_bnn.posterior.prediction_sites import (
    DRAWN,
    VECTOR,
    ModelCall,
    check_same_rows,
    draws_for,
    is_of_rows,
    measured_sites,
    of_all_rows,
    programs_of,
    rows_depend,
    site_in,
    sites_without_draws,
    structure_at,
    target_of,
)
from numpyro_bnn.posterior.predictive_draws import OF_TARGETS, Predictions
from numpyro_bnn.posterior.training_data import call_with
from numpyro_bnn.potential import known_indices
from numpyro_bnn.potential.compiled_arguments import Arguments, with_first_values
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.sites import Structure, all_rows
from numpyro_bnn.storage.stored_array import StoredArray

# Numbers that are read from draws on disk at a time.
_BLOCK = 2**24
# Numbers of draws in memory that are copied at a time. Freed arrays of 32 MB and more are returned to the
# system, and the next one costs a page fault for each of its pages: a quarter of the time was spent there.
_BLOCK_IN_MEMORY = 6 * 2**20
# Predictions of single numbers that are held at a time where they are reduced.
_REDUCED = 2**22
# Rows at a time, where these can be predicted in blocks.
_ROWS = 1000
_ADVICE = " `predict(…, new_groups='sample')` draws the effects of new groups of a plate."


def predict(
    model: Callable | None,
    samples: Run,
    x: PyTree,
    *,
    batch_size: int | None = None,
    site: str | None = None,
    reduce: Callable[[Predictions], PyTree] | None = None,
    new_groups: Literal["sample"] | None = None,
    **by_row: PyTree,
) -> Any:
    """The distribution of the target at new inputs under every draw.

    Rows are taken `batch_size` at a time and draws one after another in small vectors, so that
    memory beyond the result does not grow with either. Draws on disk are read in blocks. A model whose
    rows depend on one another, such as a recurrent network along them, predicts all rows of x together.
    With `reduce` the result has no draws, and any number of rows takes the same memory::

        mean, sd = bnn.predict(model, mcmc, x, reduce=bnn.average)

    :param model: the model, called as ``model(x)``; None where `samples` carries one.
    :param samples: an ``MCMC`` after `run`, what :func:`numpyro_bnn.fit` returned, a fitted estimator,
        :class:`Draws`, or a mapping of draws by site with leading axes (draw,) or (chain, draw).
    :param x: inputs, an array, a table or a pytree of them with rows first. Columns of tables are compared by
        name with those of the fit, however the run was given its inputs: by position, by name, in a pytree.
    :param batch_size: rows at a time; default: at most 1000, or all rows where these depend on one another.
    :param site: the target, where the model has several sites without draws; or a deterministic
        site with a value for every row, of which there is only the mean.
    :param reduce: a function of predictions, called with those of some rows at a time, that returns arrays
        with rows first, such as :func:`numpyro_bnn.average`. Their parts are put together.
    :param new_groups: ``"sample"`` for rows of groups that the fit never saw, whose numbers go on after those
        of the fit. Their effects are drawn from the distribution that the model gives to all groups of a
        plate, one value for each draw. By default such rows are refused.
    :param by_row: further arguments of the model by name, such as an offset of each row of x; those that
        ``functools.partial`` binds to the model are taken too. One that is left out has its default, also
        where the run had another: right for weights of rows, but an offset has to be given again.
    :return: what `reduce` returns; without it :class:`Predictions` with leading axes (chain, draw, row).
        Latent sites under a plate that have no draws, such as values of single rows at new rows, are drawn
        from their prior, one value for each draw: averages over draws are those of the posterior predictive
        distribution, while densities and noise of a single draw are those given this value.
    :raises ValueError: if it is not clear which site to predict, draws are missing or are latent values
        of other rows, inputs have no rows or other columns than the fit had, the first axis of the site is
        not that of the rows, or `batch_size` would part rows that depend on one another.
    :raises TypeError: if the model needs more than x, or for arguments in another order.
    """
    classes = getattr(samples, "classes_", None)
    if isinstance(samples, Draws) or not isinstance(samples, Mapping):
        samples = draws_of(samples, model, "predict")
        model = samples.model
    if new_groups not in (None, "sample"):
        raise ValueError(f"predict: new_groups must be 'sample' or None, got {new_groups!r}.")
    options: dict[str, Any] = {"batch_size": batch_size, "site": site}
    if new_groups is not None:
        options["drawn_anew"] = frozenset(samples)
    of: Callable = partial(Predictor, model)
    if isinstance(samples, Draws):
        of = partial(predictor_of, samples)
    made = _in_parts(partial(of, **options), samples, x, by_row, reduce)
    if isinstance(made, Predictions):
        made.classes_ = classes
    return made


def _in_parts(
    predictor: Callable[..., "Predictor"],
    samples: Mapping[str, Array],
    x: PyTree,
    by_row: dict[str, PyTree],
    reduce: Callable[[Predictions], PyTree] | None,
) -> Any:
    """All predictions, or what `reduce` makes of those of some rows at a time."""
    of_all = predictor(x, others=by_row)
    draws = min((np.size(value) for value in samples.values() if np.size(value)), default=1)
    step = of_all.batch_size * max(1, _REDUCED // (draws * of_all.batch_size))
    if reduce is None or of_all.size <= step or not of_all.are_separate(samples):
        found = of_all(samples)
        _refuse_rows_of_nan(found, x)
        return found if reduce is None else reduce(found)
    parts, places = [], list(of_all.others)
    for begin in range(0, of_all.size, step):
        rows = slice(begin, begin + step)
        x_part, *values = _some_rows([x, *of_all.others.values()], rows, of_all.size)
        found = predictor(x_part, others=dict(zip(places, values)))(samples)
        _refuse_rows_of_nan(found, x_part, begin)
        parts.append(jax.tree.map(np.asarray, reduce(found)))
        shapes = [leaf.shape for leaf in jax.tree.leaves(parts[-1])]
        count = min(step, of_all.size - begin)
        if any(shape[:1] != (count,) for shape in shapes):
            raise ValueError(
                f"predict: reduce returned arrays of shapes {shapes} for {count} rows. Return arrays with a "
                "value for each row, rows first."
            )
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _refuse_rows_of_nan(predictions: Predictions, x: PyTree, first: int = 0) -> None:
    """Refuse rows without a prediction under any draw; a distribution without a mean has none at all rows."""
    main = np.asarray(predictions)
    if not np.isnan(main.min(initial=0.0)):
        return
    bad = np.isnan(main).reshape(*main.shape[:3], -1).any(3).all((0, 1))
    rows = np.flatnonzero(bad)
    if not rows.size:
        return
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    inputs = [leaf for leaf in inputs if leaf.dtype.kind == "f"]
    nan = [~np.isfinite(leaf[rows]).reshape(rows.size, -1).all(1) for leaf in inputs]
    of_inputs = np.any(nan, 0) if nan else np.zeros(rows.size, bool)
    if rows.size < bad.size or of_inputs.all():
        named = ", ".join(map(str, first + rows[:5])) + (", …" if rows.size > 5 else "")
        why = f", of which {of_inputs.sum()} have NaN or infinite inputs" if of_inputs.any() else ""
        raise ValueError(
            f"predict: the predictions of {rows.size} of {bad.size} rows are NaN under every draw (rows "
            f"{named}){why}. Fill in these inputs, or leave the rows out."
        )


def predict_some(
    owner: str, draws: Draws, x: PyTree, others: Mapping[Place, PyTree], rows: np.ndarray
) -> Predictions:
    """Predictions of some rows of inputs, whose numbers are given, as they are among all of these."""
    predictor = predictor_of(draws, x, others, owner=owner)
    if len(rows) == predictor.size or not predictor.are_separate(draws):
        return predictor(draws).at_rows(rows)
    x, *values = _some_rows([x, *predictor.others.values()], rows, predictor.size)
    return predictor_of(draws, x, dict(zip(predictor.others, values)))(draws)


def first_rows(draws: Draws, x: PyTree, count: int) -> tuple[Draws, PyTree]:
    """The first rows of inputs, and draws whose model has its bound arguments at these rows."""
    size = len(jax.tree.leaves(x)[0])
    bound, x = _some_rows([bound_by_row(draws.model, size), x], slice(count), size)
    return draws.bound_to(bound), x


def _some_rows(given: list[Any], rows: np.ndarray | slice, size: int) -> list[Any]:
    """Some rows of arguments and tables; what is not by row stays whole."""

    def of(leaf: Any) -> Any:
        if np.shape(leaf)[:1] != (size,):
            return leaf
        of_rows = leaf if isinstance(leaf, OnHost) else getattr(leaf, "iloc", None)
        return np.asarray(leaf)[rows] if of_rows is None else of_rows[rows]

    return jax.tree.map(of, given)


def predictor_of(
    draws: Draws, x: PyTree, others: Mapping[Place, PyTree] | None = None, **options: Any
) -> "Predictor":
    """The predictor at the inputs, whose columns are compared with those of the fit."""
    model: Any = draws.model
    return Predictor(model, x, about=draws.info, others=others, **options)


class DrawsTaken(NamedTuple):
    """Draws that the sites of a model take their values from."""

    # (chain, draw, …) by site; empty where all sites are drawn at these rows
    values: dict[str, Any]
    lead: tuple[int, int]  # Numbers of chains and of draws of each
    first: int  # Number of the first draw in its run


class Predictor:
    """Predicts at fixed inputs from blocks of draws; compiled once for blocks of one shape."""

    # `about` is what draws keep of the training inputs, with which these are compared. `others` are further
    # arguments by place in the call, such as an offset; arrays as long as `x` go with its rows.

    def __init__(
        self,
        model: Callable | None,
        x: PyTree,
        *,
        batch_size: int | None = None,
        site: str | None = None,
        about: Mapping[str, Any] = MappingProxyType({}),
        others: Mapping[Place, PyTree] | None = None,
        drawn_anew: Collection[str] = (),
        owner: str = "predict",
    ) -> None:
        if model is None:
            raise ValueError(
                f"{owner}: these draws carry no model to predict with. Give it, too; draws of a run over a "
                "`potential_fn` are for `bnn.diagnostics.diagnose_draws`."
            )
        self._in_given_blocks, self._owner = batch_size is not None, owner
        table, x = x, checked_inputs(owner, model, about, x)
        self.size = num_rows(f"{owner}: x", x)
        if batch_size is None:
            # Blocks of one size, so that one program serves all of them.
            batch_size = math.ceil(self.size / math.ceil(self.size / _ROWS))
        self.batch_size = min(check_whole(owner, "batch_size", batch_size), self.size)
        self.inputs, self._fitted, self._site = x, about.get("fitted_rows"), site
        self.others: dict[Place, PyTree] = {**bound_by_row(model, self.size), **(others or {})}
        self.arguments = prepared(model, *call_with({0: table, **self.others}))
        self.model: Callable = given_measurements(all_rows(model))
        # Equal ready models are traced once for all predictions; None for a model that may change.
        self._frozen = getattr(model, "traced_as", None)
        self.shift = getattr(innermost(model), "shift", None)
        try:
            self.structure = self._structure_at(self.batch_size)
        except (TypeError, ValueError):
            if self._in_given_blocks or self.size <= self.batch_size:
                raise
            # A model that closes over values of all rows cannot predict some of them.
            self.batch_size = self.size
            self.structure = self._structure_at(self.size)
        if self.structure.unfixed:
            is_lost = "fixed_anew" in about
            self.model = with_first_values(self.model, *self.arguments, is_lost=is_lost)
            self._frozen = None
            self.structure = self._structure_at(self.batch_size)
        # Sites with draws for fewer groups than the data have.
        self._extended: set[str] = set()
        if drawn_anew and self.structure.looks_up:
            given = self.structure, *self.arguments
            self.model, self._extended = _with_new_groups(self.model, *given, drawn_anew)
        if self._extended:
            # A new group has one effect in all rows.
            self.batch_size, self._frozen = self.size, None
            self.structure = self._structure_at(self.size)
        advice = _ADVICE if owner == "predict" and not drawn_anew else ""
        called = self.model, self.structure, *self.arguments
        known_indices.refuse_unknown_indices(owner, *called, advice)
        # Targets that were found to have their rows first.
        self._with_rows: set[str] = set()
        # Whether rows were seen to depend on one another, which few draws may not show.
        self._dependent = False
        self._programs: dict[str, Callable] = {}

    def __call__(self, samples: Mapping[str, Array], first: int = 0) -> Predictions:
        """Predictions of draws (draw, …) or (chain, draw, …) that begin at draw `first` of a run."""
        suspect = samples.suspect if isinstance(samples, Draws) else {}
        given, samples = samples, self._known(samples)
        self.rows_at_a_time(samples)
        target = self.target_of(samples)
        rows = self.inputs, self._fitted, self.batch_size, self._structure_at
        check_same_rows(self.structure, samples, target, *rows)
        grouped = draws_for(self.call, samples, target, self.batch_size, self._extended)
        chains = grouped or group_by_chain(given, self.structure.shapes)
        lead = np.shape(next(iter(chains.values())))[:2]
        evaluate = partial(self._evaluate, target, DrawsTaken(grouped, lead, first))
        values = evaluate("parameters", None)
        site = self.structure.sites.get(target)
        predictions = Predictions(values, evaluate, self.shift, suspect, site)
        predictions.warn_of_suspects("predict")
        return predictions

    def at_site(self, site: str) -> "Predictor":
        """The predictor of another site, which shares what was traced and compiled."""
        other = copy.copy(self)
        other._site = site
        return other

    def _known(self, samples: Mapping[str, Any]) -> Mapping[str, Any]:
        """Draws without sites that are known for the rows of the fit alone."""
        return of_all_rows(samples, self._measured_elsewhere)

    @cached_property
    def _measured_elsewhere(self) -> set[str]:
        """Inputs with an error whose draws are of other rows than these."""
        measured = set(measured_sites(self.structure))
        return set() if measured and is_of_rows(self.inputs, self._fitted) else measured

    def target_of(self, samples: Mapping[str, Any]) -> str:
        """The site to predict from draws of some sites; its first axis is that of the rows."""
        if any(0 in np.shape(value)[:2] for value in samples.values()):
            raise ValueError(f"{self._owner}: these sites hold no draws. Give at least one.")
        known, site = self._known(samples), site_in(self.structure, self._site)
        target = target_of(self._first_call, known, site)
        if target not in self._with_rows:
            check_rows_first(target, self.batch_size, self.structure, self._structure_at)
            self._with_rows.add(target)
        return target

    def sites_from_priors(self, samples: Mapping[str, Any]) -> list[str]:
        """Latent sites that the target is computed from without draws: priors give a value a draw."""
        found = sites_without_draws(self._first_call, self._known(samples), self.target_of(samples))
        return [name for name in found if name not in samples]

    def rows_at_a_time(self, samples: Mapping[str, Array]) -> int:
        """How many rows are predicted together: all of them where they depend on one another."""
        if self.size <= self.batch_size or self.are_separate(samples, self.batch_size):
            return self.batch_size
        if self._in_given_blocks:
            by_row = [p for p, value in self.others.items() if is_by_row(value, self.size)]
            names = ", ".join(f"'{p}'" if isinstance(p, str) else f"number {p + 1}" for p in by_row)
            table = f" If the argument {names}, which is as long as x, is not by row, give it another length."
            raise ValueError(
                f"predict: among {self.batch_size} rows a row has other predictions than among more: the "
                "model relates rows, as one does that standardises its inputs by their own mean, or has lags "
                "or a recurrent network along the rows. Blocks of them would be predicted wrongly. Predict "
                f"all together, `batch_size={self.size}`, or leave it out.{table if by_row else ''}"
            )
        self.batch_size = self.size
        self.structure = self._structure_at(self.size)
        return self.size

    def are_separate(self, samples: Mapping[str, Array], part: int = _ROWS) -> bool:
        """Whether a row has the same predictions among any others, as far as can be seen."""
        if not self._dependent:
            samples = self._known(samples)
            self._dependent = rows_depend(self.call, self.target_of(samples), samples, part)
        return not self._dependent

    def _structure_at(self, count: int) -> Structure:
        """Sites and plates of the model at the first rows."""
        args, kwargs = self._first_rows(count)
        make = partial(structure_at, self.model, *args, **kwargs)
        return self._traced((args, kwargs), "structure", make)

    @property
    def call(self) -> ModelCall:
        """The call of the model at all rows, with its structure at a block of them."""
        return ModelCall(self.model, self.structure, self.arguments)

    @property
    def _first_call(self) -> ModelCall:
        return self.call._replace(arguments=self._first_rows(self.batch_size))

    def _first_rows(self, count: int) -> PyTree:
        """The arguments of the model at the first rows."""
        return taken(self.arguments, slice(count), self.size)

    def _programs_of(self, target: str, static: tuple) -> Callable:
        """The compiled programs for a target, made when they are first needed."""
        if target not in self._programs:
            make = partial(programs_of, self.model, target, static)
            first = self._first_rows(self.batch_size)
            self._programs[target] = self._traced(first, target, make)
        return self._programs[target]

    def _traced(self, arguments: tuple[tuple, dict[str, Any]], what: str, make: Callable) -> Any:
        """What `make` gives by tracing, once for a frozen model; others may read what changed since."""
        if self._frozen is None or primitives._PYRO_STACK:
            return make()
        arrays, static = Arguments.split(*arguments)
        shapes = tuple(jax.typeof(array) for array in arrays)
        return traced_once.made((self._frozen, what, shapes, static), make)

    def __getstate__(self) -> dict[str, Any]:
        # Programs are compiled again where they are needed.
        return self.__dict__ | {"_programs": {}}

    def _computed(
        self, target: str, taken_from: DrawsTaken, what: str, extra: Any
    ) -> Iterator[tuple[slice, slice, dict[str, jax.Array]]]:
        """Results of the compiled program, for blocks of draws and of rows, with their positions."""
        grouped, lead, first = taken_from
        latent = [n for n in self.structure.latent if n != target and n not in grouped]
        # Each draw has its own dropout masks, prior values of single rows, and effects of new groups.
        drawn_here = [n for n in latent if self.structure.sites[n].plates] or self._extended
        random = self.structure.takes_keys or drawn_here or measured_sites(self.structure)
        static = Arguments.split(*self._first_rows(self.batch_size)).static
        for drawn in blocks_of_draws(grouped, lead):
            # Put on the device once for all blocks of rows.
            block = jax.device_put({name: value[:, drawn] for name, value in grouped.items()})
            for begin in range(0, self.size, self.batch_size):
                # The last block repeats some rows of the one before, so that it has as many.
                begin = min(begin, self.size - self.batch_size)
                rows = slice(begin, begin + self.batch_size)
                part = Arguments.split(*taken(self.arguments, rows, self.size)).arrays
                own = keys_of_draws(lead, begin, first)[:, drawn] if random else None
                more = extra[rows] if what in OF_TARGETS else extra
                if what in DRAWN:
                    key, *each = extra if what == "targets" else (extra,)
                    keys = jax.random.split(jax.random.fold_in(key, begin), (*lead, *each))
                    more = keys[:, drawn]
                program = self._programs_of(target, static)(what)
                yield drawn, rows, program(block, part, more, own)

    def _evaluate(
        self, target: str, taken_from: DrawsTaken, what: str, extra: Any
    ) -> dict[str, np.ndarray]:
        if target in self.structure.deterministic and what != "parameters":
            raise ValueError(
                f"{what}: '{target}' is computed and has no noise, so that it is no target. Predict "
                "a site of `numpyro.sample` for that."
            )
        lead = taken_from.lead
        made: dict[str, np.ndarray] = {}
        for drawn, rows, found in _one_ahead(self._computed(target, taken_from, what, extra)):
            for name, values in found.items():
                own = np.asarray(values).reshape(lead[0], -1, *values.shape[1:])
                tail = made[name].shape[3:] if name in made else own.shape[3:]
                check_values_of_rows(what, target, own.shape[2:], (self.batch_size, *tail))
                # In float64: beside a large mean float32 would lose the prediction.
                in_units = self.shift is not None and name in ("mean", "sample")
                if name not in made:
                    kind = np.float64 if in_units else own.dtype
                    made[name] = np.empty((*lead, self.size, *own.shape[3:]), kind)
                made[name][:, drawn, rows] = (
                    own.astype(np.float64) + np.asarray(self.shift) if in_units else own
                )
        return made


def _one_ahead(results: Iterator[Any]) -> Iterator[Any]:
    """Yield each item after the next has started, so that computing and copying overlap."""
    last = next(results)
    for result in results:
        yield last
        last = result
    yield last


def blocks_of_draws(draws: Mapping[str, Array], lead: tuple[int, int]) -> list[slice]:
    """Blocks of draws: a single one for draws on the device, small ones for draws on host or disk."""
    chains, num_draws = lead
    brought = [v for v in draws.values() if not isinstance(v, jax.Array)]
    if not brought:
        return [slice(0, num_draws)]
    of_one = chains * sum(int(np.prod(np.shape(v)[2:])) for v in brought)
    stored = any(isinstance(v, StoredArray) for v in brought)
    step = max(1, (_BLOCK if stored else _BLOCK_IN_MEMORY) // max(1, of_one))
    # Whole vectors of draws: a remainder would compile another program.
    vector = VECTOR // math.gcd(VECTOR, chains)
    step -= step % vector if step > vector else 0
    return [slice(begin, begin + step) for begin in range(0, num_draws, step)]


def keys_of_draws(lead: tuple[int, int], begin: int = 0, first: int = 0) -> jax.Array:
    """Keys (chain, draw) for what a model draws itself (dropout, sites without draws), always the same."""
    # `begin` is the first row of the block that is predicted, `first` its first draw in the run.
    key = jax.random.fold_in(jax.random.key(0), begin)
    key = jax.random.fold_in(key, first) if first else key
    return jax.random.split(key, lead)


def check_rows_first(
    target: str, count: int, structure: Structure, at_rows: Callable[[int], Structure]
) -> None:
    """Refuse to predict a site whose first axis is not that of the rows."""
    # Predictions are put together from blocks along this axis. A plate of outputs around that of the data
    # makes values (outputs, rows), which look like rows where there are as many of both.
    shape = _shape(structure, target)
    wrong = shape[:1] != (count,)
    if not wrong and count > 1 and count in shape[1:]:
        # The axis of the rows is the one that changes with them. A target whose size does not depend on the
        # inputs has no rows.
        fewer = result_or_error(lambda: _shape(at_rows(count - 1), target))
        wrong = isinstance(fewer, tuple) and fewer[:1] == (count,) and fewer != shape
    if wrong:
        raise ValueError(
            f"predict: the site '{target}' has shape {shape} at {count} rows. Its first axis must be that of "
            f"the rows, with {count} entries that follow from the inputs: a plate of rows with an entry for "
            "each (`f.squeeze(-1)`, not `f.squeeze()`); of several outputs (rows, outputs), the plate of "
            "rows with `dim=-2` or the distribution with `.to_event(1)`."
        )


def check_values_of_rows(
    what: str, target: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Refuse what a model computes at a block of rows, where it is not one value for each."""
    if shape == expected:
        return
    raise ValueError(
        f"predict: for a block of {expected[0]} rows the site '{target}' gives values of shape {shape} under "
        f"each draw ({what}), where shape {expected} was expected, rows first. Let the model give each row a "
        "distribution of its own, in place of one of all rows."
    )


def _shape(structure: Structure, target: str) -> tuple[int, ...]:
    site = structure.sites.get(target)
    return structure.deterministic[target] if site is None else site.distribution_shape


class _Completed(Messenger):
    """Adds values of new groups to those that draws give to the sites under some plates."""

    def __init__(self, fn: Callable, plates: Mapping[str, int]) -> None:
        self.plates = plates
        super().__init__(fn)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Draw the values of new groups from the distribution that this site has given the others."""
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        for frame in msg["cond_indep_stack"]:
            axis = frame.dim - msg["fn"].event_dim
            known = self.plates.get(frame.name)
            if known is None or jnp.shape(msg["value"])[axis] != known:
                continue
            fresh = msg["fn"].sample(numpyro.prng_key())
            new = jnp.take(fresh, jnp.arange(known, frame.size), axis=axis)
            msg["value"] = jnp.concatenate([msg["value"], new], axis)


def _with_new_groups(
    model: Callable,
    structure: Structure,
    args: tuple,
    kwargs: Mapping[str, Any],
    drawn: Collection[str],
) -> tuple[Callable, set[str]]:
    """The model with an entry for each group of the data, and the sites with draws that get new values."""
    plates = {p for name in drawn if name in structure.sites for p in structure.sites[name].plates}
    done: set[str] = set()
    while (found := known_indices.unknown_index(model, args, kwargs)) is not None:
        index, size = found
        here = {name for name in plates - done if structure.plates[name].size == size}
        if index < 0 or not here:
            break  # the refusal says which index it is
        done |= here
        entries = jnp.arange(known_indices.largest_beside(index, model, args, kwargs) + 1)
        completed = _Completed(model, dict.fromkeys(here, size))
        model = substitute(completed, data=dict.fromkeys(here, entries))
    known = {name for name in drawn if name in structure.sites}
    return model, {name for name in known if done & set(structure.sites[name].plates)}
