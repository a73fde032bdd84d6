"""Stochastic-gradient MCMC: dynamics, gradients, preconditioners and schedules in one kernel.

:class:`~numpyro_bnn.SGMCMC` combines five ingredients in a step: dynamics (how position and
momentum move), a gradient estimator, a preconditioner, a step size and a temperature; a sixth, in
``tuning.py``, learns step size and friction in warm-up. Named samplers (``named.py``) only choose them.
Metropolis rules are in ``accept.py``. Begin with ``kernel.py``, then read ``dynamics/methods.py``.
"""
