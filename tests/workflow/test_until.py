"""Runs that go on until averages are known: when they stop, what they keep, and what they refuse."""

import contextlib
import io
import itertools
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, NUTS
from numpyro.infer.mcmc import MCMCKernel

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.monte_carlo.agreement import agreement, draws_to_drop, halves_differ
from numpyro_bnn.run.chain_states import ChainStates, Plan
from numpyro_bnn.run.sampling import Sampling
from numpyro_bnn.storage.draw_store import DrawStore
from numpyro_bnn.workflow.until import StopReason, UntilKnown

X = np.linspace(-1.0, 1.0, 6)
Y = np.array([-0.4, -0.5, 0.1, 0.3, 0.2, 0.7])
# The mean error of rows is 0.021 predictive standard deviations at the second look, 0.017 at the fourth.
STARTS = {"weights": jnp.zeros((2, 2))}
FIVE_LOOKS = bnn.Tolerance(relative=0.037)


def line(x, y=None):
    """A slope and an intercept with Gaussian noise."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    bnn.likelihoods.gaussian(weights[0] + weights[1] * x, y, noise=0.5)


def two_modes(x, y=None):
    """A level that may be 1 or -1 as far as rows below zero tell; above zero it is seen itself."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    bnn.likelihoods.gaussian(jnp.where(x < 0, level**2, level), y, noise=0.1)


def hmc(step_size, num_steps):
    """HMC that adapts nothing."""
    return HMC(
        line,
        step_size=step_size,
        num_steps=num_steps,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )


def sampler(folder=None, kernel=None, **options):
    kernel = kernel or hmc(0.15, 3)
    settings = {"num_warmup": 20, "num_samples": 100, "num_chains": 2, "progress_bar": False}
    if folder is not None:
        settings |= {"checkpoint": folder, "checkpoint_every": 50}
    return bnn.MCMC(kernel, **(settings | options))


def until(mcmc, **options):
    rule = {"test_data": (X, None), "until": FIVE_LOOKS, "init_params": STARTS} | options
    return mcmc.run_until(jax.random.key(1), X, Y, **rule)


def assert_draws_of(mcmc, whole, dropped=0):
    """The samples and fields of one run are the last ones of another, bit for bit."""

    def same(own, other):
        np.testing.assert_array_equal(own, other[:, dropped:])

    jax.tree.map(same, mcmc.get_samples(True), whole.get_samples(True))
    jax.tree.map(same, mcmc.get_extra_fields(True), whole.get_extra_fields(True))


@pytest.fixture(scope="module")
def followed():
    """A run, and what its bars showed."""
    mcmc = sampler()
    # NumPyro shows none where it finds itself in a test of several processes.
    mcmc.progress_bar = True
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        until(mcmc)
    return mcmc, shown.getvalue()


@pytest.fixture
def five_looks(followed):
    return followed[0]


def plain(draws):
    mcmc = sampler(num_samples=draws)
    mcmc.run(jax.random.key(1), X, Y, init_params=STARTS)
    return mcmc


