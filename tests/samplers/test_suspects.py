"""Chains that never move, accept nothing or mostly diverge are kept, and named wherever they count."""

import warnings
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS, BarkerMH
from numpyro.infer.gibbs import Gibbs
from quiet import together

import numpyro_bnn as bnn
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.samplers.suspects import longest_stays, suspect_chains

X = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0]) + 0.1 * np.random.default_rng(1).normal(size=20)).astype(np.float32)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("fixed", jnp.ones(3))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(rows @ w, scale), obs=target)


GOOD = {"w": jnp.array([1.0, -2.0]), "scale": jnp.log(0.1)}


def metropolis(draws, acceptance, still=slice(0)):
    """Draws that move with a probability, but not where the chain stands still."""
    rng = np.random.default_rng(5)
    moved = rng.random((2, draws)) < acceptance
    moved[1, still] = False
    places = np.cumsum(moved, 1)
    sites = {"w": places[..., None] + np.zeros(3), "s": 0.5 * places}
    return suspect_chains(sites, {"accept_prob": moved.astype(float)})


def test_a_chain_that_stands_still_for_a_part_is_named():
    assert metropolis(1000, 0.6, slice(300, 540)) == {1: "245 of 1000 draws in a row are the same"}
    for acceptance in (0.1, 0.23, 0.9):
        assert metropolis(1000, acceptance) == {}
    assert metropolis(1000, 0.6, slice(300, 380)) == {}


