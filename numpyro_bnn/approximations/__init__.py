"""Approximations of the posterior by optimisation: modes, ensembles, and Gaussians around them.

Ensembles, SGD iterates, Laplace and mean field all return :class:`~numpyro_bnn.Draws`, like a
sampler. They share ``member_optimizer.py``, which optimises many members at once, on the energy
with hierarchical precisions integrated out (``marginal_energy.py``). Begin with ``modes.py``.
"""
