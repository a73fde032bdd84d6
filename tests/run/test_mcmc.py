"""MCMC: exact posteriors, NumPyro's own draws, one compilation, and the refusals."""

import pickle
import signal
from operator import itemgetter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS
from numpyro.infer import MCMC as NumPyroMCMC
from small_models import network_model
from walker import Walk

import numpyro_bnn as bnn
from numpyro_bnn import priors

NOISE, SCALE = 0.5, 0.8
TRACES: list[int] = []


def make_data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(12, 2))
    return x, x @ [1.0, -0.5] + 0.3 + NOISE * rng.normal(size=12)


def model(x, y=None):
    """A linear model that counts how often Python runs it, abstract looks apart."""
    TRACES.append(1)
    nets.linear_regression(x, y, scale=SCALE, noise=NOISE)


def flat(samples):
    """Draws (chain, draw, weight)."""
    bias, kernel = samples["net/Dense_0.bias"], samples["net/Dense_0.kernel"]
    return np.concatenate([bias, kernel[..., 0]], -1).astype(np.float64)


def short(model=model, kernel=None, **options):
    """A few steps of a kernel that compiles fast."""
    kernel = bnn.RandomWalk(model, step_size=0.05) if kernel is None else kernel
    settings = {"num_warmup": 2, "num_samples": 7, "progress_bar": False} | options
    return bnn.MCMC(kernel, **settings)


# Of two chains and of one: looking for starts compiles for longer than the steps.
STARTS = {
    "net/Dense_0.bias": jnp.array([[0.1], [0.4]]),
    "net/Dense_0.kernel": jnp.array([[[0.8], [-0.3]], [[1.1], [-0.6]]]),
}
START = {site: values[0] for site, values in STARTS.items()}


@pytest.fixture(scope="module")
def data():
    return make_data()


@pytest.fixture(scope="module")
def two_chains(data):
    """The run that others are compared with: two chains on two devices."""
    mcmc = short(num_chains=2)
    mcmc.run(jax.random.key(3), *data, init_params=STARTS)
    assert mcmc.get_extra_fields()["accept_prob"].min() > 0.2  # so that the draws say something
    return mcmc


def test_draws_are_numpyros_own_thinned_or_not(data):
    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False}
    kernel = HMC(model, step_size=0.1, trajectory_length=0.3, **fixed)
    theirs = NumPyroMCMC(kernel, num_warmup=2, num_samples=7, num_chains=2, progress_bar=False)
    theirs.run(jax.random.key(3), *data, init_params=STARTS)
    expected = flat(theirs.get_samples(group_by_chain=True))
    ours = short(kernel=kernel, num_chains=2)
    ours.run(jax.random.key(3), *data, init_params=STARTS)
    np.testing.assert_allclose(flat(ours.get_samples(True)), expected, atol=2e-5)
    thinned = short(kernel=kernel, num_chains=2, thinning=3)
    thinned.run(jax.random.key(3), *data, init_params=STARTS)
    # NumPyro keeps the last draw of each three, after what does not divide: 3 and 6 of 0 to 6.
    np.testing.assert_allclose(flat(thinned.get_samples(True)), expected[:, [3, 6]], atol=2e-5)


@pytest.mark.parametrize("chain_method", ["sequential", "vectorized", jax.vmap])
def test_draws_do_not_depend_on_where_chains_run(data, two_chains, chain_method):
    mcmc = short(num_chains=2, chain_method=chain_method)
    mcmc.run(jax.random.key(3), *data, init_params=STARTS)
    for site, draws in mcmc.get_samples(group_by_chain=True).items():
        np.testing.assert_allclose(draws, two_chains.get_samples(True)[site], atol=2e-5)
    assert mcmc.get_extra_fields()["accept_prob"].shape == (14,)


@pytest.mark.parametrize("transform", [jax.jit, lambda of_key: jax.jit(jax.vmap(of_key))])
def test_a_run_may_be_transformed(data, transform):
    """A run inside `jit` or `vmap` gives its draws and fields there, as NumPyro's does."""

    def of_key(key):
        mcmc = short()
        mcmc.run(key, *data, init_params=START)
        return mcmc.get_samples() | {"accept_prob": mcmc.get_extra_fields()["accept_prob"]}

    keys = jax.random.split(jax.random.key(3), 2)
    one = transform is jax.jit
    found = transform(of_key)(keys[0] if one else keys)
    for number, key in enumerate(keys[:1] if one else keys):
        mine = found if one else jax.tree.map(itemgetter(number), found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), mine, of_key(key))


def test_chains_are_placed_by_a_rule(two_chains):
    assert two_chains.chain_method == "parallel"
    assert len(two_chains.last_state.z["net/Dense_0.bias"].devices()) == 2
    assert short(num_chains=4).chain_method == "parallel"
    assert short(num_chains=3).chain_method == "sequential"


