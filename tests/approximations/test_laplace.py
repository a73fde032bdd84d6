"""The Laplace approximation: curvature against closed forms, of low rank against the dense matrix; draws."""

import functools
import sys

import jax
import jax.numpy as jnp
import linear_gaussian as linear
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree
from linear_gaussian import BIAS, KERNEL, NOISE, check_distribution, key, posterior
from scipy.stats import t as student
from small_models import network_model, row_model

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.approximations import curvature
from numpyro_bnn.approximations.curvature import _kind_for
from numpyro_bnn.approximations.laplace import low_rank
from numpyro_bnn.models import random_module as networks

NEWTON = {"optimizer": optax.lbfgs(), "num_steps": 40, "progress_bar": False}


@pytest.fixture(scope="module")
def data():
    return linear.data()


@pytest.fixture(scope="module")
def mode(data):
    mean, _ = posterior(*data)
    return bnn.Draws({KERNEL: mean[None, None, :3, None], BIAS: mean[None, None, 3:]}, linear.model)


def laplace(model, *args, seed=1, **options):
    return bnn.laplace(model, key(seed), *args, **(NEWTON | options))


def test_it_is_exact_for_a_linear_model(data, mode):
    mean, precision = posterior(*data)
    draws = laplace(linear.model, *data, num_samples=4000, mode=mode)
    check_distribution(linear.weights(draws)[0], mean, np.linalg.inv(precision))
    assert draws.info["curvature"] == "hessian"
    assert draws.info["covariance"] == "full"
    assert draws.info["newton_decrement"] < 1e-6


def test_the_diagonal_one_has_the_variances_given_all_other_weights(data, mode):
    mean, precision = posterior(*data)
    draws = laplace(linear.model, *data, num_samples=4000, mode=mode, covariance="diagonal")
    check_distribution(linear.weights(draws)[0], mean, np.diag(1 / np.diag(precision)))


def test_a_subset_varies_given_the_rest(data, mode):
    draws = laplace(linear.model, *data, num_samples=4000, mode=mode, subset=[KERNEL])
    mean, precision = posterior(*data)
    assert np.unique(draws[BIAS]).size == 1
    check_distribution(linear.weights(draws)[0][:, :3], mean[:3], np.linalg.inv(precision[:3, :3]))


def test_the_decrement_says_how_far_the_mode_is(data):
    """From w the quadratic energy falls by (w - w*)ᵀ H (w - w*) / 2 to its mode."""
    mean, precision = posterior(*data)
    start = {KERNEL: jnp.zeros((3, 1)), BIAS: jnp.zeros(1)}
    with pytest.warns(UserWarning, match=r"laplace: the mode was not reached.*num_steps"):
        draws = laplace(linear.model, *data, num_samples=1, init_params=start, num_steps=0)
    expected = mean @ precision @ mean / 2
    assert draws.info["newton_decrement"] == pytest.approx(expected, rel=1e-4)


classes = network_model(nets.MLP(3), priors.Normal(1.0), bnn.likelihoods.categorical)
binary = network_model(nets.Linear(), priors.Normal(1.0), bnn.likelihoods.bernoulli)
noisy = network_model(nets.MLP(2), priors.Normal(1.0), bnn.likelihoods.heteroscedastic)
outliers = network_model(
    nets.Linear(), priors.Normal(1.0), bnn.likelihoods.student_t, noise=0.3, df=5.0
)


def point(model, *args):
    descent = linear.members(model, args)
    z = {name: value * 0.7 for name, value in nets.weights(model, *args).items()}
    return descent, z, sorted(z)


def test_a_logistic_regression_has_one_curvature(data):
    """Hessian, Gauss-Newton and Xᵀ diag(p (1 - p)) X + 1 are the same matrix."""
    x, y = data[0], (data[1] > 0).astype(int)
    descent, z, sites = point(binary, x, y)
    rows = np.c_[np.ones(20), x]  # sites are sorted: the bias comes first
    f = rows @ np.r_[z[BIAS], z[KERNEL][:, 0]].astype(np.float64)
    p = 1 / (1 + np.exp(-f))
    expected = rows.T @ (rows * (p * (1 - p))[:, None]) + np.eye(4)
    for kind in ("hessian", "gauss_newton"):
        found = curvature.matrix(descent, z, sites, kind)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        entries = curvature.diagonal(descent, z, sites, kind)
        np.testing.assert_allclose(entries, np.diag(expected), rtol=1e-4)


