"""Predictive functions in files: read by JAX without this package, equal to `average(predict(…))`."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from flax import linen as nn
from jax import export as jax_export
from small_models import network_model, row_model

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.posterior import exported

RNG = np.random.default_rng(0)
X = RNG.normal(50.0, [1.0, 8.0, 3.0], (12, 3))
Y = 1000 + 30 * RNG.normal(size=12)
LABELS = np.arange(12) % 3


def draws_of(model, outputs=1, **more):
    shapes = {"Dense_0.kernel": (3, 4), "Dense_0.bias": (4,)}
    shapes |= {"Dense_1.kernel": (4, outputs), "Dense_1.bias": (outputs,)}
    values = {f"net/{n}": RNG.normal(size=(2, 20, *shape)) for n, shape in shapes.items()}
    values |= {name: RNG.gamma(3.0, 0.3, (2, 20)) for name in more}
    return bnn.Draws({n: v.astype(np.float32) for n, v in values.items()}, model)


def of_regression():
    model = bnn.regression(bnn.MLP((4,), 1), priors.Normal(1.0), X, Y)
    return draws_of(model, **{"y.scale": None})


def of_classes():
    return draws_of(bnn.classification(bnn.MLP((4,), 3), priors.Normal(1.0), X, LABELS), 3)


def read(path):
    return jax_export.deserialize(bytearray(path.read_bytes()))


def expected(draws, x, **options):
    average = bnn.average(bnn.predict(None, draws, x, **options))
    if isinstance(average, np.ndarray):
        return {"probs": average}
    return {"mean": average.mean, "sd": average.sd}


def check(draws, x, new, path):
    """The file gives what this process predicts, for any number of rows."""
    found = read(bnn.export(draws, x, path))
    assert set(found.platforms) == {"cpu", "cuda"}
    wanted = expected(draws, new)
    for rows in (1, len(new)):
        made = found.call(jnp.asarray(new[:rows]))
        assert set(made) == set(wanted)
        for name, values in wanted.items():
            np.testing.assert_allclose(made[name], values[:rows], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("make", [of_regression, of_classes])
def test_the_file_predicts_in_the_units_of_the_user(make, tmp_path):
    check(make(), X, RNG.normal(50.0, 5.0, (9, 3)), tmp_path / "new" / "small.jax")


PROGRAM = """
import builtins, sys
real = builtins.__import__
def refuse(name, *args, **kwargs):
    if name.split(".")[0] in ("numpyro_bnn", "numpyro", "flax"):
        raise ImportError(name)
    return real(name, *args, **kwargs)
builtins.__import__ = refuse
try:
    import numpyro_bnn
    raise SystemExit("it could be imported")
except ImportError:
    pass
import numpy as np
import jax.export
with open(sys.argv[1], "rb") as file:
    predictive = jax.export.deserialize(bytearray(file.read()))
np.savez(sys.argv[3], **predictive.call(np.load(sys.argv[2]).astype(np.float32)))
assert not {"numpyro_bnn", "numpyro", "flax"} & {name.split(".")[0] for name in sys.modules}
"""


def test_a_process_without_this_package_predicts_the_same(tmp_path):
    draws = of_regression()
    small = bnn.thin(draws, 6, X)
    path = bnn.export(small, X, tmp_path / "small.jax")
    new = RNG.normal(50.0, 5.0, (5, 3))
    np.save(tmp_path / "x.npy", new)
    arguments = [sys.executable, "-c", PROGRAM, path, tmp_path / "x.npy", tmp_path / "out.npz"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    with np.load(tmp_path / "out.npz") as found:
        for name, values in expected(small, new).items():
            np.testing.assert_allclose(found[name], values, rtol=2e-5, err_msg=name)


def of_a_pytree(x, y=None):
    """Tokens and numbers, two outputs a row, one site of the user's own."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean = x["numbers"] * slope + x["tokens"].sum(-1, keepdims=True)
    mean = numpyro.deterministic("mean", mean)
    with numpyro.plate("data", mean.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 2.0).to_event(1), obs=y)


