"""Parallel tempering from the prior to the posterior, with the log evidence.

:class:`~numpyro_bnn.ParallelTempering` runs one copy of the chain at each power of the likelihood
(a rung), and lets neighbours change places. ``ladder.py`` has powers and swaps, ``rung_kernels.py`` what
moves a rung, ``warmup.py`` how rungs are tuned, ``evidence.py`` the stepping stones. Begin with
``kernel.py``.
"""
