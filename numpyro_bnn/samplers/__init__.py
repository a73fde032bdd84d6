"""Kernels of NumPyro's ``MCMC``: stochastic-gradient and microcanonical, Gibbs, tempering.

``sgmcmc`` joins five ingredients in one kernel, ``gibbs`` draws hierarchical precisions exactly,
``tempering`` moves between the prior and the posterior. ``suspects.py`` decides which chains are left
out, and which are kept and named. Begin with ``sgmcmc/kernel.py``.
"""
