"""Draws after a run: predictions, averages, stacking, files and ArviZ.

:class:`~numpyro_bnn.Draws` is the type that every method returns; :func:`~numpyro_bnn.predict` gives the
predictions of each draw, in bounded memory. The only room that imports ArviZ. Begin with ``draws.py`` and
``predictions.py``.
"""
