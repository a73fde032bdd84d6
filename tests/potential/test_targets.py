"""Targets that would be stretched, counted several times or forgotten are refused by every door."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import AIES, NUTS
from numpyro.infer import MCMC as NumPyroMCMC
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.potential.structure import trace_and_check

KEY = jax.random.key(0)
ROWS = 5
Y = np.arange(float(ROWS))


def observing(distribution, y, plate="data", rows=ROWS):
    """A model that observes `y` under ``distribution(f)``, f being a prediction for every row."""

    def model():
        f = numpyro.sample("w", dist.Normal()) * jnp.ones(rows)
        if plate is None:
            numpyro.sample("y", distribution(f), obs=y)
        else:
            with numpyro.plate(plate, rows):
                numpyro.sample("y", distribution(f), obs=y)

    return model


def normal(f):
    return dist.Normal(f, 1.0)


def column(f):
    return dist.Normal(f[:, None], 1.0)


def event(f):
    return normal(f).to_event(1)


def column_event(f):
    return column(f).to_event(1)


def gaussian_process(f):
    return dist.MultivariateNormal(f, scale_tril=np.eye(ROWS))


STRETCHED = {
    "no values": (lambda f: normal(f[:0]), Y[:0], r"shape \(0,\): there are none"),
    "a column": (normal, Y[:, None], r"\(5, 1\).*shape \(5,\).*`y\.squeeze\(-1\)`"),
    "one value in an array": (normal, Y[:1], r"one value .* with all 5 predictions"),
    "a number": (normal, 3.0, r"shape \(\).*one value .* with all 5 predictions"),
    "a column of predictions": (column, Y, r"`f\.squeeze\(-1\)`"),
    "an event and a column": (column_event, Y, "every value would be compared with every"),
    "a column and an event": (event, Y[:, None], "every value would be compared with every"),
    "another number of rows": (normal, Y[:3], "Give as many targets as inputs"),
    "one-hot labels": (
        lambda f: dist.Bernoulli(logits=f),
        np.eye(5, dtype=int)[:, :4],
        "do not fit",
    ),
}


@pytest.mark.parametrize("plate", ["data", None])
@pytest.mark.parametrize("name", STRETCHED)
def test_a_value_is_never_stretched(name, plate):
    distribution, y, message = STRETCHED[name]
    with pytest.raises(ValueError, match=f"(?s)observed site 'y'.*{message}"):
        trace_and_check(
            observing(
                distribution, y, None if name in ("a column of predictions", "no values") else plate
            ),
            (),
            {},
        )


SUMMED = {
    "an event of all rows": (event, Y, "one event, which would count 5 times"),
    "a process over all rows": (gaussian_process, Y, "one event, which would count 5 times"),
    "the sum of the target": (lambda f: normal(f.sum()), Y.sum(), "with all 5 predictions"),
}


@pytest.mark.parametrize("name", SUMMED)
def test_a_target_that_is_one_event_is_no_target_of_a_plate(name):
    distribution, y, message = SUMMED[name]
    with pytest.raises(ValueError, match=message):
        trace_and_check(observing(distribution, y), (), {})
    trace_and_check(observing(distribution, y, None), (), {})


def factored(log_density, outer=1):
    def model(y):
        each = normal(numpyro.sample("w", dist.Normal())).log_prob(y)
        with numpyro.plate("outer", outer, dim=-2), numpyro.plate("data", len(y), dim=-1):
            numpyro.factor("likelihood", log_density(each))

    return model


@pytest.mark.parametrize(
    ("log_density", "outer", "times"),
    [
        (jnp.sum, 1, 5),
        (lambda each: each.sum(keepdims=True), 1, 5),
        (jnp.sum, 3, 15),
        (lambda each: each, 3, 3),
        (lambda each: each[:, None], 1, 5),
    ],
)
def test_a_factor_counts_once(log_density, outer, times):
    with pytest.raises(ValueError, match=f"factor 'likelihood'.*would count {times} times"):
        trace_and_check(factored(log_density, outer), (Y,), {})


def scanned(y):
    def step(before, row):
        now = numpyro.sample("y", dist.Normal(before, 1.0), obs=row)
        return now, now

    scan(step, numpyro.sample("w", dist.Normal()), y)


def scanned_plate(y):
    def step(before, row):
        with numpyro.plate("series", 3):
            now = numpyro.sample("y", dist.Normal(before, 1.0), obs=row)
        return now, now

    scan(step, numpyro.sample("w", dist.Normal()) * jnp.ones(3), jnp.stack([y, y, y], -1))


def partly_observed(y):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w, 1), obs=y, obs_mask=y > 2)


def weighted(y):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("data", len(y)), handlers.scale(scale=y + 1), handlers.mask(mask=y > 1):
        numpyro.sample("y", dist.Normal(w, 1), obs=y)


def sum_to_zero(y):
    w = numpyro.sample("w", dist.ZeroSumNormal(1.0, (len(y),)))
    numpyro.sample("y", dist.Normal(w, 1).to_event(1), obs=y)


RIGHT = {
    "a value a row": observing(normal, Y),
    "one distribution for all": observing(lambda f: dist.Normal(f[0], 1), Y, None),
    "one distribution for all, in a plate": observing(lambda f: dist.Normal(f[0], 1), Y),
    "one distribution for a table": observing(
        lambda f: dist.Normal(f[0], 1), np.ones((5, 2)), None
    ),
    "an event": observing(event, Y, None),
    "columns": observing(column_event, Y[:, None]),
    "one row": observing(normal, 3.0, None, rows=()),
    "a plate of one row": observing(normal, Y[:1], rows=1),
    "classes": observing(
        lambda f: dist.Categorical(logits=column(f).mean * jnp.ones(3)), Y.astype(int) % 3
    ),
    "a factor a row": partial(factored(lambda each: each), Y),
    "a loop": partial(scanned, Y),
    "a loop over plates": partial(scanned_plate, Y),
    "missing targets": partial(partly_observed, Y),
    "weights and masks": partial(weighted, Y),
    "a sum of zero": partial(sum_to_zero, Y),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_counts_once_is_accepted(name):
    *_, structure = trace_and_check(RIGHT[name], (), {})
    assert structure.observed


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (handlers.scale(scale=np.ones((ROWS, 1))), r"\(5,\), but it is scaled by weights of shape"),
        (handlers.mask(mask=np.ones((ROWS, 1), bool)), "would be compared with every prediction"),
    ],
)
def test_weights_and_masks_are_not_stretched(handler, message):
    def model():
        with handler:
            observing(normal, Y)()

    with pytest.raises(ValueError, match=message):
        trace_and_check(model, (), {})


def test_plates_of_one_row_stretch_nothing():
    def model():
        with numpyro.plate("networks", 1, dim=-2):
            observing(normal, Y)()

    trace_and_check(model, (), {})


line = row_model(lambda x, w: dist.Normal(x @ w, 1.0), w=dist.Normal().expand([2]).to_event(1))


def summed_line(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.factor("y", dist.Normal(x @ w, 1.0).log_prob(y).sum())


X = np.ones((ROWS, 2))
KERNELS = {
    "NUTS": NUTS,
    "AIES": AIES,
    "SGLD": partial(bnn.SGLD, step_size=0.1),
    "BAOAB in minibatches": partial(bnn.BAOAB, step_size=0.1, batch_size=2),
    "MCLMC": bnn.MCLMC,
    "ParallelTempering": bnn.ParallelTempering,
    "NUTS in chunks": NUTS,
}


def run(name, model, *args):
    ensemble = {"num_chains": 4, "chain_method": "vectorized"} if name == "AIES" else {}
    chunks = {"chunk_size": 2} if "chunks" in name else {}
    mcmc = bnn.MCMC(
        KERNELS[name](model), num_warmup=1, num_samples=1, progress_bar=False, **ensemble, **chunks
    )
    mcmc.run(KEY, *args)


DOORS = {name: partial(run, name) for name in KERNELS} | {
    function.__name__: lambda model, *args, function=function: function(
        model, KEY, *args, progress_bar=False
    )
    for function in (
        bnn.optimize,
        bnn.map_estimate,
        bnn.deep_ensemble,
        bnn.randomized_map,
        bnn.mean_field,
        bnn.laplace,
    )
}
DOORS |= {
    "swag": lambda model, *args: bnn.swag(model, KEY, *args, batch_size=2, progress_bar=False),
    "constant_sgd": lambda model, *args: bnn.constant_sgd(
        model, KEY, *args, batch_size=2, progress_bar=False
    ),
    "fit": lambda model, x, y=None: bnn.fit(model, x, y, num_chains=1, progress_bar=False),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_data_that_fit_no_target(door):
    for y, message in [
        (Y[:, None], r"\(5, 1\) but a distribution of shape \(5,\)"),
        (Y[:1], r"one value would be compared with all 5|rows, got \[1, 5\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            DOORS[door](line, X, y)
    with pytest.raises(ValueError, match="would count 5 times"):
        DOORS[door](summed_line, X, Y)
    with pytest.raises(ValueError, match=r"Nothing is observed.*y=None.*\['y'\]"):
        DOORS[door](line, X)
    with pytest.raises(ValueError, match=r"empty.*\(0, 2\)|number of rows, got \[0\]"):
        DOORS[door](line, X[:0], Y[:0])


def test_kernels_of_this_package_refuse_it_in_numpyros_mcmc_too():
    kernel = bnn.SGLD(line, step_size=0.1)
    mcmc = NumPyroMCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match="would be compared with"):
        mcmc.run(KEY, X, Y[:, None])


def test_a_class_that_was_forgotten_is_not_called_a_discrete_latent_site():
    def model(x, y=None):
        logits = x * numpyro.sample("w", dist.Normal().expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    with pytest.raises(ValueError, match="Nothing is observed"):
        run("SGLD", model, X)


def test_a_target_that_reaches_no_site_is_said():
    def model(x, y):
        line(x)

    with pytest.warns(UserWarning, match=r"none of its sites has `obs=`, so that \['y'\]"):
        trace_and_check(model, (X, Y), {})


def test_densities_and_priors_on_purpose_have_nothing_to_observe():
    trace_and_check(lambda: numpyro.sample("w", dist.Normal()), (), {})
    trace_and_check(partial(line, y=None), (X,), {})
    trace_and_check(partial(line, X, None), (), {})


def test_likelihoods_and_ready_models_refuse_no_rows():
    with pytest.raises(ValueError, match=r"regression: x has shape \(0, 2\) and y \(0,\)"):
        bnn.regression(nets.MLP(outputs=1), bnn.priors.Normal(), X[:0], Y[:0])
    with pytest.raises(ValueError, match=r"gaussian: f has shape \(0,\) and no rows"):
        handlers.seed(bnn.likelihoods.gaussian, 0)(jnp.zeros(0), noise=1.0)
    with pytest.raises(ValueError, match=r"empty.*\(0, 2\)"):
        bnn.prior_predictive(line, KEY, X[:0], 2)
    with pytest.raises(ValueError, match=r"empty.*\(0, 2\)"):
        bnn.map_estimate(line, KEY, X, Y, validation=(X[:0], Y[:0]), progress_bar=False)
