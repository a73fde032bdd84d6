"""What a model computes is in the text that it lowers to, wherever it comes from; nothing else is."""

import ast
import functools
import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn import priors, schedules
from numpyro_bnn.compilation import program_identity
from numpyro_bnn.compilation.program_identity import Program, first_differences
from numpyro_bnn.samplers.gibbs.moves import Interleaved, RidgeScaling
from numpyro_bnn.storage.checkpoints import Start

ROWS = 3
# What is reached: the model's file, what is replaced by what, and the helper where that is in it.
IMPORTED = "import user_helper\ndef model(x):\n    return x * user_helper.{use}\n"
CHANGES = {
    "number": ("WIDTH = 3\ndef model(x):\n    return x * WIDTH\n", "WIDTH = 3 → WIDTH = 4"),
    "array": (
        "import numpy as np\nS = np.arange(3.0)\ndef model(x):\n    return x * S\n",
        "arange(3.0) → arange(3.0) + 1e-9",
    ),
    "jitted": (
        "import jax\n@jax.jit\ndef f(x):\n    return 3 * x\ndef model(x):\n    return f(x)\n",
        "3 → 4",
    ),
    "axes of a vmap": (
        "import jax\nimport jax.numpy as jnp\nv = jax.jit(jax.vmap(jnp.cumsum, in_axes=0))\n"
        "def model(x):\n    return v(x[:, None] * jnp.ones(3))\n",
        "in_axes=0 → in_axes=1",
    ),
    "rule of a derivative": (
        "import jax\n@jax.custom_vjp\ndef f(x):\n    return x\ndef b(r, g):\n    return (3 * g,)\n"
        "f.defvjp(lambda x: (x, x), b)\ndef model(x):\n    return f(x)\n",
        "3 → 4",
    ),
    "handler": (
        "import numpyro as n\nfrom numpyro.distributions import Normal\ndef f(x):\n"
        "    return x * n.sample('a', Normal())\nmodel = n.handlers.condition(f, data={'a': 3})\n",
        "3 → 4",
    ),
    "imported function": (IMPORTED.format(use="f()"), "3 → 4", "def f():\n    return 3\n"),
}


def model_of(folder, main, helper):
    """The model of a file of the user's, beside another file that it imports."""
    folder.mkdir(parents=True)
    for name, text in (("user_main", main), ("user_helper", helper)):
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module("user_main").model
    finally:
        sys.path.remove(str(folder))


def text_of(model):
    def energy(x):
        return jnp.sum(model(x))

    return Program(jax.value_and_grad(energy)).text(jnp.ones(ROWS))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_what_is_reached_is_seen(name, tmp_path):
    main, change, *helper = CHANGES[name]
    (old, new), helper = change.split(" → "), "".join(helper)
    changed = (main, helper.replace(old, new)) if helper else (main.replace(old, new), helper)
    assert changed != (main, helper)
    before = text_of(model_of(tmp_path / "a", main, helper))
    assert text_of(model_of(tmp_path / "b", main, helper)) == before
    assert text_of(model_of(tmp_path / "c", *changed)) != before


def test_what_computes_nothing_does_not_count(tmp_path):
    """Spare globals, names of variables, comments and the way that the same numbers are written."""
    main = IMPORTED.format(use="settings.width") + "\nOTHER = {spare}\n"
    helper = (
        "import types\nsettings = types.SimpleNamespace(width=1, depth={spare})\nUNUSED = {spare}\n"
        "def unused():\n    return {spare}\n"
    )
    texts = [
        text_of(model_of(tmp_path / str(k), main.format(spare=k), helper.format(spare=k)))
        for k in (1, 2)
    ]
    written = "def model(y):\n    one = 3 - 2  # the same\n    return y * one\n"
    assert texts[0] == texts[1] == text_of(model_of(tmp_path / "3", written, ""))