def test_inputs_may_be_a_pytree_of_other_types(tmp_path):
    x = {"numbers": np.ones((4, 2), np.float32), "tokens": np.arange(12).reshape(4, 3)}
    draws = bnn.Draws({"slope": RNG.normal(size=(1, 40, 2)).astype(np.float32)}, of_a_pytree)
    found = read(bnn.export(draws, x, tmp_path / "f"))
    kinds = {str(aval.dtype) for aval in found.in_avals}
    assert kinds == {"float32", "int32"}
    made = found.call(jax.tree.map(lambda leaf: jnp.asarray(leaf)[:3], x))
    wanted = expected(draws, jax.tree.map(lambda leaf: leaf[:3], x))
    np.testing.assert_allclose(made["sd"], wanted["sd"], rtol=1e-5)
    # A deterministic site has no noise: its sd is that between draws.
    function = read(bnn.export(draws, x, tmp_path / "f", site="mean")).call(x)
    between = np.tile(draws["slope"].std((0, 1)), (4, 1))
    np.testing.assert_allclose(function["sd"], between, rtol=1e-5)


def test_a_table_is_read_by_its_columns(tmp_path):
    draws = bnn.Draws(
        {"w": np.ones((1, 2), np.float32)}, per_row_mean, info={"columns": ["a", "b"]}
    )
    table = pd.DataFrame(np.ones((3, 2)), columns=["b", "a"])
    with pytest.raises(ValueError, match="export: x has 'b' where the training data had 'a'"):
        bnn.export(draws, table, tmp_path / "f")
    made = read(bnn.export(draws, table[["a", "b"]], tmp_path / "f")).call(jnp.ones((2, 2)))
    np.testing.assert_allclose(made["mean"], 2.0)


class Drop(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(1, use_bias=False)(x))


def with_dropout(x, y=None):
    net = bnn.random_module("net", Drop(), priors.Normal(1.0), x[:1], apply_rng=["dropout"])
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.1), obs=y)


def with_groups(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", 3):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * own[0] * jnp.sign(x[:, 0]), 0.1), obs=y)


@pytest.mark.parametrize(
    ("model", "site", "shape"),
    [(with_dropout, "net/Dense_0.kernel", (3, 1)), (with_groups, "w", ())],
)
def test_each_draw_has_its_own_random_numbers(model, site, shape, tmp_path):
    """Masks of dropout, and values without draws that come from their prior: one for all draws had no sd."""
    draws = bnn.Draws({site: np.ones((2, 100, *shape), np.float32)}, model)
    x = np.ones((3, 3), np.float32)
    made = read(bnn.export(draws, x, tmp_path / "f", site="y")).call(x)
    for name, values in expected(draws, x, site="y").items():
        np.testing.assert_allclose(made[name], values, rtol=1e-4)
    # A unit of 3 is kept and doubled, or dropped; an effect of a group is standard normal.
    spread = 3.0 if model is with_dropout else 1.0
    assert abs(made["sd"] / spread - 1).max() < 0.3


per_row_mean = row_model(lambda x, w: dist.Normal(w * x.sum(-1), 1.0), w=dist.Normal(0.0, 1.0))


def with_local_values(x, y=None):
    with numpyro.plate("data", x.shape[0]):
        own = numpyro.sample("own", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(own, 1.0), obs=y)


def branches_on_rows(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    w = w if x.shape[0] > 3 else 2 * w
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x.sum(-1), 1.0), obs=y)


def calls_python(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    f = jax.pure_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct((), jnp.float32), w)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(f * x.sum(-1), 1.0), obs=y)


def single(model, name="w", shape=()):
    return bnn.Draws({name: np.ones((1, 2, *shape), np.float32)}, model)


