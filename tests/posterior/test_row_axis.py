"""The first axis of a target is that of the rows; whatever has them elsewhere, or nowhere, is refused."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_bnn as bnn

X = np.arange(1.0, 7.0, dtype=np.float32)[:, None]
W = {"w": np.array([[1.0, 2.0, -1.0]] * 2, np.float32)}
SLOPES = np.array([1.0, 10.0, 100.0], np.float32)


def slope():
    return numpyro.sample("w", dist.Normal())


def outputs_first(x, y=None, outputs=3):
    f = slope() * SLOPES[:outputs, None] * x[:, 0]
    with numpyro.plate("outputs", outputs, dim=-2), numpyro.plate("data", x.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(f, 1.0), obs=y)


def outputs_by_the_distribution(x, y=None):
    """The plate of rows alone, and another axis to the left of it by the distribution itself."""
    f = slope() * SLOPES[:, None] * x[:, 0]
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(f, 1.0), obs=y)


def one_output_first(x, y=None):
    w = slope()
    with numpyro.plate("outputs", 1, dim=-2), numpyro.plate("data", x.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)


def no_plate_no_rows(x, y=None):
    numpyro.sample("y", dist.Normal(slope(), 1.0), obs=y)


def squeezed(x, y=None):
    numpyro.sample("y", dist.Normal((x * slope()).squeeze(), 1.0), obs=y)


def computed(x, y=None):
    w = slope()
    numpyro.deterministic("turned", w * SLOPES[:, None] * x[:, 0])
    numpyro.deterministic("total", w * x.sum())
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)


AXIS = "Its first axis must be that of the rows"
# The model, its number of rows, options, and what the error says.
REFUSED = {
    "outputs first": (outputs_first, 5, {}, rf"shape \(3, 5\) at 5 rows\. {AXIS}.*`dim=-2`"),
    "as many outputs as rows": (outputs_first, 3, {}, rf"\(3, 3\) at 3 rows\. {AXIS}"),
    "as many as in a block": (outputs_first, 6, {"batch_size": 3}, rf"\(3, 3\) .*{AXIS}"),
    "by the distribution": (outputs_by_the_distribution, 3, {}, rf"\(3, 3\) .*{AXIS}"),
    "one output": (one_output_first, 3, {}, rf"shape \(1, 3\) at 3 rows\. {AXIS}"),
    "a number": (no_plate_no_rows, 3, {}, r"shape \(\) at 3 rows\. .*a plate of rows"),
    "a single row": (squeezed, 1, {}, r"shape \(\) at 1 rows.*`f\.squeeze\(-1\)`"),
    "computed, turned": (computed, 3, {"site": "turned"}, r"'turned' has shape \(3, 3\) at 3 rows"),
    "computed, one number": (computed, 3, {"site": "total"}, r"'total' has shape \(\) at 3 rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_target_without_rows_on_its_first_axis_is_refused(name):
    model, rows, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s)predict: .*{message}"):
        bnn.predict(model, W, X[:rows], **options)


def test_a_distribution_of_all_rows_together_has_no_density_of_each():
    def together(x, y=None):
        numpyro.sample("y", dist.Normal(x[:, 0] * slope(), 1.0).to_event(1), obs=y)

    predictions = bnn.predict(together, W, X)
    with pytest.raises(ValueError, match=r"of 6 rows .* shape \(\) .* a distribution of its own"):
        predictions.log_prob(X[:, 0])


def test_a_file_of_predictions_has_rows_first_too(tmp_path):
    with pytest.raises(ValueError, match=AXIS):
        bnn.export(bnn.Draws(W, outputs_first), X[:3], tmp_path / "f")


def test_a_density_of_all_rows_together_is_none_of_each():
    """As many rows as draws, so that draws could be taken for rows."""

    def process(x, y=None):
        covariance = jnp.exp(-jnp.square(x - x.T)) + jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(slope() * x[:, 0], covariance), obs=y)

    found = bnn.predict(process, W, X[:3])
    np.testing.assert_allclose(found.mean, W["w"][..., None] * X[:3, 0])
    with pytest.raises(ValueError, match=r"shape \(\) .*\(log_prob\).*a distribution of its own"):
        found.log_prob(np.zeros(3))


def rows_first(kind, outputs, x, y=None):
    f = slope() * x * SLOPES[:outputs]
    rows = numpyro.plate("data", x.shape[0], dim=-1 if kind == "event" else -2)
    if kind == "event":
        with rows:
            numpyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
    elif kind == "plates":
        with rows, numpyro.plate("outputs", outputs, dim=-1):
            numpyro.sample("y", dist.Normal(f, 1.0), obs=y)
    elif kind == "outputs alone":
        with numpyro.plate("outputs", outputs, dim=-1):
            numpyro.sample("y", dist.Normal(f, 1.0), obs=y)
    else:
        numpyro.sample("y", dist.Normal(f, 1.0), obs=y)


@pytest.mark.parametrize("kind", ["event", "plates", "outputs alone", "no plates"])
def test_rows_first_are_predicted_with_as_many_outputs_as_rows_too(kind):
    for outputs in (3, 2, 1):
        for rows, batch_size in ((3, 3), (5, 3), (4, 2), (1, 5)):
            x = X[:rows]
            model = partial(rows_first, kind, outputs)
            found = bnn.predict(model, W, x, batch_size=batch_size).mean
            expected = W["w"][..., None, None] * x * SLOPES[:outputs]
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_target_of_one_size_is_predicted_at_its_own_rows():
    """A model of rows that it knows itself: nothing of it changes with the inputs."""

    def schools(x, y=None):
        w = slope()
        with numpyro.plate("schools", 3):
            numpyro.sample("y", dist.Normal(w * SLOPES, 1.0), obs=y)

    expected = W["w"][..., None] * SLOPES
    np.testing.assert_allclose(bnn.predict(schools, W, X[:3]).mean, expected)
    with pytest.raises(ValueError, match=r"shape \(3,\) at 4 rows"):
        bnn.predict(schools, W, X[:4])


def test_a_model_of_a_fixed_number_of_rows_is_not_asked_for_fewer():
    """As many outputs as rows, and a table of all rows: with fewer the model fails."""
    table = X[:3] * np.ones(3, np.float32)

    def fixed(x, y=None):
        f = slope() * (x + table) * SLOPES
        with numpyro.plate("data", 3, dim=-2), numpyro.plate("outputs", 3, dim=-1):
            numpyro.sample("y", dist.Normal(f, 1.0), obs=y)

    expected = W["w"][..., None, None] * 2 * table * SLOPES
    np.testing.assert_allclose(bnn.predict(fixed, W, X[:3]).mean, expected, rtol=1e-6)