@pytest.mark.parametrize("size", [1, 3, 200, 70_000])
@pytest.mark.parametrize("library", [np, jnp])
def test_every_number_of_a_constant_counts_and_the_text_stays_short(size, library):
    values = np.linspace(1.0, 2.0, size, dtype=np.float32)
    changed = values.copy()
    changed[-1] = np.nextafter(changed[-1], 3, dtype=np.float32)

    def text(constant):
        return Program(lambda x: (x * library.asarray(constant)).sum()).text(jnp.ones(size))

    assert text(values) == text(values.copy())
    assert text(values) != text(changed)
    assert len(text(values)) < 3000


def on_host(x):
    return 2 * np.asarray(x)


def on_host_too(x):
    return 3 * np.asarray(x)


def calling(function):
    return lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_function_on_the_host_counts_by_its_name_and_is_never_shared():
    one, again, two = (Program(calling(f)) for f in (on_host, on_host, on_host_too))
    x = jnp.ones(3)
    assert one.text(x) == again.text(x) != two.text(x)
    assert [float(program(x)[0]) for program in (one, again, two)] == [2.0, 2.0, 3.0]
    within = Program(functools.partial(jax.lax.map, calling(on_host)))
    assert "on_host" in within.text(x)
    assert " 0x7" not in within.text(x)


def test_the_first_lines_that_differ_are_shown():
    texts = [Program(lambda x, k=k: jnp.sin(k * x)).text(1.0) for k in (3, 4)]
    words = first_differences(*texts)
    assert "dense<3.0" in words
    assert "dense<4.0" in words
    assert first_differences(texts[0], texts[0]) == ""
    assert first_differences("a", "a\nb") == "there `(no line)`, here `b`"


