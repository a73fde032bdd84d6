"""An estimator that is fitted in a second: few draws of a small network, and the rows of all its tests.

A fit of as many rows, columns and outputs with these settings has the programs of the others.
"""

import numpy as np

import numpyro_bnn as bnn

SETTINGS = {
    "hidden": (3,),
    "prior": bnn.priors.FanIn(),
    "kernel": "baoab",
    "num_chains": 1,
    "num_warmup": 20,
    "num_samples": 20,
    "thinning": 5,
    "random_state": 0,
}
_RNG = np.random.default_rng(0)
X = _RNG.normal(3.0, 2.0, (40, 2))
Y = 10 * X[:, 0] - 5 * X[:, 1] + 100 + _RNG.normal(size=40)
TEXT = np.where(np.median(Y) < Y, "high", "low")
