"""A run that began at a noise far below that of its draws says so."""

import jax
import nets
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.compilation.program_identity import separate_programs
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.posterior.predictions import starts_as_draws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)).astype(np.float32)
Y = X[:, 0] + 0.5 * RNG.normal(size=60).astype(np.float32)

own = row_model(
    lambda x, w, sigma: dist.Normal(x @ w, sigma),
    plate="rows",
    w=dist.Normal(0, 1).expand([2]).to_event(1),
    sigma=dist.HalfNormal(1.0),
)


def ready(likelihood):
    outputs = 2 if likelihood == "heteroscedastic" else 1
    return bnn.regression(bnn.MLP([], outputs), bnn.priors.Normal(1.0), likelihood=likelihood)


MODELS = {
    "gaussian": lambda: (ready("gaussian"), "y.scale", -4.5),
    "student_t": lambda: (ready("student_t"), "y.scale", -4.5),
    "heteroscedastic": lambda: (
        ready("heteroscedastic"),
        "net/Dense_0.bias",
        np.array([0.0, -4.5], np.float32),
    ),
    "own": lambda: (own, "sigma", -4.5),
}
KERNELS = {"NUTS": NUTS, "HMC": lambda model: HMC(model, num_steps=20, trajectory_length=None)}


def report_of(model, kernel, starts, num_chains=2):
    mcmc = bnn.MCMC(
        kernel(model), num_warmup=200, num_samples=150, num_chains=num_chains, progress_bar=False
    )
    mcmc.run(jax.random.key(1), X, Y, init_params=starts)
    return bnn.diagnose(mcmc, X[:10])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("likelihood", MODELS)
def test_a_start_at_a_tenth_of_the_noise_is_named(likelihood, kernel):
    model, site, low = MODELS[likelihood]()
    starts = bnn.optimize(model, jax.random.key(0), X, Y, num_chains=2, progress_bar=False)
    said = report_of(model, KERNELS[kernel], starts).explanation
    assert "began at a noise" not in said
    starts[site] = starts[site].at[1].set(low)
    said = report_of(model, KERNELS[kernel], starts).explanation
    assert "Chains [1] began at a noise of 0.01" in said


@pytest.mark.parametrize("likelihood", ["gaussian", "own"])
def test_one_chain_is_judged_too(likelihood):
    model, site, low = MODELS[likelihood]()
    starts = bnn.optimize(model, jax.random.key(0), X, Y, progress_bar=False)
    starts[site] = starts[site].at[0].set(low)
    said = report_of(model, NUTS, starts, num_chains=1).explanation
    assert "Chains [0] began at a noise of 0.01" in said


def test_a_fitted_object_says_it_of_its_run():
    model, site, low = MODELS["gaussian"]()
    fitted = bnn.fit(
        model,
        X,
        Y,
        key=jax.random.key(0),
        kernel="nuts",
        num_warmup=100,
        num_samples=100,
        num_chains=2,
    )
    assert "began at a noise" not in fitted.report.explanation
    fitted.mcmc.starts[site] = fitted.mcmc.starts[site] + low
    assert "began at a noise" in bnn.diagnose(fitted, X).explanation


def test_classes_have_no_noise():
    model = bnn.classification(bnn.MLP([], 2), bnn.priors.Normal(1.0))
    starts = bnn.optimize(model, jax.random.key(0), X, Y > 0, num_chains=2, progress_bar=False)
    mcmc = bnn.MCMC(NUTS(model), num_warmup=100, num_samples=100, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(1), X, Y > 0, init_params=starts)
    assert "began at a noise" not in bnn.diagnose(mcmc, X).explanation


def test_starts_are_read_in_one_program():
    """The model is not run operation by operation, each of them a program, for the supports of its sites."""
    low = np.array([-4.5, 0.0], np.float32)
    kernel = bnn.RandomWalk(own, step_size=0.1)
    settings = {"num_warmup": 0, "num_samples": 4, "num_chains": 2, "progress_bar": False}
    mcmc = bnn.MCMC(kernel, **settings)
    mcmc.run(jax.random.key(0), X, Y, init_params={"w": np.zeros((2, 2)), "sigma": low})
    with separate_programs(), nets.compilations() as compiled:
        found = starts_as_draws(mcmc, draws_of(mcmc), X)
    assert len(compiled) == 1
    np.testing.assert_allclose(found["sigma"][:, 0], np.exp(low), rtol=1e-6)
