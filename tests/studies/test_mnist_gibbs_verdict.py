"""The exercise with four precisions along axes of its images, and along axes that they share with biases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks.mixing import mnist_gibbs_axes as own
from benchmarks.mixing import mnist_gibbs_methods as methods
from benchmarks.mixing import mnist_gibbs_verdict
from numpyro_bnn.diagnostics.convergence.rhat import rhat

TASK = methods.Task((3, 5), 30, 7, 4, 10, 0, 2, 1)
RNG = np.random.default_rng(0)
# Columns of very different size that have much in common.
X = (RNG.normal(size=(37, 6)) * [9, 3, 1, 1, 0.1, 0] + 5 * RNG.normal(size=(37, 1))).astype(
    np.float32
)
DATA = data_sets.Split(X[:30], np.arange(30) % 2, X[30:], np.arange(7) % 2)
SHAPES = dict(zip(methods.LAYERS, ((6, 4), (4,), (4, 2), (2,))))


def weights():
    return {f"net/{k}": RNG.normal(size=(2, *v)).astype(np.float32) for k, v in SHAPES.items()}


def turned(weights):
    """Constrained values of one chain from its weights."""
    found = own.axes_of(DATA.x)
    start = own.starts_at(found, {name: value[None] for name, value in weights.items()})
    values = {name: value[0] for name, value in start.items()}
    return found, values | {name: jnp.exp(values[name]) for name in own.PRECISIONS}


def one_chain():
    return {name: value[0] for name, value in weights().items()}


def weights_of(found, values):
    """Kernel and bias of the hidden layer, kernel and bias of the last."""
    first, hidden, second, last = (values[name] ** -0.5 for name in own.PRECISIONS)
    inputs = values[own.TURNED]
    return (
        first * (found.of_images @ inputs),
        hidden * (found.of_bias @ inputs),
        second * values[own.SECOND],
        last * values[own.LAST],
    )


def test_along_shared_axes_the_network_and_its_log_density_are_the_same():
    plain = one_chain()
    found, values = turned(plain)
    for layer, weight in zip(methods.LAYERS, weights_of(found, values)):
        np.testing.assert_allclose(weight, plain[f"net/{layer}"], rtol=1e-4, atol=1e-4)
    moved = (DATA.x @ found.of_images).astype(np.float32)
    expected = jax.jit(methods.network(TASK).apply)({"params": bnn.to_params(plain)}, DATA.x)
    bias = found.of_bias.astype(np.float32)
    np.testing.assert_allclose(own.logits(values, moved, bias), expected, atol=1e-3)
    precisions = {
        f"net/{layer}.precision": values[name]
        for layer, name in zip(methods.LAYERS, own.PRECISIONS)
    }
    model = bnn.parameterize(methods.model_of(TASK), "centered")
    # Operation by operation each would compile by itself.
    centered, here = jax.jit(
        lambda given, values: (
            log_density(model, (DATA.x, DATA.y), {}, given)[0],
            log_density(own.model_of(TASK, found), (moved, DATA.y), {}, values)[0],
        )
    )(plain | precisions, values)
    # p(w | λ) dw = N(a | 0, I) da with w = a / √λ, of each of n weights.
    sizes = own.sizes_of(values)
    volume = sum(n * np.log(values[name]) / 2 for n, name in zip(sizes, own.PRECISIONS))
    np.testing.assert_allclose(here, centered - volume, rtol=1e-4)


def test_axes_are_those_of_images_and_an_input_that_is_always_one():
    found = own.axes_of(DATA.x)
    rows = np.column_stack([np.full(30, own.RATIO), DATA.x])
    basis = np.vstack([found.of_bias, found.of_images])
    np.testing.assert_allclose(basis @ basis.T, np.eye(7), atol=1e-10)
    np.testing.assert_allclose((rows @ basis).T @ (rows @ basis), np.diag(found.squares), atol=1e-2)
    start = own.starts_at(found, weights())
    metric = own.metric_of(found, start)
    inputs = metric.pop(own.TURNED)
    np.testing.assert_allclose(inputs, np.tile(1 / (1 + 0.02 * found.squares[:, None]), (1, 4)))
    assert all((value == 1).all() for value in metric.values())


def test_redrawn_precisions_have_their_conditional_and_leave_the_weights():
    found, values = turned(one_chain())
    move = jax.jit(jax.vmap(lambda key: own.Redraw(found)(key, values, None)))
    drawn = move(jax.random.split(jax.random.key(0), 4000))
    before = weights_of(found, values)
    after = weights_of(found, {name: value[7] for name, value in drawn.items()})
    for name, old, new in zip(own.PRECISIONS, before, after):
        np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-4)
        distribution = stats.gamma(1 + old.size / 2, scale=1 / (1 + np.square(old).sum() / 2))
        assert stats.kstest(np.asarray(drawn[name], np.float64), distribution.cdf).pvalue > 1e-4


def test_rescaled_precisions_keep_a_prior():
    """Without rows the target of a precision is Gamma(1, 1), and steps keep it."""

    class Prior:
        def log_joint(self, values):
            return -sum(values[name] for name in own.PRECISIONS)

    def chain(key):
        first, *steps = jax.random.split(key, 6)
        values = {
            name: jax.random.exponential(k)
            for name, k in zip(own.PRECISIONS, jax.random.split(first, 4))
        }
        # One step is compiled, and not all five.
        return jax.lax.scan(
            lambda now, step: (own.Rescale()(step, now, Prior()), None), values, jnp.stack(steps)
        )[0]

    drawn = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), 4000))
    for name in own.PRECISIONS:
        assert stats.kstest(np.asarray(drawn[name], np.float64), stats.expon.cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("apart", "verdict"), [(0.0, "within tolerance"), (0.4, "chains disagree")]
)
def test_four_chains_are_judged_by_what_they_predict(apart, verdict):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(4, 400, 7)) * 0.3
    logits[:2] += 6 * apart
    p = 1 / (1 + np.exp(-logits))
    means = {f"mean {layer}": np.exp(logits[..., i]) for i, layer in enumerate(methods.LAYERS)}
    found = mnist_gibbs_verdict.judged(
        means | {"probs": np.stack([p, 1 - p], -1)}, np.zeros(7, int)
    )
    for i, layer in enumerate(methods.LAYERS):
        assert found[f"R-hat {layer}"] == pytest.approx(float(rhat(logits[..., i])), rel=1e-3)
    assert found["verdict"] == verdict
    # The jackknife of a mean over four chains, to first order in how far they are apart.
    by_chain = np.log(p.mean(1)).mean(1)
    assert found["its error, chains"] == pytest.approx(by_chain.std(ddof=1) / 2, rel=0.25)


def test_rows_of_each_start_are_of_the_chains_that_begin_there(monkeypatch, tmp_path):
    """Chains that stay at what they are given: 1 to 3 from one start, 11 to 13 from the other."""
    draws = 8

    def weights_from(task, folder, start, chains):
        first = 1 if start == methods.START_KINDS[0] else 11
        return {"net/w": first + np.arange(float(chains))}

    def stay(task, data, given, key, thinning):
        assert thinning == 5
        (of_chain,) = given.values()
        values = np.tile(np.asarray(of_chain)[:, None], (1, draws))
        probs = np.stack([values, 20 - values], -1)[:, :, None] / 20 + np.zeros((1, 1, 7, 1))
        found = {"probs": probs} | {f"mean {layer}": values for layer in methods.LAYERS}
        return methods.Draws(found, dict.fromkeys(methods.NO_FACTS, 0.5))

    monkeypatch.setattr(methods, "load", lambda task, folder: DATA)
    monkeypatch.setattr(methods, "trained", weights_from)
    monkeypatch.setattr(own, "run", stay)
    task = TASK._replace(long=500, leapfrogs=2)
    run = mnist_gibbs_verdict.Run(task, 3, 5, ())
    rows = list(mnist_gibbs_verdict.long_run("a task", run, None, tmp_path, 0))
    ends = {row["start"]: row for row in rows}
    first = "mean Dense_0.kernel"
    pairs = {start: (row[first], row[f"{first}, second chain"]) for start, row in ends.items()}
    assert list(pairs.values()) == [(1, 2), (11, 12), (1, 11)]
    # The first class is that of every second test image, with p = value / 20.
    for start, values in zip(pairs, ([1, 2, 3], [11, 12, 13], [1, 2, 3, 11, 12, 13])):
        p = np.mean(values) / 20
        right = np.where(DATA.y_test == 0, p, 1 - p)
        assert ends[start]["log score, average"] == pytest.approx(np.log(right).mean())
        assert (ends[start]["time"] == "") == (start != mnist_gibbs_verdict.BOTH)
    # 100 steps, a fifth of them warm-up, five to a draw; the whole budget is spent.
    assert own.pace_of(task, 5) == methods.Pace(20, 16, 5, 5.0)
    assert {row["verdict"] for row in rows if row["draws"] < draws} == {""}
    assert all(row["verdict"] for row in ends.values())
    (kept,) = tmp_path.iterdir()
    average = np.load(kept)
    assert average.shape == (7, 2)
    np.testing.assert_allclose(average[:, 0], 7 / 20)
