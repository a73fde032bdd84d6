"""Parallel tempering from the prior to the posterior, with the log evidence.

:class:`~numpyro_bnn.ParallelTempering` runs one copy of the chain at each power of the likelihood
(a rung), and lets neighbours change places. ``ladder.py`` has the powers, ``swaps.py`` the swaps,
``rung_kernels.py`` and ``rung_moves.py`` what moves a rung, ``warmup.py`` how rungs are tuned,
``evidence.py`` the stepping stones, ``move_statistics.py`` how much moves change. Begin with ``kernel.py``.
"""
