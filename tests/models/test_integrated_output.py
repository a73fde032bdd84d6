"""The output layer integrated out: the same posterior, and weights that are drawn back exactly."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from affine_models import by_hand, log_integral
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.handlers import scale, seed, substitute, trace
from numpyro.infer import HMC
from numpyro.infer.util import log_density
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn.models.affine_sites import is_affine

ROWS = 12
HIERARCHICAL = bnn.priors.Hierarchical(2.0, 1.0)


def data(outputs=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=ROWS)
    return x, y if outputs is None else np.stack([y, y**2], 1)


def network(x, y=None, *, prior=HIERARCHICAL, outputs=1, noise=None, module=None):
    module = bnn.MLP((3,), outputs) if module is None else module
    net = bnn.random_module("net", module, prior, x[:1])
    noise = dist.HalfNormal(1.0) if noise is None else noise
    bnn.likelihoods.gaussian(
        net if outputs > 1 else (lambda rows: net(rows).squeeze(-1)), y, x=x, noise=noise
    )


class Skip(nn.Module):
    """A hidden layer and a way past it: two arrays of weights besides the bias lead to the mean."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(2)(x))) + nn.Dense(1, use_bias=False, name="past")(x)


def per_output(x, y=None):
    network(x, y, outputs=2, noise=bnn.likelihoods.Precision(2.0, 1.0, output=3.0))


LAST = ["net/Dense_1.bias", "net/Dense_1.kernel"]
MODELS = {
    "one output": (network, None, LAST),
    "an output each": (per_output, 2, LAST),
    "by layer": (
        partial(network, prior=bnn.priors.Hierarchical(2.0, 1.0, groups="layer")),
        None,
        LAST,
    ),
    "unit precisions": (
        partial(network, prior=bnn.priors.Hierarchical.width(1.0, group=2.0, unit=4.0)),
        None,
        LAST,
    ),
    "fixed widths": (partial(network, prior=bnn.priors.FanIn()), None, LAST),
    "horseshoe": (partial(network, prior=bnn.priors.Horseshoe()), None, LAST),
    "a way past": (
        partial(network, prior=bnn.priors.FanIn(), module=Skip()),
        None,
        # Flax numbers the outer layer first here.
        ["net/Dense_0.bias", "net/Dense_0.kernel", "net/past.kernel"],
    ),
    "by hand": (by_hand, None, ["slope"]),
}


def integral(model, args, rest, weights):
    """log ∫ of the joint density over weights in which its logarithm is quadratic."""
    full = bnn.potential_of(model, *args)
    zeros = {name: jnp.zeros(full.structure.sites[name].shape) for name in weights}
    flat, unflatten = ravel_pytree(zeros)

    def joint(w):
        seeded = seed(full.bound, jax.random.key(0))
        return log_density(seeded, full.args, full.kwargs, rest | unflatten(w))[0]

    return log_integral(joint, flat)


def density(potential, values):
    seeded = seed(potential.bound, jax.random.key(0))
    return jax.jit(lambda v: log_density(seeded, potential.args, potential.kwargs, v)[0])(values)


# Their branches are those of the others.
SLOW = ("one output", "by layer", "fixed widths", "unit precisions")
BOTH = [
    *(
        pytest.param(name, "noncentered", marks=[pytest.mark.slow] if name in SLOW else [])
        for name in MODELS
    ),
    ("unit precisions", "centered"),
]


@pytest.mark.parametrize(("name", "coordinates"), BOTH)
def test_the_density_is_the_integral_over_the_weights(name, coordinates, double_precision):
    model, outputs, integrated = MODELS[name]
    args = data(outputs)
    potential = bnn.potential_of(bnn.parameterize(bnn.integrate_output(model), coordinates), *args)
    # What is positive is in the support of weights and of precisions.
    drawn = nets.weights(potential.model, *args)
    rest = {n: jnp.abs(v).astype(float) for n, v in drawn.items()}
    plain = bnn.parameterize(model, coordinates)
    weights = [n for n in bnn.potential_of(plain, *args).structure.latent if n not in rest]
    assert sorted(n.removesuffix(".base") for n in weights) == sorted(integrated)
    expected = integral(plain, args, rest, weights)
    np.testing.assert_allclose(density(potential, rest), expected, rtol=1e-10)


