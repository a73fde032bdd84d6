"""The output layer integrated out: only the hidden layers, the precisions and the noise are sampled.

Where the mean of a Gaussian target is affine in weights that are Gaussian given all other sites, their
conditional posterior is Gaussian too, and they can be integrated out of the density that is sampled:

    p(y | rest) = Normal(y | m + Φ μ, Φ S Φᵀ + Σ),

with m the mean at weights of zero, Φ its derivative, μ and S mean and covariance of the weights' prior, Σ
the covariance of the noise. With every draw the weights are drawn from their exact conditional, under their
own names.

Noise of Student's t is Gaussian given a precision for each value, λ ~ Gamma(ν/2, ν/2), which is then
sampled beside the rest.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.primitives import Messenger

from numpyro_bnn._text import call_of
from numpyro_bnn._types import PyTree
from numpyro_bnn.distributions.linear_gaussian import LinearGaussian
from numpyro_bnn.distributions.stable_densities import Gamma
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.models import affine_sites
from numpyro_bnn.models.affine_sites import Asked, Values, prior_part, quiet_trace
from numpyro_bnn.priors.base import is_parameter, parameter
from numpyro_bnn.priors.hierarchical import enclosing_handlers
from numpyro_bnn.priors.precision_conditionals import UNITS, Level, key_of

_GAUSSIAN = Asked(
    "integrate_output",
    families=(dist.Normal, dist.StudentT),
    family_words="Gaussian or Student's t noise",
    part="loc",
    part_words="mean",
    priors=(dist.Normal,),
    prior_words="Gaussian",
    for_other_distributions="Use the model as it is.",
    why_unscaled="a scaled distribution no longer integrates",
    of_other_priors="priors of Student's t and collapsed coordinates are not Gaussian (use "
    '`parameterize(model, "noncentered")`), and weights whose values are given (`condition`) are not '
    "integrated",
)


class integrate_output(Messenger):
    """Handler that integrates out the weights in which the mean of a model's target is affine.

    For one observed site with Gaussian noise (one scale, one an output, or one a row) or Student's t, of
    one output a row or several. The posterior over everything else is that of the model itself; the
    integrated weights are in the draws, drawn exactly, so that `predict`, `diagnose`, checkpoints and
    ArviZ work as before. The likelihood is no longer a product over rows: there are no minibatches.
    :class:`~numpyro_bnn.ParallelTempering` tempers the likelihood of the rows before the weights are
    integrated out, so that its path and its evidence are those of the model itself.
    A gradient costs that of the model and about 10 n p² operations more, for n targets and p weights.

    Without a target it does nothing. ``numpyro.handlers.condition`` around it does what it does inside: a
    weight whose value is given is not integrated.

    :param fn: the model.
    :param sites: names of the sites to integrate out; default: every latent site with a Gaussian
        prior, outside of plates, that the mean is affine in and that enters no other density: neither
        by a distribution nor by an observed value (a soft constraint, ``obs=w.sum()``).
    :raises ValueError: when the model is called: where no such site is left, several sites are
        observed, the target is not Gaussian or t, the mean is not affine in all of them at once or
        another density depends on them, or a handler scales or masks the density.

    >>> import jax.numpy as jnp, numpyro_bnn as bnn
    >>> x, y = jnp.ones((3, 1)), jnp.arange(3.)
    >>> model = bnn.regression(bnn.MLP((2,), 1), bnn.priors.FanIn(), x, y)
    >>> bnn.potential_of(bnn.integrate_output(model), x, y).structure.latent
    ['net/Dense_0.bias', 'net/Dense_0.kernel', 'y.scale']
    """

    def __init__(self, fn: Callable | None = None, sites: Sequence[str] | None = None) -> None:
        if isinstance(sites, str):
            sites = (sites,)
        self.sites = None if sites is None else tuple(sites)
        super().__init__(fn)

    def __repr__(self) -> str:
        return call_of("integrate_output", {"sites": self.sites} if self.sites else {}, (self.fn,))

    # NumPyro's Gibbs requires the models of its blocks to be equal.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, integrate_output):
            return NotImplemented
        return self is other or (self.fn == other.fn and self.sites == other.sites)

    def __hash__(self) -> int:
        return hash((self.fn, self.sites))

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        model = partial(self.fn, *args, **kwargs)
        parts = affine_sites.parts_of(model, _GAUSSIAN)
        if not parts.observed:
            return model()
        target = affine_sites.target_of(parts)
        if enclosing_handlers(target).is_altered:
            raise ValueError(
                f"integrate_output: a handler around it scales or masks the log density of '{target}', "
                "and the weights are integrated out of the density as it is. Leave it out, or put it around "
                "the model without `integrate_output`."
            )
        weights = affine_sites.chosen(parts, target, self.sites)
        others = _Others(weights, target)
        with others:
            model()
        shape = jnp.shape(others.observed)

        def at(values: Values) -> dict[str, Any]:
            """The sites of the model at values of the weights, hidden from outer handlers."""
            return quiet_trace(model, others.values | values)

        def mean_at(values: Values) -> jax.Array:
            return jnp.broadcast_to(unwrapped(at(values)[target]["fn"]).loc, shape)

        zeros = {name: jnp.zeros(parts.shapes[name]) for name in weights}
        unflatten = ravel_pytree(zeros)[1]
        loc, scale = (
            ravel_pytree({name: prior_part(others.priors[name], part) for name in weights})[0]
            for part in ("loc", "scale")
        )
        mean, derivative = jax.linearize(mean_at, zeros)
        columns = jax.vmap(lambda unit: derivative(unflatten(unit)))(jnp.diag(scale))
        distribution = LinearGaussian(
            mean + derivative(unflatten(loc)),
            jnp.moveaxis(columns, 0, -1),
            _noise(target, others.distribution, shape),
        )
        value = numpyro.sample(target, distribution, obs=others.observed, infer=others.infer)
        key = key_of(target, list(others.values.values()))
        drawn = unflatten(loc + scale * distribution.weights_given(key, others.observed))
        for name, site in at(drawn).items():
            if site["type"] == "deterministic":
                made = parameter if is_parameter(site) else numpyro.deterministic
                made(site["name"], site["value"])
            elif name in drawn and not name.endswith(".base"):
                parameter(name, drawn[name])
        return value


class _Others(Messenger):
    """Handler that samples all other sites, and hides integrated weights and target from outer handlers."""

    def __init__(self, weights: list[str], target: str) -> None:
        self.weights = set(weights)
        self.target = target
        self.values: Values = {}  # of the sites that are sampled, or given by an outer handler
        self.priors: dict[str, dist.Distribution] = {}  # of the integrated weights
        # Distribution and values of the target.
        self.distribution: Any = None
        self.observed: Any = None
        self.infer: dict[str, Any] = {}
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "deterministic":
            msg["stop"] = True
        if msg["type"] != "sample":
            return
        if msg["name"] in self.weights:
            self.priors[msg["name"]] = msg["fn"]
            msg["value"], msg["stop"] = jnp.zeros(msg["fn"].shape()), True
        elif msg["name"] == self.target:
            self.distribution, self.observed = msg["fn"], msg["value"]
            self.infer, msg["stop"] = msg["infer"], True
        elif not msg["is_observed"]:
            # Outer handlers may rename the site (`scope`, `do`) and give it a value.
            msg["name_inside"] = msg["name"]
            if self._governs(msg["infer"].get("hierarchy")):
                # Its conditional distribution has changed: Gibbs draws of precisions must not use it.
                msg["infer"] = {k: v for k, v in msg["infer"].items() if k != "hierarchy"}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if "name_inside" in msg:
            self.values[msg["name_inside"]] = jnp.asarray(msg["value"])

    def _governs(self, level: Any) -> bool:
        """Whether a level is one above integrated weights, or above the target's noise."""
        if not isinstance(level, Level):
            return False
        below = {*level.members, *(child.site.removesuffix(UNITS) for child in level.children)}
        return level.of_noise or not below.isdisjoint(n.removesuffix(".base") for n in self.weights)


def _noise(target: str, distribution: dist.Distribution, shape: tuple[int, ...]) -> jax.Array:
    """Standard deviations of the noise; for t noise given a sampled precision for each value."""
    base = unwrapped(distribution)
    scale = jnp.broadcast_to(base.scale, shape)
    if isinstance(base, dist.Normal):
        return scale
    half = jnp.broadcast_to(base.df, shape) / 2
    own = numpyro.sample(f"{target}.case_precision", Gamma(half, half).to_event(len(shape)))
    return scale / jnp.sqrt(own)
