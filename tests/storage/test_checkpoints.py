"""Runs that end early and go on: the very same draws, and refusals that name what differs."""

import base64
import json
import lzma
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from deaths import dies_after
from numpyro.infer import HMC, NUTS
from numpyro.infer.gibbs import CustomGibbs, Gibbs

import numpyro_bnn as bnn
from numpyro_bnn import gradients, preconditioners, schedules

pytest.importorskip("orbax.checkpoint")
NOISE, EVERY = 0.5, 5


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2))
    return x, x @ [1.0, -0.5] + 0.3 + NOISE * rng.normal(size=12)


def model(x, y=None):
    nets.linear_regression(x, y, scale=0.8, noise=NOISE)


def with_precision(x, y=None):
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    net = bnn.random_module("net", nets.Linear(), lambda *_: dist.Normal(0.0, tau**-0.5), x[:1])
    bnn.likelihoods.gaussian(net, y, x=x, noise=NOISE)


def draw_precision(rng_key, gibbs_sites, hmc_sites):
    square = sum(jnp.sum(w**2) for name, w in hmc_sites.items() if name.startswith("net/"))
    return {"tau": dist.Gamma(2.0 + 3 / 2, 1.0 + square / 2).sample(rng_key)}


FIXED = {"trajectory_length": None, "adapt_step_size": False, "adapt_mass_matrix": False}


def gibbs():
    hmc = HMC(with_precision, step_size=0.1, num_steps=3, **FIXED)
    return Gibbs([(CustomGibbs(draw_precision), ["tau"]), (hmc, None)])


KERNELS = {
    "NUTS": lambda: NUTS(model, max_tree_depth=3),
    "HMC dense": lambda: HMC(model, trajectory_length=0.5, dense_mass=True),
    "Gibbs": gibbs,
    "SGLD": lambda: bnn.SGLD(model, step_size=schedules.polynomial(0.01, 1.0, 0.55), batch_size=5),
    "cyclical": lambda: bnn.SGHMC(
        model,
        step_size=schedules.cyclical(0.01, 6, 0.5),
        friction=1.0,
        gradient=gradients.minibatch(4, "blocks"),
    ),
    "PSGLD": lambda: bnn.PSGLD(
        model, step_size=0.01, gradient=gradients.minibatch(4, "replacement")
    ),
    "BAOAB": lambda: bnn.BAOAB(
        model,
        step_size=0.05,
        gradient=gradients.svrg(4, period=3),
        preconditioner=preconditioners.from_warmup(),
    ),
    "SGNHT": lambda: bnn.SGNHT(model, step_size=0.02, gradient=gradients.control_variate(4)),
    "MALA": lambda: bnn.MALA(model, step_size="auto"),
    "GGMC": lambda: bnn.GGMC(model, step_size="auto"),
    "AMAGOLD": lambda: bnn.AMAGOLD(model, step_size=0.05, batch_size=6),
    "RandomWalk": lambda: bnn.RandomWalk(model, step_size=0.1),
    "MCLMC": lambda: bnn.MCLMC(model),
    "MAMS": lambda: bnn.MAMS(model, max_num_steps=7, gradient=gradients.full(chunk_size=5)),
}


def sampler(kernel, folder=None, **options):
    settings = {"num_warmup": 7, "num_samples": 18, "progress_bar": False} | options
    if folder is not None:
        settings = {"checkpoint": folder, "checkpoint_every": EVERY} | settings
    return bnn.MCMC(kernel, **settings)


def assert_same_run(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.get_samples(True), other.get_samples(True))
    jax.tree.map(
        np.testing.assert_array_equal, one.get_extra_fields(True), other.get_extra_fields(True)
    )

    def plain(x):
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    states = [jax.tree.map(plain, mcmc.last_state) for mcmc in (one, other)]
    jax.tree.map(np.testing.assert_array_equal, *states)


QUICK = ("SGLD",)


