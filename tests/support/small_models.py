"""Models of a few latent numbers, or of a network, and one target a row."""

import numpyro

import numpyro_bnn as bnn


def row_model(distribution, plate="data", **priors):
    """A model `(x, y=None)`: latent sites with these priors, and targets with `distribution(x, **sites)`."""

    def model(x, y=None):
        sites = {name: numpyro.sample(name, prior) for name, prior in priors.items()}
        with numpyro.plate(plate, x.shape[0]):
            numpyro.sample("y", distribution(x, **sites), obs=y)

    return model


def network_model(module, prior, likelihood=bnn.likelihoods.gaussian, **options):
    """A model `(x, y=None)`: a likelihood of what a network under a prior gives."""

    def model(x, y=None):
        net = bnn.random_module("net", module, prior, x[:1])
        likelihood(net, y, x=x, **options)

    return model
