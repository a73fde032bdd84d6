"""A 784-50-10 network on a subset of MNIST: two priors, and the ways to fit it that studies share.

The weights of the pixels are N(0, α²), or N(0, a Σ + ε I) with Σ the second moments of the pixels ("EmpCov":
Izmailov, Nicholson, Lotfi and Wilson 2021, *Dangers of Bayesian model averaging under covariate shift*,
section 5), a such that sums over a training row have the variance that they have under the first. They are
sampled as standard normal ones on inputs multiplied by a root of the covariance: no direction is narrower
than another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.sampled_runs import RHAT_LIMIT, sampler
from numpyro_bnn import diagnostics, priors
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer, TrainingOptions
from numpyro_bnn.potential.starts import BoundModel

HIDDEN, SCALE, SMALL = 50, 0.1, 1e-4
# Of a trajectory; the step size is adapted to an acceptance of 0.8.
LEAPFROGS = 30


class Length(NamedTuple):
    """How much is computed, at one size of a study."""

    rows: int  # training images
    tests: int  # test images
    training: int  # steps of Adam on all rows, for a mode
    members: int  # of the ensemble, and chains of HMC, each of which starts at a member
    warmup: int  # trajectories of each chain
    draws: int  # trajectories of each chain


PRIOR = priors.ByPath({"Dense_1.kernel": priors.FanIn(2.0), "*": priors.Normal(1.0)})


class Pixels(NamedTuple):
    """What the first layer sees of an image under a prior."""

    root: np.ndarray  # (784, inputs): the network gets ``images @ root``

    def model(self, x: Any, y: Any = None) -> None:
        network = bnn.MLP([HIDDEN], 10, jax.nn.relu)
        net = bnn.random_module("net", network, PRIOR, x[:1])
        bnn.likelihoods.categorical(net, y, x=x)


def principal(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Second moments of the pixels along their principal directions, rows, the largest first."""
    values, vectors = np.linalg.eigh(x.T.astype(np.float64) @ x / len(x))
    return np.maximum(values[::-1], 0), vectors.T[::-1]


def component_root(x: np.ndarray, scale: float) -> np.ndarray:
    """A root of a Σ + ε I, Σ the second moments of rows.

    Sums over a row have the variance that they have under N(0, scale²).
    """
    moments, directions = principal(x)
    variances = scale**2 * moments.sum() / (moments**2).sum() * moments + SMALL
    return directions.T * np.sqrt(variances)


def pixels_under(prior: str, x: np.ndarray, scale: float = SCALE) -> Pixels:
    """A prior of the module's list, given the training images, with another α."""
    root = {"normal": scale * np.eye(x.shape[1]), "EmpCov": component_root(x, scale)}[prior]
    return Pixels(root.astype(np.float32))


class Fitted(NamedTuple):
    """Draws of the weights by some method, and what was learnt on the way."""

    pixels: Pixels  # of the model
    samples: Any  # draws by site, with axes (chain, draw)
    facts: dict[str, float]  # acceptance and trajectory length of HMC, zeros for the others

    def probs(self, *images: np.ndarray) -> list[np.ndarray]:
        """Class probabilities for each set of images, (chain, draw, image, class)."""
        inputs = np.concatenate(images) @ self.pixels.root
        # One call for all sets: each compiles its program.
        predictions = bnn.predict(self.pixels.model, self.samples, inputs)
        ends = np.cumsum([len(part) for part in images])[:-1]
        return np.split(np.asarray(predictions.probs), ends, axis=2)


NOT_SAMPLED = {"acceptance": 0.0, "trajectory length": 0.0}


