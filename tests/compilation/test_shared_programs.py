"""Compiled programs are shared by equal calls, and by no others."""

from functools import partial, wraps
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import linen as nn
from numpyro import handlers
from separate_programs import separate_programs

import numpyro_bnn as bnn
from numpyro_bnn.compilation import program_identity
from numpyro_bnn.compilation.program_identity import Program, form_of
from numpyro_bnn.potential.starts import start_shapes
from numpyro_bnn.priors import Hierarchical

X = np.linspace(-1.0, 1.0, 4)[:, None]
SCALE = 1.0


@pytest.fixture(autouse=True)
def no_programs():
    with separate_programs():
        yield


def by_global(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(SCALE * w * x[:, 0], 1.0), obs=y)


def by_closure(scale):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(scale[0] * w * x[:, 0], 1.0), obs=y)

    return model


def predicted(model, x=X):
    """The mean prediction at the last row, where every model here says `scale` at w = 1."""
    return float(bnn.predict(model, {"w": np.ones(1)}, x).mean[0, 0, -1])


def ones(columns=1):
    """A draw of a linear network whose weights are one, and its bias zero."""
    draw = {"net/kernel": np.ones((1, columns, 1)), "net/bias": np.zeros((1, 1))}
    return draw | {"y.scale": np.ones(1)}


def num_programs():
    return len(program_identity.traced_once)


def test_equal_models_share_a_program():
    assert predicted(by_closure([2.0])) == 2.0
    before = num_programs()
    assert predicted(by_closure([2.0])) == 2.0
    assert num_programs() == before > 0


def test_a_global_number_tells_models_apart(monkeypatch):
    assert predicted(by_global) == 1.0
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert predicted(by_global) == 3.0
    monkeypatch.undo()
    assert predicted(by_global) == 1.0


def of_levels(scale):
    width = partial(Hierarchical.width, scale, scale_by_fan_in=True)
    rules = {
        "*1.bias": width(),
        "*.bias": width(group=1.0),
        "*0.kernel": width(group=1.0, unit=1.0),
    }
    return bnn.priors.ByPath(rules | {"*": width(unit=2.0)})


def tailed(scale):
    return bnn.priors.ByPath(
        {"*0.*": bnn.priors.StudentT(3.0, scale), "*": bnn.priors.FanIn(scale)}
    )


@pytest.mark.parametrize("prior", [of_levels, tailed, bnn.priors.Horseshoe, bnn.priors.Laplace])
def test_a_prior_of_another_scale_is_data_of_the_same_programs(prior):
    """A search over scales compiles once, and samples the posterior of each."""

    def last_energy(scale):
        model = bnn.regression(bnn.MLP((2,), 1), prior(scale), X, X[:, 0])
        potential = bnn.potential_of(model, X, X[:, 0])
        kernel = bnn.RandomWalk(model, step_size=0.01)
        mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=1, progress_bar=False)
        zeros = {n: jnp.zeros(shape) for n, shape in start_shapes(potential.structure).items()}
        mcmc.run(jax.random.key(0), X, X[:, 0], init_params=zeros)
        energy = mcmc.last_state.potential_energy
        np.testing.assert_allclose(energy, jax.jit(potential)(mcmc.last_state.z), rtol=1e-5)
        return energy

    first, before = last_energy(1.0), num_programs()
    assert not np.allclose(first, last_energy(0.3))
    assert num_programs() == before


def test_members_of_a_hierarchy_of_another_scale_share_the_programs_of_the_first():
    def mode(scale):
        model = bnn.regression(nn.Dense(1), Hierarchical.width(scale, group=1.0), noise=0.5)
        steps = {"num_steps": 199, "optimizer": optax.adam(0.03), "progress_bar": False}
        found = bnn.map_estimate(model, jax.random.key(0), X, X[:, 0], **steps)
        return found["net/kernel"].item()

    first, before = mode(1.0), num_programs()
    assert abs(mode(0.01)) < 0.5 * abs(first)
    assert num_programs() == before


