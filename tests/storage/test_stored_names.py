"""Names of sites that files or ArviZ cannot hold: refused with the site named, before a step."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro.infer import HMC
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.posterior.draws import Draws

zarr = pytest.importorskip("zarr")
pytest.importorskip("orbax.checkpoint")

# Sites with what is said about the one that is named.
ANYWHERE = [
    (["chain"], "'chain'", "name of an axis"),
    (["draw"], "'draw'", "name of an axis"),
    (["w", "w.axis_0"], r"'w\.axis_0'", "name of an axis"),
    (["net/Dense_0.kernel", "net.Dense_0.unit_in"], r"'net\.Dense_0\.unit_in'", "name of an axis"),
    (["a/b", "a.b"], r"'a[./]b' and '(a/b|a\.b)'", "one name|two quantities"),
    (["n/a/b", "n/a.b"], r"'n/a[./]b' and 'n/a[./]b'", "one name|two quantities"),
]
# Names that zarr or the file system refuses.
NO_FOLDERS = ["", "/", "..", "a\0b", "zarr.json", "a\\b", "é" * 128]
FINE = [
    "w",
    "net/Dense_0.kernel",
    "é",
    "a b",
    "...",
    "-",
    "0",
    "posterior",
    "c",
    ".hidden",
    "x" * 200,
]
SHAPES = {"net/Dense_0.kernel": (2, 2)}


def model_of(sites):
    def model():
        for site in sites:
            numpyro.sample(site, dist.Normal(jnp.zeros(SHAPES.get(site, (2,))), 1.0).to_event())

    return model


def sampler(sites, kernel=None, **where):
    """A run over a model of these sites; where a cheap kernel is given, over an energy."""
    kernel = kernel or HMC(
        model_of(sites), step_size=0.1, trajectory_length=0.2, adapt_step_size=False
    )
    return bnn.MCMC(
        kernel, num_warmup=0, num_samples=4, progress_bar=False, checkpoint_every=2, **where
    )


def walker():
    return bnn.RandomWalk(potential_fn=lambda z: sum(v.sum() for v in z.values()), step_size=0.1)


@pytest.mark.parametrize("case", range(len(ANYWHERE)))
def test_a_run_on_disk_refuses_the_site(case, tmp_path):
    sites, named, why = ANYWHERE[case]
    starts = {site: jnp.zeros(SHAPES.get(site, (2,))) for site in sites}
    mcmc = sampler(sites, walker(), **{("checkpoint", "draws")[case % 2]: tmp_path / "run"})
    with pytest.raises(ValueError, match=rf"sites? {named} .*({why})|({why}).*{named}"):
        mcmc.run(jax.random.key(0), init_params=starts)
    files = {p.relative_to(tmp_path / "run").parts[0] for p in tmp_path.rglob("*") if p.is_file()}
    assert files <= {"run.json.partial", "start"}


@pytest.mark.parametrize("name", NO_FOLDERS)
def test_no_run_begins_where_a_name_cannot_be_a_folder(name, tmp_path):
    mcmc = sampler([name], walker(), draws=tmp_path / "run")
    with pytest.raises((ValueError, OSError)):
        mcmc.run(jax.random.key(0), init_params={name: jnp.zeros(2)})
    assert not [path for path in tmp_path.rglob("*") if "c" in path.parts[len(tmp_path.parts) :]]


def test_a_folder_is_free_after_a_refusal(tmp_path):
    with pytest.raises(ValueError, match="the site 'chain' cannot be stored under"):
        sampler(["chain"], checkpoint=tmp_path / "run").run(jax.random.key(0))
    mcmc = sampler(["w"], walker(), checkpoint=tmp_path / "run")
    mcmc.run(jax.random.key(0), init_params={"w": jnp.zeros(2)})
    assert mcmc.get_samples()["w"].shape == (4, 2)


def test_a_site_without_a_name_is_sampled_in_memory():
    mcmc = sampler([""], walker())
    mcmc.run(jax.random.key(0), init_params={"": jnp.zeros(2)})
    assert mcmc.get_samples()[""].shape == (4, 2)


def test_what_record_returns_is_refused_by_its_names_too(tmp_path):
    mcmc = sampler(["w"], draws=tmp_path / "run", record=lambda sites: {"chain": sites["w"]})
    with pytest.raises(ValueError, match="cannot be stored under"):
        mcmc.run(jax.random.key(0))


def test_other_names_are_stored_and_exported(tmp_path):
    mcmc = sampler(FINE, walker(), draws=tmp_path / "run")
    starts = {site: jnp.zeros(SHAPES.get(site, (2,))) for site in FINE}
    mcmc.run(jax.random.key(0), init_params=starts)
    samples = mcmc.get_samples(True)
    loaded = bnn.load(tmp_path / "run", None)
    opened = xr.open_zarr(tmp_path / "run", group="posterior")
    idata = bnn.to_inference_data(mcmc, log_likelihood=False)
    idata.to_netcdf(str(tmp_path / "run.nc"), engine="h5netcdf")
    again = xr.open_dataset(tmp_path / "run.nc", group="posterior", engine="h5netcdf")
    for site in FINE:
        for tree in (opened, again):
            np.testing.assert_array_equal(tree[site.replace("/", ".")], samples[site])
        np.testing.assert_array_equal(loaded[site], samples[site])


@pytest.mark.parametrize(("sites", "named", "why"), ANYWHERE)
def test_the_export_refuses_the_site_of_a_run_in_memory(sites, named, why):
    """By xarray, which names it, or as a second quantity of its name."""
    draws = Draws({site: np.zeros((1, 3, *SHAPES.get(site, (2,)))) for site in sites})
    with pytest.raises(ValueError, match=rf"{{{named}}} are found in both|two quantities"):
        bnn.to_inference_data(draws, log_likelihood=False)


@pytest.mark.parametrize("target", ["row", "chain"])
def test_the_export_refuses_a_target_that_is_called_like_an_axis(target):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample(target, dist.Normal(w * x[:, 0]), obs=y)

    draws = Draws({"w": np.zeros((1, 3))}, model)
    with pytest.raises(ValueError, match=rf"{{'{target}'}} are found|be called '{target}'"):
        bnn.to_inference_data(draws, np.ones((4, 1)), np.ones(4))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_site_may_have_the_name_of_a_field_of_the_sampler(shape, tmp_path):
    model = row_model(
        lambda x, potential_energy: dist.Normal(potential_energy.sum() + 0 * x, 1.0),
        potential_energy=dist.Normal(0, 1).expand(shape).to_event(),
    )
    settings = {"num_warmup": 2, "num_samples": 6, "num_chains": 1, "progress_bar": False}
    kernel = HMC(model, step_size=0.1, num_steps=2, trajectory_length=None, adapt_step_size=False)
    both = []
    for where in ({}, {"draws": tmp_path / "run.zarr"}):
        mcmc = bnn.MCMC(kernel, **settings, **where)
        start = {"potential_energy": np.zeros((1, *shape))}
        mcmc.run(jax.random.key(0), np.ones(4), np.ones(4), init_params=start)
        both.append(mcmc.get_samples(True)["potential_energy"])
    np.testing.assert_array_equal(*both)
    np.testing.assert_array_equal(
        bnn.load(tmp_path / "run.zarr", model)["potential_energy"], both[0]
    )
    with xr.open_datatree(tmp_path / "run.zarr", engine="zarr") as tree:
        assert tree["sample_stats/potential_energy"].shape == (1, 6)
