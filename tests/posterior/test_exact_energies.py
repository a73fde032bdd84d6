"""Which energies are those of the draws: only these are exported as their log joint density."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn.posterior.arviz_export import from_inference_data, to_inference_data
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.samplers.gibbs.moves import Interleaved

X = np.array([1.0, 2.0, -1.0, 0.3], np.float32)
Y = np.array([1.0, 1.5, -1.0, 0.0], np.float32)


def model(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=0)
        targets = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(a + b * rows, 0.5), obs=targets)


def mirrored(key, values, bound):
    """A move that changes the energy."""
    return values | {"b": values["b"] + 0.5}


KERNELS = {
    "NUTS": (lambda: NUTS(model), True),
    "NUTS and moves": (lambda: Interleaved(NUTS(model), [mirrored]), True),
    "MALA": (lambda: bnn.MALA(model, step_size=0.1), True),
    "MALA and moves": (lambda: Interleaved(bnn.MALA(model, step_size=0.1), [mirrored]), True),
    "MCLMC": (lambda: bnn.MCLMC(model, step_size=0.3, friction=3.0), True),
    "SGLD": (lambda: bnn.SGLD(model, step_size=0.1), False),
    "SGLD with a decision on a minibatch": (
        lambda: bnn.SGLD(model, step_size=0.1, batch_size=2, accept="minibatch"),
        False,
    ),
    "SGLD with a decision on all rows": (
        lambda: bnn.SGLD(model, step_size=0.1, batch_size=2, accept="full"),
        True,
    ),
    "BAOAB": (lambda: bnn.BAOAB(model, step_size=0.2, friction=3.0), False),
    "BAOAB and moves": (
        lambda: Interleaved(bnn.BAOAB(model, step_size=0.2, friction=3.0), [mirrored]),
        False,
    ),
}


@pytest.fixture(scope="module", params=KERNELS)
def run(request, tmp_path_factory):
    kernel, exact = KERNELS[request.param]
    folder = tmp_path_factory.mktemp("draws") / "run"
    run = bnn.MCMC(kernel(), num_warmup=10, num_samples=20, progress_bar=False, draws=folder)
    start = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    run.run(jax.random.key(0), X, Y, init_params=start, extra_fields=("potential_energy",))
    return run, exact, folder


def exact_energies(draws):
    mean = np.asarray(draws["a"])[..., None] + np.asarray(draws["b"])[..., None] * X
    prior = 0.5 * (np.asarray(draws["a"]) ** 2 + np.asarray(draws["b"]) ** 2)
    constant = 3 * np.log(2 * np.pi) + 4 * np.log(0.5)
    return prior + 0.5 * np.square((Y - mean) / 0.5).sum(-1) + constant


def test_the_log_joint_of_an_export_is_that_of_its_draws(run):
    mcmc, exact, _ = run
    recorded = mcmc.get_extra_fields(group_by_chain=True)["potential_energy"]
    known = exact_energies(mcmc.get_samples(group_by_chain=True))
    assert np.allclose(recorded, known, atol=1e-3) == exact
    stats = to_inference_data(mcmc)["sample_stats"]
    assert ("lp" in stats, "potential_energy" in stats) == (exact, not exact)
    if exact:
        np.testing.assert_allclose(stats["lp"].values, -known, atol=1e-3)
    else:
        np.testing.assert_array_equal(stats["potential_energy"].values, recorded)
    if "energy" in stats:
        # It has the kinetic energy on top, also after a move.
        assert np.all(stats["energy"].values + stats["lp"].values >= 0)


def test_draws_know_it_wherever_they_were(run, tmp_path):
    mcmc, exact, folder = run
    draws = draws_of(mcmc)
    back = from_inference_data(to_inference_data(mcmc), model)
    again = bnn.load(bnn.save(mcmc, tmp_path / "draws"), model)
    for found in (draws, back, again, bnn.load(folder, model)):
        assert found.has_exact_energy == exact
        energy = np.asarray(found.stats["potential_energy"])
        np.testing.assert_array_equal(energy, np.asarray(draws.stats["potential_energy"]))


def test_a_report_compares_chains_by_exact_energies_alone(run):
    mcmc, exact, _ = run
    draws = draws_of(mcmc)
    # The number of steps, which any kernel may record, says nothing of the energy.
    stats = draws.stats | {"num_steps": np.ones((1, 20), int)}
    report = bnn.diagnose(bnn.Draws(draws, model, stats, draws.info), X)
    assert bool(report.log_joint) == exact


def test_a_figure_says_which_energies_it_shows(run):
    mcmc, exact, _ = run
    label = bnn.plots.plot_trace(mcmc).get_ylabel()
    assert ("last gradient" in label) != exact


@pytest.mark.parametrize(
    ("stats", "exact"),
    [({}, True), ({"num_steps": np.ones((1, 2))}, True), ({"temperature": np.ones((1, 2))}, False)],
)
def test_draws_that_do_not_say_it(stats, exact):
    """Only kernels of this package have a temperature, some of them an energy that is of no draw."""
    energy = {"potential_energy": np.zeros((1, 2))}
    draws = bnn.Draws({"a": np.zeros((1, 2)), "b": np.zeros((1, 2))}, None, stats | energy)
    found = to_inference_data(draws, log_likelihood=False)["sample_stats"]
    assert ("lp" in found) == exact
