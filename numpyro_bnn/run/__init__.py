"""A run: chains through compiled programs, from their start or from a checkpoint, to draws.

:class:`numpyro_bnn.MCMC` is NumPyro's, compiled once, and refusing what would be silently wrong.
``programs.py`` holds the two compiled programs, ``chain_states.py`` the chains during a run,
``plan.py`` into which segments it is cut, ``course.py`` the loop over them, ``until.py`` what ends a run
that is judged while it goes on, ``devices.py`` where chains and rows are, ``recorder.py`` what goes
to disk. Begin with ``mcmc.py``, then ``sampling.py``.
"""
