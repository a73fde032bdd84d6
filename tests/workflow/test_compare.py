"""A second sampler catches a biased one; methods stand in one table with what they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from nets import Linear
from numpyro.infer import HMC, NUTS
from numpyro.infer.gibbs import Gibbs
from quiet import quiet, together

import numpyro_bnn as bnn
from numpyro_bnn.samplers.kernels import temperatures_of
from numpyro_bnn.workflow import compare as module
from numpyro_bnn.workflow.compare import _DECAYED, DECAYS, Data, _higher, _sampled

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -0.5]) + 0.5 * RNG.normal(size=40)).astype(np.float32)


class Outputs(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


def model(x, y=None):
    net = bnn.random_module("net", Linear(), bnn.priors.Normal(1.0), x[:1])
    with numpyro.plate("data", x.shape[0]):
        mean = net(numpyro.subsample(x, event_dim=1))
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=target)


def run(kernel, num_samples=500, thinning=1, num_chains=4):
    mcmc = together(kernel, 300, num_samples, num_chains, thinning=thinning)
    mcmc.run(jax.random.key(0), X, Y)
    return mcmc


@pytest.mark.slow
def test_two_samplers_of_one_posterior_agree():
    report = bnn.second_opinion(run(NUTS(model)), progress_bar=False)
    assert report.second.agrees, report.second.worst
    assert report.second.num_compared == 4 * 2 * len(X)
    assert "A second run agrees" in report.explanation


def test_a_biased_sampler_is_caught_although_its_chains_agree():
    """SGLD near the limit of stability: variances up to twice too large, with perfect R-hat."""
    largest = np.linalg.eigvalsh(4.0 * X.T @ X + np.eye(2))[-1]
    kernel = bnn.SGLD(model, step_size=1.5 / float(largest))
    biased = run(kernel, num_samples=5000, thinning=10, num_chains=2)
    report = bnn.second_opinion(biased, X[:10], num_samples=500, progress_bar=False)
    assert report.predictions.max_rhat < 1.01
    assert not report.second.agrees
    assert "A second run differs in" in report.explanation


def test_the_second_sampler_looks_closer():
    assert _higher(NUTS(model)) == 0.95
    assert _higher(NUTS(model, target_accept_prob=0.97)) == 0.99
    assert _higher(bnn.BAOAB(model, step_size=0.1)) == 0.95


def test_runs_of_two_temperatures_are_not_compared():
    """Their distributions differ: neither of them has missed anything."""
    cold = run(bnn.BAOAB(model, step_size=0.05, temperature=0.25), num_samples=120, num_chains=2)
    own = (
        r"the run is at temperature 0.25, and the second one, by NUTS, at 1\. .*temperature=0.25\)"
    )
    with pytest.raises(ValueError, match=own):
        bnn.second_opinion(cold, progress_bar=False)
    warm = run(bnn.BAOAB(model, step_size=0.05), num_samples=50, num_chains=2)
    with pytest.raises(
        ValueError, match=r"is at temperature 0\.25 and `second` at 1\. Runs at different temp"
    ):
        bnn.diagnose(cold, X, second=warm)
    with pytest.raises(ValueError, match=r"the run is at temperature 1, and the second one, by BA"):
        bnn.second_opinion(warm, kernel=cold.sampler)
    again = run(cold.sampler, num_samples=120, num_chains=2)
    module._refuse_another_temperature(cold, again.sampler)
    assert bnn.diagnose(cold, X[:10], second=again).second is not None


def test_the_temperature_of_a_kernel_is_that_of_its_blocks():
    cold = bnn.BAOAB(model, step_size=0.05, temperature=0.25)
    both = Gibbs([(cold, ["net/Dense_0.kernel"]), (cold, ["net/Dense_0.bias"])])
    assert temperatures_of(both) == temperatures_of(cold) == {0.25}


def test_errors_say_what_to_give():
    fresh = bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1)
    with pytest.raises(ValueError, match=r"numpyro_bnn\.MCMC after `run`, .*got MCMC before"):
        bnn.second_opinion(fresh)
    with pytest.raises(ValueError, match=r"got dict\. To compare finished runs use diagnose"):
        bnn.second_opinion({"a": jnp.zeros((1, 2))})
    of_potential = quiet(bnn.MALA(potential_fn=lambda z: jnp.sum(z**2), step_size=0.1), 1, 2)
    of_potential.run(jax.random.key(0), init_params=jnp.zeros(2))
    with pytest.raises(ValueError, match=r"[Oo]nly one of"):
        bnn.second_opinion(of_potential)


DATA = (X[:30], Y[:30], X[30:], Y[30:])


def exact_draws(num_chains=2, num_draws=200):
    """The posterior of the linear model in closed form."""
    design = np.concatenate([DATA[0], np.ones((30, 1))], 1)
    covariance = np.linalg.inv(4 * design.T @ design + np.eye(3))
    mean = covariance @ (4 * design.T @ DATA[1])
    drawn = RNG.multivariate_normal(mean, covariance, (num_chains, num_draws)).astype(np.float32)
    return {"net/Dense_0.kernel": drawn[..., :2, None], "net/Dense_0.bias": drawn[..., 2:]}


SETTINGS = {"num_chains": 2, "num_warmup": 20, "num_samples": 30, "progress_bar": False}


@pytest.fixture(scope="module")
def table():
    """Draws that are there already: nothing is sampled."""
    methods = {"exact": exact_draws(), "again": exact_draws()}
    return bnn.compare(model, DATA, methods, reference="exact", **SETTINGS)


@pytest.fixture(scope="module")
def sampled_table():
    methods = {
        "exact": exact_draws(),
        "again": exact_draws(),
        "map": None,
        "baoab": bnn.BAOAB(model, step_size=0.05, batch_size=15),
        "leapfrogs": HMC(model, num_steps=3, trajectory_length=None),
        "prior": lambda model, key, x, y, progress_bar: {
            name: value[None]
            for name, value in bnn.prior_predictive(model, key, x[:2], 100).items()
            if name != "y"
        },
    }
    return bnn.compare(model, DATA, methods, reference="exact", **SETTINGS)


def test_the_reference_is_at_no_distance_from_itself(table):
    row = table["exact"]
    assert (row.difference, row.difference_error, row.total_variation) == (0, 0, 0)
    assert np.isnan(row.seconds)
    assert np.isnan(row.gradients)
    assert np.isnan(row.agreement)


def test_scores_are_those_of_the_scores_module(table):
    predictions = bnn.predict(model, exact_draws(), DATA[2])
    row = table["again"]
    own = table.predictions["again"]
    assert row.log_score == pytest.approx(bnn.scores.lppd(own, DATA[3]))
    assert row.error == pytest.approx(bnn.scores.rmse(own, DATA[3]))
    assert row.calibration == pytest.approx(bnn.scores.coverage(own, DATA[3], level=0.9))
    assert abs(row.log_score - bnn.scores.lppd(predictions, DATA[3])) < 0.02
    assert abs(row.difference - (row.log_score - table["exact"].log_score)) < 1e-6


def test_finished_runs_are_scored_under_their_own_models_where_targets_are_known(recwarn):
    def of(noise):
        def model(x, y=None):
            w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
            with numpyro.plate("data", len(x)):
                numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)

        return model

    values = {"w": RNG.normal(size=(2, 30, 2)).astype(np.float32)}
    runs = {noise: bnn.Draws(values, of(noise)) for noise in (0.5, 1.5)}
    known = np.arange(40) != 3
    data = X, Y, X, np.where(known, Y, np.nan)
    table = bnn.compare(of(0.5), data, {"own": runs[1.5], **runs, "bare": values}, reference=0.5)
    for name, noise in {"own": 1.5, 0.5: 0.5, 1.5: 1.5, "bare": 0.5}.items():
        own = bnn.scores.lppd(bnn.predict(None, runs[noise], X[known]), Y[known])
        assert table[name].log_score == pytest.approx(float(own), rel=1e-5)


def test_the_draws_that_were_judged_come_with_the_table(table):
    for name in ("exact", "again"):
        at_test = bnn.predict(None, table.draws[name], DATA[2])
        np.testing.assert_array_equal(at_test.mean, table.predictions[name].mean)


def test_worse_methods_are_further_away(sampled_table):
    assert sampled_table["again"].total_variation < 0.03
    assert sampled_table["prior"].total_variation > 10 * sampled_table["again"].total_variation
    assert sampled_table["prior"].difference < -5 * sampled_table["prior"].difference_error


def test_gradients_are_counted_in_passes_over_all_rows(sampled_table):
    assert sampled_table["baoab"].gradients == 2 * (20 + 30) * 10 * 15 / 30
    assert sampled_table["leapfrogs"].gradients == 2 * (20 + 30) * 3
    assert sampled_table["map"].gradients >= 100
    assert all(sampled_table[name].seconds > 0 for name in ("map", "baoab", "leapfrogs", "prior"))


def test_steps_between_the_draws_of_a_cycle_are_counted():
    schedule = bnn.schedules.cyclical(peak=1e-3, cycle_length=10, exploration=0.8)
    kernel = bnn.SGLD(model, step_size=schedule, batch_size=15)
    settings = {"num_warmup": 20, "num_samples": 4, "num_chains": 2, "progress_bar": False}
    _, gradients = _sampled(kernel, Data(*DATA), jax.random.key(0), None, settings)
    # Draws 1 and 2 of a cycle end its steps 9 and 10; ten are thinned to one.
    assert gradients == 2 * (20 * 10 + 4 * 10 // 2 * 10) * 15 / 30


def test_the_table_is_shown_in_three_ways(table):
    text = str(table)
    assert "exact *" in text
    assert "agreement" not in text
    assert "distance" in text
    assert len(text.splitlines()) == 2 + 2 + 1
    assert table._repr_html_().count("<tr>") == 3


def test_classes_have_agreement_with_the_reference():
    network = bnn.classification(
        Outputs(), bnn.priors.Normal(1.0), DATA[0], (Y > 0).astype(int)[:30]
    )
    labels = (Y > 0).astype(int)
    kernel = [RNG.normal(size=(2, 50, 2, 2)).astype(np.float32) for _ in range(2)]
    bias = np.zeros((2, 50, 2), np.float32)
    draws = [{"net/Dense_0.kernel": k, "net/Dense_0.bias": bias} for k in kernel]
    data = (X[:30], labels[:30], X[30:], labels[30:])
    found = bnn.compare(network, data, {"a": draws[0], "b": draws[1]}, reference="a")
    assert found["a"].agreement == 1.0
    p, q = (found.predictions[name] for name in "ba")
    assert found["b"].agreement == bnn.scores.agreement(p, q)
    wrong = np.mean(np.asarray(p).mean((0, 1)).argmax(-1) != labels[30:])
    assert found["b"].error == pytest.approx(wrong) != 1 - wrong
    calibration = bnn.scores.expected_calibration_error(p, labels[30:])
    assert found["b"].calibration == pytest.approx(calibration)
    assert found["b"].total_variation == pytest.approx(bnn.scores.total_variation(p, q))
    assert "tot. var." in str(found)


@pytest.mark.parametrize(
    ("data", "methods", "kind", "words"),
    [
        ({"x": 1}, None, ValueError, r"expected data=\(x, y, x_test, y_test\)"),
        (DATA, {"gibbs": None}, KeyError, "gibbs"),
    ],
)
def test_what_cannot_be_compared_is_refused(data, methods, kind, words):
    with pytest.raises(kind, match=words):
        bnn.compare(model, data, methods, progress_bar=False)


def test_each_member_of_plain_training_has_a_decay_of_its_own():
    """Without a gradient Adam stands still; the decay takes its share of arrays, not of single numbers."""
    z = {"w": jnp.ones((len(DECAYS), 3)), "noise": jnp.ones(len(DECAYS))}
    state = jax.vmap(_DECAYED.init, axis_name="members")(z)
    step, _ = jax.vmap(_DECAYED.update)(jax.tree.map(jnp.zeros_like, z), state, z)
    expected = -0.01 * np.repeat(np.array(DECAYS)[:, None], 3, 1)
    np.testing.assert_allclose(step["w"], expected, rtol=1e-6)
    np.testing.assert_array_equal(step["noise"], np.zeros(len(DECAYS)))


@pytest.mark.parametrize("kind", ["own", "ready", "inside a handler", "classes"])
def test_plain_training_is_the_network_at_which_held_out_rows_are_likeliest(kind):
    seen = {}

    def spy(model, key, *args, **options):
        seen.update(options, x=args[0], members=bnn.deep_ensemble(model, key, *args, **options))
        return seen["members"]

    target, network = Y, bnn.MLP([4], 1)
    chosen = {
        "own": lambda: model,
        "ready": lambda: bnn.regression(network, bnn.priors.Normal(1.0), X, Y),
        "inside a handler": lambda: bnn.parameterize(
            bnn.regression(network, bnn.priors.Hierarchical(), X, Y), "centered"
        ),
        "classes": lambda: bnn.classification(network, bnn.priors.Normal(1.0)),
    }[kind]()
    target = (Y > 0).astype(int) if kind == "classes" else Y
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "deep_ensemble", spy)
        one = module.plain_training(chosen, jax.random.key(3), X, target, progress_bar=False)
    x_val, y_val = seen["validation"]
    assert (len(x_val), len(seen["x"])) == (8, 32)
    np.testing.assert_array_equal(np.sort(np.r_[x_val, seen["x"]], 0), np.sort(X, 0))
    members = bnn.predict(None, seen["members"], x_val).log_prob(y_val).mean((1, 2))
    assert len(members) == len(DECAYS)
    assert one.num_chains == 1
    ours = bnn.predict(None, one, x_val).log_prob(y_val).mean()
    assert ours == pytest.approx(members.max())
    assert members.max() > members.min()
