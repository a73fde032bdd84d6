r"""The methods that are compared on CIFAR-10, as configurations over the public API.

Step sizes are given as Izmailov et al. (2021) give them: the step multiplies the gradient of the
*summed* log joint. With l that step, b the momentum, g the gradient of U and T = 1 their update is

    m ← b m - √l g + √(2 (1 - b)) ξ,        θ ← θ + √l m,

so that in the conventions of this package

- without momentum, SGLD with ε = 2 l (drift ε/2 = l, noise √ε);
- SGHMC with the time step h = √l and friction (1 - b) / h: the same update, draw for draw;
- BAOAB with h = √l and friction -log(b) / h, for which its momentum is kept to the same share;
- a preconditioner of the *mean* loss (RMSprop here) is N times that of the sum: h = √(l / N).

Where the step changes along a cosine (cyclical methods) h = √l(t) and the friction per unit time
stays that of the peak: a departure, for the paper keeps the momentum b. Another: metrics are
frozen after warm-up, so that the posterior is what is sampled.
"""

import math
from typing import Any, Literal, NamedTuple

import numpyro_bnn as bnn

# Share of the steps before the first draw that counts, for methods without cycles.
_BURN_IN = 0.25
# Share of a cycle that explores, and draws of the rest.
_EXPLORATION, _DRAWS_OF_CYCLE = 0.8, 10


class Sampling(NamedTuple):
    """A method that samples.

    - **kernel** - name of the sampler in the package
    - **step** - multiplies the gradient of the summed log joint; None for one that is found in
      warm-up by its acceptance
    - **momentum** - share of it that a step keeps
    - **gradient** - how it is estimated
    - **cycle** - epochs of a cosine cycle; None without cycles
    - **rmsprop** - whether it has that metric
    """

    kernel: str
    step: float | None
    momentum: float = 0.0
    gradient: Literal["minibatch", "control_variate", "svrg"] = "minibatch"
    cycle: float | None = None
    rmsprop: bool = False


# Steps, momenta and cycles of the paper where it has the method. Ours are: the step of BAOAB,
# that of SGHMC, for the bias of both is of second order; AMAGOLD, whose step its acceptance
# decides; and the step under RMSprop, which moves a typical weight as far as the others do.
SAMPLERS = {
    "sgld": Sampling("SGLD", 1e-6),
    "sghmc": Sampling("SGHMC", 3e-7, 0.9),
    "cyclical_sghmc": Sampling("SGHMC", 3e-7, 0.95, cycle=50),
    "cyclical_sghmc_rmsprop": Sampling("SGHMC", 3e-5, 0.95, cycle=50, rmsprop=True),
    "baoab": Sampling("BAOAB", 3e-7, 0.9),
    "baoab_control_variate": Sampling("BAOAB", 3e-7, 0.9, gradient="control_variate"),
    "baoab_svrg": Sampling("BAOAB", 3e-7, 0.9, gradient="svrg"),
    "cyclical_baoab": Sampling("BAOAB", 3e-7, 0.95, cycle=50),
    "amagold": Sampling("AMAGOLD", None),
}


class Training(NamedTuple):
    """Stochastic gradient descent with a cosine: members of an ensemble, and modes.

    - **step** - at the start; multiplies the gradient of the summed log joint
    - **momentum** - of the optimiser
    - **epochs** - passes over the data
    - **segments** - parts after which a member is kept on disk
    - **members** - of the deep ensemble
    """

    step: float = 3e-7
    momentum: float = 0.9
    epochs: float = 500
    segments: int = 5
    members: int = 10


class Swag(NamedTuple):
    """A Gaussian around the iterates after training (Maddox et al. 2019, section 5).

    - **step** - constant; plain descent at half of what training moves at the start, where
      momentum makes its step ten times as effective
    - **warmup** - epochs before the first iterate
    - **snapshots**, **rank** - iterates, one an epoch, and those of the low-rank half
    - **draws** - from the Gaussian
    """

    step: float = 1.5e-6
    warmup: int = 5
    snapshots: int = 40
    rank: int = 20
    draws: int = 100


class MeanField(NamedTuple):
    """Independent Gaussians fitted with Adam, whose rate falls along a cosine.

    - **rate** - at the start
    - **scale** - standard deviations at the start
    - **epochs** - passes over the data
    - **draws** - from the Gaussians
    """

    rate: float = 1e-3
    scale: float = 0.01
    epochs: float = 300
    draws: int = 100


# Draws of the last layer in its Gaussian, and what its curvature costs: 650 columns (16-32-64
# filters), 32 at a time, each time forwards through the network twice: two thirds of a gradient.
LAPLACE_DRAWS = 100
CURVATURE_EPOCHS = math.ceil(650 / 32) * 2 / 3


