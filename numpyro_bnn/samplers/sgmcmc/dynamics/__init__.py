"""Pure functions that move position and momentum; their noise is an argument.

``drift_kick_friction.py`` has the single movements, ``methods.py`` the interface of all dynamics, strings of
movements (BAOAB, GGMC, SGNHT, leapfrog) and methods that are no such string (SGLD, SGHMC, AMAGOLD),
``isokinetic.py`` motion at constant speed (MCLMC, MAMS).
"""
