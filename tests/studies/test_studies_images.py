"""Studies of MNIST images: their corruptions, priors and scores."""

import jax
import numpy as np
import pytest

from benchmarks._shared import mnist_posteriors
from benchmarks._shared.converged import rows_of
from benchmarks.predictions import corruptions, shift_by_prior


@pytest.fixture(scope="module")
def images():
    """Smooth blobs off the centre, black around, like digits."""
    rng = np.random.default_rng(0)
    i, j = np.mgrid[:28, :28]
    centres = rng.uniform(10, 18, (40, 2, 1, 1))
    width = rng.uniform(2, 5, (40, 2, 1, 1))
    blobs = np.exp(-(((i - centres[:, 0]) / width[:, 0]) ** 2))
    blobs *= np.exp(-(((j - centres[:, 1]) / width[:, 1]) ** 2))
    return np.where(blobs < 0.05, 0, blobs).reshape(40, 784).astype(np.float32)


@pytest.mark.parametrize("kind", corruptions.CORRUPTIONS)
def test_a_corruption_begins_at_the_image_grows_and_keeps_its_range(images, kind):
    by_severity = [corruptions.corrupted(images, kind, s) for s in corruptions.SEVERITIES]
    np.testing.assert_allclose(by_severity[0], images, atol=1e-6)
    distances = [np.sqrt(((x - images) ** 2).sum(1)) for x in by_severity]
    assert (np.diff(np.mean(distances, 1)) > 0.01).all()
    if kind in ("noise", "contrast", "occlusion"):
        # The same noise, means and patches: no image, and no pixel, comes back.
        apart = np.abs(np.stack(by_severity) - images)
        assert (np.diff(apart, axis=0) >= -1e-6).all()
    for x in by_severity:
        assert x.dtype == images.dtype
        assert x.shape == images.shape
        assert x.min() >= 0
        assert x.max() <= 1


def test_noise_has_its_standard_deviation_and_contrast_its_factor():
    grey = np.full((50, 784), 0.5, np.float32)
    for severity in (1, 2):
        spread = corruptions.corrupted(grey, "noise", severity).std()
        wanted = corruptions.NOISE[severity]
        # Clipped at five, and at two and a half, standard deviations: 1 - 0.0058 of the second.
        wanted *= {1: 1.0, 2: 0.9942}[severity]
        assert abs(spread - wanted) < 4 * wanted / np.sqrt(2 * grey.size)
    half = np.repeat([0.2, 0.8], 392)[None].astype(np.float32)
    for severity, factor in enumerate(corruptions.CONTRAST):
        found = np.unique(corruptions.corrupted(half, "contrast", severity))
        np.testing.assert_allclose(found, [0.5 - 0.3 * factor, 0.5 + 0.3 * factor], atol=1e-6)


@pytest.mark.parametrize("severity", range(6))
def test_a_shift_moves_a_dot_and_a_patch_has_its_side(severity):
    dots = np.zeros((30, 28, 28), np.float32)
    dots[:, 14, 14] = 1
    moved = corruptions.corrupted(dots.reshape(30, -1), "shift", severity).reshape(dots.shape)
    where = np.argwhere(moved > 0.5)
    assert len(where) == 30
    assert (np.abs(where[:, 1:] - 14).max(1) == corruptions.SHIFT[severity]).all()
    black = np.zeros((30, 784), np.float32)
    covered = corruptions.corrupted(black, "occlusion", severity).sum(1)
    assert (covered == corruptions.OCCLUSION[severity] ** 2).all()


def test_shifts_along_pixels_and_directions_stay_there_and_have_their_size(images):
    pixels = np.arange(784) % 3 == 0
    moved = corruptions.on_pixels(images * ~pixels, pixels, 2, count=100)
    change = moved - images * ~pixels
    assert (np.count_nonzero(change.any(0)), np.abs(change[:, ~pixels]).max()) == (100, 0)
    steps = change[change > 0]
    assert abs(steps.mean() - 0.2) < 4 * 0.4 / np.sqrt(12 * steps.size)
    directions = np.linalg.qr(np.random.default_rng(1).normal(size=(784, 5)))[0].T
    step = corruptions.along(images, directions, 3) - images
    np.testing.assert_allclose(step @ directions.T @ directions, step, atol=1e-5)
    square = (step**2).sum(1)
    assert abs(square.mean() - 9) < 4 * square.std() / np.sqrt(len(square))


def test_a_root_of_empcov_squares_to_its_covariance(images):
    root = mnist_posteriors.pixels_under("EmpCov", images).root.astype(np.float64)
    moments = images.T.astype(np.float64) @ images / len(images)
    covariance = root @ root.T
    # Of a Σ + ε I, entries off the diagonal give a; sums over an image then vary as under N(0, α²).
    off = ~np.eye(784, dtype=bool)
    a = (covariance * moments)[off].sum() / (moments**2)[off].sum()
    small = mnist_posteriors.SMALL * np.eye(784)
    np.testing.assert_allclose(covariance, a * moments + small, atol=1e-7)
    iso = mnist_posteriors.SCALE**2 * (images**2).sum(1).mean()
    empirical = ((images @ (covariance - small)) * images).sum(1).mean()
    np.testing.assert_allclose(empirical, iso, rtol=1e-4)


def test_null_components_are_those_that_no_row_has():
    x = np.zeros((20, 12))
    x[:, :4] = np.random.default_rng(0).normal(size=(20, 4))
    null, first = corruptions.null_and_first(x)
    assert (null.shape, first.shape) == ((8, 12), (4, 12))
    np.testing.assert_allclose(null @ x.T, 0, atol=1e-12)


