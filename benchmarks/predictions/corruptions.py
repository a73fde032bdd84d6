"""Six corruptions of square grey images, at five severities, and shifts along given directions.

Relatives of those of MNIST-C (Mu and Gilmer, 2019); the levels are our own. Severity 0 leaves an image as it
is, and of the same seed a higher severity is the same corruption, only further. Images are rows of pixels in
0 .. 1, (images, pixels), and stay so; :func:`along` alone leaves that range, because it is meant to.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from scipy import ndimage

from benchmarks._shared import data_sets
from benchmarks._shared.mnist_posteriors import principal

SEVERITIES = range(6)
Images = np.ndarray

NOISE = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6)  # standard deviation
BLUR = (0.0, 0.6, 0.9, 1.2, 1.6, 2.0)  # standard deviation of the kernel, pixels
ROTATION = (0.0, 10.0, 20.0, 30.0, 45.0, 60.0)  # degrees, either way
CONTRAST = (1.0, 0.75, 0.5, 0.35, 0.2, 0.1)  # of differences to the mean of the image
SHIFT = (0, 1, 2, 3, 4, 6)  # pixels, in one of eight directions
OCCLUSION = (0, 4, 6, 8, 10, 12)  # side of a white square, pixels


def _noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    return images + NOISE[severity] * rng.standard_normal(images.shape)


def _blur(images: Images, severity: int, rng: np.random.Generator) -> Images:
    width = BLUR[severity]
    return ndimage.gaussian_filter(images, (0, width, width))


def _rotation(images: Images, severity: int, rng: np.random.Generator) -> Images:
    signs = rng.choice([-1.0, 1.0], len(images))
    turned = np.empty_like(images)
    for sign in (-1.0, 1.0):
        turned[signs == sign] = ndimage.rotate(
            images[signs == sign], sign * ROTATION[severity], (1, 2), reshape=False, order=1
        )
    return turned


def _contrast(images: Images, severity: int, rng: np.random.Generator) -> Images:
    mean = images.mean((1, 2), keepdims=True)
    return mean + CONTRAST[severity] * (images - mean)


def _shift(images: Images, severity: int, rng: np.random.Generator) -> Images:
    steps = np.array([(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)])
    chosen = steps[rng.integers(len(steps), size=len(images))] * SHIFT[severity]
    return np.stack([ndimage.shift(image, step, order=0) for image, step in zip(images, chosen)])


def _occlusion(images: Images, severity: int, rng: np.random.Generator) -> Images:
    size = images.shape[1]
    centres = rng.integers(size // 4, size - size // 4, (len(images), 2, 1))
    # Half-open, so that a side of zero covers nothing.
    offset = np.arange(size) - centres
    inside = (offset >= -(OCCLUSION[severity] // 2)) & (offset < OCCLUSION[severity] // 2)
    return np.where(inside[:, 0, :, None] & inside[:, 1, None, :], 1.0, images)


CORRUPTIONS: dict[str, Callable[[Images, int, np.random.Generator], Images]] = {
    "noise": _noise,
    "blur": _blur,
    "rotation": _rotation,
    "contrast": _contrast,
    "shift": _shift,
    "occlusion": _occlusion,
}


def corrupted(images: Images, kind: str, severity: int, seed: int = 0) -> Images:
    """Square images (images, pixels) under one of the :data:`CORRUPTIONS`, with a severity of 0 to 5."""
    side = round(images.shape[1] ** 0.5)
    squares = images.reshape(-1, side, side).astype(np.float64)
    changed = CORRUPTIONS[kind](squares, severity, np.random.default_rng(seed))
    return np.clip(changed, 0, 1).reshape(images.shape).astype(images.dtype)


def on_pixels(
    images: Images, pixels: np.ndarray, severity: int, seed: int = 0, count: int | None = None
) -> Images:
    """Images with noise, uniform in 0 .. severity / 5, on some pixels of a mask, the same in all images."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.flatnonzero(pixels))[:count]
    changed = images.copy()
    changed[:, chosen] += severity / 5 * rng.random((len(images), len(chosen)))
    return np.clip(changed, 0, 1)


def along(images: Images, directions: np.ndarray, severity: int, seed: int = 0) -> Images:
    """Images moved by a Gaussian step in the span of orthonormal rows, of length about ``severity``."""
    count = len(directions)
    steps = np.random.default_rng(seed).standard_normal((len(images), count)) / count**0.5
    return images + (severity * steps @ directions).astype(images.dtype)


# Below this share of the largest, the variance of a component is rounding.
NULL = 1e-6


def null_and_first(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Principal directions without variance in the rows of ``x``, and as many of the most."""
    moments, directions = principal(x)
    null = directions[moments < NULL * moments[0]]
    return null, directions[: min(len(null), len(directions) - len(null))]


def shifts(data: data_sets.Split) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Kind, and test images at each severity, of every shift; some are made from the training images."""
    dead = data.x.max(0) == 0
    null, first = null_and_first(data.x)
    live = {"count": min(dead.sum(), (~dead).sum())}
    made = {kind: partial(corrupted, kind=kind) for kind in CORRUPTIONS} | {
        "dead pixels": partial(on_pixels, pixels=dead),
        "as many live pixels": partial(on_pixels, pixels=~dead, **live),
        "null components": partial(along, directions=null),
        "first components": partial(along, directions=first),
    }
    for kind, change in made.items():
        yield kind, [change(data.x_test, severity=s) for s in SEVERITIES[1:]]
