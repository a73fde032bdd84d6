"""The most steps of a trajectory are known of each kernel that has such a limit, and cut ones are counted."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from numpyro_bnn import moves
from numpyro_bnn.posterior.draws import draws_of, limits_of


def model():
    x = numpyro.sample("x", dist.Normal().expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x.sum(), 1.0), obs=0.0)


LIMITS = {
    "NUTS": (lambda: NUTS(model, max_tree_depth=3), (7, None)),
    "NUTS, deeper in warm-up": (lambda: NUTS(model, max_tree_depth=(5, 3)), (7, None)),
    "NUTS with moves": (lambda: moves.Interleaved(NUTS(model, max_tree_depth=3), []), (7, None)),
    "HMC": (lambda: HMC(model, num_steps=3, trajectory_length=None), (None, None)),
    "MAMS": (lambda: bnn.MAMS(model, max_num_steps=31), (None, 31)),
    "MAMS with moves": (lambda: moves.Interleaved(bnn.MAMS(model), []), (None, 255)),
    "GGMC": (lambda: bnn.GGMC(model, step_size=0.1, num_steps=4), (None, None)),
    "SGLD": (lambda: bnn.SGLD(model, step_size=0.1), (None, None)),
    "a ladder": (lambda: bnn.ParallelTempering(model, bnn.MAMS(model)), (None, None)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_limit_is_that_of_the_kernel(name):
    kernel, (tree, trajectory) = LIMITS[name]
    expected = {"max_num_steps": tree}
    if trajectory:
        expected["trajectory_limit"] = trajectory
    assert limits_of(kernel()) == expected


def test_a_run_whose_trajectories_are_cut_is_told():
    kernel = bnn.MAMS(model, step_size=0.01, max_num_steps=3)
    mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=120, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), init_params={"x": np.zeros((2, 2))})
    steps = mcmc.get_extra_fields(group_by_chain=True)["num_steps"]
    report = bnn.diagnostics.diagnose_draws(
        mcmc.get_samples(group_by_chain=True), sample_stats=draws_of(mcmc).stats | limits_of(kernel)
    )
    assert report.sampler.cut_trajectories == (np.asarray(steps) == 3).sum() > 200
    assert "trajectories were cut at the most steps allowed" in report.explanation
    assert report.sampler.saturated_trees is None
