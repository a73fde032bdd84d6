"""Distributions at extreme parameters in single precision, for a table of where they keep four digits.

``python tests/support/extremes.py`` makes the table of `extremes.md`, beside SciPy in double precision.
"""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from documents import PAGES, table_on
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn.distributions import stable_densities

TOLERANCE = 1e-4
WIDE = (1e-6, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e6, 1e8)
LEVELS = np.array([[0.001], [0.1], [0.5], [0.9], [0.999]])
DRAWS = 10_000
# Of draws of the right distribution, the largest distance has a smaller p-value in one row of 10^5.
DISTANCE = np.sqrt(np.log(2e5) / 2 / DRAWS)


class Half:
    """Two distributions of SciPy with equal weights."""

    def __init__(self, *parts):
        self.parts = parts

    def cdf(self, x):
        return sum(part.cdf(x) for part in self.parts) / 2

    def log_density(self, x):
        return np.logaddexp(*(log_density(part, x) for part in self.parts)) - np.log(2)

    def ppf(self, levels):
        ends = [part.ppf(levels) for part in self.parts]
        low, high = np.min(ends, 0) - 1, np.max(ends, 0)
        for _ in range(200):
            middle = (low + high) / 2
            below = self.cdf(middle) < levels
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.round(high) if hasattr(self.parts[0], "logpmf") else high


def log_density(exact, x):
    if isinstance(exact, Half):
        return exact.log_density(x)
    return (exact.logpmf if isinstance(exact.dist, stats.rv_discrete) else exact.logpdf)(x)


def mixture(*parts):
    return dist.MixtureGeneral(
        dist.Categorical(jnp.full(2, 0.5)), [*parts], support=parts[0].support
    )


# By name with parameters: NumPyro's distribution, ours if there is one, SciPy's, and their values.
FAMILIES = {
    "Gamma(concentration, rate)": (
        dist.Gamma, stable_densities.Gamma, lambda k, r: stats.gamma(k, scale=1 / r), (WIDE, WIDE),
    ),
    "InverseGamma(concentration, rate)": (
        dist.InverseGamma, None, lambda k, r: stats.invgamma(k, scale=r), (WIDE, WIDE),
    ),
    "Beta(a, b)": (dist.Beta, None, stats.beta, (WIDE, WIDE)),
    "StudentT(df, scale)": (
        lambda df, s: dist.StudentT(df, 0.0, s),
        lambda df, s: stable_densities.StudentT(df, 0.0, s),
        lambda df, s: stats.t(df, 0, s), (WIDE, WIDE),
    ),
    "Poisson(rate)": (dist.Poisson, stable_densities.Poisson, stats.poisson, (WIDE,)),
    "NegativeBinomial(mean, concentration)": (
        dist.NegativeBinomial2, stable_densities.NegativeBinomial,
        lambda m, a: stats.nbinom(a, 1 / (1 + m / a)), (WIDE, WIDE),
    ),
    "TruncatedNormal(low)": (
        lambda low: dist.TruncatedNormal(0.0, 1.0, low=low), None,
        lambda low: stats.truncnorm(low, np.inf),
        ((-1e8, -1e2, -3.0, 0.0, 3.0, 10.0, 30.0, 1e2, 1e4),),
    ),
    "Normal(scale) and Normal(1), half each": (
        lambda s: mixture(dist.Normal(0.0, s), dist.Normal(0.0 * s, 1.0)), None,
        lambda s: Half(stats.norm(0, s), stats.norm(0 * s, 1)), (WIDE,),
    ),
    "Poisson(rate) and Poisson(1), half each": (
        lambda r: mixture(dist.Poisson(r), dist.Poisson(jnp.ones_like(r))), None,
        lambda r: Half(stats.poisson(r), stats.poisson(np.ones_like(r))), (WIDE,),
    ),
}  # fmt: skip


@functools.cache
def case(name):
    """Parameters (parameter, row), SciPy's distribution, its quantiles (level, row), and these in float32.

    Quantiles that float32 does not have are NaN there.
    """
    given = np.float32([*itertools.product(*FAMILIES[name][3])]).T
    exact = FAMILIES[name][2](*given.astype(float))
    right = exact.ppf(LEVELS)
    values = np.float32(right)
    inside = np.isfinite(values) & ((np.abs(values) > 1e-37) | is_discrete(name) & (values == 0))
    inside &= (values < 1) | (name != "Beta(a, b)")
    return given, exact, right, np.where(inside, values, np.float32(np.nan))


