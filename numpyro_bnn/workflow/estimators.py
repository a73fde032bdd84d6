"""scikit-learn estimators: ``fit(X, y)`` samples a posterior, ``predict(X)`` averages over it.

They do what :func:`numpyro_bnn.fit` does, with the conventions of scikit-learn: parameters are stored as
they are given, and everything that is learned has a name that ends in an underscore.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from numpyro_bnn._calls import all_or_nothing
from numpyro_bnn._checks import check_share, warn
from numpyro_bnn._text import text_of
from numpyro_bnn.data.arguments import targets_of
from numpyro_bnn.diagnostics.diagnose import diagnose
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.fit_check.record import FitCheck
from numpyro_bnn.models.random_module import MLP
from numpyro_bnn.models.ready import ReadyModel, classification, regression
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.fitted import arguments_of
from numpyro_bnn.posterior.predictions import predict, predictor_of
from numpyro_bnn.posterior.predictive_draws import Predictions, average
from numpyro_bnn.priors.hierarchical import Hierarchical
from numpyro_bnn.workflow.calibration import Calibrated, calibrate, nominal_sets
from numpyro_bnn.workflow.check_fit import check_fit
from numpyro_bnn.workflow.estimator_inputs import (
    BLOCK,
    COVERAGE,
    added,
    held_out,
    hidden_sizes,
    key_from,
    padded_to_blocks,
    table_like,
    validated,
    weights_of,
    with_targets,
)
from numpyro_bnn.workflow.fit import DEFAULT, MANY_ROWS, MOST_JUDGED
from numpyro_bnn.workflow.fit import fit as fit_model
from numpyro_bnn.workflow.mcmc import MCMC
from numpyro_bnn.workflow.update import NotReached, update

# Parameters that both estimators hand on to `fit`.
_FOR_FIT = ("kernel", "num_chains", "num_warmup", "num_samples", "thinning", "batch_size", "until",
            "max_minutes")  # fmt: skip
# Of regression without a tolerance. The steps are three times those of `fit`, and half as many: on eight
# splits of four tables this scored as well for three quarters of the time.
_FEWER_STEPS: dict[str, Any] = {"energy_variance": 1e-2, "thinning": 25}


# Parameters of estimators that make another model.
_OF_MODEL = ("hidden", "network", "prior", "likelihood")


@dataclass(repr=False, eq=False)
class BNNEstimator(BaseEstimator):
    """The base of both estimators: the parameters that they share, as scikit-learn stores them."""

    hidden: Sequence[int] | int = (16, 16)
    _: KW_ONLY
    network: Any = None
    prior: Any = None
    kernel: str | None = None
    until: Tolerance | None = None
    max_minutes: float | None = None
    num_warmup: int = 300
    num_samples: int = 300
    num_chains: int = 4
    thinning: int | None = None
    batch_size: int | None = None
    calibration: float | None = None
    random_state: Any = None
    verbose: bool | int = False

    # Whether each row is predicted independently of others, and names of the columns of the training table.
    _separate = True
    _columns = ()

    def _network(self, outputs: int) -> Any:
        if self.network is not None:
            return self.network
        return MLP(hidden_sizes(self), outputs)

    def _fit(self, model: ReadyModel, X: np.ndarray, y: np.ndarray, weights: Any) -> Any:
        """Sample the posterior of a model, keep it, and calibrate it on the rows that are held out."""
        kept, held = held_out(self, y)
        if self.verbose:
            print(
                f"{type(self).__name__}: {self.num_chains} networks are optimised on {len(kept)} rows of "
                f"{X.shape[1]} columns, and each begins a chain of {self.num_warmup} + {self.num_samples} "
                "draws. A first fit compiles for some seconds."
            )
        fitted = fit_model(
            model,
            table_like(self, X[kept]),
            y[kept],
            key=key_from(self.random_state),
            weights=None if weights is None else weights[kept],
            progress_bar=bool(self.verbose),
            **{name: getattr(self, name) for name in _FOR_FIT} | self._settings(len(kept)),
        )
        self.model_, self._asked = model, self._asks()
        self.__dict__.pop("mcmc_", None)
        if fitted.mcmc is not None:
            self.mcmc_: MCMC = fitted.mcmc
        self.draws_: Draws = fitted.draws
        rows = table_like(self, padded_to_blocks(X[kept]))
        self._separate = predictor_of(self.draws_, rows).are_separate(self.draws_)
        self.report_: Report = fitted.report
        self.calibration_: Calibrated | None = None
        if len(held):
            targets = y[held] if isinstance(self, RegressorMixin) else self.classes_[y[held]]
            self.calibration_ = calibrate(self, table_like(self, X[held]), targets, COVERAGE)
        if fitted.mcmc is not None:
            self._warn_of_verdict()
        return self

    def _settings(self, num_rows: int) -> dict[str, Any]:
        """Settings of the sampler in place of the defaults of `fit`."""
        return {}

    def _asks(self) -> dict[str, str]:
        """What the model is made from, in words."""
        words = {name: text_of(getattr(self, name, None)) for name in _OF_MODEL}
        return words | {"hidden": repr(hidden_sizes(self))}

    def _update(self, X: np.ndarray, y: np.ndarray, weights: Any) -> Any:
        """The posterior given new rows too, from the draws that are there."""
        if others := [name for name, said in self._asks().items() if said != self._asked[name]]:
            raise ValueError(
                f"{type(self).__name__}: {', '.join(others)} changed since the fit, and its draws are of the "
                "network that it had. Set back what changed, or call `fit` on all rows."
            )
        if self.calibration is not None:
            raise ValueError(
                f"{type(self).__name__}: calibration={self.calibration!r} holds rows of a fit out, and none "
                "of those that come later. Leave it out, and calibrate by `bnn.calibrate` on other rows."
            )
        if weights is None and "weights" in arguments_of(self)[1]:
            weights = np.ones(len(y))
        by_row = {} if weights is None else {"weights": weights}
        run, (known, named) = getattr(self, "mcmc_", self.draws_), arguments_of(self)
        key = key_from(self.random_state)
        try:
            self.draws_ = update(run, table_like(self, X), y, key=key, **by_row)
        except NotReached as error:
            if not known:
                raise
            message = f"{type(self).__name__}: old and new rows are fitted anew ({error})"
            warn(message, ConvergenceWarning)
            if weights is not None:
                weights = np.append(named.get("weights", np.ones(len(known[0]))), weights)
            x, y = (np.concatenate(pair) for pair in zip(known, (X, y)))
            if isinstance(self, RegressorMixin):
                return self.fit(table_like(self, x), y, weights)
            return self._fit_labels(x, self.classes_[y], weights)
        # The run knows nothing of the new rows, and the threshold is of the old draws.
        self.__dict__.pop("mcmc_", None)
        self.calibration_ = None
        self.report_ = diagnose(self.draws_, table_like(self, X[:MOST_JUDGED]))
        self._warn_of_verdict()
        return self

    def predictions(self, X: ArrayLike) -> Predictions:
        """Predictions of every draw, as :func:`numpyro_bnn.predict` gives them.

        Rows are predicted in blocks of one size, so that a row gets the same numbers among any others; but
        those of a network that relates rows, such as a recurrent one along them, all together.

        :param X: inputs (N, columns), an array or a table with the columns of the training table.
        :return: arrays with leading axes (chain, draw, row).
        """
        return self._predicted(X)

    def _predicted(self, X: ArrayLike, reduce: Callable[[Predictions], Any] | None = None) -> Any:
        """Predictions, or what `reduce` makes of them some rows at a time: memory does not grow with rows."""
        check_is_fitted(self)
        X = validated(self, X, reset=False)
        if not self._separate:
            whole = predict(None, self, table_like(self, X))
            return whole if reduce is None else reduce(whole)
        rows = table_like(self, padded_to_blocks(X))
        made = predict(None, self, rows, batch_size=BLOCK, reduce=reduce)
        if reduce is None:
            return made.at_rows(slice(len(X)))
        return jax.tree.map(lambda leaf: leaf[: len(X)], made)

    def _warn_of_verdict(self) -> None:
        """Warn of predictions that are not known within tolerance: what they are, and what to do."""
        verdict = self.report_.verdict
        if verdict.startswith("within_tolerance"):
            return
        found, more = "more draws may change these predictions", "raise max_minutes="
        if self.max_minutes is None:
            more = "give more draws (num_samples=), or until=bnn.Tolerance()"
        if verdict == "chains_disagree":
            found = "these predictions are averages of an ensemble and not of the posterior"
            if self.kernel != "tempering":
                more = 'for the posterior of a small network take kernel="tempering"'
        score = "score(X, y)" if verdict == "too_short" else "check(held_out=(X, y))"
        use = f"Score them on rows that were not fitted: {score}"
        if self.calibration is not None:
            use = "Intervals and sets hold what they say all the same, by calibration"
        if verdict == "invalid":
            found, use = "do not use these predictions", "Fit again with another random_state"
            more = 'with kernel="nuts"'
        found = f"{found} (verdict: {verdict.words}; {self.report_.headline}). {use}; or {more}."
        warn(f"{type(self).__name__}: {found} `report_` has the rest.", ConvergenceWarning)

    def check(
        self, X: ArrayLike | None = None, y: ArrayLike | None = None, *, held_out: Any = None
    ) -> FitCheck:
        """Whether the model fits its training rows, see :func:`numpyro_bnn.check_fit`.

        :param X: inputs of the rows that were fitted (N, columns); needed after pickle alone, which keeps no
            data.
        :param y: their targets or labels.
        :param held_out: inputs and targets of rows that were not fitted, whose scores are then told first.
        :return: leave-one-out and posterior predictive checks; print it.
        :raises ValueError: for rows that were not fitted, and for rows that had weights.
        """
        check_is_fitted(self)
        run, classes = getattr(self, "mcmc_", self.draws_), [*getattr(self, "classes_", ())]
        held_out = None if held_out is None else self._rows(*held_out)
        return check_fit(run, *self._rows(X, y), classes=classes, held_out=held_out)

    def _rows(self, X: ArrayLike | None, y: ArrayLike | None) -> tuple[Any, Any]:
        """Inputs and targets of rows to check, as the model takes them."""
        if X is not None:
            X, y, _ = (X, y, None) if y is None else with_targets(self, X, y)
            X = table_like(self, validated(self, X, reset=False))
        if y is not None and isinstance(self, ClassifierMixin):
            y = targets_of(self, y, "check")
        return X, y

    def sample(self, X: ArrayLike) -> np.ndarray:
        """One target of every row under each draw of the posterior.

        :param X: inputs (N, columns).
        :return: shape (draw, row), draws of all chains in a row; (draw, row, target) of several targets.
        """
        drawn = self.predictions(X).sample(key_from(self.random_state))
        return drawn.reshape(-1, *drawn.shape[2:])

    def __getstate__(self) -> dict[str, Any]:
        # The run holds compiled programs; draws, report and model are what predictions are made from.
        return {k: v for k, v in super().__getstate__().items() if k != "mcmc_"}


@dataclass(repr=False, eq=False)
class BNNRegressor(RegressorMixin, BNNEstimator):
    """Regression by a Bayesian neural network.

    The posterior over the weights is sampled as :func:`numpyro_bnn.fit` does it: an ensemble is optimised,
    and a chain runs from each member. ``predict`` gives the mean of the posterior predictive distribution.

    Learned: ``draws_`` (the draws), ``report_`` (how well the averages are known; print it), ``mcmc_`` (the
    run; not kept by pickle), ``calibration_`` (of the rows held out, else None), ``model_``,
    ``n_features_in_``, ``feature_names_in_``.

    :param hidden: units of each hidden layer; a number, such as 8, is one layer. The default scored best on
        two large tables; the command line has one layer, for short runs.
    :param network: any Flax or Equinox module in place of a perceptron, with an output for every target (two
        for ``likelihood="heteroscedastic"``); `hidden` is not used then.
    :param prior: prior over the weights, for standardised data; default ``priors.Hierarchical()``.
    :param likelihood: ``"heteroscedastic"``, which learns a noise for each row, ``"gaussian"`` (one noise for
        all) or ``"student_t"``. Default: the first, whose log score was better on two tables; the second for
        several targets, which take nothing else, and where `network` is given. Where the mean alone matters
        take ``"gaussian"``, whose mean was nearer (``benchmarks/predictions/against_boosting.py``).
    :param kernel: name of a sampler, see :func:`numpyro_bnn.fit`; default MCLMC.
    :param until: accepted Monte Carlo error of predictions; sampling goes on until it is reached. Without it
        MCLMC takes three times larger steps (``energy_variance=1e-2``): short runs score better, and the bias
        of the step size is larger.
    :param max_minutes: time limit of a fit, see :func:`numpyro_bnn.fit`.
    :param num_warmup: length of warm-up in draws.
    :param num_samples: draws of each chain; with `until` their number when the run is first judged.
    :param num_chains: chains, each from a network optimised by itself.
    :param thinning: steps to a draw; default 25 of MCLMC without `until`, 50 of it with `until` and of the
        other samplers without a Metropolis correction, else 1.
    :param batch_size: rows in a minibatch; all rows where None, up to 20,000.
    :param calibration: share of the rows to hold out of the fit, such as 0.2: `predict_interval` then holds
        the share of new targets that it says, on average over exchangeable rows, also where the run has not
        converged (see :func:`numpyro_bnn.calibrate`). Each counts once, whatever its weight. For one target.
    :param random_state: seed, ``np.random.RandomState`` or None, as in scikit-learn.
    :param verbose: say what is done, and show progress.

    >>> from numpyro_bnn import BNNRegressor
    >>> network = BNNRegressor(hidden=(16,), random_state=0)
    >>> network.fit(X_train, y_train)                                       # doctest: +SKIP
    >>> mean, sd = network.predict(X_test, return_std=True)                 # doctest: +SKIP
    """

    hidden: Sequence[int] | int = (16, 16, 16, 16)
    likelihood: Literal["gaussian", "heteroscedastic", "student_t"] | None = field(
        default=None, kw_only=True
    )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _settings(self, num_rows: int) -> dict[str, Any]:
        in_minibatches = self.batch_size is not None or num_rows > MANY_ROWS
        if in_minibatches or self.until is not None or self.kernel not in (None, DEFAULT):
            return {}
        thinning = _FEWER_STEPS["thinning"] if self.thinning is None else self.thinning
        return _FEWER_STEPS | {"thinning": thinning}

    @all_or_nothing
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "BNNRegressor":
        """Sample the posterior; a ``ConvergenceWarning`` says if it is not known within tolerance.

        :param X: inputs (N, columns), an array or a table of numbers.
        :param y: targets (N,), or (N, targets); NaN where missing. Rows without any are left out.
        :param sample_weight: (N,), counts and not shares: a row of weight w counts as w equal rows.
        :return: this estimator.
        :raises TypeError: for columns of texts, categories or dates.
        :raises ValueError: for missing inputs, a setting out of range, or a `calibration` of several targets.
        """
        X, y, sample_weight = with_targets(self, X, y, sample_weight)
        X, y = validated(self, X, y, reset=True, y_numeric=True)
        several = y.ndim == 2 and y.shape[1] > 1
        y = (y if several else column_or_1d(y, warn=True)).astype(np.float64)
        if several and self.calibration is not None:
            raise ValueError(
                f"BNNRegressor: calibration={self.calibration!r} is for one target, and y has {y.shape[1]} "
                "columns. Fit an estimator for each column, or leave it out."
            )
        X, y, weights = weights_of(X, y, sample_weight)
        if y.ndim == 1 and (y == y[0]).all():
            raise ValueError(f"BNNRegressor: y is {y[0]:g} in all rows. There is nothing to learn.")
        likelihood = self.likelihood
        if likelihood is None:
            own = self.network is None and not several
            likelihood = "heteroscedastic" if own else "gaussian"
        outputs = 2 if likelihood == "heteroscedastic" else y.shape[1] if several else 1
        prior = Hierarchical() if self.prior is None else self.prior
        model = regression(self._network(outputs), prior, likelihood=likelihood)
        return self._fit(model, X, y, weights)

    @all_or_nothing
    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "BNNRegressor":
        """Fit first rows, or add rows to a fit by :func:`numpyro_bnn.update`; units stay those of the first.

        Where these draws do not reach the new posterior, all rows are fitted anew, and a warning says so.

        :param X: inputs (N, columns).
        :param y: targets (N,), or (N, targets).
        :param sample_weight: (N,), see `fit`; rows of batches without count once.
        :return: this estimator; ``report_`` is about the rows that were added.
        :raises ValueError: as `fit`, for `calibration`, and for another network or prior than the fit had.
        :raises RuntimeError: if the old rows, which a new fit needs, are not kept.
        """
        if not hasattr(self, "draws_"):
            return self.fit(X, y, sample_weight)
        X, y, sample_weight = with_targets(self, X, y, sample_weight)
        X, y = added(self, X, y)
        return self._update(*weights_of(X, y.astype(np.float64), sample_weight))

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior mean of the target, and how uncertain a new target is.

        :param X: inputs (N, columns).
        :param return_std: also give the standard deviation of the predictive distribution, noise included.
        :return: (N,), or (N, targets) of several targets; or a pair of such arrays.
        """
        mean, scale = self._predicted(X, average)
        return (mean, scale) if return_std else mean

    def predict_quantiles(
        self, X: ArrayLike, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> np.ndarray:
        """Quantiles of the predictive distribution of a new target.

        :param X: inputs (N, columns).
        :param quantiles: probabilities strictly between 0 and 1.
        :return: (N, quantiles), or (N, targets, quantiles) of several targets.
        """
        return self._predicted(X, lambda made: np.moveaxis(made.quantiles(quantiles), 0, -1))

    def predict_interval(
        self, X: ArrayLike, coverage: float = 0.9
    ) -> tuple[np.ndarray, np.ndarray]:
        """The interval that holds a new target with probability `coverage`.

        With `calibration`, on average over rows whatever the model; otherwise the central interval of the
        predictive distribution, which does so if the model is right.

        :param X: inputs (N, columns).
        :param coverage: a probability strictly between 0 and 1.
        :return: lower and upper ends, (N,) each, or (N, targets) of several targets.
        """
        check_is_fitted(self)
        check_share("predict_interval", "coverage", coverage)
        if self.calibration_ is not None:
            return self.calibration_.at(coverage).predict_interval(X)
        tail = (1 - coverage) / 2
        ends = self.predict_quantiles(X, (tail, 1 - tail))
        return ends[..., 0], ends[..., 1]


@dataclass(repr=False, eq=False)
class BNNClassifier(ClassifierMixin, BNNEstimator):
    """Classification by a Bayesian neural network.

    The posterior over the weights is sampled as :func:`numpyro_bnn.fit` does it: an ensemble is optimised,
    and a chain runs from each member. ``predict_proba`` gives the posterior predictive probabilities.

    Learned: ``classes_``, ``draws_`` (the draws), ``report_`` (how well the averages are known; print it),
    ``mcmc_`` (the run; not kept by pickle), ``calibration_`` (of the rows held out, else None), ``model_``,
    ``n_features_in_``, ``feature_names_in_``.

    :param hidden: units of each hidden layer; a number, such as 8, is one layer.
    :param network: any Flax module with an output a class (or one output, for two classes) in place of a
        perceptron; `hidden` is not used then.
    :param prior: prior over the weights, for standardised inputs; default ``priors.Hierarchical()``.
    :param class_weight: weight by class, or ``"balanced"`` for weights inversely proportional to the sums of
        the weights of their rows: the likelihood of a row is raised to the weight of its class. The result is
        the posterior for a population with other shares of the classes, not for the one the rows are from.
    :param kernel: name of a sampler, see :func:`numpyro_bnn.fit`; default MCLMC.
    :param until: accepted Monte Carlo error of predictions; sampling goes on until it is reached.
    :param max_minutes: time limit of a fit, see :func:`numpyro_bnn.fit`.
    :param num_warmup: length of warm-up in draws.
    :param num_samples: draws of each chain; with `until` their number when the run is first judged.
    :param num_chains: chains, each from a network optimised by itself.
    :param thinning: steps to a draw; default 50 of the samplers without a Metropolis correction, else 1.
    :param batch_size: rows in a minibatch; all rows where None, up to 20,000.
    :param calibration: share of the rows to hold out of the fit, of each class alike (of one with too few
        rows none), such as 0.2: `predict_set` then holds the share of new labels that it says, on average
        over rows that are exchangeable with these, also where the run has not converged (see
        :func:`numpyro_bnn.calibrate`). Each counts once, whatever its weight.
    :param random_state: seed, ``np.random.RandomState`` or None, as in scikit-learn.
    :param verbose: say what is done, and show progress.

    >>> from numpyro_bnn import BNNClassifier
    >>> network = BNNClassifier(hidden=(16,), random_state=0)
    >>> network.fit(X_train, labels)                                        # doctest: +SKIP
    >>> network.predict_proba(X_test)                                       # doctest: +SKIP
    """

    class_weight: Any = field(default=None, kw_only=True)

    @all_or_nothing
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "BNNClassifier":
        """Sample the posterior; a ``ConvergenceWarning`` says if it is not known within tolerance.

        :param X: inputs (N, columns), an array or a table of numbers.
        :param y: labels (N,): numbers, booleans or text. Rows without a label (NaN, None) are left out.
        :param sample_weight: (N,), counts and not shares: a row of weight w counts as w equal rows.
        :return: this estimator.
        :raises TypeError: for columns of texts, categories or dates.
        :raises ValueError: for missing inputs, a setting out of range, or if all labels are of one class.
        """
        X, y, sample_weight = with_targets(self, X, y, sample_weight)
        X, y = validated(self, X, y, reset=True)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        return self._fit_labels(X, y, sample_weight)

    def _fit_labels(self, X: Any, y: Any, sample_weight: ArrayLike | None) -> "BNNClassifier":
        """Sample the posterior given labels, whose classes are known."""
        labels = targets_of(self, column_or_1d(y, warn=True), type(self).__name__)
        if len(self.classes_) < 2:
            raise ValueError(
                f"BNNClassifier: y holds one class alone, {self.classes_[0]}, expected at least 2 "
                "classes. Check what selected the rows."
            )
        X, labels, weights = weights_of(X, labels, sample_weight)
        if self.class_weight is not None:
            each = np.ones(len(labels)) if weights is None else weights
            if isinstance(self.class_weight, str) and self.class_weight == "balanced":
                totals = np.bincount(labels, each)
                by_class = each.sum() / (np.count_nonzero(totals) * totals[labels])
            else:
                by_class = compute_sample_weight(self.class_weight, self.classes_[labels])
            X, labels, weights = weights_of(X, labels, each * by_class)
        prior = Hierarchical() if self.prior is None else self.prior
        model = classification(self._network(len(self.classes_)), prior)
        return self._fit(model, X, labels, weights)

    @all_or_nothing
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "BNNClassifier":
        """Fit first rows, or add rows to a fit by :func:`numpyro_bnn.update`; units stay those of the first.

        Where these draws do not reach the new posterior, all rows are fitted anew, and a warning says so.

        :param X: inputs (N, columns).
        :param y: labels (N,).
        :param classes: all labels that will come, in the first call.
        :param sample_weight: (N,), see `fit`; rows of batches without count once.
        :return: this estimator; ``report_`` is about the rows that were added.
        :raises ValueError: as `fit`, for other classes than in the first call, and for `calibration` and
            `class_weight`.
        :raises RuntimeError: if the old rows, which a new fit needs, are not kept.
        """
        if self.class_weight is not None:
            raise ValueError(
                f"BNNClassifier: class_weight={self.class_weight!r} depends on all rows, and partial_fit "
                "knows those of a batch. Give their weights as `sample_weight`."
            )
        X, y, sample_weight = with_targets(self, X, y, sample_weight)
        if _check_partial_fit_first_call(self, classes):
            X, y = validated(self, X, y, reset=True)
            return self._fit_labels(X, y, sample_weight)
        X, y = added(self, X, y)
        return self._update(*weights_of(X, targets_of(self, y, "BNNClassifier"), sample_weight))

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Posterior predictive probabilities of the classes, in the order of ``classes_``.

        :param X: inputs (N, columns).
        :return: (N, classes), each row adding up to 1.
        """
        probs = np.asarray(self._predicted(X, average), np.float64)
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The class of highest probability.

        :param X: inputs (N, columns).
        :return: labels (N,).
        """
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_set(self, X: ArrayLike, coverage: float = 0.9) -> np.ndarray:
        """The set of classes that holds the label of a new row with probability `coverage`.

        With `calibration`, on average over rows whatever the model; otherwise by the model's own
        probabilities. A share of sets is empty where the model is right more often than `coverage`.

        :param X: inputs (N, columns).
        :param coverage: a probability strictly between 0 and 1.
        :return: (N, classes), True for the classes of the set, in the order of ``classes_``.
        """
        check_is_fitted(self)
        if self.calibration_ is not None:
            return self.calibration_.at(coverage).predict_set(X)
        return nominal_sets(self, X, coverage)

    def sample(self, X: ArrayLike) -> np.ndarray:
        """One label of every row under each draw of the posterior.

        :param X: inputs (N, columns).
        :return: labels (draw, row), draws of all chains in a row.
        """
        check_is_fitted(self)
        return self.classes_[super().sample(X)]
