r"""Chains of stochastic-gradient samplers on CIFAR-10, which can be stopped and go on, and their scores.

Step sizes are given as Izmailov et al. (2021) give them: the step multiplies the gradient of the
*summed* log joint. With l that step, b the momentum, g the gradient of U and T = 1 their update is

    m ← b m - √l g + √(2 (1 - b)) ξ,        θ ← θ + √l m,

so that in the conventions of this package

- without momentum, SGLD with ε = 2 l (drift ε/2 = l, noise √ε);
- SGHMC with the time step h = √l and friction (1 - b) / h: the same update, draw for draw;
- BAOAB with h = √l and friction -log(b) / h, for which its momentum is kept to the same share.

Test probabilities of each draw are streamed to disk, and never its weights.
"""

import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks.cifar10.data import Data, standardized
from benchmarks.cifar10.network import ResNet, posterior_of
from numpyro_bnn import scores

# Share of the steps before the first draw that counts.
_BURN_IN = 0.25
# Test images whose R-hat is computed: of all of them it would need all draws in memory.
_JUDGED = 500
# Draws that are averaged at a time.
_BLOCK = 50
# Probabilities below the smallest that float16 holds were stored as 0.
_SMALLEST = float(np.finfo(np.float16).smallest_subnormal)


class Sampling(NamedTuple):
    """A sampler by its name in the package, its step, and the share of its momentum that a step keeps."""

    kernel: str
    step: float
    momentum: float = 0.0


# Steps and momenta of the paper. The step of BAOAB is that of SGHMC, as the bias of both is of second order.
SAMPLERS = {
    "sgld": Sampling("SGLD", 1e-6),
    "sghmc": Sampling("SGHMC", 3e-7, 0.9),
    "baoab": Sampling("BAOAB", 3e-7, 0.9),
}


def friction(method: Sampling) -> float:
    """Per unit time; keeps the share `momentum` in a time step √l."""
    lost = -math.log(method.momentum) if method.kernel == "BAOAB" else 1 - method.momentum
    return lost / math.sqrt(method.step)


def kernel_of(method: Sampling, model: Any, batch_size: int) -> bnn.SGMCMC:
    """The kernel of a sampler, with so many images in a minibatch."""
    named = getattr(bnn, method.kernel)
    if not method.momentum:
        return named(model, step_size=2 * method.step, batch_size=batch_size)
    step_size = math.sqrt(method.step)
    return named(model, step_size=step_size, friction=friction(method), batch_size=batch_size)


