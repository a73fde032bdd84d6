"""What the code of a model reaches is part of what its run is: no change of it resumes in silence."""

import importlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpyro.infer import HMC, NUTS
from test_reached_objects import scaled

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.samplers.gibbs.interleaved import Interleaved
from numpyro_bnn.samplers.gibbs.moves import RidgeScaling
from numpyro_bnn.storage.run_identity import describe, describe_all, difference, differing

# Imported before any test looks at warnings: old releases deprecate each other's names.
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")

# Shape of what is reached: the model's file, its helper, what is replaced by what, and in which.
IMPORTED = "import user_helper\ndef model(x):\n    return user_helper.{use}\n"
CHANGES = {
    "number": ("WIDTH = 3\ndef model(x):\n    return WIDTH\n", "", "WIDTH = 3", "WIDTH = 4"),
    "dict": ("S = {'a': 3}\ndef model(x):\n    return S['a']\n", "", "'a': 3", "'a': 4"),
    "nested dict": ("S = {'a': [{1: 3}]}\ndef model(x):\n    return S\n", "", "1: 3", "1: 4"),
    "many numbers": ("S = [*range(500), 3]\ndef model(x):\n    return S\n", "", ", 3", ", 4"),
    "set": ("S = {'a', 'b'}\ndef model(x):\n    return S\n", "", "'b'", "'c'"),
    "array": (
        "import numpy as np\nS = np.arange(9.0)\ndef model(x):\n    return x @ S\n",
        "",
        "arange(9.0)",
        "arange(9.0) + 1e-9",
    ),
    "jax array": (
        "import jax.numpy as jnp\nS = jnp.arange(9.0)\ndef model(x):\n    return x @ S\n",
        "",
        "arange(9.0)",
        "arange(1.0, 10.0)",
    ),
    "namespace": (
        "import types\nC = types.SimpleNamespace(w=3)\ndef model(x):\n    return C.w\n",
        "",
        "w=3",
        "w=4",
    ),
    "class as namespace": ("class C:\n    w = 3\ndef model(x):\n    return C.w\n", "", "3", "4"),
    "slots": (
        "class C:\n    __slots__ = ('w',)\nc = C()\nc.w = 3\ndef model(x):\n    return c.w\n",
        "",
        "c.w = 3",
        "c.w = 4",
    ),
    "property": (
        "class C:\n    @property\n    def w(self):\n        return 3\nc = C()\n"
        "def model(x):\n    return c.w\n",
        "",
        "return 3",
        "return 4",
    ),
    "base class": (
        "class B:\n    def w(self):\n        return 3\nclass C(B):\n    pass\n"
        "def model(x):\n    return C().w()\n",
        "",
        "return 3",
        "return 4",
    ),
    "dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    w: int = 3\nc = C()\n"
        "def model(x):\n    return c.w\n",
        "",
        "= 3",
        "= 4",
    ),
    "callable object": (
        "class M:\n    def __init__(self, w):\n        self._twice = 2 * w\n"
        "    def __call__(self, x):\n        return self._twice\nmodel = M(3)\n",
        "",
        "M(3)",
        "M(4)",
    ),
    "bound method": (
        "class M:\n    def __init__(self, w):\n        self._twice = 2 * w\n"
        "    def call(self, x):\n        return self._twice\nmodel = M(3).call\n",
        "",
        "M(3)",
        "M(4)",
    ),
    "function's attribute": ("def model(x):\n    return model.w\nmodel.w = 3\n", "", "3", "4"),
    "function": ("def f():\n    return 3\ndef model(x):\n    return f()\n", "", "3", "4"),
    "jitted": (
        "import jax\n@jax.jit\ndef f(x):\n    return 3 * x\ndef model(x):\n    return f(x)\n",
        "",
        "3",
        "4",
    ),
    "axes of a vmap": (
        "import jax\ndef f(x):\n    return x\nv = jax.jit(jax.vmap(f, in_axes=3))\n"
        "def model(x):\n    return v(x)\n",
        "",
        "3",
        "4",
    ),
    "rule of a derivative": (
        "import jax\n@jax.custom_vjp\ndef f(x):\n    return x\ndef b(r, g):\n    return (3 * g,)\n"
        "f.defvjp(lambda x: (x, x), b)\ndef model(x):\n    return f(x)\n",
        "",
        "3",
        "4",
    ),
    "partial": (
        "import functools\ndef f(x, w):\n    return w\nmodel = functools.partial(f, w=3)\n",
        "",
        "w=3",
        "w=4",
    ),
    "closure in a closure": (
        "def make(w):\n    def inner():\n        return w\n    def model(x):\n        return inner()\n"
        "    return model\nmodel = make({'a': 3})\n",
        "",
        "3",
        "4",
    ),
    "inner function": (
        "W = [3]\ndef model(x):\n    def inner():\n        return W[0]\n    return inner()\n",
        "",
        "[3]",
        "[4]",
    ),
    "alias": (
        "import types\nC = types.SimpleNamespace(w=3)\ndef model(x):\n    c = C\n    return c.w\n",
        "",
        "w=3",
        "w=4",
    ),
    "handler": (
        "import numpyro.handlers as h\ndef f(x):\n    return x\nmodel = h.condition(f, data={'a': 3})\n",
        "",
        "3",
        "4",
    ),
    "distribution": (
        "import numpyro.distributions as d\nP = d.Normal(0.0, 3.0)\ndef model(x):\n    return P\n",
        "",
        "3.0",
        "4.0",
    ),
    "fitted by a library": (
        "import numpy as np\nfrom sklearn.preprocessing import StandardScaler\n"
        "s = StandardScaler().fit(np.arange(3.0)[:, None])\ndef model(x):\n    return s.mean_\n",
        "",
        "arange(3.0)",
        "arange(4.0)",
    ),
    "dynamic class": (
        "from flax import linen as nn\nclass C(nn.Module):\n    @nn.compact\n"
        "    def __call__(self, c, x):\n        return c, 3 * x\nS = nn.scan(C, length=2)\n"
        "def model(x):\n    return S()(0.0, x)\n",
        "",
        "3 * x",
        "4 * x",
    ),
    "imported function": (IMPORTED.format(use="f()"), "def f():\n    return 3\n", "3", "4"),
    "imported constant": (IMPORTED.format(use="W"), "W = 3\n", "3", "4"),
    "second file's global": (
        IMPORTED.format(use="f()"),
        "S = {'a': 3}\ndef f():\n    return S['a']\n",
        "3",
        "4",
    ),
    "imported by name": (
        "from user_helper import f\ndef model(x):\n    return f()\n",
        "def f():\n    return 3\n",
        "3",
        "4",
    ),
    "imported inside": (
        "def model(x):\n    from user_helper import f\n    return f()\nmodel(0)\n",
        "def f():\n    return 3\n",
        "3",
        "4",
    ),
    "imported inside as": (
        "def model(x):\n    import user_helper as h\n    return h.f()\nmodel(0)\n",
        "def f():\n    return 3\n",
        "3",
        "4",
    ),
    "taken by a made-up name": (
        "import user_helper\ndef model(x):\n    return getattr(user_helper, 'W' + 'IDTH')\n",
        "WIDTH = 3\n",
        "3",
        "4",
    ),
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


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_what_is_reached_is_seen(name, tmp_path):
    main, helper, old, new = CHANGES[name]
    before = describe_all({"model": model_of(tmp_path / "a", main, helper)})
    again = describe_all({"model": model_of(tmp_path / "b", main, helper)})
    assert not differing(before.facts, again.facts)
    assert not before.unknown
    changed = (main, helper.replace(old, new)) if helper else (main.replace(old, new), helper)
    assert changed != (main, helper)
    now = describe_all({"model": model_of(tmp_path / "c", *changed)})
    assert differing(before.facts, now.facts)


