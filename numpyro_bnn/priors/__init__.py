"""Priors over the weights of a network, as rules ``(path, shape) -> Distribution``.

Give one to :func:`numpyro_bnn.random_module`. :class:`ByPath` combines several by glob patterns
over the dotted parameter paths; :class:`Hierarchical` and :class:`Horseshoe` bring scales of their
own, which are sampled with the weights. Begin with ``base.py`` (the interface of a rule), then
``independent.py``; ``hierarchical.py`` holds Neal's hierarchy and the handler of its coordinates,
:func:`numpyro_bnn.parameterize`, ``precision_conditionals.py`` the conditional distributions of precisions.
"""

from numpyro_bnn.priors.base import FromFunction, Prior
from numpyro_bnn.priors.hierarchical import Hierarchical, Horseshoe
from numpyro_bnn.priors.independent import ByPath, FanIn, Laplace, Normal, StudentT, pretrained

__all__ = [
    "ByPath",
    "FanIn",
    "FromFunction",
    "Hierarchical",
    "Horseshoe",
    "Laplace",
    "Normal",
    "Prior",
    "StudentT",
    "pretrained",
]
