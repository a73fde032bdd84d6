"""A run: chains through compiled programs, from their start or from a checkpoint, to draws.

:class:`numpyro_bnn.MCMC` is NumPyro's, compiled once, and refusing what would be silently wrong.
``programs.py`` holds the two compiled programs, ``chain_states.py`` the chains during a run,
``plan.py`` how a run is cut, ``devices.py`` where chains and rows are, ``recorder.py`` what goes to
disk. Begin with ``mcmc.py``.
"""