def test_a_second_run_with_new_data_compiles_nothing(data, two_chains):
    (programs,) = two_chains._programs.values()
    before = (len(TRACES), len(programs.start._executables), len(programs.advance._executables))
    first = flat(two_chains.get_samples(True))
    try:
        two_chains.run(jax.random.key(3), *make_data(seed=1), init_params=STARTS)
        second = flat(two_chains.get_samples(True))
        two_chains.run(jax.random.key(4), *data, init_params=STARTS)
        third = flat(two_chains.get_samples(True))
    finally:
        two_chains.run(jax.random.key(3), *data, init_params=STARTS)
    assert len(two_chains._programs) == 1
    assert (len(programs.start._executables), len(programs.advance._executables)) == before[1:]
    # One abstract look a run, at concrete data; nothing is traced to be compiled.
    assert len(TRACES) == before[0] + 3
    np.testing.assert_array_equal(flat(two_chains.get_samples(True)), first)
    assert np.abs(second - first).max() > 0.01
    assert np.abs(third - first).max() > 0.01


def test_a_kernel_serves_several_runs(data, two_chains):
    again = bnn.MCMC(two_chains.sampler, num_warmup=0, num_samples=3, progress_bar=False)
    again.run(jax.random.key(0), *make_data(seed=2), init_params=START)
    before = flat(two_chains.get_samples(True))
    two_chains.run(jax.random.key(3), *data, init_params=STARTS)
    np.testing.assert_array_equal(flat(two_chains.get_samples(True)), before)


def test_a_run_resumes_where_the_last_one_ended(data):
    whole = short(num_warmup=3, num_samples=6)
    whole.run(jax.random.key(5), *data, init_params=START)
    parts = short(num_warmup=3, num_samples=3)
    parts.warmup(jax.random.key(5), *data, init_params=START)
    assert parts.get_samples()["net/Dense_0.bias"].shape == (0, 1)
    draws = []
    for _ in range(2):
        parts.run(parts.post_warmup_state.rng_key, *data)
        parts.post_warmup_state = parts.last_state
        draws.append(flat(parts.get_samples()))
    np.testing.assert_allclose(np.concatenate(draws), flat(whole.get_samples()), atol=1e-6)


def test_warmup_can_be_collected(data):
    mcmc = short(num_warmup=3)
    mcmc.warmup(jax.random.key(5), *data, collect_warmup=True, init_params=START)
    assert flat(mcmc.get_samples()).shape == (3, 3)
    whole = short(num_warmup=0, num_samples=3)
    whole.run(jax.random.key(5), *data, init_params=START)
    np.testing.assert_allclose(flat(mcmc.get_samples()), flat(whole.get_samples()), atol=1e-6)


def test_fields_are_collected_and_sites_left_out(data):
    mcmc = short(kernel=HMC(model, step_size=0.1, trajectory_length=0.3))
    fields = ("potential_energy", "z.net/Dense_0.bias", "~z.net/Dense_0.kernel")
    mcmc.run(jax.random.key(0), *data, extra_fields=fields, init_params=START)
    assert mcmc.get_samples().keys() == {"net/Dense_0.bias"}
    extra = mcmc.get_extra_fields()
    assert {"energy", "num_steps", "adapt_state.step_size", "diverging"} <= extra.keys()
    np.testing.assert_array_equal(
        extra["z.net/Dense_0.bias"], mcmc.get_samples()["net/Dense_0.bias"]
    )
    with pytest.raises(
        ValueError, match=r"extra_fields names 'p', which the state .* has .*energy"
    ):
        mcmc.run(jax.random.key(0), *data, extra_fields="potential_energy")


def test_the_run_survives_pickling(data, two_chains):
    copy = pickle.loads(pickle.dumps(short()))
    copy.run(jax.random.key(0), *data, init_params=START)
    assert flat(copy.get_samples()).shape == (7, 3)


def test_a_single_chain_takes_starts_with_an_axis_of_one(data):
    draws, mcmc = [], short()
    for given in ({site: value[None] for site, value in START.items()}, START):
        mcmc.run(jax.random.key(0), *data, init_params=given)
        draws.append(flat(mcmc.get_samples()))
    np.testing.assert_array_equal(*draws)


