# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. Large runs
#
# A run that takes a night has to survive the night. It must not lose its draws when the process
# dies, keep them in memory, hold all rows of the data on the device, or use one device of eight.
# This notebook shows each of these on a problem that takes seconds, and each time checks that the
# draws are the same. All of it needs the extra `python -m pip install ".[storage]"` (zarr and
# Orbax).
#
# The first cell asks JAX for two devices on the CPU, to have some to share work between. It has
# to come before JAX is imported.

# %%
import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)

# %%
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

import numpyro_bnn as bnn

print(jax.devices())

# %% [markdown]
# ## A job that can be killed
#
# A long run belongs into a script. Here it has two files: `problem.py` with data, model and
# sampler, and `job.py`, which runs it. The sampler has two folders: `draws=` is where draws go
# while sampling goes on, in half precision; `checkpoint=` is all that it takes to continue. The
# script does not ask which start of it this is: it resumes what is there, and runs where nothing
# is.

# %%
PROBLEM = """
import numpyro
import numpyro.distributions as dist
from numpyro_bnn import BAOAB, MCMC, MLP, priors, random_module
from sklearn.datasets import load_digits


def data():
    pixels, digits = load_digits(return_X_y=True)
    return (pixels[:1796] / 8 - 1).astype("float32"), digits[:1796]


def model(x, y=None):
    net = random_module("net", MLP([16], 10), priors.FanIn(), x[:1])
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        seen = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Categorical(logits=net(rows)), obs=seen)


def sampler(folder):
    return MCMC(
        BAOAB(model, step_size=0.003, friction=20.0, batch_size=100),
        num_warmup=1000,
        num_samples=20_000,
        thinning=20,
        num_chains=2,
        progress_bar=False,
        draws=f"{folder}/draws.zarr",
        draws_dtype="float16",
        checkpoint=f"{folder}/checkpoint",
        checkpoint_every=1000,
    )
"""
JOB = """
import sys

import jax
from problem import data, sampler

mcmc = sampler(sys.argv[1])
try:
    mcmc.resume(*data())
except FileNotFoundError:
    mcmc.run(jax.random.key(0), *data())
"""
Path("problem.py").write_text(PROBLEM)
Path("job.py").write_text(JOB)
sys.path.insert(0, os.getcwd())
import problem

model = problem.model


def start(folder):
    return subprocess.Popen([sys.executable, "job.py", folder])


def draws_so_far(folder):
    try:
        return bnn.load(f"{folder}/draws.zarr", model).num_draws
    except (FileNotFoundError, ValueError):  # the store is not there yet
        return 0


# %% [markdown]
# Start it, wait until some draws are on disk, and kill it the hard way. `bnn.load` reads the
# folder while the other process writes it. So do ArviZ and xarray.

# %%
process = start("killed")
while process.poll() is None and draws_so_far("killed") == 0:
    time.sleep(0.02)
process.send_signal(signal.SIGKILL)
print(f"exit code {process.wait()}, {draws_so_far('killed')} draws a chain on disk")

# %% [markdown]
# Now the same command again, and a run that nobody disturbs. Expect them to end with the same
# draws, bit for bit: what a chain does next depends on the state in the checkpoint and on nothing
# else.

# %%
for folder in ("killed", "undisturbed"):
    print(folder, "exit code", start(folder).wait(), end=", ")
    print(draws_so_far(folder), "draws a chain")
one, other = (bnn.load(f"{folder}/draws.zarr", model) for folder in ("killed", "undisturbed"))
same = all(np.array_equal(np.asarray(one[name]), np.asarray(other[name])) for name in one)
print("the same draws, bit for bit" if same else "the draws differ")
size = sum(file.stat().st_size for file in Path("killed/draws.zarr").rglob("*") if file.is_file())
print(f"{one}: {size / 1e6:.1f} MB on disk")

# %% [markdown]
# Draws on disk are draws like any others. `diagnose` and `predict` read them in blocks.

# %%
x, y = problem.data()
print(bnn.diagnose(one, x[:200]).explanation)

