"""Studies of MNIST images: their corruptions, priors and scores."""

import numpy as np
import pytest

from benchmarks._shared import mnist_posteriors
from benchmarks.predictions import corruptions


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