@pytest.mark.parametrize(
    "model",
    [noisy, *(pytest.param(model, marks=pytest.mark.slow) for model in (classes, outliers))],
)
def test_gauss_newton_is_the_expected_hessian_of_every_family(data, model):
    """Σ JᵀFJ + 1, with J of the network's outputs and F the Fisher information of the family."""
    x = jnp.asarray(data[0][:6], jnp.float32)
    y = np.arange(6) % 3 if model is classes else data[1][:6]
    descent, z, sites = point(model, x, y)

    def outputs(flat):
        handler = networks.calls(numpyro.handlers.substitute(model, data=unravel(flat)))
        numpyro.handlers.seed(handler, 0)(x)
        return handler.seen["net"].output.reshape(6, -1)

    flat, unravel = ravel_pytree(z)
    f, slopes = outputs(flat), np.asarray(jax.jacobian(outputs)(flat), np.float64)
    total = np.eye(flat.size)
    for row, slope in zip(np.asarray(f, np.float64), slopes):
        if model is classes:
            p = np.exp(row) / np.exp(row).sum()
            fisher = np.diag(p) - np.outer(p, p)
        elif model is noisy:
            scale = np.log1p(np.exp(row[1]))
            along = 1 / (1 + np.exp(-row[1]))
            fisher = np.diag([1 / scale**2, 2 * (along / scale) ** 2])
        else:
            fisher = np.eye(1) * 6.0 / 8.0 / 0.3**2
        total += slope.T @ fisher @ slope
    found = curvature.matrix(descent, z, sites, "gauss_newton")
    np.testing.assert_allclose(found, total, rtol=2e-3, atol=2e-3)
    entries = curvature.diagonal(descent, z, sites, "gauss_newton")
    np.testing.assert_allclose(entries, np.diag(total), rtol=2e-3)


def test_precisions_are_integrated_out_of_the_curvature(data):
    """A group of n weights under Gamma(a, b) is a Student t: (a + n/2) log(b + ‖w‖²/2)."""

    model = network_model(nets.Linear(), priors.Hierarchical(2.0, 0.5), noise=NOISE)
    descent = linear.members(model, data)
    z = {KERNEL: jnp.array([[0.4], [-0.7], [0.2]]), BIAS: jnp.array([0.3])}

    def energy(z):
        f = jnp.asarray(data[0]) @ z[KERNEL][:, 0] + z[BIAS]
        total = jnp.sum((jnp.asarray(data[1]) - f) ** 2) / (2 * NOISE**2)
        for w in z.values():
            total += (2.0 + w.size / 2) * jnp.log(0.5 + jnp.sum(w**2) / 2)
        return total

    flat, unravel = ravel_pytree(z)
    expected = jax.jit(jax.hessian(lambda v: energy(unravel(v))))(flat)
    found = curvature.matrix(descent, z, sorted(z), "hessian")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_gauss_newton_takes_over_where_the_hessian_is_indefinite_and_the_last_layer_is_found(data):
    """By what its bias does: Flax calls this network's output layer Dense_0, its hidden one Dense_1."""
    with pytest.warns(UserWarning, match="laplace: the mode was not reached"):
        draws = laplace(noisy, *data, num_samples=5, num_steps=0, subset="last_layer")
    assert draws.info["curvature"] == "gauss_newton"
    assert draws.info["random"] == ["net/Dense_0.bias", "net/Dense_0.kernel"]
    assert np.unique(draws["net/Dense_1.kernel"][0], axis=0).shape[0] == 1
    assert np.unique(draws["net/Dense_0.kernel"][0], axis=0).shape[0] == 5


