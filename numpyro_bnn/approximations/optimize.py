"""Optimised starts: a chain over the weights of a network never begins at a raw prior draw."""

import math
from collections.abc import Callable

import jax
import numpy as np
import optax

from numpyro_bnn._checks import check_key, check_whole
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer, TrainingOptions
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.training_data import data_facts
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.starts import BoundModel


def optimize(
    model: Callable,
    key: jax.Array,
    *args: object,
    num_chains: int = 1,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 5000,
    batch_size: int | None = None,
    tolerance: float = 1e-3,
    init_params: dict[str, jax.Array] | None = None,
    progress_bar: bool = True,
    **kwargs: object,
) -> Values:
    """Minimise the potential energy from several starts, one a chain, as long as held-out rows gain.

    Each start is the best of eight prior draws by energy, kernels shrunk to variance 1/fan-in
    where the prior is wider, and in half of them every site to a root mean square of at most 1.
    Weights and everything without a hierarchical precision are optimised in centred
    coordinates. Hierarchical precisions have no joint mode with their weights worth finding,
    so at every step they are held at their conditional means given the weights; this minimises
    the energy with the precisions integrated out. A mean above the 99.9 % quantile of the prior
    counts as that quantile: a wide layer would otherwise end at zero weights, where the density
    is a spike with hardly any mass.

    A network that can interpolate its rows has no mode: density grows without bound as the noise goes to 0,
    and chains that begin there stay. So each chain holds out a fold of the rows and begins where these are
    likeliest, as the members of :func:`numpyro_bnn.deep_ensemble` do. All run together under ``jax.vmap``
    and stop together: when held-out rows have improved for none of them in 500 steps, or 100 steps lower the
    mean energy of none by more than a fraction `tolerance`, two standard errors of minibatches allowed for.
    Chains that end further above the lowest than its posterior reaches start again, twice at most, and are
    named in a warning if they stay. For a mode use :func:`numpyro_bnn.map_estimate`.

    :param model: a NumPyro model.
    :param key: random key.
    :param args: arguments of the model.
    :param num_chains: number of starts.
    :param optimizer: an optax optimiser of the energy in nats; default Adam with step 0.01.
    :param num_steps: most steps to take; 0 returns the starts.
    :param batch_size: rows in a minibatch; all rows where None. The model must have a plate.
    :param tolerance: relative improvement over 100 steps below which to stop; 0 takes every
        step, and keeps the values at which held-out rows were likeliest.
    :param init_params: weights to begin at, such as :func:`numpyro_bnn.from_params` gives, the
        same for every chain; other sites begin at prior draws.
    :param progress_bar: show the energy while it falls.
    :param kwargs: keyword arguments of the model.
    :return: unconstrained values of every latent site, with a leading axis of `num_chains`:
        `init_params` for :meth:`numpyro_bnn.MCMC.run`.
    :raises TypeError: for a keyword that neither this function nor the model takes.
    :raises ValueError: if a number is out of range, if the model has discrete latent sites, if
        it cannot be subsampled, or if the energy is not finite at the end.
    """
    num_chains = check_whole("optimize", "num_chains", num_chains)
    options = TrainingOptions(
        optimizer,
        num_steps,
        batch_size,
        tolerance,
        init_params=init_params,
        progress_bar=progress_bar,
    ).checked("optimize")
    check_key("optimize", key)
    return optimized(BoundModel.of(model, args, kwargs), key, num_chains, options)


def optimized(
    bound: BoundModel,
    key: jax.Array,
    num_chains: int,
    options: TrainingOptions,
    ends: float = math.inf,
) -> Values:
    """Starts of chains, as :func:`optimize` gives them; `ends` is a time of ``time.monotonic()``."""
    member_optimizer = MemberOptimizer("optimize", bound, options.batch_size, pads=True, ends=ends)
    z, energy = member_optimizer.fit(key, num_chains, options)
    bad = np.flatnonzero(~np.isfinite(energy)).tolist()
    if bad:
        raise ValueError(
            f"optimize: the potential energy of start(s) {bad} is not finite. "
            f"{member_optimizer.about_data()}Use a smaller learning rate: `optimizer=optax.adam(1e-3)`."
        )
    member_optimizer.name_far(energy, options)
    complete = member_optimizer.compiled(member_optimizer.completed, runs_once=True)
    return complete(z, member_optimizer.arrays)


def ensemble_of(bound: BoundModel, starts: Values) -> Draws:
    """Optimised starts as draws: each member is a chain of one draw, with its potential energy."""
    arguments = Arguments.split(*bound.padded)

    def judged(starts: Values, arrays: list[jax.Array]) -> tuple:
        potential = Potential(bound.model, *Arguments.join(arrays, arguments.static))
        both = jax.vmap(potential.constrain)(starts), jax.vmap(potential)(starts)
        return jax.tree.map(lambda leaf: leaf[:, None], both)

    values, energy = Program(judged, runs_once=True)(starts, arguments.arrays)
    stats = {"potential_energy": np.asarray(energy)}
    return Draws(values, bound.model, stats, {"approximation": True} | data_facts(bound, values))
