"""The distribution of the draws that ``MCMC.run`` returns, of thousands of short vectorised chains.

On a linear-Gaussian model a step is affine, with a random matrix where rows are drawn: its mean
and covariance follow from the data by linear algebra that shares no code with the samplers, and
the bias of the discretisation and of the minibatches is part of the answer. Exact samplers are
held to a skewed target at a large step. Tolerances are 5 Monte Carlo standard errors, from means
over independent chains.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import CustomGibbs, Gibbs
from quiet import quiet
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn import gradients, preconditioners

ROWS, PRIOR, NOISE = 4, 2.0, 0.8


def linear(x, y):
    weights = numpyro.sample("w", dist.Normal(0.0, 1 / np.sqrt(PRIOR)).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(x @ weights, NOISE), obs=y)


RNG = np.random.default_rng(1)
X = RNG.normal(size=(ROWS, 2)).astype(np.float32).astype(float)
Y = (X @ [1.0, -0.5] + 2.5 * RNG.normal(size=ROWS)).astype(np.float32).astype(float)
HESSIAN = PRIOR * np.eye(2) + X.T @ X / NOISE**2
SLOPE = X.T @ Y / NOISE**2
MEAN = np.linalg.solve(HESSIAN, SLOPE)
LARGEST = np.linalg.eigvalsh(HESSIAN).max()
ANCHOR = np.array([0.2, 0.4])
METRIC = np.array([0.6, 1.5])


def minibatches(batch_size):
    """(Hessian, slope) of the energy of every possible minibatch drawn with replacement."""
    for rows in itertools.product(range(ROWS), repeat=batch_size):
        x, y = X[list(rows)], Y[list(rows)]
        scale = ROWS / batch_size / NOISE**2
        yield PRIOR * np.eye(2) + scale * x.T @ x, scale * x.T @ y


def second_moment(maps, noise):
    """S = E[A S A'] + E[c c'] + Q of s' = A s + c + N(0, Q), s with mean 0."""
    operator = np.mean([np.kron(a, a) for a, _ in maps], axis=0)
    source = np.mean([np.outer(c, c) for _, c in maps], axis=0) + noise
    assert np.abs(np.linalg.eigvals(operator)).max() < 0.97  # forgotten within the warm-up
    size = len(source)
    return np.linalg.solve(np.eye(size**2) - operator, source.ravel()).reshape(size, size)


def affine(step, hessians_and_forces, size):
    """The maps of a step given as a function of state and gradient, by evaluation at a basis."""
    for hessian, force in hessians_and_forces:
        offset = step(np.zeros(size), force)
        columns = [step(unit, force + hessian @ unit[:2]) - offset for unit in np.eye(size)]
        yield np.stack(columns, 1), offset


def expected(kind, batches, step_size, temperature, friction=None, metric=1.0):
    """Stationary covariance; each method written out from its paper."""
    h = step_size
    eye = np.eye(2)
    # Position is relative to the posterior mean; there the gradient is H m - b.
    given = [(hessian, hessian @ MEAN - slope) for hessian, slope in batches]
    if kind == "langevin":
        maps = affine(lambda s, g: s - h / 2 * metric * g, given, 2)
        return second_moment(list(maps), h * temperature * np.diag(metric * np.ones(2)))
    if kind == "sghmc":

        def step(s, g):
            p = (1 - friction * h) * s[2:] - h * g
            return np.concatenate([s[:2] + h * p, p])

        noise = np.sqrt(2 * friction * h * temperature) * np.vstack([h * eye, eye])
    else:
        c = np.exp(-friction * h)

        def step(s, g):
            p = s[2:] - h * g
            return np.concatenate([s[:2] + h / 2 * (1 + c) * p, c * p])

        noise = np.sqrt((1 - c**2) * temperature) * np.vstack([h / 2 * eye, eye])
    return second_moment(list(affine(step, given, 4)), noise @ noise.T)[:2, :2]


WHOLE = [(HESSIAN, SLOPE)]
PAIRS = list(minibatches(2))
# A control variate has the batch's Hessian, and no noise at its anchor.
CORRECTED = [(h, h @ ANCHOR - (HESSIAN @ ANCHOR - SLOPE)) for h, _ in PAIRS]
EPSILON = 1.2 / LARGEST
STEP = 0.9 / np.sqrt(LARGEST)


def some_rows():
    return gradients.minibatch(2, "replacement")


def anchored():
    return gradients.control_variate(2, {"w": jnp.asarray(ANCHOR, jnp.float32)}, "replacement")


