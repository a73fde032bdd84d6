"""What studies share: cells of a table, stored results, and whether a run has converged."""

import numpy as np
import pytest

from benchmarks._shared import sampled_runs, study

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_curves_survive_a_cell_and_chains_that_disagree_have_not_converged():
    values = np.array([0.5, -1.25, 3e-7])
    np.testing.assert_array_equal(study.from_text(study.as_text(values)), values)
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 500, 3))
    assert sampled_runs.convergence(draws)["converged"] == "yes"
    draws[0, :, 2] += 2
    found = sampled_runs.convergence(draws)
    assert found["converged"] == "no"
    assert found["worst R-hat"] > 1.1 > 1.01 > found["median R-hat"]
    assert sampled_runs.convergence(draws[:, :1])["converged"] == ""
