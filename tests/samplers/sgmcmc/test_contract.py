"""What every sampler does as a NumPyro kernel, over one catalogue.

A covering design, since each compiled run costs seconds: a run is vectorised, with thinning,
repetition, resumption and extra fields checked on that one program. Samplers that differ in what
they keep take turns at it, at placement, Gibbs, float64 and NumPyro's own MCMC in every change, and
all other pairs are marked slow.
"""

import itertools
from functools import cache

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from catalogue import SAMPLERS, SIZE, data, make
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer import CustomGibbs, Gibbs

import numpyro_bnn as bnn
from numpyro_bnn import MCMC
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.samplers.sgmcmc import named

WARMUP, SAMPLES, THINNING, CHAINS = 9, 8, 2, 2
EXTRA = ("mean_accept_prob", "kinetic_temperature", "count", "i", "exploded_at")
EXTRA += ("z.weights", "z.scale")


def some_fast(*fast):
    """All samplers, those not named marked slow."""
    unknown = set(fast) - set(SAMPLERS)
    assert not unknown, unknown
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in SAMPLERS]


def test_every_sampler_is_in_the_catalogue():
    exported = {
        getattr(bnn, name)
        for name in bnn.__all__
        if isinstance(getattr(bnn, name), type) and issubclass(getattr(bnn, name), bnn.SGMCMC)
    }
    defined = {
        value
        for value in vars(named).values()
        if isinstance(value, type) and issubclass(value, bnn.SGMCMC)
    }
    assert exported == defined
    assert exported - {bnn.SGMCMC} == {kernel for kernel, _ in SAMPLERS.values()}


def mcmc_of(kernel, method="vectorized", cls=MCMC, **more):
    settings = {"num_warmup": WARMUP, "num_samples": SAMPLES, "num_chains": CHAINS}
    return cls(
        kernel, chain_method=method, thinning=THINNING, progress_bar=False, **(settings | more)
    )


def starts():
    """One a chain: the prior draw of a Gamma costs more to compile than the sampler."""
    return {"weights": jnp.array([[0.3, 0.1], [1.0, -0.6]]), "scale": jnp.array([-0.5, 0.1])}


def chain(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@cache
def finished(name):
    """One vectorised run, its draws and fields as NumPy arrays."""
    mcmc = mcmc_of(make(name))
    mcmc.run(jax.random.key(0), *data(), extra_fields=EXTRA, init_params=starts())
    draws = jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))
    fields = jax.tree.map(np.asarray, mcmc.get_extra_fields(group_by_chain=True))
    return mcmc, draws, fields, mcmc.last_state


def repeated(mcmc, key):
    mcmc.run(key, *data(), extra_fields=EXTRA, init_params=starts())
    return jax.tree.map(np.asarray, mcmc.get_samples(group_by_chain=True))


