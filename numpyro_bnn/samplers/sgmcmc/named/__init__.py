"""The samplers that users name: each chooses ingredients of :class:`~numpyro_bnn.SGMCMC`.

Langevin and momentum methods (``SGLD`` to ``RandomWalk``), microcanonical ones (``MCLMC``,
``MAMS``) and Neal's ``WindowedHMC``.
"""
