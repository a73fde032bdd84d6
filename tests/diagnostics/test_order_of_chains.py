"""What measures between chains must not depend on."""

import numpy as np
import pytest

from numpyro_bnn import diagnostics
from numpyro_bnn.diagnostics.checked_draws import copies_of, without_copies


@pytest.fixture
def rng():
    return np.random.default_rng(2)


@pytest.mark.parametrize(
    ("name", "measure", "power"),
    [
        ("rhat", lambda x: diagnostics.rhat(x), 0),
        ("within", lambda x: diagnostics.variance_parts(x).within, 2),
        ("between", lambda x: diagnostics.variance_parts(x).between, 2),
        ("share", lambda x: diagnostics.variance_parts(x).share, 0),
    ],
)
def test_order_of_chains_units_and_origin_do_not_matter(rng, name, measure, power):
    x = rng.normal(size=(4, 100, 3)) + rng.normal(size=(4, 1, 3))
    expected = measure(x)
    np.testing.assert_allclose(measure(x[[2, 0, 3, 1]]), expected, rtol=1e-9)
    np.testing.assert_allclose(measure(x + 7.0), expected, rtol=1e-8)
    for unit in (1e-4, -3.0, 1e5):
        np.testing.assert_allclose(measure(unit * x), abs(unit) ** power * expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("order", "copies"),
    [([0, 1, 2], {}), ([0, 0, 1], {1: 0}), ([0, 1, 1, 0, 2, 1], {2: 1, 3: 0, 5: 1})],
)
def test_copies_are_numbered_by_the_first_chain_that_they_equal(rng, order, copies):
    first, second = rng.normal(size=(3, 7, 2)), rng.normal(size=(3, 7))
    arrays = {"w": first[order], "b": second[order], "other": np.arange(99.0)}
    assert copies_of([arrays["w"], arrays["b"]]) == copies
    kept = without_copies(arrays, copies, len(order))
    left = [chain for chain in range(len(order)) if chain not in copies]
    np.testing.assert_array_equal(kept["w"], arrays["w"][left])
    assert kept["other"] is arrays["other"]
    # A last draw that differs makes two chains of them.
    arrays["b"][-1, -1] += 1e-9
    assert len(order) - 1 not in copies_of([arrays["w"], arrays["b"]])