def shifted(x, y=None, off=0.0, sd=1.0):
    """The line with an offset of each row and a noise that is given."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    bnn.likelihoods.gaussian(weights[0] + weights[1] * x + off, y, noise=sd)


def test_arguments_by_row_and_numbers_of_the_run_are_those_of_its_looks():
    off = 100.0 * np.arange(len(X), dtype=np.float32)
    mcmc = sampler(kernel=bnn.RandomWalk(shifted, step_size=0.3), num_samples=20)
    given, rule = {"off": off, "sd": 0.5}, {"init_params": STARTS, "max_minutes": 1e-4}
    with pytest.raises(
        ValueError, match=r"training row in \['off'\].*test_data=\(x, y, {'off': …}\)"
    ):
        mcmc.run_until(jax.random.key(1), X, Y + off, test_data=(X, Y), **given, **rule)
    rows = slice(3)
    judged = (X[rows], (Y + off)[rows], {"off": off[rows]})
    stopped = mcmc.run_until(jax.random.key(1), X, Y + off, test_data=judged, **given, **rule)
    own = bnn.diagnose(mcmc, *judged[:2], off=off[rows])
    assert stopped.report.headline == own.headline


def test_a_run_goes_on_for_five_looks(five_looks):
    stopped = five_looks.stopped
    assert isinstance(stopped, StopReason)
    assert [look.draws for look in stopped.looks] == [100, 150, 200, 250, 350]
    verdicts = [look.report.verdict for look in stopped.looks]
    assert "within_tolerance" not in verdicts[:3]
    assert verdicts[3:] == ["within_tolerance"] * 2
    assert (stopped.reason, stopped.draws) == ("within tolerance", 350)
    assert str(stopped).startswith("Stopped after 350 draws a chain (within tolerance). Averages")
    errors = [look.report.monte_carlo_error.relative_99 for look in stopped.looks]
    assert errors[-1] < errors[0] / 1.5
    # Time is estimated from the second look's draws, and there is none left at the end.
    assert all(np.isfinite(look.seconds_left) for look in stopped.looks)


def test_the_draws_are_those_of_a_plain_run(five_looks):
    assert_draws_of(five_looks, plain(350), five_looks.stopped.dropped)
    assert five_looks.stopped.dropped == 0


def test_the_verdict_is_that_of_diagnose(five_looks):
    own = five_looks.stopped.report
    report = bnn.diagnose(five_looks, X, tolerance=FIVE_LOOKS)
    assert (report.verdict, report.headline) == (own.verdict, own.headline)
    assert report.needed == pytest.approx(own.needed, rel=1e-4)


def test_nothing_is_compiled_between_looks(monkeypatch):
    from numpyro_bnn.workflow.until import UntilKnown

    look, counts = UntilKnown.evaluate, []
    with nets.compilations() as compiled:

        def counted(self, drawn):
            look(self, drawn)
            counts.append(len(compiled))

        monkeypatch.setattr(UntilKnown, "evaluate", counted)
        until(sampler())
    assert len(counts) == 5
    assert counts[0] > 0
    assert set(counts) == {counts[0]}, compiled[counts[0] :]


def test_a_run_that_never_agrees_is_told_to_temper():
    kernel = NUTS(two_modes, max_tree_depth=3)
    mcmc = bnn.MCMC(kernel, num_warmup=100, num_samples=200, num_chains=2, progress_bar=False)
    start = {"level": jnp.array([1.0, -1.0])}
    with pytest.warns(
        UserWarning, match=r"\(modes: temper\)\. The chains disagree: they are in diff"
    ):
        stopped = mcmc.run_until(
            *(jax.random.key(0), -np.ones(6), np.ones(6)), at=(np.ones(3), None), init_params=start
        )
    assert stopped.reason == "modes: temper"
    assert [look.report.verdict for look in stopped.looks[-2:]] == ["chains_disagree"] * 2
    assert np.isnan(stopped.looks[-1].seconds_left)
    level = np.asarray(mcmc.get_samples(True)["level"])
    kept = stopped.draws - stopped.dropped
    assert level.shape == (2, kept)
    np.testing.assert_array_equal(np.sign(level), np.tile([[1.0], [-1.0]], (1, kept)))


def test_time_ends_a_run_between_looks():
    mcmc = sampler(thinning=10, num_samples=2400, progress_rate=10)
    stopped = until(mcmc, max_minutes=1e-4)
    assert stopped.reason == "max_minutes"
    # Half of the first look's 240, and a look at them all the same.
    assert stopped.draws == 120
    assert [look.draws for look in stopped.looks] == [120]
    assert stopped.report.verdict == "run_longer"
    assert "To be within tolerance would take about" in str(stopped)


def test_time_counts_what_is_compiled_before_the_first_step(monkeypatch):
    from numpyro_bnn.workflow import until as module

    clock = {"ahead": 0.0}
    ahead = SimpleNamespace(monotonic=lambda: time.monotonic() + clock["ahead"])
    monkeypatch.setattr(module, "time", ahead)
    prepare = module.UntilKnown.prepare

    def slow(self, like, chunk):
        prepare(self, like, chunk)
        clock["ahead"] = 3600.0

    monkeypatch.setattr(module.UntilKnown, "prepare", slow)
    stopped = until(sampler(), max_minutes=30.0)
    assert (stopped.reason, stopped.draws) == ("max_minutes", 50)


def test_the_text_says_what_the_last_judgement_said(five_looks):
    whole = five_looks.stopped
    assert str(whole).endswith("as well as was asked, judged twice in a row, and the chains agree.")
    for reason in ("max_minutes", "interrupted"):
        within = str(whole._replace(reason=reason, looks=whole.looks[:4]))
        assert within.endswith(
            "The last judgement was within tolerance; no second one confirmed it."
        )
        assert "would take" not in within
        before = str(whole._replace(reason=reason, looks=whole.looks[:3]))
        assert "To be within tolerance would take about" in before
        assert "judgement" not in before
    last = whole.looks[-1]
    alone = last._replace(report=replace(last.report, num_chains=1))
    assert str(whole._replace(looks=(alone,))).endswith("and halves of the one chain agree.")


class Dies(Exception):
    pass


def dies_at_the_second_look(folder):
    """A run that does nothing more after its second look, as after a kill, in this process."""
    look, calls = Sampling._evaluate, []

    def last(self, judge, count, seconds):
        look(self, judge, count, seconds)
        calls.append(count)
        if len(calls) == 2:
            raise Dies("at the second look")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampling, "_evaluate", last)
        with pytest.raises(Dies, match="at the second look"):
            until(sampler(folder))


CHILD = """
import os, signal, sys
sys.path[:0] = {paths!r}
import jax
import test_until
from numpyro_bnn.run import sampling

