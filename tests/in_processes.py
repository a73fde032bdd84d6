"""A run of one of several processes, started by test_processes.py; it prints what it found.

    python in_processes.py PORT PROCESS FOLDER KERNEL...
"""

import sys
from pathlib import Path

import jax

if __name__ == "__main__":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))

import numpy as np
from test_devices import KERNELS, X, Y, sampler

from numpyro_bnn.checkpoints import Checkpoint


class Dies(Exception):
    pass


def main(folder, names):
    mesh = jax.make_mesh((2, 2), ("chain", "data"))
    found = {}
    for name in names:
        given = {"mesh": mesh, "checkpoint_every": 2}
        whole = sampler(name, mesh)
        whole.run(jax.random.key(0), X, Y)
        found |= {f"{name} whole": whole.get_samples(group_by_chain=True)["w"]}
        disk = {"checkpoint": folder / name, "draws": folder / f"{name}.zarr"}
        save = Checkpoint.save

        def dies(self, states, progress, save=save):
            save(self, states, progress)
            if progress.draws == 2:
                raise Dies("no more")

        Checkpoint.save = dies
        try:
            sampler(name, **given, **disk).run(jax.random.key(0), X, Y)
        except (Dies, RuntimeError) as error:
            print(type(error).__name__, error, flush=True)
        Checkpoint.save = save
        again = sampler(name, **given, **disk)
        again.resume(X, Y)
        found |= {f"{name} resumed": again.get_samples(group_by_chain=True)["w"]}
    np.savez(folder / f"{jax.process_index()}.npz", **{k: np.asarray(v) for k, v in found.items()})


if __name__ == "__main__":
    main(Path(sys.argv[3]), sys.argv[4:])
