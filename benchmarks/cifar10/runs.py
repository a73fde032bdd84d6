"""Running the methods on CIFAR-10: every one can be stopped and started again.

Samplers are checkpointed by the package and stream the test probabilities of each draw, never its
weights, to disk; all else keeps a file for each finished part
(:mod:`benchmarks.cifar10.approximations`). What comes out is a
:class:`~benchmarks.cifar10.setup.Result`, in a file of its own.
"""

import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks.cifar10.approximations import APPROXIMATIONS, trained
from benchmarks.cifar10.methods import Sampling, gradients_of, kernel_of, plan_of
from benchmarks.cifar10.network import posterior_of
from benchmarks.cifar10.setup import Result, Setup

# Test images whose R-hat is computed: of all of them it would need all draws in memory.
_JUDGED = 500
# Draws that are averaged at a time.
_BLOCK = 50


def run(name: str, setup: Setup) -> Path:
    """One method, from where it stands to its file of results.

    :param name: of :data:`benchmarks.cifar10.__main__.METHODS`.
    :return: the file; the method is not run where that has its last draw, by these settings.
    """
    suffix = f"_{setup.chains}_chains" if name in setup.samplers and setup.chains > 1 else ""
    suffix += setup.label
    path = setup.results / f"{name}{suffix}.npz"
    configuration = _configuration(name, setup)
    if path.exists():
        before = Result.load(path)
        if before.finished and before.configuration == configuration:
            return path
    if name in setup.samplers:
        result = _sample(name + suffix, setup.samplers[name], setup)
    else:
        result = _approximate(name, setup)
    result._replace(configuration=configuration).save(path)
    return path


def _configuration(name: str, setup: Setup) -> str:
    """All that decides the result of a method."""
    facts = {"method": name} | setup.facts
    if name in setup.samplers:
        own = {"epochs": setup.epochs, "chains": setup.chains, "chain_method": setup.chain_method}
        facts |= own | {"sampler": setup.samplers[name]._asdict()}
    if name == "mean_field":
        facts["mean_field"] = setup.mean_field._asdict()
    elif name not in setup.samplers or setup.samplers[name].gradient == "control_variate":
        facts["training"] = setup.training._asdict()
    if name == "swag":
        facts["swag"] = setup.swag._asdict()
    return json.dumps(facts)


def _sample(name: str, method: Sampling, setup: Setup) -> Result:
    """Run chains, or go on with them."""
    train, test = setup.data
    sizes = (len(train.x), setup.batch_size)
    plan = plan_of(method, setup.epochs, *sizes, setup.safe_epochs)
    folder = setup.runs / name
    mcmc = bnn.MCMC(
        kernel_of(method, posterior_of(setup.network), *sizes),
        num_warmup=plan.num_warmup,
        num_samples=plan.num_samples,
        thinning=plan.thinning,
        num_chains=setup.chains,
        chain_method=setup.chain_method,
        checkpoint=folder / "checkpoint",
        checkpoint_every=plan.every,
        draws=folder / "draws.zarr",
        draws_dtype="float16",
        record=class_probabilities,
        progress_bar=setup.progress_bar,
    )
    mode_gradients = 0.0
    if method.gradient == "control_variate":
        # An anchor is of use near a mode only.
        mode = trained(setup, 0)
        mode_gradients = mode.info["gradients"] * setup.epoch
        starts = [{n: v[0, 0] for n, v in mode.items()}] * setup.chains
    else:
        starts = [setup.start(6, chain) for chain in range(setup.chains)]
    begin = time.perf_counter()
    if (folder / "checkpoint" / "run.json").exists():
        mcmc.resume(train.x, train.y, test.x)
    else:
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *starts)
        mcmc.run(setup.key(1), train.x, train.y, test.x, init_params=stacked)
    probs = mcmc.get_samples(group_by_chain=True)["probs"]
    chains, draws = probs.shape[:2]
    gradients = chains * gradients_of(method, plan, draws, *sizes) + mode_gradients
    return Result(
        mean_of(probs),
        _rhat(probs),
        gradients / setup.epoch,
        gradients,
        _add_seconds(folder / "seconds.txt", time.perf_counter() - begin),
        chains * draws,
        draws * plan.thinning == plan.num_samples,
        "",
    )


def class_probabilities(sites: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What is kept of a draw."""
    return {"probs": sites["probs"]}


def mean_of(probs: Any) -> np.ndarray:
    """Mean over chains and draws of an array (chain, draw, …) that may be on disk; float16."""
    total: Any = 0.0
    for begin in range(0, probs.shape[1], _BLOCK):
        total = total + probs[:, begin : begin + _BLOCK].astype(np.float64).sum((0, 1))
    return (total / (probs.shape[0] * probs.shape[1])).astype(np.float16)


def _rhat(probs: Any) -> np.ndarray:
    if probs.shape[1] < 4:
        return np.zeros((0, probs.shape[-1]), np.float32)
    some = np.asarray(probs[:, :, :_JUDGED], np.float32)
    return bnn.diagnostics.rhat(some).astype(np.float32)


def _add_seconds(path: Path, seconds: float) -> float:
    """Seconds of this process and of those before it."""
    with path.open("a") as file:
        print(seconds, file=file)
    return sum(float(line) for line in path.read_text().split())


def _approximate(name: str, setup: Setup) -> Result:
    """Fit, and predict with every draw."""
    draws = APPROXIMATIONS[name](setup)
    probs = bnn.predict(None, draws, setup.data.test.x).probs
    passes = draws.info["gradients"]
    return Result(
        mean_of(probs),
        _rhat(probs[:, :0]),
        passes,
        passes * setup.epoch,
        draws.info["seconds"],
        probs.shape[0] * probs.shape[1],
        True,
        "",
    )
