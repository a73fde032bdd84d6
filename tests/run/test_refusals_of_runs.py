"""Bad inputs of runs: what users in a hurry give to fits and predictions, and what comes back."""

import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS
from refused_calls import (
    KEY,
    X,
    Y,
    line,
    mcmc,
    normal,
    outer_product,
    predicted,
    regression,
    subsampling,
    summed,
)

import numpyro_bnn as bnn

# name: (call, type of the error, what the message says)
BAD = {
    # -- fitting
    "a number as key": (
        lambda: bnn.optimize(regression(), 0, X, Y),
        TypeError,
        r"such as `jax\.random\.key\(0\)`, got 0",
    ),
    "the key forgotten": (
        lambda: mcmc(regression()).run(X, Y),
        TypeError,
        r"got an array of shape \(5, 3\)\. The key comes before",
    ),
    "no chains to optimise": (
        lambda: bnn.optimize(regression(), KEY, X, Y, num_chains=0),
        ValueError,
        "num_chains must be a positive integer, got 0",
    ),
    "steps below zero": (
        lambda: bnn.optimize(regression(), KEY, X, Y, num_steps=-1),
        ValueError,
        "num_steps must not be negative, got -1",
    ),
    "a minibatch larger than the data": (
        lambda: bnn.optimize(regression(), KEY, X, Y, batch_size=50),
        ValueError,
        "batch_size=50 is larger than the 5 rows of the plate 'data'",
    ),
    "minibatches without a plate": (
        lambda: bnn.optimize(outer_product, KEY, X, Y[:, None], batch_size=2),
        ValueError,
        "this model has none. Inside `with numpyro.plate",
    ),
    "minibatches of a sum": (
        lambda: bnn.optimize(summed, KEY, X, Y, batch_size=2),
        ValueError,
        "A likelihood summed into one factor would count 5 times",
    ),
    "a network for the model of a kernel": (
        lambda: bnn.BAOAB(nets.MLP(), step_size=0.1),
        TypeError,
        r"Expected a NumPyro model, got the network MLP, .* `bnn.regression\(MLP\(…\), prior\)`",
    ),
    "a network for the model of a kernel of NumPyro": (
        lambda: bnn.MCMC(NUTS(nets.MLP()), num_warmup=1, num_samples=1),
        TypeError,
        "Expected a NumPyro model, got the network MLP",
    ),
    "a network for Neal's scheme": (
        lambda: bnn.neal(nets.MLP()),
        TypeError,
        "Expected a NumPyro model, got the network MLP",
    ),
    "a network to temper": (
        lambda: bnn.MCMC(bnn.ParallelTempering(nets.MLP()), num_warmup=1, num_samples=1),
        TypeError,
        "Expected a NumPyro model, got the network MLP",
    ),
    "a model for a kernel": (
        lambda: bnn.MCMC(regression(), num_warmup=1, num_samples=1),
        TypeError,
        "Wrap the model in a kernel first",
    ),
    "no chains": (
        lambda: mcmc(regression(), num_chains=0),
        ValueError,
        "num_chains must be a positive integer, got 0",
    ),
    "HMC over a model that subsamples": (
        lambda: mcmc(subsampling).run(KEY, X, Y),
        ValueError,
        r"'data' subsamples 2 of 5 rows.*Remove `subsample_size=`",
    ),
    "starts for one chain of two": (
        lambda: mcmc(normal, num_chains=2).run(KEY, X, Y, init_params={"w": jnp.zeros(1)}),
        ValueError,
        r"leading axis of num_chains=2.*`bnn\.optimize",
    ),
    "starts of another network": (
        lambda: mcmc(normal).run(KEY, X, Y, init_params=bnn.from_params({"w": jnp.zeros(1)})),
        ValueError,
        r"lack the sites \['w'\] and give the unknown sites \['net/w'\]",
    ),
    "an argument that is no array": (
        lambda: mcmc(lambda words: numpyro.sample("w", dist.Normal())).run(KEY, {1, 2}),
        TypeError,
        "must be arrays or hashable constants.*unhashable type: 'set'",
    ),
    # -- predicting
    "draws without a model": (
        lambda: bnn.predict(None, {"w": X}, X),
        ValueError,
        "carry no model; pass it as the first argument",
    ),
    "a run that did not run": (
        lambda: bnn.predict(None, mcmc(summed), X),
        ValueError,
        "has no draws yet; call `run` first",
    ),
    "no draws at all": (
        lambda: bnn.predict(summed, 3, X),
        TypeError,
        "got function, int and ndarray as model, samples and x. Write `predict",
    ),
    "a model that wants targets": (
        lambda: bnn.predict(summed, {"w": Y}, X),
        TypeError,
        r"give it the signature `def model\(x, y=None\)`",
    ),
    "draws of one site only": (
        lambda: bnn.predict(regression(X, Y), {"net/Dense_0.bias": jnp.zeros((4, 1))}, X),
        ValueError,
        r"'y'\] have no draws, so which is the target\?",
    ),
    "draws of another shape": (
        lambda: bnn.predict(line, {"w": np.zeros(())}, X, site="y"),
        ValueError,
        r"leading axes \(draw,\) or \(chain, draw\)",
    ),
    "no rows": (
        lambda: bnn.predict(summed, {"w": Y}, X[:0]),
        ValueError,
        "positive number of rows",
    ),
    "rows none at a time": (
        lambda: bnn.predict(summed, {"w": Y}, X, batch_size=0),
        ValueError,
        "batch_size must be a positive integer, got 0",
    ),
    "a target there is not": (
        lambda: bnn.predict(line, {"w": Y}, X, site="z"),
        ValueError,
        "no sample site named 'z'",
    ),
    "scores of a column": (
        lambda: predicted(Y[:, None]),
        ValueError,
        r"y has shape \(5, 1\), but the predictions are for targets of shape \(5,\)",
    ),
    "no prior draws": (
        lambda: bnn.prior_predictive(summed, KEY, X, 0),
        ValueError,
        "num_samples must be a positive integer, got 0",
    ),
    "a file of a run that did not run": (
        lambda: bnn.save(bnn.MCMC(NUTS(summed), num_warmup=1, num_samples=1), "nowhere"),
        ValueError,
        "save: the MCMC has no draws yet",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_input_is_answered_with_what_to_do(name):
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=f"(?s){message}"):
        call()