@pytest.mark.parametrize(
    "name", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KERNELS]
)
def test_every_kernel_goes_on_to_the_same_bits(name, data, tmp_path):
    """The unbroken run is in memory and in one piece; the broken one dies in its second chunk of
    draws, and goes on with a kernel that has seen nothing."""
    whole = sampler(KERNELS[name]())
    # Looking for a start compiles for longer than the steps.
    start = nets.weights(with_precision if name == "Gibbs" else model, *data)
    whole.run(jax.random.key(3), *data, init_params=start)
    # Warm-up ends after chunks of 5 and 2 steps.
    with dies_after(3):
        sampler(KERNELS[name](), tmp_path / "run").run(jax.random.key(3), *data, init_params=start)
    again = sampler(KERNELS[name](), tmp_path / "run")
    again.resume(*data)
    assert_same_run(whole, again)


def bowl(z):
    return sum(jnp.sum(v**2) for v in z.values())


def two_chains(folder=None, **options):
    """Two thinned chains of a kernel that compiles fast."""
    kernel = bnn.RandomWalk(potential_fn=bowl, step_size=0.5)
    return sampler(kernel, folder, num_chains=2, thinning=2, **options)


# With a field of their own.
TWO_CHAINS = {
    "init_params": {"a": np.zeros((2, 3)), "b": np.ones((2, 1))},
    "extra_fields": ("z.b",),
}


@pytest.fixture(scope="module")
def unbroken():
    """Two chains, thinned, with a field of their own."""
    mcmc = two_chains()
    mcmc.run(jax.random.key(3), **TWO_CHAINS)
    return mcmc


@pytest.mark.parametrize(
    "chunks", [3, *(pytest.param(c, marks=pytest.mark.slow) for c in (0, 1, 5))]
)
def test_wherever_it_ends_a_run_goes_on(chunks, tmp_path, unbroken):
    def make():
        return two_chains(tmp_path / "run")

    with dies_after(chunks):
        make().run(jax.random.key(3), **TWO_CHAINS)
    again = make()
    again.resume()
    assert_same_run(unbroken, again)
    done = make()
    done.resume()  # a finished run gives back all its draws
    assert_same_run(unbroken, done)


def test_a_run_without_a_checkpoint_begins_again_from_its_optimised_starts(data, tmp_path):
    # As `optimize` gives them: one value a chain of every site.
    starts = {
        "net/Dense_0.bias": jnp.array([[0.3], [0.4]]),
        "net/Dense_0.kernel": jnp.array([[[1.0], [-0.5]], [[0.9], [-0.6]]]),
    }

    def make(folder=None):
        return sampler(bnn.SGLD(model, step_size=1e-9), folder, num_chains=2)

    with dies_after(0):
        make(tmp_path / "run").run(jax.random.key(3), *data, init_params=starts)
    again = make(tmp_path / "run")
    again.resume(*data)
    for site, draws in again.get_samples(True).items():
        moved = draws - np.asarray(starts[site])[:, None]
        assert 0 < np.abs(moved).max() < 1e-3  # 25 steps of noise, 3e-5 each


@pytest.fixture(scope="module")
def stored(data, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    mcmc = sampler(KERNELS["SGLD"](), folder)
    mcmc.run(jax.random.key(3), *data, init_params=nets.weights(model, *data))
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_warmup": 8}, "num_warmup: there 7, here 8"),
        ({"thinning": 2}, "thinning: there 1, here 2"),
        ({"num_chains": 2}, "num_chains: there 1, here 2"),
        ({"checkpoint_every": 6}, "checkpoint_every: there 5, here 6"),
    ],
)
def test_another_run_is_refused(options, message, stored, data):
    with pytest.raises(ValueError, match=f"is of another run.*{message}"):
        sampler(KERNELS["SGLD"](), stored, **options).resume(*data)


