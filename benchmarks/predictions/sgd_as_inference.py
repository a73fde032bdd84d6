"""Is SGD at a constant rate, or an optimiser of randomised problems, as good as sampling?

Constant-rate SGD (Mandt, Hoffman and Blei 2017), randomised MAP (Gu and Oliver 2007; Pearce et al. 2020) and
a deep ensemble against HMC. Variance is tr(Σ⁻¹ S)/d, the covariance S of the draws over that of the
posterior, beside what theory says: Mandt's Lyapunov equation for small steps, and its form for the step taken
(exact for the linear regression, with the noise that grows away from the optimum).

    python -m benchmarks.predictions.sgd_as_inference [--quick]
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC
from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov
from scipy.special import expit
from scipy.stats import norm

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split, uci
from benchmarks._shared.sampled_runs import convergence, sampled
from benchmarks._shared.study import Row, begin, every_cell, without
from benchmarks._shared.words import span, with_error
from numpyro_bnn import scores
from numpyro_bnn.diagnostics import mcse_mean
from numpyro_bnn.posterior.draws import draws_of


class Setting(NamedTuple):
    """What the covariance of the iterates follows from."""

    rows: np.ndarray  # (row, parameter), a column of ones among them
    slopes: np.ndarray  # derivative of each row's energy by its linear predictor, at the optimum
    hessian: np.ndarray  # of the energy, prior included, at the optimum
    batch_size: int  # B

    @property
    def noise(self) -> np.ndarray:
        """Covariance of the minibatch gradient at the optimum."""
        each = self.rows * self.slopes[:, None]
        return len(each) ** 2 / self.batch_size * np.cov(each, rowvar=False, bias=True)

    @property
    def rate(self) -> float:
        """The rate nearest to the posterior in KL (their theorem 1), at most 1 / λ_max."""
        best = 2 * len(self.hessian) / np.trace(self.noise)
        return float(min(best, 1 / np.linalg.eigvalsh(self.hessian)[-1]))


def of_small_steps(given: Setting, rate: float) -> np.ndarray:
    """Covariance as the rate tends to zero."""
    return solve_continuous_lyapunov(given.hessian, rate * given.noise)


def of_this_step(given: Setting, rate: float) -> np.ndarray:
    """Covariance at this rate, the noise as at the optimum."""
    kept = np.eye(len(given.hessian)) - rate * given.hessian
    return solve_discrete_lyapunov(kept, rate**2 * given.noise)


def of_linear_regression(given: Setting, rate: float, noise: float) -> np.ndarray:
    """Exact covariance for squared errors of standard deviation `noise`.

    With deviation δ from the optimum, the residual of a row is e + x'δ; averaged over δ ~ (0, Σ),

        C(Σ) = N²/B [mean xx' (s² + x'Σx / σ⁴) - m m' - A Σ A / σ⁴],

    s = e/σ² the slopes, m = mean x s, A = mean xx'. Linear in Σ, so solved at once; infinite where
    the descent has no stationary distribution of finite variance.
    """
    x, size = given.rows, len(given.hessian)
    kept = np.eye(size) - rate * given.hessian
    pairs = np.einsum("ni,nj->nij", x, x).reshape(len(x), -1)
    moment = x.T @ x / len(x)
    grown = (pairs.T @ pairs / len(x) - np.kron(moment, moment)) / noise**4
    factor = len(x) ** 2 / given.batch_size * rate**2
    moved = np.kron(kept, kept) + factor * grown
    if np.abs(np.linalg.eigvals(moved)).max() >= 1:
        return np.full((size, size), np.inf)
    solved = np.linalg.solve(np.eye(size**2) - moved, (rate**2 * given.noise).reshape(-1))
    return solved.reshape(size, size)


BATCH, NOISE = 32, {"linear": 0.5, "network": 0.3}
HIDDEN, LEAPFROGS = 16, 32
TABLES = {"linear": "boston", "logistic": "wine_red", "network": "yacht"}
METHODS = ("HMC", "constant SGD", "randomised MAP", "deep ensemble")
SIZES = {
    "full": {
        "models": ("linear", "logistic", "network"),
        "multiples": (0.0625, 0.25, 1.0, 1.5),
        "chains": 8,
        "draws": 1000,
        "members": 64,
        "training": 5000,
    },
    "quick": {
        "models": ("linear", "network"),
        "multiples": (0.25, 1.0),
        "chains": 4,
        "draws": 400,
        "members": 32,
        "training": 3000,
    },
    "toy": {
        "models": ("linear", "network"),
        "multiples": (1.0,),
        "chains": 2,
        "draws": 10,
        "members": 3,
        "training": 100,
    },
}


def _model(name: str) -> Callable:
    hidden = (HIDDEN,) if name == "network" else ()

    def model(x, y=None):
        net = bnn.random_module("net", bnn.MLP(hidden, 1), bnn.priors.Normal(1.0), x[:1])

        def outputs(rows):
            return net(rows).squeeze(-1)

        if name == "logistic":
            bnn.likelihoods.bernoulli(outputs, y, x=x)
        else:
            bnn.likelihoods.gaussian(outputs, y, x=x, noise=NOISE[name])

    return model


MODELS = {name: _model(name) for name in TABLES}


def data(name: str, folder) -> Split:
    split = uci(folder, TABLES[name])
    if name == "logistic":
        return split._replace(
            y=(split.y > 0).astype(np.int32), y_test=(split.y_test > 0).astype(np.int32)
        )
    return split


class Exact:
    """A linear or logistic posterior around its optimum, and what theory makes of it."""

    def __init__(self, name: str, split: Split) -> None:
        self.name = name
        rows = np.column_stack([np.ones(len(split.x)), split.x]).astype(np.float64)
        theta = np.zeros(rows.shape[1])
        # Newton's method: one step for the linear model, a few for the logistic one.
        for _ in range(30):
            slopes, curvature = self._derivatives(rows @ theta, split.y)
            hessian = (rows * curvature[:, None]).T @ rows + np.eye(len(theta))
            theta = theta - np.linalg.solve(hessian, rows.T @ slopes + theta)
        slopes, curvature = self._derivatives(rows @ theta, split.y)
        self.setting = Setting(rows, slopes, hessian, BATCH)
        self.mean, self.covariance = theta, np.linalg.inv(hessian)

    def _derivatives(self, f: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.name == "logistic":
            p = expit(f)
            return p - y, p * (1 - p)
        precision = 1 / NOISE["linear"] ** 2
        return precision * (f - y), np.full(len(f), precision)

    def ratio(self, covariance: np.ndarray) -> float:
        return float(np.trace(np.linalg.solve(self.covariance, covariance)) / len(self.mean))

    def theory(self, rate: float) -> Row:
        """Variance over the exact one that SGD should have."""
        if self.name == "linear":
            here = of_linear_regression(self.setting, rate, NOISE["linear"])
        else:
            here = of_this_step(self.setting, rate)
        small = of_small_steps(self.setting, rate)
        return {
            "theory, this step": self.ratio(here) if np.isfinite(here).all() else "none",
            "theory, small steps": self.ratio(small),
        }


def weights_of(draws) -> np.ndarray:
    """Bias and weights of a model without hidden units, (chain, draw, parameter)."""
    kernel = np.asarray(draws["net/Dense_0.kernel"], np.float64)[..., 0]
    return np.concatenate([np.asarray(draws["net/Dense_0.bias"], np.float64), kernel], -1)


def variances(draws, exact: Exact) -> Row:
    """Variance of draws over the exact one, its Monte Carlo error, and how far off the mean is."""
    theta = weights_of(draws)
    inverse = np.linalg.inv(exact.covariance)
    off = theta.mean((0, 1)) - exact.mean
    gap = theta - theta.mean((0, 1))
    squares = np.einsum("...i,ij,...j->...", gap, inverse, gap) / theta.shape[-1]
    many = theta.shape[1] >= 4
    error = mcse_mean(squares) if many else squares.std() / np.sqrt(squares.size)
    return {
        "variance over the exact one": float(squares.mean()),
        "its error": float(error),
        "mean off, in sd": float(np.sqrt(off @ inverse @ off / len(off))),
    }


class Problem:
    """One model on its data, with HMC to compare with and, where there is one, the exact posterior."""

    def __init__(self, name: str, size: Row, folder) -> None:
        self.name, self.size = name, size
        self.split, self.model = data(name, folder), MODELS[name]
        self.exact = None if name == "network" else Exact(name, self.split)
        hmc = HMC(self.model, num_steps=LEAPFROGS, trajectory_length=None, target_accept_prob=0.9)
        starts = bnn.optimize(
            self.model, jax.random.key(0), *self.rows, num_chains=size["chains"], progress_bar=False
        )
        numbers = {"num_warmup": size["draws"], "num_samples": size["draws"]}
        self.hmc = sampled(hmc, jax.random.key(1), *self.rows, starts=starts, **numbers)
        self.reference = self.functions(self.hmc)
        self.sd = self.reference.std((0, 1)).mean()
        if name == "logistic":
            # Gaussian only about: the spread that counts as exact is that of HMC.
            theta = weights_of(draws_of(self.hmc)).reshape(-1, len(self.exact.mean))
            self.exact.mean, self.exact.covariance = theta.mean(0), np.cov(theta, rowvar=False)

    @property
    def rows(self) -> tuple:
        return self.split.x, self.split.y

    def functions(self, run) -> np.ndarray:
        predictions = bnn.predict(self.model, run, self.split.x_test)
        return predictions.probs[..., 1] if self.name == "logistic" else predictions.mean

    def log_prob(self, functions: np.ndarray) -> np.ndarray:
        y = self.split.y_test
        if self.name == "logistic":
            return np.log(np.where(y == 1, functions, 1 - functions))
        return norm.logpdf(y, functions, NOISE[self.name])

    def sgd(self, rate, num_samples: int, num_warmup: int) -> bnn.Draws:
        return bnn.constant_sgd(
            self.model,
            jax.random.key(2),
            *self.rows,
            batch_size=BATCH,
            num_samples=num_samples,
            num_members=self.size["chains"],
            rate=rate,
            num_warmup=num_warmup,
            num_steps=self.size["training"],
            progress_bar=False,
        )

    def recommended(self) -> float:
        """The rate of the library's "auto" (the theory's, capped), the least of its members."""
        if self.exact is not None:
            return self.exact.setting.rate
        return float(min(self.sgd("auto", 1, 0).info["rate"]))

    def runs(self, method: str) -> Iterator[tuple[float | str, float | str, object]]:
        """Multiple of the recommended rate, rate and draws of a method."""
        options = {"num_steps": self.size["training"], "tolerance": 1e-6, "progress_bar": False}
        members = {"num_members": self.size["members"]}
        if method == "HMC":
            yield "", "", draws_of(self.hmc)
        elif method == "constant SGD":
            recommended, draws = self.recommended(), self.size["draws"]
            for multiple in self.size["multiples"]:
                rate = recommended * multiple
                try:
                    yield multiple, rate, self.sgd(rate, draws, 10 * draws)
                except ValueError as error:
                    # No member stayed finite: the descent diverges at this rate.
                    print(f"{self.name}, {multiple} times the rate: {error}")
        elif method == "randomised MAP":
            key = jax.random.key(3)
            yield "", "", bnn.randomized_map(self.model, key, *self.rows, **members, **options)
        else:
            key = jax.random.key(4)
            yield "", "", bnn.deep_ensemble(self.model, key, *self.rows, **members, **options)

    def judged(self, method: str) -> Iterator[Row]:
        nothing = ("variance over the exact one", "its error", "mean off, in sd")
        nothing += ("theory, this step", "theory, small steps")
        for multiple, rate, draws in self.runs(method):
            functions = self.functions(draws)
            row = dict.fromkeys(nothing, "")
            if self.exact is not None:
                row |= variances(draws, self.exact)
                row |= self.exact.theory(rate) if rate else {}
            pair = (functions, self.reference)
            if method == "HMC":
                pair = tuple(np.array_split(functions, 2))
            yield {
                "multiple": multiple,
                "rate": rate,
                **row,
                "relative sd": float(functions.std((0, 1)).mean() / self.sd),
                "Wasserstein to HMC": scores.wasserstein(*pair),
                "lppd": scores.lppd(self.log_prob(functions)),
                **convergence(functions),
            }


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Spread of predictions over HMC's, and variances over the exact ones where these are known."""
    for method in ("constant SGD", "randomised MAP"):
        told = []
        for model in dict.fromkeys(row["model"] for row in rows):
            own = [r for r in rows if (r["model"], r["method"]) == (model, method)]
            text = f"{span([r['relative sd'] for r in own])} of HMC's on the {model} model"
            first = next((r for r in own if r["multiple"] in (1, "")), own[0])
            if first["variance over the exact one"] != "":
                variance, error = first["variance over the exact one"], first["its error"]
                if model == "logistic":
                    # Its exact variance is that of HMC, which has an error of its own.
                    (full,) = (r for r in rows if (r["model"], r["method"]) == (model, "HMC"))
                    error = variance * math.hypot(error / variance, full["its error"])
                text += f" (variance {with_error((variance, error))} times the exact one"
                text += ", at the recommended rate)" if first["rate"] else ")"
            told.append(text)
        yield f"{method}: the standard deviation of predictions is {', '.join(told)}."


