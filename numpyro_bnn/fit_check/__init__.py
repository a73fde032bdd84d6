"""Does the model fit its data, and how well would it predict other rows like them?

Leave-one-out densities by importance sampling with the tails that say whether they may be believed, how
calibrated each row is under the posterior without it, and quantities of the data beside those of data that
the model makes. :func:`numpyro_bnn.check_fit` calls them; begin with ``record.py``.
"""