def test_a_linearised_network_predicts_along_its_tangent(data):
    x = jnp.asarray(data[0], jnp.float32)
    at, there = (nets.weights(noisy, x, data[1], seed=i) for i in (0, 1))
    model = networks.linearize(noisy, at)
    draws = bnn.Draws({name: v[None, None] for name, v in there.items()}, model)

    def mean(some):
        hidden = jnp.tanh(x @ some["net/Dense_1.kernel"] + some["net/Dense_1.bias"])
        return (hidden @ some["net/Dense_0.kernel"] + some["net/Dense_0.bias"])[:, 0]

    step = {name: there[name] - at[name] for name in at}
    f, change = jax.jit(lambda a, s: jax.jvp(mean, (a,), (s,)))(at, step)
    found = bnn.predict(None, draws, x).mean[0, 0]
    np.testing.assert_allclose(found, f + change, rtol=1e-4, atol=1e-5)
    assert np.abs(found - jax.jit(mean)(there)).max() > 0.1


def test_a_linearised_approximation_is_linearised_at_its_mode(data, mode):
    draws = laplace(linear.network, *data, mode=mode, num_samples=2, linearized=True)
    assert isinstance(draws.model, networks.linearize)
    for site in (KERNEL, BIAS):
        np.testing.assert_allclose(draws.model.at[site], mode[site][0, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariance": "low-rank"}, "unknown covariance='low-rank'"),
        ({"num_samples": 0}, r"laplace: num_samples must be a positive integer, got 0"),
        ({"mode": {}}, r"mode must be one draw, as `bnn\.map_estimate` returns, got \{\}"),
    ],
)
def test_bad_input_is_refused(data, change, message):
    with pytest.raises(ValueError, match=message):
        laplace(linear.model, *data, **change)


def test_a_mode_of_another_model_is_refused(data, mode):
    with pytest.raises(KeyError, match="Dense_1"):
        laplace(noisy, *data, mode=mode)


def test_a_network_without_an_output_bias_has_to_be_told(data):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        bnn.likelihoods.gaussian(x @ w, y, noise=NOISE)

    mode = bnn.Draws({"w": np.zeros((1, 1, 3))}, model)
    with pytest.raises(ValueError, match=r"no bias is added .*subset=\[…\].*\['w'\]"):
        laplace(model, *data, subset="last_layer", mode=mode)


def counts(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=jnp.abs(y).astype(int))


