"""The CIFAR-10 benchmark at toy size: network, data, step sizes, judging."""

from hashlib import md5

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cifar10_toy import TINY, TOY, images
from jax import lax

import numpyro_bnn as bnn
from benchmarks.cifar10 import __main__ as cifar10
from benchmarks.cifar10 import data, judge, methods, network, speed
from benchmarks.cifar10.data import Data
from benchmarks.cifar10.setup import Result
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import DynamicsState, Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Langevin, SemiImplicit
from numpyro_bnn.samplers.sgmcmc.dynamics.splitting import Splitting

# ---- the network, from the words of the study in plain lax calls


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


def test_half_precision_is_for_the_convolutions_only():
    """Weights and logits stay float32; rounding to 8 bits, once a layer, moves logits a little."""
    x = data.standardized(images(4).x)
    half = network.ResNet((4, 8, 16), 1, "bfloat16")
    params = jax.jit(TOY.init)(jax.random.key(0), x[:1])
    of_half = jax.eval_shape(half.init, jax.random.key(0), x[:1])
    assert {v.dtype for v in jax.tree.leaves(of_half)} == {x.dtype}

    @jax.jit
    def logits(params):
        return TOY.apply(params, x), half.apply(params, x)

    exact, rounded = logits(params)
    assert rounded.dtype == exact.dtype == jnp.float32
    error = np.abs(exact - rounded).max() / np.abs(exact).max()
    # Ten roundings of at most 2^-9 each would be 0.02; without any there would be none at all.
    assert 1e-4 < error < 0.02


def test_pixels_are_standardised_by_colour():
    x = np.zeros((1, 1, 1, 3), np.uint8)
    np.testing.assert_allclose(data.standardized(x).ravel(), [-2.45, -2.4, -2.2], rtol=1e-6)
    np.testing.assert_allclose(data.standardized(x + 255).ravel(), [2.55, 2.6, 2.8], rtol=1e-6)


# ---- the posterior


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


# ---- data


def test_order_and_pack(tmp_path):
    expected = sorted(range(50), key=lambda i: md5(b"train%d" % i).hexdigest())
    assert data.order("train", 50).tolist() == expected
    whole = Data(images(70), images(30, 1))
    paths = data.pack(whole, tmp_path)
    assert [p.name for p in paths] == ["train_part0.npz", "test_part0.npz"]
    again = data.load(tmp_path)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again)):
        np.testing.assert_array_equal(one, other)
    paths[1].unlink()
    with pytest.raises(FileNotFoundError, match="packed test images"):
        data.load(tmp_path)


def test_parts_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_PART", 16)
    paths = data.pack(Data(images(40), images(10)), tmp_path)
    assert len(paths) == 4
    paths[1].unlink()
    with pytest.raises(FileNotFoundError, match="holds 24 of 40 packed train images"):
        data.load(tmp_path)


