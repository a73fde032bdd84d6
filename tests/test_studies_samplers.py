"""Studies of samplers run at toy size, go on where they were, and their own arithmetic is right."""

import csv
import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

import numpyro_bnn as bnn

pytestmark = pytest.mark.usefixtures("quick_compile")
BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Import a script of the benchmarks, which import each other as scripts do."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").is_file():
            del sys.modules[name]


STUDIES = ("function_space", "agreement_table", "cold_posteriors", "prior_scale")


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_study_runs_and_is_kept(name, benchmark, shared, tmp_path, capsys):
    script = benchmark(name)
    arguments = ["--toy", "--output", str(tmp_path), "--data", str(shared / "data")]
    script.main(arguments)
    stored = {kind: tmp_path / f"{name}.{kind}" for kind in ("csv", "md", "png")}
    assert all(path.stat().st_size for path in stored.values())
    with stored["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = [cell for row in rows for cell in row.values() if _is_number(cell)]
    assert np.isfinite([float(cell) for cell in numbers]).all()
    first, printed = stored["csv"].read_text(), capsys.readouterr().out
    script.main(arguments)
    assert stored["csv"].read_text() == first
    assert f"{len(rows)} rows are there, and kept" in capsys.readouterr().out
    assert printed


def _is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_chains_are_averaged_as_densities(benchmark):
    """Against all sets of neighbours, written out."""
    module = benchmark("function_space")
    log_prob = np.random.default_rng(0).normal(size=(3, 4, 5))
    found = module.by_number_of_chains(log_prob)
    density = np.exp(log_prob)
    one = np.mean([np.log(density[c].mean(0)).mean() for c in range(3)])
    pairs = [(0, 1), (1, 2), (2, 0)]
    two = np.mean([np.log(density[list(p)].mean((0, 1))).mean() for p in pairs])
    two_short = np.mean([np.log(density[list(p), ::2].mean((0, 1))).mean() for p in pairs])
    three_short = np.log(density[:, ::3].mean((0, 1))).mean()
    three = np.log(density.mean((0, 1))).mean()
    np.testing.assert_allclose(found, [(1, one, one), (2, two, two_short), (3, three, three_short)])


def test_histogram_counts_every_scalar_once(benchmark):
    module = benchmark("function_space")
    rhat = np.array([0.99, 1.0, 1.02, 1.5, 40.0, np.nan])
    counts = np.array(module.histogram(rhat).split(), int)
    assert counts.sum() == 5
    assert counts[0] == 2
    assert counts[-1] == 1


def test_shifts_move_images_and_bring_in_zeros(benchmark):
    module = benchmark("cold_posteriors")
    image = np.random.default_rng(0).uniform(size=(28, 28)).astype(np.float32)
    shifts = jnp.arange(module.NUM_SHIFTS)
    moved = module.shifted(jnp.tile(image.reshape(1, -1), (len(shifts), 1)), shifts)
    expected = []
    for down in range(-2, 3):
        for right in range(-2, 3):
            made = np.zeros((28, 28), np.float32)
            to = slice(max(0, -down), 28 - max(0, down)), slice(max(0, -right), 28 - max(0, right))
            made[to] = image[
                slice(max(0, down), 28 + min(0, down)), slice(max(0, right), 28 + min(0, right))
            ]
            expected.append(made.ravel())
    np.testing.assert_array_equal(moved, expected)


def _small_images():
    rng = np.random.default_rng(1)
    return rng.uniform(size=(3, 784)).astype(np.float32), np.array([1, 0, 7], np.int32)


def _energy(module, z, images, y, counts, scale):
    """Prior and weighted likelihood written out, without constants of the prior."""
    network = bnn.MLP([2], 10, jax.nn.relu)
    logits = network.apply({"params": bnn.to_params(z)}, module.pooled(images))
    log_prob = jax.nn.log_softmax(logits)[jnp.arange(len(y)), y]
    squares = sum(jnp.sum(v**2) for v in z.values())
    return squares / (2 * scale**2) - jnp.sum(counts * log_prob)


def _positions(potential):
    # Weights are on the whole line: their values need no transformation.
    return [potential.prior_draw(key) for key in jax.random.split(jax.random.key(0))]


def test_augmented_posterior_counts_an_image_once_and_minibatches_are_unbiased(benchmark):
    module = benchmark("cold_posteriors")
    x, y = _small_images()
    potential = bnn.potential_of(module.model_of("shifts", 1.0, hidden=2), x, y)
    one, two = _positions(potential)
    every = module.NUM_SHIFTS
    images = module.shifted(jnp.repeat(x, every, 0), jnp.tile(jnp.arange(every), 3))
    wide = np.repeat(y, every)
    direct = [_energy(module, z, images, wide, 1 / every, module.PRIOR_SCALE) for z in (one, two)]
    np.testing.assert_allclose(potential(one) - potential(two), direct[0] - direct[1], rtol=2e-4)
    name, size = potential.data_plate()
    assert size == 3 * every
    batches = np.arange(size).reshape(5, -1)
    mean = np.mean([potential.minibatch(one, jnp.asarray(rows), name) for rows in batches])
    np.testing.assert_allclose(mean, potential(one), rtol=1e-5)


def test_labels_are_a_power_of_the_likelihood_alone(benchmark):
    """U / T of the model that is sampled is the prior plus S = 1/T times the likelihood."""
    module = benchmark("cold_posteriors")
    x, y = _small_images()
    temperature = 0.1
    potential = bnn.potential_of(module.model_of("labels", temperature, hidden=2), x, y)
    one, two = _positions(potential)
    direct = [_energy(module, z, x, y, 1 / temperature, module.PRIOR_SCALE) for z in (one, two)]
    found = (potential(one) - potential(two)) / temperature
    np.testing.assert_allclose(found, direct[0] - direct[1], rtol=2e-4)


def test_consensus_is_a_normalised_mean_power(benchmark):
    module = benchmark("cold_posteriors")
    probs = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 5))
    power = (probs**7).mean((0, 1))
    expected = power / power.sum(-1, keepdims=True)
    np.testing.assert_allclose(module.consensus(probs, 7), expected)
    np.testing.assert_allclose(module.consensus(probs, 1), probs.mean((0, 1)))
    assert logsumexp(np.log(module.consensus(probs, 100)), -1) == pytest.approx(np.zeros(5))


