"""Chains compared with each other: parts of the variance, a second run."""

import numpy as np
import pytest

from numpyro_bnn import diagnostics
from numpyro_bnn.diagnostics import diagnose_draws


def test_variance_parts_add_up_to_the_variance_of_all_draws(rng):
    x = rng.normal(size=(4, 30, 5)) + rng.normal(size=(4, 1, 5))
    parts = diagnostics.variance_parts(x)
    np.testing.assert_allclose(parts.within, x.var(axis=1).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(parts.between, x.mean(axis=1).var(axis=0), rtol=1e-12)
    for groups in (None, [0, 0, 0, 1], ["a", "b", "a", "b"]):
        parts = diagnostics.variance_parts(x, groups)
        total = x.reshape(120, 5).var(axis=0)
        np.testing.assert_allclose(parts.within + parts.between, total, rtol=1e-12)
        np.testing.assert_allclose(parts.share, parts.between / total, rtol=1e-12)
    one = diagnostics.variance_parts(x, np.zeros(4))
    np.testing.assert_allclose(one.between, 0, atol=1e-15)


W = np.random.default_rng(1).normal(size=(2, 100, 3))


WEIGHTS = {"w": W}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: diagnose_draws(), ValueError, "neither weights nor predictions"),
        (lambda: diagnose_draws({}, {}), ValueError, "neither weights nor predictions"),
        (lambda: diagnose_draws(WEIGHTS, W[:1]), ValueError, r"\(2, 100\) .* \(1, 100\) in"),
        (lambda: diagnose_draws({"w": np.ones(3)}), ValueError, r"weights 'w': .*shape \(3,\)"),
        (
            lambda: diagnose_draws(WEIGHTS, sample_stats={"diverging": np.zeros(200)}),
            ValueError,
            r"\['diverging'\] must have shape .* \(2, 100\), got \(200,\)",
        ),
        (lambda: diagnose_draws(WEIGHTS, second=({"w": W}, None)), ValueError, "weights alone"),
        (
            lambda: diagnose_draws(None, {"mean": W, "scale": W[..., :1]}),
            IndexError,
            "out of bounds",
        ),
        (
            lambda: diagnose_draws(None, W, second=(None, W[..., :2])),
            ValueError,
            "broadcast together",
        ),
        (lambda: diagnose_draws(None, W, second=(None, W * np.nan)), ValueError, "finite draws"),
    ],
)
def test_a_mistake_gets_an_error_that_names_it(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_constants_that_differ_by_rounding_are_not_parted(rng, noise):
    one = np.full((2, 100, 3), 0.1) * (1 + noise * rng.normal(size=(2, 100, 3)))
    found = diagnostics.compare_draws({"scale": one}, {"scale": one * (1 + 1e-9)})
    assert found.agrees
    assert not diagnostics.compare_draws({"scale": one}, {"scale": one * 1.01}).agrees


@pytest.mark.parametrize("short", [1, 3])
def test_a_second_run_of_a_few_draws_is_too_short_and_parts_from_nothing(rng, short):
    x = rng.normal(size=(4, 200, 5))
    found = diagnostics.compare_draws({"y": x}, {"y": x[:, :short]})
    assert found.too_short
    assert not found.agrees
    assert (found.num_compared, found.num_parted) == (0, 0)
    report = diagnose_draws(None, x, second=(None, x[:, :short]))
    assert "The second run is too short to be compared" in report.sentences[-1]
    assert "Averages of a second run" not in report.explanation
    assert diagnostics.compare_draws({"y": x}, {"y": x[:, :4]}).num_compared == 20
