"""One of the two processes that `test_devices.py` starts; it stores what it saw.

python one_of_two_processes.py PORT PROCESS FOLDER KERNEL
"""

import signal
import sys
from pathlib import Path

import jax

PORT, PROCESS, FOLDER, KERNEL = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{PORT}", 2, PROCESS)

import numpy as np  # noqa: E402
from on_meshes import X, Y, drawn, mesh_of, sampler  # noqa: E402

from numpyro_bnn.run.chain_states import ChainStates  # noqa: E402
from numpyro_bnn.storage.checkpoints import Checkpoint  # noqa: E402

SAVE, ADVANCE = Checkpoint.save, ChainStates.advance


def on_disk(name):
    return sampler(
        KERNEL,
        mesh_of(chain=2, data=2),
        checkpoint=FOLDER / name,
        draws=FOLDER / f"{name}.zarr",
        checkpoint_every=2,
    )


def full_disk(self, states, progress):
    """Room for the checkpoint of warm-up and of two draws; only the first process writes."""
    if progress.draws > 2:
        raise OSError(28, "No space left on device")
    SAVE(self, states, progress)


def told_to_end(self, segment, update):
    ADVANCE(self, segment, update)
    ChainStates.advance = ADVANCE  # a second signal would take effect at once
    if PROCESS == 1:
        signal.raise_signal(signal.SIGTERM)


def error_of(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', ()))}"
    return "none"


def main():
    found = {}
    found["unshared"] = error_of(on_disk(f"of {PROCESS}").run, jax.random.key(0), X, Y)
    mcmc = on_disk("broken")
    Checkpoint.save = full_disk
    found["full"] = error_of(mcmc.run, jax.random.key(0), X, Y)
    Checkpoint.save = SAVE
    found["other data"] = error_of(mcmc.resume, X, Y + PROCESS)
    ChainStates.advance = told_to_end
    mcmc.resume(X, Y)
    found["at SIGTERM"] = drawn(mcmc)
    mcmc.resume(X, Y)
    found["resumed"] = drawn(mcmc)
    # The same compiled programs, elsewhere.
    mcmc._disk = on_disk("whole")._disk
    mcmc.run(jax.random.key(0), X, Y)
    found["whole"] = drawn(mcmc)
    np.savez(FOLDER / f"{PROCESS}.npz", **found)


if __name__ == "__main__":
    main()
