"""Pure functions that move position and momentum; their noise is an argument.

``drift_kick_friction.py`` has the single movements, ``splitting.py`` strings of them (BAOAB, GGMC, SGNHT,
leapfrog), ``methods.py`` the interface of all dynamics and those that are no such string (SGLD, SGHMC,
AMAGOLD), ``isokinetic.py`` motion at constant speed (MCLMC, MAMS).
"""
