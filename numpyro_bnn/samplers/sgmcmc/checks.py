"""Checks of a kernel's arguments before anything is traced: values in range, ingredients that fit."""

from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._checks import check_whole
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import refuse_network
from numpyro_bnn.distributions.linear_gaussian import LinearGaussian
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.priors.precision_conditionals import GammaScaleMixture
from numpyro_bnn.samplers.kernels import refuse_temperature
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics
from numpyro_bnn.samplers.sgmcmc.gradients import ANCHORS, Estimator
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.schedules import Schedule

# A variance of the gradient: known, or estimated in warm-up.
GradientNoise = PyTree | Literal["auto"]


def check_first(owner: str, what: str, schedule: Schedule, reason: str) -> None:
    """Refuse a schedule that begins at 0; `reason` also says what to do."""
    first = schedule(0)
    if not isinstance(first, jax.core.Tracer) and not first > 0:
        raise ValueError(f"{owner}: the {what} at count 0 is {first}, and {reason}")


def check_friction(
    owner: str, friction: float | None, method: Dynamics, positive: bool = False
) -> None:
    """Check the argument `friction`."""
    check_momentum(owner, method, friction=friction)
    if friction is None:
        return
    if not (friction > 0 if positive else friction >= 0):
        wanted = "be positive" if positive else "not be negative"
        raise ValueError(
            f"{owner}: friction must {wanted}, got friction={friction}. For no friction use HMC."
        )


def check_momentum(owner: str, method: Dynamics, **given: object) -> None:
    """Refuse settings of momenta where the method has none."""
    for name, value in given.items():
        if value is not None and not method.has_momentum:
            raise ValueError(
                f"{owner}: {name}={value}, but this method has no momentum. Leave {name} out, or use BAOAB."
            )


def check_changed(owner: str, method: Dynamics) -> None:
    """Refuse a method that has no half kick to take back, where something changes between its steps."""
    if method.pending_kick < 0:
        raise ValueError(
            f"{owner}: {method} ends with its kick, half of which belongs to the next step. Gibbs, moves and "
            "fresh momenta come between the two: begin the word with the kick, as in Splitting('BAOA')."
        )


def check_gradient_noise(
    owner: str,
    gradient_noise: GradientNoise,
    method: Dynamics,
    rule: Metropolis | None,
    gradient: Estimator,
) -> None:
    """Check the argument `gradient_noise`."""
    if isinstance(gradient_noise, str):
        if gradient_noise != "auto":
            raise ValueError(
                f'{owner}: gradient_noise must be a variance or "auto", got {gradient_noise!r}.'
            )
    elif isinstance(gradient_noise, (int, float, np.floating)):
        if gradient_noise == 0:
            return
        if not gradient_noise > 0:
            raise ValueError(
                f"{owner}: gradient_noise is a variance and must not be negative, got {gradient_noise}."
            )
    if rule is not None or not method.subtracts_noise:
        raise ValueError(
            f"{owner}: gradient_noise={gradient_noise!r} is taken off the noise of BAOAB, SGHMC, SGLD and "
            "PSGLD without Metropolis correction only. Leave it out; SGNHT absorbs noise of unknown size."
        )
    in_turn = gradient.batch_size is not None and not gradient.independent
    if in_turn and isinstance(gradient_noise, str):
        raise ValueError(
            f'{owner}: gradient_noise="auto" needs minibatches that are independent of each other, and '
            f"gradient={gradient} goes through all rows: its noise adds up to 0 over them, so that slow "
            'directions would be too cold. Give batch_size alone, or order="replacement".'
        )


def check_noise_in_warmup(owner: str, gradient: Estimator, num_warmup: int) -> None:
    """Check that warm-up is long enough to estimate the variance of gradients in it."""
    if not num_warmup:
        raise ValueError(
            f'{owner}: gradient_noise="auto" is estimated in warm-up, but num_warmup=0. Give it some steps.'
        )
    period = getattr(gradient, "period", None)
    if period is not None and ANCHORS * period > num_warmup:
        raise ValueError(
            f'{owner}: gradient_noise="auto" is estimated in warm-up, but num_warmup={num_warmup} steps '
            f"have no {ANCHORS} anchors that are {period} steps apart, and noise is larger far from an "
            f"anchor than near it. Give num_warmup={ANCHORS * period}, or svrg a period of "
            f"{max(1, num_warmup // ANCHORS)} or none."
        )


def check_part(owner: str, label: str, part: object, kind: type) -> None:
    """Refuse an ingredient that is no object of its module, such as a name."""
    if not isinstance(part, kind):
        raise TypeError(f"{owner}: {label} must be made by `bnn.{label}s`, got {part!r}.")


def check_target(
    owner: str,
    model: Callable | None,
    potential_fn: Callable | None,
    batch_size: int | None,
    gradient: Estimator,
) -> None:
    """Check that there is a model or a potential, and a model for minibatches."""
    refuse_network(model)
    if (model is None) == (potential_fn is None):
        raise ValueError(
            f"{owner}: expected either a model or potential_fn, got model={model} and "
            f"potential_fn={potential_fn}."
        )
    if batch_size is not None and gradient.batch_size != check_whole(
        owner, "batch_size", batch_size
    ):
        raise ValueError(
            f"{owner}: batch_size={batch_size}, but gradient={gradient} has "
            f"batch_size={gradient.batch_size}. Give the size to the estimator only."
        )


def check_fit(
    owner: str,
    method: Dynamics,
    gradient: Estimator,
    preconditioner: Preconditioner,
    rule: Metropolis | None,
) -> None:
    """Check that the ingredients fit each other."""
    if preconditioner.varies and (method.has_momentum or rule is not None):
        raise ValueError(
            f"{owner}: {preconditioner} goes on changing after warm-up, which only SGLD and PSGLD "
            "correct for. Freeze it (gamma_term=False)."
        )
    some_rows = gradient.batch_size is not None
    of_all_rows = rule is not None and (rule.caches_gradient or rule.needs_all_rows)
    if some_rows and (not method.uses_gradient or of_all_rows):
        raise ValueError(
            f"{owner}: it uses all rows, but gradient={gradient} takes {gradient.batch_size} of them. "
            'For minibatches with an exact correction use `SGLD(…, accept="full")` or `AMAGOLD`; '
            "`gradients.full(chunk_size=…)` bounds the memory."
        )
    if rule is None or not rule.exact:
        return
    if gradient.follows_chain:
        raise ValueError(
            f"{owner}: gradient={gradient} depends on where the chain has been, which an exact "
            "correction cannot account for. Use `gradients.control_variate`, whose anchor stays."
        )
    if method.tracks_work and not gradient.independent:
        raise ValueError(
            f"{owner}: gradient={gradient} is not as likely in the opposite order, which an exact "
            "correction needs. Use order='replacement'."
        )


def refuse_integrals(kernel: MCMCKernel, rows: Rows) -> None:
    """Refuse another temperature than 1 where a model has weights or precisions integrated out."""
    structure = getattr(rows.potential, "structure", None)
    sites = () if structure is None else structure.sites.values()
    if any(issubclass(site.distribution, (LinearGaussian, GammaScaleMixture)) for site in sites):
        refuse_temperature(
            kernel,
            "The model has weights or precisions integrated out, an integral at temperature 1. Sample them "
            'too: leave out `integrate_output`, and take `bnn.parameterize(model, "noncentered")`.',
        )