def test_t_noise_is_gaussian_given_a_precision_for_each_value(double_precision):
    x, y = data()
    model = bnn.regression(bnn.MLP((3,), 1), HIERARCHICAL, x, y, likelihood="student_t", df=3.0)
    potential = bnn.potential_of(bnn.integrate_output(model), x, y)
    rest = jax.jit(potential.prior_draw)(jax.random.key(2))
    own = rest["y.case_precision"]
    assert own.shape == (ROWS,)
    unit = float(model.standardization.y_scale)

    def given(x, y=None):
        """The same with Gaussian noise whose scales are the ones of these precisions."""
        net = bnn.random_module("net", bnn.MLP((3,), 1), HIERARCHICAL, x[:1])
        sigma = numpyro.sample("y.scale", dist.HalfNormal(1.0))
        units = model.standardization
        rows = (x - units.x_mean) / units.x_scale
        mean = units.y_mean + unit * net(rows).squeeze(-1)
        with numpyro.plate("data", ROWS):
            numpyro.sample("y", dist.Normal(mean, unit * sigma / jnp.sqrt(own)), obs=y)

    weights = [f"{name}.base" for name in LAST]
    others = {n: v for n, v in rest.items() if n != "y.case_precision"}
    expected = integral(given, (x, y), others, weights) + dist.Gamma(1.5, 1.5).log_prob(own).sum()
    np.testing.assert_allclose(density(potential, rest), expected, rtol=1e-10)


@pytest.mark.parametrize(
    "name", [pytest.param("one output", marks=pytest.mark.slow), "an output each", "by hand"]
)
def test_weights_drawn_back_have_the_joint_distribution_of_the_prior(name, double_precision):
    """Geweke's test: with y drawn from the model, weights drawn back are distributed as those drawn.

    Statistics are averages over pairs, so that their errors are those of the paired differences.
    """
    model, outputs, integrated = MODELS[name]
    x, _ = data(outputs)
    whole = bnn.integrate_output(model)
    computed = [n for n in integrated if n.startswith("net/")]

    # A precision by NumPy: to draw one compiles for seconds.
    spread = np.random.default_rng(1).gamma(2.0, 1 / 2.0, 3000)
    given = {"spread": spread} if name == "by hand" else {}

    @jax.jit
    @jax.vmap
    def pair(key, given):
        drawn = trace(seed(substitute(model, given), key)).get_trace(x)
        values = {
            n: s["value"] for n, s in drawn.items() if s["type"] in ("sample", "deterministic")
        }
        potential = bnn.potential_of(whole, x, values["y"])
        rest = {n: values[n] for n in potential.structure.latent}
        again = potential.constrain(potential.unconstrain(rest), deterministic=True)
        return ({n: values[n] for n in integrated}, {n: again[n] for n in integrated}, values)

    first, second, values = pair(jax.random.split(jax.random.key(3), 3000), given)

    def statistics(weights):
        made = []
        for n in integrated:
            w = np.clip(np.asarray(weights[n]).reshape(3000, -1), -20, 20)
            target = np.tanh(np.asarray(values["y"]).reshape(3000, -1)[:, :5])
            made += [
                w,
                np.tanh(w) ** 2,
                (np.tanh(w)[:, :, None] * target[:, None]).reshape(3000, -1),
            ]
        return np.concatenate(made, 1)

    difference = statistics(first) - statistics(second)
    z = difference.mean(0) / (difference.std(0) / np.sqrt(3000))
    assert np.abs(z).max() < 4.5
    assert computed or name == "by hand"
    # They are new draws, not the old ones.
    assert all(np.abs(np.asarray(first[n] - second[n])).min() > 0 for n in integrated)


def test_a_ready_model_has_its_output_weights_in_the_draws():
    x, y = (v.astype(np.float32) for v in data())
    model = bnn.regression(bnn.MLP((3,), 1), HIERARCHICAL, integrate_output=True)
    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False, "trajectory_length": None}
    kernel = HMC(model, step_size=0.1, num_steps=8, **fixed)
    mcmc = bnn.MCMC(kernel, num_warmup=100, num_samples=100, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y)
    samples = mcmc.get_samples()
    assert samples["net/Dense_1.kernel"].shape == (100, 3, 1)
    assert "net/Dense_1.kernel.base" not in samples
    assert len(np.unique(samples["net/Dense_1.kernel"][:, 0])) > 50
    by_draw = bnn.predict(model, mcmc, x)
    units = model.standardization
    rows = (x - units.x_mean) / units.x_scale
    h = jnp.tanh(rows @ samples["net/Dense_0.kernel"] + samples["net/Dense_0.bias"][:, None])
    f = (h @ samples["net/Dense_1.kernel"])[..., 0] + samples["net/Dense_1.bias"]
    np.testing.assert_allclose(
        by_draw.mean[0], units.y_mean + units.y_scale * f, rtol=1e-4, atol=1e-4
    )
    assert np.abs(by_draw.mean.mean((0, 1)) - y).mean() < 0.6


