"""The whole way in one call: fit, compare methods, ask a second sampler.

:func:`numpyro_bnn.fit` optimises an ensemble, samples from each member, judges and combines;
:func:`numpyro_bnn.compare` puts methods beside a reference in one table;
:func:`numpyro_bnn.second_opinion` samples the same model in another way. Begin with ``fit.py``.
"""
