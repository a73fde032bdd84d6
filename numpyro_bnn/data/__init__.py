"""Prepares data for the device: tables and lists become arrays, and units and large files are taken care of.

``arguments.py`` converts tables and lists to arrays, and lets a ready model standardise its data;
``units.py`` standardises on the host in double precision, and refuses values that the device's number type
cannot tell apart; :class:`~numpyro_bnn.OnHost` wraps data that are read a minibatch at a time.
"""