DISTRIBUTIONS = {
    "SGLD, all rows": (
        lambda: bnn.SGLD(linear, step_size=EPSILON, temperature=2.0),
        lambda: expected("langevin", WHOLE, EPSILON, 2.0),
    ),
    "SGLD, minibatches, cold": (
        lambda: bnn.SGLD(linear, step_size=EPSILON / 2, temperature=0.5, gradient=some_rows()),
        lambda: expected("langevin", PAIRS, EPSILON / 2, 0.5),
    ),
    "SGLD, control variate, hot": (
        lambda: bnn.SGLD(linear, step_size=EPSILON / 2, temperature=2.0, gradient=anchored()),
        lambda: expected("langevin", CORRECTED, EPSILON / 2, 2.0),
    ),
    "SGLD in a metric": (
        lambda: bnn.SGLD(
            linear,
            step_size=EPSILON / 2,
            gradient=some_rows(),
            preconditioner=preconditioners.diagonal({"w": METRIC}),
        ),
        lambda: expected("langevin", PAIRS, EPSILON / 2, 1.0, metric=METRIC),
    ),
    "SGHMC, minibatches, hot": (
        lambda: bnn.SGHMC(
            linear, step_size=STEP / 2, friction=0.6 / STEP, temperature=2.0, gradient=some_rows()
        ),
        lambda: expected("sghmc", PAIRS, STEP / 2, 2.0, 0.6 / STEP),
    ),
    "BAOAB, minibatches, cold": (
        lambda: bnn.BAOAB(
            linear, step_size=STEP / 2, friction=0.6 / STEP, temperature=0.5, gradient=some_rows()
        ),
        lambda: expected("baoab", PAIRS, STEP / 2, 0.5, 0.6 / STEP),
    ),
    "BAOAB, all rows, large step": (
        lambda: bnn.BAOAB(linear, step_size=1.5 * STEP, friction=0.6 / STEP, temperature=2.0),
        lambda: 2.0 * np.linalg.inv(HESSIAN),
    ),
    "AMAGOLD, minibatches, cold": (
        lambda: bnn.AMAGOLD(
            linear,
            step_size=0.7 * STEP,
            friction=0.6 / STEP,
            num_steps=3,
            batch_size=2,
            temperature=0.5,
        ),
        lambda: 0.5 * np.linalg.inv(HESSIAN),
    ),
}
CHAINS = 8000


def run(kernel, *args, init_params=None, num_chains=CHAINS, num_warmup=100, num_samples=4, **more):
    mcmc = quiet(
        kernel, num_warmup, num_samples, num_chains, **{"chain_method": "vectorized", **more}
    )
    mcmc.run(jax.random.key(7), *args, init_params=init_params)
    assert not mcmc.left_out
    return mcmc


def z_scores(by_chain, exact):
    """Deviation of the mean over chains, in standard errors."""
    by_chain = np.asarray(by_chain, float)
    error = by_chain.std(0, ddof=1) / np.sqrt(len(by_chain))
    return (by_chain.mean(0) - exact) / error


# In every change: a control variate, a metric, and minibatches with either kind of momentum.
FAST = {
    "SGLD, control variate, hot",
    "SGLD in a metric",
    "SGHMC, minibatches, hot",
    "BAOAB, minibatches, cold",
}


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in DISTRIBUTIONS]
)
def test_mean_and_covariance_are_those_of_the_discretised_chain(name):
    kernel, distribution = DISTRIBUTIONS[name]
    start = {"w": jnp.asarray(np.tile(MEAN, (CHAINS, 1)), jnp.float32)}
    data = jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32)
    draws = run(kernel(), *data, init_params=start).get_samples(group_by_chain=True)["w"]
    centred = np.asarray(draws, float) - MEAN
    assert np.abs(z_scores(centred.mean(1), 0.0)).max() < 5
    squares = np.einsum("cdi,cdj->cij", centred, centred) / centred.shape[1]
    exact = distribution()
    z = z_scores(squares, exact)
    assert np.abs(z).max() < 5, (z, squares.mean(0), exact)


def test_the_distributions_differ_by_more_than_the_tolerance():
    """What the test above can tell apart: noise of minibatches, of the step, the temperature."""
    plain = expected("langevin", WHOLE, EPSILON / 2, 0.5)
    noisy = expected("langevin", PAIRS, EPSILON / 2, 0.5)
    assert np.trace(noisy) > 1.4 * np.trace(plain)
    assert np.trace(plain) > 1.05 * np.trace(0.5 * np.linalg.inv(HESSIAN))
    corrected = expected("langevin", CORRECTED, EPSILON / 2, 0.5)
    assert np.trace(plain) < 0.92 * np.trace(corrected) < 0.8 * np.trace(noisy)


WAITS = np.array([0.2, 2.0])


def waiting(y):
    """Gamma rate and exponential waits: in z = log(rate), density exp(3 z - (1 + Σy) e^z)."""
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Exponential(rate), obs=numpyro.subsample(y, event_dim=0))


