#!/usr/bin/env bash
# NumPyro 0.22.0: `anchor_point` of `SimplexToOrderedTransform` moves the draws and not the density, so MCMC loses it.
#
# Guess, written first: cutpoints that are a Dirichlet through `SimplexToOrderedTransform(2)` are those at 0 moved by 2: with
# two classes the logistic distribution at 2. The log determinant is that of automatic differentiation, NUTS like `sample`.
#
# Seen: the determinant takes the derivative of the logistic function at the cutpoint where it is needed at the cutpoint
# less the anchor. With a flat Dirichlet the density does not depend on the anchor at all: NUTS has the mean 0, `sample` 2.
# With (5, 5) it has the mean 1.65, and the density holds a mass of .51. Without an anchor all is right. No warning, and
# chains agree with one another.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import SimplexToOrderedTransform
from numpyro.infer import MCMC, NUTS

print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")

simplex = jnp.array([0.2, 0.3, 0.1, 0.4])
for anchor, off in ((0.0, 0.0), (2.0, 1.8)):
    move = SimplexToOrderedTransform(anchor)
    here = float(move.log_abs_det_jacobian(simplex, move(simplex)))
    slopes = jax.jacfwd(lambda free, move=move: move(jnp.append(free, 1 - free.sum())))(simplex[:-1])
    right = float(jnp.linalg.slogdet(slopes)[1])
    print(f"anchor {anchor}: log determinant {here:.3f}, by automatic differentiation {right:.3f}")
    assert (abs(here - right) > 0.1) == (anchor != 0), "the log determinant has changed"


def seen(concentration, anchor):
    made = dist.TransformedDistribution(
        dist.Dirichlet(jnp.full(2, concentration)), SimplexToOrderedTransform(anchor)
    )
    drawn = np.asarray(made.sample(jax.random.key(0), (100_000,)))
    mcmc = MCMC(
        NUTS(lambda: numpyro.sample("cut", made)),
        num_warmup=1000, num_samples=5000, num_chains=2, chain_method="sequential", progress_bar=False,
    )
    mcmc.run(jax.random.key(1))
    by_chain = np.asarray(mcmc.get_samples(group_by_chain=True)["cut"])[..., 0]
    grid = np.linspace(-12, 12, 4801)
    mass = np.exp(np.asarray(made.log_prob(grid[:, None]))).sum() * (grid[1] - grid[0])
    print(f"Dirichlet({concentration:.0f}, {concentration:.0f}), anchor {anchor}: "
          f"sample {drawn.mean():.2f} ± {drawn.std():.2f}, NUTS {by_chain.mean():.2f} ± {by_chain.std():.2f} "
          f"(chains {by_chain.mean(1).round(2)}), mass {mass:.3f}")
    return drawn.mean(), by_chain.mean(), mass


_, nuts, mass = seen(1.0, 0.0)
np.testing.assert_allclose([nuts, mass], [0, 1], atol=0.15)
drawn, nuts, _ = seen(1.0, 2.0)
np.testing.assert_allclose([drawn, nuts], [2, 0], atol=0.15, err_msg="NUTS knows the anchor now")
drawn, nuts, mass = seen(5.0, 2.0)
np.testing.assert_allclose([drawn, nuts, mass], [2, 1.65, 0.507], atol=0.05, err_msg="NUTS knows the anchor now")
PYTHON
