"""What tests of devices and of processes sample: 41 rows, which no number of devices divides."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC

import numpyro_bnn as bnn

N = 41
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] + 0.5 * RNG.normal(size=N)).astype(np.float32)
FIXED = {"trajectory_length": None, "adapt_step_size": False, "adapt_mass_matrix": False}
# float32: what another order of adding 41 terms changes, over a few steps.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def model(x, y=None):
    # With an intercept, so that a padded row of zeros would count.
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1] + 1]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(jnp.tanh(rows @ w[1:] + w[0]), 0.5), obs=target)


def baoab(**gradient):
    return bnn.BAOAB(model, step_size=0.01, **gradient)


KERNELS = {
    "HMC": lambda: HMC(model, step_size=0.05, num_steps=3, **FIXED),
    "BAOAB": lambda: baoab(batch_size=10),
    "odd batches": lambda: baoab(batch_size=9),
    "blocks": lambda: bnn.SGLD(
        model, step_size=0.001, gradient=bnn.gradients.minibatch(1, "blocks")
    ),
    "control variate": lambda: baoab(gradient=bnn.gradients.control_variate(8, chunk_size=10)),
}


def mesh_of(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


def sampler(name, mesh=None, num_chains=2, **settings):
    return bnn.MCMC(
        KERNELS[name](),
        num_warmup=2,
        num_samples=6,
        num_chains=num_chains,
        mesh=mesh,
        progress_bar=False,
        **settings,
    )


def drawn(mcmc):
    return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])
