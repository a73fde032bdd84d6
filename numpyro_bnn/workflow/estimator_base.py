"""What both scikit-learn estimators share: how they fit, predict and are kept by pickle."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from numpyro_bnn.diagnostics.fit_check.record import FitCheck
from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.models.random_module import MLP
from numpyro_bnn.models.ready import ReadyModel
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.fitted import targets_of
from numpyro_bnn.posterior.predictions import predict, separate_at
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.run.mcmc import MCMC
from numpyro_bnn.workflow.calibration import Calibrated, calibrate
from numpyro_bnn.workflow.check_fit import check_fit
from numpyro_bnn.workflow.estimator_inputs import (
    BLOCK,
    COVERAGE,
    held_out,
    hidden_sizes,
    in_blocks,
    key_from,
    table_like,
    validated,
)
from numpyro_bnn.workflow.estimator_warning import warn_of_verdict
from numpyro_bnn.workflow.fit import fit as fit_model

# Parameters that both estimators hand on to `fit`.
_FOR_FIT = ("kernel", "num_chains", "num_warmup", "num_samples", "thinning", "batch_size", "until",
            "max_minutes", "progress_bar")  # fmt: skip


class BNNEstimator(BaseEstimator):
    """The base of both estimators, each of which names its own parameters."""

    # Whether each row is predicted independently of others.
    _separate = True

    def _network(self, outputs: int) -> Any:
        if self.network is not None:
            return self.network
        return MLP(hidden_sizes(self), outputs)

    def _fit(self, model: ReadyModel, X: np.ndarray, y: np.ndarray, weights: Any) -> Any:
        """Sample the posterior of a model, keep it, and calibrate it on the rows that are held out."""
        kept, held = held_out(self, y)
        fitted = fit_model(
            model,
            table_like(self, X[kept]),
            y[kept],
            key=key_from(self.random_state),
            weights=None if weights is None else weights[kept],
            **{name: getattr(self, name) for name in _FOR_FIT},
        )
        self.model_ = model
        self.mcmc_: MCMC = fitted.mcmc
        self.draws_: Draws = fitted.draws
        self._separate = separate_at(self.draws_, table_like(self, X[kept]), {})
        self.report_: Report = fitted.report
        self.calibration_: Calibrated | None = None
        if len(held):
            targets = y[held] if isinstance(self, RegressorMixin) else self.classes_[y[held]]
            self.calibration_ = calibrate(self, table_like(self, X[held]), targets, COVERAGE)
        warn_of_verdict(type(self).__name__, self.report_)
        return self

    def predictions(self, X: ArrayLike) -> Predictions:
        """Predictions of every draw, as :func:`numpyro_bnn.predict` gives them.

        Rows are predicted in blocks of one size, so that a row gets the same numbers among any others; but
        those of a network that relates rows, such as a recurrent one along them, all together.

        :param X: inputs (N, columns), an array or a table with the columns of the training table.
        :return: arrays with leading axes (chain, draw, row).
        """
        check_is_fitted(self)
        X = validated(self, X, reset=False)
        if not self._separate:
            return predict(None, self.draws_, table_like(self, X))
        made = predict(None, self.draws_, table_like(self, in_blocks(X)), batch_size=BLOCK)
        return made.first_rows(len(X))

    def check(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> FitCheck:
        """Whether the model fits its training rows, see :func:`numpyro_bnn.check_fit`.

        :param X: inputs of the rows that were fitted (N, columns); needed after pickle alone, which keeps no
            data.
        :param y: their targets or labels.
        :return: leave-one-out and posterior predictive checks; print it.
        :raises ValueError: for rows that were not fitted, and for rows that had weights.
        """
        check_is_fitted(self)
        if X is not None:
            X = table_like(self, validated(self, X, reset=False))
        if y is not None and isinstance(self, ClassifierMixin):
            y = targets_of(self, y, "check")
        return check_fit(getattr(self, "mcmc_", self.draws_), X, y)

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
