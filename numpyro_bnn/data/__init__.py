"""What users hand in, before it reaches a device: tables, lists, units, data larger than memory.

``arguments.py`` makes arrays of what is numeric and calls a ready model's own preparation;
``units.py`` standardises on the host in double precision and refuses what a number type would lose;
:class:`~numpyro_bnn.OnHost` wraps data that are read a minibatch at a time.
"""
