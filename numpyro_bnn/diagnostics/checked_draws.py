"""Checks the draws given to :func:`diagnose_draws`, and sorts them: weights, precisions, predictions, …."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn._sentences import say
from numpyro_bnn.diagnostics.convergence.rhat import checked
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictive_draws import Predictions

Arrays = dict[str, np.ndarray]


def is_precision(name: str) -> bool:
    """Whether a site is reported as a precision and not as a weight."""
    return name.endswith("precision")


# Draws of predictions, (chain, draw, input, …): an object, a mapping of arrays by name, or one array.
PredictionDraws: TypeAlias = Predictions | Mapping[str, ArrayLike] | ArrayLike


class CheckedDraws(NamedTuple):
    """All arrays of draws of one run, by name; every array is (chain, draw, …)."""

    weights: Arrays
    precisions: Arrays  # sites whose names end in "precision"
    parameters: Arrays  # of the model, which are no weights of a network
    log_joint: Arrays  # under one name; empty where it was not given
    predictions: Arrays  # (chain, draw, input, ...)
    log_likelihood: Arrays  # (chain, draw, input) under one name; empty where it was not given
    aligned: Arrays  # the weights after their hidden units were matched

    @property
    def by_label(self) -> Arrays:
        """Every array but the aligned ones, by the name that errors and reports use for it."""
        sites = self.weights | self.precisions
        labelled = {f"weights {name!r}": array for name, array in sites.items()} | self.log_joint
        labelled |= {f"parameters {name!r}": array for name, array in self.parameters.items()}
        labelled |= {f"predictions {name!r}": array for name, array in self.predictions.items()}
        return labelled | self.log_likelihood

    @property
    def shape(self) -> tuple[int, int]:
        """Number of chains, and of draws a chain."""
        chains, draws = next(iter(self.by_label.values())).shape[:2]
        return chains, draws

    @property
    def scored(self) -> np.ndarray | None:
        """The log likelihood as an array; None where it was not given."""
        return next(iter(self.log_likelihood.values()), None)

    def without(self, chains: Collection[int]) -> "CheckedDraws":
        """These arrays without the chains of these numbers."""
        kept = [chain for chain in range(self.shape[0]) if chain not in chains]
        return CheckedDraws(*({name: x[kept] for name, x in arrays.items()} for arrays in self))


def check_draws(
    weights: Mapping[str, ArrayLike] | ArrayLike | None,
    predictions: PredictionDraws | None,
    log_joint: Mapping[str, ArrayLike] | ArrayLike | None,
    log_likelihood: ArrayLike | None,
    aligned: Mapping[str, ArrayLike] | None,
    parameters: Mapping[str, ArrayLike] | None = None,
) -> CheckedDraws:
    """Check the arrays that :func:`diagnose_draws` was given, and sort them; see its arguments."""
    sites = named_arrays("weights", weights, "weights")
    plain = {name: array for name, array in sites.items() if not is_precision(name)}
    matched = named_arrays("aligned", aligned, "weights")
    checked_draws = CheckedDraws(
        weights=plain,
        precisions={name: array for name, array in sites.items() if name not in plain},
        parameters=named_arrays("parameters", parameters, "parameters"),
        log_joint=named_arrays("log_joint", log_joint, "log joint"),
        predictions=named_arrays("predictions", predictions, "predictions"),
        log_likelihood=named_arrays("log_likelihood", log_likelihood, "log likelihood"),
        aligned={name: array for name, array in matched.items() if name in plain},
    )
    if not any(checked_draws._replace(log_likelihood={}, aligned={})):
        raise ValueError(
            "diagnose_draws: got neither weights nor predictions nor a log joint. Pass weights "
            "as a dict of (chain, draw, ...), or predictions as (chain, draw, input, ...)."
        )
    first, shape = next((n, array.shape[:2]) for n, array in checked_draws.by_label.items())
    for name, array in checked_draws.by_label.items():
        if array.shape[:2] != shape:
            raise ValueError(
                f"diagnose_draws: all arrays need the same chains and draws, got {shape} in {first!r} and "
                f"{array.shape[:2]} in {name!r}. Take all from one run, after the same thinning."
            )
    probs = checked_draws.predictions.get("probs")
    if probs is not None and probs.shape[3:][-1:] == (1,):
        raise ValueError(
            f"diagnose_draws: predictions 'probs' need probabilities of two or more classes on their last "
            f"axis, got shape {probs.shape}. Of a probability p of one class pass "
            f"np.stack([1 - p, p], axis=-1)."
        )
    return checked_draws


def named_arrays(what: str, value: PredictionDraws | None, default: str) -> Arrays:
    """A mapping, predictions or one array (under the name `default`), checked; empty for None."""
    values = getattr(value, "values", None)
    value = values if isinstance(values, Mapping) else value
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        value = {default: value}
    arrays = {str(k): checked(f"diagnose_draws: {what} {k!r}", v) for k, v in value.items()}
    return {name: array for name, array in arrays.items() if array.size}


def bad_chains(checked_draws: CheckedDraws) -> dict[int, tuple[int, str]]:
    """First draw and site of NaN or infinities in each chain that has any."""
    # A log likelihood of minus infinity is not bad: the draw gives a target no probability.
    arrays = checked_draws.by_label | {
        name: np.maximum(x, np.finfo(x.dtype).min)
        for name, x in checked_draws.log_likelihood.items()
    }
    found: dict[int, tuple[int, str]] = {}
    for site, array in arrays.items():
        for chain, draws in enumerate(array):
            # The extremes of a chain are finite when all of it is: no array of flags is needed.
            if np.isfinite(draws.min()) and np.isfinite(draws.max()):
                continue
            flat = draws.reshape(len(draws), -1)
            first = next(t for t, row in enumerate(flat) if not np.isfinite(row).all())
            # The first of several sites that break at one draw is named: weights before predictions.
            found[chain] = min(found.get(chain, (first, site)), (first, site), key=lambda at: at[0])
    return found


def copies_of(arrays: Iterable[np.ndarray]) -> dict[int, int]:
    """Chains that equal an earlier chain bit for bit, with the number of the first that each equals."""
    all_draws = [np.asarray(x) for x in arrays]
    # First draws are compared first: that takes no time, and they nearly always differ.
    # Their bytes also tell NaN apart from NaN of other bits.
    first = [[np.ascontiguousarray(own).tobytes() for own in x[:, :1]] for x in all_draws]
    originals: dict[tuple[bytes, ...], list[int]] = {}
    copies: dict[int, int] = {}
    for chain, key in enumerate(zip(*first)):
        for other in originals.setdefault(key, []):
            if all(np.array_equal(a[chain], a[other]) for a in all_draws):
                copies[chain] = other
                break
        else:
            originals[key].append(chain)
    return copies


def without_copies(
    values: Mapping[str, Any] | None, copies: Mapping[int, int], num_chains: int
) -> Any:
    """Arrays by name without the chains that are copies; arrays without chains, and None, stay."""
    if values is None:
        return None
    kept = np.setdiff1d(np.arange(num_chains), list(copies))
    return {
        name: value[kept] if np.ndim(value) > 1 and len(value) == num_chains else value
        for name, value in values.items()
    }


def counted_once(arrays: Mapping[str, Any]) -> Any:
    """Arrays by name without chains that are copies, whose errors are not those of more chains."""
    return without_copies(arrays, copies_of(arrays.values()), len(next(iter(arrays.values()), ())))


def distinct_chains(draws: Draws) -> Draws:
    """Draws without chains that are copies."""
    if not (copies := copies_of(draws.values())):
        return draws
    values, stats = (without_copies(v, copies, draws.num_chains) for v in (draws, draws.stats))
    return Draws(values, draws.model, stats, draws.info)


def copies_in_words(copies: Mapping[int, int], num_chains: int) -> str:
    """A sentence for the report that names the copies among the chains, and says how many are left."""
    groups: dict[int, list[int]] = {}
    for copy, original in copies.items():
        groups.setdefault(original, []).append(copy)
    parts = [
        f"{'chain' if len(more) == 1 else 'chains'} {', '.join(map(str, more))} of chain {original}"
        for original, more in groups.items()
    ]
    return say("copied", groups="; ".join(parts), left=num_chains - len(copies), chains=num_chains)
