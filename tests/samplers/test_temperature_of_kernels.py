"""Temperatures other than 1 are refused beside parts of a sampler that draw from the posterior itself.

Runs whose momenta are not at the temperature that was asked for say so.
"""

import jax
import jax.numpy as jnp
import linear_gaussian as linear
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from ladders import hierarchical, hierarchy
from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs

import numpyro_bnn as bnn
from numpyro_bnn import moves, schedules
from numpyro_bnn.samplers.kernels import (
    fields_of,
    temperature_of_momenta,
    temperatures_of,
    warn_of_momenta,
)

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


DATA = linear.data(rows=100)


def stats(ratio, chains=4, draws=400, asked=0.5, degrees=50):
    """What a kernel with so many weights would record of independent momenta."""
    squares = np.random.default_rng(0).chisquare(degrees, (chains, draws)) / degrees
    return {
        "kinetic_temperature": ratio * asked * squares,
        "gradient_temperature": np.ones((chains, draws)),
        "temperature": np.full((chains, draws), asked),
    }


def test_the_mean_over_what_was_asked_for_has_an_error():
    value, error = temperature_of_momenta(stats(1.3))
    # 1600 draws of a mean of 50 squares.
    exact = 1.3 * np.sqrt(2 / 50 / 1600)
    assert value == pytest.approx(1.3, abs=4 * exact)
    assert error == pytest.approx(exact, rel=4 / np.sqrt(2 * 31))


@pytest.mark.parametrize(("ratio", "said"), [(1.2, "1.2 .*heats them"), (0.8, "0.79.*taken off")])
def test_momenta_that_are_off_are_told(ratio, said):
    with pytest.warns(UserWarning, match=said):
        warn_of_momenta(stats(ratio))


def test_nothing_is_said_of_right_momenta_and_of_runs_that_cannot_tell():
    """Warnings are errors here."""
    warn_of_momenta(stats(1.04))
    # Eight weights in 400 draws: 6 % are no more than chance.
    warn_of_momenta(stats(1.06, chains=1, degrees=2))
    for short in (stats(3.0, draws=49), stats(3.0, chains=1, draws=100)):
        assert temperature_of_momenta(short) is None
    cold = stats(3.0)
    assert temperature_of_momenta(cold | {"temperature": 0 * cold["temperature"]}) is None
    del cold["gradient_temperature"]
    assert temperature_of_momenta(cold) is None


@pytest.mark.parametrize(
    ("kind", "recorded"),
    [(bnn.BAOAB, True), (bnn.SGLD, False), (bnn.MALA, None)],
    ids=["minibatches with momenta", "without momenta", "corrected"],
)
def test_temperatures_of_a_block_of_gibbs_are_recorded(kind, recorded):
    data = hierarchy()[0]
    centered = bnn.parameterize(hierarchical, "centered")
    precisions = [f"net/Dense_0.{name}.precision" for name in ("kernel", "bias")]
    some = {} if kind is bnn.MALA else {"batch_size": 2}
    kernel = Gibbs(
        [
            (bnn.PrecisionGibbs(hierarchical), precisions),
            (kind(centered, step_size=0.01, **some), None),
        ]
    )
    names = fields_of(kernel)
    assert ("configurational_temperature" in names) == (recorded is not None)
    assert ("gradient_temperature" in names) == bool(recorded)
    if not recorded:
        return
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=3, num_chains=2, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    found = mcmc.get_extra_fields(group_by_chain=True)
    assert found["kinetic_temperature"].shape == (2, 3)
    assert (found["kinetic_temperature"] > 0).all()


def test_of_two_blocks_the_temperatures_are_those_of_the_uncorrected_one():
    def two():
        numpyro.sample("a", dist.Normal(0, numpyro.sample("scale", dist.LogNormal())))

    blocks = [(bnn.MALA(two, step_size=1e-3), ["a"]), (bnn.BAOAB(two, step_size=0.1), ["scale"])]
    for order in (blocks, blocks[::-1]):
        mcmc = bnn.MCMC(Gibbs(order), num_warmup=0, num_samples=3, progress_bar=False)
        mcmc.run(jax.random.key(0))
        found = mcmc.get_extra_fields()
        # MALA has no momenta.
        assert (found["kinetic_temperature"] > 0).all()
    corrected = Gibbs([blocks[0], (bnn.MALA(two, step_size=0.1), None)])
    mcmc = bnn.MCMC(corrected, num_warmup=0, num_samples=3, progress_bar=False)
    with pytest.raises(ValueError, match="extra_fields names 'step_size', which the state"):
        mcmc.run(jax.random.key(0), extra_fields=("step_size",))


def test_a_hot_run_says_so_and_one_with_its_noise_taken_off_does_not():
    mean, _ = linear.posterior(*DATA)
    start = {
        linear.KERNEL: jnp.tile(mean[:3, None], (2, 1, 1)),
        linear.BIAS: jnp.tile(mean[3:], (2, 1)),
    }

    def run(**options):
        kernel = bnn.BAOAB(linear.model, batch_size=5, **options)
        mcmc = bnn.MCMC(
            kernel, num_warmup=400, num_samples=2000, thinning=10, num_chains=2, progress_bar=False
        )
        mcmc.run(jax.random.key(0), *DATA, init_params=start)
        return temperature_of_momenta(mcmc.get_extra_fields(group_by_chain=True))

    with pytest.warns(UserWarning, match="Momenta of this run are .* times as warm as asked for"):
        hot, _ = run(step_size="auto")
    assert hot > 1.5
    value, _ = run(step_size="auto", gradient_noise="auto")
    assert value == pytest.approx(1, abs=0.1)