def test_without_a_target_it_is_the_model_itself():
    x, _ = data()

    def sites(model):
        there = jax.eval_shape(
            lambda: {n: s["value"] for n, s in trace(seed(model, 0)).get_trace(x).items()}
        )
        return there.keys()

    assert sites(bnn.integrate_output(network)) == sites(network)


def test_sites_can_be_named_in_any_coordinates():
    args = data()
    linear = partial(network, module=nn.Sequential([nn.Dense(2), nn.Dense(1)]))
    with pytest.raises(ValueError, match=r"not linear in .* at once: the mean of 'y' is not"):
        bnn.potential_of(bnn.integrate_output(linear), *args)
    one = ["net/layers_1.kernel", "net/layers_1.bias"]
    potential = bnn.potential_of(bnn.integrate_output(linear, sites=one), *args)
    assert not [n for n in potential.structure.latent if n in (f"{w}.base" for w in one)]


heteroscedastic = network_model(
    bnn.MLP((3,), 2), bnn.priors.FanIn(), bnn.likelihoods.heteroscedastic
)


def counts(x, y=None):
    net = bnn.random_module("net", bnn.MLP((3,), 1), bnn.priors.FanIn(), x[:1])
    with numpyro.plate("data", ROWS):
        numpyro.sample("y", dist.Poisson(jnp.exp(net(x)[:, 0])), obs=y)


