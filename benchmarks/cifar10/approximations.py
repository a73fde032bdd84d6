"""What does not sample, on CIFAR-10: modes, ensembles of them, and Gaussians.

Modes are trained in segments, each kept in a file, so that a run that was ended goes on with the
segment it was in. One member is trained after the other for the same reason: the deep ensemble is
the average of the first ones, and SWAG, the Laplace approximation and the anchor of the control
variates begin at the very first.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import optax

import numpyro_bnn as bnn
from benchmarks.cifar10.methods import CURVATURE_EPOCHS, LAPLACE_DRAWS
from benchmarks.cifar10.network import posterior_of
from benchmarks.cifar10.setup import Setup

# Of the dense layer, the only one: found by itself it would have to be seen outside the loop over
# chunks of images.
_LAST_LAYER = ("net/Dense_0.kernel", "net/Dense_0.bias")


def trained(setup: Setup, member: int) -> bnn.Draws:
    """One mode; between segments the cosine goes on and the momentum begins anew.

    :return: one draw, with the passes over the data and the seconds of all segments.
    """
    settings, train = setup.training, setup.data.train
    model = posterior_of(setup.network)
    total = round(settings.epochs * setup.epoch)
    schedule = optax.cosine_decay_schedule(settings.step, total)
    folder = setup.folder(f"modes{setup.label}", training=settings._replace(members=0)._asdict())
    draws, done, passes, seconds = None, 0, 0.0, 0.0
    for segment in range(settings.segments):
        end = round(total * (segment + 1) / settings.segments)
        path = folder / f"member{member}_segment{segment}.npz"
        if path.exists():
            draws = bnn.load(path, model)
        else:
            begin = time.perf_counter()
            draws = bnn.map_estimate(
                model,
                setup.key(0, member, segment),
                train.x,
                train.y,
                optimizer=optax.sgd(_later(schedule, done), settings.momentum),
                num_steps=end - done,
                batch_size=setup.batch_size,
                tolerance=-np.inf,
                init_params=setup.start(5, member) if draws is None else _weights(draws),
                progress_bar=setup.progress_bar,
            )
            draws.info["seconds"] = time.perf_counter() - begin
            bnn.save(draws, path)
        passes, seconds = passes + draws.info["gradients"], seconds + draws.info["seconds"]
        done = end
    assert draws is not None
    draws.info |= {"gradients": passes, "seconds": seconds}
    return draws


def _later(schedule: Callable, done: int) -> Callable:
    return lambda count: schedule(count + done)


def _weights(mode: bnn.Draws) -> dict[str, Any]:
    return {name: value[0, 0] for name, value in mode.items()}


def _sgd(setup: Setup) -> bnn.Draws:
    return trained(setup, 0)


def _deep_ensemble(setup: Setup) -> bnn.Draws:
    members = [trained(setup, k) for k in range(setup.training.members)]
    info = {k: sum(m.info[k] for m in members) for k in ("gradients", "seconds")}
    values = {n: np.concatenate([m[n] for m in members]) for n in members[0]}
    return bnn.Draws(values, members[0].model, info=info)


def _swag(setup: Setup) -> bnn.Draws:
    mode, settings, train = trained(setup, 0), setup.swag, setup.data.train
    begin = time.perf_counter()
    draws = bnn.swag(
        mode.model,
        setup.key(2),
        train.x,
        train.y,
        batch_size=setup.batch_size,
        num_samples=settings.draws,
        num_snapshots=settings.snapshots,
        rank=settings.rank,
        rate=settings.step,
        num_warmup=settings.warmup * setup.epoch,
        thinning=setup.epoch,
        num_steps=0,
        init_params=_weights(mode),
        progress_bar=setup.progress_bar,
    )
    return _after(mode, draws, begin)


def _laplace(setup: Setup) -> bnn.Draws:
    mode, train = trained(setup, 0), setup.data.train
    begin = time.perf_counter()
    draws = bnn.laplace(
        mode.model,
        setup.key(3),
        train.x,
        train.y,
        num_samples=LAPLACE_DRAWS,
        subset=_LAST_LAYER,
        mode=mode,
    )
    draws.info["gradients"] += CURVATURE_EPOCHS
    return _after(mode, draws, begin)


def _after(mode: bnn.Draws, draws: bnn.Draws, begin: float) -> bnn.Draws:
    """Draws that also account for the mode that they began at."""
    draws.info["gradients"] += mode.info["gradients"]
    draws.info["seconds"] = mode.info["seconds"] + time.perf_counter() - begin
    return draws


def _mean_field(setup: Setup) -> bnn.Draws:
    settings, train = setup.mean_field, setup.data.train
    steps = round(settings.epochs * setup.epoch)
    begin = time.perf_counter()
    draws = bnn.mean_field(
        posterior_of(setup.network),
        setup.key(4),
        train.x,
        train.y,
        num_samples=settings.draws,
        optimizer=optax.adam(optax.cosine_decay_schedule(settings.rate, steps)),
        num_steps=steps,
        batch_size=setup.batch_size,
        init_params=setup.start(4),
        init_scale=settings.scale,
        checkpoint=setup.runs / f"mean_field{setup.label}",
        checkpoint_every=round(setup.safe_epochs * setup.epoch),
        progress_bar=setup.progress_bar,
    )
    draws.info["seconds"] = time.perf_counter() - begin
    return draws


# What each takes: the set-up. What each gives: draws, with passes over the data and seconds.
APPROXIMATIONS: dict[str, Callable[[Setup], bnn.Draws]] = {
    "sgd": _sgd,
    "deep_ensemble": _deep_ensemble,
    "swag": _swag,
    "laplace_last_layer": _laplace,
    "mean_field": _mean_field,
}
