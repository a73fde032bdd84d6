"""One run on one device, on several, or on the devices of several processes: the same code.

Each process calls `jax.distributed.initialize`, makes the same mesh of all devices and calls `MCMC.run` with
the same arguments; each has all the draws at the end. With `--checkpoint` a run that was killed goes on.

    python -m benchmarks.large_runs.distributed --coordinator localhost:9876 --processes 2 --process 0 &
    python -m benchmarks.large_runs.distributed --coordinator localhost:9876 --processes 2 --process 1
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np
from numpyro.infer import HMC

import numpyro_bnn as bnn

LEAPFROGS = 10


def model(x, y=None):
    net = bnn.random_module("net", bnn.MLP([16], 1), bnn.priors.FanIn(), x[:1])
    bnn.likelihoods.gaussian(lambda x: net(x)[..., 0], y, x=x, noise=0.5)


def data(rows):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 50)).astype(np.float32)
    return x, np.sin(x[:, 0]) + 0.5 * rng.normal(size=rows).astype(np.float32)


def kernel():
    fixed = {"trajectory_length": None, "adapt_step_size": False, "adapt_mass_matrix": False}
    return HMC(model, step_size=1e-3, num_steps=LEAPFROGS, **fixed)


def timed(mcmc, draws, arrays):
    """Leapfrogs a second of a run that compiles nothing."""
    mcmc.run(jax.random.key(1), *arrays)
    begin = time.perf_counter()
    mcmc.run(jax.random.key(1), *arrays)
    seconds = time.perf_counter() - begin
    return mcmc.num_chains * draws * LEAPFROGS / seconds


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--coordinator", help="host:port of process 0; SLURM knows it by itself")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    parser.add_argument("--distributed", action="store_true", help="several processes, by SLURM")
    parser.add_argument("--groups", type=int, default=1, help="devices along the axis 'chain'")
    parser.add_argument("--devices", type=int, help="how many to use; 0 for no mesh; default all")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--rows", type=int, default=10_001)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--checkpoint", help="folder that all processes share")
    parser.add_argument("--out", help="file for the draws of process 0")
    given = parser.parse_args(argv)
    if given.distributed or given.coordinator:
        # For processes on CPUs; others have their own way.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(given.coordinator, given.processes, given.process)
    mesh = None
    if given.devices != 0:
        devices = jax.devices()[: given.devices]
        shape = (given.groups, len(devices) // given.groups)
        mesh = jax.make_mesh(shape, ("chain", "data"), devices=devices)
    mcmc = bnn.MCMC(
        kernel(),
        num_warmup=0,
        num_samples=given.draws,
        num_chains=given.chains,
        mesh=mesh,
        progress_bar=False,
        checkpoint=given.checkpoint,
        checkpoint_every=max(1, given.draws // 10),
    )
    arrays = data(given.rows)
    if given.checkpoint is None:
        print(f"leapfrogs a second {timed(mcmc, given.draws, arrays):.2f}")
    elif (Path(given.checkpoint) / "run.json").exists():
        mcmc.resume(*arrays)
    else:
        mcmc.run(jax.random.key(1), *arrays)
    samples = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    if jax.process_index() == 0 and given.out:
        np.savez(given.out, **samples)


if __name__ == "__main__":
    main()
