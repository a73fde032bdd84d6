"""Pure functions that move position and momentum; their noise is an argument.

``elementary.py`` has the single movements (drift, kick, damping), ``splitting.py`` strings of them
(BAOAB, leapfrog), ``methods.py`` the dynamics of each named sampler, ``isokinetic.py`` motion at
constant speed (MCLMC, MAMS).
"""
