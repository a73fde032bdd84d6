"""Everything public goes through pickle and works afterwards; what a user wrote must be found by its name."""

import pickle
from functools import cache, partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn import gradients, likelihoods, moves, preconditioners, priors, schedules

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2)).astype(np.float32)
Y = X.sum(1)
LABELS = (Y > 0).astype(int)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        targets = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(w * rows.sum(-1), 1.0), obs=targets)


def network(x, y=None):
    net = bnn.random_module("net", nets.Linear(), priors.Hierarchical(), x[:1])
    likelihoods.gaussian(net, y, x=x, noise=0.5)


def rule(path, shape):
    return dist.Normal(0.0, 2.0)


@cache
def draws():
    values = RNG.normal(1.0, 0.2, (2, 100)).astype(np.float32)
    return bnn.Draws(
        {"w": values}, model, {"diverging": np.zeros((2, 100), bool)}, {"kernel": "NUTS"}
    )


@cache
def run():
    mcmc = bnn.MCMC(
        bnn.SGLD(model, step_size=schedules.polynomial(0.01, 1.0, 0.6), batch_size=4),
        num_warmup=5,
        num_samples=20,
        progress_bar=False,
    )
    # Looking for a start compiles for longer than the steps.
    mcmc.run(jax.random.key(0), X, Y, init_params={"w": jnp.ones(())})
    return mcmc


@cache
def ready(kind):
    network = bnn.MLP((3,), 1 if kind == "regression" else 2)
    return getattr(bnn, kind)(
        network, priors.Hierarchical(), X, Y if kind == "regression" else LABELS
    )


@cache
def calibrated():
    return bnn.calibrate(draws(), X, Y)


KERNELS = """
    AMAGOLD BAOAB GGMC MALA MAMS MCLMC PSGLD ParallelTempering PrecisionGibbs RandomWalk SGHMC SGLD SGNHT
    WindowedHMC
"""
WITHOUT_STEP = ("MAMS", "MCLMC", "ParallelTempering", "PrecisionGibbs", "WindowedHMC")


def kernel(name):
    more = {} if name in WITHOUT_STEP else {"step_size": 0.1}
    more |= {"batch_size": 4} if name == "AMAGOLD" else {}
    return getattr(bnn, name)(model, **more)


def bound():
    return moves.Bound(network, (X, Y), {})


OBJECTS = {name: partial(kernel, name) for name in KERNELS.split()}
OBJECTS |= {
    "neal": lambda: bnn.neal(network),
    "SGMCMC": lambda: bnn.SGLD(
        model,
        step_size=schedules.cyclical(0.1, 100, 0.5),
        temperature=schedules.constant(1.0),
        gradient=gradients.minibatch(4),
        preconditioner=preconditioners.rmsprop(),
    ),
    "moves.Bound": bound,
    "moves.Interleaved": lambda: moves.Interleaved(HMC(model), [moves.RidgeScaling()]),
    "moves.PrecisionRedraw": lambda: moves.PrecisionRedraw(),
    "moves.OutputLayerGibbs": lambda: moves.OutputLayerGibbs(["net/Dense_1.kernel"]),
    "moves.RidgeScaling": lambda: moves.RidgeScaling(0.2),
    "moves.UnitRescaling": lambda: moves.UnitRescaling("a", "b"),
    "moves.UnitRefresh": lambda: moves.UnitRefresh("net/Dense_0.kernel", ["net/Dense_0.bias"]),
    "gradients.control_variate": lambda: gradients.control_variate(4, anchor={"w": jnp.ones(())}),
    "gradients.full": gradients.full,
    "gradients.minibatch": lambda: gradients.minibatch(4),
    "gradients.svrg": lambda: gradients.svrg(4, 10),
    "preconditioners.diagonal": lambda: preconditioners.diagonal({"w": jnp.ones(())}),
    "preconditioners.from_warmup": preconditioners.from_warmup,
    "preconditioners.given_precisions": preconditioners.given_precisions,
    "preconditioners.identity": preconditioners.identity,
    "preconditioners.rmsprop": preconditioners.rmsprop,
    "schedules.constant": lambda: schedules.constant(0.1),
    "schedules.cyclical": lambda: schedules.cyclical(0.1, 100, 0.5),
    "schedules.from_learning_rate": lambda: schedules.from_learning_rate(0.1, 100, momentum=0.9),
    "schedules.polynomial": lambda: schedules.polynomial(0.1, 1.0, 0.6),
    "priors.ByPath": lambda: priors.ByPath({"*.bias": dist.Normal(0.0, 1.0), "*": None}),
    "priors.FanIn": priors.FanIn,
    "priors.FromFunction": lambda: priors.FromFunction(rule),
    "priors.Hierarchical": lambda: priors.Hierarchical.width(
        1.0, group=2.0, unit=3.0, groups="layer"
    ),
    "priors.Horseshoe": priors.Horseshoe,
    "priors.Laplace": lambda: priors.Laplace(1.0),
    "priors.Normal": lambda: priors.Normal(1.0),
    "priors.StudentT": lambda: priors.StudentT(3.0, 1.0),
    "priors.pretrained": lambda: priors.pretrained({"a": {"kernel": jnp.ones(2)}}, 1.0),
    "likelihoods.Precision": lambda: likelihoods.Precision(1.0, 1.0),
    "parameterize": lambda: bnn.parameterize(network, "centered"),
    "integrate_output": lambda: bnn.integrate_output(network),
    "MLP": lambda: bnn.MLP((3,), 1),
    "OnHost": lambda: bnn.OnHost(X),
    "Tolerance": lambda: bnn.Tolerance(relative=0.2),
    "MCMC": run,
    "Draws": draws,
    "average": lambda: bnn.average(bnn.predict(None, draws(), X)),
    "calibrate": calibrated,
    "describe": lambda: bnn.describe(network, X, Y),
    "diagnose": lambda: bnn.diagnose(draws(), X, Y),
    "check_fit": lambda: bnn.check_fit(draws(), X, Y),
    "regression": lambda: ready("regression"),
    "classification": lambda: ready("classification"),
    "thin": lambda: bnn.thin(draws(), 5, X),
    "BNNRegressor": lambda: bnn.BNNRegressor(network=bnn.MLP((3,), 1)),
    "BNNClassifier": lambda: bnn.BNNClassifier(prior=priors.FanIn()),
}
OBJECTS |= {
    f"likelihoods.{name}": partial(getattr, likelihoods, name)
    for name in likelihoods.__all__
    if name not in ("Precision", "ReadyModel", "Standardization")
}
# Functions whose results are among the objects above or are arrays, and rooms of functions.
FUNCTIONS = """
    cache compare constant_sgd deep_ensemble diagnostics export fit from_inference_data from_params
    gradients laplace likelihoods load map_estimate mean_field moves noisy_inputs optimize plots potential_of
    preconditioners predict prior_predictive priors random_module randomized_map references save schedules
    scores
    second_opinion stack stacking_weights swag to_inference_data to_params update without
"""


