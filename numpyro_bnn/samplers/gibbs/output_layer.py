"""The output layer of a classifier drawn anew from its exact conditional, by Pólya-Gamma augmentation.

Given one Pólya-Gamma variable ω a label, a logistic likelihood is Gaussian in its logit ψ, with precision ω
and observation κ/ω, κ = y - 1/2 (:mod:`numpyro_bnn.distributions.polya_gamma`). Logits are linear in the
weights w of the output layer, whose prior is Gaussian given its precisions, so that w given ω and all else is
Gaussian.
A *softmax* is taken one class at a time: given the weights of the other classes, the likelihood of those of
class k is logistic in

    ψ_k = η_k - log Σ_{j ≠ k} exp η_j,

where η are the logits and the log-sum-exp of the other classes is a known offset, computed anew for each
class from what was drawn before it.

A stick-breaking likelihood, in which each class is a logistic choice between it and all later ones, needs no
such turns; it is another likelihood, whose predictions depend on the order of the classes, and is not here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.extend import core

from numpyro_bnn._text import ReprMixin
from numpyro_bnn.distributions import polya_gamma
from numpyro_bnn.distributions.linear_gaussian import product, weights_given
from numpyro_bnn.distributions.stable_densities import Gamma
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.models import affine_sites
from numpyro_bnn.models.affine_sites import Asked, SiteParts, prior_part
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.potential.rows_in_parts import made_up
from numpyro_bnn.samplers.gibbs.moves import Bound

_LOGISTIC = Asked(
    "OutputLayerGibbs",
    families=(dist.BernoulliLogits, dist.BinomialLogits, dist.CategoricalLogits),
    family_words="a Bernoulli, binomial or categorical distribution of logits",
    part="logits",
    part_words="logit",
    priors=(dist.Normal, dist.StudentT),
    prior_words="Gaussian or Student's t",
    for_other_distributions="Give such a distribution its logits (`logits=`, not `probs=`); for Gaussian or "
    "t noise use `bnn.integrate_output(model)`, for other distributions a gradient kernel alone.",
    why_unscaled="a likelihood to a power has no Pólya-Gamma form of one variable a label",
    of_other_priors="weights with another prior are left to the kernel",
)


class OutputLayerGibbs(ReprMixin):
    """Draw the weights and biases of a classifier's output layer given everything else; uses no gradient.

    A move for :class:`Interleaved`, after each step of a kernel that samples all weights. It works on the
    user's own model: it finds the sites that the logits are linear in, as
    :func:`~numpyro_bnn.integrate_output` does for a Gaussian target. Their precisions are kept; to draw
    these too, let :class:`PrecisionRedraw` follow, or use a kernel that draws them
    (:func:`~numpyro_bnn.neal`)::

        Interleaved(HMC(model), [OutputLayerGibbs(), PrecisionRedraw()])

    The two are then Gibbs steps of the layer and of its precision, given the hidden layers. Weights with a
    level of single weights are t-distributed; they get a precision each, drawn before and discarded after.

    With n rows, K classes and q weights a class (hidden units and a bias) it costs n K Pólya-Gamma
    variables, 0.4 to 0.7 µs each on one core, K factorisations of n q² operations, and one forward pass. A
    Bernoulli or binomial target is one class.

    In single precision the factor is that of a QR decomposition, which does not break down, and the mean
    is computed by two steps of Newton's method from the residuals of the rows. With six features that
    are nearly alike, 20 prior standard deviations large, a draw was right to 2e-3 posterior standard
    deviations in every direction.

    Not for rows taken in minibatches, nor for a ladder: a likelihood to a power has no such form.

    :param sites: names of the sites to draw; default: every latent site outside of plates that has a
        Gaussian or t prior, that the logits are linear in, and that enters no other density: neither by a
        distribution nor by an observed value (a soft constraint, ``obs=w.sum()``).
    :raises ValueError: when run, for a target that is not logistic or has no logits; for rows with weights
        or a model that takes minibatches of its own; for a power of the likelihood other than 1; where no
        such site is left, or a named one is not of this kind; for a softmax whose classes share weights.

    Source: N. G. Polson, J. G. Scott and J. Windle, JASA 108 (2013), §3; one class at a time as in L. Held
    and C. C. Holmes, *Bayesian auxiliary variable models for binary and multinomial regression*, Bayesian
    Analysis 1 (2006), §3, who use another augmentation.
    """

    # A draw given a minibatch would have another distribution; `Interleaved` checks this flag.
    needs_all_rows = True

    def __init__(self, sites: Sequence[str] | None = None) -> None:
        if isinstance(sites, str):
            sites = (sites,)
        self.sites = None if sites is None else tuple(sites)

    def __call__(self, key: jax.Array, values: Values, bound: Bound) -> Values:
        if isinstance(bound.power, jax.Array) or bound.power != 1:
            raise ValueError(
                f"OutputLayerGibbs: the likelihood is to be taken to the power {bound.power}, as on the "
                f"rungs of a ladder, and {_LOGISTIC.why_unscaled}. Leave this move out of the ladder's moves."
            )
        parts = affine_sites.parts_of(lambda: bound.model(*bound.args, **bound.kwargs), _LOGISTIC)
        target = affine_sites.target_of(parts)
        names = affine_sites.chosen(parts, target, self.sites)
        site = bound.sites(values)[target]
        distribution, shape = unwrapped(site["fn"]), site["fn"].shape()
        classes = None
        if isinstance(distribution, dist.CategoricalLogits):
            classes = distribution.logits.shape[-1]
            shape = (*shape, classes)
        axes = {name: _axis_of_classes(parts, target, name, classes) for name in names}
        key_prior, key_sweep = jax.random.split(key)
        priors = _gaussian_priors(key_prior, names, bound.sites(values), values)

        def logits_at(own: Values) -> jax.Array:
            there = unwrapped(bound.sites(values | own)[target]["fn"])
            return jnp.broadcast_to(there.logits, shape).reshape(-1, classes or 1)

        zero, derivative = jax.linearize(logits_at, {n: jnp.zeros_like(values[n]) for n in names})
        layer = _Layer(
            _design(derivative, priors, axes),
            zero + derivative({name: prior.loc for name, prior in priors.items()}),
            *_labels(distribution, site["value"], classes),
        )
        standard = [
            _by_class((values[name] - prior.loc) / prior.scale, axes[name])
            for name, prior in priors.items()
        ]
        drawn = layer.redrawn(key_sweep, jnp.concatenate(standard))
        new, start = dict(values), 0
        for name, prior in priors.items():
            size = prior.loc.size // (classes or 1)
            own = _from_classes(drawn[start : start + size], prior.loc.shape, axes[name])
            new[name] = (prior.loc + prior.scale * own).astype(values[name].dtype)
            start += size
        return new


class _Layer(NamedTuple):
    """The rows of a logistic regression for each class, in weights u with a standard normal prior."""

    # Derivatives of the logit of row i and class k by the weights of that class, (q, rows, classes).
    design: jax.Array
    fixed: jax.Array  # Logits at u = 0, (rows, classes)
    kappa: jax.Array  # Label, or its number of successes, less half the trials, (rows, classes)
    trials: jax.Array  # Trials of each row, (rows,)

    def redrawn(self, key: jax.Array, u: jax.Array) -> jax.Array:
        """Weights (q, classes) drawn anew, one class after the other."""
        classes = self.fixed.shape[1]

        def one(k: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            u, logits = state
            key_omega, key_weights = jax.random.split(jax.random.fold_in(key, k))
            offset = jnp.zeros(logits.shape[0])
            if classes > 1:
                others = jnp.where(jnp.arange(classes) == k, -jnp.inf, logits)
                offset = jax.nn.logsumexp(others, axis=1)
            tilt = logits[:, k] - offset
            omega = polya_gamma.draw(key_omega, self.trials, tilt)
            design, fixed = self.design[:, :, k], self.fixed[:, k] - offset
            own = _gaussian_draw(key_weights, design, omega, self.kappa[:, k], fixed)
            return u.at[:, k].set(own), logits.at[:, k].set(self.fixed[:, k] + product(own, design))

        logits = self.fixed + jnp.einsum("qnk,qk->nk", self.design, u, precision="highest")
        return lax.fori_loop(0, classes, one, (u, logits))[0]


def _gaussian_draw(
    key: jax.Array, design: jax.Array, omega: jax.Array, kappa: jax.Array, fixed: jax.Array
) -> jax.Array:
    """A draw of u ~ N(0, 1) given observations κ/ω of fixed + u·design, (q, rows), with precisions ω."""
    root = jnp.sqrt(omega)
    # A row without trials has neither precision nor κ.
    observed = kappa / jnp.where(omega > 0, root, 1.0)
    return weights_given(key, observed - root * fixed, (design * root).T)


def _labels(
    distribution: dist.Distribution, value: jax.Array, classes: int | None
) -> tuple[jax.Array, jax.Array]:
    """κ by row and class, and the trials of each row."""
    if classes is not None:
        own = jax.nn.one_hot(value.reshape(-1), classes)
        return own - 0.5, jnp.ones(own.shape[0], int)
    count = jnp.broadcast_to(getattr(distribution, "total_count", 1), jnp.shape(value)).reshape(-1)
    return (jnp.reshape(value, -1) - count / 2)[:, None], count


def _gaussian_priors(
    key: jax.Array, names: list[str], sites: dict[str, dict], values: Values
) -> dict[str, dist.Normal]:
    """The Gaussian prior of each site given its precisions; for t weights given also one precision each."""
    priors = {}
    for i, name in enumerate(names):
        distribution = sites[name]["fn"]
        loc, scale = prior_part(distribution, "loc"), prior_part(distribution, "scale")
        if isinstance(unwrapped(distribution), dist.StudentT):
            df = prior_part(distribution, "df")
            rate = (df + ((values[name] - loc) / scale) ** 2) / 2
            own = Gamma((df + 1) / 2, rate).sample(jax.random.fold_in(key, i))
            scale = scale / jnp.sqrt(own)
        priors[name] = dist.Normal(loc, scale)
    return priors


def _axis_of_classes(parts: SiteParts, target: str, name: str, classes: int | None) -> int | None:
    """The axis of a site with one slice a class; None where there is one logit a row."""
    if classes is None:
        return None
    shape = parts.shapes[name]
    output = parts.owners.index((target, "logits"))
    # Kernels of Flax have the classes last, those of Equinox first.
    for axis in reversed(range(len(shape))):
        if shape[axis] == classes and _are_apart(parts, output, name, axis):
            return axis
    raise ValueError(
        f"OutputLayerGibbs: the {classes} classes of '{target}' do not each have weights of their own in "
        f"'{name}', of shape {shape}; given the other classes, those of one are then not a logistic "
        "regression. Name sites of a dense output layer with `sites=[…]`, or use a gradient kernel alone."
    )


def _are_apart(parts: SiteParts, output: int, name: str, axis: int) -> bool:
    """Whether slice k of a site changes the logits of class k alone; traced data are made up."""
    rng, shape = np.random.default_rng(0), parts.shapes[name]
    slices = [-1 if a == axis else 1 for a in range(len(shape))]
    # JAX orders the entries of a mapping by name.
    values = {n: rng.uniform(0.1, 1.0, parts.shapes[n]) for n in sorted(parts.shapes)}
    with jax.ensure_compile_time_eval():
        values = jax.tree.map(jnp.asarray, values)
        constants = [made_up(constant) for constant in parts.program.consts]
        # Positive ones have a logarithm and a root.
        constants = [abs(c) if isinstance(c, np.ndarray) else c for c in constants]
        program = core.jaxpr_as_fun(core.ClosedJaxpr(parts.program.jaxpr, constants))

        def logits(own: jax.Array) -> jax.Array:
            return program(*(values | {name: own}).values())[output]

        def change(unit: jax.Array) -> jax.Array:
            return jax.jvp(logits, [values[name]], [unit.reshape(slices) * values[name]])[1]

        changes = jax.vmap(change, out_axes=-1)(jnp.eye(shape[axis]))
        return not (np.asarray(changes) * (1 - np.eye(shape[axis]))).any()


def _by_class(values: jax.Array, axis: int | None) -> jax.Array:
    """Entries of a site as (weights of a class, classes)."""
    if axis is None:
        return values.reshape(-1, 1)
    return jnp.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def _from_classes(rows: jax.Array, shape: tuple[int, ...], axis: int | None) -> jax.Array:
    """The inverse of :func:`_by_class`."""
    if axis is None:
        return rows.reshape(shape)
    rest = (*shape[:axis], *shape[axis + 1 :])
    return jnp.moveaxis(rows.reshape(*rest, shape[axis]), -1, axis)


def _design(
    derivative: Callable[[Values], jax.Array],
    priors: dict[str, dist.Normal],
    axes: dict[str, int | None],
) -> jax.Array:
    """Derivatives of all logits by each standardised weight of its class, (q, rows, classes)."""
    zeros = {name: jnp.zeros_like(prior.loc) for name, prior in priors.items()}
    found = []
    for name, prior in priors.items():
        axis, shape = axes[name], prior.loc.shape
        scales = _by_class(prior.scale, axis)

        # Weight j of all classes at once: classes do not share weights.
        def by_weight(unit: jax.Array, name: str = name, args: Any = (scales, shape, axis)) -> Any:
            scales, shape, axis = args
            return derivative(zeros | {name: _from_classes(unit[:, None] * scales, shape, axis)})

        found.append(jax.vmap(by_weight)(jnp.eye(scales.shape[0], dtype=scales.dtype)))
    return jnp.concatenate(found)
