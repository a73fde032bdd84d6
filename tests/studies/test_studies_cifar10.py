"""The CIFAR-10 benchmark at toy size: network, data, step sizes, scores, runs and timings."""

from hashlib import md5
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import numpyro_bnn as bnn
from benchmarks.cifar10 import __main__ as cifar10
from benchmarks.cifar10 import chains, data, network, speed
from benchmarks.cifar10.chains import Result, Setup
from benchmarks.cifar10.data import Data, Split
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import DynamicsState, Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Langevin, SemiImplicit, Splitting

FOLDER = Path(cifar10.__file__).parent
# A layer of four filters, no block: most of the time of a toy run is the tracing of its layers.
TINY = network.ResNet((4,), 0)


def images(rows, seed=0):
    """Noise with labels; nine of ten are said to be exact."""
    rng = np.random.default_rng(seed)
    return Split(
        rng.integers(0, 256, (rows, 32, 32, 3)).astype(np.uint8),
        rng.integers(0, 10, rows).astype(np.int32),
        rng.random(rows) < 0.9,
    )


def plain_logits(weights, x):
    """The network by hand. `weights` hands out arrays by layer number and name."""
    number = iter(range(100))

    def layer(x, stride=1, swish=True):
        w = weights[f"Layer_{next(number)}"]
        kernel = w["Conv_0"]["kernel"]
        x = lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x + w["Conv_0"]["bias"]
        norm = w["FilterResponseNorm_0"]
        nu = jnp.sum(x * x, (1, 2), keepdims=True) / (x.shape[1] * x.shape[2])
        x = lax.max(norm["gamma"] * x / jnp.sqrt(nu + 1e-6) + norm["beta"], norm["tau"] + 0 * x)
        return x * lax.logistic(x) if swish else x

    x = layer(x)
    for stage in range(3):
        for block in range(3):
            stride = 2 if stage > 0 and block == 0 else 1
            y = layer(layer(x, stride), swish=False)
            if stride == 2:
                x = layer(x, 2, swish=False)
            x = (x + y) * lax.logistic(x + y)
    assert x.shape[1:] == (8, 8, 64)
    x = lax.reduce(x, 0.0, lax.add, (1, 2)) / 64
    return x @ weights["Dense_0"]["kernel"] + weights["Dense_0"]["bias"]


@pytest.fixture(scope="module")
def weights():
    """Weights of the full network, all of them away from 0 and 1."""
    shapes = jax.eval_shape(network.ResNet().init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))[
        "params"
    ]
    leaves, structure = jax.tree.flatten(shapes)
    rng = np.random.default_rng(1)
    drawn = [rng.normal(0, 0.2**0.5, leaf.shape).astype(np.float32) for leaf in leaves]
    return jax.tree.unflatten(structure, drawn)


def test_the_parameters_are_those_of_the_study(weights):
    def layer(size, before, filters):
        return size * size * before * filters + 4 * filters  # bias, gamma, beta, tau

    expected = layer(3, 3, 16) + 6 * layer(3, 16, 16)
    expected += layer(3, 16, 32) + 5 * layer(3, 32, 32) + layer(1, 16, 32)
    expected += layer(3, 32, 64) + 5 * layer(3, 64, 64) + layer(1, 32, 64) + 64 * 10 + 10
    assert sum(w.size for w in jax.tree.leaves(weights)) == expected == 274_042


def test_logits_are_those_of_plain_lax_calls(weights):
    x = data.standardized(images(2).x)
    expected = jax.jit(plain_logits)(weights, x)
    found = jax.jit(network.ResNet().apply)({"params": weights}, x)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_pixels_are_standardised_by_colour():
    x = np.zeros((1, 1, 1, 3), np.uint8)
    np.testing.assert_allclose(data.standardized(x).ravel(), [-2.45, -2.4, -2.2], rtol=1e-6)
    np.testing.assert_allclose(data.standardized(x + 255).ravel(), [2.55, 2.6, 2.8], rtol=1e-6)


