"""Predictions of every draw, in memory that does not grow with draws times rows."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import Predictive

from numpyro_bnn.draws import Draws, draws_of, group_by_chain
from numpyro_bnn.observations import check_array, check_labels, unwrapped
from numpyro_bnn.stored_array import StoredArray
from numpyro_bnn.structure import structure_of

# Values of draws that are read from disk at a time.
_BLOCK = 2**24
# The same for draws in memory. Arrays of 32 MB and more are given back to the system when they
# are freed, and each page of the next one costs a fault: a quarter of the time went there.
_BLOCK_IN_MEMORY = 6 * 2**20
# Draws in one vector.
_VECTOR = 32


class Predictions:
    """What each draw predicts at each input.

    - **values** - arrays with leading axes (chain, draw, row): ``{"probs": (…, classes)}`` for
      classes (two columns for a Bernoulli target), ``{"mean": …, "scale": …}`` otherwise,
      where ``scale`` is the standard deviation of the noise, in the units of the target
    """

    def __init__(self, values: dict[str, np.ndarray], evaluate: Callable) -> None:
        self.values = values
        self._evaluate = evaluate

    @property
    def probs(self) -> np.ndarray:
        return self._value("probs")

    @property
    def mean(self) -> np.ndarray:
        return self._value("mean")

    @property
    def scale(self) -> np.ndarray:
        return self._value("scale")

    def _value(self, name: str) -> np.ndarray:
        if name not in self.values:
            raise AttributeError(
                f"These predictions have {list(self.values)}, not '{name}': classes have 'probs', "
                "other targets 'mean' and 'scale'."
            )
        return self.values[name]

    def log_prob(self, y: Any) -> np.ndarray:
        """Log density or probability of targets under each draw.

        :param y: targets, one a row.
        :return: shape (chain, draw, row), nats.
        """
        check_array("log_prob", "y", y)
        if "probs" in self.values:
            check_labels("log_prob", y, self.probs.shape[-1])
        shape = self.probs.shape[2:-1] if "probs" in self.values else self.mean.shape[2:]
        if jnp.shape(y) != shape:
            raise ValueError(
                f"log_prob: y has shape {jnp.shape(y)}, but the predictions are for targets of "
                f"shape {shape}. Give the targets of the rows that were predicted."
            )
        return self._evaluate("log_prob", jnp.asarray(y))["log_prob"]

    def sample(self, key: jax.Array) -> np.ndarray:
        """One target of every row under each draw (posterior predictive draws).

        :param key: random key.
        :return: shape (chain, draw, row, …).
        """
        return self._evaluate("sample", key)["sample"]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        main = self.values["probs"] if "probs" in self.values else self.values["mean"]
        return np.asarray(main, dtype)

    def __repr__(self) -> str:
        return f"Predictions({ {name: value.shape for name, value in self.values.items()} })"


class Average(NamedTuple):
    """Model average of a continuous target.

    - **mean** - posterior mean of the prediction, (row, …)
    - **scale** - standard deviation of the mixture: noise and disagreement of the draws
    """

    mean: np.ndarray
    scale: np.ndarray


def average(predictions: Predictions) -> np.ndarray | Average:
    """Bayesian model average over all chains and draws.

    :param predictions: what :func:`predict` returns.
    :return: class probabilities (row, classes), or :class:`Average` for other targets.
    :raises TypeError: for anything else.
    """
    if not isinstance(predictions, Predictions):
        raise TypeError(
            f"average: expected what `bnn.predict` returns, got {type(predictions).__name__}."
        )
    if "probs" in predictions.values:
        return predictions.probs.mean((0, 1))
    within = (predictions.scale.astype(np.float64) ** 2).mean((0, 1))
    between = predictions.mean.astype(np.float64).var((0, 1))
    return Average(predictions.mean.mean((0, 1)), np.sqrt(within + between))


def predict(
    model: Callable | None,
    samples: Any,
    x: Any,
    *,
    batch_size: int = 1000,
    site: str | None = None,
) -> Predictions:
    """The distribution of the target at new inputs, under every draw.

    Rows are taken `batch_size` at a time and draws one after another in small vectors, so that
    memory beyond the result does not grow with either. Draws on disk are read in blocks.

    :param model: the model, called as ``model(x)``; None where `samples` carries one.
    :param samples: an ``MCMC`` after `run`, what :func:`numpyro_bnn.fit` returned, :class:`Draws`, or
        a mapping of draws by site with leading axes (draw,) or (chain, draw).
    :param x: inputs, an array or a pytree of arrays with rows first.
    :param batch_size: rows at a time.
    :param site: the target, where the model has several sites without draws.
    :return: predictions with leading axes (chain, draw, row).
    :raises ValueError: if the target cannot be told, draws are missing, or inputs have no rows.
    """
    if isinstance(samples, Draws) or not isinstance(samples, Mapping):
        samples = draws_of(samples, model, "predict")
        model = samples.model
    if model is None:
        raise ValueError("predict: these draws carry no model; pass it as the first argument.")
    if not (isinstance(batch_size, int) and batch_size > 0):
        raise ValueError(f"predict: batch_size must be a positive integer, got {batch_size!r}.")
    rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(x)}
    if len(rows) != 1 or rows & {(), (0,)}:
        raise ValueError(
            f"predict: x must hold arrays with the same positive number of rows, got {sorted(rows)}."
        )
    ((size,),) = rows
    head = jax.tree.map(lambda leaf: leaf[: min(size, batch_size)], x)
    try:
        structure = structure_of(model, (head,), {})
    except TypeError as error:
        error.add_note(
            "predict calls the model as `model(x)`; give it the signature `def model(x, y=None)`."
        )
        raise
    target = _target(structure.sites, samples, site)
    shapes = structure.deterministic | {name: s.shape for name, s in structure.sites.items()}
    grouped = group_by_chain(samples, shapes)
    program = jax.jit(partial(_over_draws, model, target), static_argnums=3)
    lead = np.shape(next(iter(grouped.values())))[:2]
    blocks = _blocks_of_draws(grouped)

    def computed(what: str, extra: Any) -> Iterator[tuple[slice, slice, dict[str, jax.Array]]]:
        for drawn in blocks:
            flat = {k: jnp.asarray(_flat(v[:, drawn])) for k, v in grouped.items()}
            for begin in range(0, size, batch_size):
                rows = slice(begin, begin + batch_size)
                part = jax.tree.map(lambda leaf, rows=rows: leaf[rows], x)
                more = extra[rows] if what == "log_prob" else extra
                if what == "sample":
                    keys = jax.random.split(jax.random.fold_in(extra, begin), lead)
                    more = _flat(keys[:, drawn])
                yield drawn, rows, program(flat, part, more, what)

    def evaluate(what: str, extra: Any) -> dict[str, np.ndarray]:
        made: dict[str, np.ndarray] = {}
        for drawn, rows, found in _one_ahead(computed(what, extra)):
            for name, values in found.items():
                own = np.asarray(values).reshape(lead[0], -1, *values.shape[1:])
                if name not in made:
                    made[name] = np.empty((*lead, size, *own.shape[3:]), own.dtype)
                made[name][:, drawn, rows] = own
        return made

    return Predictions(evaluate("parameters", None), evaluate)


def _one_ahead(results: Iterator[Any]) -> Iterator[Any]:
    """The same, each when the next has been asked for: it is computed while this one is fetched."""
    last = next(results)
    for result in results:
        yield last
        last = result
    yield last


def _blocks_of_draws(draws: Mapping[str, Any]) -> list[slice]:
    """Draws at a time: all where they are on the device, few where they are brought there."""
    chains, num_draws = np.shape(next(iter(draws.values())))[:2]
    brought = [v for v in draws.values() if not isinstance(v, jax.Array)]
    if not brought:
        return [slice(0, num_draws)]
    of_one = chains * sum(int(np.prod(np.shape(v)[2:])) for v in brought)
    stored = any(isinstance(v, StoredArray) for v in brought)
    step = max(1, (_BLOCK if stored else _BLOCK_IN_MEMORY) // max(1, of_one))
    # Whole vectors: what is left of one is computed apart, and compiled apart.
    vector = _VECTOR // math.gcd(_VECTOR, chains)
    step -= step % vector if step > vector else 0
    return [slice(begin, begin + step) for begin in range(0, num_draws, step)]


def _flat(draws: Any) -> Any:
    return draws.reshape(-1, *draws.shape[2:])


def _target(sites: dict[str, Any], samples: Any, site: str | None) -> str:
    # What accompanies a weight (its precision, its standardised value) is not needed once the
    # weight itself is given.
    weights = tuple(f"{name}." for name in samples)
    without = [n for n in sites if n not in samples and not n.startswith(weights)]
    if site is not None:
        if site not in sites:
            raise ValueError(f"predict: no sample site named {site!r}; there are {list(sites)}.")
        without = [name for name in without if name != site]
        missing = [name for name in without if not sites[name].plates]
        if missing:
            raise ValueError(f"predict: no draws for the latent sites {missing}.")
        return site
    if len(without) == 1:
        return without[0]
    if not without:
        raise ValueError(
            "predict: the model has no target without draws. Leave `y` absent: the model is called "
            "as `model(x)`, so give it the signature `def model(x, y=None)`."
        )
    raise ValueError(
        f"predict: the sites {without} have no draws, so which is the target? Name it with "
        "`site=`, and give draws for the others: they would come from the prior."
    )


def _over_draws(
    model: Callable, target: str, flat: dict[str, Any], x: Any, extra: Any, what: str
) -> dict[str, jax.Array]:
    def one(pair: tuple) -> dict[str, jax.Array]:
        draw, key = pair
        # The key serves only sites of the target itself: everything else is substituted.
        filled = substitute(seed(model, jax.random.key(0)), data=draw)
        fn = trace(filled).get_trace(x)[target]["fn"]
        if what == "log_prob":
            return {"log_prob": fn.log_prob(extra)}
        if what == "sample":
            return {"sample": fn.sample(key)}
        return _parameters(fn)

    keys = extra if what == "sample" else None
    return lax.map(one, (flat, keys), batch_size=_VECTOR)


def _parameters(fn: dist.Distribution) -> dict[str, jax.Array]:
    """What a distribution says in function space: probabilities, or mean and scale."""
    base = unwrapped(fn)
    if isinstance(base, (dist.CategoricalProbs, dist.CategoricalLogits)):
        shape = (*fn.batch_shape, base.probs.shape[-1])
        return {"probs": jnp.broadcast_to(base.probs, shape)}
    if isinstance(base, (dist.BernoulliProbs, dist.BernoulliLogits)):
        p = jnp.broadcast_to(base.probs, fn.batch_shape + fn.event_shape)
        return {"probs": jnp.stack([1 - p, p], -1)}
    shape = fn.batch_shape + fn.event_shape
    scale = jnp.sqrt(jnp.broadcast_to(fn.variance, shape))
    return {"mean": jnp.broadcast_to(fn.mean, shape), "scale": scale}


def prior_predictive(
    model: Callable, key: jax.Array, x: Any, num_samples: int
) -> dict[str, jax.Array]:
    """Draw weights and targets from the prior.

    :param model: the model, called as ``model(x)``.
    :param key: random key.
    :param x: inputs.
    :param num_samples: number of draws.
    :return: values of every site, with a leading axis of `num_samples`.
    :raises ValueError: if `num_samples` is not positive.
    """
    if not (isinstance(num_samples, int) and num_samples > 0):
        raise ValueError(
            f"prior_predictive: num_samples must be a positive integer, got {num_samples!r}."
        )
    return Predictive(model, num_samples=num_samples)(key, x)
