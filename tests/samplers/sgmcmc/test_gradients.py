"""Gradient estimators: over all minibatches they average to the gradient, exactly.

The model has several data sets in its plate (a scalar, a vector and a matrix a row), a prior
that a wrong scale would show, and a site whose transform has a Jacobian.
"""

import itertools
from functools import cache
from math import gcd

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

from numpyro_bnn.potential.flat_position import by_site, flattened
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc import gradients
from numpyro_bnn.samplers.sgmcmc.gradients import BatchState, next_rows, shuffled

pytestmark = pytest.mark.usefixtures("double_precision")
SIZE = 6


def model(x, y, z):
    """Rows are a vector x, a scalar y and a matrix z."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 0.5).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.2, 0.7))
    with numpyro.plate("data", x.shape[0]):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        z = numpyro.subsample(z, event_dim=2)
        mean = jnp.tanh(x @ weights)
        numpyro.sample("y", dist.Cauchy(mean, scale), obs=y)
        spread = scale * jnp.ones((2, 3))
        numpyro.sample("z", dist.Normal(mean[:, None, None], spread).to_event(2), obs=z)


def some_slow(fast, slow):
    """All cases, the latter marked slow."""
    return [
        *fast,
        *(pytest.param(*np.atleast_1d(case).tolist(), marks=pytest.mark.slow) for case in slow),
    ]


@cache
def problem(size=SIZE):
    rng = np.random.default_rng(size)
    data = (rng.normal(size=shape) for shape in ((size, 2), (size,), (size, 2, 3)))
    potential = Potential(model, tuple(jnp.asarray(d) for d in data))
    rows = Rows(potential, *potential.data_plate())
    return rows, {"weights": jnp.array([0.3, -0.7]), "scale": jnp.array(0.4)}


def numbers(pair):
    return np.asarray(ravel_pytree(pair)[0])


@cache
def compiled(rows):
    return jax.jit(rows.full)


def exact(rows, position):
    """Value and gradient on all rows, in one program: op by op each would compile by itself."""
    return numbers(compiled(rows)(position))


@pytest.fixture(scope="module")
def estimate():
    """Jit once for each estimator and size: (state, position) -> (value and gradient, state)."""
    made = {}

    def run(estimator, rows, state, position):
        key = (repr(estimator), rows.size)
        if key not in made:
            made[key] = jax.jit(lambda s, z: estimator.estimate(rows, z, s))
        result = made[key](state, position)
        return numbers((result.value, result.gradient)), result.state

    return run


def begun(estimator, rows, position, seed=0):
    return jax.jit(lambda z, key: estimator.init(rows, z, key))(position, jax.random.key(seed))


def over_epoch(estimate, estimator, rows, position, num_batches, start=None):
    state = begun(estimator, rows, position if start is None else start, seed=3)
    values = []
    for _ in range(num_batches):
        value, state = estimate(estimator, rows, state, position)
        values.append(value)
    return np.stack(values)


def test_rows_drawn_with_replacement_average_to_the_gradient():
    """By enumeration of every pair of rows, repeated ones too."""
    rows, position = problem()
    some = jax.jit(lambda indices: rows.some(position, indices))
    pairs = itertools.product(range(SIZE), repeat=2)
    mean = np.mean([numbers(some(jnp.array(pair))) for pair in pairs], axis=0)
    np.testing.assert_allclose(mean, exact(rows, position), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (gradients.minibatch, "blocks"),
        (gradients.control_variate, "permutation"),
        pytest.param(gradients.minibatch, "permutation", marks=pytest.mark.slow),
        pytest.param(gradients.control_variate, "blocks", marks=pytest.mark.slow),
    ],
)
def test_the_batches_of_an_epoch_average_to_the_gradient(estimate, make, order):
    rows, position = problem()
    start = jax.tree.map(lambda leaf: leaf + 0.5, position)
    values = over_epoch(estimate, make(2, order=order), rows, position, SIZE // 2, start)
    assert np.ptp(values, axis=0).min() > 1e-3  # they do differ from batch to batch
    np.testing.assert_allclose(values.mean(0), exact(rows, position), rtol=0, atol=1e-10)


@pytest.mark.parametrize("period", [3, None], ids=["given", "as many steps as go through all rows"])
def test_svrg_averages_to_the_gradient_and_moves_its_anchor(estimate, period):
    rows, position = problem()
    estimator = gradients.svrg(2, period)
    state = begun(estimator, rows, position)
    away = jax.tree.map(lambda leaf: leaf - 0.4, position)
    for epoch, (anchor, z) in enumerate([(position, away), (away, position)]):
        # The first step of a period is at the new anchor, where nothing is left to estimate.
        value, state = estimate(estimator, rows, state, anchor)
        np.testing.assert_allclose(value, exact(rows, anchor), rtol=0, atol=1e-10)
        np.testing.assert_array_equal(state.anchor["weights"], anchor["weights"])
        assert int(state.batches.count) == 3 * epoch + 1
        for _ in range(2):
            _, state = estimate(estimator, rows, state, z)
    # Around a fixed anchor, over an epoch: periods longer than the epoch.
    slow = gradients.svrg(2, period=1000)
    state = begun(slow, rows, away)
    for _ in range(SIZE // 2):
        _, state = estimate(slow, rows, state, away)
    values = []
    for _ in range(SIZE // 2):
        value, state = estimate(slow, rows, state, position)
        values.append(value)
    np.testing.assert_allclose(np.mean(values, 0), exact(rows, position), rtol=0, atol=1e-10)


def test_a_control_variate_has_no_noise_at_its_anchor_and_less_near_it(estimate):
    rows, position = problem()
    near = jax.tree.map(lambda leaf: leaf + 0.01, position)
    plain = over_epoch(estimate, gradients.minibatch(2), rows, near, 3)
    corrected = over_epoch(estimate, gradients.control_variate(2), rows, near, 3, position)
    assert np.all(corrected.std(0) < 0.1 * plain.std(0))
    at = over_epoch(estimate, gradients.control_variate(2), rows, position, 3)
    np.testing.assert_allclose(at.std(0), 0.0, atol=1e-10)
    given = over_epoch(estimate, gradients.control_variate(2, near), rows, near, 3, position)
    np.testing.assert_allclose(given.std(0), 0.0, atol=1e-10)


@pytest.mark.parametrize("chunk_size", some_slow([1, 4, 50], [2, 6]))
def test_chunks_add_up_with_a_remainder_too(chunk_size):
    rows, position = problem()
    result = jax.jit(lambda z: gradients.full(chunk_size).estimate(rows, z, None))(position)
    found = numbers((result.value, result.gradient))
    np.testing.assert_allclose(found, exact(rows, position), rtol=0, atol=1e-10)


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_the_full_gradient_at_an_anchor_may_come_in_chunks(estimate, chunk_size):
    rows, position = problem()
    estimator = gradients.control_variate(2, chunk_size=chunk_size)
    values = over_epoch(estimate, estimator, rows, position, 1)
    np.testing.assert_allclose(values[0], exact(rows, position), rtol=0, atol=1e-10)


def test_the_likelihood_counts_n_over_b_times_and_the_prior_once():
    """In numbers worked out here, from log densities of one row at a time."""
    rows, position = problem()
    x, y, z = rows.potential.args

    @jax.jit
    def log_densities(weights, raw):
        scale = jnp.exp(raw)
        prior = dist.Normal(0, 0.5).log_prob(weights).sum() + dist.LogNormal(0.2, 0.7).log_prob(
            scale
        )
        prior += raw  # log |d scale / d raw|
        mean = jnp.tanh(x @ weights)
        by_row = dist.Cauchy(mean, scale).log_prob(y)
        return prior, by_row + dist.Normal(mean[:, None, None], scale).log_prob(z).sum((1, 2))

    prior, by_row = map(np.asarray, log_densities(position["weights"], position["scale"]))
    some = jax.jit(rows.some)
    for indices in ([4], [0, 3], [5, 1, 1, 2]):
        expected = -prior - SIZE / len(indices) * by_row[indices].sum()
        value, _ = some(position, jnp.array(indices))
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_consecutive_rows_are_sliced_and_give_what_gathering_does():
    rows, position = problem()
    indices = 2 + jnp.arange(3)
    sliced, gathered = (
        jax.make_jaxpr(lambda z, c=c: rows.some(z, indices, contiguous=c))(position)
        for c in (True, False)
    )
    assert "gather" not in str(sliced)
    assert "gather" in str(gathered)
    some = jax.jit(rows.some, static_argnames="contiguous")
    np.testing.assert_allclose(
        numbers(some(position, indices, contiguous=True)),
        numbers(some(position, indices, contiguous=False)),
        rtol=1e-13,
    )


@pytest.mark.parametrize("size", some_slow([1, 2, 5, 17, 64, 1000], [3, 4, 16, 63, 65]))
def test_shuffled_is_a_permutation(size):
    place = np.arange(size)

    @jax.jit
    @jax.vmap
    def run(key):
        return shuffled(key, place, size), shuffled(key, place[::3], size)

    orders, some = map(np.asarray, run(jax.random.split(jax.random.key(size), 200)))
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(place, (200, 1)))
    np.testing.assert_array_equal(some, orders[:, ::3])
    if size > 4:
        assert len(np.unique(orders, axis=0)) > 80


@pytest.mark.parametrize("size", [7, 100])
def test_shuffled_puts_every_row_in_every_place_and_pairs_apart(size):
    """Chi-square against uniform, by 5 sd: of places at any size, of pairs of places at 100.

    A cipher of four rounds on a handful of values is not uniform in pairs (off by a tenth at 7
    rows), which changes the covariance of the minibatch noise a little, and no mean.
    """
    draws = 20_000
    keys = jax.random.split(jax.random.key(0), draws)
    places = jnp.arange(4)
    orders = np.asarray(jax.jit(jax.vmap(lambda k: shuffled(k, places, size)))(keys))

    def excess(values, num_values):
        counts = np.bincount(np.unique(values, return_inverse=True)[1], minlength=num_values)
        expected = draws / num_values
        chi = np.sum((counts - expected) ** 2) / expected
        return (chi - (num_values - 1)) / np.sqrt(2 * (num_values - 1))

    assert all(excess(orders[:, place], size) < 5 for place in places)
    if size == 100:
        for a, b in ((0, 1), (1, 2), (0, 3)):
            assert excess(orders[:, a] * size + orders[:, b], size * (size - 1)) < 5


@pytest.mark.parametrize(
    ("size", "batch_size"), some_slow([(7, 3), (5, 5), (4, 1)], [(6, 2), (10, 4), (9, 8)])
)
def test_an_epoch_visits_every_row_once(size, batch_size):
    """Minibatches in a row are cut from epochs in a row, whether or not they divide them."""
    state = BatchState(jax.random.key(1), *3 * [jnp.zeros((), jnp.int32)])
    step = jax.jit(lambda s: next_rows(s, size, batch_size, "permutation"))
    num_epochs = 3 * batch_size // gcd(size, batch_size)
    seen = []
    for count in range(num_epochs * size // batch_size):
        assert int(state.count) == count
        rows, state = step(state)
        seen.append(np.asarray(rows))
    epochs = np.concatenate(seen).reshape(num_epochs, size)
    np.testing.assert_array_equal(np.sort(epochs, 1), np.tile(np.arange(size), (num_epochs, 1)))
    assert int(state.epoch) == num_epochs
    assert int(state.place) == 0
    if size > 5:
        assert len(np.unique(epochs, axis=0)) > 1


def test_blocks_are_neighbours_and_replacement_is_independent():
    state = BatchState(jax.random.key(1), *3 * [jnp.zeros((), jnp.int32)])
    step, seen = jax.jit(lambda s: next_rows(s, 12, 3, "blocks")), []
    for _ in range(8):
        rows, state = step(state)
        np.testing.assert_array_equal(np.diff(rows), 1)
        seen.append(int(rows[0]))
    assert sorted(seen[:4]) == sorted(seen[4:]) == [0, 3, 6, 9]
    keys = jax.random.split(jax.random.key(0), 4000)
    zero = jnp.zeros((), jnp.int32)
    draw = jax.vmap(lambda k: next_rows(BatchState(k, *3 * [zero]), 5, 2, "replacement"))
    rows, _ = jax.jit(draw)(keys)
    same = np.mean(np.asarray(rows[:, 0]) == np.asarray(rows[:, 1]))
    assert abs(same - 0.2) < 5 * np.sqrt(0.16 / 4000)


def init(estimator, model, *args):
    potential = Potential(model, args)
    rows = Rows(potential, *potential.data_plate())
    return estimator.init(rows, None, jax.random.key(0))


def plain(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=numpyro.subsample(y, event_dim=0))


Y = np.arange(10.0)


def test_sizes_that_do_not_fit_the_data_are_refused():
    with pytest.raises(ValueError, match=r"batch_size=11 is larger than the 10 rows.*'data'"):
        init(gradients.minibatch(11), plain, jnp.asarray(Y))
    with pytest.raises(ValueError, match=r"blocks of batch_size=4 .*10 rows.*batch_size=2"):
        init(gradients.minibatch(4, "blocks"), plain, jnp.asarray(Y))


def two_sites(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]).to_event(1))
    shift = numpyro.sample("shift", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        rows = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mean.sum() + shift, 1), obs=rows)


ANCHOR = {"mean": np.array([0.5, -1.0]), "shift": np.array(2.0)}
FORMS = {"by site": dict, "one vector": flattened}


def anchored(form, anchor):
    potential = Potential(two_sites, (jnp.asarray(Y),))
    rows = Rows(potential, *potential.data_plate(None))
    position = FORMS[form]({"mean": jnp.zeros(2), "shift": jnp.zeros(())})
    estimator = gradients.control_variate(4, anchor=anchor)
    return by_site(estimator.init(rows, position, jax.random.key(0)).gradient)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("anchor", "error", "message"),
    [
        (ANCHOR | {"mean": np.zeros((3, 2))}, TypeError, "cannot reshape array of shape"),
        (ANCHOR | {"mean": np.zeros(3)}, TypeError, "cannot reshape array of shape"),
        ({"mean": ANCHOR["mean"]}, KeyError, "shift"),
    ],
)
def test_anchors_of_other_sites_or_shapes_are_refused(form, anchor, error, message):
    with pytest.raises(error, match=message):
        anchored(form, anchor)


@pytest.mark.parametrize("form", FORMS)
def test_an_anchor_may_have_the_axis_of_one_chain(form):
    one = anchored(form, {name: value[None] for name, value in ANCHOR.items()})
    plain = anchored(form, ANCHOR)
    # The energy is (θ'θ + Σ (y - m)²)/2, and m = 1.5 at the anchor.
    slope = -(Y - 1.5).sum()
    for name in ANCHOR:
        np.testing.assert_allclose(one[name], ANCHOR[name] + slope, rtol=1e-5)
        np.testing.assert_array_equal(one[name], plain[name])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gradients.minibatch(3, "random"), r"order must be one of .*got 'random'"),
        (lambda: gradients.control_variate(2, chunk_size=0), "chunk_size must be .*got 0"),
        (lambda: gradients.control_variate(-2), "control_variate: batch_size .*got -2"),
        (lambda: gradients.svrg(2, 3, chunk_size=-4), "svrg: chunk_size must be .*got -4"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
