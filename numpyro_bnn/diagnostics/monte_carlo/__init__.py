"""Monte Carlo errors of averaged predictions and agreement of chains, in the units of predictions.

From arrays of draws: :func:`~numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error.monte_carlo_error`
says how far averages are from those of an infinite run,
:func:`~numpyro_bnn.diagnostics.monte_carlo.agreement.agreement` whether chains differ by more than their
own errors, and ``tolerance.py`` holds the accepted error. Begin with ``mean_errors.py``, on which both rest.
"""
