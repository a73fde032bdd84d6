"""Optimised starts: a chain over the weights of a network never begins at a raw prior draw."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from numpyro.distributions import biject_to, constraints
from tqdm.auto import tqdm

from numpyro_bnn.chains import Arguments
from numpyro_bnn.potential import Potential, Values, begin_fit, check_key, explain_tracing
from numpyro_bnn.start import centered, check_names, fill_precisions, own_coordinates, shrink


@explain_tracing()
def optimize(
    model: Callable,
    key: jax.Array,
    *args: Any,
    num_chains: int = 1,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 5000,
    batch_size: int | None = None,
    tolerance: float = 1e-3,
    init_params: dict[str, jax.Array] | None = None,
    progress_bar: bool = True,
    **kwargs: Any,
) -> Values:
    """Minimise the potential energy from several starts, one a chain.

    Starts are prior draws, with kernels shrunk to variance 1/fan-in where the prior is wider.
    Weights and everything without a hierarchical precision are optimised in centred
    coordinates. Hierarchical precisions have no joint mode with their weights worth finding,
    so at every step they are held at their conditional means given the weights; this minimises
    the energy with the precisions integrated out. All chains run together under ``jax.vmap``
    and stop together, when a block of steps lowers the mean energy of none of them by more
    than a fraction `tolerance`.

    :param model: a NumPyro model.
    :param key: random key.
    :param args: arguments of the model.
    :param num_chains: number of starts.
    :param optimizer: an optax optimiser of the energy in nats; default Adam with step 0.01.
    :param num_steps: most steps to take; 0 returns the starts.
    :param batch_size: rows in a minibatch; all rows where None. The model must have a plate.
    :param tolerance: relative improvement over 100 steps below which to stop.
    :param init_params: weights to begin at, such as :func:`numpyro_bnn.from_params` gives, the
        same for every chain; other sites begin at prior draws.
    :param progress_bar: show the energy while it falls.
    :param kwargs: keyword arguments of the model.
    :return: unconstrained values of every latent site, with a leading axis of `num_chains`:
        `init_params` for :meth:`numpyro_bnn.MCMC.run`.
    :raises ValueError: if a number is out of range, if the model has discrete latent sites, if
        it cannot be subsampled, or if the energy is not finite at the end.
    """
    if not (isinstance(num_chains, int) and num_chains >= 1):
        raise ValueError(f"optimize: num_chains must be a positive integer, got {num_chains!r}.")
    if not (isinstance(num_steps, int) and num_steps >= 0):
        raise ValueError(f"optimize: num_steps must not be negative, got {num_steps!r}.")
    check_key("optimize", key)
    begin_fit(model, args, kwargs)
    potential = Potential(model, args, kwargs)
    plate, size = ("", 0) if batch_size is None else potential.data_plate()
    if batch_size is not None and not 0 < batch_size <= size:
        raise ValueError(
            f"optimize: batch_size must be between 1 and the {size} rows of plate '{plate}', got "
            f"{batch_size}."
        )
    arguments = Arguments.split(args, kwargs)
    rebuild = partial(_potential, model, arguments.static)
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    key_start, key_steps = jax.random.split(key)

    def begin(key: jax.Array, arrays: list[Any]) -> Values:
        return _begin(rebuild(arrays), key, init_params or {})

    def step(carry: tuple, key: jax.Array, arrays: list[Any]) -> tuple:
        z, moments = carry
        around = rebuild(arrays)

        def energy(z: Values) -> jax.Array:
            full = _with_precisions(around, z)
            if batch_size is None:
                return around(full)
            rows = jax.random.choice(key, size, (batch_size,), replace=False)
            return around.minibatch(full, rows, plate)

        value, gradient = jax.value_and_grad(energy)(z)
        updates, moments = optimizer.update(gradient, moments, z)
        return (optax.apply_updates(z, updates), moments), value

    @jax.jit
    def block(carry: tuple, keys: jax.Array, arrays: list[Any]) -> tuple:
        def chain(carry: tuple, keys: jax.Array) -> tuple:
            energies: jax.Array
            carry, energies = lax.scan(lambda c, k: step(c, k, arrays), carry, keys)
            return carry, jnp.mean(energies)

        return jax.vmap(chain)(carry, keys)

    @jax.jit
    def finish(z: Values, arrays: list[Any]) -> tuple[Values, jax.Array]:
        def chain(z: Values) -> tuple[Values, jax.Array]:
            around = rebuild(arrays)
            values = fill_precisions(around, around.constrain(_with_precisions(around, z)))
            own = own_coordinates(Potential(model, around.args, around.kwargs), values)
            return own, Potential(model, around.args, around.kwargs)(own)

        return jax.vmap(chain)(z)

    arrays = [jnp.asarray(a) for a in arguments.arrays]
    z = jax.jit(jax.vmap(begin, in_axes=(0, None)))(jax.random.split(key_start, num_chains), arrays)
    carry = (z, jax.vmap(optimizer.init)(z))
    length = min(100, num_steps)
    last = jnp.full(num_chains, jnp.inf)
    with tqdm(total=num_steps, desc="optimise", disable=not progress_bar) as bar:
        for i in range(num_steps // length if length else 0):
            keys = jax.random.split(jax.random.fold_in(key_steps, i), (num_chains, length))
            carry, energy = block(carry, keys, arrays)
            bar.set_postfix_str(f"potential energy {energy.mean():.4g}", refresh=False)
            bar.update(length)
            if jnp.all(last - energy < tolerance * jnp.abs(energy)) and i > 0:
                break
            last = jnp.minimum(last, energy)
    z, energy = finish(carry[0], arrays)
    if not jnp.all(jnp.isfinite(energy)):
        bad = [int(c) for c in jnp.flatnonzero(~jnp.isfinite(energy))]
        raise ValueError(
            f"optimize: the potential energy of start(s) {bad} is not finite. Check the data for "
            "NaN or infinite values, or use a smaller learning rate: `optimizer=optax.adam(1e-3)`."
        )
    return z


def _potential(model: Callable, static: tuple, arrays: list[Any]) -> Potential:
    """The centred potential, built again inside a compiled function."""
    args, kwargs = Arguments.join(arrays, static)
    return centered(Potential(model, args, kwargs))


def _begin(around: Potential, key: jax.Array, given: dict[str, jax.Array]) -> Values:
    """Unconstrained start of everything but the precisions."""
    drawn = around.prior_draw(key)
    check_names(given, drawn)
    for name, value in given.items():
        if jnp.shape(value) != jnp.shape(drawn[name]):
            raise ValueError(
                f"optimize: init_params give '{name}' the shape {jnp.shape(value)}, the model has "
                f"{jnp.shape(drawn[name])}. Give one start, which serves every chain."
            )
    values = {name: shrink(name, value) for name, value in drawn.items()} | given
    unconstrained = around.unconstrain(values)
    return {k: v for k, v in unconstrained.items() if k not in around.structure.groups}


def _with_precisions(around: Potential, z: Values) -> Values:
    """Add unconstrained precisions at their conditional means, as constants."""
    to_unconstrained = biject_to(constraints.positive).inv
    full = dict(z)
    for name, group in around.structure.groups.items():
        mean = group.conditional(z).mean
        full[name] = lax.stop_gradient(to_unconstrained(mean))
    return full
