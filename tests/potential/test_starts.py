"""Starts are checked site by site, before anything is compiled."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import AIES, HMC, NUTS, SA, BarkerMH, DiscreteHMCGibbs
from numpyro.infer.gibbs import Gibbs
from quiet import quiet
from small_models import network_model

import numpyro_bnn as bnn

KEY = jax.random.key(0)
X, Y = np.ones((4, 3), np.float32), np.zeros(4, np.float32)


def model(x, y):
    """Sites whose unconstrained values have the shapes (3,), (), (2,) and (3,)."""
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal())
    numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("factors", dist.LKJCholesky(3))
    numpyro.sample("y", dist.Normal(jnp.sum(x * w, -1), noise), obs=y)


START = {"w": jnp.zeros(3), "noise": jnp.zeros(()), "shares": jnp.zeros(2), "factors": jnp.zeros(3)}
# What compiles fast.
QUICK = {"step_size": 0.1, "num_steps": 2, "trajectory_length": None, "adapt_step_size": False}
KERNELS = {
    "NUTS": NUTS,
    "HMC": HMC,
    "BarkerMH": BarkerMH,
    "SA": SA,
    "AIES": AIES,
    "SGLD": partial(bnn.SGLD, step_size=0.1),
    "MALA": partial(bnn.MALA, step_size=0.1),
    "MCLMC": bnn.MCLMC,
    "ParallelTempering": bnn.ParallelTempering,
    "Gibbs": lambda model: Gibbs([(HMC(model), ["w"]), (bnn.MALA(model, step_size=0.1), None)]),
}


def run(kernel, init_params, num_chains, model=model):
    method = "vectorized" if kernel == "AIES" else "parallel"
    mcmc = quiet(KERNELS[kernel](model), 1, 1, num_chains, chain_method=method)
    mcmc.run(KEY, X, Y, init_params=init_params)


def chains(start, num_chains):
    return {name: jnp.stack([value] * num_chains) for name, value in start.items()}


def without(name):
    return {site: value for site, value in START.items() if site != name}


BAD = {
    "another shape": (
        START | {"w": jnp.zeros((2, 1))},
        ValueError,
        r"'w' the shape .*expected .*3,?\)",
    ),
    "a shape that broadcasts": (
        START | {"w": jnp.zeros(1)},
        ValueError,
        r"'w' the shape .*1,?\), exp",
    ),
    "a constrained simplex": (
        START | {"shares": jnp.ones(3) / 3},
        ValueError,
        r"'shares' the shape .*3,?\), expected .*2,?\)",
    ),
    "a constrained factor": (START | {"factors": jnp.eye(3)}, ValueError, "'factors' the shape"),
    "a vector for a number": (START | {"noise": jnp.zeros(2)}, ValueError, "'noise' the shape"),
    "a site that lacks": (without("w"), ValueError, r"lack the sites \['w'\]"),
    "a misspelt site": (
        without("w") | {"W": jnp.zeros(3)},
        ValueError,
        r"lack the sites \['w'\] and give the unknown sites \['W'\]",
    ),
    "one site too many": (START | {"b": jnp.zeros(())}, ValueError, r"unknown sites \['b'\]"),
    "the target": (START | {"y": jnp.zeros(4)}, ValueError, r"unknown sites \['y'\]"),
}


def rotated(values):
    """Each value and each kernel once in every change, weekly all pairs of them."""
    return [
        pytest.param(value, kernel, marks=[] if (j - i) % len(values) == 0 else pytest.mark.slow)
        for i, value in enumerate(values)
        for j, kernel in enumerate(KERNELS)
    ]


@pytest.mark.parametrize(("name", "kernel"), rotated(BAD))
def test_a_start_that_does_not_fit_is_refused(name, kernel):
    start, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        run(kernel, chains(start, 4), 4)
    if kernel != "AIES":
        with pytest.raises(kind, match=message):
            run(kernel, start, 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_axis_of_chains_that_lacks_is_said(kernel):
    for start in (START, chains(START, 3), chains(START, 4) | {"noise": jnp.zeros(())}):
        with pytest.raises(ValueError, match=r"leading axis of num_chains=4.*`bnn\.optimize"):
            run(kernel, start, 4)


NO_STARTS = ["warm", 3.0, np.zeros((4, 3)), [np.zeros(3)]]


@pytest.mark.parametrize(("given", "kernel"), rotated(NO_STARTS))
def test_starts_are_arrays_by_site(kernel, given):
    with pytest.raises(TypeError, match=r"init_params of a model must .*bnn\.optimize"):
        run(kernel, given, 4)
    with pytest.raises(TypeError, match="init_params"):
        bnn.optimize(model, KEY, X, Y, init_params=given, progress_bar=False)


def network(prior):
    return network_model(nets.Linear(), prior, noise=1.0)


@pytest.mark.parametrize("prior", [bnn.priors.Normal(), bnn.priors.Hierarchical()])
@pytest.mark.parametrize("kernel", ["NUTS", "SGLD"])
def test_weights_of_another_network_are_refused_under_every_prior(kernel, prior):
    given = {"net/Dense_0.kernel": jnp.zeros((3, 1)), "net/Dense_0.bias": jnp.zeros(1)}
    wrong = given | {"net/Dense_0.bias": jnp.zeros(())}
    with pytest.raises(ValueError, match=r"'net/Dense_0\.bias' the shape \(\), expected \(1,\)"):
        run(kernel, wrong, 1, network(prior))
    with pytest.raises(ValueError, match=r"leading axis of num_chains=2"):
        run(kernel, given, 2, network(prior))


def mixture(x, y):
    kind = numpyro.sample("kind", dist.Bernoulli(0.5))
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w + kind, 1.0), obs=y)


def test_discrete_sites_need_no_start():
    kernel = DiscreteHMCGibbs(HMC(mixture, **QUICK))
    mcmc = bnn.MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match=r"'w' the shape \(2, 1\)"):
        mcmc.run(KEY, X, Y, init_params={"w": jnp.zeros((2, 1))})
    mcmc.run(KEY, X, Y, init_params={"w": jnp.ones(3)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("energy", "speed"), r"extra_fields names 'speed'.*it has \['i', 'z', "),
        (("adapt_state.tempo",), "names 'adapt_state.tempo'"),
        (("~z.v",), r"leaves out the sites \['v'\], which are not among the draws: \['noise'"),
    ],
)
def test_fields_that_there_are_not_are_refused(fields, message):
    def two_sites(x, y):
        w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, numpyro.sample("noise", dist.HalfNormal())), obs=y)

    mcmc = bnn.MCMC(HMC(two_sites, **QUICK), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match=message):
        mcmc.run(KEY, X, Y, extra_fields=fields, init_params={k: START[k] for k in ("w", "noise")})