def picture(rows: Sequence[Row]):
    """Left: variance over the exact one against the rate, with theory; right: distance to HMC."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    for k, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        color = bnn.plots.PALETTE[k]
        own = [r for r in rows if r["model"] == model]
        swept = sorted((r for r in own if r["rate"]), key=lambda r: r["rate"])
        at = [r["multiple"] for r in swept]
        if model != "network":
            for column, mark in (
                ("variance over the exact one", "o"),
                ("theory, this step", "-"),
                ("theory, small steps", ":"),
            ):
                label = f"{model}, {'measured' if mark == 'o' else column}"
                values = [v if isinstance(v := r[column], float) else np.nan for r in swept]
                left.plot(at, values, mark, color=color, label=label)
        distance = [r["Wasserstein to HMC"] for r in swept]
        right.plot(at, distance, "o-", color=color, label=f"{model}, constant SGD")
        others = {r["method"]: r["Wasserstein to HMC"] for r in own if not r["rate"]}
        for (name, value), dash in zip(others.items(), (":", "--", "-.")):
            right.axhline(value, color=color, linestyle=dash, linewidth=1)
            text = "halves of HMC" if name == "HMC" else name
            right.annotate(text, (1, value), xycoords=("axes fraction", "data"), fontsize=6)
    left.axhline(1, color="0.4", linewidth=0.8)
    for ax, label in ((left, "variance over the exact one"), (right, "Wasserstein to HMC")):
        ax.set(xscale="log", yscale="log", xlabel="rate over the recommended one", ylabel=label)
    left.legend(frameon=False, fontsize=8)
    right.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.1))
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, ("model", "method", "multiple"), SIZES, argv)
    problem = cache(lambda name: Problem(name, size, given.data))
    study.run(
        every_cell(model=size["models"], method=METHODS),
        lambda model, method: problem(model).judged(method),
    )
    study.publish(without(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