def factor(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.factor("y", -((y - x @ w) ** 2))


@pytest.mark.parametrize(
    ("model", "what"), [(counts, "Poisson, the distribution of"), (factor, "a `numpyro.factor`")]
)
def test_low_rank_says_that_it_needs_the_matrix(data, model, what):
    """No Hessian was computed, of which anything could be said."""
    with pytest.raises(ValueError, match=rf"not known for {what} 'y'\."):
        laplace(model, *data, covariance="low_rank", rank=2, num_steps=0)


def doubled(x, y):
    """Two weights of which the data know the sum alone, with a precision of 2⁴⁶."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(w.sum(), 2.0**-23), obs=y[0])


def infinite(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.sqrt(jnp.abs(w)), 1.0).to_event(1), obs=y[:2])


flat = row_model(
    lambda x, w: dist.Normal(0.0 * (x @ w), 1.0),
    w=dist.StudentT(1.0, 0.0, 0.1).expand([3]).to_event(1),
)
cauchy = row_model(
    lambda x, w: dist.Cauchy(x @ w, 0.1), w=dist.Normal(0.0, 1.0).expand([3]).to_event(1)
)


@pytest.mark.parametrize(
    ("model", "start", "message"),
    [
        (flat, np.ones(3), r"neither the Hessian nor the Gauss-Newton .*Optimise"),
        (cauchy, 3 * np.ones(3), r"Gauss-Newton matrix is not known for Cauchy.*'y'"),
        (doubled, np.zeros(2), r"to 1.41e\+14\)\. .* `numpyro.enable_x64\(\)`"),
        (infinite, np.zeros(2), "eigenvalues of the latter from nan"),
    ],
    ids=["no curvature", "unknown Fisher information", "rounded", "not finite"],
)
def test_without_a_matrix_it_is_said_why(data, model, start, message):
    with pytest.raises(ValueError, match=message):
        laplace(model, *data, init_params={"w": start}, num_steps=0)


def residuals(x, y, family=dist.Normal):
    """The linear model with the weights in the observed value, where the family has none."""
    w = numpyro.sample("w", dist.Normal(0.0, linear.SCALE).expand([x.shape[1] + 1]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("r", family(0.0, NOISE), obs=y - x @ w[:-1] - w[-1])


@pytest.mark.parametrize(
    ("family", "share"), [(dist.Normal, 1.0), (functools.partial(dist.StudentT, 5.0), 6 / 8)]
)
def test_gauss_newton_is_told_by_weights_in_an_observed_value(data, family, share):
    """Fisher information of the location of a t: (df + 1) / (df + 3) of that of a Gaussian."""
    _, precision = posterior(*data)
    descent, z, sites = point(functools.partial(residuals, family=family), *data)
    prior = np.eye(4) / linear.SCALE**2
    found = curvature.matrix(descent, z, sites, "gauss_newton")
    np.testing.assert_allclose(found, prior + (precision - prior) * share, rtol=1e-4, atol=1e-3)
    assert descent.whole.centered.structure.observed == ["r"]


# A Student t of which no parameter is known.
free_tail = row_model(
    lambda x, log_df, log_scale, mean: dist.StudentT(jnp.exp(log_df), mean, jnp.exp(log_scale)),
    log_df=dist.Normal(0.0, 1.0),
    log_scale=dist.Normal(0.0, 1.0),
    mean=dist.Normal(0.0, 1.0),
)


@pytest.mark.parametrize("df", [0.8, 5.0, 40.0])
def test_gauss_newton_of_student_t_has_the_information_of_the_degrees_of_freedom(df):
    """The expectation of the outer product of scores, by quadrature, for log df, log scale and location."""
    at, h = np.array([np.log(df), 0.3, 0.2]), 1e-4
    grid = np.linspace(-25.0, 25.0, 4001)
    y = at[2] + np.exp(at[1]) * np.sinh(grid)
    step = np.exp(at[1]) * np.cosh(grid) * (grid[1] - grid[0])
    weight = student.pdf(y, df, at[2], np.exp(at[1])) * step

    def score(i):
        up, down = (at + sign * h * np.eye(3)[i] for sign in (1, -1))
        densities = [student.logpdf(y, np.exp(p[0]), p[2], np.exp(p[1])) for p in (up, down)]
        return (densities[0] - densities[1]) / (2 * h)

    scores = np.stack([score(i) for i in range(3)])
    rows = np.zeros((50, 1), np.float32)
    data = rows, np.zeros(50, np.float32)
    descent = linear.members(free_tail, data)
    sites = ["log_df", "log_scale", "mean"]
    z = dict(zip(sites, jnp.asarray(at, jnp.float32)))
    found = (curvature.matrix(descent, z, sites, "gauss_newton") - np.eye(3)) / 50
    np.testing.assert_allclose(found, (scores * weight) @ scores.T, rtol=1e-3, atol=1e-6)


def soft_labels(x, y):
    """A Bernoulli distribution whose value depends on a latent site, as no other one known here has."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    share = jax.nn.sigmoid(w[0])
    with numpyro.plate("data", len(x)):
        distribution = dist.Bernoulli(logits=x @ w, validate_args=False)
        numpyro.sample("y", distribution, obs=share * jnp.asarray(y > 0, float))


def test_gauss_newton_refuses_a_value_that_it_does_not_know(data):
    descent, z, sites = point(soft_labels, *data)
    with pytest.raises(
        ValueError, match=r"value of 'y'.* depends on latent sites.*BernoulliLogits"
    ):
        curvature.matrix(descent, z, sites, "gauss_newton")
    options = {"num_samples": 2, "covariance": "low_rank", "rank": 2, "num_steps": 0}
    with pytest.raises(ValueError, match=r"is known for Normal and StudentT, not for Bernoulli"):
        laplace(soft_labels, *data, **options)
    # The distance to the mode is then measured by the Hessian.
    assert _kind_for(descent, z) == "hessian"


def test_low_rank_has_the_information_of_an_observed_value(data):
    _, precision = posterior(*data)
    draws = laplace(residuals, *data, num_samples=4000, covariance="low_rank", rank=4)
    w = np.asarray(draws["w"], np.float64)[0]
    check_distribution(w, posterior(*data)[0], np.linalg.inv(precision))
    assert draws.info["newton_decrement"] < 1e-6


# All labels have one distribution over three classes.
frequencies = row_model(
    lambda x, w: dist.Categorical(logits=w), w=dist.Normal(0.0, 1.0).expand([3]).to_event(1)
)


def one_mean(x, y):
    """One distribution for all values, without a plate."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(w, NOISE), obs=y)


SHOWN = np.arange(20) < 13


def hidden_rows(x, y):
    """Weights in the observed value, of which some are no numbers."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    y = jnp.where(SHOWN, y, jnp.nan)
    with numpyro.plate("data", len(x)), numpyro.handlers.mask(mask=SHOWN):
        numpyro.sample("r", dist.Normal(0.0, NOISE), obs=y - x @ w)


def hidden_labels(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)), numpyro.handlers.mask(mask=SHOWN):
        numpyro.sample("y", dist.Categorical(logits=w), obs=y)


