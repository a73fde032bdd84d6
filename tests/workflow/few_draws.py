"""Settings of an estimator that is fitted in a second: few draws of a small network."""

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
