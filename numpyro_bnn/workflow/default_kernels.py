"""The kernels that :func:`numpyro_bnn.fit` takes by name, and which of them is the default.

The command line takes the same names. Their settings were chosen by benchmarks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numpyro.infer import HMC, NUTS
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn.samplers.sgmcmc import gradients
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.named.microcanonical import MAMS, MCLMC
from numpyro_bnn.samplers.sgmcmc.named.momentum import BAOAB, GGMC

# Every hundredth step is kept of samplers that take one gradient a step.
_STEPS_A_DRAW = 100
# With more rows than this, minibatches are the default: full gradients cost more than they gain.
MANY_ROWS = 20_000
BATCH = 500
# By the median of its runs it mixes better than NUTS and MAMS in benchmarks/mixing/which_sampler.py, and it
# predicted best in benchmarks/predictions/tabular.py.
DEFAULT = "mclmc"


class Recipe(NamedTuple):
    """How to make the kernel of a name: defaults of its settings, steps to a draw that is kept."""

    make: Callable[..., MCMCKernel]
    settings: dict[str, object]
    thinning: int = 1


# About half the step size of MCLMC's own default, which biased a log precision by 0.28 sd on the digits.
_ENERGY_VARIANCE = 1e-5
_DEPTH: dict[str, Any] = {"max_tree_depth": 8}
_BOTH = {**_DEPTH, "target_accept_prob": 0.9}
KERNELS: dict[str, Recipe] = {
    "nuts": Recipe(NUTS, _BOTH),
    # A fixed number of steps, a quarter of NUTS's longest trajectory.
    "hmc": Recipe(
        lambda model, max_tree_depth, target_accept_prob: HMC(
            model,
            num_steps=max(1, 2**max_tree_depth // 4),
            trajectory_length=None,
            target_accept_prob=target_accept_prob,
        ),
        _BOTH,
    ),
    "mams": Recipe(
        lambda model, max_tree_depth, target_accept_prob: MAMS(
            model, max_num_steps=2**max_tree_depth - 1, target_accept_prob=target_accept_prob
        ),
        _BOTH,
    ),
    "ggmc": Recipe(
        lambda model, max_tree_depth: GGMC(
            model, step_size="auto", num_steps=max(1, 2**max_tree_depth // 4)
        ),
        _DEPTH,
    ),
    "mclmc": Recipe(MCLMC, {"energy_variance": _ENERGY_VARIANCE}, _STEPS_A_DRAW),
    "baoab": Recipe(lambda model: BAOAB(model, step_size="auto"), {}, _STEPS_A_DRAW),
}


def kernel_named(name: str, model: Callable, **settings: Any) -> tuple[MCMCKernel, int]:
    """Make a kernel by name, and say how many steps it takes to a draw that is kept."""
    if name not in KERNELS:
        raise ValueError(
            f"fit: kernel must be one of {sorted(KERNELS)} or a kernel over the model, got {name!r}."
        )
    recipe = KERNELS[name]
    for unknown in sorted(set(settings) - set(recipe.settings)):
        having = sorted(other for other, its in KERNELS.items() if unknown in its.settings)
        known = f"{having} have it: name one of them as `kernel`" if having else "Leave it out"
        raise ValueError(f"fit: {unknown} is not a setting of the kernel {name!r}. {known}.")
    return recipe.make(model, **(recipe.settings | settings)), recipe.thinning


def kernel_for_fit(
    kernel: str | MCMCKernel | None, model: Callable, batch_size: int | None, options: dict
) -> tuple[MCMCKernel, int]:
    """The kernel that :func:`numpyro_bnn.fit` samples with, and its steps to a draw."""
    if isinstance(kernel, MCMCKernel):
        if options or batch_size is not None:
            given = sorted(options) + ([] if batch_size is None else ["batch_size"])
            raise ValueError(
                f"fit: {given} are for kernels by name; give them to {type(kernel).__name__} itself."
            )
        unadjusted = isinstance(kernel, SGMCMC) and kernel.num_steps == 1
        return kernel, _STEPS_A_DRAW if unadjusted else 1
    if batch_size is None:
        return kernel_named(DEFAULT if kernel is None else kernel, model, **options)
    minibatched = {"baoab": BAOAB, "mclmc": MCLMC}
    name = "baoab" if kernel is None else kernel
    kernel_named(name, model, **options)
    if name not in minibatched:
        raise ValueError(
            f"fit: batch_size={batch_size}, but {name!r} uses all rows. Take one of "
            f"{sorted(minibatched)}, or leave batch_size out."
        )
    if options:
        raise ValueError(
            f"fit: {sorted(options)} are settings of {name!r} over all rows, where batch_size="
            f"{batch_size} sets the step by the curvature. Leave one of them out."
        )
    # The noise of plain minibatches makes predictions of networks too wide
    # (benchmarks/mixing/networks_beside_full_batch.py). BAOAB takes off what is left of it.
    gradient = gradients.svrg(batch_size, order="replacement", chunk_size=batch_size)
    own = {"gradient_noise": "auto"} if name == "baoab" else {}
    return minibatched[name](model, step_size="auto", gradient=gradient, **own), _STEPS_A_DRAW
