"""Runs chains in compiled programs, from their start or from a checkpoint, and collects their draws.

:class:`numpyro_bnn.MCMC` extends NumPyro's ``MCMC``: its programs are compiled once, and it refuses set-ups
whose results would be silently wrong.
``programs.py`` holds the two compiled programs, ``chain_states.py`` the segments, chain states and draw
buffers, ``sampling.py`` the loop over segments, ``devices.py`` the placement of chains and rows,
``recorder.py`` the writing to disk, ``refusals.py`` the set-ups that are refused. Begin with
``compiled_runs.py``, then ``sampling.py``.
"""
