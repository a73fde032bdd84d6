"""A NumPyro model as an energy over unconstrained values, on all rows or on a minibatch.

:class:`~numpyro_bnn.potential.potential.Potential` is the joint between models and samplers:
kernels, optimisers and diagnostics take one and know nothing of models. ``structure.py`` finds out
by an abstract trace what a model consists of, and refuses what would be silently wrong. Begin with
``potential.py``.
"""