def prior_of_a_weight(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("v", dist.Normal(w.sum(), 1.0))
    with numpyro.plate("data", ROWS):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def sum_to_zero(x, y=None):
    """A soft constraint on weights that the mean is linear in, beside others."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("sum_zero", dist.Normal(0.0, 0.1), obs=w.sum())
    with numpyro.plate("data", ROWS):
        numpyro.sample("y", dist.Normal(x @ w + b, 0.5), obs=y)


def residuals(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", ROWS):
        numpyro.sample("r", dist.Normal(b, 0.5), obs=y - x @ w)


def scaled_by_a_weight(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with scale(scale=jnp.exp(w)):
        numpyro.sample("other", dist.Normal(0.0, 1.0), obs=0.3)
    with numpyro.plate("data", ROWS):
        numpyro.sample("y", dist.Normal(x[:, 0] * w + b, 0.5), obs=y)


@pytest.mark.parametrize("model", [sum_to_zero, residuals, scaled_by_a_weight])
def test_weights_that_enter_another_density_by_a_value_are_sampled(model, double_precision):
    args = data()
    potential = bnn.potential_of(bnn.integrate_output(model), *args)
    assert potential.structure.latent == ["w"]
    rest = {"w": jnp.full(potential.structure.sites["w"].shape, 0.4)}
    expected = integral(model, args, rest, ["b"])
    np.testing.assert_allclose(density(potential, rest), expected, rtol=1e-10)


REFUSED = {
    "a weight in an observed value": (
        sum_to_zero,
        {"sites": ["w", "b"]},
        r"at once: the value of 'sum_zero' depends on them",
    ),
    "a weight in the value of the target": (
        residuals,
        {"sites": ["w"]},
        r"at once: the value of 'r' depends on them",
    ),
    "a scale that is learned": (heteroscedastic, {}, r"no latent site has a Gaussian prior and"),
    "another distribution": (counts, {}, r"the model observes \{'y': 'Poisson'\}"),
    "t weights": (
        partial(network, prior=bnn.priors.StudentT(3.0, 1.0)),
        {},
        r"The Gaussian ones are \[\]",
    ),
    "collapsed": (bnn.parameterize(network, "collapsed"), {}, r'`parameterize\(model, "noncent'),
    "a weight in a prior": (
        prior_of_a_weight,
        {"sites": ["w"]},
        r"at once: the distribution of 'v' depends on them",
    ),
    "an unknown site": (
        network,
        {"sites": ["net/Dense_7.kernel"]},
        "The sites|Those that could be used",
    ),
    "a hidden layer": (network, {"sites": ["net/Dense_0.kernel"]}, r"the mean of 'y' is not"),
    "rows with weights": (scale(network, scale=0.5), {}, r"is scaled"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_integrated_is_refused(case):
    model, options, message = REFUSED[case]
    x, y = data()
    with pytest.raises(ValueError, match=message):
        bnn.potential_of(bnn.integrate_output(model, **options), x, np.round(np.abs(y)))


def test_there_are_no_minibatches():
    x, y = data()
    with pytest.raises(ValueError, match="A minibatch needs a plate around the observed sites"):
        bnn.potential_of(bnn.integrate_output(network), x, y).data_plate()


def test_exact_draws_of_the_other_precisions_still_fit():
    """Precisions above integrated weights are moved by the sampler, the others by Gibbs."""
    x, y = (v.astype(np.float32) for v in data())
    potential = bnn.potential_of(bnn.integrate_output(network), x, y)
    assert set(potential.structure.levels) == {
        "net/Dense_0.kernel.precision",
        "net/Dense_0.bias.precision",
    }


@pytest.mark.parametrize("prior", [bnn.priors.Normal, lambda scale: dist.Normal(0 * scale, scale)])
def test_whole_numbers_in_a_prior_are_the_same_numbers(prior):
    def energy(scale):
        model = bnn.regression(bnn.MLP((2,), 1), prior(scale), integrate_output=True)
        potential = bnn.potential_of(model, *data())
        sites = potential.structure.sites
        return potential({n: jnp.full(sites[n].shape, 0.3) for n in potential.structure.latent})

    assert energy(2) == energy(2.0)


def all_linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


@pytest.mark.parametrize("kernel", [HMC, bnn.MCLMC, partial(bnn.SGLD, step_size=0.1)])
def test_a_model_without_latent_sites_left_is_refused(kernel):
    x = np.ones((4, 2), np.float32)
    mcmc = bnn.MCMC(kernel(bnn.integrate_output(all_linear)), num_warmup=2, num_samples=2)
    with pytest.raises(ValueError, match="no latent site to sample: every site is observed, fixed"):
        mcmc.run(jax.random.key(0), x, x[:, 0])


X = jnp.ones((5, 3))

CASES = {
    "a dense layer": (lambda w, c: X @ w + c, True),
    "without the axis of outputs": (lambda w, c: (X @ w + c).squeeze(-1), True),
    "scaled by the other": (lambda w, c: X @ (w * jnp.exp(c)), True),
    "inside jit": (lambda w, c: jax.jit(lambda v: 2 * (X @ v).T - c)(w), True),
    "rows of it": (lambda w, c: w[jnp.array([2, 0])] + lax.dynamic_slice(w, (1, 0), (2, 1)), True),
    "chosen by a constant": (lambda w, c: jnp.where(c > 0, w, -w), True),
    "sums and padding": (lambda w, c: jnp.pad(jnp.cumsum(w.sum(1)), 2) / c, True),
    "a convolution": (lambda w, c: jnp.convolve(jnp.arange(4.0), w[:, 0]) + c, True),
    "a relu of the constant": (lambda w, c: jax.nn.relu(c) * w, True),
    "unused": (lambda w, c: jax.nn.silu(c) + 0.0, True),
    "a relu": (lambda w, c: jax.nn.relu(X @ w), False),
    "its square": (lambda w, c: w * w, False),
    "a product inside jit": (lambda w, c: jax.jit(lambda a, b: a.T @ b)(w, w), False),
    "its inverse": (lambda w, c: c / w, False),
    "a choice by it": (lambda w, c: jnp.where(w > 0, w, c), False),
    "a maximum": (lambda w, c: jnp.max(w), False),
    "a slope that is hidden": (lambda w, c: lax.stop_gradient(w), False),
    "a loop": (lambda w, c: lax.fori_loop(0, 3, lambda i, v: v * v, w), False),
    "rounded": (lambda w, c: jnp.round(w), False),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_program_is_affine_in(case):
    function, expected = CASES[case]
    program = jax.make_jaxpr(function)(jnp.ones((3, 1)), jnp.ones(()))
    assert is_affine(program, 0, [True, False]) is expected


def test_each_output_is_told_apart():
    program = jax.make_jaxpr(lambda w, c: (X @ w, c**2, jnp.tanh(w)))(jnp.ones(3), jnp.ones(()))
    assert [is_affine(program, k, [True, False]) for k in range(3)] == [True, True, False]
    assert [is_affine(program, k, [False, True]) for k in range(3)] == [True, False, True]
    # Two layers: affine in each, and not in both.
    two = jax.make_jaxpr(lambda v, w: X @ v @ w)(np.ones((3, 2)), np.ones((2, 1)))
    assert is_affine(two, 0, [True, False])
    assert not is_affine(two, 0, [True, True])