# %% [markdown]
# A short run from untrained weights, so look at the verdict before you use it. In a real job give
# `run` the starts of `bnn.optimize`. If all you want to keep are predictions, `MCMC(…,
# record=function)` stores what the function returns in place of the weights.
#
# `resume` refuses what would silently be another run: other data, another model, another setting.
# It says which.

# %%
try:
    problem.sampler("killed").resume(x + 0.01, y)
except ValueError as refused:
    print(refused)

# %% [markdown]
# ## All rows in pieces
#
# A full-batch gradient over many rows may not fit the memory. `chunk_size` adds it up in pieces:
# the same number to rounding. NUTS and HMC get it from `MCMC(…, chunk_size=…)`, the kernels of
# this package from their gradient. Twenty steps with the same key must give nearly the same
# weights:


# %%
def after_twenty_steps(rows, targets, mesh=None, **ingredients):
    kernel = bnn.BAOAB(model, step_size=0.003, friction=20.0, **ingredients)
    mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=20, mesh=mesh, progress_bar=False)
    mcmc.run(jax.random.key(1), rows, targets)
    return mcmc.get_samples(group_by_chain=True)


def difference(these, those):
    return max(float(np.abs(np.asarray(these[n]) - np.asarray(those[n])).max()) for n in these)


whole = after_twenty_steps(x, y)
pieces = after_twenty_steps(x, y, gradient=bnn.gradients.full(chunk_size=300))
print(f"largest difference of a weight: {difference(whole, pieces):.1e}")

# %% [markdown]
# ## Rows that stay on disk
#
# `bnn.OnHost` wraps an array that is never loaded whole: a memory map, a zarr or HDF5 array. The
# compiled program asks the host for the rows of each minibatch, and a thread reads the next ones
# in the meantime. Any standardisation has to be in the file already. Here fifty copies of the
# digits with a little noise:

# %%
copies = 50
many = np.lib.format.open_memmap("rows.npy", "w+", np.float32, (copies * len(x), x.shape[1]))
rng = np.random.default_rng(0)
for k in range(copies):
    many[k * len(x) : (k + 1) * len(x)] = x + 0.05 * rng.normal(size=x.shape)
many.flush()
labels = np.tile(y, copies)
on_disk = bnn.OnHost(np.load("rows.npy", mmap_mode="r"))
print(on_disk, f"{Path('rows.npy').stat().st_size / 1e6:.0f} MB")

streamed = after_twenty_steps(on_disk, labels, batch_size=100)
in_memory = after_twenty_steps(np.load("rows.npy"), labels, batch_size=100)
print(f"largest difference of a weight: {difference(streamed, in_memory):.1e}")

# %% [markdown]
# The same minibatches in the same order, from disk or memory: which rows a step takes is decided
# by the key.
#
# ## Several devices
#
# A mesh says how devices share the work: here both share the rows, and each gradient is summed
# over them. With `("chain", "data")` of sizes (2, 1) each device would have a chain of its own.
# The first pays when the gradient of a chain is slow, the second nearly always.

# %%
mesh = jax.make_mesh((1, 2), ("chain", "data"))
shared = after_twenty_steps(x, y, mesh=mesh)
print(f"largest difference of a weight: {difference(shared, whole):.1e}")

# %% [markdown]
# Without a mesh, `MCMC` places chains on the devices of the process by a fixed rule, so that the
# same run gives the same draws.
#
# ## Several processes
#
# The same `mesh=` spans machines. Each process calls `jax.distributed.initialize()`, makes the
# same sampler over a mesh of all devices, and calls `run` with the same arguments; `draws=` and
# `checkpoint=` name folders that they share. A notebook is the wrong place for that.
# `benchmarks/large_runs/distributed.py` is the program, `launch_slurm.sh` and
# `launch_kubernetes.yaml` beside it start it on a cluster.
#
# ## Where to go on
#
# - The page *Long runs*. `benchmarks/large_runs/README.md`: `kill_and_resume` kills runs
#   of three kernels again and again, `streaming` measures memory and time, `scaling` devices and
#   processes.
# - The formats: [zarr](https://zarr.dev) for draws, [Orbax](https://orbax.readthedocs.io) for
#   checkpoints.
