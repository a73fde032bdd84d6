"""Columns of decimals, as databases give them: arrays of them, and tables with floats beside them."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from numpyro_bnn.data.arguments import as_array

A = [Decimal("1.5") + i for i in range(40)]
TABLE = pd.DataFrame({"a": A, "b": A[::-1]})
NUMBERS = np.stack([np.array(A, float), np.array(A[::-1], float)], 1)


@pytest.mark.parametrize("table", [TABLE.to_numpy(), TABLE.assign(b=NUMBERS[:, 1])])
def test_decimals_are_numbers_of_a_model(table):
    np.testing.assert_array_equal(as_array("model", "x", table), NUMBERS)
    np.testing.assert_array_equal(as_array("model", "y", TABLE["a"]), NUMBERS[:, 0])


@pytest.mark.filterwarnings("ignore:BNNRegressor. the predictions are not known")
def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="expected numbers"):
        as_array("model", "x", np.array([Decimal(1), "2"], object))
