"""Predictions of each draw, and their average."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike

from numpyro_bnn.data.arguments import as_array, check_labels, targets_of
from numpyro_bnn.data.units import Column, check_fits, standardized
from numpyro_bnn.distributions.unwrap import GAUSSIAN
from numpyro_bnn.likelihoods.observe import check_array
from numpyro_bnn.potential.sites import Site
from numpyro_bnn.samplers.suspects import warn_of_use

# Functions of the targets of a row; the last are densities of those that are known, where others are NaN.
OF_KNOWN = ("log_prob of known", "log_likelihood of known")
OF_TARGETS = ("log_prob", "log_likelihood", "cdf", *OF_KNOWN)
# Halvings of an interval of many standard deviations: to about 10⁻⁵ of one. Where one draw is far wider than
# the others, or a distribution has heavy tails, more are needed, up to the second number.
_HALVINGS, _MOST_HALVINGS = 25, 300
# F is known at both ends to be so near to the level, as a share of the level or of 1 less the level; or both
# ends are so near to each other, as a share of their size.
_NEAR, _EQUAL = 1e-5, 1e-7
# Single precision does not resolve F near 1 better.
_LARGEST = 1 - 1e-6
# The first interval reaches this many standard deviations beyond the draws; it is doubled while too short.
_REACH = 4.0


class Predictions:
    """The predictions of each draw at each input.

    - **values** - arrays with leading axes (chain, draw, row): ``{"probs": (…, classes)}`` for
      classes (two columns for a Bernoulli target; an axis of labels before them for several a row),
      ``{"mean": …, "scale": …}`` otherwise,
      where ``scale`` is the standard deviation of the noise, in the units of the target
    - **discrete** - whether targets are classes or counts
    - **gaussian** - whether each entry of a target is Gaussian under each draw, which closed forms need
    - **directions** - whether targets are angles, which have no mean on a line
    - **may_be_censored** - whether targets are pairs of a time and whether it was seen to end
    - **suspect** - chains among them that never moved or mostly diverged: reason by number in the run
    - **classes_** - the classes of an estimator, as it was fitted to them, which scores take; None without
    """

    classes_: np.ndarray | None = None

    def __init__(
        self,
        values: dict[str, np.ndarray],
        evaluate: Callable,
        shift: float | np.ndarray | None = None,
        suspect: Mapping[int, str] | None = None,
        site: Site | None = None,
    ) -> None:
        self.values = values
        self._site = site
        # Of values that come without a site the noise is taken to be Gaussian.
        family = dist.Normal if site is None else site.distribution
        self.discrete = site is not None and site.discrete
        self.gaussian = issubclass(family, GAUSSIAN)
        self.directions = site is not None and site.directions
        self.may_be_censored = getattr(family, "may_be_censored", False)
        self.suspect = dict(suspect or {})
        self._evaluate = evaluate
        # The mean that a ready model subtracts from its target; added to be in the user's units.
        self._shift = shift
        self._warned: set[str] = set()

    def warn_of_suspects(self, owner: str) -> None:
        """Warn, once for each `owner`, that suspect chains are averaged in."""
        if self.suspect and owner not in self._warned:
            self._warned.add(owner)
            warn_of_use(owner, self.suspect)

    @property
    def probs(self) -> np.ndarray:
        """Probabilities of the classes, (chain, draw, row, class); (chain, draw, row, label, class) where
        a row has several labels.

        :raises AttributeError: for a target that is not a class.
        """
        return self._value("probs")

    @property
    def mean(self) -> np.ndarray:
        """Means of the target, (chain, draw, row), in its units.

        :raises AttributeError: for classes.
        """
        return self._value("mean")

    @property
    def scale(self) -> np.ndarray:
        """Standard deviations of the noise, (chain, draw, row), in the units of the target.

        :raises AttributeError: for classes.
        """
        return self._value("scale")

    def _value(self, name: str) -> np.ndarray:
        if name not in self.values:
            raise AttributeError(
                f"These predictions have {list(self.values)}, not '{name}': classes have 'probs', "
                "other targets 'mean' and 'scale'."
            )
        return self.values[name]

    def log_prob(self, y: ArrayLike) -> np.ndarray:
        """Log density or probability of targets under each draw.

        It is that of new targets: rows that ``handlers.mask`` hides from the fit have one too. Of several
        outputs a row it is the sum, or that of their joint distribution; where some are NaN, of the others.

        :param y: targets, one a row.
        :return: shape (chain, draw, row), nats.
        :raises ValueError: for infinite targets and rows of NaN, unless their distribution allows for them.
        """
        return self._of_rows("log_prob", y)

    def log_likelihood(self, y: ArrayLike) -> np.ndarray:
        """Log density of the rows of a fit under each draw: 0 where ``handlers.mask`` hides them.

        It is what a row adds to the log likelihood of a model without weights. With them (`weights=`,
        ``handlers.scale``) the row adds that many times as much, which predictions do not know.

        :param y: targets, one a row; those of hidden rows may be NaN.
        :return: shape (chain, draw, row), nats.
        :raises ValueError: for other targets that are NaN or infinite, unless their distribution allows it.
        """
        return self._of_rows("log_likelihood", y)

    def cdf(self, y: ArrayLike) -> np.ndarray:
        """Probability of a target up to `y` under each draw, for a number or a count.

        :param y: one number a row.
        :return: shape (chain, draw, row), between 0 and 1.
        :raises NotImplementedError: for a distribution without a known distribution function.
        :raises ValueError: for a distribution function that is not between 0 and 1.
        """
        self._value("mean")
        return self._distribution_function(self._in_units("cdf", y))

    def cdf_at(self, places: np.ndarray) -> np.ndarray:
        """The distribution function of each draw at any numbers, such as quantiles.

        Unlike :meth:`cdf` it takes numbers whose differences between rows single precision rounds away.

        :param places: one number a row, in the units of the target.
        :return: shape (chain, draw, row), between 0 and 1.
        """
        return self._distribution_function(self._in_units("cdf_at", places, is_data=False))

    def _distribution_function(self, y: np.ndarray) -> np.ndarray:
        found = self._evaluate("cdf", y)["cdf"]
        # A user's distribution may compute anything; rounding is left as it is.
        if ((found < -0.001) | (found > 1.001)).any():
            raise ValueError(
                f"cdf: the distribution function of the target gives values from {found.min():.3g} to "
                f"{found.max():.3g}. Its `cdf` must be between 0 and 1, outside of its support too."
            )
        return found

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """Quantiles of the predictive distribution, the average over all draws.

        :param levels: probabilities strictly between 0 and 1, (levels,).
        :return: shape (levels, row), in the units of the target: the least q with F(q) ≥ level on average
            over draws, by bisection; whole numbers for counts.
        :raises ValueError: for other levels.
        """
        mean, scale = self.mean, self._value("scale")
        self._check_counts("quantiles", float(np.finfo(np.float32).max))
        asked = np.atleast_1d(np.asarray(levels, np.float64))
        if asked.ndim != 1 or not np.all((asked > 0) & (asked < 1)):
            raise ValueError(
                f"quantiles: levels must lie strictly between 0 and 1, got {asked.tolist()}. Give 0.05 and "
                "0.95 for the ends of a central 90 % interval."
            )

        def averaged(at: np.ndarray) -> np.ndarray:
            found = self.cdf_at(at)
            if found.dtype == np.float32 and (asked > _LARGEST).any():
                raise ValueError(
                    f"quantiles: single precision does not tell the level {float(max(asked))!r} from 1. "
                    f"Give levels up to {_LARGEST}, or predict in double precision (`numpyro.enable_x64()`)."
                )
            return found.mean((0, 1), dtype=np.float64)

        # Distributions with heavy tails have no mean or no standard deviation: any start does.
        mean = np.where(np.isfinite(mean), mean, 0.0)
        scale = np.where(np.isfinite(scale), scale, 1.0)
        spread = scale.max((0, 1)) + np.ptp(mean, axis=(0, 1))
        middle, varies = mean.mean((0, 1), dtype=np.float64), spread > 0
        step = np.where(varies, spread, 1.0)
        found = np.stack([_solved(averaged, middle, step, p, self.discrete) for p in asked])
        # A value that is the same in all draws, without noise, is its own quantile.
        # A zero without a sign: just below 0 it would be rounded to -0.
        return np.where(varies, np.round(found) + 0.0 if self.discrete else found, middle)

    def rounding_of(self, values: np.ndarray) -> np.ndarray:
        """How far single precision may move targets near some values, one a row."""
        at = values if self._shift is None else values - np.asarray(self._shift)
        return np.finfo(np.float32).eps * np.abs(at)

    def at_rows(self, rows: np.ndarray | slice) -> "Predictions":
        """The predictions of some rows alone, given by their numbers or as a slice."""
        size = next(iter(self.values.values())).shape[2]
        evaluate = partial(_of_some_rows, self._evaluate, size, rows)
        values = {name: value[:, :, rows] for name, value in self.values.items()}
        found = Predictions(values, evaluate, self._shift, self.suspect, self._site)
        found.classes_ = self.classes_
        return found

    def _of_rows(self, what: str, y: ArrayLike) -> np.ndarray:
        """A log density under each draw, (chain, draw, row): that of all outputs of a row."""
        y = self._in_units(what, y)
        finite, missing = np.isfinite(y), np.isnan(y).reshape(len(y), -1)
        partly = (missing.any(1) & ~missing.all(1)).any()
        (found,) = self._evaluate(f"{what} of known" if partly else what, y).values()
        # A missing target is not impossible: where this is finite, the distribution or a mask allows for it.
        if not finite.all():
            unknown = ~np.isfinite(found).reshape(-1, *y.shape[:1], found[0, 0, 0].size).all((0, 2))
            bad = np.flatnonzero(unknown & ~finite.reshape(len(y), -1).all(1))
            if bad.size:
                raise ValueError(
                    f"{what}: the targets y of {bad.size} of {len(y)} rows are NaN or infinite, the first in "
                    f"row {bad[0]}: {y[bad[0]]}. Leave out rows whose targets are not known, in x and in y."
                )
        found = found.reshape(*found.shape[:3], -1).sum(-1)
        if "probs" in self.values:  # NumPyro takes logits of NaN for certainty.
            found[np.isnan(self.probs).reshape(*found.shape, -1).any(-1)] = np.nan
        return found

    def _in_units(self, what: str, y: ArrayLike, is_data: bool = True) -> np.ndarray:
        """Checked values, one a row, as the model has them."""
        y = targets_of(self, y, what) if is_data else as_array(what, "y", y)
        check_array(what, "y", y)
        classes = self.probs.shape[-1] if "probs" in self.values else None
        shape = self.mean.shape[2:] if classes is None else self.probs.shape[2:-1]
        if classes is not None:
            check_labels(f"{what}: y", y if len(shape) == 1 else y.reshape(-1), classes)
        if np.shape(y) != shape:
            raise ValueError(
                f"{what}: y has shape {np.shape(y)}, but the predictions are for targets of "
                f"shape {shape}. Give the targets of the rows that were predicted."
            )
        if y.dtype == bool:
            # A class is an index: `categorical` converts the targets of a fit in this way.
            y = y.astype(np.int32)
        if not is_data:
            shift = 0.0 if self._shift is None else np.asarray(self._shift)
            return np.asarray(y, np.float64) - shift
        if self._shift is not None:
            one = np.ones(())
            y = standardized(what, Column("y"), np.asarray(y), np.asarray(self._shift), one)
        elif isinstance(y, np.ndarray):
            check_fits(what, "y", y)
        return np.asarray(y)

    def sample(self, key: jax.Array) -> np.ndarray:
        """One target of every row under each draw (posterior predictive draws).

        :param key: random key.
        :return: shape (chain, draw, row, …).
        """
        if "probs" in self.values:
            return _classes(self.probs, key)
        self._check_counts("sample")
        return self._evaluate("sample", key)["sample"]

    def _check_counts(self, what: str, most: float = 1e8) -> None:
        """Refuse counts with large means, whose draws do not fit into 32 bits."""
        if self.discrete and "mean" in self.values and not self.mean.max() <= most:
            raise ValueError(
                f"{what}: counts with a mean of {self.mean.max():.3g} were predicted, expected at most "
                f"{most:.3g}. Look for weights that grow without bound, or give the logarithm of the mean "
                "where the model takes its exponential."
            )

    def targets(self, least: int) -> np.ndarray:
        """Targets drawn under all draws, as many under each; the same ones at every call.

        :param least: how many a row at least.
        :return: shape (target, row, …), in the units of the target.
        """
        self._check_counts("targets")
        draws = int(np.prod(self.mean.shape[:2]))
        asked = jax.random.key(0), -(-least // draws)
        drawn = np.moveaxis(self._evaluate("targets", asked)["targets"], -1, 0)
        flat = drawn.reshape(-1, *drawn.shape[3:])
        # In float64: beside a large mean float32 would lose the target.
        return flat if self._shift is None else flat.astype(np.float64) + np.asarray(self._shift)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        main = self.values["probs"] if "probs" in self.values else self.values["mean"]
        return np.asarray(main, dtype)

    def __repr__(self) -> str:
        return f"Predictions({ {name: value.shape for name, value in self.values.items()} })"


def _classes(probs: np.ndarray, key: jax.Array) -> np.ndarray:
    """One class for each distribution, on the host: compiling the same takes seconds."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    drawn = np.zeros(probs.shape[:-1], np.int32)
    below = np.zeros(probs.shape[:-1])
    # Probabilities in single precision do not quite add up to 1.
    place = rng.random(probs.shape[:-1]) * probs.sum(-1, dtype=np.float64)
    for k in range(probs.shape[-1] - 1):
        below += probs[..., k]
        drawn += place >= below
    return drawn