def test_quality_by_hand():
    found = mnist_posteriors.quality(
        np.array([[0.5, 0.5], [0.1, 0.9], [1, 0]]), np.array([0, 1, 1])
    )
    assert found["error"] == pytest.approx(1 / 3)
    assert found["log score"] == pytest.approx(np.log([0.5, 0.9, 1e-30]).mean())


def test_runs_of_too_few_draws_are_not_called_converged():
    few = mnist_posteriors.convergence(np.full((2, 3, 4, 2), 0.5))
    assert mnist_posteriors.said_of("posterior", few["worst R-hat"]) == "too short"
    assert mnist_posteriors.said_of("posterior", 1.001) == "converged"
    assert mnist_posteriors.said_of("posterior", 1.2) == "not converged"
    assert mnist_posteriors.said_of("MAP", 0.0) == "no sampler"


def test_a_prior_along_centred_components_has_the_variance_of_the_other():
    x = np.random.default_rng(0).normal(1.0, [0.2, 0.5, 1.0, 0.0], (300, 4)).astype(np.float32)
    inputs = shift_by_prior.inputs_under(shift_by_prior.EMPCOV, x)
    np.testing.assert_allclose(inputs.shift, x.mean(0), rtol=1e-6)
    covariance, moments = inputs.root @ inputs.root.T, np.cov(x.T, bias=True)
    small = mnist_posteriors.SMALL * np.eye(4)
    a = (covariance - small)[1, 1] / moments[1, 1]
    np.testing.assert_allclose(covariance, a * moments + small, atol=1e-6)
    variance = shift_by_prior.EMPCOV_SCALE**2 * np.trace(moments)
    np.testing.assert_allclose(np.trace((covariance - small) @ moments), variance, rtol=1e-4)
    plain = shift_by_prior.inputs_under(0.1, x)
    np.testing.assert_allclose(plain.of(x), 0.1 * x, rtol=1e-6)


def test_probabilities_are_averaged_over_the_draws_of_each_chain():
    rng = np.random.default_rng(1)
    shapes = {"Dense_0.kernel": (3, 50), "Dense_0.bias": (50,)}
    shapes |= {"Dense_1.kernel": (50, 10), "Dense_1.bias": (10,)}
    w = {f"net/{k}": rng.normal(size=(2, 3, *s)).astype(np.float32) for k, s in shapes.items()}
    x = rng.normal(size=(4, 3)).astype(np.float32)
    hidden = np.maximum(x @ w["net/Dense_0.kernel"] + w["net/Dense_0.bias"][..., None, :], 0)
    logits = hidden @ w["net/Dense_1.kernel"] + w["net/Dense_1.bias"][..., None, :]
    expected = jax.nn.softmax(logits).mean(1)
    np.testing.assert_allclose(np.exp(shift_by_prior.log_averages(w, x)), expected, rtol=1e-4)


def test_differences_are_paired_by_image_and_joined_over_subsets():
    words, y = shift_by_prior, np.array([0, 1])
    logs = [np.log([[[0.6, 0.4], [0.7, 0.3]]]), np.log([[[0.4, 0.6], [0.2, 0.8]]])]
    one = words.by_image(logs, y)
    np.testing.assert_allclose(one.wrong, [0.5, 0.5])
    np.testing.assert_allclose(one.scores, np.log([0.24, 0.24]) / 2)
    other = words.ByImage(np.array([0.0, 1.0]), np.log([0.5, 0.25]), np.empty(0))
    row = words.beyond(one, other, "MAP")
    assert row["error beyond MAP"] == pytest.approx(0.0)
    assert row["error beyond MAP, se"] == pytest.approx(0.5)
    # Both are single networks.
    assert row["score beyond MAP, chains"] == 0
    where = {"rows": 3000, "kind": "blur"}
    rows = [{**where, "gap": gap, "gap, se": 0.3} for gap in (0.0, 0.8)]
    rows += [{**where, "kind": "noise", "gap": 9.0, "gap, se": 0.0}]
    # The spread of two subsets is 0.4, the error over images that they share 0.3.
    assert words.over_subsets(rows, "gap", where) == pytest.approx((0.4, 0.5))
    # A Monte Carlo error that one of the two has stands for both.
    rows[0]["gap, chains"] = 0.6
    assert words.over_subsets(rows, "gap", where).error == pytest.approx((0.5**2 + 0.18) ** 0.5)


def test_stored_rows_have_the_columns_of_new_ones():
    """Otherwise the command would refuse to add a cell to them."""
    logs = np.log([[[0.6, 0.4], [0.7, 0.3]]])
    one = shift_by_prior.by_image([logs], np.zeros(2, int))
    stored = rows_of("predictions/shift_by_prior")[0]
    for name in ("MAP", "ensemble"):
        assert set(shift_by_prior.beyond(one, one, name)) <= set(stored)


def test_scores_of_averages_have_the_monte_carlo_error_of_their_chains():
    """Log scores of chains that hardly differ have an average that is nearly linear in them."""
    words, rng = shift_by_prior, np.random.default_rng(3)
    y = np.zeros(4, int)
    right = 0.5 + 0.001 * rng.normal(size=(2, 6, 1)) + np.zeros((2, 6, 4))
    found = words.by_image(list(np.log(np.stack([right, 1 - right], -1))), y)
    # The mean over severities of each chain's probability, over the probability.
    own = right.mean((0, 2)) / 0.5
    assert found.monte_carlo == pytest.approx(own.std(ddof=1) / 6**0.5, rel=0.01)
    again = words.by_image(list(np.log(np.stack([right, 1 - right], -1))), y)
    row = words.beyond(found, again, "ensemble")
    assert row["score beyond ensemble, chains"] == pytest.approx(2**0.5 * found.monte_carlo)
    assert words.beyond(found, found, "ensemble")["score beyond ensemble, chains"] == 0
