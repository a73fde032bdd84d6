"""What the methods on CIFAR-10 cost, on paper: floating-point operations, and hours at a given speed.

The operations of a minibatch gradient and of the logits of an image are counted by the compiler;
how many of each a method takes follows from its configuration. Draws of weights and of momenta are
not counted: a few operations a parameter, against thousands in a gradient.
"""

from typing import NamedTuple

from benchmarks.cifar10.methods import CURVATURE_EPOCHS, LAPLACE_DRAWS, gradients_of, plan_of
from benchmarks.cifar10.setup import Setup
from benchmarks.cifar10.speed import flops_of_gradient, flops_of_logits

HEAD = ("method", "epochs", "gradients", "draws", "exaflops", "share_of_predictions", "hours")
# Images whose logits are counted at a time.
_IMAGES = 80


class Work(NamedTuple):
    """What a method does, all chains or members together.

    - **gradients** - of minibatches, for an anchor or an energy as many as it is worth
    - **draws** - after each of which all test images go through the network
    """

    gradients: float
    draws: int


def work_of(name: str, setup: Setup) -> Work:
    """The gradients and the draws of one method."""
    mode, swag, mean_field = setup.training.epochs, setup.swag, setup.mean_field
    if name in setup.samplers:
        method, sizes = setup.samplers[name], (len(setup.data.train.x), setup.batch_size)
        plan = plan_of(method, setup.epochs, *sizes)
        draws = plan.num_samples // plan.thinning
        gradients = setup.chains * gradients_of(method, plan, draws, *sizes)
        anchored = method.gradient == "control_variate"
        return Work(gradients + anchored * mode * setup.epoch, setup.chains * draws)
    epochs, draws = {
        "sgd": (mode, 1),
        "deep_ensemble": (mode * setup.training.members, setup.training.members),
        "swag": (mode + swag.warmup + swag.snapshots, swag.draws),
        "laplace_last_layer": (mode + CURVATURE_EPOCHS, LAPLACE_DRAWS),
        "mean_field": (mean_field.epochs, mean_field.draws),
    }[name]
    return Work(epochs * setup.epoch, draws)


def costs(names: list[str], setup: Setup, tflops: float) -> list[tuple]:
    """Operations of methods.

    :param names: of the methods.
    :param setup: their settings.
    :param tflops: speed that is kept up, 10¹² operations a second.
    :return: rows of :data:`HEAD`.
    """
    gradient = flops_of_gradient(setup.network, setup.batch_size)
    image = flops_of_logits(setup.network, _IMAGES) / _IMAGES
    rows = []
    for name in names:
        work = work_of(name, setup)
        predictions = work.draws * len(setup.data.test.x) * image
        total = work.gradients * gradient + predictions
        rows.append(
            (
                name,
                round(work.gradients / setup.epoch),
                round(work.gradients),
                work.draws,
                f"{total / 1e18:.3g}",
                f"{predictions / total:.2g}",
                f"{total / tflops / 1e12 / 3600:.3g}",
            )
        )
    return rows
