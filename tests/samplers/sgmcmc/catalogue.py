"""One catalogue of samplers over one small model, for the tests that hold for all of them."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_bnn as bnn
from numpyro_bnn import gradients, preconditioners, schedules

SIZE, BATCH = 12, 4


def columns(y):
    """Rows of two columns: the data plate is second from the right, beside another one."""
    with numpyro.plate("column", 2, dim=-1):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("data", y.shape[0], dim=-2), numpyro.plate("column", 2, dim=-1):
        rows = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=rows)


def model(x, y):
    """Linear regression with an unknown scale, whose support needs a transform.

    Its prior is a distribution whose draws compile fast: those of a gamma distribution take half a second.
    """
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SIZE, 2))
    y = x @ [1.0, -0.5] + 0.7 * rng.normal(size=SIZE)
    return jnp.asarray(x, float), jnp.asarray(y, float)


# Steps for the momentum methods (h), and for the others (epsilon).
H, EPSILON = 0.03, 2e-3

# Name: (class, arguments). Those with "exact" in the name have the target as their distribution.
SAMPLERS = {
    "SGLD": (bnn.SGLD, {"step_size": EPSILON, "batch_size": BATCH}),
    "SGLD polynomial": (
        bnn.SGLD,
        {"step_size": schedules.polynomial(0.02, 5.0, 0.55), "batch_size": BATCH},
    ),
    "SGLD exact": (bnn.SGLD, {"step_size": 0.03, "batch_size": BATCH, "accept": "full"}),
    "SGLD accept=minibatch": (
        bnn.SGLD,
        {"step_size": EPSILON, "batch_size": BATCH, "accept": "minibatch"},
    ),
    "PSGLD": (bnn.PSGLD, {"step_size": 1e-3, "batch_size": BATCH}),
    "PSGLD gamma": (
        bnn.PSGLD,
        {
            "step_size": 1e-3,
            "batch_size": BATCH,
            "preconditioner": preconditioners.rmsprop(gamma_term=True),
        },
    ),
    "SGHMC": (
        bnn.SGHMC,
        {"step_size": H, "batch_size": BATCH, "friction": 3.0, "resample_momentum": 3},
    ),
    "SGHMC cyclical": (
        bnn.SGHMC,
        {"step_size": schedules.cyclical(H, 5, 0.6), "batch_size": BATCH, "friction": 3.0},
    ),
    "SGHMC blocks, noise known": (
        bnn.SGHMC,
        {
            "step_size": H,
            "gradient": gradients.minibatch(BATCH, "blocks"),
            "gradient_noise": 2.0,
            "friction": 3.0,
        },
    ),
    "BAOAB auto from_warmup": (
        bnn.BAOAB,
        {
            "step_size": "auto",
            "batch_size": BATCH,
            "preconditioner": preconditioners.from_warmup(first_window=4),
        },
    ),
    "BAOAB control variate, diagonal": (
        bnn.BAOAB,
        {
            "step_size": H,
            "gradient": gradients.control_variate(BATCH),
            "preconditioner": preconditioners.diagonal(
                {"weights": np.array([0.5, 2.0]), "scale": 0.3}
            ),
        },
    ),
    "BAOAB noise taken off": (
        bnn.BAOAB,
        {"step_size": "auto", "batch_size": BATCH, "gradient_noise": "auto"},
    ),
    "BAOAB svrg": (bnn.BAOAB, {"step_size": H, "gradient": gradients.svrg(BATCH, 4)}),
    "BAOAB full in chunks": (bnn.BAOAB, {"step_size": H, "gradient": gradients.full(5)}),
    "SGNHT": (bnn.SGNHT, {"step_size": H, "batch_size": BATCH, "friction": 2.0}),
    "MALA exact": (
        bnn.MALA,
        {"step_size": "auto", "preconditioner": preconditioners.from_warmup(first_window=4)},
    ),
    "GGMC exact": (bnn.GGMC, {"step_size": 0.06, "batch_size": BATCH, "num_steps": 2}),
    "GGMC exact by rmsprop": (
        bnn.GGMC,
        {"step_size": 0.03, "preconditioner": preconditioners.rmsprop()},
    ),
    "AMAGOLD exact": (bnn.AMAGOLD, {"step_size": 0.05, "batch_size": BATCH, "num_steps": 3}),
    "MCLMC": (bnn.MCLMC, {"step_size": "auto"}),
    "MCLMC minibatch": (bnn.MCLMC, {"step_size": H, "batch_size": BATCH, "friction": 3.0}),
    "MAMS exact": (bnn.MAMS, {"step_size": 0.2, "trajectory_length": 0.4}),
    "WindowedHMC exact": (
        bnn.WindowedHMC,
        {"step_size": 0.2, "num_steps": 5, "window": 2, "persistence": 0.5},
    ),
    "RandomWalk exact": (bnn.RandomWalk, {"step_size": 0.15}),
}


def make(name, target=model, **more):
    kernel, arguments = SAMPLERS[name]
    return kernel(target, **{**arguments, **more})


def one_step(dynamics, state, noises, gradient, settings):
    """A whole step of a method: it advances, the gradient is taken there, and it completes."""
    state = dynamics.advance(state, noises, settings)
    return dynamics.complete(state, gradient(state.position), noises, settings)