def test_scale_of_a_family_is_an_argument_of_its_model(benchmark, shared):
    """The potential at α differs from that at 1 by the prior alone."""
    module = benchmark("prior_scale")
    x, y, *_ = module.data(shared / "data", "toy", "yacht", 0)
    for family, width in zip(module.FAMILIES, (lambda v: 1, lambda v: v.shape[0])):
        model = module.run_of("toy", "yacht", family).model
        z = bnn.potential_of(model, x, y).prior_draw(jax.random.key(0))
        z = {name: value for name, value in z.items() if name.startswith("net/")}
        first, second = (
            bnn.potential_of(model, x, y, jnp.float32(a)).log_joint_by_site(
                z | {"y.scale": jnp.float32(0.5)}
            )
            for a in (1.0, 2.0)
        )
        for name, value in z.items():
            if name.endswith("kernel"):
                expected = 3 / 8 * width(value) * jnp.sum(value**2) - value.size * np.log(2)
                np.testing.assert_allclose(second[name] - first[name], expected, rtol=1e-4)
        np.testing.assert_allclose(second["y"], first["y"])


@pytest.mark.slow
def test_tables_run_and_are_kept(benchmark, shared, tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    script = benchmark("tabular")
    arguments = ["--toy", "--output", str(tmp_path), "--data", str(shared / "data")]
    script.main(arguments)
    first = (tmp_path / "tabular.csv").read_text()
    rows = list(csv.DictReader(first.splitlines()))
    assert [row["method"] for row in rows] == list(script.SHORT["toy"])
    # A point has no R-hat, and a process no draws.
    assert np.isfinite([float(row[name]) for row in rows for name in ("rmse", "lppd")]).all()
    assert all((tmp_path / f"tabular.{kind}").stat().st_size for kind in ("md", "png"))
    capsys.readouterr()
    script.main(arguments)
    assert (tmp_path / "tabular.csv").read_text() == first
    assert f"{len(rows)} rows are there, and kept" in capsys.readouterr().out


def test_a_method_that_tables_do_not_know_is_refused(benchmark, tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    # bde needs an interpreter of its own.
    arguments = ["--toy", "--output", str(tmp_path), "--methods", "NUTS", "HCM", "bde"]
    with pytest.raises(SystemExit):
        benchmark("tabular").main(arguments)
    assert "['HCM', 'bde'] are not among ['MAP'" in capsys.readouterr().err


def test_methods_are_compared_on_the_same_splits(benchmark):
    report = benchmark("tabular_report")
    scores = {"deep ensemble": (1.0, 3.0), "NUTS": (1.5, 3.7), "once": (9.0,)}
    fixed = {"table": "yacht", "rmse": 0.1, "worst rhat": np.nan, "median rhat": np.nan}
    rows = [
        fixed | {"seed": seed, "method": method, "lppd": value, "CPU seconds": 2.0}
        for method, values in scores.items()
        for seed, value in enumerate(values, 1)
    ]
    shown = {row["method"]: row["lppd"] for row in report.summary(rows)}
    # The one split of the third is not set beside two of the others.
    assert shown == {
        "deep ensemble": "2.000 ± 1.000",
        "NUTS": "**2.600 ± 1.100**",
        "once": "9.000 (1 of 2)",
    }
    (line,) = report.gains(rows)
    assert line == "yacht, gain over deep ensemble on the same 2 splits: NUTS +0.60 ± 0.10."
    assert "| NUTS | **2.600 ± 1.100** |  | 2 to 2 |" in list(report.wide(rows))
