"""Models and settings for which minibatches would be wrong are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_bnn.potential.flat_position import by_site, flattened
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc import gradients


def init(estimator, model, *args, plate=None):
    potential = Potential(model, args)
    rows = Rows(potential, *potential.data_plate(plate))
    return estimator.init(rows, None, jax.random.key(0))


def plain(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=numpyro.subsample(y, event_dim=0))


def two_plates(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    for name in ("first", "second"):
        with numpyro.plate(name, y.shape[0]):
            numpyro.sample(f"y_{name}", dist.Normal(mean, 1), obs=numpyro.subsample(y, event_dim=0))


Y = np.arange(10.0)


def test_a_plate_is_chosen_by_name():
    with pytest.raises(ValueError, match=r"which plate around observed sites, .* got 'third'"):
        init(gradients.minibatch(2), plain, jnp.asarray(Y), plate="third")
    with pytest.raises(ValueError, match="'y_second' is outside the plate 'first'"):
        init(gradients.minibatch(2), two_plates, jnp.asarray(Y), plate="first")


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
        (lambda: gradients.minibatch(0), "gradients.minibatch: batch_size must be .*got 0"),
        (lambda: gradients.minibatch(2.5), "batch_size must be a positive integer, got 2.5"),
        (lambda: gradients.minibatch(True), "batch_size must be a positive integer, got True"),
        (lambda: gradients.full(0), "gradients.full: .*got 0"),
        (lambda: gradients.full(-1), "gradients.full: chunk_size must be .*got -1"),
        (lambda: gradients.control_variate(2, chunk_size=0), "chunk_size must be .*got 0"),
        (lambda: gradients.control_variate(-2), "control_variate: batch_size .*got -2"),
        (lambda: gradients.svrg(0, 3), "gradients.svrg: batch_size .*got 0"),
        (lambda: gradients.svrg(2, 0), "gradients.svrg: period must be .*got 0"),
        (lambda: gradients.svrg(2, 3, chunk_size=-4), "svrg: chunk_size must be .*got -4"),
        (lambda: gradients.svrg(2, True), "gradients.svrg: period must be .*got True"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