def again(value):
    return pickle.loads(pickle.dumps(value))


def test_every_public_name_is_here():
    tried = {name.partition(".")[0] for name in OBJECTS}
    assert set(bnn.__all__) <= tried | set(FUNCTIONS.split())
    for room in ("gradients", "likelihoods", "moves", "preconditioners", "priors", "schedules"):
        public = {f"{room}.{name}" for name in getattr(bnn, room).__all__}
        public -= {"moves.Move", "priors.Prior"}
        public -= {"likelihoods.ReadyModel", "likelihoods.Standardization"}
        assert public <= set(OBJECTS), public - set(OBJECTS)


@pytest.mark.parametrize("name", OBJECTS)
def test_it_goes_through_pickle(name):
    value = OBJECTS[name]()
    copy = again(value)
    assert type(copy) is type(value)
    if " at 0x" not in repr(value):
        assert repr(copy) == repr(value)


def test_a_schedule_has_the_same_values():
    for name in ("constant", "cyclical", "polynomial"):
        schedule = OBJECTS[f"schedules.{name}"]()
        steps = jnp.arange(0, 200, 17)
        np.testing.assert_array_equal(again(schedule)(steps), schedule(steps))


def test_a_kernel_samples_the_same_draws():
    fresh = bnn.MCMC(again(run().sampler), num_warmup=5, num_samples=20, progress_bar=False)
    fresh.run(jax.random.key(0), X, Y, init_params={"w": jnp.ones(())})
    np.testing.assert_array_equal(fresh.get_samples()["w"], run().get_samples()["w"])


def test_a_run_keeps_its_draws():
    np.testing.assert_array_equal(again(run()).get_samples()["w"], run().get_samples()["w"])


@pytest.mark.parametrize("whole", [True, False])
def test_predictions_answer_new_questions(whole):
    made = bnn.predict(None, draws(), X)
    made = made if whole else made.at_rows(slice(7))
    y = Y if whole else Y[:7]
    copy = again(made)
    np.testing.assert_array_equal(copy.mean, made.mean)
    np.testing.assert_array_equal(copy.log_prob(y), made.log_prob(y))
    np.testing.assert_array_equal(copy.sample(jax.random.key(3)), made.sample(jax.random.key(3)))


def test_draws_models_and_calibrations_predict_the_same():
    expected = bnn.predict(None, draws(), X).mean
    np.testing.assert_array_equal(bnn.predict(None, again(draws()), X).mean, expected)
    np.testing.assert_array_equal(
        again(calibrated()).predict_interval(X), calibrated().predict_interval(X)
    )
    for kind in ("regression", "classification"):
        for field in ("x_mean", "y_scale"):
            copy, own = again(ready(kind)).standardization, ready(kind).standardization
            np.testing.assert_array_equal(getattr(copy, field), getattr(own, field))


def test_a_network_computes_the_same():
    module = bnn.MLP((3,), 2)
    variables = module.init(jax.random.key(0), X)
    np.testing.assert_array_equal(again(module).apply(variables, X), module.apply(variables, X))
    relu = again(bnn.MLP((3,), 2, activation=jax.nn.relu, name="own"))
    assert (relu.activation, relu.name) == (jax.nn.relu, "own")


def test_a_report_and_a_check_say_the_same():
    for value in (bnn.diagnose(draws(), X, Y), bnn.check_fit(draws(), X, Y)):
        assert str(again(value)) == str(value)


def test_rows_on_the_host_are_read_again():
    np.testing.assert_array_equal(again(bnn.OnHost(X)).read(np.array([3, 5])), X[[3, 5]])


def test_what_a_user_wrote_inside_a_function_is_named_by_pickle():
    """Pickle keeps functions by name: this is its own error, and a module's function is the answer."""

    def inside(x, y=None):
        model(x, y)

    for value in (bnn.SGLD(inside, step_size=0.1), bnn.Draws(dict(draws()), inside)):
        with pytest.raises((AttributeError, pickle.PicklingError), match=r"local object .*inside"):
            pickle.dumps(value)
    for prior in (lambda path, shape: rule(path, shape), partial(rule, "a")):
        kept = priors.FromFunction(prior)
        if isinstance(prior, partial):
            assert again(kept).rule.func is rule
        else:
            with pytest.raises((AttributeError, pickle.PicklingError), match="<lambda>"):
                pickle.dumps(kept)