def assert_same(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


# Those whose ingredients others of the list have too.
VARIANTS = {"SGLD exact", "PSGLD gamma", "BAOAB full in chunks", "SGLD polynomial", "SGNHT"}
VARIANTS |= {"SGLD accept=minibatch", "SGHMC blocks, noise known"}
VARIANTS |= {"GGMC exact by rmsprop", "MCLMC minibatch"}


@pytest.mark.parametrize(
    "name", some_fast("SGLD", "SGHMC cyclical", "MALA exact", "GGMC exact", "RandomWalk exact")
)
def test_a_run(name):
    """Number of draws, clocks, fields; the same key the same draws; resumption bit for bit."""
    mcmc, draws, fields, last = finished(name)
    kernel = mcmc.sampler
    shape = (CHAINS, SAMPLES // THINNING)
    assert draws["weights"].shape == (*shape, 2)
    assert draws["scale"].shape == shape
    assert np.all(draws["scale"] > 0)
    np.testing.assert_allclose(np.exp(fields["z.scale"]), draws["scale"], rtol=1e-5)
    assert not mcmc.left_out
    assert np.ptp(fields["z.weights"], axis=1).min() > 0  # every chain moves

    # Clocks: all steps, and those since the end of warm-up.
    np.testing.assert_array_equal(fields["i"], WARMUP + THINNING * np.arange(1, 5) * np.ones(shape))
    if "cyclical" in name:  # three steps of five explore and end in no draw
        steps = np.array([4, 1, 4, 1, 4, 1, 4, 1]).cumsum()[1::2]
        np.testing.assert_array_equal(fields["count"], np.tile(steps, (CHAINS, 1)))
    else:
        np.testing.assert_array_equal(fields["count"], fields["i"] - WARMUP)

    # Every field a user is promised, and what it says.
    expected = {"potential_energy", "step_size", "temperature"}
    expected |= {"configurational_temperature"} if kernel.dynamics.uses_gradient else set()
    expected |= {"kinetic_temperature"} if kernel.dynamics.has_momentum else set()
    metropolis = "accept_prob" in fields
    assert metropolis == ("exact" in name or "accept" in name)
    assert expected | set(EXTRA) <= set(fields)
    for field in expected:
        assert np.all(np.isfinite(fields[field])), field
    np.testing.assert_array_equal(fields["exploded_at"], -1)
    np.testing.assert_allclose(fields["temperature"], SAMPLERS[name][1].get("temperature", 1.0))
    given = SAMPLERS[name][1]["step_size"]
    if isinstance(given, float):
        np.testing.assert_allclose(fields["step_size"], given, rtol=1e-6)
    if given == "auto":
        assert np.all(fields["step_size"] == fields["step_size"][:, :1])  # frozen after warm-up
    potential = Potential(catalogue.model, data())
    z = {"weights": fields["z.weights"], "scale": fields["z.scale"]}
    energy = jax.jit(jax.vmap(jax.vmap(potential)))(z)
    close = np.allclose(fields["potential_energy"], energy, rtol=1e-5)
    # Of MCLMC on all rows the energy is exact, though its distribution is not.
    assert close == kernel.has_exact_energy == ("exact" in name or name == "MCLMC")
    one = chain(last, 0)
    text = kernel.get_diagnostics_str(one)
    assert f"step {float(one.step_size):.2e}" in text
    assert ("acc. prob" in text) == metropolis

    # The same key, the same draws; another key, others. One program serves all of this.
    assert_same(repeated(mcmc, jax.random.key(0)), draws, rtol=0)
    assert np.all(repeated(mcmc, jax.random.key(1))["scale"] != draws["scale"])
    mcmc.warmup(jax.random.key(0), *data(), extra_fields=EXTRA, init_params=starts())
    state = mcmc.post_warmup_state
    assert_same(repeated(mcmc, state.rng_key), draws, rtol=0)
    mcmc.post_warmup_state = mcmc.last_state
    assert np.all(np.asarray(mcmc.post_warmup_state.i) == WARMUP + SAMPLES)
    longer = repeated(mcmc, mcmc.last_state.rng_key)
    assert np.all(np.asarray(mcmc.last_state.i) == WARMUP + 2 * SAMPLES)
    assert np.all(np.isfinite(longer["weights"]))
    mcmc.post_warmup_state = None
    programs = list(mcmc._programs.values())
    assert len(programs) == 1
    assert len(programs[0].advance._executables) == 1


@pytest.mark.parametrize(
    ("name", "method"),
    [
        pair
        if pair in {("GGMC exact", "parallel"), ("RandomWalk exact", "sequential")}
        else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in itertools.product(SAMPLERS, ("parallel", "sequential"))
    ],
)
def test_draws_do_not_depend_on_where_chains_run(name, method):
    mcmc = mcmc_of(make(name), method)
    mcmc.run(jax.random.key(0), *data(), extra_fields=EXTRA, init_params=starts())
    draws = mcmc.get_samples(group_by_chain=True)
    assert_same(draws, finished(name)[1], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", some_fast("RandomWalk exact"))
@pytest.mark.parametrize(
    "method", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow)]
)
def test_numpyros_own_mcmc_runs_it(name, method):
    mcmc = mcmc_of(make(name), method, NumPyroMCMC)
    mcmc.run(jax.random.key(0), *data(), extra_fields=("count",), init_params=starts())
    draws = mcmc.get_samples(group_by_chain=True)
    assert_same(draws, finished(name)[1], rtol=2e-3, atol=2e-4)


def stepped(kernel, key, arguments, num_steps, init_params=None, num_warmup=0):
    """Steps of a kernel without any MCMC: the states of one chain."""

    @jax.jit
    def run(key):
        state = kernel.init(key, num_warmup, init_params, arguments, {})
        return jax.lax.scan(
            lambda s, _: 2 * (kernel.sample(s, arguments, {}),), state, None, num_steps
        )[1]

    return run(key)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", some_fast("AMAGOLD exact"))
def test_double_precision_is_kept(name):
    states = stepped(make(name), jax.random.key(0), data(), 3, chain(starts(), 0), num_warmup=5)
    for path, leaf in jax.tree_util.tree_leaves_with_path(states):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            assert leaf.dtype == jnp.float64, path


@pytest.mark.parametrize(
    "name",
    [
        "RandomWalk exact",
        pytest.param("BAOAB full in chunks", marks=pytest.mark.slow),
        pytest.param("MALA exact", marks=pytest.mark.slow),
    ],
)
def test_a_potential_function_in_place_of_a_model(name):
    """The target a tuple, which no model has; resumption asks for no start."""
    kernel, arguments = SAMPLERS[name]
    arguments = {k: v for k, v in arguments.items() if k != "gradient"}

    def potential(z):
        return 0.5 * jnp.sum(z[0] ** 2) + jnp.sum(jnp.exp(z[1]) - z[1])

    mcmc = mcmc_of(kernel(potential_fn=potential, **arguments))
    start = (jnp.zeros((CHAINS, 2)), jnp.ones((CHAINS, 1)))
    mcmc.run(jax.random.key(0), init_params=start)
    first = mcmc.get_samples(group_by_chain=True)
    assert first[0].shape == (CHAINS, SAMPLES // THINNING, 2)
    energy = jax.vmap(jax.vmap(potential))(first)
    if "exact" in name:
        recorded = mcmc.get_extra_fields(group_by_chain=True)["potential_energy"]
        np.testing.assert_allclose(recorded, energy, rtol=1e-5)
    mcmc.warmup(jax.random.key(0), init_params=start)
    mcmc.run(mcmc.post_warmup_state.rng_key)
    assert_same(mcmc.get_samples(group_by_chain=True), first, rtol=0)
    mcmc.post_warmup_state = None
    with pytest.raises(ValueError, match=r"potential_fn says nothing.*`init_params=`"):
        mcmc.run(jax.random.key(0))


def hierarchical(x, y):
    """The same regression with a precision of the weights that another block draws."""
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    prior = dist.Normal(0.0, 1 / jnp.sqrt(precision)).expand([2]).to_event(1)
    weights = numpyro.sample("weights", prior)
    scale = numpyro.sample("scale", dist.Gamma(4.0, 4.0))
    with numpyro.plate("data", x.shape[0]):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def draw_precision(rng_key, gibbs_sites, hmc_sites):
    weights = hmc_sites["weights"]
    rate = 1.0 + 0.5 * jnp.sum(weights**2)
    return {"precision": dist.Gamma(3.0, rate).sample(rng_key)}


@pytest.mark.parametrize("name", some_fast("SGNHT"))
def test_one_block_of_gibbs_with_minibatches(name):
    """What is cached follows the other block: energies are those of the state that is kept."""
    # The other block draws at temperature 1.
    own = {"temperature": 1.0} if "temperature" in SAMPLERS[name][1] else {}
    blocks = [
        (CustomGibbs(draw_precision), ["precision"]),
        (make(name, hierarchical, **own), ["weights", "scale"]),
    ]
    mcmc = mcmc_of(Gibbs(blocks), jax.vmap)
    fields = ("block_states.1.potential_energy", "block_states.1.z")
    start = {**starts(), "precision": jnp.zeros(CHAINS)}
    mcmc.run(jax.random.key(0), *data(), extra_fields=fields, init_params=start)
    draws = mcmc.get_samples(group_by_chain=True)
    assert set(draws) == {"precision", "weights", "scale"}
    assert np.all(np.asarray(draws["scale"]) > 0)
    extra = mcmc.get_extra_fields(group_by_chain=True)
    np.testing.assert_allclose(extra[fields[1]]["scale"], np.log(draws["scale"]), rtol=1e-4)
    assert len(np.unique(draws["precision"])) == draws["precision"].size
    if "exact" in name:
        potential = Potential(hierarchical, data())
        z = {**extra[fields[1]], "precision": jnp.log(draws["precision"])}
        # The precision is held by the block, so that its transform has no part in the energy.
        energy = jax.vmap(jax.vmap(potential))(z) + z["precision"]
        np.testing.assert_allclose(extra[fields[0]], energy, rtol=1e-4)


def test_a_kernel_in_two_mcmcs_keeps_their_warmups_apart():
    kernel = bnn.RandomWalk(potential_fn=lambda z: 0.5 * jnp.sum(z**2), step_size="auto")
    runs = []
    for num_warmup in (4, 12, 4):
        mcmc = mcmc_of(kernel, num_warmup=num_warmup)
        mcmc.run(jax.random.key(0), extra_fields=("count", "i"), init_params=jnp.ones((CHAINS, 1)))
        count = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["count"])
        np.testing.assert_array_equal(count[0], [2, 4, 6, 8])
        runs.append(np.asarray(mcmc.get_samples()))
    np.testing.assert_array_equal(runs[0], runs[2])
    assert np.all(runs[0] != runs[1])


def test_starts_are_where_init_params_say():
    """Unconstrained values of a model; with no step to speak of the chain stays there."""
    start = {"weights": jnp.array([0.3, 1.2]), "scale": jnp.log(jnp.array(0.6))}
    mcmc = mcmc_of(bnn.RandomWalk(catalogue.model, step_size=1e-6), num_chains=1)
    mcmc.run(jax.random.key(0), *data(), init_params=start)
    draws = mcmc.get_samples()
    np.testing.assert_allclose(draws["weights"][-1], start["weights"], atol=1e-4)
    np.testing.assert_allclose(draws["scale"], 0.6, atol=1e-4)


def test_a_plate_is_chosen_by_name_in_a_model_of_several():
    y = jnp.ones((6, 2))
    unnamed = mcmc_of(bnn.SGLD(catalogue.columns, step_size=0.01, batch_size=2))
    with pytest.raises(ValueError, match="say which one holds the rows with `plate=`"):
        unnamed.run(jax.random.key(0), y)
    states = stepped(
        bnn.SGLD(catalogue.columns, step_size=0.01, batch_size=2, plate="data"),
        jax.random.key(0),
        (y,),
        3,
    )
    assert states.z["mean"].shape == (3, 2)


def test_local_latents_and_plates_are_ordinary_under_full_batches():
    def local(y):
        with numpyro.plate("data", y.shape[0]):
            mean = numpyro.sample("mean", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    states = stepped(bnn.MALA(local, step_size=0.1), jax.random.key(0), (jnp.arange(4.0),), 3)
    assert states.z["mean"].shape == (3, 4)


@pytest.mark.parametrize("batch_size", [pytest.param(None, marks=pytest.mark.slow), SIZE])
def test_rmsprop_is_told_the_number_of_rows(batch_size):
    """Its metric is that of the mean loss, so that a step means what it does for an optimiser."""
    start = chain(starts(), 0)
    kernel = bnn.PSGLD(catalogue.model, step_size=1e-4, batch_size=batch_size)
    states = stepped(kernel, jax.random.key(0), data(), 1, start, num_warmup=3)
    gradient = jax.jit(jax.grad(Potential(catalogue.model, data())))(start)
    metric = kernel.preconditioner.inverse_mass_matrix(chain(states.preconditioner, 0))
    for site, g in gradient.items():
        np.testing.assert_allclose(metric[site], 1 / (1e-5 + jnp.abs(g) / SIZE), rtol=1e-3)
