"""Exact draws of hierarchical precisions, and exact moves in directions where gradient samplers are slow.

:class:`~numpyro_bnn.PrecisionGibbs` is a block of NumPyro's ``Gibbs``; :func:`~numpyro_bnn.neal`
builds Neal's whole scheme; ``moves.py`` has scalings that leave prior or network unchanged, and a
kernel that takes them after each step of another. Begin with ``precision_gibbs.py``.
"""