def hidden_entries(x, y):
    """A mask inside of a distribution of many values."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    distribution = dist.Normal(x @ w, NOISE).expand([2, 20]).mask(SHOWN).to_event(1)
    numpyro.sample("y", distribution, obs=jnp.stack([y, y]))


@pytest.mark.parametrize(
    "model", [frequencies, one_mean, hidden_rows, hidden_labels, hidden_entries]
)
def test_gauss_newton_counts_every_value_that_no_mask_hides(data, model):
    """All are natural parameters, whose Hessian it is."""
    y = np.arange(20) % 3 if model in (frequencies, hidden_labels) else data[1]
    descent, z, sites = point(model, data[0], y)
    hessian, found = (curvature.matrix(descent, z, sites, k) for k in ("hessian", "gauss_newton"))
    np.testing.assert_allclose(found, hessian, rtol=1e-4, atol=1e-4)


X, Y = linear.data(40)
LABELS = np.digitize(Y, [-1.0, 1.0])
SCALE = 1.5

wide_classes = network_model(nets.MLP(3), bnn.priors.Normal(SCALE), bnn.likelihoods.categorical)


@functools.cache
def dense():
    """At some weights: their values, the Gauss-Newton covariance, and the eigenvalues that the data add."""
    with nets.double():
        found = linear.members(wide_classes, (X, LABELS))
        rng = np.random.default_rng(4)
        sites = found.whole.sites
        shapes = found.whole.centered.structure.shapes
        z = {name: jnp.asarray(0.7 * rng.normal(size=shapes[name])) for name in sites}
        matrix = curvature.matrix(found, z, sites, "gauss_newton")
        return found, z, sites, matrix


def of_rank(rank):
    with nets.double():
        found, z, sites, _ = dense()
        result = low_rank(found, z, sites, rank)
        root = np.asarray(result.steps(jnp.eye(result.prior.size)))
        return result, root.T @ root


def truncated(rank):
    """The covariance that keeps the `rank` largest eigenvalues of what the data add, by dense algebra."""
    _, _, _, matrix = dense()
    added = SCALE**2 * matrix - np.eye(len(matrix))
    values, vectors = np.linalg.eigh(added)
    kept, directions = values[-rank:], vectors[:, -rank:]
    inside = np.eye(len(matrix)) - (directions * (kept / (1 + kept))) @ directions.T
    return SCALE**2 * inside, 1 + kept[0]


def test_all_directions_give_the_dense_covariance():
    _, _, _, matrix = dense()
    result, covariance = of_rank(len(matrix))
    np.testing.assert_allclose(covariance, np.linalg.inv(matrix), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(result.prior, SCALE**-2, rtol=1e-9)
    assert result.variance_factor == 1.0


def test_fewer_directions_converge_from_above():
    """Each rank is the best of its rank, and variances fall to the exact ones."""
    _, _, _, matrix = dense()
    exact = np.diag(np.linalg.inv(matrix))
    errors = []
    for rank in (2, 5, 10, 20):
        result, covariance = of_rank(rank)
        best, factor = truncated(rank)
        # The last of the directions is the least exact one.
        np.testing.assert_allclose(covariance, best, atol=0.02 * SCALE**2)
        assert (np.diag(covariance) > exact * (1 - 1e-6)).all()
        assert result.variance_factor == pytest.approx(factor, rel=0.02)
        assert (np.diag(covariance) < exact * result.variance_factor * 1.02).all()
        errors.append(np.max(np.diag(covariance) / exact - 1))
    assert (np.diff(errors) < 0).all()
    assert errors[-1] < 0.05 < errors[0]


def test_draws_are_from_the_posterior_of_a_linear_model():
    data = linear.data()
    mean, precision = posterior(*data)
    draws = bnn.laplace(
        linear.model, key(1), *data, covariance="low_rank", num_samples=4000, **NEWTON
    )
    check_distribution(linear.weights(draws)[0], mean, np.linalg.inv(precision))
    assert draws.info["covariance"] == "low_rank"
    assert draws.info["rank"] == 4
    assert draws.info["variance_factor"] == 1.0


def test_more_directions_than_the_data_determine():
    """Three rows leave most of 31 directions to the prior: the iteration breaks down before its end."""
    found = linear.members(wide_classes, (X[:3], LABELS[:3]))
    _, z, sites, _ = dense()
    z = {name: value.astype(jnp.float32) for name, value in z.items()}
    result = low_rank(found, z, sites, 20)
    size = result.prior.size
    root = np.asarray(result.steps(jnp.eye(size)), np.float64)
    matrix = curvature.matrix(found, z, sites, "gauss_newton")
    np.testing.assert_allclose(root.T @ root, np.linalg.inv(matrix), atol=1e-4 * SCALE**2)
    gram = result.directions.T @ result.directions
    np.testing.assert_allclose(gram, np.eye(20), atol=1e-5)
    assert result.variance_factor == pytest.approx(1.0, abs=1e-4)


def test_a_subset_of_the_sites():
    data = linear.data()
    mean, precision = posterior(*data)
    options = {"covariance": "low_rank", "rank": 3, "subset": [linear.KERNEL]}
    draws = bnn.laplace(linear.model, key(1), *data, num_samples=4000, **NEWTON, **options)
    assert np.unique(draws[linear.BIAS]).size == 1
    check_distribution(linear.weights(draws)[0][:, :3], mean[:3], np.linalg.inv(precision[:3, :3]))


def coupled(x, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal())
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.1), obs=y)


heavy = row_model(
    lambda x, w: dist.Normal(x @ w, 0.1), w=dist.StudentT(1.0, 0.0, 0.01).expand([3]).to_event(1)
)


def at(model, **values):
    values = {name: np.asarray(value)[None, None] for name, value in values.items()}
    return {"mode": bnn.Draws(values, model), "num_samples": 2, "progress_bar": False}


def test_what_is_refused(monkeypatch):
    data = linear.data()

    def fit(model=linear.model, **options):
        return bnn.laplace(model, jax.random.key(0), *data, **options)

    with pytest.raises(ValueError, match="rank must be a positive integer, got 0"):
        fit(covariance="low_rank", rank=0)
    start = at(linear.model, **{linear.KERNEL: np.ones((3, 1)), linear.BIAS: np.ones(1)})
    with pytest.raises(ValueError, match="needs a prior of independent parameters at the mode"):
        fit(coupled, covariance="low_rank", **at(coupled, scale=0.5, w=np.ones(3)))
    with pytest.raises(ValueError, match=r"needs a log-concave prior at the mode.* as low as -"):
        fit(heavy, covariance="low_rank", **at(heavy, w=np.ones(3)))
    monkeypatch.setitem(sys.modules, "matfree", None)
    with pytest.raises(ImportError, match=r"matfree\. Install them by .*\[low_rank\]"):
        fit(covariance="low_rank", **start)