class Task(NamedTuple):
    """A model and its data, and how much is to be computed."""

    pixels: Pixels  # the model
    x: np.ndarray  # inputs
    y: np.ndarray  # classes
    length: Length  # how much
    seed: int  # of everything random

    @classmethod
    def of(
        cls, prior: str, data: data_sets.Split, length: Length, seed: int, scale: float = SCALE
    ) -> "Task":
        """The model under a prior."""
        pixels = pixels_under(prior, data.x, scale)
        return cls(pixels, data.x @ pixels.root, data.y, length, seed)

    def modes(self) -> tuple[dict, Fitted]:
        """Modes from independent starts: unconstrained, for a sampler, and as draws of an ensemble."""
        # Weights without data must have the time to reach their mode, and no rows are held out.
        options = TrainingOptions(num_steps=self.length.training, tolerance=0, progress_bar=False)
        members = MemberOptimizer("modes", BoundModel.of(self.pixels.model, (self.x, self.y), {}))
        key, count = jax.random.key(self.seed), self.length.members
        z, _ = members.fit(key, count, options, to_mode=True)
        starts = members.compiled(members.completed)(z, members.arrays)
        potential = bnn.potential_of(self.pixels.model, self.x, self.y)
        values = jax.vmap(lambda z: potential.constrain(z, deterministic=True))(starts)
        samples = {name: value[:, None] for name, value in values.items()}
        return starts, Fitted(self.pixels, samples, NOT_SAMPLED)

    def posterior(self, starts: dict) -> Fitted:
        """HMC, a chain from each of several modes."""
        steps = {"num_steps": LEAPFROGS, "trajectory_length": None}
        length = self.length
        hmc = HMC(self.pixels.model, adapt_mass_matrix=False, **steps)
        mcmc = sampler(hmc, length.members, length.warmup, length.draws, chain_method="sequential")
        mcmc.run(jax.random.key(self.seed + 1000), self.x, self.y, init_params=starts)
        extra = mcmc.get_extra_fields(group_by_chain=True)
        facts = {
            "acceptance": float(np.mean(extra["accept_prob"])),
            "trajectory length": LEAPFROGS * float(np.mean(extra["adapt_state.step_size"])),
        }
        return Fitted(self.pixels, mcmc.get_samples(group_by_chain=True), facts)

    def mean_field(self) -> Fitted:
        """Independent Gaussians; minibatches of a tenth, so ten times the steps of a mode."""
        return self._by_minibatches(bnn.mean_field, num_steps=10 * self.length.training)

    def swag(self) -> Fitted:
        """A Gaussian around averaged weights, on minibatches of a tenth."""
        steps = self.length.training
        thinning = max(1, steps // 20)
        return self._by_minibatches(bnn.swag, num_steps=steps, num_warmup=steps, thinning=thinning)

    def _by_minibatches(self, method: Callable, **settings: Any) -> Fitted:
        """An approximation whose steps take a tenth of the rows."""
        settings |= {
            "num_samples": self.length.draws,
            "batch_size": max(10, self.length.rows // 10),
        }
        key = jax.random.key(self.seed)
        samples = method(self.pixels.model, key, self.x, self.y, progress_bar=False, **settings)
        return Fitted(self.pixels, samples, NOT_SAMPLED)


def three(task: Task) -> Iterator[tuple[str, Fitted]]:
    """``"MAP"`` (the first mode), ``"ensemble"`` (all of them) and ``"posterior"``."""
    starts, ensemble = task.modes()
    first = {name: value[:1] for name, value in ensemble.samples.items()}
    yield "MAP", ensemble._replace(samples=first)
    yield "ensemble", ensemble
    yield "posterior", task.posterior(starts)


def quality(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Error, log score and calibration error of averaged probabilities (image, class)."""
    # A probability may underflow in single precision where it should only be small.
    chosen = np.maximum(probs[np.arange(len(y)), y], 1e-30)
    return {
        "error": float(np.mean(probs.argmax(1) != y)),
        "log score": float(np.mean(np.log(chosen))),
        "calibration error": float(bnn.scores.expected_calibration_error(probs, y)),
    }


def convergence(probs: np.ndarray) -> dict[str, float]:
    """Whether chains agree on (chain, draw, image, class): zeros for a chain of fewer than 4 draws."""
    if probs.shape[1] < 4:
        return {"worst R-hat": 0.0, "median R-hat": 0.0, "least ESS": 0.0}
    found = diagnostics.summarize(probs, tail=False)
    return {
        "worst R-hat": float(np.nanmax(found.rhat)),
        "median R-hat": float(np.nanmedian(found.rhat)),
        "least ESS": float(np.nanmin(found.ess_bulk)),
    }


def said_of(method: str, worst_rhat: float) -> str:
    """What a table calls a posterior whose worst R-hat of predictions is this."""
    if method != "posterior":
        return "no sampler"
    if worst_rhat == 0:
        # What `convergence` gives where there are too few draws to judge.
        return "too short"
    return "converged" if worst_rhat <= RHAT_LIMIT else "not converged"


def averaged_over(method: str, length: Length) -> int:
    """How many networks the predictions of a method are averages of."""
    chosen = {"MAP": 1, "ensemble": length.members, "posterior": length.members * length.draws}
    return chosen.get(method, length.draws)


def mean_of(rows: Sequence[Mapping[str, Any]], column: str, **where: object) -> float:
    """Mean of a column over the rows that agree with ``where``."""
    return float(np.mean([r[column] for r in rows if all(r[k] == v for k, v in where.items())]))