EXACT = {
    "MALA": lambda t: bnn.MALA(waiting, step_size=0.7, temperature=t),
    "SGLD": lambda t: bnn.SGLD(waiting, step_size=0.6, batch_size=1, accept="full", temperature=t),
    "SGLD control variate": lambda t: bnn.SGLD(
        waiting,
        step_size=0.7,
        gradient=gradients.control_variate(1, {"rate": jnp.zeros(())}),
        accept="full",
        temperature=t,
    ),
    "GGMC": lambda t: bnn.GGMC(
        waiting, step_size=0.4, friction=0.5, num_steps=2, batch_size=1, temperature=t
    ),
    "GGMC in a metric": lambda t: bnn.GGMC(
        waiting,
        step_size=1.0,
        friction=1.0,
        preconditioner=preconditioners.diagonal(0.6),
        temperature=t,
    ),
    "AMAGOLD": lambda t: bnn.AMAGOLD(
        waiting, step_size=0.4, friction=0.5, num_steps=3, batch_size=1, temperature=t
    ),
    "RandomWalk": lambda t: bnn.RandomWalk(waiting, step_size=0.9, temperature=t),
}
PROBABILITIES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98])


def below_quantiles(kernel, temperature, num_chains=12_000, num_warmup=40):
    """z-scores of the fractions below exact quantiles, for chains that begin in the distribution.

    An invariant distribution stays; chains that begin in it show any drift out of it in few steps.
    """
    # exp(z) of the density of `waiting` to the power 1/T.
    distribution = stats.gamma(3 / temperature, scale=temperature / (1 + WAITS.sum()))
    start = jnp.asarray(np.log(distribution.rvs(num_chains, random_state=3)), jnp.float32)
    data = jnp.asarray(WAITS, jnp.float32)
    mcmc = run(
        kernel, data, init_params={"rate": start}, num_chains=num_chains, num_warmup=num_warmup
    )
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["rate"])
    below = (draws[..., None] < distribution.ppf(PROBABILITIES)).mean(1)
    accepted = mcmc.get_extra_fields().get("accept_prob", jnp.ones(1)).mean()
    return z_scores(below, PROBABILITIES), float(accepted)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        ("SGLD", 1.0),
        ("AMAGOLD", 0.5),
        *[
            pytest.param(name, temperature, marks=pytest.mark.slow)
            for name in EXACT
            for temperature in (0.5, 1.0, 2.0)
            if (name, temperature) not in {("SGLD", 1.0), ("AMAGOLD", 0.5)}
        ],
    ],
)
def test_exact_samplers_are_exact_at_a_large_step(name, temperature):
    z, accepted = below_quantiles(EXACT[name](temperature), temperature)
    assert 0.2 < accepted < 0.93
    assert np.abs(z).max() < 5, z


def test_the_biased_samplers_are_seen_to_be_biased():
    biased = bnn.SGLD(waiting, step_size=0.6, batch_size=1, accept="minibatch")
    assert np.abs(below_quantiles(biased, 1.0)[0]).max() > 10


def hierarchical(y):
    precision = numpyro.sample("precision", dist.Gamma(1.5, 0.5))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1 / jnp.sqrt(precision)))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=numpyro.subsample(y, event_dim=0))


def draw_precision(rng_key, gibbs_sites, hmc_sites):
    return {"precision": dist.Gamma(2.0, 0.5 + 0.5 * hmc_sites["mean"] ** 2).sample(rng_key)}


def quadrature(observed):
    """Quantiles of the mean, and the mean of the precision, on a grid."""
    grid = np.linspace(-6, 6, 20_001)
    log_density = -2.0 * np.log(0.5 + 0.5 * grid**2)
    log_density += stats.norm(grid[:, None], 1.0).logpdf(observed).sum(1)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    quantiles = np.interp(PROBABILITIES, np.cumsum(weight) - weight / 2, grid)
    return quantiles, np.sum(weight * 2.0 / (0.5 + 0.5 * grid**2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GGMC", "AMAGOLD"])
def test_gibbs_with_minibatches_is_exact(name):
    """A kernel that keeps a gradient must keep that of a minibatch: the exact one is biased."""
    observed = np.array([0.2, 3.2])
    kernel = getattr(bnn, name)(
        hierarchical, step_size=0.8, friction=0.3, num_steps=1, batch_size=1
    )
    blocks = Gibbs([(CustomGibbs(draw_precision), ["precision"]), (kernel, ["mean"])])
    start = {"precision": jnp.zeros(CHAINS), "mean": jnp.full(CHAINS, 1.5)}
    data = jnp.asarray(observed, jnp.float32)
    mcmc = run(blocks, data, init_params=start, chain_method=jax.vmap, num_warmup=500)
    draws = mcmc.get_samples(group_by_chain=True)
    quantiles, mean_precision = quadrature(observed)
    below = (np.asarray(draws["mean"])[..., None] < quantiles).mean(1)
    z = z_scores(below, PROBABILITIES)
    assert np.abs(z).max() < 5, z
    assert np.abs(z_scores(np.asarray(draws["precision"]).mean(1), mean_precision)) < 5
