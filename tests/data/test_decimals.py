"""Columns of decimals, as databases give them (polars 2.1 and pandas): numbers wherever numbers are taken."""

from decimal import Decimal

import few_draws
import numpy as np
import pandas as pd
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.data.arguments import as_array

A = [Decimal("1.5") + i for i in range(40)]
TABLE = pd.DataFrame({"a": A, "b": A[::-1]})
NUMBERS = np.stack([np.array(A, float), np.array(A[::-1], float)], 1)


@pytest.mark.parametrize("table", [TABLE, TABLE.to_numpy(), TABLE.assign(b=NUMBERS[:, 1])])
def test_decimals_are_numbers_of_a_model(table):
    np.testing.assert_array_equal(as_array("model", "x", table), NUMBERS)
    np.testing.assert_array_equal(as_array("model", "y", TABLE["a"]), NUMBERS[:, 0])


def test_tables_of_polars_too():
    polars = pytest.importorskip("polars", reason="polars is not installed")
    table = polars.DataFrame({"a": A, "b": A[::-1]})
    np.testing.assert_array_equal(as_array("model", "x", table), NUMBERS)


@pytest.mark.filterwarnings("ignore:BNNRegressor. the predictions are not known")
def test_estimators_take_them():
    fit = bnn.BNNRegressor(**few_draws.SETTINGS)
    assert fit.fit(TABLE, np.arange(40.0)).predict(TABLE).shape == (40,)


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="expected numbers"):
        as_array("model", "x", np.array([Decimal(1), "2"], object))