class Plan(NamedTuple):
    """How long a sampler runs, in calls of its `sample`.

    - **num_warmup** - calls that are discarded
    - **num_samples** - calls after them
    - **thinning** - calls to a draw
    - **every** - calls to a checkpoint
    """

    num_warmup: int
    num_samples: int
    thinning: int
    every: int


def time_step(method: Sampling, data_size: int) -> float:
    """h of a momentum method; at the peak of a cycle."""
    if method.step is None:
        raise ValueError(f"time_step: {method.kernel} finds its own step; it has none to convert.")
    return math.sqrt(method.step / (data_size if method.rmsprop else 1))


def friction(method: Sampling, data_size: int) -> float:
    """Per unit time; keeps the share `momentum` in a step of :func:`time_step`."""
    lost = -math.log(method.momentum) if method.kernel == "BAOAB" else 1 - method.momentum
    return lost / time_step(method, data_size)


def kernel_of(method: Sampling, model: Any, data_size: int, batch_size: int) -> bnn.SGMCMC:
    """The kernel of a configuration.

    :param method: the configuration.
    :param model: the posterior.
    :param data_size: training images, N.
    :param batch_size: images in a minibatch.
    """
    epoch = data_size // batch_size
    named = getattr(bnn, method.kernel)
    if method.step is None:
        return named(model, step_size="auto", num_steps=epoch, batch_size=batch_size)
    if not method.momentum:
        return named(model, step_size=2 * method.step, batch_size=batch_size)
    gradient = {
        "minibatch": lambda: bnn.gradients.minibatch(batch_size),
        "control_variate": lambda: bnn.gradients.control_variate(batch_size),
        "svrg": lambda: bnn.gradients.svrg(batch_size, period=epoch),
    }[method.gradient]()
    step_size: Any = time_step(method, data_size)
    if method.cycle is not None:
        peak = data_size * step_size**2
        cycle = bnn.schedules.cyclical(peak, round(method.cycle * epoch), _EXPLORATION)
        step_size = bnn.schedules.from_learning_rate(cycle, data_size, momentum=True)
    return named(
        model,
        step_size=step_size,
        friction=friction(method, data_size),
        gradient=gradient,
        preconditioner=bnn.preconditioners.rmsprop() if method.rmsprop else None,
    )


def plan_of(
    method: Sampling, epochs: float, data_size: int, batch_size: int, safe: float = 10
) -> Plan:
    """How long a sampler runs for so many passes over the data; see :func:`gradients_of`.

    :param safe: epochs of steps between checkpoints.
    :raises ValueError: if `epochs` are too few for a draw.
    """
    epoch = data_size // batch_size
    fixed, each = _cost(method, epoch)
    steps = int((epochs * epoch - fixed) / each)
    every = max(1, round(safe * (1 if method.step is None else epoch)))
    if method.cycle is not None:
        # Whole cycles, after as many steps of warm-up at the peak.
        length, kept = _cycle(method, epoch)
        cycles = steps // length - 1
        thinning = max(1, kept // _DRAWS_OF_CYCLE)
        plan = Plan(length, cycles * kept, thinning, min(kept, every))
    elif method.step is None:
        warmup = math.ceil(_BURN_IN * steps)
        plan = Plan(warmup, steps - warmup, 1, every)
    else:
        thinning = min(epoch, max(1, steps // 2))
        draws = int((1 - _BURN_IN) * steps / thinning)
        plan = Plan(steps - draws * thinning, draws * thinning, thinning, every)
    if plan.num_samples < 1:
        raise ValueError(
            f"{method.kernel}: {epochs} epochs of {epoch} steps are too few for a draw of "
            f"{method}. Give more with --epochs."
        )
    return plan


def gradients_of(
    method: Sampling, plan: Plan, draws: int, data_size: int, batch_size: int
) -> float:
    """Minibatch gradients of one chain up to a draw.

    Gradients at anchors count as many as they have minibatches, and an energy on all rows, which
    goes through the network forwards only, a third of that.

    :param draws: after warm-up.
    """
    epoch = data_size // batch_size
    fixed, each = _cost(method, epoch)
    calls: float = draws * plan.thinning
    if method.cycle is not None:
        length, kept = _cycle(method, epoch)
        calls *= length / kept
    return fixed + each * (plan.num_warmup + calls)


def _cycle(method: Sampling, epoch: int) -> tuple[int, int]:
    """Steps of a cycle, and calls in it: one runs through its exploration, then one a step."""
    assert method.cycle is not None
    length = round(method.cycle * epoch)
    return length, length - round(_EXPLORATION * length)


def _cost(method: Sampling, epoch: int) -> tuple[float, float]:
    """Minibatch gradients at the start, and of a step (of a trajectory for AMAGOLD)."""
    if method.step is None:
        return 0.0, epoch * 4 / 3
    # An anchor is a gradient on all rows: one in the run, or one an epoch of steps.
    return {"minibatch": (0.0, 1.0), "control_variate": (epoch, 2.0), "svrg": (0.0, 3.0)}[
        method.gradient
    ]