def test_code_of_a_user_is_traced_again(monkeypatch):
    """It may read what has changed since; code of libraries does not."""

    def energy():
        model = bnn.regression(bnn.MLP((2,), 1, lambda v: SCALE * v), bnn.priors.Normal(1.0))
        mcmc = bnn.MCMC(bnn.BAOAB(model, step_size=0.01), num_warmup=0, num_samples=1)
        mcmc.run(jax.random.key(0), X, X[:, 0])
        return float(mcmc.last_state.potential_energy)

    first = energy()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert energy() != first
    wrapped = wraps(jnp.tanh)(by_global), jax.checkpoint(by_global), nn.remat(Scaled)()
    for unknown in (X, jax.random.key(0), by_global, *wrapped, Hierarchical(groups=str.lower)):
        assert form_of([unknown]) is None
    makers = (partial(bnn.MLP, (2,), 1), partial(dist.Normal, 0.0, 2.0), partial(of_levels, 0.5))
    assert all(form_of(make()) == form_of(make()) is not None for make in makers)
    assert form_of(bnn.MLP((2,), 1)) != form_of(bnn.MLP((2,), 1, nn.relu))


class Scaled(nn.Module):
    """A network that counts how often it is traced and reads a global."""

    traced: ClassVar = []

    @nn.compact
    def __call__(self, x):
        self.traced.append(SCALE)
        return SCALE * nn.Dense(1)(x)


def fitted(model):
    return bnn.deep_ensemble(
        model, jax.random.key(0), X, X[:, 0], num_members=2, num_steps=2, progress_bar=False
    )


def test_predictions_trace_a_ready_model_once_after_each_fit(monkeypatch):
    """What its network reads is read by the fit, and predictions are of what was fitted."""
    model = bnn.regression(Scaled(), bnn.priors.Normal(1.0))
    run = fitted(model)
    first = np.asarray(bnn.predict(None, run, X).mean)
    monkeypatch.setattr(Scaled, "traced", [])
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    np.testing.assert_array_equal(bnn.predict(None, run, X).mean, first)
    assert not Scaled.traced
    with handlers.scope(prefix="outer"), pytest.raises(ValueError, match="outer"):
        bnn.predict(None, run, X)  # handlers are heeded
    again = fitted(model)
    second = np.asarray(bnn.predict(None, again, X).mean)
    anew = bnn.regression(Scaled(), bnn.priors.Normal(1.0), X, X[:, 0])
    np.testing.assert_array_equal(second, bnn.predict(anew, dict(again), X).mean)
    assert not np.array_equal(second, first)


def test_the_first_models_later_changes_do_not_reach_equal_models():
    """The program of the first model is traced again for other shapes, when that model has changed."""
    scale = [1.0]
    first = by_closure(scale)
    assert predicted(first) == 1.0
    scale[0] = 7.0
    more = np.linspace(-1.0, 1.0, 6)[:, None]
    assert predicted(by_closure([1.0]), more) == 1.0
    assert predicted(first, more) == 7.0


def test_functions_on_the_host_are_not_mixed_up():
    def on_host(factor):
        def model(x, y=None):
            shape = jax.ShapeDtypeStruct((), jnp.float32)
            return by_closure([jax.pure_callback(lambda: np.float32(factor), shape)])(x, y)

        return model

    assert [predicted(on_host(f)) for f in (1.0, 2.0, 1.0)] == [1.0, 2.0, 1.0]


def test_handlers_around_a_call_are_followed():
    key = jax.random.key(0)
    model = by_closure([1.0])
    with handlers.condition(data={"w": 10.0}):
        within = bnn.prior_predictive(model, key, X, 3)["w"]
    after = bnn.prior_predictive(model, key, X, 3)["w"]
    with handlers.condition(data={"w": 10.0}):
        again = bnn.prior_predictive(model, key, X, 3)["w"]
    assert np.all(within == 10.0)
    assert np.all(again == 10.0)
    assert not np.any(after == 10.0)


def test_interceptors_of_flax_are_followed():
    model = bnn.regression(nn.Dense(1), bnn.priors.FanIn(), X, X[:, 0])

    def doubled(call, args, kwargs, context):
        found = call(*args, **kwargs)
        return 2 * found if isinstance(context.module, nn.Dense) else found

    plain = bnn.predict(model, ones(), X).mean
    with nn.intercept_methods(doubled):
        twice = bnn.predict(model, ones(), X).mean
    assert np.ptp(plain) > 0
    np.testing.assert_allclose(twice, 2 * plain, rtol=1e-6)


def test_structures_with_the_same_arrays_keep_their_own_form():
    """The text has no names of fields: a tuple and a list of arrays have the same one."""
    for given in ((X, X), [X, X]):
        assert type(Program(lambda x: x)(given)) is type(given)
    for form in (tuple, list):
        assert type(Program(lambda x, form=form: form([x, 2 * x]))(X)) is form


