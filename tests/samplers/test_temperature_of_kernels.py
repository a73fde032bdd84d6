"""Temperatures other than 1 are refused beside parts of a sampler that draw from the posterior itself."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs

import numpyro_bnn as bnn
from numpyro_bnn import moves, schedules
from numpyro_bnn.samplers.kernels import temperatures_of

X = np.linspace(-1, 1, 6)
Y = np.sin(2 * X)


def network(x, y=None):
    net = bnn.random_module("net", bnn.MLP([2], 1), bnn.priors.Hierarchical(2.0, 2.0), x[:1, None])
    bnn.likelihoods.gaussian(lambda x: net(x[:, None])[:, 0], y, x=x, noise=0.5)


def line(x, y=None):
    for name in ("a", "b"):
        numpyro.sample(name, dist.Normal())
    numpyro.sample("y", dist.Normal(jnp.zeros(len(x)), 1.0).to_event(1), obs=y)


def kernel(temperature, model=network, kind=bnn.BAOAB):
    return kind(model, step_size=0.01, temperature=temperature)


def begin(sampler, model=network):
    run = bnn.MCMC(sampler, num_warmup=0, num_samples=2, progress_bar=False)
    run.run(random.key(0), X, Y)


def of_gibbs(second):
    return Gibbs([(kernel(0.5, line, bnn.SGLD), ["a"]), (second, ["b"])])


COOLING = schedules.polynomial(0.5, 10.0, 0.6)
REFUSED = {
    "a move": lambda: moves.Interleaved(kernel(0.1), [moves.RidgeScaling()]),
    "a schedule": lambda: moves.Interleaved(kernel(COOLING), [moves.PrecisionRedraw()]),
    "exact precisions": lambda: begin(
        bnn.neal(network, kernel=bnn.BAOAB, step_size=0.01, temperature=0.1)
    ),
    "a collapsed precision": lambda: begin(kernel(0.1, bnn.parameterize(network, "collapsed"))),
    "an integrated layer": lambda: begin(kernel(2.0, bnn.integrate_output(network))),
    "a block of another temperature": lambda: begin(of_gibbs(HMC(line))),
    "a block that only descends": lambda: begin(
        Gibbs([(kernel(0.0, line), ["a"]), (kernel(0.5, line), ["b"])])
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_temperature_is_refused(name):
    with pytest.raises(
        ValueError, match=r"(BAOAB|SGLD): temperature=[0-9.]+\. (Moves|The (other|model))"
    ):
        REFUSED[name]()


def test_temperatures_at_which_a_kernel_samples():
    assert temperatures_of(HMC(line)) == {1.0}
    assert temperatures_of(kernel(0.0)) == set()
    cycle = schedules.cyclical(0.1, 10)
    assert temperatures_of(kernel(cycle.temperature(1.0))) == {1.0}


def test_blocks_of_one_temperature_and_moves_at_temperature_1_run():
    begin(of_gibbs(kernel(0.5, line, bnn.SGLD)), line)
    moves.Interleaved(kernel(1.0), [moves.RidgeScaling()])