def starts(*shifts):
    """Starts at the mode, each shifted by so much."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf + by for by in shifts]), GOOD)


def sampler(kernel, warmup=0, num_draws=60, chains=2, **options):
    return together(kernel, warmup, num_draws, chains, **options)


def run(kernel, start=None, **options):
    """A run, and what it said of suspects."""
    mcmc = sampler(kernel, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mcmc.run(jax.random.key(3), X, Y, init_params=starts(0.0, 0.0) if start is None else start)
    return mcmc, [str(w.message) for w in caught if "suspect" in str(w.message)]


def nothing(i):
    return 0.0 * i


BAD = {
    "HMC, huge steps": lambda: HMC(
        model,
        step_size=90.0,
        num_steps=3,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    ),
    "NUTS, huge steps": lambda: NUTS(model, step_size=90.0, adapt_step_size=False),
    "NUTS without warm-up": lambda: NUTS(model),
    "RandomWalk 50": lambda: bnn.RandomWalk(model, step_size=50.0),
    "Barker, huge steps": lambda: BarkerMH(model, step_size=1e3, adapt_step_size=False),
    "MALA, huge steps": lambda: bnn.MALA(model, step_size=1.0),
    "GGMC, huge steps": lambda: bnn.GGMC(model, step_size=1.0, num_steps=2),
    "AMAGOLD, huge steps": lambda: bnn.AMAGOLD(model, step_size=0.5, batch_size=5, num_steps=2),
    "SGLD without steps": lambda: bnn.SGLD(model, step_size=nothing, batch_size=5),
    "SGLD, steps below rounding": lambda: bnn.SGLD(model, step_size=1e-30),
    "BAOAB, steps below rounding": lambda: bnn.BAOAB(model, step_size=1e-20),
    "MALA, steps below rounding": lambda: bnn.MALA(model, step_size=1e-30),
    "Gibbs, one block fails": lambda: Gibbs(
        [
            (bnn.RandomWalk(model, step_size=1e4), ["w"]),
            (bnn.RandomWalk(model, step_size=0.1), ["scale"]),
        ]
    ),
}


@cache
def run_of(name):
    """One such run, which several tests read."""
    return run(BAD[name]())


# In every change: what NumPyro accepts, what is accepted here, one block of two, and bits that stay.
FAST = {"HMC, huge steps", "RandomWalk 50", "SGLD, steps below rounding", "Gibbs, one block fails"}


def some_fast(names, fast):
    """All names, those that are not among the fast ones marked slow."""
    assert set(fast) <= set(names)
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", some_fast(BAD, FAST))
def test_chains_that_go_nowhere_are_named_and_kept(name):
    mcmc, said = run_of(name)
    assert set(mcmc.suspect) == {0, 1}
    assert mcmc.left_out == {}
    assert mcmc.get_samples(group_by_chain=True)["w"].shape == (2, 60, 2)
    assert len(said) == 1
    assert said[0].startswith("2 of 2 chains are suspect and kept (chain")


@cache
def one_in_a_steep_tail(name):
    """A run whose second chain begins where a scale of exp(-12) makes of every residual 1e5
    standard deviations."""
    kernel = {
        "MALA": lambda: bnn.MALA(model, step_size=1e-4),
        "GGMC": lambda: bnn.GGMC(model, step_size=1e-2),
        "RandomWalk": lambda: bnn.RandomWalk(model, step_size=0.03),
    }[name]
    start = starts(0.0, 0.0)
    start["scale"] = start["scale"].at[1].set(-12.0)
    return run(kernel(), start, num_draws=120)


@pytest.mark.parametrize("name", some_fast(["MALA", "GGMC", "RandomWalk"], {"MALA"}))
def test_the_one_chain_that_began_in_a_steep_tail_is_named(name):
    mcmc, said = one_in_a_steep_tail(name)
    if name == "RandomWalk":
        # It only has to go where the scale is larger, and does.
        assert mcmc.suspect == {}
        return
    assert list(mcmc.suspect) == [1]
    assert "proposals are accepted" in mcmc.suspect[1]
    assert "1 of 2 chains is suspect and kept (chain 1: " in said[0]


HEALTHY = {
    "NUTS": lambda: NUTS(model),
    "HMC": lambda: HMC(model, num_steps=5, trajectory_length=None),
    "RandomWalk": lambda: bnn.RandomWalk(model, step_size=0.02),
    "MALA": lambda: bnn.MALA(model, step_size=1e-3),
    "BAOAB": lambda: bnn.BAOAB(model, step_size=0.01, batch_size=5),
    "Gibbs": lambda: Gibbs(
        [
            (bnn.RandomWalk(model, step_size=0.03), ["w"]),
            (bnn.RandomWalk(model, step_size=0.2), ["scale"]),
        ]
    ),
}


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("Gibbs", 10),
        ("BAOAB", 2),
        ("RandomWalk", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("NUTS", 10), ("HMC", 10), ("MALA", 10), ("BAOAB", 10))
        ),
        *(pytest.param("RandomWalk", draws, marks=pytest.mark.slow) for draws in (2, 10)),
    ],
)
def test_healthy_short_runs_have_no_suspects(name, draws):
    mcmc, said = run(HEALTHY[name](), warmup=50, num_draws=draws)
    assert mcmc.suspect == {}
    assert said == []


@pytest.mark.parametrize(
    ("kernel", "step_size"),
    [
        pytest.param(bnn.SGLD, 1e-3, marks=pytest.mark.slow),
        (bnn.MALA, 1e-3),
        pytest.param(bnn.SGLD, nothing, marks=pytest.mark.slow),
    ],
)
def test_settling_at_temperature_zero_is_no_fault(kernel, step_size):
    kernel = kernel(model, step_size=step_size, temperature=0.0)
    assert run(kernel, num_draws=300)[0].suspect == {}


def test_warm_up_that_is_collected_is_not_judged():
    mcmc = sampler(BAD["RandomWalk 50"](), warmup=60)
    mcmc.warmup(jax.random.key(0), X, Y, init_params=starts(0.0, 0.0), collect_warmup=True)
    assert mcmc.suspect == {}


@pytest.mark.parametrize(
    ("kernel", "scale"),
    [
        ("MALA", 1e-30),
        ("HMC", 1e-25),
        pytest.param("MALA", 1e-25, marks=pytest.mark.slow),
        pytest.param("HMC", 1e-30, marks=pytest.mark.slow),
    ],
)
def test_a_target_below_the_reach_of_its_steps_is_named(kernel, scale):
    def potential(z):
        return 0.5 * jnp.sum(jnp.square(z["a"] / scale))

    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False}
    options = {"num_steps": 2, "trajectory_length": None} | fixed
    if kernel == "MALA":
        mcmc = sampler(bnn.MALA(potential_fn=potential, step_size=0.1))
    else:
        mcmc = sampler(HMC(potential_fn=potential, **options))
    with pytest.warns(UserWarning, match="2 of 2 chains are suspect"):
        mcmc.run(jax.random.key(0), init_params={"a": jnp.zeros((2, 3))})
    assert "all draws are the same" in mcmc.suspect[0]


def test_what_is_recorded_may_be_constant_where_the_chain_moves():
    mcmc, _ = run(
        bnn.RandomWalk(model, step_size=0.03), record=lambda s: {"sign": jnp.sign(s["scale"])}
    )
    assert (np.asarray(mcmc.get_samples()["sign"]) == 1).all()
    assert mcmc.suspect == {}
    mcmc, _ = run(BAD["RandomWalk 50"](), record=lambda s: {"sum": s["w"].sum()})
    assert set(mcmc.suspect) == {0, 1}


@pytest.fixture(scope="module")
def stuck():
    """A run whose second chain never moves."""
    return one_in_a_steep_tail("MALA")[0]


def warned(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = action()
    return result, [str(w.message) for w in caught if "suspect" in str(w.message)]


def test_predictions_averages_and_scores_warn_once_and_keep_them(stuck):
    predictions, said = warned(lambda: bnn.predict(None, stuck, X))
    assert len(said) == 1
    assert said[0].startswith("predict: suspect chains are among the draws (chain 1: all draws are")
    assert predictions.mean.shape[0] == 2
    assert predictions.suspect == stuck.suspect
    for action, owner in (
        (lambda: bnn.average(predictions), "average"),
        (lambda: bnn.scores.rmse(predictions, Y), "scores"),
    ):
        first, again = warned(action)[1], warned(action)[1]
        assert len(first) == 1
        assert first[0].startswith(f"{owner}: ")
        assert again == []
    assert warned(lambda: bnn.scores.lppd(predictions, Y))[1] == []


def test_a_diagnosis_counts_them_as_disagreeing(stuck):
    report, said = warned(lambda: bnn.diagnose(stuck, X))
    assert said == []
    assert report.verdict == "chains_disagree"
    assert report.sentences[0].startswith("Suspect: chain 1: all draws are the same")
    assert "1 suspect" in report.details()


def test_a_run_of_suspects_alone_is_invalid():
    mcmc, _ = run_of("RandomWalk 50")
    report = bnn.diagnose(mcmc, X)
    assert report.verdict == "invalid"
    assert "Leave these chains out" in report.advice
    # Both began at the mode.
    assert "chain 1 of chain 0" in report.explanation


def test_draws_carry_them_everywhere(stuck, tmp_path):
    why = stuck.suspect
    assert draws_of(stuck).suspect == why
    assert bnn.load(bnn.save(stuck, tmp_path / "run"), model).suspect == why
    idata, said = warned(lambda: bnn.to_inference_data(stuck, X, Y))
    assert len(said) == 1
    assert said[0].startswith("to_inference_data: ")
    assert "chain 1: all draws are the same" in idata["posterior"].attrs["suspect"]
    assert bnn.from_inference_data(idata, model).suspect == why
    stacked, _ = warned(lambda: bnn.stack(stuck, X, Y, key=jax.random.key(0)))
    assert stacked.suspect == why
    table, said = warned(lambda: bnn.compare(model, (X, Y, X, Y), {"mala": stuck}, "mala"))
    assert said == []
    assert "mala * (suspect)" in str(table)
    assert "mala, suspect: chain 1: all draws are the same" in str(table)
    assert "chain 1: all draws" in table._repr_html_()
    assert table["mala"].suspect.startswith("chain 1: ")


def test_on_disk_they_are_found_and_kept(tmp_path):
    options = {"checkpoint": tmp_path / "c", "draws": tmp_path / "d.zarr", "checkpoint_every": 25}
    mcmc, said = run(BAD["RandomWalk 50"](), **options)
    assert set(mcmc.suspect) == {0, 1}
    assert len(said) == 1
    assert bnn.load(tmp_path / "d.zarr", model).suspect == mcmc.suspect
    again = sampler(BAD["RandomWalk 50"](), **options)
    with pytest.warns(UserWarning, match="2 of 2 chains are suspect and kept"):
        again.resume(X, Y)
    assert again.suspect == mcmc.suspect


class Counted:
    """Draws on disk, as far as they are looked at."""

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.read = 0

    def __getitem__(self, index):
        found = self.values[index]
        self.read = max(self.read, found.size)
        return found


def test_draws_are_read_in_pieces(monkeypatch):
    monkeypatch.setattr("numpyro_bnn.samplers.suspects._BLOCK", 2**17)
    moving = np.random.default_rng(0).normal(size=(3, 50, 40, 100)).astype(np.float32)
    # Back where it began, and not where it was between.
    back = np.concatenate([moving[:, :-1], moving[:, :1]], 1)
    still = np.broadcast_to(moving[:, :1], moving.shape)
    for values, longest in ((moving, 1), (back, 1), (still, 50)):
        array = Counted(values)
        np.testing.assert_array_equal(longest_stays([array])[0], longest)
        assert array.read < values.size / 4


def test_a_stay_is_one_of_all_sites():
    bias, kernel = np.ones((1, 40, 1)), np.ones((1, 40, 5))
    bias[:, 30:] = kernel[:, 20:] = 2.0
    assert longest_stays([bias])[0] == 30
    assert longest_stays([kernel, bias])[0] == 1


class State(NamedTuple):
    z: dict


def test_sites_that_stand_still_beside_others_are_named():
    """NumPyro 0.19 to 0.22: HMC whose step outgrows its trajectory accepts all and moves nothing."""
    moving = np.random.default_rng(0).normal(size=(2, 20, 3))
    still = np.broadcast_to(moving[:1, :1], moving.shape)
    half = np.stack([moving[0], still[0]])
    sites = {"w": moving, "a": still, "b": half, "one": np.ones((2, 20, 1))}
    # A simplex of one entry has no coordinates.
    state = State({name: np.zeros((2, 3 * (name != "one"))) for name in sites})
    found = suspect_chains(sites, {"accept_prob": np.ones((2, 20))}, state)
    of = "all draws of the block of {} are the same".format
    assert found == {0: of("a"), 1: f"{of('a')}, {of('b')}"}
    assert suspect_chains(dict.fromkeys(sites, still), {}, state)[1] == "all draws are the same"


@pytest.mark.parametrize("draws", [1, 3, 10, 40, 200])
def test_chance_names_no_healthy_chain(draws):
    """Random walks that accept 0.23 in high dimension: energy errors are normal."""
    rng = np.random.default_rng(draws)
    errors = rng.normal(2.83, 2.38, size=(3000, draws))
    accept = np.exp(-np.maximum(errors, 0))
    moved = rng.uniform(size=accept.shape) < accept
    position = np.cumsum(moved * rng.normal(size=moved.shape), axis=1)
    found = suspect_chains({"w": position}, {"accept_prob": accept})
    assert len(found) <= 6


def test_divergent_halves_are_named_unless_they_are_very_few():
    position = np.random.default_rng(0).normal(size=(3, 100))
    diverging = np.arange(100) < np.array([[51], [50], [0]])
    found = suspect_chains({"w": position}, {"diverging": diverging})
    assert found == {0: "51 of 100 draws diverged"}
    assert suspect_chains({"w": position[:, :3]}, {"diverging": diverging[:, :3]}) == {}