def _of_some_rows(
    evaluate: Callable, size: int, rows: np.ndarray | slice, what: str, extra: Any
) -> dict[str, np.ndarray]:
    """What predictions of `size` rows give, of some rows alone."""
    if what in OF_TARGETS:
        given, extra = extra, np.repeat(extra[-1:], size, 0)
        extra[rows] = given
        if not np.array_equal(extra[rows], given, equal_nan=True):
            raise ValueError(
                "at_rows: rows that are chosen more than once have one target each here. For other targets "
                "predict these rows: `predict(model, run, x[rows])`."
            )
    return {name: made[:, :, rows] for name, made in evaluate(what, extra).items()}


class Average(NamedTuple):
    """Model average of a continuous target.

    - **mean** - posterior mean of the prediction, (row, …)
    - **sd** - standard deviation of the mixture: noise and disagreement of the draws
    """

    mean: np.ndarray
    sd: np.ndarray


def average(predictions: Predictions) -> np.ndarray | Average:
    """Bayesian model average over all chains and draws.

    :param predictions: the result of :func:`predict`.
    :return: class probabilities (row, classes), or :class:`Average` for other targets.
    :raises ValueError: for predictions that are NaN or infinite, such as those of a target without a mean,
        and for directions other than von Mises ones.
    """
    predictions.warn_of_suspects("average")
    if "probs" in predictions.values:
        return _finite(predictions.probs, mean_over_draws(predictions.probs))
    mean = _finite(predictions.mean, mean_over_draws(predictions.mean))
    if predictions.directions:
        return _circular(predictions)
    # A deterministic site has no noise.
    scale = predictions.values.get("scale", np.zeros((1, 1)))
    within = mean_over_draws(scale.astype(np.float64) ** 2)
    between = predictions.mean.var((0, 1), dtype=np.float64)
    return Average(mean, _finite(scale, np.sqrt(within + between), allow=np.inf))


