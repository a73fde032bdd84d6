"""Draws after a run: predictions, averages, stacking, files and ArviZ.

:class:`~numpyro_bnn.Draws` is what every method returns; :func:`~numpyro_bnn.predict` gives what
each draw predicts, in bounded memory. The one room that knows ArviZ. Begin with ``draws.py`` and
``predictions.py``.
"""
