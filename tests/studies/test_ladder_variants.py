"""Ladders of the study `ladders` keep the density of every rung: known distributions, before and after."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import gammaln
from ladders import check_evidence, errors_of, hierarchical, hierarchy, hmc, sampler
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks.mixing import ladder_annealed, ladder_variants, ladders
from benchmarks.mixing.ladder_reference import ReferenceRedraw, log_moments, with_reference
from numpyro_bnn.samplers.tempering.rung_kernels import RungKernel

# -- a learned reference ----------------------------------------------------------------------------

PRECISIONS = ("net/Dense_0.kernel.precision", "net/Dense_0.bias.precision")
# Far from prior and posterior: what is wrong of the reference is seen.
MOMENTS = dict.fromkeys(PRECISIONS, (1.0, 0.7))


@pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "with weights"])
def test_a_ladder_from_a_reference_has_the_evidence_and_the_posterior_of_the_model(integrated):
    data, evidence, mean, slope = hierarchy()
    model = bnn.integrate_output(hierarchical) if integrated else hierarchical
    again = [] if integrated else [ReferenceRedraw(hierarchical, MOMENTS)]
    tempered = with_reference(model, MOMENTS)
    mcmc = sampler(bnn.ParallelTempering(tempered, hmc(tempered, 4), 5, moves=again))
    mcmc.run(jax.random.key(2), *data)
    check_evidence(mcmc, evidence)
    draws = mcmc.get_samples(group_by_chain=True)
    assert errors_of(np.log(draws[PRECISIONS[0]]), mean) < 4
    assert errors_of(draws["net/Dense_0.kernel"][..., 0, 0], slope) < 4


def density(model, data):
    """The log density of a rung, by the logarithms of two precisions and the power, at weights of zero."""
    potential = bnn.potential_of(model, *data)
    structure = potential.structure
    weights = {n: jnp.zeros(structure.shapes[n]) for n in structure.latent if n not in PRECISIONS}

    @jax.jit
    def at(logs, power):
        prior, likelihood = potential.tempered(weights | dict(zip(PRECISIONS, logs)))
        return -prior - likelihood(power)

    return at


@pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "with weights"])
def test_the_ratio_of_prior_and_reference_is_tempered_with_the_likelihood(integrated):
    """Against the density of the model and of both distributions, at three powers."""
    data = hierarchy()[0]
    model = bnn.integrate_output(hierarchical) if integrated else hierarchical
    logs = jnp.array([0.4, -1.3])
    distribution = dist.Gamma(2.0, 1.0)
    by_distribution = [
        sum(one.log_prob(value) for value in jnp.exp(logs))
        for one in (distribution, dist.LogNormal(*MOMENTS[PRECISIONS[0]]))
    ]
    plain, found = density(model, data), density(with_reference(model, MOMENTS), data)
    for power in (0.0, 0.3, 1.0):
        expected = plain(logs, power) + (1 - power) * (by_distribution[1] - by_distribution[0])
        np.testing.assert_allclose(found(logs, power), expected, rtol=1e-4)
    # The Gamma conditionals and draws of the package are for the prior of the model.
    assert not bnn.potential_of(with_reference(model, MOMENTS), *data).structure.levels


def test_moments_are_those_of_logarithms():
    draws = {"a": np.exp([[1.0, 3.0]]), "b": np.array([[2.0, 2.0]])}
    found = log_moments(draws, ["a", "b"])
    np.testing.assert_allclose(found["a"], (2.0, 1.0))
    np.testing.assert_allclose(found["b"], (np.log(2.0), 0.05))


# -- exchanged units --------------------------------------------------------------------------------

SHAPES = {"in": (2, 3), "bias": (3,), "out": (3, 2)}
UNITS = ((("in", -1), ("bias", -1), ("out", -2)), (("out", -1),))
POWERS = np.array([0.0, 0.1, 0.4, 1.0])
REPLICAS = 6000


def features():
    """Of a target that is linear in 15 numbers, so that every rung is Gaussian; and the target."""
    rng = np.random.default_rng(1)
    return 0.8 * rng.normal(size=(6, 15)), rng.normal(size=6)


def linear():
    values = [
        numpyro.sample(n, dist.Normal(0, 1).expand(s).to_event(len(s))) for n, s in SHAPES.items()
    ]
    by, y = features()
    mean = jnp.asarray(by) @ jnp.concatenate([value.reshape(-1) for value in values])
    with numpyro.plate("data", 6):
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=jnp.asarray(y))


def distribution_of_rung(power):
    """Mean and covariance of the Gaussian of a rung."""
    by, y = features()
    covariance = np.linalg.inv(np.eye(15) + power * by.T @ by / 0.25)
    return covariance @ by.T @ y * power / 0.25, covariance


def exact_draws(rng):
    """Independent states of all rungs: leaves (replica, rung, …)."""
    flat = np.stack(
        [rng.multivariate_normal(*distribution_of_rung(b), REPLICAS) for b in POWERS], 1
    )
    ends = np.cumsum([np.prod(shape) for shape in SHAPES.values()])[:-1]
    parts = np.split(flat, ends, -1)
    return {n: jnp.asarray(p.reshape(*p.shape[:2], *s)) for p, (n, s) in zip(parts, SHAPES.items())}


def flattened(z):
    return np.concatenate([np.asarray(z[n]).reshape(*z[n].shape[:2], -1) for n in SHAPES], -1)


def largest_error(flat):
    """Means and squares of all numbers on all rungs against the exact ones, in Monte Carlo errors."""
    worst = 0.0
    for k, power in enumerate(POWERS):
        mean, covariance = distribution_of_rung(power)
        eigen, axes = np.linalg.eigh(covariance)
        standard = (flat[:, k] - mean) @ axes / np.sqrt(eigen)
        worst = max(worst, np.abs(standard.mean(0)).max() * REPLICAS**0.5)
        worst = max(worst, np.abs((standard**2).mean(0) - 1).max() * (REPLICAS / 2) ** 0.5)
    return worst


@pytest.mark.parametrize("parity", [0, 1])
def test_exchanged_units_keep_the_density_of_every_rung(parity):
    """From independent exact draws, so that errors are those of as many independent numbers."""
    potential = bnn.potential_of(linear)
    z = exact_draws(np.random.default_rng(2))
    powers = jnp.asarray(POWERS)

    @jax.jit
    @jax.vmap
    def exchange(key, z):
        energies = jax.vmap(lambda b, one: ladder_variants.energy(potential, b, one))(powers, z)
        return ladder_variants.exchanged(potential, UNITS, key, powers, parity, z, energies)

    new, energies = exchange(jax.random.split(jax.random.key(0), REPLICAS), z)
    before, after = flattened(z), flattened(new)
    # 120 numbers: one of them is 4.5 errors off by chance in 1200 times.
    assert largest_error(before) < 4.5
    assert largest_error(after) < 4.5
    moved = (before != after).mean(0)
    # Whole units: the bias belongs to the first layer alone, of which one of three units is chosen.
    units = (before != after).reshape(REPLICAS, 4, 15)
    of_bias = units[:, :, 6:9]
    assert (of_bias.sum(-1) <= 1).all()
    assert (units[:, :, :6].reshape(REPLICAS, 4, 2, 3).any(2) == of_bias).all()
    # Weights out of a unit go with it; those into the next layer's units are exchanged alone too.
    assert (units[:, :, 9:].reshape(REPLICAS, 4, 3, 2).all(-1) >= of_bias).all()
    paired = [True] * 4 if parity == 0 else [False, True, True, False]
    assert ((moved.max(-1) > 0) == paired).all()
    pair = (0, 1) if parity == 0 else (1, 2)
    # What one of a pair gets is what the other gives away.
    np.testing.assert_allclose(before[:, pair].sum((1, 2)), after[:, pair].sum((1, 2)), atol=1e-4)
    share = units[:, pair[0]].any(-1).mean()
    assert 0.05 < share < 0.95
    found = jax.vmap(jax.vmap(lambda b, one: ladder_variants.energy(potential, b, one)), (None, 0))(
        powers, new
    )
    np.testing.assert_allclose(found, energies, rtol=1e-4, atol=1e-4)


LINEAR_UNITS = ((("net/Dense_0.kernel.base", -1), ("net/Dense_0.bias.base", -1)),)


def test_a_ladder_with_exchanged_units_has_the_evidence_and_the_posterior_of_the_model():
    data, evidence, mean, slope = hierarchy()
    kernel = ladder_variants.ExchangedUnits(
        hierarchical, hmc(hierarchical, 3), num_rungs=7, layers=LINEAR_UNITS
    )
    mcmc = sampler(kernel)
    mcmc.run(jax.random.key(2), *data)
    check_evidence(mcmc, evidence)
    draws = mcmc.get_samples(group_by_chain=True)
    assert errors_of(np.log(draws[PRECISIONS[0]]), mean) < 4
    assert errors_of(draws["net/Dense_0.kernel"][..., 0, 0], slope) < 4


# -- step sizes by position -------------------------------------------------------------------------

# log of a Gamma(SHAPE) number: nearly flat on one side, a wall on the other.
SHAPE = 0.5
STARTS = 200_000


def wall(z):
    """-log density of independent log-Gamma numbers."""
    return jnp.sum(jnp.exp(z) - SHAPE * z + gammaln(SHAPE))


def test_steps_by_position_keep_the_density_where_curvatures_differ():
    """One trajectory from exact draws: all moments, and the probability of the wall, are kept."""
    key_start, key = jax.random.split(jax.random.key(0))
    start = jax.random.loggamma(key_start, SHAPE, (STARTS, 2))
    mover = ladder_variants.StepByPosition(0.8, 5)
    moved = jax.jit(jax.vmap(lambda z, k: mover.move(wall, z, k, jnp.asarray(1.5), jnp.ones(2))))(
        start, jax.random.split(key, STARTS)
    )
    before, after = np.asarray(start, np.float64), np.asarray(moved.position, np.float64)
    share = (before != after).any(-1).mean()
    assert 0.3 < share < 0.95
    for statistic in (
        lambda z: z,
        lambda z: z**2,
        lambda z: np.exp(z),
        lambda z: z > 0.5,
        lambda z: z < -3,
    ):
        change = (statistic(after) * 1.0 - statistic(before)).sum(-1)
        assert abs(change.mean()) < 4.5 * change.std() / STARTS**0.5


def test_a_small_step_is_hmc_and_a_large_one_is_halved():
    """Where no error is large no step is halved; on a stiff quadratic the first step must be."""
    mover, plain = ladder_variants.StepByPosition(0.8, 20), RungKernel(0.8, 20)
    keys = jax.random.split(jax.random.key(1), 500)
    start = jax.random.normal(jax.random.key(2), (500, 3))

    def accepted(mover, step):
        def one(z, key):
            return mover.move(lambda q: jnp.sum(q**2) / 2, z, key, jnp.asarray(step), jnp.ones(3))

        return jax.vmap(one)(start, keys).accept_prob.mean()

    assert accepted(mover, 0.05) > 0.98
    # A leapfrog step above 2 is unstable.
    assert accepted(plain, 3.0) < 0.4
    assert accepted(mover, 3.0) > accepted(plain, 3.0) + 0.2


# -- starts by sequential Monte Carlo -----------------------------------------------------------------


def test_particles_have_the_distribution_of_their_rung():
    """Of 300 annealed runs; one step a stage moves little, so that weights must do the work."""
    potential = bnn.potential_of(linear)
    mover = RungKernel.of(HMC(linear, num_steps=4, trajectory_length=None), linear)
    assert ladder_annealed.steps_a_stage(mover) == 1
    runs, rungs = 300, 6
    keys = jax.random.split(jax.random.key(0), runs)
    z = jax.jit(jax.vmap(lambda k: ladder_annealed.annealed(potential, mover, k, rungs)))(keys)
    flat = flattened(z)
    for k, power in enumerate(np.linspace(0, 1, rungs) ** 8):
        mean, covariance = distribution_of_rung(power)
        eigen, axes = np.linalg.eigh(covariance)
        standard = (flat[:, k] - mean) @ axes / np.sqrt(eigen)
        # 64 particles have a bias of some hundredths.
        assert np.abs(standard.mean(0)).max() < 4 / runs**0.5 + 0.05
        assert np.abs((standard**2).mean(0) - 1).max() < 4.5 * (2 / runs) ** 0.5 + 0.1


def test_a_ladder_begins_at_particles_and_with_larger_steps():
    data = hierarchy()[0]

    class Both(ladder_variants.StepsByPosition, ladder_variants.SMCStarts):
        """As in `Together`."""

    kernel = Both(hierarchical, hmc(hierarchical, 4), num_rungs=3)
    potential = bnn.potential_of(hierarchical, *data)
    structure = potential.structure
    start = {name: jnp.zeros(structure.shapes[name]) for name in structure.latent}
    state = jax.jit(lambda key: kernel.init(key, 10, start, data, {}))(jax.random.key(0))
    rungs = np.concatenate([np.asarray(v).reshape(3, -1) for v in state.rungs.values()], 1)
    assert len(np.unique(rungs, axis=0)) == 3
    assert (rungs != 0).all()
    for name, leaf in state.rungs.items():
        np.testing.assert_array_equal(state.z[name], leaf[-1])
    np.testing.assert_allclose(state.potential_energy, potential(state.z), rtol=1e-5)
    np.testing.assert_allclose(state.adaptation.step_size, 0.4)


# -- shapes, and what they cost -----------------------------------------------------------------------


def test_each_move_gives_states_of_the_shapes_that_it_was_given():
    """What they do to a distribution takes a compilation each, and is tested weekly."""
    potential = bnn.potential_of(linear)
    rungs, powers = len(POWERS), jnp.asarray(POWERS)
    key = jax.random.key(0)
    z = {name: jnp.zeros((rungs, *shape)) for name, shape in SHAPES.items()}

    def exchange(z):
        energies = jax.vmap(lambda b, one: ladder_variants.energy(potential, b, one))(powers, z)
        return ladder_variants.exchanged(potential, UNITS, key, powers, 0, z, energies)

    new, energies = jax.eval_shape(exchange, z)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, z)
    assert energies.shape == (rungs,)
    mover = RungKernel.of(HMC(linear, num_steps=4, trajectory_length=None), linear)
    start = jax.eval_shape(lambda: ladder_annealed.annealed(potential, mover, key, rungs))
    assert jax.tree.map(jnp.shape, start) == jax.tree.map(jnp.shape, z)
    by_position = ladder_variants.StepByPosition(0.8, 5)
    end = jax.eval_shape(
        lambda x: by_position.move(wall, x, key, jnp.asarray(1.5), jnp.ones(2)), jnp.zeros(2)
    )
    assert end.position.shape == (2,)


def test_gradients_are_counted():
    def plain():
        numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal()), 1.0), obs=0.0)

    def ladder(kind, **options):
        return kind(plain, hmc(plain, 64), num_rungs=24, **options)

    steps = np.full((4, 23), 0.1)
    assert ladder(ladder_variants.Variant).gradients_a_sweep(steps) == 23 * 64
    exchanging = ladder(ladder_variants.ExchangedUnits, layers=UNITS)
    assert exchanging.gradients_a_sweep(steps) == 23 * 64 + 9 * 24
    together = ladder(ladder_variants.Together, layers=UNITS)
    assert together.gradients_a_sweep(steps) == 23 * (64 + 12) + 9 * 24
    # 64 particles at four powers a rung: 16 steps, and two energies for the weight.
    assert together.gradients_of_particles == 64 * 4 * 23 * (16 + 2)
    mams = ladder_variants.Variant(plain, bnn.MAMS(plain, max_num_steps=64), num_rungs=24)
    rule = mams._rung_kernel.random_length
    keys = jax.random.split(jax.random.key(0), 4000)
    steps = np.tile(np.linspace(0.02, 0.2, 23), (4, 1))
    drawn = jax.vmap(lambda k: jax.vmap(lambda h: rule.draw_num_steps(k, h))(steps[0]))(keys)
    times = np.asarray(mams._rung_kernel.trajectories_per_sweep(steps[0]))
    expected = (np.asarray(drawn).mean(0) * times).sum()
    np.testing.assert_allclose(mams.gradients_a_sweep(steps), expected, rtol=0.05)
    assert set(ladder_variants.NAMES) < set(ladders.LADDERS)