def test_the_energy_is_that_of_the_loss_by_hand(monkeypatch):
    """Prior of variance 1/5 on all, likelihood scaled by N/B, in chunks that do not divide N."""
    monkeypatch.setattr(network, "CHUNK", 8)
    shown = images(20)
    net = TINY
    params = jax.jit(net.init)(jax.random.key(0), data.standardized(shown.x[:1]))["params"]
    model = network.posterior_of(net)
    x, y = jnp.asarray(shown.x), jnp.asarray(shown.y)
    potential = bnn.potential_of(model, x, y, shown.x[:3])
    z = bnn.from_params(params)
    by_hand = speed.energy_by_hand(net, 20)
    count = sum(v.size for v in z.values())
    constant = count / 2 * np.log(2 * np.pi / 5)
    rows = jnp.array([3, 11, 17, 4])

    @jax.jit
    def energies(z, params):
        some = potential.minibatch(z, rows, "data")
        return potential(z), some, by_hand(params, x, y), by_hand(params, x[rows], y[rows])

    whole, some, all_by_hand, some_by_hand = map(float, energies(z, params))
    assert whole == pytest.approx(all_by_hand + constant, rel=1e-5)
    assert some == pytest.approx(some_by_hand + constant, rel=1e-5)


def test_images_are_in_the_order_of_the_study():
    expected = sorted(range(50), key=lambda i: md5(b"train%d" % i).hexdigest())
    assert data.order("train", 50).tolist() == expected


@pytest.mark.slow
def test_sheets(shared):
    """Every image is at its place: labels and flags follow the order, as one sheet shows."""
    whole = data.load(shared / "data" / "cifar10")
    assert whole.train.x.shape == (40_960, 32, 32, 3)
    assert whole.test.x.shape == (10_000, 32, 32, 3)
    assert np.bincount(whole.test.y).tolist() == [1000] * 10
    assert (~whole.test.exact).sum() == 20
    from PIL import Image

    with Image.open(shared / "data" / "cifar10" / "test_01.webp") as image:
        sheet = np.asarray(image.convert("RGB"))
    place = np.flatnonzero(data.order("test", 10_000) == 2500 + 53)[0]
    np.testing.assert_array_equal(whole.test.x[place], sheet[32:64, 3 * 32 : 4 * 32])


def test_steps_are_those_of_the_study():
    """θ and m of the study's update from the conventions of this package, noise included."""
    step, momentum, noise, gradient = 3e-7, 0.9, 0.7, 1234.0
    method = chains.Sampling("SGHMC", step, momentum)
    settings = Settings(step_size=step**0.5, friction=chains.friction(method))
    state = DynamicsState(jnp.array(0.3), jnp.array(0.5))
    after = SemiImplicit().complete(state, jnp.array(gradient), (jnp.array(noise),), settings)
    m = momentum * 0.5 - step**0.5 * gradient + (2 * (1 - momentum)) ** 0.5 * noise
    assert float(after.momentum) == pytest.approx(m, rel=1e-5)
    assert float(after.position) == pytest.approx(0.3 + step**0.5 * m, rel=1e-5)
    # Without momentum the same update is SGLD, at twice the step.
    kernel = chains.kernel_of(chains.SAMPLERS["sgld"], lambda: None, 80)
    assert float(kernel.step_size(0)) == pytest.approx(2e-6, rel=1e-5)
    langevin = Langevin().complete(
        DynamicsState(jnp.array(0.3)),
        jnp.array(gradient),
        (jnp.array(noise),),
        Settings(step_size=2e-6),
    )
    expected = 0.3 - 1e-6 * gradient + (2 * 1e-6) ** 0.5 * noise
    assert float(langevin.position) == pytest.approx(expected, rel=1e-5)


def test_baoab_keeps_the_momentum_asked_for():
    method = chains.SAMPLERS["baoab"]
    settings = Settings(step_size=method.step**0.5, friction=chains.friction(method))
    state = DynamicsState(jnp.array(0.0), jnp.array(1.0))
    zero = jnp.array(0.0)
    after = Splitting("BAOA").complete(state, zero, (zero,), settings)
    assert float(after.momentum) == pytest.approx(0.9, rel=1e-5)