class Setup(NamedTuple):
    """What the samplers share."""

    data: Data  # images
    network: ResNet  # what classifies them
    batch_size: int  # images in a minibatch
    runs: Path  # folder of what is needed to go on
    results: Path  # folder of results
    epochs: float = 1000  # passes over the data
    safe_epochs: float = 10  # between checkpoints
    seed: int = 0  # of all random keys
    progress_bar: bool = True  # show how far a run is

    @property
    def epoch(self) -> int:
        """Minibatches in a pass over the data."""
        return len(self.data.train.x) // self.batch_size

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Steps of warm-up, steps after it, and steps to a draw."""
        steps = int(self.epochs * self.epoch)
        thinning = min(self.epoch, max(1, steps // 2))
        draws = int((1 - _BURN_IN) * steps / thinning)
        if draws < 1:
            raise ValueError(
                f"cifar10: {self.epochs} epochs of {self.epoch} steps are too few for a draw. Give more with "
                "--epochs."
            )
        return steps - draws * thinning, draws * thinning, thinning

    def key(self, *numbers: int) -> jax.Array:
        """A random key for a part of the work."""
        key = jax.random.key(self.seed)
        for number in numbers:
            key = jax.random.fold_in(key, number)
        return key

    @property
    def start(self) -> dict[str, jax.Array]:
        """Weights as the network itself begins."""
        # Not compiled: a program that draws a hundred arrays takes minutes to compile on a CPU.
        key = self.key(6, 0)
        values = self.network.init(key, standardized(self.data.train.x[:1]))
        return bnn.from_params(values["params"])

    def configuration(self, name: str) -> str:
        """All that decides the result of a sampler, as JSON."""
        network = [getattr(self.network, k) for k in ("filters", "blocks")]
        own = {"method": name, "sampler": SAMPLERS[name]._asdict(), "network": network}
        own |= {name: getattr(self, name) for name in ("batch_size", "epochs", "seed")}
        return json.dumps(own | {"train_images": len(self.data.train.x)})


class Result(NamedTuple):
    """What a chain predicts, and what it cost."""

    probs: np.ndarray  # mean class probabilities, float16 (test images, classes)
    # Of the probabilities of the first test images, over halves of the chain, float32 (images, classes);
    # empty where there are fewer than four draws
    rhat: np.ndarray
    epochs: float  # passes over the training data
    gradient_evaluations: float  # of minibatches
    seconds: float  # of all processes that finished their part
    num_draws: int  # in the average
    finished: bool  # whether these are all; False after an interruption
    configuration: str  # all settings, as JSON

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            np.savez_compressed(file, **self._asdict())
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Result":
        """Read what :meth:`save` wrote."""
        with np.load(path) as file:
            values = {name: file[name] for name in cls._fields}
        scalars = {k: v.item() if v.ndim == 0 else v for k, v in values.items()}
        return cls(**scalars)


def run(name: str, setup: Setup) -> Path:
    """A chain from where it stands to its file of results, which is returned; not run where that is there."""
    path = setup.results / f"{name}.npz"
    configuration = setup.configuration(name)
    if path.exists():
        before = Result.load(path)
        if before.finished and before.configuration == configuration:
            return path
    train, test = setup.data
    warmup, samples, thinning = setup.lengths
    folder = setup.runs / name
    mcmc = bnn.MCMC(
        kernel_of(SAMPLERS[name], posterior_of(setup.network), setup.batch_size),
        num_warmup=warmup,
        num_samples=samples,
        thinning=thinning,
        checkpoint=folder / "checkpoint",
        checkpoint_every=max(1, round(setup.safe_epochs * setup.epoch)),
        draws=folder / "draws.zarr",
        draws_dtype="float16",
        record=lambda sites: {"probs": sites["probs"]},
        progress_bar=setup.progress_bar,
    )
    begin = time.perf_counter()
    if (folder / "checkpoint" / "run.json").exists():
        mcmc.resume(train.x, train.y, test.x)
    else:
        mcmc.run(setup.key(1), train.x, train.y, test.x, init_params=setup.start)
    probs = mcmc.get_samples(group_by_chain=True)["probs"]
    draws = probs.shape[1]
    gradients = warmup + draws * thinning
    with (folder / "seconds.txt").open("a") as file:
        print(time.perf_counter() - begin, file=file)
    seconds = sum(map(float, (folder / "seconds.txt").read_text().split()))
    some = np.asarray(probs[:, :, :_JUDGED], np.float32)
    rhat = bnn.diagnostics.rhat(some) if draws >= 4 else np.zeros((0, probs.shape[-1]))
    Result(
        mean_of(probs),
        rhat.astype(np.float32),
        gradients / setup.epoch,
        gradients,
        seconds,
        draws,
        draws * thinning == samples,
        configuration,
    ).save(path)
    return path


def mean_of(probs: Any) -> np.ndarray:
    """Mean over chains and draws of an array (chain, draw, …) that may be on disk; float16."""
    total: Any = 0.0
    for begin in range(0, probs.shape[1], _BLOCK):
        total = total + probs[:, begin : begin + _BLOCK].astype(np.float64).sum((0, 1))
    return (total / (probs.shape[0] * probs.shape[1])).astype(np.float16)


def judge(result: Result, y: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Scores of a result, given test labels and which images have their original pixels."""
    if len(result.probs) != len(y):
        raise ValueError(
            f"cifar10: it predicts {len(result.probs)} test images, there are {len(y)}. Judge results at toy "
            "size with --toy."
        )
    probs = np.maximum(result.probs.astype(np.float64), _SMALLEST)
    probs /= probs.sum(-1, keepdims=True)
    right = scores.accuracy(probs, y, pointwise=True)
    # A probability that never moves, such as one that rounds to 0, has no R-hat.
    rhat = result.rhat[np.isfinite(result.rhat)]
    return {
        "epochs": result.epochs,
        "draws": result.num_draws,
        "seconds": result.seconds,
        "accuracy": float(np.mean(right)),
        "accuracy_exact": float(np.mean(right[exact])),
        "log_score": scores.lppd(np.log(probs[np.arange(len(y)), y])[None]),
        "calibration_error": scores.expected_calibration_error(probs, y),
        "median_rhat": float(np.median(rhat)) if rhat.size else math.nan,
        "rhat_below_1.1": float((rhat < 1.1).mean()) if rhat.size else math.nan,
    }
