"""Exact draws of hierarchical precisions, as a block of NumPyro's ``Gibbs``.

Given weights and data every precision has a distribution that can be drawn from exactly, without a gradient
(:mod:`numpyro_bnn.priors.precision_conditionals`). With HMC for the weights in between this is the scheme of
R. M. Neal, *Bayesian Learning for Neural Networks* (1996), §3.2.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.gibbs import GIBBS_SITES_KWARG, CustomGibbsState, Gibbs
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import identity

from numpyro_bnn._text import ReprMixin, call_of
from numpyro_bnn.data.arguments import refuse_network
from numpyro_bnn.distributions.stable_densities import scaled, standard_gamma
from numpyro_bnn.distributions.unwrap import blanks, unwrapped
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.sites import Structure, altered
from numpyro_bnn.potential.starts import own_coordinates
from numpyro_bnn.priors.hierarchical import parameterize
from numpyro_bnn.priors.precision_conditionals import Level, levels_of
from numpyro_bnn.samplers.sgmcmc.named import WindowedHMC
from numpyro_bnn.samplers.sgmcmc.preconditioners import given_precisions


def redrawn(
    key: jax.Array, levels: dict[str, Level], values: Values, gammas: jax.Array | None = None
) -> Values:
    """Constrained values with every precision of `levels` drawn from its conditional."""
    # Gamma distributed conditionals depend on weights alone, and are independent given all else. One call
    # draws them together: a loop of proposals for each takes half a second to compile.
    values = dict(values)
    key_gammas, key = jax.random.split(key)
    shapes = {name: jnp.shape(value) for name, value in values.items()}
    if together := conjugate(levels):
        if gammas is None:
            known = concentrations(levels, shapes)
            gammas = standard_gamma(key_gammas, known, known.shape)
        ends = np.cumsum([prod(shapes[name]) for name in together])[:-1]
        parts = zip(together.items(), jnp.split(gammas, ends))
        values |= {
            name: scaled(part, level.conditional(values).rate.reshape(-1)).reshape(shapes[name])
            for (name, level), part in parts
        }
    # Levels above them, the lowest first.
    others = {name: level for name, level in levels.items() if name not in together}
    for i, (name, level) in enumerate(others.items()):
        drawn = level.draw(jax.random.fold_in(key, i), values)
        values[name] = drawn.reshape(values[name].shape)
    return values


def conjugate(levels: dict[str, Level]) -> dict[str, Level]:
    """The levels with a Gamma distributed conditional."""
    return {name: level for name, level in levels.items() if level.conjugate}


def concentrations(levels: dict[str, Level], shapes: dict[str, tuple[int, ...]]) -> np.ndarray:
    """Shape parameters of the Gamma distributed conditionals, one for each precision in order."""
    # They depend on no value, so the draws of a whole ladder can be made before its states are known.
    each = [
        np.full(prod(shapes[name]), level.shape_given(shapes))
        for name, level in conjugate(levels).items()
    ]
    return np.concatenate(each) if each else np.zeros(0)


def redrawn_on_rung(
    potential: Potential, structure: Structure, key: jax.Array, z: Values, gammas: jax.Array
) -> Values:
    """Unconstrained values with every precision drawn; `gammas` ~ Gamma(:func:`concentrations`, 1)."""
    # `structure` is that in centred coordinates. The likelihood depends on a precision of weights only
    # through these. With the weights fixed, the conditional is the same for any power of the likelihood. In
    # non-centred coordinates the standardised weights change with the precision: a step along the ridge on
    # which HMC is slow (interweaving, Yu and Meng 2011).
    values = potential.constrain(z, deterministic=True)
    values = redrawn(key, structure.levels, values, gammas)
    # Weights are kept; standardised weights in the model's own coordinates follow from them.
    return own_coordinates(potential, {name: values[name] for name in structure.latent})


def centered_model(model: Callable) -> parameterize:
    """The model in centred coordinates, where precisions are independent of the data."""
    if isinstance(model, parameterize) and model.parameterization == "centered":
        return model
    return parameterize(model, "centered")


def precision_sites(model_trace: Mapping[str, dict]) -> list[str]:
    """Names of the hierarchical precisions sampled in a trace of the model in centred coordinates."""
    names = list(levels_of(model_trace))
    if not names:
        raise ValueError(
            "PrecisionGibbs: the model has no hierarchical precision to draw. Give the network the "
            "prior `bnn.priors.Hierarchical(…)`, or the likelihood `noise=likelihoods.Precision(…)`. "
            "Precisions beside weights or precisions whose values are given (`condition`) or computed "
            "(`reparam`) are left to the gradient kernel; where there are no others, use one alone, such as "
            "`NUTS(model)`."
        )
    return names


def refuse_altered(owner: str, levels: Iterable[Level], model_trace: Mapping[str, dict]) -> None:
    """Refuse precisions whose conditional distribution a handler changes (``scale``, ``mask``)."""
    faults: dict[str, str] = {}
    for level in levels:
        for name in (level.site, *level.beside):
            if (fault := altered(model_trace[name])) is not None:
                faults[name] = fault
    if faults:
        named = ", ".join(f"'{name}' ({fault})" for name, fault in faults.items())
        raise ValueError(
            f"{owner}: handlers change the log density of {named}, and exact draws and moves are those of "
            "the prior as it is. Leave out `handlers.scale` and `handlers.mask` around the prior, or sample "
            "with a gradient kernel alone, such as `NUTS(model)`."
        )


class PrecisionGibbs(ReprMixin, MCMCKernel):
    """Draws hierarchical precisions from their exact conditional distributions, lowest level first.

    It draws the precisions of :class:`~numpyro_bnn.priors.hierarchical.Hierarchical` priors, and those of the
    noise if a likelihood of this package has a :class:`~numpyro_bnn.likelihoods.families.Precision`. Use it
    inside NumPyro's ``Gibbs``, with another kernel for the weights::

        centered = bnn.parameterize(model, "centered")
        Gibbs([(PrecisionGibbs(model), precision_sites), (HMC(centered), None)])

    It uses the model in centred coordinates, whatever coordinates the model has. The other blocks must be
    given ``bnn.parameterize(model, "centered")``, since ``Gibbs`` needs one model for all blocks.
    :func:`neal` sets all this up. Costs no gradient, and one pass over the data where it draws noise.

    :param model: a NumPyro model.
    :raises TypeError: if `model` is not callable.
    :raises ValueError: when run, for sites that are no hierarchical precision, for a prior, or a likelihood
        with a precision of the noise, that is scaled or masked, and outside of ``Gibbs``.

    Source: Neal (1996), appendix A; the updates between levels as in his Flexible Bayesian
    Modelling software, with draws by rejection in place of adaptive rejection.
    """

    sample_field = "z"

    def __init__(self, model: Callable) -> None:
        refuse_network(model)
        self._model: Callable = centered_model(model)
        self._levels: dict[str, Level] = {}

    @property
    def model(self) -> Callable:
        """The model in centred coordinates."""
        return self._model

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Values | None,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> CustomGibbsState:
        """The first state of this block of a Gibbs sampler: precisions and a random key.

        :raises ValueError: outside of NumPyro's ``Gibbs``, or for sites that are no precisions of the prior.
        """
        kwargs = model_kwargs or {}
        if not init_params or GIBBS_SITES_KWARG not in kwargs:
            raise ValueError(
                "PrecisionGibbs draws precisions given all else and is no sampler by itself. Use it "
                "as a block of NumPyro's Gibbs, or `bnn.neal(model)`."
            )
        self._levels = self._find(set(init_params), model_args, kwargs)
        values = {name: jnp.asarray(value) for name, value in init_params.items()}
        return CustomGibbsState(values, rng_key)

    def _find(self, names: set[str], args: tuple, kwargs: dict) -> dict[str, Level]:
        """The levels of the precisions to draw; refuses sites that are no precisions."""
        found: dict[str, Level] = {}

        def visit(key: jax.Array, blank: jax.Array) -> jax.Array:
            seeded = seed(substitute(self._model, substitute_fn=blanks(blank)), key)
            sites = trace(seeded).get_trace(*args, **kwargs)
            found.update(levels_of(sites, held=kwargs[GIBBS_SITES_KWARG]))
            refuse_altered("PrecisionGibbs", [found[n] for n in names & set(found)], sites)
            return key

        jax.eval_shape(visit, jax.random.key(0), 0.0)
        if others := sorted(names - set(found)):
            raise ValueError(
                "PrecisionGibbs draws hierarchical precisions beside which no value is given (`condition`), "
                f"and {others} are none. The model has {sorted(found)}; leave other sites to the block of "
                "the weights."
            )
        chosen = {name: level for name, level in found.items() if name in names}
        needed = {site for level in chosen.values() for site in level.beside}
        missing = sorted(needed - names - set(kwargs[GIBBS_SITES_KWARG]))
        if missing:
            raise ValueError(
                f"PrecisionGibbs needs the sites {missing}, which the other blocks do not have: they "
                'see the model in other coordinates. Give them `bnn.parameterize(model, "centered")`, '
                "or use `bnn.neal(model)`."
            )
        return chosen

    def sample(
        self, state: CustomGibbsState, model_args: tuple, model_kwargs: dict | None
    ) -> CustomGibbsState:
        """Draw every precision from its conditional distribution given all other values."""
        kwargs = model_kwargs or {}
        key, *keys = jax.random.split(state.rng_key, 1 + len(self._levels))
        values = {**kwargs.get(GIBBS_SITES_KWARG, {}), **state.z}
        values |= self._residuals(values, model_args, kwargs)
        for key_level, (name, level) in zip(keys, self._levels.items()):
            drawn = level.draw(key_level, values)
            values[name] = drawn.astype(state.z[name].dtype).reshape(state.z[name].shape)
        return CustomGibbsState({name: values[name] for name in state.z}, key)

    def _residuals(self, values: Values, args: tuple, kwargs: dict) -> Values:
        """Residuals of the observed sites whose noise is drawn, in units of that noise."""
        levels = [level for level in self._levels.values() if level.of_noise]
        observed = {site for level in levels for site in level.members}
        if not observed:
            return {}
        # With precision 1 the noise has scale 1.
        own = {name: values[name] for name in self._levels}
        own |= {level.site: jnp.ones_like(own[level.site]) for level in levels}
        bound = substitute(seed(self._model, jax.random.key(0)), data=own)
        sites = trace(bound).get_trace(*args, **kwargs)
        return {name: _standard_residual(name, sites[name]) for name in sorted(observed)}

    def refresh(
        self, state: CustomGibbsState, model_args: tuple, model_kwargs: dict | None
    ) -> CustomGibbsState:
        """Return the state unchanged, because nothing in it depends on sites of other blocks."""
        return state

    def wrap_model(self, wrapper: Callable) -> "PrecisionGibbs":
        """This kernel with `wrapper` applied to its model."""
        kernel = copy.copy(self)
        kernel._model = wrapper(self._model)
        kernel._levels = {}
        return kernel

    def get_constrain_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """The identity: precisions are stored as constrained values."""
        return identity


def _standard_residual(name: str, site: dict[str, Any]) -> jax.Array:
    distribution = unwrapped(site["fn"])
    if site["scale"] is not None or not isinstance(distribution, (dist.Normal, dist.StudentT)):
        raise ValueError(
            f"PrecisionGibbs: the observed site '{name}' is scaled, masked or subsampled, so that the "
            "distribution of its noise given the data is not known. Leave its precision to the block of the "
            "weights."
        )
    return (site["value"] - distribution.loc) / distribution.scale


class NealGibbs(Gibbs):
    """NumPyro's Gibbs of precisions and weights, with a `repr` that shows its parts."""

    def __init__(self, model: Callable, weights: MCMCKernel) -> None:
        self.weights = weights
        super().__init__([(PrecisionGibbs(model), precision_sites), (weights, None)])

    def __repr__(self) -> str:
        kind = type(self.weights)
        # The `repr` of NumPyro's kernels does not show their settings.
        shown = self.weights if kind.__repr__ is not object.__repr__ else kind
        return call_of("neal", {}, (shown,))


def neal(model: Callable, kernel: Callable[..., MCMCKernel] = WindowedHMC, **options: Any) -> Gibbs:
    """Neal's scheme: exact draws of all precisions, then weights by a gradient kernel given them.

    Weights, and whatever else the model has, are one block, in centred coordinates. By default its
    kernel is Neal's too: trajectories accepted by windows, and for every weight a step size computed from the
    current precisions and the data (:func:`~numpyro_bnn.preconditioners.given_precisions`).

    :param model: a NumPyro model with a :class:`~numpyro_bnn.priors.hierarchical.Hierarchical` prior, in
        whatever coordinates.
    :param kernel: class of the kernel of the weights, such as ``numpyro.infer.NUTS``; called as
        ``kernel(model, **options)``. Kernels other than the default adapt in warm-up as usual.
    :param options: options of that kernel.
    :return: a kernel for :class:`numpyro_bnn.MCMC`.
    :raises ValueError: when run, if the model has no hierarchical precision.

    Source: R. M. Neal, *Bayesian Learning for Neural Networks* (1996), §3.2 and 3.3.
    """
    centered = centered_model(model)
    if kernel is WindowedHMC:
        options = {"preconditioner": given_precisions(), **options}
    return NealGibbs(centered, kernel(centered, **options))
