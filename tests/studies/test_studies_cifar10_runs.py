"""Methods of the CIFAR-10 benchmark at toy size: running, resuming, and timing."""

import numpy as np
import pytest
from cifar10_toy import TINY, TOY, images

import numpyro_bnn as bnn
from benchmarks.cifar10 import __main__ as cifar10
from benchmarks.cifar10 import data, network, runs, speed
from benchmarks.cifar10.data import Data
from benchmarks.cifar10.network import ResNet
from benchmarks.cifar10.setup import Result, Setup


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar10")
    data = Data(images(256), images(64, 1))
    setup = Setup(data, TOY, 64, folder / "runs", folder / "results", progress_bar=False)
    return cifar10.toy(setup)


def checked(path, rows=64):
    result = Result.load(path)
    assert result.probs.shape == (rows, 10)
    assert result.probs.dtype == np.float16
    np.testing.assert_allclose(result.probs.astype(float).sum(1), 1, atol=2e-3)
    assert result.finished
    assert result.gradient_evaluations > 0
    assert result.epochs == pytest.approx(result.gradient_evaluations / 4)
    return result


@pytest.fixture(scope="module")
def tiny(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return toy._replace(network=TINY, runs=folder / "runs", results=folder / "results")


@pytest.mark.slow
@pytest.mark.parametrize("name", cifar10.METHODS)
def test_every_method_runs(tiny, name):
    result = checked(runs.run(name, tiny))
    if name in tiny.samplers:
        assert result.epochs <= tiny.epochs + (2 if "control" in name else 0)
    # A second call finds the result and runs nothing.
    assert Result.load(runs.run(name, tiny)).seconds == result.seconds


@pytest.mark.slow
def test_chains_together_on_one_device(tiny):
    """Two chains in one program: twice the draws, and an R-hat for every probability."""
    several = tiny._replace(chains=2, chain_method="vectorized")
    path = runs.run("sgld", several)
    assert path.name == "sgld_2_chains.npz"
    result = checked(path)
    draws = bnn.load(several.runs / "sgld_2_chains" / "draws.zarr", None)["probs"][:]
    assert draws.shape == (2, result.num_draws // 2, 64, 10)
    assert np.abs(draws[0] - draws[1]).max() > 0.01
    expected = draws.astype(np.float64).mean((0, 1))
    np.testing.assert_allclose(result.probs.astype(float), expected, atol=1e-3)
    np.testing.assert_allclose(
        result.rhat, bnn.diagnostics.rhat(np.float32(draws)), rtol=1e-5, equal_nan=True
    )
    assert result.epochs == pytest.approx(2 * tiny.epochs)


@pytest.mark.slow
def test_half_precision_beside_single(tiny):
    """Files of their own, and predictions that differ, but not by much after two epochs."""
    single = checked(runs.run("sgd", tiny))
    half = tiny._replace(network=ResNet((4,), 0, "bfloat16"))
    path = runs.run("sgd", half)
    assert path.name == "sgd_bfloat16.npz"
    gap = np.abs(checked(path).probs.astype(float) - single.probs.astype(float)).max()
    assert 0 < gap < 0.05


@pytest.mark.slow
def test_from_the_command_line(toy, tmp_path, capsys):
    """4-8-16 filters: packed data in, a result and the judge's table out."""
    data.pack(toy.data, tmp_path / "packed")
    folders = ["--data", tmp_path / "packed", "--runs", tmp_path / "runs", "--out", tmp_path]
    cifar10.main(["run", "sgd", "--toy", *map(str, folders)])
    assert checked(tmp_path / "sgd.npz").epochs == 2
    assert "agreement" in capsys.readouterr().out
    assert (tmp_path / "judge.csv").read_text().startswith("method,epochs")


@pytest.mark.slow
def test_timings_have_a_row_for_every_contender(tiny):
    timing = speed.Timing((32, 64), 64, chains=(2,), steps=2, repeats=1, peak=1.0)
    rows = speed.measure(tiny.data, tiny.network, timing, progress=False)
    assert [row[:3] for row in rows] == [
        *(("gradient", 1, 32), ("gradient", 1, 64)),
        *(("sgld", 2, 64), ("baoab", 2, 64)),
    ]
    assert all(float(row[3]) > 0 and float(row[-1]) > 0 for row in rows)


@pytest.mark.slow
def test_a_run_that_is_cut_goes_on_to_the_same_probabilities(tiny, tmp_path, monkeypatch):
    """The process dies after its first checkpoint; another goes on."""
    whole = checked(runs.run("sgld", tiny))
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
            runs.run("sgld", cut)
    assert taken
    result = checked(runs.run("sgld", cut))
    np.testing.assert_array_equal(result.probs, whole.probs)


@pytest.mark.slow
def test_modes_go_on_and_those_of_other_settings_are_refused(tiny):
    path = runs.run("sgd", tiny)
    whole = checked(path)
    assert whole.epochs == 2
    # Ended in its second segment: the first is read again.
    path.unlink()
    (tiny.runs / "modes" / "member0_segment1.npz").unlink()
    np.testing.assert_array_equal(checked(runs.run("sgd", tiny)).probs, whole.probs)
    other = tiny._replace(training=tiny.training._replace(epochs=3))
    with pytest.raises(ValueError, match="parts of a run with the settings"):
        runs.run("sgd", other)


# ---- speed


def test_rates_and_shares_of_timings():
    """Contenders of one second a step: numbers a reader can check by hand."""
    contenders = [
        speed.Contender("gradient", 1, 4, 8, print, 1.5),
        speed.Contender("gradient", 1, 8, 4, print, 2.5),
        speed.Contender("baoab", 3, 8, 4, print, 3.5),
    ]
    timing = speed.Timing((4, 8), 8, peak=1e-6)
    times = [[9.0, 1.0, 0.5], [2.0, 2.0, 2.0], [7.2, 7.2, 1.0]]
    by_column = [
        dict(zip(speed.HEAD, row)) for row in speed.rows_of(contenders, times, TINY, timing)
    ]
    assert [float(row["seconds_a_step"]) for row in by_column] == [1, 2, 7.2]
    assert [row["ratio"] for row in by_column] == ["", 1.0, 1.2]
    assert [float(row["images_a_second"]) for row in by_column] == [4, 4, 3.333]
    flops = speed.flops_of_gradient(TINY, 8)
    assert float(by_column[2]["tflops"]) == pytest.approx(3 * flops / 7.2e12, rel=0.01)
    assert float(by_column[1]["share_of_peak"]) == pytest.approx(flops / 2e6, rel=0.01)
    assert by_column[2]["compile_seconds"] == "3.5"


def test_operations_are_those_of_the_convolutions():
    """Two a multiplication, the borders of a "same" convolution left out; little else besides."""

    def inside(side, stride, size=3):
        # Taps of all outputs along one axis that fall on the image.
        before = max((side // stride - 1) * stride + size - side, 0) // 2
        places = np.arange(0, side, stride)[:, None] + np.arange(size) - before
        return int(((places >= 0) & (places < side)).sum())

    def layer(side, before, filters, stride=1, size=3):
        return 2 * inside(side, stride, size) ** 2 * before * filters

    first, stem = layer(32, 3, 16), 6 * layer(32, 16, 16)
    second = layer(32, 16, 32, 2) + 5 * layer(16, 32, 32) + layer(32, 16, 32, 2, 1)
    third = layer(16, 32, 64, 2) + 5 * layer(8, 64, 64) + layer(16, 32, 64, 2, 1)
    expected = first + stem + second + third + 2 * 640
    net = network.ResNet()
    # Backwards every layer is a convolution for its input and one for its kernel.
    gradient = speed.flops_of_gradient(net, 2) / 2
    assert 3 * expected - first < gradient < 1.1 * 3 * expected


def test_mean_over_draws_in_blocks():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), (2, 120, 5)).astype(np.float16)
    expected = probs.astype(np.float64).mean((0, 1))
    np.testing.assert_allclose(runs.mean_of(probs), expected, atol=1e-3)
