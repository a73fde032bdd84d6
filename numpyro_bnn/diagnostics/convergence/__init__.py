"""R-hat and effective sample size of all scalars at once, equal to ArviZ's, in bounded memory.

``rhat.py`` has the functions that users call; ``ess.py``, ``blocks.py`` and ``compiled_loops.py``
compute them.
"""
