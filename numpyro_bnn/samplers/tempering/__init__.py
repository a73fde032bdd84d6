"""Parallel tempering from the prior to the posterior, with the log evidence.

:class:`~numpyro_bnn.ParallelTempering` runs one copy of the chain at each power of the likelihood
(a rung), and lets neighbours change places. ``ladder.py`` has powers, swaps and their tuning,
``rung_kernels.py`` what moves a rung, ``evidence.py`` the stepping stones. Begin with ``kernel.py``.
"""
