"""What measures between chains must not depend on, and counts of functions with a known answer."""

import numpy as np
import pytest
from scipy import stats

from numpyro_bnn import diagnostics
from numpyro_bnn.diagnostics.checked_draws import copies_of, without_copies


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def test_parts_of_variance_are_those_of_an_analysis_of_variance(rng):
    """F of a one-way analysis is the ratio of mean squares that the two parts give."""
    x = rng.normal(size=(3, 40)) + np.array([[0.0], [0.5], [-0.3]])
    parts = diagnostics.variance_parts(x)
    f = (parts.between * 120 / 2) / (parts.within * 120 / 117)
    assert float(f) == pytest.approx(stats.f_oneway(*x).statistic, rel=1e-10)


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


@pytest.mark.parametrize("count", [1, 2, 5])
def test_chains_of_one_sure_function_each_are_counted(count):
    """Each chain is certain of a class of its own: as many functions as chains, one within each."""
    probs = np.broadcast_to(np.eye(5)[:count, None, None], (count, 10, 4, 5))
    found = diagnostics.distinct_functions({"probs": probs})
    np.testing.assert_allclose(found, (count, 1.0, count), rtol=1e-9)


def test_two_gaussian_functions_are_counted_by_their_overlap():
    """Eigenvalues (1 ± c) / 2, c = exp(-(m - m')² / 8 s²): the count is exp of their entropy."""
    for gap, scale in ((0.5, 1.0), (2.0, 1.0), (3.0, 0.7)):
        mean = np.array([0.0, gap])[:, None, None] * np.ones((2, 6, 3))
        found = diagnostics.distinct_functions({"mean": mean, "scale": np.full_like(mean, scale)})
        overlap = np.exp(-((gap / scale) ** 2) / 8)
        expected = np.exp(stats.entropy([(1 + overlap) / 2, (1 - overlap) / 2]))
        assert found.between == pytest.approx(expected, rel=1e-9)
        assert found.within == pytest.approx(1.0, rel=1e-9)


def test_an_order_of_chains_or_classes_does_not_change_the_count(rng):
    probs = rng.dirichlet(np.ones(4), size=(3, 8, 5))
    expected = diagnostics.distinct_functions({"probs": probs})
    for other in (probs[[1, 2, 0]], probs[..., [3, 0, 2, 1]], probs[:, ::-1], probs[:, :, ::-1]):
        given = diagnostics.distinct_functions({"probs": other})
        np.testing.assert_allclose(given, expected, rtol=1e-9)


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
