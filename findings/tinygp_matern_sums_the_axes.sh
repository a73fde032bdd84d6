#!/usr/bin/env bash
# tinygp 0.3.1: Matérn kernels measure the distance as a sum over the axes, so they depend on the axes chosen.
#
# Guess, written first: `tinygp.kernels.Matern32()` on inputs with two columns is the Matérn kernel of the Euclidean
# distance, equal to scikit-learn's `Matern(nu=1.5)`, as `ExpSquared()` equals `RBF()`.
#
# Seen: `ExpSquared` does; `Matern32`, `Matern52` and `Exp` use |dx| + |dy|. With one column they agree with
# scikit-learn, with two they do not, and a rotation of the inputs changes the kernel.
# `distance=tinygp.kernels.distance.L2Distance()` gives the usual one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "tinygp==0.3.1" "jax==0.10.2" "jaxlib==0.10.2" "scikit-learn==1.9.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import jax
import numpy as np
import tinygp
from sklearn.gaussian_process.kernels import RBF, Matern

jax.config.update("jax_enable_x64", True)
euclidean = tinygp.kernels.distance.L2Distance()
turn = np.array([[1, -1], [1, 1]]) / np.sqrt(2)
points = np.random.default_rng(0).normal(size=(5, 2))


def gap(kernel, other, points):
    return np.abs(np.asarray(kernel(points, points)) - other(points)).max()


def change_by_turning(kernel):
    turned = points @ turn
    return np.abs(np.asarray(kernel(points, points)) - np.asarray(kernel(turned, turned))).max()


print(f"tinygp {version('tinygp')}, jax {jax.__version__}, scikit-learn {version('scikit-learn')}")
print(f"ExpSquared, two columns: {gap(tinygp.kernels.ExpSquared(), RBF(), points):.1e}")
assert gap(tinygp.kernels.ExpSquared(), RBF(), points) < 1e-12
for name, nu in (("Exp", 0.5), ("Matern32", 1.5), ("Matern52", 2.5)):
    kind, other = getattr(tinygp.kernels, name), Matern(nu=nu)
    one, two = gap(kind(), other, points[:, :1]), gap(kind(), other, points)
    chosen, turned = gap(kind(distance=euclidean), other, points), change_by_turning(kind())
    print(f"{name}: one column {one:.1e}, two {two:.3f}, two with L2Distance {chosen:.1e}, by turning {turned:.3f}")
    assert one < 1e-12 and chosen < 1e-12, f"{name} differs from scikit-learn in another way now"
    assert two > 0.05 and turned > 0.05, f"{name} is Euclidean now"
PYTHON
