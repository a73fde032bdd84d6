"""Noise of a continuous target: its scale from a number, a prior or Gamma precisions, and correlations."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.handlers import block, seed
from numpyro.util import not_jax_tracer

from numpyro_bnn._checks import check_positive
from numpyro_bnn.distributions.gamma import Gamma
from numpyro_bnn.priors.precision_conditionals import Array, Child, Level


class Precision(NamedTuple):
    """Noise with a Gamma precision, site ``"{name}.precision"``, or a hierarchy of them.

    - **concentration**, **rate** - parameters of the Gamma prior of the precision common to all outputs
    - **output** - shape number of a precision for every output, site ``"{name}.output_precision"``:
      τ_d ~ Gamma(output/2, output/(2τ)); None for the common one
    - **case** - shape number of a precision for every row and output, which is integrated out: noise
      is then t-distributed with so many degrees of freedom; None for Gaussian noise
    """

    concentration: float = 1.0
    rate: float = 1.0
    output: float | None = None
    case: float | None = None

    @classmethod
    def width(
        cls, width: float, common: float, output: float | None = None, case: float | None = None
    ) -> "Precision":
        """Neal's form: τ ~ Gamma(common/2, common width²/2), so that τ^(-1/2) is about `width`.

        :param width: typical scale of the noise, in units of the target.
        :param common: shape number of the level that all outputs share.
        :param output: shape number of the level of outputs.
        :param case: shape number of the level of rows, its degrees of freedom.
        :raises ValueError: if a number is not positive and finite.
        """
        check_positive("Precision.width", width=width, common=common)
        return cls(common / 2, common * width**2 / 2, output, case)


Noise: TypeAlias = float | dist.Distribution | Precision


def positive(owner: str, label: str, value: Any, outputs: int | None = None) -> Any:
    """A positive number or a distribution over them, as given; `outputs` of them, or one (None)."""
    shapes = [(), (outputs,)]
    each = "" if outputs is None else f", or {outputs} of them, one an output"
    if isinstance(value, dist.Distribution):
        support = value.support
        while isinstance(support, constraints.independent):
            support = support.base_constraint
        lower = 0.0 if support is constraints.positive else getattr(support, "lower_bound", -1.0)
        if value.shape() in shapes and not_jax_tracer(lower) and lower >= 0:
            return value
        raise ValueError(
            f"{owner}: the prior on {label} has shape {value.shape()} and support {support}, "
            f"expected one positive value{each}. Use for example `dist.HalfNormal(1.)`."
        )
    number = isinstance(value, (float, int, np.number, np.ndarray, jax.Array))
    if number and not isinstance(value, bool) and jnp.shape(value) in shapes:
        # A value that the model sampled itself is traced, and positive if its prior is.
        if not not_jax_tracer(value):
            return value
        if np.all((np.asarray(value) > 0) & np.isfinite(value)):
            return float(value) if jnp.ndim(value) == 0 else jnp.asarray(value, float)
    raise ValueError(
        f"{owner}: {label} must be one positive number{each} or a distribution over it, got {value!r}."
    )


def noise_scale(
    owner: str, noise: Noise, name: str, residuals: Array | None, outputs: int | None = None
) -> Any:
    """A noise scale from a number, a prior on it, or Gamma precisions that govern `residuals`."""
    # `outputs` is None for a target (N,). `residuals` is None if the noise's distribution is unknown.
    if isinstance(noise, Precision):
        return 1 / jnp.sqrt(_noise_precision(owner, noise, name, residuals, outputs))
    noise = positive(owner, "noise", noise, outputs)
    if not isinstance(noise, dist.Distribution):
        return noise
    return numpyro.sample(f"{name}.scale", noise.to_event(len(noise.batch_shape)))


def _noise_precision(
    owner: str, noise: Precision, name: str, residuals: Array | None, outputs: int | None
) -> jax.Array:
    given = {label: value for label, value in noise._asdict().items() if value is not None}
    check_positive(f"{owner}: Precision", **given)
    if noise.output is not None and outputs is None:
        raise ValueError(
            f"{owner}: the noise has a level of outputs, output={noise.output}, but f has one output "
            "a row. Leave that level out."
        )
    top, below = f"{name}.precision", f"{name}.output_precision"
    k = None if noise.output is None else noise.output / 2
    distribution = Gamma(noise.concentration, noise.rate)
    governed = () if residuals is None else (residuals,)
    level = Level(top, noise.concentration, noise.rate, None, governed, of_noise=True)
    if k is not None:
        level = level._replace(arrays=(), children=(Child(below, k),))
    known = residuals is not None
    precision = numpyro.sample(top, distribution, infer={"hierarchy": level} if known else {})
    if k is None:
        return precision
    own = tuple(array._replace(units=((-1, 1),)) for array in governed)
    level = Level(below, k, None, top, own, of_noise=True)
    each = Gamma(k, k / precision).expand([outputs]).to_event(1)
    return numpyro.sample(below, each, infer={"hierarchy": level} if known else {})


def noise_outputs(noise: Noise, f: Any, y: Any, x: Any) -> int | None:
    """Number of outputs of a row, where the noise depends on it; None otherwise."""
    if isinstance(noise, Precision):
        depends = noise.output is not None
    else:
        shape = noise.shape() if isinstance(noise, dist.Distribution) else jnp.shape(noise)
        depends = shape != ()
    return num_outputs(f, y, x) if depends else None


def num_outputs(f: Any, y: Any, x: Any) -> int | None:
    """Number of outputs of a row; None for a target (N,)."""
    shaped = f if y is None else y
    if callable(shaped):
        with block():
            shaped = jax.eval_shape(seed(f, 0), jax.tree.map(lambda a: jnp.asarray(a)[:1], x))
    return jnp.shape(shaped)[1] if jnp.ndim(shaped) == 2 else None


def noise_correlation(
    noise: Noise, name: str, concentration: float, outputs: int | None
) -> jax.Array:
    """The Cholesky factor of the correlations of the noise of one row."""
    check_positive("gaussian", correlation=concentration)
    if outputs is None or outputs < 2:
        raise ValueError(
            f"gaussian: correlation={concentration!r} is of the noise of several outputs, and the target has "
            "one a row. Leave it out."
        )
    if isinstance(noise, Precision) and noise.case is not None:
        raise ValueError(
            f"gaussian: correlation={concentration!r} beside a noise with a level of cases, case="
            f"{noise.case}: t-distributed noise has no correlations here. Leave one of them out."
        )
    return numpyro.sample(f"{name}.correlation", dist.LKJCholesky(outputs, concentration))


def noise_for_each(noise: Noise, outputs: int) -> Noise:
    """A prior for the noise of every output, from one for a single output; others as they are."""
    is_one = isinstance(noise, dist.Distribution) and noise.shape() == ()
    return noise.expand([outputs]) if is_one else noise  # type: ignore[union-attr]