def test_only_what_the_code_loads_counts(tmp_path):
    main = IMPORTED.format(use="settings.width") + "\nOTHER = {spare}\n"
    helper = (
        "import types\nsettings = types.SimpleNamespace(width=1, depth={spare})\nUNUSED = {spare}\n"
        "def unused():\n    return {spare}\n"
    )
    told = [
        describe("model", model_of(tmp_path / str(k), main.format(spare=k), helper.format(spare=k)))
        for k in (1, 2)
    ]
    assert difference(*told) == ""


def test_packages_count_by_their_version(monkeypatch):
    def model(x):
        import sklearn.metrics as metrics

        return metrics.r2_score(x, x)

    model(np.arange(3.0))
    before = describe("model", model)
    monkeypatch.setattr("numpyro_bnn.storage.run_identity.version", lambda name: "0.0")
    words = difference(before, describe("model", model))
    assert words.startswith("library.scikit-learn: there ")
    assert words.endswith("here 0.0")


class Kept(nnx.Module):
    """A layer with a random stream, whose count moves when it is used."""

    def __init__(self, scale):
        self.layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        self.scale = nnx.Param(jnp.array(scale))

    def __call__(self, x):
        return (self.scale[...] * self.layer(x)).squeeze(-1)


def test_the_values_of_an_nnx_module_count():
    def model(module):
        return bnn.regression(module, priors.Normal(1.0))

    facts = [describe("model", model(Kept(scale))) for scale in (1.0, 1.0, 2.0)]
    assert not differing(facts[0], facts[1])
    assert differing(facts[0], facts[2])


@pytest.mark.parametrize(
    "make",
    [
        lambda k: priors.Hierarchical(concentration=k),
        lambda k: priors.Hierarchical(rate=k),
        lambda k: priors.FanIn(k),
        lambda k: priors.pretrained({"kernel": jnp.full(2, k)}),
        lambda k: bnn.SGLD(scaled, step_size=0.1, accept=[None, "full", "minibatch"][int(k)]),
        lambda k: bnn.MAMS(scaled, step_size=0.1, trajectory_length=k),
        lambda k: bnn.MCLMC(scaled, energy_variance=1e-4 * k),
        lambda k: bnn.SGNHT(scaled, step_size=0.1, per_parameter=k > 1),
        lambda k: bnn.WindowedHMC(scaled, step_size=0.1, num_steps=8, window=int(k)),
        lambda k: bnn.neal(scaled, HMC, step_size=k),
        lambda k: Interleaved(NUTS(scaled), [RidgeScaling(k)]),
        lambda k: bnn.parameterize(scaled, ["centered", "noncentered"][int(k) - 1]),
    ],
)
def test_no_argument_of_a_constructor_is_lost(make):
    facts = [describe("it", make(k)) for k in (1.0, 1.0, 2.0)]
    assert not differing(facts[0], facts[1])
    assert differing(facts[0], facts[2])