@pytest.mark.parametrize("num_chains", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_trained_weights_start_a_hierarchical_model(data, num_chains):
    hierarchical = network_model(nets.Linear(), priors.Hierarchical(), noise=NOISE)
    params = {"Dense_0": {"kernel": np.array([[1.0], [2.0]]), "bias": np.array([3.0])}}
    trained = bnn.from_params(jax.tree.map(lambda v: np.stack([v] * num_chains), params))

    class Still(HMC):
        """Stays where it starts."""

        def sample(self, state, model_args, model_kwargs):
            return state

    mcmc = bnn.MCMC(
        Still(hierarchical), num_warmup=0, num_samples=1, num_chains=num_chains, progress_bar=False
    )
    mcmc.run(jax.random.key(0), *data, init_params=trained)
    samples = mcmc.get_samples()
    for chain in range(num_chains):
        np.testing.assert_allclose(samples["net/Dense_0.kernel"][chain], [[1.0], [2.0]], rtol=1e-4)
        precision = samples["net/Dense_0.kernel.precision"][chain]
        assert precision == pytest.approx((1 + 2 / 2) / (1 + 5 / 2), rel=1e-4)


def test_a_start_without_finite_energy_names_the_chain_and_the_site(data):
    def bounded(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(jnp.log(w), 1).expand([12]).to_event(), obs=y)

    starts = {"w": jnp.array([1.0, -1.0])}
    mcmc = short(model=bounded, num_chains=2)
    with pytest.raises(ValueError, match=r"Chain 1 starts .*not finite.*\{'y': nan\}"):
        mcmc.run(jax.random.key(0), *data, init_params=starts)


@pytest.mark.parametrize("total", [lambda y: y.sum(), np.sum])
def test_branching_on_data_is_explained(data, total):
    def branching(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        shift = 1.0 if total(y) > 0 else 0.0
        numpyro.sample("y", dist.Normal(w + shift, 1).expand([12]).to_event(), obs=y)

    def optimize(key, *data):
        bnn.optimize(branching, key, *data, progress_bar=False)

    for fit in (short(model=branching).run, optimize):
        with pytest.raises(TypeError, match=r"(?i)traced|tracer") as error:
            fit(jax.random.key(0), *data)
        notes = " ".join(error.value.__notes__)
        assert "compiles the model with its data as arguments" in notes
        assert "`jax.numpy`" in notes


def test_floats_as_indices_are_explained(data):
    def grouped(x, y):
        effects = numpyro.sample("effects", dist.Normal().expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(effects[x[:, 0]], 1).to_event(1), obs=y)

    with pytest.raises(TypeError, match="Indexer must have integer") as error:
        short(model=grouped).run(jax.random.key(0), *data)
    assert "take `.astype(int)` in the model" in " ".join(error.value.__notes__)


def walk(starts, **options):
    settings = {"num_warmup": 0, "num_samples": 6, "progress_bar": False} | options
    mcmc = bnn.MCMC(Walk(), num_chains=len(starts), **settings)
    mcmc.run(jax.random.key(0), init_params=jnp.asarray(starts))
    return mcmc


@pytest.mark.parametrize("chain_method", ["parallel", "vectorized", "sequential"])
def test_a_chain_that_explodes_is_left_out(chain_method):
    with pytest.warns(UserWarning, match=r"Left out 2 of 4 chains \(chain 1: draw 3 is not fin"):
        mcmc = walk([1.0, -3.0, 2.0, -1.0], chain_method=chain_method)
    assert mcmc.left_out == {1: "draw 3 is not finite", 3: "draw 1 is not finite"}
    samples = mcmc.get_samples(group_by_chain=True)
    np.testing.assert_array_equal(samples, np.array([[1.0], [2.0]]) + 0.5 * np.arange(1, 7))
    assert mcmc.suspect == {}
    assert mcmc.get_samples().shape == (12,)


def test_a_run_of_which_no_chain_is_left_raises():
    with pytest.raises(RuntimeError, match=r"No chain stayed finite \(chain 0: draw 3"):
        walk([-3.0, -1.0])


def interrupt_at(mcmc, call):
    """Press Ctrl-C during the given call of the compiled steps, counted from 0."""
    (programs,) = mcmc._programs.values()
    advance, calls = programs.advance, []

    def bound(*args):
        steps = advance.bound(*args)

        def pressed():
            if len(calls) == call:
                signal.raise_signal(signal.SIGINT)
            calls.append(1)
            return steps()

        return pressed

    programs.advance = SimpleNamespace(
        bound=bound, text=advance.text, calls_host=advance.calls_host
    )


@pytest.mark.parametrize("starts", [[1.0], [1.0, 2.0, 3.0]])
def test_ctrl_c_keeps_the_draws_so_far_of_every_chain(starts):
    mcmc = walk(starts, num_warmup=2, progress_rate=1)
    # A call is a step; chains one after another take turns.
    interrupt_at(mcmc, (2 + 3) * len(starts) - 1)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.warns(UserWarning, match="Interrupted: kept 3 of 6 draws of each chain"):
        mcmc.run(jax.random.key(0), init_params=jnp.asarray(starts))
    assert signal.getsignal(signal.SIGINT) is handler
    kept = mcmc.get_samples(group_by_chain=True).reshape(len(starts), -1)
    # After two steps of warm-up.
    np.testing.assert_array_equal(kept, np.asarray(starts)[:, None] + 0.5 * np.arange(3, 6))


def test_ctrl_c_during_warmup_raises():
    mcmc = walk([1.0], num_warmup=4, progress_rate=2)
    interrupt_at(mcmc, 1)
    with pytest.raises(KeyboardInterrupt, match="during warm-up"):
        mcmc.run(jax.random.key(0), init_params=jnp.asarray([1.0]))


def test_it_tells_what_it_is():
    mcmc = bnn.MCMC(NUTS(model), num_warmup=2, num_samples=3)
    assert repr(mcmc) == "MCMC(NUTS, num_warmup=2, num_samples=3, num_chains=1, thinning=1)"
    of_ours = bnn.MCMC(bnn.MALA(model, step_size=0.5), num_warmup=2, num_samples=3, thinning=3)
    assert repr(of_ours).startswith("MCMC(MALA(model, ")
    assert repr(of_ours).endswith("num_chains=1, thinning=3)")
