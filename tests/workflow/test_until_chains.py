"""Runs that go on until averages are known, with chains that fail, stay or come from far away."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.mcmc import MCMCKernel
from test_until import line, until

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics.monte_carlo.agreement import draws_to_drop, halves_differ


class _WalkState(NamedTuple):
    z: Any
    kind: jax.Array
    count: jax.Array
    rng_key: jax.Array


class Walk(MCMCKernel):
    """Draws weights afresh; chains that start at 1 stay there, those at 2 become NaN after 10 draws.

    Those that start at 3 come from far away.
    """

    sample_field = "z"
    default_fields = ("z",)

    @property
    def model(self):
        return line

    def get_diagnostics_str(self, state):
        return ""

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        return _WalkState(init_params, init_params["weights"][0], jnp.array(0), rng_key)

    def sample(self, state, model_args, model_kwargs):
        key, own = jax.random.split(state.rng_key)
        value = jnp.where(state.kind == 1, state.kind, 0.3 * jax.random.normal(own, (2,)))
        value = jnp.where((state.kind == 2) & (state.count >= 10), jnp.nan, value)
        value += (state.kind == 3) * 9.0 * jnp.exp(-state.count / 8.0)
        return _WalkState({"weights": value}, state.kind, state.count + 1, key)


def walk(kinds):
    mcmc = bnn.MCMC(
        Walk(), num_warmup=0, num_samples=100, num_chains=len(kinds), progress_bar=False
    )
    start = {"weights": jnp.tile(jnp.array(kinds)[:, None], (1, 2))}
    accepted = bnn.Tolerance(relative=0.5)
    return mcmc, until(mcmc, init_params=start, until=accepted)


def test_a_chain_that_fails_is_left_out_of_looks():
    with pytest.warns(
        UserWarning, match=r"Left out 1 of 4 chains \(chain 2: draw 10 is not finite"
    ):
        mcmc, stopped = walk([0.0, 0.0, 2.0, 0.0])
    assert stopped.reason == "within tolerance"
    assert [look.report.num_chains for look in stopped.looks] == [3, 3]
    assert mcmc.get_samples(True)["weights"].shape == (3, 150, 2)


def test_halves_that_differ_are_seen_and_others_are_not():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 500, 20))
    apart = np.array([0.0, 3.0, -1.0, 5.0])[:, None, None]
    accepted = bnn.Tolerance()
    # Chains that are apart are another question.
    assert draws_to_drop({"f": noise + apart}, accepted) == 0
    beginning = 4.0 * np.exp(-np.arange(500) / 30)[:, None]
    assert 50 <= draws_to_drop({"f": noise + apart + beginning}, accepted) <= 200
    assert halves_differ({"f": noise + beginning}, accepted)
    found = [
        halves_differ({"f": rng.normal(size=(4, 300, 20))}, bnn.Tolerance(relative=1e-3))
        for _ in range(100)
    ]
    # One in a hundred, of exchangeable draws: four times as many happen once in 250.
    assert sum(found) <= 4


def test_a_first_part_is_dropped_while_halves_differ():
    mcmc, stopped = walk([3.0, 3.0])
    assert stopped.reason == "within tolerance"
    assert 0 < stopped.dropped <= stopped.draws // 2
    samples = mcmc.get_samples(True)["weights"]
    assert samples.shape == (2, stopped.draws - stopped.dropped, 2)
    # The start is thirty standard deviations away, and its last trace a tenth of one.
    assert np.abs(samples).max() < 2


def test_a_run_of_which_no_chain_is_left_ends():
    with pytest.raises(RuntimeError, match="No chain stayed finite"):
        walk([2.0, 2.0])


def test_chains_that_do_not_move_end_a_run():
    with pytest.warns(UserWarning, match="1 of 3 chains is suspect and kept"):
        mcmc, stopped = walk([0.0, 1.0, 0.0])
    assert stopped.reason == "chains that do not move"
    assert "which more draws will not change" in str(stopped)
    assert stopped.draws == 150
    assert mcmc.suspect == {1: "all draws are the same"}
