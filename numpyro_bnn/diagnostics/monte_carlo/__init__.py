"""How precisely averages of predictions are known, and whether chains agree, in units that matter.

From arrays of draws: :func:`~numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error.monte_carlo_error`
says how far averages are from those of an infinite run,
:func:`~numpyro_bnn.diagnostics.monte_carlo.agreement.agreement` whether chains differ by more than their
own errors, and ``tolerance.py`` what is accepted. Begin with ``mean_errors.py``, on which both rest.
"""