@pytest.fixture(autouse=True)
def settings():
    """Those of before, which the whole session shares."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    program_identity.compilation_cache.reset_cache()


def test_programs_are_kept_in_the_folder_until_it_is_switched_off(tmp_path, monkeypatch):
    monkeypatch.setattr(program_identity, "_LEAST_SECONDS", 0.0)
    folder = bnn.cache(tmp_path / "new" / "programs")
    assert folder == tmp_path / "new" / "programs"
    jax.block_until_ready(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3))))
    kept = list(folder.iterdir())
    assert kept
    assert bnn.cache(None) is None
    jax.block_until_ready(jax.jit(lambda x: jnp.cos(x) @ x)(jnp.ones((3, 3))))
    assert sorted(folder.iterdir()) == sorted(kept)


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(FileExistsError, match="taken"):
        bnn.cache(tmp_path / "taken")


class Net(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.width)(x)))


def make():
    def model(x, y=None):
        net = bnn.random_module("net", Net(), priors.Normal(0.5), x[:1])
        bnn.likelihoods.gaussian(lambda x: net(x)[:, 0], y, x=x, noise=1.0)

    return model


def baoab(model, friction=1.0):
    """Its program is traced in a third of the time of that of NUTS."""
    return bnn.BAOAB(model, step_size=0.1, friction=friction)


MAKES = {
    "model": lambda: bnn.RandomWalk(make(), step_size=0.1),
    "partial": lambda: bnn.RandomWalk(functools.partial(make()), step_size=0.1),
    "ready": lambda: baoab(bnn.regression(bnn.MLP([4], 1), priors.Normal(1.0))),
    "SGLD": lambda: bnn.SGLD(make(), step_size=0.1, batch_size=4),
    "schedule": lambda: bnn.SGLD(make(), step_size=schedules.polynomial(0.1, 1.0, 0.6)),
    "friction": lambda: baoab(make(), friction=3.0),
}


X, Y = np.linspace(-1.0, 1.0, 16).reshape(8, 2), np.arange(8.0)


def lowered(kernel):
    """The text that a run of a kernel lowers to."""
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False)
    fit = mcmc._see((X, Y), {})
    # Looking for starts is traced for longer than the steps.
    start = Start(jax.random.key(0), nets.weights(kernel.model, X, Y), ())
    return mcmc._chain_states(start, mcmc._plan(), fit).text()


kept = functools.cache(lambda name: lowered(MAKES[name]()))


def test_another_kernel_is_another_program_and_a_wrapper_is_none():
    assert kept("partial") == kept("model") != kept("SGLD")


@pytest.mark.parametrize("name", ["model", "ready", "SGLD", "friction"])
def test_the_same_maker_gives_the_same_program(name):
    """Also after other work in this process, and of a kernel that has run before."""
    kernel = MAKES[name]()
    assert lowered(kernel) == kept(name)
    bnn.predict(bnn.regression(bnn.MLP([4], 1), priors.Normal(1.0), X, Y), PRIOR, X)
    assert lowered(kernel) == kept(name)


PRIOR = {
    "net/Dense_0.kernel": np.ones((1, 2, 4)),
    "net/Dense_0.bias": np.zeros((1, 4)),
    "net/Dense_1.kernel": np.ones((1, 4, 1)),
    "net/Dense_1.bias": np.zeros((1, 1)),
    "y.scale": np.ones(1),
}


def of_prior(prior):
    return baoab(bnn.regression(bnn.MLP([3], 1), prior))


HIERARCHY = bnn.regression(bnn.MLP([3], 1), priors.Hierarchical())


@pytest.mark.parametrize(
    "make",
    [
        lambda k: of_prior(priors.Hierarchical(concentration=k)),
        lambda k: of_prior(priors.Hierarchical.width(1.0, unit=k)),
        lambda k: of_prior(priors.StudentT(k)),
        lambda k: bnn.SGLD(make(), step_size=0.1, accept=[None, "full", "minibatch"][int(k)]),
        lambda k: bnn.MAMS(make(), step_size=0.1, trajectory_length=k),
        lambda k: bnn.MCLMC(make(), energy_variance=1e-4 * k),
        lambda k: bnn.WindowedHMC(make(), step_size=0.1, num_steps=8, window=int(k)),
        lambda k: bnn.neal(HIERARCHY, HMC, step_size=k),
        lambda k: Interleaved(baoab(HIERARCHY), [RidgeScaling(k)]),
        lambda k: baoab(bnn.parameterize(HIERARCHY, ["centered", "noncentered"][int(k) - 1])),
        lambda k: bnn.ParallelTempering(make(), num_rungs=1 + int(k)),
    ],
)
def test_no_argument_of_a_constructor_is_lost(make):
    assert lowered(make(1.0)) != lowered(make(2.0))


class Kept(nnx.Module):
    """A layer whose weights are sampled, with a random stream, whose count moves when it is used."""

    def __init__(self, scale, factor):
        self.layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        self.scale = nnx.Param(jnp.array(scale))
        self.factor = factor

    def __call__(self, x):
        return self.factor * self.scale[...] * self.layer(x)


def test_settings_of_an_nnx_module_count_and_weights_that_a_prior_replaces_do_not():
    texts = [
        lowered(baoab(bnn.regression(Kept(*given), priors.Normal(1.0))))
        for given in ((1.0, 2.0), (3.0, 2.0), (1.0, 4.0))
    ]
    assert texts[0] == texts[1] != texts[2]


QUICK = ("model", "SGLD", "friction", "schedule")


def hashes_here():
    return {name: hash_of(lowered(MAKES[name]())) for name in QUICK}


def hash_of(text):
    return hashlib.blake2b(text.encode()).hexdigest()


def test_other_processes_agree():
    """A child whose sets have other orders, and that has done nothing else before."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    place = "import sys; sys.path.append('../support')"
    program = f"{place}; import test_program_identity as t; print(t.hashes_here())"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parent,
    )
    assert ast.literal_eval(ran.stdout) == {name: hash_of(kept(name)) for name in QUICK}
    assert not any(" at 0x" in kept(name) for name in MAKES)
