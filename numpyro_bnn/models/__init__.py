"""Flax networks as NumPyro models; the only room that imports Flax.

:func:`numpyro_bnn.random_module` samples every parameter of a linen or NNX module and returns the
network with those weights; ``ready.py`` has the complete models ``regression`` and
``classification``, which standardise their data. Begin with ``random_module.py``.
"""