def _circular(predictions: Predictions) -> Average:
    """Circular mean and standard deviation (Mardia and Jupp 2000, *Directional statistics*, section 2.3)."""
    site = predictions._site
    if site is None or not issubclass(site.distribution, dist.VonMises):
        raise ValueError(
            "average: targets are directions, and of this distribution no circular mean is known. Take that "
            "of `predictions.sample(key)`, np.angle(np.mean(np.exp(1j * drawn), (0, 1)))."
        )
    # NumPyro's variance of a von Mises distribution is 1 less the length of its mean vector.
    lengths = 1 - predictions.scale.astype(np.float64) ** 2
    vector = mean_over_draws(lengths * np.exp(1j * predictions.mean.astype(np.float64)), complex)
    return Average(np.angle(vector), np.sqrt(-2 * np.log(np.abs(vector))))


def _finite(values: np.ndarray, averaged: np.ndarray, allow: float = np.nan) -> np.ndarray:
    """Averages over draws (chain, draw, row, …), if none is NaN or infinite."""
    bad = ~(np.isfinite(averaged) | (averaged == allow))
    if bad.any():
        by_row = bad.reshape(len(bad), -1).any(1)
        chains = ~np.isfinite(values[:, :, by_row]).reshape(len(values), -1).all(1)
        raise ValueError(
            f"average: predictions are NaN or infinite in {by_row.sum()} of {len(bad)} rows (the first is "
            f"row {by_row.argmax()}), in draws of chains {np.flatnonzero(chains).tolist()}. Leave out such "
            "rows, or chains that exploded. Of a target without a mean (Cauchy, Student's t with df up to 1) "
            "take `predictions.quantiles(0.5)`."
        )
    return averaged


