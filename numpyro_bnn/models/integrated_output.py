"""The output layer integrated out: only the hidden layers, the precisions and the noise are sampled.

Where the mean of a Gaussian target is affine in weights that are Gaussian given all else, their law
given all else is Gaussian too, and they can be taken out of what a sampler moves:

    p(y | rest) = Normal(y | m + Φ μ, Φ S Φᵀ + Σ),

with m the mean at weights of zero, Φ its derivative, μ and S of the weights' prior, Σ of the noise. The
weights are drawn back with every draw, independently and exactly, under their own names.

Noise of Student's t is Gaussian given a precision for each value, λ ~ Gamma(ν/2, ν/2), which is then
sampled beside the rest.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer import init_to_sample
from numpyro.primitives import Messenger

from numpyro_bnn._text import call_of
from numpyro_bnn.distributions.gamma import Gamma
from numpyro_bnn.distributions.linear_gaussian import LinearGaussian
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.models.affine import AFFINE, CONSTANT, dependence
from numpyro_bnn.priors.base import is_parameter, parameter
from numpyro_bnn.priors.integrated_weights import key_of
from numpyro_bnn.priors.precision_levels import UNITS, Level

Values = dict[str, Any]
_FAMILIES = (dist.Normal, dist.StudentT)


class integrate_output(Messenger):
    """The same model with the weights integrated out that the mean of its target is affine in.

    For one observed site with Gaussian noise (one scale, one an output, or one a row) or Student's t, of
    one output a row or several. The posterior over everything else is that of the model itself; the
    integrated weights are in the draws, drawn exactly, so that `predict`, `diagnose`, checkpoints and
    ArviZ see nothing new. The likelihood no longer falls apart into rows: there are no minibatches.
    A gradient costs that of the model and about 10 n p² operations more, for n targets and p weights.

    Called without a target, it is the model itself.

    :param fn: the model.
    :param sites: names of the sites to integrate out; default: every latent site with a Gaussian
        prior, outside of plates, that the mean is affine in.
    :raises ValueError: when the model is called: where no such site is left, several sites are
        observed, the target is not Gaussian or t, or the mean is not affine in all of them at once.

    >>> import jax.numpy as jnp, numpyro_bnn as bnn
    >>> from numpyro.handlers import seed, trace
    >>> model = bnn.regression(bnn.MLP((2,), 1), bnn.priors.FanIn(), jnp.ones((3, 1)), jnp.arange(3.))
    >>> whole = trace(seed(bnn.integrate_output(model), 0)).get_trace(jnp.ones((3, 1)), jnp.arange(3.))
    >>> [name for name, site in whole.items() if site["type"] == "sample"]
    ['net/Dense_0.bias', 'net/Dense_0.kernel', 'y.scale', 'y']
    """

    def __init__(self, fn: Callable | None = None, sites: Any = None) -> None:
        if isinstance(sites, str):
            sites = (sites,)
        self.sites = None if sites is None else tuple(sites)
        super().__init__(fn)

    def __repr__(self) -> str:
        return call_of("integrate_output", {"sites": self.sites} if self.sites else {}, (self.fn,))

    # NumPyro's Gibbs wants the models of its blocks to be equal.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, integrate_output):
            return NotImplemented
        return self is other or (self.fn == other.fn and self.sites == other.sites)

    def __hash__(self) -> int:
        return hash((self.fn, self.sites))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = partial(self.fn, *args, **kwargs)
        looked = _look_at(model)
        if not looked.observed:
            return model()
        target = _target(looked)
        weights = _chosen(looked, target, self.sites)
        others = _Others(weights, target)
        with others:
            model()
        shape = jnp.shape(others.observed)

        def at(values: Values) -> dict[str, Any]:
            """The sites of the model at values of the weights, seen by no handler outside."""
            return _trace(model, others.values | values)

        def mean_at(values: Values) -> jax.Array:
            return jnp.broadcast_to(unwrapped(at(values)[target]["fn"]).loc, shape)

        zeros = {name: jnp.zeros(looked.shapes[name]) for name in weights}
        unflatten = ravel_pytree(zeros)[1]
        loc, scale = (
            ravel_pytree({name: _parameters(others.priors[name], part) for name in weights})[0]
            for part in ("loc", "scale")
        )
        mean, derivative = jax.linearize(mean_at, zeros)
        columns = jax.vmap(lambda unit: derivative(unflatten(unit)))(jnp.diag(scale))
        law = LinearGaussian(
            mean + derivative(unflatten(loc)),
            jnp.moveaxis(columns, 0, -1),
            _noise(target, others.law, shape),
        )
        value = numpyro.sample(target, law, obs=others.observed)
        key = key_of(target, list(others.values.values()))
        drawn = unflatten(loc + scale * law.weights_given(key, others.observed))
        for name, site in at(drawn).items():
            if site["type"] == "deterministic":
                _record(site)
            elif name in drawn and not name.endswith(".base"):
                parameter(name, drawn[name])
        return value


class _Looked(NamedTuple):
    """What a model consists of, found without computing anything.

    - **shapes** - of the latent sites
    - **candidates** - latent sites with a Gaussian prior, outside of plates
    - **observed** - law of each observed site
    - **scaled** - observed sites whose log density a handler multiplies
    - **program** - from the latent values to what the laws of all sites are made of
    - **owners** - site and part of each output of the program
    """

    shapes: dict[str, tuple[int, ...]]
    candidates: list[str]
    observed: dict[str, dist.Distribution]
    scaled: list[str]
    program: Any
    owners: list[tuple[str, str]]


def _trace(model: Callable, values: Mapping[str, Any]) -> dict[str, Any]:
    """A trace of the model that handlers outside do not see; what has no value is drawn."""
    seeded = substitute(seed(model, jax.random.key(0)), substitute_fn=init_to_sample)
    with block(hide_fn=_is_record):
        return dict(trace(substitute(seeded, data=dict(values))).get_trace())


def _is_record(message: dict[str, Any]) -> bool:
    """Messages that would leave a record outside; others (coordinates, keys, networks) pass."""
    return message["type"] in ("sample", "deterministic", "param", "plate", "mutable")


def _look_at(model: Callable) -> _Looked:
    kept: dict[str, Any] = {}

    def shapes(key: jax.Array) -> jax.Array:
        for name, site in _trace(model, {}).items():
            if site["type"] == "sample":
                kept[name] = {"shape": jnp.shape(site["value"]), **site, "value": None}
        return key

    jax.eval_shape(shapes, jax.random.key(0))
    observed = [name for name, site in kept.items() if site["is_observed"]]
    latent = {
        name: site["shape"]
        for name, site in kept.items()
        if name not in observed and not site["fn"].support.is_discrete
    }
    owners: list[tuple[str, str]] = []

    def laws(values: Values) -> list[Any]:
        owners.clear()
        parts: list[Any] = []
        for name, site in _trace(model, values).items():
            if site["type"] != "sample":
                continue
            base = unwrapped(site["fn"])
            if name in observed and isinstance(base, _FAMILIES):
                own = [(part, getattr(base, part)) for part in base.arg_constraints]
            else:
                own = [("law", leaf) for leaf in jax.tree.leaves(site["fn"])]
            owners.extend((name, part) for part, _ in own)
            parts.extend(leaf for _, leaf in own)
        return parts

    kinds = {
        name: jax.ShapeDtypeStruct(shape, jnp.zeros(()).dtype) for name, shape in latent.items()
    }
    program = jax.make_jaxpr(laws)(kinds).jaxpr
    candidates = [
        name
        for name in latent
        if isinstance(unwrapped(kept[name]["fn"]), dist.Normal)
        and not kept[name]["cond_indep_stack"]
        and kept[name]["scale"] is None
    ]
    families = {name: unwrapped(kept[name]["fn"]) for name in observed}
    scaled = [name for name in observed if kept[name]["scale"] is not None]
    return _Looked(latent, candidates, families, scaled, program, list(owners))


def _target(looked: _Looked) -> str:
    """The one observed site whose law is Gaussian or t."""
    targets = [name for name, law in looked.observed.items() if isinstance(law, _FAMILIES)]
    if len(targets) != 1:
        laws = {name: type(law).__name__ for name, law in looked.observed.items()}
        raise ValueError(
            "integrate_output: expected one observed site with Gaussian or Student's t noise, and the "
            f"model observes {laws}. Use the model as it is."
        )
    if targets[0] in looked.scaled:
        raise ValueError(
            f"integrate_output: the log density of '{targets[0]}' is scaled (a minibatch, or weights "
            "of rows), and a scaled law no longer integrates. Use all rows with equal weights: no "
            "`subsample_size=`, `batch_size=` or `handlers.scale`."
        )
    return targets[0]


def _chosen(looked: _Looked, target: str, sites: tuple[str, ...] | None) -> list[str]:
    """Latent sites to integrate out."""
    alone = {name: _trouble(looked, target, [name]) for name in looked.candidates}
    if sites is None:
        weights = [name for name, trouble in alone.items() if trouble == ""]
        if not weights:
            raise ValueError(
                "integrate_output: no latent site has a Gaussian prior and a mean of "
                f"'{target}' that is affine in it. The Gaussian ones are {looked.candidates}; priors of "
                "Student's t and collapsed coordinates are not Gaussian (use "
                '`parameterize(model, "noncentered")`).'
            )
    else:
        weights = [n for n in looked.shapes if n in sites or n.removesuffix(".base") in sites]
        unknown = [n for n in sites if n not in weights and f"{n}.base" not in weights]
        if unknown:
            raise ValueError(
                f"integrate_output: sites names {unknown}, which the model does not have; it has "
                f"{list(looked.shapes)}."
            )
        for name in weights:
            if name not in alone:
                raise ValueError(
                    f"integrate_output: the prior of '{name}' is not Gaussian, or is inside a plate or "
                    f"scaled. The sites that could be integrated out are {looked.candidates}."
                )
    trouble = _trouble(looked, target, weights)
    if trouble:
        raise ValueError(
            f"integrate_output: the model is not linear in {weights} at once: {trouble}. Name those "
            "of one layer with `sites=[…]`."
        )
    return weights


def _trouble(looked: _Looked, target: str, weights: list[str]) -> str:
    """Why these weights cannot be integrated out; empty where they can, "unused" where they do nothing."""
    names = sorted(looked.shapes)  # as JAX orders the entries of a mapping
    marked = [AFFINE if name in weights else CONSTANT for name in names]
    found = dependence(looked.program, marked)
    uses = False
    for (site, part), kind in zip(looked.owners, found):
        if site == target and part == "loc":
            uses = uses or kind == AFFINE
            if kind > AFFINE:
                return f"the mean of '{target}' is not"
        elif kind != CONSTANT:
            return f"the {part} of '{site}' depends on them"
    return "" if uses else f"the mean of '{target}' does not depend on them"


class _Others(Messenger):
    """Samples what is not integrated out, and keeps the laws of the rest from the handlers outside.

    - **values** - of the sites that are sampled
    - **priors** - laws of the weights
    - **law**, **observed** - of the target
    """

    def __init__(self, weights: list[str], target: str) -> None:
        self.weights = set(weights)
        self.target = target
        self.values: Values = {}
        self.priors: dict[str, dist.Distribution] = {}
        self.law: Any = None
        self.observed: Any = None
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
            self.law, self.observed = msg["fn"], msg["value"]
            msg["stop"] = True
        elif self._governs(msg["infer"].get("hierarchy")):
            # Its law given all else is not what it was: the samplers of precisions may not use it.
            msg["infer"] = {k: v for k, v in msg["infer"].items() if k != "hierarchy"}

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and not msg["is_observed"] and msg["name"] not in self.weights:
            self.values[msg["name"]] = msg["value"]

    def _governs(self, level: Any) -> bool:
        """Whether a level is one above integrated weights, or above the target's noise."""
        if not isinstance(level, Level):
            return False
        below = {*level.members, *(child.site.removesuffix(UNITS) for child in level.children)}
        integrated = {name.removesuffix(".base") for name in self.weights}
        return level.of_noise or bool(below & integrated)


def _parameters(law: dist.Distribution, part: str) -> jax.Array:
    return jnp.broadcast_to(getattr(unwrapped(law), part), law.shape())


def _noise(target: str, law: dist.Distribution, shape: tuple[int, ...]) -> jax.Array:
    """Standard deviations of the noise, those of t noise given a precision for each value."""
    base = unwrapped(law)
    scale = jnp.broadcast_to(base.scale, shape)
    if isinstance(base, dist.Normal):
        return scale
    half = jnp.broadcast_to(base.df, shape) / 2
    own = numpyro.sample(f"{target}.case_precision", Gamma(half, half).to_event(len(shape)))
    return scale / jnp.sqrt(own)


def _record(site: Mapping[str, Any]) -> None:
    """A deterministic site of the inner trace, for the handlers outside."""
    made = parameter if is_parameter(site) else numpyro.deterministic
    made(site["name"], site["value"])