def test_other_shapes_and_libraries_are_refused(stored, data, monkeypatch):
    x, y = data
    with pytest.raises(ValueError, match=r"sites\.net/Dense_0\.kernel: there '\(2, 1\)'.*\(1, 1\)"):
        sampler(KERNELS["SGLD"](), stored).resume(x[:, :1], y)
    monkeypatch.setattr("numpyro_bnn.__version__", "0.0.0")
    with pytest.raises(ValueError, match=r"library\.numpyro_bnn: there .*, here 0\.0\.0"):
        sampler(KERNELS["SGLD"](), stored).resume(x, y)


def test_a_folder_that_holds_a_run_or_none_is_refused(stored, data, tmp_path):
    with pytest.raises(FileExistsError, match=r"is not empty\. Choose another|holds a run already"):
        sampler(KERNELS["SGLD"](), stored).run(jax.random.key(0), *data)
    with pytest.raises(FileNotFoundError, match=r"holds no run.*Begin with `mcmc\.run"):
        sampler(KERNELS["SGLD"](), tmp_path).resume(*data)
    with pytest.raises(ValueError, match="nothing to continue from"):
        sampler(KERNELS["SGLD"]()).resume(*data)
    with pytest.raises(ValueError, match="warm-up and sampling together"):
        sampler(KERNELS["SGLD"](), tmp_path).warmup(jax.random.key(0), *data)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"checkpoint": 3}, TypeError, r"not .*int"),
        ({"draws": b"x"}, TypeError, r"not .*bytes"),
        ({"checkpoint_every": 0}, ValueError, "must be a positive integer, got 0"),
        ({"draws_dtype": "float16"}, ValueError, "goes with `draws=`"),
        ({"draws": "d", "draws_dtype": "int8"}, ValueError, "must be one of .* got 'int8'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        sampler(KERNELS["SGLD"](), **options)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(
    "name", ["run.json", "steps/25/progress/metadata", "steps/25/state/_METADATA"]
)
def test_malicious_and_damaged_files_are_refused(name, stored, data, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(stored, folder)
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError), match=r"damaged|cannot be read|no checkpoint"):
        sampler(KERNELS["SGLD"](), folder).resume(*data)
    assert not (tmp_path / "exploded").exists()


def test_nothing_is_unpickled(stored, data, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    sampler(KERNELS["SGLD"](), stored).resume(*data)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_an_interruption_finishes_the_chunk_and_keeps_it(number, tmp_path, unbroken):
    def make():
        return two_chains(tmp_path / "run", progress_rate=1)

    mcmc = make()
    from numpyro_bnn.run.chain_states import ChainStates

    advance, calls = ChainStates.advance, []

    def pressed(self, segment, update):
        advance(self, segment, update)
        calls.append(segment)
        if len(calls) == 8:  # 7 steps of warm-up, then the first of two draws in a chunk
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChainStates, "advance", pressed)
        with pytest.warns(UserWarning, match=r"kept 2 of 9 draws of each chain\. Go on with"):
            mcmc.run(jax.random.key(3), **TWO_CHAINS)
    for site, draws in mcmc.get_samples(True).items():
        np.testing.assert_array_equal(draws, unbroken.get_samples(True)[site][:, :2])
    again = make()
    again.resume()
    assert_same_run(unbroken, again)


def test_the_header_holds_no_address(stored):
    content = json.loads((stored / "run.json").read_text())
    program = lzma.decompress(base64.b64decode(content["program"])).decode()
    told = [content["kernel"], program, *content["facts"].values()]
    assert not [text for text in told if " at 0x" in text]
    assert len(content["program"]) < len(program) / 4


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    """The short form of the study: real processes, SIGKILL, a limit on the size of files."""
    root = Path(__file__).parents[2]
    if not (root / "benchmarks").is_dir():
        pytest.skip("the benchmarks are not beside the tests")
    command = [sys.executable, "-m", "benchmarks.large_runs.kill_and_resume", "--quick"]
    command += ["--output", str(tmp_path)]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