look, calls = sampling.Sampling._evaluate, []

def last(self, judge, count, seconds):
    look(self, judge, count, seconds)
    calls.append(count)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

sampling.Sampling._evaluate = last
test_until.until(test_until.sampler({folder!r}))
"""


def is_killed_at_the_second_look(folder):
    tests = Path(__file__).resolve().parents[1]
    child = CHILD.format(
        paths=[str(tests / "support"), str(tests / "workflow")], folder=str(folder)
    )
    ran = subprocess.run(
        [sys.executable, "-c", child], cwd=tests.parent, capture_output=True, text=True, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr


@pytest.mark.parametrize(
    "ends",
    [dies_at_the_second_look, pytest.param(is_killed_at_the_second_look, marks=pytest.mark.slow)],
)
def test_a_run_that_is_killed_between_looks_goes_on(ends, tmp_path, five_looks):
    folder = tmp_path / "run"
    ends(folder)
    assert DrawStore(folder / "draws.zarr").about["num_draws"] == 150
    mcmc = sampler(folder)
    mcmc.resume(X, Y)
    assert_draws_of(mcmc, five_looks)
    assert mcmc.stopped.reason == "within tolerance"
    looks = [(look.draws, look.report.headline) for look in mcmc.stopped.looks]
    assert looks == [(look.draws, look.report.headline) for look in five_looks.stopped.looks]
    # A finished one gives back what it has, and knows why it stopped.
    again = sampler(folder)
    again.resume(X, Y)
    assert_draws_of(again, five_looks)
    assert again.stopped.draws == 350


def test_ctrl_c_keeps_the_draws_and_resume_goes_on(tmp_path, five_looks, monkeypatch):
    advance, calls = ChainStates.advance, []

    def pressed(self, segment, update):
        advance(self, segment, update)
        calls.append(segment)
        # Nine segments a chunk of 50 draws, of which two are the first look's.
        if sum(not segment.warmup for segment in calls) == 19:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ChainStates, "advance", pressed)
        with pytest.warns(UserWarning, match=r"\(interrupted\).*Go on with `mcmc.resume"):
            stopped = until(sampler(tmp_path / "run"))
    assert stopped.reason == "interrupted"
    assert [look.draws for look in stopped.looks] == [100]
    assert stopped.draws == 150
    mcmc = sampler(tmp_path / "run")
    mcmc.resume(X, Y)
    assert_draws_of(mcmc, five_looks)


def test_what_was_dropped_stays_out_of_a_store(tmp_path, monkeypatch):
    monkeypatch.setattr("numpyro_bnn.workflow.until.draws_to_drop", lambda values, accepted: 30)
    pytest.importorskip("zarr")
    mcmc = sampler(draws=tmp_path / "run.zarr")
    stopped = until(mcmc, until=bnn.Tolerance(relative=0.5))
    assert (stopped.draws, stopped.dropped) == (200, 30)
    whole = plain(200)
    assert_draws_of(mcmc, whole, 30)
    loaded = bnn.load(tmp_path / "run.zarr", line)["weights"]
    own = np.asarray(whole.get_samples(True)["weights"])[:, 30:]
    for index in (slice(None), slice(2, 9), slice(None, None, -1), slice(-5, None), 7, -1):
        np.testing.assert_array_equal(loaded[:, index], own[:, index])
    assert "The first 30 draws of each chain were dropped." in str(stopped)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_minutes": -1.0}, ValueError, "max_minutes must be positive and finite, got .*-1.0"),
        ({"until": 0.01}, TypeError, "until must be a bnn.Tolerance, got 0.01. Write"),
        ({"test_data": None}, TypeError, "the inputs and targets at which .* got NoneType"),
        ({"test_data": (X, Y, Y)}, TypeError, r"expected .* `test_data=\(x_test, y_test\)`.* of 3"),
        ({"test_data": (X, Y[:-1])}, ValueError, r"the same positive number of rows, got \[5, 6\]"),
        ({"extra_fields": ("~z.weights",)}, ValueError, "predict: the sites"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sampled(options, error, message):
    mcmc = sampler()
    with pytest.raises(error, match=message):
        until(mcmc, **options)
    assert mcmc._states is None


def test_runs_that_cannot_be_predicted_are_refused():
    kept = sampler(record=lambda sites: {"sum": sites["weights"].sum()})
    with pytest.raises(
        ValueError, match=r"run_until: predictions need .* this is HMC with record="
    ):
        until(kept)
    over_potential = bnn.MCMC(
        HMC(potential_fn=lambda z: z**2), num_warmup=1, num_samples=1, progress_bar=False
    )
    with pytest.raises(ValueError, match="run_until: predictions need a kernel over a model"):
        over_potential.run_until(jax.random.key(0), test_data=(X, Y))


@pytest.mark.parametrize(
    ("plan", "chunk", "looks"),
    [
        (Plan(7, 300, 1, 10), 150, [300, 450, 600, 750]),
        (Plan(7, 5, 100, 10), 3, [6, 9, 12, 15]),
        (Plan(7, 100, 2, 10, 50), 25, [100, 125, 175, 225]),
        (Plan(7, 1, 1, 10), 1, [1, 2, 3, 4]),
    ],
)
def test_looks_are_at_whole_chunks_a_quarter_more_each_time(plan, chunk, looks):
    staged = plan.in_stages()
    assert staged.chunk == chunk
    assert list(itertools.islice(staged.looks(), 4)) == looks
    # Every stage goes on where the last one ended.
    taken = [p for p in staged._replace(draws=looks[0]).segments() if not p.warmup]
    assert sum(p.draws for p in taken) == looks[0]
    done = staged.warmup + looks[0] * staged.thinning
    more = list(staged._replace(draws=looks[1]).segments(done))
    assert sum(p.draws for p in more) == looks[1] - looks[0]
    assert {p.slot + p.draws for p in more if p.whole} == {chunk}


def test_the_bars_show_where_a_run_stands(followed):
    shown = followed[1]
    assert "until error in predictive sd 0.037" in shown
    assert "100 draws: run longer: " in shown
    assert " accepted); chains agree (p = " in shown
    assert " left" in shown
    assert "stopped: within tolerance" in shown
    assert "370/370" in shown


@pytest.mark.parametrize("draws", [12, 50, 99, 100])
@pytest.mark.parametrize("accepted", [1e-9, 0.1])
def test_no_time_is_promised_before_an_error_is_known(draws, accepted):
    """Below a hundred draws a report says how many are the least, which is not how many are enough."""
    values = {"f": np.random.default_rng(0).normal(size=(4, draws, 3))}
    report = diagnose_draws(None, values, tolerance=bnn.Tolerance(relative=accepted))
    drawn = SimpleNamespace(num_draws=draws, seconds_a_draw=0.01)
    left = UntilKnown._seconds_left(SimpleNamespace(dropped=0), drawn, report)
    assert np.isfinite(left) == (draws == 100)
    if draws == 100 and accepted < 1e-3:
        assert left > 1e9
    hopeless = replace(report, needed=np.nan)
    assert np.isnan(UntilKnown._seconds_left(SimpleNamespace(dropped=0), drawn, hopeless))


class _WalkState(NamedTuple):
    z: Any
    kind: jax.Array
    count: jax.Array
    rng_key: jax.Array


class Walk(MCMCKernel):
    """Draws weights afresh; chains that start at 1 stay there, those at 2 become NaN after 10 draws.

    Those that start at 3 come from far away.
    """

    sample_field = "z"
    default_fields = ("z",)

    @property
    def model(self):
        return line

    def get_diagnostics_str(self, state):
        return ""

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        return _WalkState(init_params, init_params["weights"][0], jnp.array(0), rng_key)

    def sample(self, state, model_args, model_kwargs):
        key, own = jax.random.split(state.rng_key)
        value = jnp.where(state.kind == 1, state.kind, 0.3 * jax.random.normal(own, (2,)))
        value = jnp.where((state.kind == 2) & (state.count >= 10), jnp.nan, value)
        value += (state.kind == 3) * 9.0 * jnp.exp(-state.count / 8.0)
        return _WalkState({"weights": value}, state.kind, state.count + 1, key)


def walk(kinds):
    mcmc = bnn.MCMC(
        Walk(), num_warmup=0, num_samples=100, num_chains=len(kinds), progress_bar=False
    )
    start = {"weights": jnp.tile(jnp.array(kinds)[:, None], (1, 2))}
    accepted = bnn.Tolerance(relative=0.5)
    return mcmc, until(mcmc, init_params=start, until=accepted)


def test_a_chain_that_fails_is_left_out_of_looks():
    with pytest.warns(
        UserWarning, match=r"Left out 1 of 4 chains \(chain 2: draw 10 is not finite"
    ):
        mcmc, stopped = walk([0.0, 0.0, 2.0, 0.0])
    assert stopped.reason == "within tolerance"
    assert [look.report.num_chains for look in stopped.looks] == [3, 3]
    assert mcmc.get_samples(True)["weights"].shape == (3, 150, 2)


def test_halves_that_differ_are_seen_and_others_are_not():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 500, 20))
    apart = np.array([0.0, 3.0, -1.0, 5.0])[:, None, None]
    accepted = bnn.Tolerance()
    # Chains that are apart are another question.
    assert draws_to_drop({"f": noise + apart}, accepted) == 0
    beginning = 4.0 * np.exp(-np.arange(500) / 30)[:, None]
    assert 50 <= draws_to_drop({"f": noise + apart + beginning}, accepted) <= 200
    assert halves_differ({"f": noise + beginning}, accepted)
    found = [
        halves_differ({"f": rng.normal(size=(4, 300, 20))}, bnn.Tolerance(relative=1e-3))
        for _ in range(100)
    ]
    # One in a hundred, of exchangeable draws: four times as many happen once in 250.
    assert sum(found) <= 4


def test_halves_of_chains_that_have_arrived_differ_as_often_as_chance_says(monkeypatch):
    """The average of each chain is subtracted, which many scalars together would show as a difference."""
    seen = []

    def noted(*given, **options):
        seen.append(agreement(*given, **options))
        return seen[-1]

    monkeypatch.setattr("numpyro_bnn.diagnostics.monte_carlo.agreement.agreement", noted)
    rng = np.random.default_rng(0)
    for _ in range(16):
        halves_differ({"f": rng.normal(size=(8, 160, 2000))}, bnn.Tolerance())
    # A p-value of chance has mean 1/2 and variance 1/12.
    assert abs(np.mean([each.p for each in seen]) - 0.5) <= 3 / np.sqrt(12 * 16)


def test_a_first_part_is_dropped_while_halves_differ():
    mcmc, stopped = walk([3.0, 3.0])
    assert stopped.reason == "within tolerance"
    assert 0 < stopped.dropped <= stopped.draws // 2
    samples = mcmc.get_samples(True)["weights"]
    assert samples.shape == (2, stopped.draws - stopped.dropped, 2)
    # The start is thirty standard deviations away, and its last trace a tenth of one.
    assert np.abs(samples).max() < 2


def test_a_run_of_which_no_chain_is_left_ends():
    with pytest.raises(RuntimeError, match="No chain stayed finite"):
        walk([2.0, 2.0])


def test_chains_that_do_not_move_end_a_run():
    with pytest.warns(UserWarning, match="1 of 3 chains is suspect and kept"):
        mcmc, stopped = walk([0.0, 1.0, 0.0])
    assert stopped.reason == "chains that do not move"
    assert "which more draws will not change" in str(stopped)
    assert stopped.draws == 150
    assert mcmc.suspect == {1: "all draws are the same"}
