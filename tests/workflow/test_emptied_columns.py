"""Columns that rounding to a shorter float has emptied, as skrub 0.11's table vectorizer hands on times."""

import numpy as np
import pandas as pd
import pytest

import numpyro_bnn as bnn

TIMES = 1.7145e9 + 15 * np.arange(40)


@pytest.mark.parametrize("estimator", [bnn.BNNRegressor, bnn.BNNClassifier])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_they_are_refused_as_ready_models_do(estimator, kind):
    column = TIMES if kind == np.float32 else 2024 + np.arange(40) / 40
    other = np.arange(40.0)
    table = pd.DataFrame({"time": column.astype(kind), "other": other})
    for X, name in [(table, "'time'"), (np.stack([column, other], 1).astype(kind), "0")]:
        with pytest.raises(ValueError, match=f"BNN.*: column {name} of X lies around .*rounding"):
            estimator(num_samples=2, num_warmup=2).fit(X, np.arange(40) % 2)
