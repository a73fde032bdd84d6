"""Likelihoods that check shapes and values of predictions and targets.

A likelihood opens the data plate, takes the rows of a minibatch where there is one, and samples
the target. Mistakes that would silently give a wrong posterior raise errors: a prediction (N, 1) against a
target (N,), labels out of range, one-hot labels, NaN. Shapes are always checked. Values are checked when the
data are concrete, as they are in ``MCMC.run`` and ``optimize``.

Every likelihood takes predictions ``f`` of all N rows, or the network itself with ``x=``, which is
then evaluated on the rows of a minibatch only. The noise of a continuous target is a number, a prior on it or
Gamma precisions (:class:`Precision`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.handlers import block, seed
from numpyro.util import not_jax_tracer

from numpyro_bnn._calls import options_of
from numpyro_bnn._checks import check_positive, check_share
from numpyro_bnn._types import Outputs, Values
from numpyro_bnn.data.arguments import check_labels
from numpyro_bnn.distributions.stable_densities import Gamma, NegativeBinomial, Poisson, StudentT
from numpyro_bnn.likelihoods.observe import (
    MaskOptions,
    WeightOptions,
    check_array,
    check_shape,
    filled,
    observe,
)
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


Units = tuple[Values, Values]
STANDARD: Units = (0.0, 1.0)


@options_of(observe)
def gaussian(
    f: Outputs,
    y: Values | None = None,
    *,
    noise: Noise,
    units: Units = STANDARD,
    correlation: float | None = None,
    **options: Unpack[MaskOptions],
) -> jax.Array:
    """y ~ Normal(f, σ²), one σ for all rows, or one for each output, whose noise may be correlated.

    :param f: predictions of the shape of `y`, or the network, with `x`.
    :param y: targets (N,) or (N, D); None to predict.
    :param noise: σ itself, a prior on σ (site ``"{name}.scale"``), or :class:`Precision`, which may
        have a level of outputs (σ_d) and a level of cases (t-distributed noise). D numbers, or a prior over
        D numbers such as ``dist.HalfNormal(1.).expand([D])``, give every output a σ_d of its own.
    :param units: shift and scale from the units of `f` and `noise` to those of `y`; one of each, or one of
        each for every output.
    :param obs_mask: which entries of y are known, booleans of its shape; None where all are. A row counts
        with the density of these, the marginal one where noise is correlated. Others may hold anything.
    :param correlation: concentration η of an LKJ prior on the correlations of the noise of a row between its
        outputs, p(R) ∝ det(R)^(η - 1): 1 is uniform over correlation matrices, more is nearer to
        independence. Site ``"{name}.correlation"``, the Cholesky factor of R. None for independent noise.
    :return: the target.
    :raises ValueError: for shapes that do not agree, NaN, a noise that is not positive, or a correlation of
        one output or of t-distributed noise.
    """
    check_array("gaussian", "y", y)
    name, x = options.get("name", "y"), options.get("x")
    case = noise.case if isinstance(noise, Precision) else None
    factor = None
    if correlation is not None:
        factor = noise_correlation(noise, name, correlation, num_outputs(f, y, x))
    # Residuals that are correlated or missing do not govern their precisions as Gibbs draws need it.
    residuals = Array(name, df=case) if factor is None and options.get("obs_mask") is None else None
    scale = noise_scale("gaussian", noise, name, residuals, noise_outputs(noise, f, y, x))
    shift, unit = units

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        check_shape("gaussian", f, y)
        at, spread = shift + unit * f, unit * scale
        if factor is not None:
            rows = jnp.broadcast_to(spread, jnp.shape(f)[-1:])[:, None] * factor
            return dist.MultivariateNormal(at, scale_tril=rows)
        each = dist.Normal(at, spread) if case is None else StudentT(case, at, spread)
        return each.to_event(jnp.ndim(f) - 1)

    shaped = f if y is None else y
    event_dim = 0 if callable(shaped) else max(0, jnp.ndim(shaped) - 1)
    return observe("gaussian", f, y, likelihood, event_dim, **options)


@options_of(observe)
def heteroscedastic(
    f: Outputs, y: Values | None = None, *, units: Units = STANDARD, **options: Unpack[MaskOptions]
) -> jax.Array:
    """y ~ Normal(f₀, softplus(f₁)²): the network gives the mean and the scale of each row.

    :param f: predictions (N, 2), or the network, with `x`.
    :param y: targets (N,); None to predict.
    :param units: shift and scale from the units of `f` to those of `y`.
    :return: the target.
    :raises ValueError: for shapes that do not agree.
    """
    shift, unit = units

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        _check_outputs("heteroscedastic", f, 2)
        check_shape("heteroscedastic", f, y, (2,))
        return dist.Normal(shift + unit * f[..., 0], unit * jax.nn.softplus(f[..., 1]))

    return observe("heteroscedastic", f, y, likelihood, 1, **options)


@options_of(observe)
def student_t(
    f: Outputs,
    y: Values | None = None,
    *,
    noise: Noise,
    df: float | dist.Distribution = 4.0,
    units: Units = STANDARD,
    **options: Unpack[MaskOptions],
) -> jax.Array:
    """y = f + σ t with `df` degrees of freedom: regression that is robust against outliers.

    :param f: predictions of the shape of `y`, or the network, with `x`.
    :param y: targets (N,); None to predict.
    :param noise: σ (a scale, not the standard deviation), as in :func:`gaussian`.
    :param df: degrees of freedom, or a prior on them (site ``"{name}.df"``).
    :param units: shift and scale from the units of `f` and `noise` to those of `y`.
    :return: the target.
    :raises ValueError: for shapes that do not agree or numbers that are not positive.
    """
    if isinstance(noise, Precision) and noise.case is not None:
        raise ValueError(
            f"student_t: the noise has a level of cases, case={noise.case}, beside df={df!r}; both are "
            "its degrees of freedom. Leave `case` out."
        )
    df, name = positive("student_t", "df", df), options.get("name", "y")
    residuals = Array(name, df=df) if isinstance(df, float) else None
    scale = noise_scale("student_t", noise, name, residuals)
    if isinstance(df, dist.Distribution):
        df = numpyro.sample(f"{name}.df", df)
    shift, unit = units

    return _observe_numbers(
        "student_t", f, y, lambda f: StudentT(df, shift + unit * f, unit * scale), **options
    )


@options_of(observe)
def categorical(f: Outputs, y: Values | None = None, **options: Unpack[MaskOptions]) -> jax.Array:
    """y ~ Categorical(softmax(f)).

    :param f: logits (N, K), or the network, with `x`.
    :param y: integer classes (N,) from 0 to K - 1; None to predict.
    :return: the target.
    :raises TypeError: for a target that is not integer.
    :raises ValueError: for one-hot labels, labels out of range, or shapes that do not agree.
    """

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        _check_outputs("categorical", f, None)
        # The whole target is checked: it may be concrete where the rows of a minibatch are traced.
        if target is not None:
            check_labels("categorical: y", target, jnp.shape(f)[-1])
        check_shape("categorical", f, y, jnp.shape(f)[-1:])
        return dist.Categorical(logits=f)

    if getattr(y, "dtype", None) == np.bool_:
        y = y.astype(np.int32)  # type: ignore[union-attr]
    target = y = filled("categorical", y, options.get("obs_mask"))
    return observe("categorical", f, y, likelihood, 1, **options)


@options_of(observe)
def bernoulli(f: Outputs, y: Values | None = None, **options: Unpack[MaskOptions]) -> jax.Array:
    """y ~ Bernoulli(sigmoid(f)).

    :param f: logits (N,), or the network, with `x`.
    :param y: integer or boolean classes (N,), 0 or 1; None to predict.
    :return: the target.
    :raises TypeError: for a target that is not integer or boolean.
    :raises ValueError: for labels other than 0 and 1 or shapes that do not agree.
    """

    def likelihood(f: jax.Array) -> dist.Distribution:
        if target is not None:
            check_labels("bernoulli: y", target, 2)
        return dist.Bernoulli(logits=f)

    target = y = filled("bernoulli", y, options.get("obs_mask"))
    return _observe_numbers("bernoulli", f, y, likelihood, **options)


def _observe_numbers(
    owner: str,
    f: Outputs,
    y: Values | None,
    likelihood: Callable[[jax.Array], dist.Distribution],
    **options: Unpack[MaskOptions],
) -> jax.Array:
    """Observe a target whose distribution takes one number a row from the network."""

    def checked(f: jax.Array, y: Any) -> dist.Distribution:
        if jnp.ndim(f) != 1:
            raise ValueError(
                f"{owner}: f has shape {jnp.shape(f)}, expected (N,), one prediction a row. Drop an axis of "
                "one: `f.squeeze(-1)`."
            )
        check_shape(owner, f, y)
        return likelihood(f)

    return observe(owner, f, y, checked, 0, **options)


def _check_outputs(owner: str, f: Any, expected: int | None) -> None:
    shape = jnp.shape(f)
    if len(shape) != 2 or (expected is not None and shape[-1] != expected) or shape[-1] < 2:
        outputs = "two or more" if expected is None else expected
        raise ValueError(
            f"{owner}: f has shape {shape}, expected (N, outputs) with {outputs} outputs. Give the "
            "last layer of the network that many units."
        )


@options_of(observe)
def quantile(
    f: Outputs,
    y: Values | None = None,
    *,
    level: float,
    scale: float | dist.Distribution,
    **options: Unpack[WeightOptions],
) -> jax.Array:
    """y has an asymmetric Laplace distribution around f, which fits f to a quantile of the target.

    Its negative logarithm is the pinball loss over `scale` (Yu and Moyeed 2001, *Bayesian quantile
    regression*). Targets hardly ever have this distribution. The mean of f estimates the quantile, but the
    standard deviation of f is not the error of that estimate. Calibrate intervals between such quantiles.

    :param f: predictions (N,), or the network, with `x`.
    :param y: targets (N,); None to predict.
    :param level: the probability below f, strictly between 0 and 1.
    :param scale: a positive number in the units of the target, or a prior on it (site ``"{name}.scale"``).
    :return: the target.
    :raises ValueError: for another level, a scale that is not positive, or shapes that do not agree.
    """
    check_share("quantile", "level", level)
    name, spread = options.get("name", "y"), positive("quantile", "scale", scale)
    if isinstance(spread, dist.Distribution):
        spread = numpyro.sample(f"{name}.scale", spread)

    # NumPyro's distribution has the pinball loss over a scale that both sides share.
    return _observe_numbers(
        "quantile", f, y, lambda f: dist.AsymmetricLaplaceQuantile(f, spread, level), **options
    )


@options_of(observe)
def poisson(f: Outputs, y: Values | None = None, **options: Unpack[WeightOptions]) -> jax.Array:
    """y ~ Poisson(exp(f)): counts whose variance is their mean.

    Counts over unequal times or areas have the logarithm of these added to f:
    ``lambda x: net(x).squeeze(-1) + jnp.log(x[:, 0])``.

    :param f: logarithms of the means (N,), or the network, with `x`.
    :param y: counts (N,), whole numbers from 0; None to predict.
    :return: the target.
    :raises ValueError: for negative or broken numbers, or shapes that do not agree.
    """
    _check_counts("poisson", y)
    return _observe_numbers("poisson", f, y, lambda f: Poisson(jnp.exp(f)), **options)


@options_of(observe)
def negative_binomial(
    f: Outputs,
    y: Values | None = None,
    *,
    concentration: float | dist.Distribution,
    **options: Unpack[WeightOptions],
) -> jax.Array:
    """y ~ Poisson(exp(f) u), u ~ Gamma with mean 1: counts that vary more than Poisson ones.

    The mean is m = exp(f), the variance m + m² / concentration (Gelman et al. 2013, *Bayesian data
    analysis*, section 16.2).

    :param f: logarithms of the means (N,), or the network, with `x`.
    :param y: counts (N,), whole numbers from 0; None to predict.
    :param concentration: a positive number, or a prior on it (site ``"{name}.concentration"``).
    :return: the target.
    :raises ValueError: for negative or broken counts, a concentration that is not positive, or shapes
        that do not agree.
    """
    _check_counts("negative_binomial", y)
    shape = positive("negative_binomial", "concentration", concentration)
    if isinstance(shape, dist.Distribution):
        shape = numpyro.sample(f"{options.get('name', 'y')}.concentration", shape)

    return _observe_numbers(
        "negative_binomial", f, y, lambda f: NegativeBinomial(jnp.exp(f), shape), **options
    )


def _check_counts(owner: str, y: Any) -> None:
    """Refuse concrete targets that are no counts."""
    check_array(owner, "y", y)
    if y is None or not not_jax_tracer(y):
        return
    counts = np.asarray(y)
    bad = np.flatnonzero(~((counts >= 0) & (counts == np.round(counts))))
    if bad.size:
        raise ValueError(
            f"{owner}: y must hold counts, whole numbers from 0, got {counts.ravel()[bad[0]]} in row "
            f"{bad[0]}. Take `gaussian` for quantities, and undo a standardisation of counts."
        )
