"""Models in several threads at once: whatever runs a model gives what it gives alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, MCMC, Predictive

import numpyro_bnn as bnn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(14, 2)).astype(np.float32)
Y = np.linspace(-1, 1, 14).astype(np.float32)
QUIET = {"num_warmup": 4, "num_samples": 6, "num_chains": 2, "progress_bar": False}


def own(x, y=None):
    """A model without network, with a site that other models have too."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slope, 0.5), obs=y)


def models():
    """Models with sites of equal names and other shapes, and their targets."""
    normal = bnn.priors.Normal(1.0)
    return [(bnn.classification(bnn.MLP((3,), 2), normal, X), (Y > 0).astype(int)), (own, Y)]


def draws_of(model, y, shift=0):
    """Made-up draws, (2, 100, …) by site: diagnoses need so many."""
    found = Predictive(model, num_samples=200)(jax.random.key(shift), X, y)
    sites = numpyro.handlers.trace(numpyro.handlers.seed(model, 0)).get_trace(X, y)
    latent = {k for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
    return {k: np.reshape(v, (2, 100, *v.shape[1:])) for k, v in found.items() if k in latent}


def predicted(model, y, drawn):
    return bnn.average(bnn.predict(model, drawn, X))


def diagnosed(model, y, drawn):
    report = bnn.diagnose(drawn, X[:9], model=model)
    return report.predictions.max_rhat, report.predictions.min_ess


def from_prior(model, y, drawn):
    return bnn.prior_predictive(model, jax.random.key(0), X, num_samples=5)


def described(model, y, drawn):
    return np.asarray(str(bnn.describe(model, X, y)))


def optimised(model, y, drawn):
    options = {"num_steps": 3, "num_chains": 2, "progress_bar": False}
    return bnn.optimize(model, jax.random.key(0), X, y, **options)


def sampled(model, y, drawn):
    mcmc = bnn.MCMC(bnn.BAOAB(model, step_size=1e-2), **QUIET)
    mcmc.run(jax.random.key(0), X, y, init_params=nets.starts(2, model, X, y))
    return mcmc.get_samples()


def sampled_by_numpyro(model, y, drawn):
    mcmc = MCMC(HMC(model, num_steps=2, trajectory_length=None), chain_method="vectorized", **QUIET)
    mcmc.run(jax.random.key(0), X, y)
    return mcmc.get_samples()


DOORS = [predicted, diagnosed, from_prior, described, optimised, sampled, sampled_by_numpyro]


def outcome(call):
    """What a call gives, or the error that it ends in."""
    door, model, y, drawn = call
    try:
        return door(model, y, drawn)
    except Exception as error:
        return error


@pytest.mark.parametrize("doors", [[predicted, from_prior], DOORS], ids=["two", "all"])
def test_doors_give_in_threads_what_they_give_alone(doors):
    """All of them, of all models, each in a thread of its own, at the same time."""
    calls = [(door, m, y, draws_of(m, y)) for door in doors for m, y in models()]
    with ThreadPoolExecutor(len(calls)) as pool:
        at_once = list(pool.map(outcome, calls))
    for (door, *given), found in zip(calls, at_once):
        assert not isinstance(found, Exception), (door.__name__, found)
        jax.tree.map(np.testing.assert_array_equal, found, door(*given))


def test_handlers_act_in_their_own_thread_alone():
    entered, leave, seen = threading.Event(), threading.Event(), []

    def holds_handlers():
        with numpyro.handlers.scope(prefix="other"), numpyro.handlers.mask(mask=False):
            entered.set()
            leave.wait(10)

    other = threading.Thread(target=holds_handlers)
    other.start()
    assert entered.wait(10)
    seen = numpyro.handlers.trace(numpyro.handlers.seed(own, 0)).get_trace(X, Y)
    assert list(seen) == ["slope", "data", "y"]
    leave.set()
    other.join()
    assert not numpyro.primitives._PYRO_STACK


def test_an_error_in_a_model_leaves_no_handler_behind():
    def broken(x, y=None):
        numpyro.sample("w", dist.Normal())
        raise ArithmeticError("broken")

    with (
        pytest.raises(ArithmeticError, match="broken"),
        numpyro.handlers.seed(rng_seed=0),
        numpyro.handlers.trace(),
    ):
        broken(X)
    assert not numpyro.primitives._PYRO_STACK


@pytest.mark.slow
def test_ten_thousand_calls_of_sixteen_threads_while_others_fit():
    """Two fitted models, 32 numbers of rows, and a fit in every fiftieth call."""
    built = models()
    drawn = [draws_of(model, y) for model, y in built]

    def call(kind):
        which, rows, fits = kind
        if fits:
            return sampled(*models()[which], None)
        return bnn.average(bnn.predict(built[which][0], drawn[which], np.resize(X, (rows, 2))))

    kinds = [(i % 2, i % 32 + 1, i % 50 > 47) for i in range(10_000)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(call, kinds))
    serial = {kind: call(kind) for kind in set(kinds)}
    for kind, answer in zip(kinds, found):
        jax.tree.map(np.testing.assert_array_equal, answer, serial[kind])