def test_types_of_arguments_and_settings_of_jax_tell_programs_apart():
    program = Program(lambda x: x @ x.T)
    program(jnp.ones((2, 2)))
    before = num_programs()
    program(jnp.full((2, 2), 1.0))  # of a weak type, which the results of a program have not
    assert num_programs() == before
    assert program(jnp.ones((2, 2), jnp.int32)).dtype == jnp.int32
    assert num_programs() == before + 1
    with jax.default_matmul_precision("bfloat16"):
        program(jnp.ones((2, 2)))
    assert num_programs() == before + 2


def test_a_program_inside_a_transformation_is_a_function():
    program = Program(lambda x: x**2)
    assert float(jax.grad(program)(3.0)) == 6.0
    np.testing.assert_array_equal(jax.vmap(program)(jnp.arange(3.0)), [0.0, 1.0, 4.0])


@pytest.mark.parametrize("columns", [1, 2])
def test_the_units_of_other_data_are_taken_from_the_data(columns):
    """Folds of a cross-validation have programs in common, and each its own units."""
    x = np.linspace(-1.0, 1.0, 4 * columns).reshape(4, columns)
    sizes, spreads = [], []
    for factor in (1.0, 10.0):
        model = bnn.regression(nn.Dense(1), bnn.priors.FanIn(), x, factor * x.sum(1) + 3)
        units, predictions = model.standardization, bnn.predict(model, ones(columns), x)
        means = units.y_mean + units.y_scale * ((x - units.x_mean) / units.x_scale).sum(1)
        np.testing.assert_allclose(predictions.mean[0, 0], means, rtol=1e-5)
        spreads.append(float(predictions.scale[0, 0, 0]))
        sizes.append(num_programs())
    np.testing.assert_allclose(spreads[1], 10 * spreads[0], rtol=1e-5)
    assert sizes[0] == sizes[1] > 0


def test_a_model_around_a_ready_one_keeps_its_units():
    """Its data are not standardised before: the units are constants of the trace."""
    for factor in (1.0, 10.0):
        ready = bnn.regression(nn.Dense(1), bnn.priors.FanIn(), X, factor * X[:, 0] + 3)

        def model(x, y=None, ready=ready):
            return ready(x, y)

        means = bnn.predict(model, ones(), X).mean[0, 0]
        np.testing.assert_allclose(means, factor * X[:, 0] + 3, rtol=1e-5)


def gaussian(scale):
    def model(y=None):
        numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(scale, 1.0), obs=y)

    return model


def sampled(kernel, seed=0):
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=4, num_chains=1, progress_bar=False)
    mcmc.run(jax.random.key(seed), jnp.zeros(()))
    return np.asarray(mcmc.get_samples()["w"])


def test_runs_of_equal_kernels_give_the_draws_of_a_run_alone():
    sampled(bnn.BAOAB(gaussian(1.0), step_size=0.1), 0)
    before = num_programs()
    shared = sampled(bnn.BAOAB(gaussian(1.0), step_size=0.1), 1)
    assert num_programs() == before
    with separate_programs():
        alone = sampled(bnn.BAOAB(gaussian(1.0), step_size=0.1), 1)
    np.testing.assert_array_equal(shared, alone)


def test_settings_of_a_kernel_tell_runs_apart():
    draws = [sampled(bnn.BAOAB(gaussian(1.0), step_size=h)) for h in (0.1, 0.2, 0.1)]
    np.testing.assert_array_equal(draws[0], draws[2])
    assert np.all(draws[0] != draws[1])


def test_a_kernel_of_numpyro_is_initialised_by_a_shared_run():
    for _ in range(2):
        kernel = numpyro.infer.HMC(gaussian(1.0), trajectory_length=0.1, step_size=0.1)
        sampled(kernel)
        assert kernel._sample_fn is not None


def test_few_programs_are_kept(monkeypatch):
    monkeypatch.setattr(program_identity, "_MOST", 3)
    for scale in range(5):
        predicted(by_closure([float(scale)]))
    assert num_programs() == 3


def test_a_program_that_runs_once_is_not_one_that_runs_often():
    """It is compiled without optimisation, which a loop would pay for at every step."""

    def shifted(x):
        return jnp.sin(x) + 0.8125

    x = jnp.arange(3.0)
    with separate_programs():
        programs = [Program(shifted, runs_once=once) for once in (True, False, True)]
        values = [program(x) for program in programs]
    once, often, again = (list(program._executables.values()) for program in programs)
    assert once == again != often
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)