def is_discrete(name):
    return "Poisson" in name or "Binomial" in name


def held(good, name):
    """Whether all values of a row hold; None for a row without any."""
    known = ~np.isnan(case(name)[3])
    return [bool(g[k].all()) if k.any() else None for g, k in zip(good.T, known.T)]


def density(kind, name):
    given, exact, _, values = case(name)
    found = jax.jit(lambda given, x: FAMILIES[name][kind](*given).log_prob(x))(given, values)
    return held(close(found, log_density(exact, values.astype(float)), TOLERANCE), name)


def close(found, right, absolute=0.0):
    return np.abs(np.asarray(found) - right) <= TOLERANCE * np.abs(right) + absolute


@functools.cache
def predictions(name):
    def model(x, y=None):
        numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", FAMILIES[name][0](*x.T), obs=y)

    return bnn.predict(model, {"w": np.zeros((1, 1), np.float32)}, case(name)[0].T)


def at_levels(function, values):
    filled = np.where(np.isnan(values), np.nanmedian(values), values)
    return np.stack([np.asarray(function(row), float).reshape(len(row)) for row in filled])


def predicted_density(name):
    _, exact, _, values = case(name)
    found = at_levels(predictions(name).log_prob, values)
    return held(close(found, log_density(exact, values.astype(float)), TOLERANCE), name)


def predicted_cdf(name):
    _, exact, _, values = case(name)
    found = at_levels(predictions(name).cdf, values)
    return held(close(found, exact.cdf(values.astype(float))), name)


def predicted_quantiles(name):
    """Right, or with a probability that is right."""
    _, exact, right, _ = case(name)
    found = predictions(name).quantiles(LEVELS[:, 0])
    slack = TOLERANCE * np.minimum(LEVELS, 1 - LEVELS)
    below = exact.cdf(found - is_discrete(name)) <= LEVELS + slack
    return held(close(found, right) | below & (exact.cdf(found) >= LEVELS - slack), name)


def drawn(name):
    targets = predictions(name).targets(DRAWS)
    _, exact, _, values = case(name)
    shares = np.stack([(targets <= row).mean(0) for row in values])
    return held(np.abs(shares - exact.cdf(values.astype(float))) < DISTANCE, name)


FUNCTIONS = {
    "density, ours": functools.partial(density, 1),
    "density, NumPyro's": functools.partial(density, 0),
    "density, predicted": predicted_density,
    "distribution function": predicted_cdf,
    "quantiles": predicted_quantiles,
    "draws": drawn,
}


def number(value):
    return f"{value:g}" if value == 0 or 0.01 <= abs(value) <= 100 else f"1e{np.log10(value):.0f}"


def cell(name, what):
    """In words, the largest box of parameters at which a function holds."""
    if what == "density, ours" and FAMILIES[name][1] is None:
        return "–"
    grids = FAMILIES[name][3]
    with np.errstate(all="ignore"):
        rows = np.reshape(FUNCTIONS[what](name), [*map(len, grids)])
    good, bad = np.equal(rows, True), np.equal(rows, False)
    boxes = itertools.product(*([*itertools.combinations(range(n + 1), 2)] for n in rows.shape))
    cuts = [tuple(slice(*ends) for ends in box) for box in boxes]
    box = max((c for c in cuts if not bad[c].any()), key=lambda c: (good[c].sum(), good[c].size))
    words = []
    for title, grid, cut in zip(re.findall(r"(\w+)(?=[,)])", name), grids, box):
        lower = f"{number(grid[cut.start])} ≤ " if cut.start else ""
        upper = f" ≤ {number(grid[cut.stop - 1])}" if cut.stop < len(grid) else ""
        words += [lower + title + upper] * bool(lower or upper)
    rest = ", and in part elsewhere" if good.sum() > good[box].sum() else ""
    return (" and ".join(words) or "all") + rest


PAGE = PAGES / "extremes.md"


def on_page():
    """Cells of the table of the page, by distribution and function."""
    return {name.strip("`"): row for name, row in table_on(PAGE).items()}


def made_page():
    lines = [["distribution", *FUNCTIONS], ["---"] * (1 + len(FUNCTIONS))]
    lines += [[f"`{name}`", *(cell(name, what) for what in FUNCTIONS)] for name in FAMILIES]
    text = PAGE.read_text(encoding="utf-8").split("<!-- table -->")[0]
    return f"{text}<!-- table -->\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(made_page(), encoding="utf-8")