def mean_over_draws(values: np.ndarray, kind: type = np.float64) -> np.ndarray:
    """The average over chains and draws (chain, draw, …), in double precision."""
    # NumPy adds up one draw after another, and in single precision the sum of many draws rounds in one
    # direction: by more than a Monte Carlo error.
    return values.mean((0, 1), dtype=kind)


def _solved(
    averaged: Callable[[np.ndarray], np.ndarray],
    middle: np.ndarray,
    spread: np.ndarray,
    level: float,
    discrete: bool,
) -> np.ndarray:
    low = _beyond(averaged, middle, -_REACH * spread, lambda value: value <= level)
    high = _beyond(averaged, middle, _REACH * spread, lambda value: value >= level)
    at_low, at_high = averaged(low), averaged(high)
    for halving in range(_MOST_HALVINGS):
        size = np.maximum(np.abs(low), np.abs(high))
        close = high - low <= (0.5 if discrete else _EQUAL * size)
        if not discrete:
            close |= at_high - at_low <= _NEAR * min(level, 1 - level)
        if halving >= _HALVINGS and close.all():
            break
        centre = (low + high) / 2
        value = averaged(centre)
        below = value < level
        low, high = np.where(below, centre, low), np.where(below, high, centre)
        at_low, at_high = np.where(below, value, at_low), np.where(below, at_high, value)
    return (low + high) / 2


def _beyond(
    averaged: Callable[[np.ndarray], np.ndarray],
    middle: np.ndarray,
    step: np.ndarray,
    is_far: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """A number a row that is on the far side of the quantile."""
    while True:
        at = middle + step
        values = averaged(at)
        # With NaN no side would ever be far enough.
        if np.isnan(values).any():
            raise ValueError(
                "quantiles: the predictions hold values that are not finite. Look for a chain that exploded "
                "(`mcmc.left_out`), and leave it out."
            )
        if (far := is_far(values)).all():
            return at
        step = np.where(far, step, 2 * step)
