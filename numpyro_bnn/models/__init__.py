"""Flax networks as NumPyro models: the one room that knows Flax.

:func:`numpyro_bnn.random_module` samples every parameter of a linen or NNX module and returns the
network with those weights; ``ready.py`` has the complete models ``regression`` and
``classification``, which keep the units of the data inside. Begin with ``random_module.py``.
"""