def test_a_plan_keeps_to_the_passes_and_ends_with_a_draw():
    setup = Setup(Data(images(400), images(4)), TINY, 4, None, None, epochs=30)
    warmup, samples, thinning = setup.lengths
    assert thinning == setup.epoch == 100
    assert (warmup + samples, samples // thinning) == (3000, 22)
    with pytest.raises(ValueError, match="too few for a draw"):
        setup._replace(epochs=0.001).lengths  # noqa: B018


def result_of(probs, rhat=None, **changes):
    rhat = np.zeros((0, 10), np.float32) if rhat is None else rhat
    values = Result(probs.astype(np.float16), rhat, 3.0, 12.0, 5.0, 7, True, "{}")
    return values._replace(**changes)


def test_the_judge_scores_what_is_known():
    y, exact = np.arange(20) % 10, np.arange(20) >= 5
    right = np.eye(10)[y]
    wrong = result_of(np.eye(10)[(y + (np.arange(20) < 5)) % 10])
    unsure = result_of(0.5 * right + 0.05, np.float32([[1.0, 1.2, np.nan]]))
    found = chains.judge(wrong, y, exact)
    assert (found["accuracy"], found["accuracy_exact"]) == (0.75, 1.0)
    # A probability of 0 for the truth costs what float16 cannot tell from 0, not infinity.
    assert found["log_score"] == pytest.approx(0.25 * np.log(2**-24), rel=1e-3)
    found = chains.judge(unsure, y, exact)
    assert found["log_score"] == pytest.approx(np.log(0.55), abs=1e-3)
    assert found["calibration_error"] == pytest.approx(0.45, abs=1e-3)
    assert found["median_rhat"] == pytest.approx(1.1, abs=1e-3)
    assert found["rhat_below_1.1"] == 0.5
    with pytest.raises(ValueError, match=r"predicts 20 test images, there are 3"):
        chains.judge(unsure, y[:3], exact[:3])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar10")
    given = Data(images(256), images(64, 1))
    return Setup(given, TINY, 64, folder / "runs", folder / "results", epochs=8, progress_bar=False)


def checked(path):
    result = Result.load(path)
    assert result.probs.shape == (64, 10)
    assert result.probs.dtype == np.float16
    np.testing.assert_allclose(result.probs.astype(float).sum(1), 1, atol=2e-3)
    assert result.finished
    assert result.epochs == result.gradient_evaluations / 4 == 8
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", chains.SAMPLERS)
def test_every_sampler_runs(tiny, name):
    result = checked(chains.run(name, tiny))
    # A second call finds the result and runs nothing.
    assert Result.load(chains.run(name, tiny)).seconds == result.seconds
    draws = bnn.load(tiny.runs / name / "draws.zarr", None)["probs"][:]
    np.testing.assert_allclose(result.probs.astype(float), draws.mean((0, 1)), atol=1e-3)
    expected = bnn.diagnostics.rhat(np.float32(draws))
    np.testing.assert_allclose(result.rhat, expected, rtol=1e-5, equal_nan=True)


@pytest.mark.slow
def test_from_the_command_line(shared, tmp_path, capsys):
    """4-8-16 filters: sheets in, a result and its scores out."""
    folders = ["--runs", tmp_path / "runs", "--out", tmp_path]
    cifar10.main(["run", "sgld", "--toy", *map(str, folders)])
    checked(tmp_path / "sgld.npz")
    assert "calibration_error" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_is_cut_goes_on_to_the_same_probabilities(tiny, tmp_path, monkeypatch):
    """The process dies after its first checkpoint; another goes on."""
    whole = checked(chains.run("sgld", tiny))
    cut = tiny._replace(safe_epochs=2, runs=tmp_path / "runs", results=tmp_path / "results")
    from numpyro_bnn.run.recorder import Recorder

    take, taken = Recorder.take, []

    def dies(self, lanes, piece, progress):
        take(self, lanes, piece, progress)
        taken.append(progress)
        self.wait()
        raise OSError("the machine was taken away")

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "take", dies)
        with pytest.raises(OSError, match="taken away"):
            chains.run("sgld", cut)
    assert taken
    result = checked(chains.run("sgld", cut))
    np.testing.assert_array_equal(result.probs, whole.probs)