NO_MODEL = bnn.Draws({"w": np.ones((1, 2), np.float32)})
NOT_RUN = bnn.MCMC(bnn.SGLD(per_row_mean, step_size=0.1), num_warmup=1, num_samples=1)
LOCAL = single(with_local_values, "own", (4,))
REFUSED = {
    "no model": (NO_MODEL, ValueError, "these draws carry no model"),
    "no draws": (
        bnn.Draws({"w": np.ones((2, 0))}, per_row_mean),
        ValueError,
        "export: .* no draws",
    ),
    "a number": (3, TypeError, "export: expected an MCMC after `run`, .* or draws .* got int"),
    "no run": (NOT_RUN, ValueError, "export: the MCMC has no draws yet"),
    "values of rows": (LOCAL, ValueError, r"sites \['own'\] have a value for every row"),
    "a branch": (single(branches_on_rows), Exception, "rows"),
    "Python": (single(calls_python), Exception, "callback"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported(name, tmp_path):
    run, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        bnn.export(run, np.ones((4, 3), np.float32), tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_file_and_a_file_no_folder(tmp_path):
    with pytest.raises(IsADirectoryError):
        bnn.export(single(per_row_mean), np.ones((4, 3)), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be written"):
        bnn.export(single(per_row_mean), np.ones((4, 3)), tmp_path / "file" / "f")


def test_too_many_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(exported, "_MOST_BYTES", 7)
    with pytest.raises(ValueError, match=r"2 draws take .* GiB, and a file holds .*bnn\.thin"):
        bnn.export(single(per_row_mean), np.ones((4, 3), np.float32), tmp_path / "f")


class OfOnePlatform(nn.Module):
    """A factorisation that JAX has for the CPU alone."""

    @nn.compact
    def __call__(self, x):
        w = self.param("w", nn.initializers.zeros, (2, 2))
        return x[:, 0] * jax.scipy.linalg.schur(w)[0][0, 0]


on_one_platform = network_model(OfOnePlatform(), priors.Normal(1.0), noise=0.5)


def test_a_model_of_one_platform_is_written_for_that_one(tmp_path):
    draws = bnn.Draws({"net/w": np.ones((1, 2, 2, 2), np.float32)}, on_one_platform)
    x = np.ones((4, 1), np.float32)
    with pytest.raises(ValueError, match=r"cannot be compiled for \['cpu', 'cuda'\]: .*cuda"):
        bnn.export(draws, x, tmp_path / "f")
    path = bnn.export(draws, x, tmp_path / "f", platforms=["cpu"])
    assert read(path).platforms == ("cpu",)
    np.testing.assert_allclose(read(path).call(x)["mean"], expected(draws, x)["mean"], rtol=1e-5)


def test_what_the_file_needs_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(ModuleNotFoundError, match=r"flatbuffers\. Install .*numpyro-bnn\[export\]"):
        bnn.export(of_classes(), X, tmp_path / "f")


def test_what_a_model_refuses_is_no_fault_of_the_number_of_rows(tmp_path):
    times = (1.7145e9 + 15.0 * np.arange(12))[:, None]
    model = bnn.regression(bnn.MLP((2,), 1), priors.Normal(1.0), times, Y)
    values = {"Dense_0.kernel": (1, 2), "Dense_0.bias": (2,), "Dense_1.kernel": (2, 1)}
    values |= {"Dense_1.bias": (1,)}
    draws = {f"net/{n}": np.ones((1, 2, *shape), np.float32) for n, shape in values.items()}
    draws["y.scale"] = np.ones((1, 2), np.float32)
    with pytest.raises(ValueError, match="regression: column 0 of x lies around 17145"):
        bnn.export(bnn.Draws(draws, model), times, tmp_path / "f")


def test_the_file_keeps_the_precision_of_its_products(tmp_path):
    """JAX 0.12 writes the precision into the program: a setting where it is loaded comes too late."""
    draws = of_classes()

    def program(**options):
        file = read(bnn.export(draws, X, tmp_path / "small.jax", **options))
        with jax.default_matmul_precision("bfloat16"):
            return jax.jit(file.call).lower(jnp.asarray(X, jnp.float32)).as_text()

    assert "HIGHEST" in program()
    assert "HIGHEST" not in program(precision="default")
