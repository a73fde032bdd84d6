"""What the studies of priors and of evidence share: few rows of a table, priors, the model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split, uci
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from numpyro_bnn import priors

# All hierarchies are around the same place: kernels at 1 / sqrt(fan-in), biases at 1.
# Shape numbers as in Neal's examples: 0.5 (vague) for a group, 1 for a unit; 4 degrees of freedom.
_GROUP, _UNIT, _WEIGHT = 0.5, 1.0, 4.0
PRIORS = ("normal", "fan_in", "group", "unit", "weight")


def prior_named(name: str) -> Any:
    """One of :data:`PRIORS`: fixed scales, or learned precisions by array, by input ("unit"), by weight."""
    if name == "normal":
        return priors.Normal(1.0)
    if name == "fan_in":
        return priors.FanIn()

    def kernel(**levels: float) -> Any:
        return priors.Hierarchical.width(1.0, group=_GROUP, scale_by_fan_in=True, **levels)

    bias = priors.Hierarchical.width(1.0, group=_GROUP)
    lower = {"group": {}, "unit": {"unit": _UNIT}, "weight": {"weight": _WEIGHT}}[name]
    others = lower if name == "weight" else {}
    return priors.ByPath(
        {"*.bias": bias, "Dense_0.kernel": kernel(**lower), "*.kernel": kernel(**others)}
    )


def regression_model(prior: Any, hidden: Sequence[int], activation: Callable) -> Callable:
    """Gaussian noise with a HalfNormal(1) scale around a network, for a standardised target."""

    def model(x: Any, y: Any = None) -> None:
        module = MLPByFeatures(tuple(hidden), 1, activation)
        net = bnn.random_module("net", module, prior, x[:1])
        bnn.likelihoods.gaussian(
            lambda rows: net(rows).squeeze(-1), y, x=x, noise=dist.HalfNormal(1.0)
        )

    return model


def few_rows(folder: Path | None, name: str, split: int, num_rows: int, num_test: int) -> Split:
    """A split of a UCI table with few rows to learn from, and up to `num_test` of all others."""
    whole = uci(folder, name, split)
    order = np.random.default_rng(split).permutation(len(whole.x))
    x, y = whole.x[order], whole.y[order]
    x_test = np.concatenate([whole.x_test, x[num_rows:]])[:num_test]
    y_test = np.concatenate([whole.y_test, y[num_rows:]])[:num_test]
    return Split(x[:num_rows], y[:num_rows], x_test, y_test)


def with_noise_columns(split: Split, count: int, seed: int) -> Split:
    """The same rows with columns of standard normal noise after the others."""
    rng = np.random.default_rng([seed, count])
    more = [
        np.concatenate([part, rng.normal(size=(len(part), count)).astype(part.dtype)], 1)
        for part in (split.x, split.x_test)
    ]
    return Split(more[0], split.y, more[1], split.y_test)


def relevance(kernel: np.ndarray, real: int) -> dict[str, float]:
    """How much the first layer, (…, column, unit), takes from the `real` first columns and from added ones.

    :return: posterior mean of the root mean square weight of the median real and the median added
        column (0 where there is none), and the posterior probability that an added column has
        larger weights than the median real one.
    """
    size = np.sqrt(np.mean(np.square(kernel, dtype=np.float64), -1)).reshape(-1, kernel.shape[-2])
    typical, added = np.median(size[:, :real], -1), size[:, real:]
    if not added.shape[1]:
        return {"weights_real": float(typical.mean()), "weights_noise": 0.0, "noise_above": 0.0}
    return {
        "weights_real": float(typical.mean()),
        "weights_noise": float(np.median(added, -1).mean()),
        "noise_above": float(np.mean(added > typical[:, None])),
    }


ACTIVATIONS: dict[str, Callable] = {"tanh": jax.numpy.tanh, "relu": jax.nn.relu}
