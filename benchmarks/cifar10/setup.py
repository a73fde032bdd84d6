"""What the methods on CIFAR-10 share: the set-up that they are given and the result that they give."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks.cifar10.data import Data, standardized
from benchmarks.cifar10.methods import SAMPLERS, MeanField, Sampling, Swag, Training
from benchmarks.cifar10.network import ResNet


class Setup(NamedTuple):
    """What all methods share.

    - **data** - images
    - **network** - the network
    - **batch_size** - images in a minibatch
    - **runs** - folder of what is needed to go on
    - **results** - folder of results
    - **epochs** - passes over the data of a chain
    - **chains** - of each sampler
    - **chain_method** - as in ``MCMC``: ``"vectorized"`` runs them together on one device
    - **training**, **swag**, **mean_field** - settings of what does not sample
    - **samplers** - settings of what does
    - **seed** - of all random keys
    - **safe_epochs** - between checkpoints of a chain
    - **progress_bar** - show how far a run is
    """

    data: Data
    network: ResNet
    batch_size: int
    runs: Path
    results: Path
    epochs: float = 1000
    chains: int = 1
    chain_method: str = "parallel"
    training: Training = Training()
    swag: Swag = Swag()
    mean_field: MeanField = MeanField()
    samplers: dict[str, Sampling] = SAMPLERS
    seed: int = 0
    safe_epochs: float = 10
    progress_bar: bool = True

    @property
    def epoch(self) -> int:
        """Minibatches in a pass over the data."""
        return len(self.data.train.x) // self.batch_size

    @property
    def label(self) -> str:
        """What tells runs in half precision from others, in the names of their files."""
        dtype = self.network.dtype
        return "" if dtype == "float32" else f"_{dtype}"

    def key(self, *numbers: int) -> jax.Array:
        """A random key for a part of the work."""
        key = jax.random.key(self.seed)
        for number in numbers:
            key = jax.random.fold_in(key, number)
        return key

    def start(self, *numbers: int) -> dict[str, jax.Array]:
        """Weights as the network itself begins, for a part of the work.

        Not compiled: a program that draws a hundred arrays takes minutes to compile on a CPU.
        """
        values = self.network.init(self.key(*numbers), standardized(self.data.train.x[:1]))
        return bnn.from_params(values["params"])

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the result of every method."""
        return {
            "network": [getattr(self.network, k) for k in ("filters", "blocks", "dtype")],
            "train_images": len(self.data.train.x),
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def folder(self, name: str, **settings: Any) -> Path:
        """A folder for the parts of a run with these settings.

        :raises ValueError: if it holds parts of another run.
        """
        folder = self.runs / name
        folder.mkdir(parents=True, exist_ok=True)
        path, text = folder / "settings.json", json.dumps(self.facts | settings)
        if path.exists() and path.read_text() != text:
            raise ValueError(
                f"cifar10: {folder} holds parts of a run with the settings {path.read_text()}, and "
                f"this one has {text}. Choose another folder with --runs, or remove this one."
            )
        path.write_text(text)
        return folder


class Result(NamedTuple):
    """What a method predicts, and what it cost.

    - **probs** - mean class probabilities, float16 (test images, classes)
    - **rhat** - of the probabilities of the first test images, over chains split in halves,
      float32 (images, classes); empty where there are fewer than four draws a chain
    - **epochs** - passes over the training data of all chains together
    - **gradient_evaluations** - of minibatches, of all chains together
    - **seconds** - of all processes that finished their part
    - **num_draws** - in the average
    - **finished** - whether these are all; False after an interruption
    - **configuration** - all settings, as JSON
    """

    probs: np.ndarray
    rhat: np.ndarray
    epochs: float
    gradient_evaluations: float
    seconds: float
    num_draws: int
    finished: bool
    configuration: str

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