def test_absent_data(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither contact sheets .* --data"):
        data.load(tmp_path)


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


# ---- what the step sizes mean


def test_steps_are_those_of_the_study():
    """θ and m of the study's update from the conventions of this package, noise included."""
    step, momentum, noise, gradient = 3e-7, 0.9, 0.7, 1234.0
    method = methods.Sampling("SGHMC", step, momentum)
    h = methods.time_step(method, 40_960)
    settings = Settings(step_size=h, friction=methods.friction(method, 40_960))
    state = DynamicsState(jnp.array(0.3), jnp.array(0.5))
    after = SemiImplicit().complete(state, jnp.array(gradient), (jnp.array(noise),), settings)
    m = momentum * 0.5 - step**0.5 * gradient + (2 * (1 - momentum)) ** 0.5 * noise
    assert float(after.momentum) == pytest.approx(m, rel=1e-5)
    assert float(after.position) == pytest.approx(0.3 + step**0.5 * m, rel=1e-5)
    # Without momentum the same update is SGLD, at twice the step.
    kernel = methods.kernel_of(methods.SAMPLERS["sgld"], lambda: None, 40_960, 80)
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
    method = methods.SAMPLERS["baoab"]
    h = methods.time_step(method, 1)
    settings = Settings(step_size=h, friction=methods.friction(method, 1))
    state = DynamicsState(jnp.array(0.0), jnp.array(1.0))
    zero = jnp.array(0.0)
    after = Splitting("BAOA").complete(state, zero, (zero,), settings)
    assert float(after.momentum) == pytest.approx(0.9, rel=1e-5)


def test_a_cosine_begins_at_the_step_and_rmsprop_at_its_share():
    sizes = (40_960, 80)
    for name, peak in (("cyclical_sghmc", 3e-7), ("cyclical_sghmc_rmsprop", 3e-5 / 40_960)):
        kernel = methods.kernel_of(methods.SAMPLERS[name], lambda: None, *sizes)
        assert float(kernel.step_size(0)) ** 2 == pytest.approx(peak, rel=1e-5)
        half = float(kernel.step_size(25 * 512)) ** 2
        assert half == pytest.approx(peak / 2, rel=1e-4)


@pytest.mark.parametrize("name", methods.SAMPLERS)
def test_plans_keep_to_the_budget(name):
    method, sizes = methods.SAMPLERS[name], (40_960, 80)
    plan = methods.plan_of(method, 1000, *sizes)
    draws = plan.num_samples // plan.thinning
    spent = methods.gradients_of(method, plan, draws, *sizes) / 512
    assert 945 < spent <= 1000
    assert plan.num_samples % plan.thinning == 0
    assert draws >= 150
    with pytest.raises(ValueError, match="too few for a draw"):
        methods.plan_of(method, 0.001, *sizes)


# ---- judging


def result_of(probs, rhat=None, **changes):
    rhat = np.zeros((0, 10), np.float32) if rhat is None else rhat
    values = Result(probs.astype(np.float16), rhat, 3.0, 12.0, 5.0, 7, True, "{}")
    return values._replace(**changes)


def test_the_judge_scores_what_is_known(tmp_path):
    y = np.arange(20) % 10
    sure = np.eye(10)[y]
    wrong = np.eye(10)[(y + (np.arange(20) < 5)) % 10]
    half = 0.5 * sure + 0.05
    result_of(sure).save(tmp_path / "right.npz")
    result_of(wrong).save(tmp_path / "some_wrong.npz")
    result_of(half, np.float32([[1.0, 1.2, np.nan]])).save(tmp_path / "unsure.npz")
    exact = np.arange(20) >= 5
    found = judge.judge(tmp_path, y, exact)
    assert found.names == ["right", "some_wrong", "unsure"]
    by_name = {row[0]: dict(zip(judge.HEAD, row)) for row in found.table}
    assert by_name["some_wrong"]["accuracy"] == 0.75
    assert by_name["some_wrong"]["accuracy_exact"] == 1.0
    assert by_name["right"]["log_score"] == pytest.approx(0.0, abs=1e-4)
    assert by_name["unsure"]["log_score"] == pytest.approx(np.log(0.55), abs=1e-3)
    assert by_name["unsure"]["calibration_error"] == pytest.approx(0.45, abs=1e-3)
    assert by_name["unsure"]["median_rhat"] == pytest.approx(1.1, abs=1e-3)
    assert by_name["unsure"]["rhat_below_1.1"] == 0.5
    # A probability of 0 for the truth costs what float16 cannot tell from 0, not infinity.
    assert by_name["some_wrong"]["log_score"] == pytest.approx(0.25 * np.log(2**-24), rel=1e-3)
    np.testing.assert_allclose(found.agreement[0], [1, 0.75, 1])
    np.testing.assert_allclose(found.total_variation[0], [0, 0.25, 0.45], atol=1e-3)
    assert "some_wrong" in str(found)
    found.save(tmp_path)
    assert (tmp_path / "pairs.csv").read_text().splitlines()[1] == "right,some_wrong,0.75,0.25"
    with pytest.raises(ValueError, match=r"predicts 20 test images, there are 3"):
        judge.judge(tmp_path, y[:3], exact[:3])


def test_no_results(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no results"):
        judge.judge(tmp_path, np.zeros(3, int), np.ones(3, bool))


def test_unknown_method(capsys):
    with pytest.raises(SystemExit, match="2"):
        cifar10.main(["run", "nuts"])
    assert "unknown method(s) ['nuts']" in capsys.readouterr().err
