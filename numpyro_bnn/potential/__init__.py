"""A NumPyro model as an energy over unconstrained values, on all rows or on a minibatch.

:class:`~numpyro_bnn.potential.potential.Potential` is the interface between models and samplers:
kernels, optimisers and diagnostics take one and know nothing of models. ``structure.py`` finds the sites
and plates of a model by an abstract trace, and refuses models that would be silently wrong. Begin with
``potential.py``.
"""
