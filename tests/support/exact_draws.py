"""Exact draws of everything that a model draws, which tests of joint distributions begin at."""

from numpyro import handlers


def exact_draw(model, key, *args):
    """Values of all latent sites by name, that of the target ``y``, and all sites of the trace."""
    sites = handlers.trace(handlers.seed(model, key)).get_trace(*args)
    values = {n: s["value"] for n, s in sites.items() if s["type"] == "sample"}
    y = values.pop("y")
    return values, y, sites
