"""Likelihoods that check shapes and values of predictions and targets.

A likelihood opens the data plate, takes the rows of a minibatch where there is one, and samples
the target. Mistakes that would silently give a wrong posterior raise errors: a prediction (N, 1) against a
target (N,), labels out of range, one-hot labels, NaN. Shapes are always checked. Values are checked when the
data are concrete, as they are in ``MCMC.run`` and ``optimize``.

Every likelihood takes predictions ``f`` of all N rows, or the network itself with ``x=``, which is
then evaluated on the rows of a minibatch only.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.handlers import block, seed
from numpyro.util import not_jax_tracer

from numpyro_bnn._checks import check_positive
from numpyro_bnn._types import Outputs, PyTree, Values
from numpyro_bnn.distributions.gamma import Gamma
from numpyro_bnn.likelihoods.observe import (
    check_array,
    check_labels,
    check_shape,
    check_vector,
    observe,
)
from numpyro_bnn.priors.precision_conditionals import Array, Child, Level

Link = Literal["softplus", "exp"]
Units = tuple[Values, Values]
STANDARD: Units = (0.0, 1.0)
_LINKS = {"softplus": jax.nn.softplus, "exp": jnp.exp}


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
    """A positive number, or a distribution over positive numbers, as it was given.

    :param outputs: number of outputs, each of which may have a number of its own; None for one in all.
    """
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


def _scale(
    owner: str, noise: Noise, name: str, residuals: Array | None, outputs: int | None = None
) -> Any:
    """A noise scale from a number, a prior on it, or Gamma precisions.

    :param residuals: the residuals that precisions govern; None where the distribution of the noise is not
        known.
    :param outputs: number of outputs of a target (N, D); None for a target (N,).
    """
    if isinstance(noise, Precision):
        return 1 / jnp.sqrt(_noise_precision(owner, noise, name, residuals, outputs))
    noise = positive(owner, "noise", noise, outputs)
    if not isinstance(noise, dist.Distribution):
        return noise
    noise = noise.to_event(len(noise.batch_shape))
    return numpyro.sample(f"{name}.scale", noise)


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
    law = Gamma(noise.concentration, noise.rate)
    governed = () if residuals is None else (residuals,)
    level = Level(top, noise.concentration, noise.rate, None, governed, of_noise=True)
    if k is not None:
        level = level._replace(arrays=(), children=(Child(below, k),))
    known = residuals is not None
    precision = numpyro.sample(top, law, infer={"hierarchy": level} if known else {})
    if k is None:
        return precision
    own = tuple(array._replace(axis=-1) for array in governed)
    level = Level(below, k, None, top, own, of_noise=True)
    each = Gamma(k, k / precision).expand([outputs]).to_event(1)
    return numpyro.sample(below, each, infer={"hierarchy": level} if known else {})


def _outputs(noise: Noise, f: Any, y: Any, x: Any) -> int | None:
    """Number of outputs of a row, where the noise depends on it; None otherwise."""
    if isinstance(noise, Precision):
        depends = noise.output is not None
    else:
        depends = (
            noise.shape() if isinstance(noise, dist.Distribution) else jnp.shape(noise)
        ) != ()
    if not depends:
        return None
    return num_outputs(f, y, x)


def num_outputs(f: Any, y: Any, x: Any) -> int | None:
    """Number of outputs of a row; None for a target (N,)."""
    shaped = f if y is None else y
    if callable(shaped):
        with block():
            shaped = jax.eval_shape(seed(f, 0), jnp.asarray(x)[:1])
    return jnp.shape(shaped)[1] if jnp.ndim(shaped) == 2 else None


def _correlation(noise: Noise, name: str, concentration: float, outputs: int | None) -> jax.Array:
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


def gaussian(
    f: Outputs,
    y: Values | None = None,
    *,
    noise: Noise,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    units: Units = STANDARD,
    weights: Values | None = None,
    correlation: float | None = None,
) -> jax.Array:
    """y ~ Normal(f, σ²), one σ for all rows, or one for each output, whose noise may be correlated.

    :param f: predictions of the shape of `y`, or the network, with `x`.
    :param y: targets (N,) or (N, D); None to predict.
    :param noise: σ itself, a prior on σ (site ``"{name}.scale"``), or :class:`Precision`, which may
        have a level of outputs (σ_d) and a level of cases (t-distributed noise). D numbers, or a prior over
        D numbers such as ``dist.HalfNormal(1.).expand([D])``, give every output a σ_d of its own.
    :param x: inputs (N, …).
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param units: shift and scale from the units of `f` and `noise` to those of `y`; one of each, or one of
        each for every output.
    :param weights: (N,), how often each row counts; None for once.
    :param correlation: concentration η of an LKJ prior on the correlations of the noise of a row between its
        outputs, p(R) ∝ det(R)^(η - 1): 1 is uniform over correlation matrices, more is nearer to
        independence. Site ``"{name}.correlation"``, the Cholesky factor of R. None for independent noise.
    :return: the target.
    :raises ValueError: for shapes that do not agree, NaN, a noise that is not positive, or a correlation of
        one output or of t-distributed noise.
    """
    check_array("gaussian", "y", y)
    case = noise.case if isinstance(noise, Precision) else None
    factor = None
    if correlation is not None:
        factor = _correlation(noise, name, correlation, num_outputs(f, y, x))
    # Correlated residuals do not govern their precisions in the way that Gibbs draws need.
    residuals = Array(name, df=case) if factor is None else None
    scale = _scale("gaussian", noise, name, residuals, _outputs(noise, f, y, x))
    shift, unit = units

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        check_shape("gaussian", f, y)
        at, spread = shift + unit * f, unit * scale
        if factor is not None:
            rows = jnp.broadcast_to(spread, jnp.shape(f)[-1:])[:, None] * factor
            return dist.MultivariateNormal(at, scale_tril=rows)
        each = dist.Normal(at, spread) if case is None else dist.StudentT(case, at, spread)
        return each.to_event(jnp.ndim(f) - 1)

    shaped = f if y is None else y
    event_dim = 0 if callable(shaped) else max(0, jnp.ndim(shaped) - 1)
    return observe("gaussian", f, y, x, name, plate, likelihood, event_dim, weights)


def heteroscedastic(
    f: Outputs,
    y: Values | None = None,
    *,
    x: PyTree = None,
    link: Link = "softplus",
    name: str = "y",
    plate: str = "data",
    units: Units = STANDARD,
    weights: Values | None = None,
) -> jax.Array:
    """y ~ Normal(f₀, link(f₁)²): the network gives the mean and the scale of each row.

    :param f: predictions (N, 2), or the network, with `x`.
    :param y: targets (N,); None to predict.
    :param x: inputs (N, …).
    :param link: ``"softplus"`` or ``"exp"``, from the second output to a standard deviation.
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param units: shift and scale from the units of `f` and `noise` to those of `y`.
    :param weights: (N,), how often each row counts; None for once.
    :return: the target.
    :raises ValueError: for another link, or shapes that do not agree.
    """
    if link not in _LINKS:
        raise ValueError(f"heteroscedastic: link must be one of {list(_LINKS)}, got {link!r}.")
    shift, unit = units

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        _check_outputs("heteroscedastic", f, 2)
        check_shape("heteroscedastic", f, y, (2,))
        return dist.Normal(shift + unit * f[..., 0], unit * _LINKS[link](f[..., 1]))

    return observe("heteroscedastic", f, y, x, name, plate, likelihood, 1, weights)


def student_t(
    f: Outputs,
    y: Values | None = None,
    *,
    noise: Noise,
    df: float | dist.Distribution = 4.0,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    units: Units = STANDARD,
    weights: Values | None = None,
) -> jax.Array:
    """y = f + σ t with `df` degrees of freedom: regression that is robust against outliers.

    :param f: predictions of the shape of `y`, or the network, with `x`.
    :param y: targets (N,); None to predict.
    :param noise: σ (a scale, not the standard deviation), as in :func:`gaussian`.
    :param df: degrees of freedom, or a prior on them (site ``"{name}.df"``).
    :param x: inputs (N, …).
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param units: shift and scale from the units of `f` and `noise` to those of `y`.
    :param weights: (N,), how often each row counts; None for once.
    :return: the target.
    :raises ValueError: for shapes that do not agree or numbers that are not positive.
    """
    if isinstance(noise, Precision) and noise.case is not None:
        raise ValueError(
            f"student_t: the noise has a level of cases, case={noise.case}, beside df={df!r}; both are "
            "its degrees of freedom. Leave `case` out."
        )
    df = positive("student_t", "df", df)
    residuals = Array(name, df=df) if isinstance(df, float) else None
    scale = _scale("student_t", noise, name, residuals)
    if isinstance(df, dist.Distribution):
        df = numpyro.sample(f"{name}.df", df)
    shift, unit = units

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        check_vector("student_t", f)
        check_shape("student_t", f, y)
        return dist.StudentT(df, shift + unit * f, unit * scale)

    return observe("student_t", f, y, x, name, plate, likelihood, 0, weights)


def categorical(
    f: Outputs,
    y: Values | None = None,
    *,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    weights: Values | None = None,
) -> jax.Array:
    """y ~ Categorical(softmax(f)).

    :param f: logits (N, K), or the network, with `x`.
    :param y: integer classes (N,) from 0 to K - 1; None to predict.
    :param x: inputs (N, …).
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param weights: (N,), how often each row counts; None for once.
    :return: the target.
    :raises TypeError: for a target that is not integer.
    :raises ValueError: for one-hot labels, labels out of range, or shapes that do not agree.
    """

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        _check_outputs("categorical", f, None)
        # The whole target is checked too: it may be concrete where the rows of a minibatch are traced.
        check_labels("categorical", y, jnp.shape(f)[-1])
        check_labels("categorical", target, jnp.shape(f)[-1])
        check_shape("categorical", f, y, jnp.shape(f)[-1:])
        return dist.Categorical(logits=f)

    if getattr(y, "dtype", None) == np.bool_:
        y = y.astype(np.int32)  # type: ignore[union-attr]
    target = y
    return observe("categorical", f, y, x, name, plate, likelihood, 1, weights)


def bernoulli(
    f: Outputs,
    y: Values | None = None,
    *,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    weights: Values | None = None,
) -> jax.Array:
    """y ~ Bernoulli(sigmoid(f)).

    :param f: logits (N,), or the network, with `x`.
    :param y: integer or boolean classes (N,), 0 or 1; None to predict.
    :param x: inputs (N, …).
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param weights: (N,), how often each row counts; None for once.
    :return: the target.
    :raises TypeError: for a target that is not integer or boolean.
    :raises ValueError: for labels other than 0 and 1 or shapes that do not agree.
    """

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        check_vector("bernoulli", f)
        check_labels("bernoulli", target, 2)
        check_shape("bernoulli", f, y)
        return dist.Bernoulli(logits=f)

    target = y
    return observe("bernoulli", f, y, x, name, plate, likelihood, 0, weights)


def _check_outputs(owner: str, f: Any, expected: int | None) -> None:
    shape = jnp.shape(f)
    if len(shape) != 2 or (expected is not None and shape[-1] != expected) or shape[-1] < 2:
        outputs = "two or more" if expected is None else expected
        raise ValueError(
            f"{owner}: f has shape {shape}, expected (N, outputs) with {outputs} outputs. Give the "
            "last layer of the network that many units."
        )
