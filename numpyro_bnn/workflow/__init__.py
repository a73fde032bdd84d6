"""A whole analysis in one call: fit a model, compare methods, check a run with a second sampler.

:func:`numpyro_bnn.fit` optimises an ensemble, runs a chain from each member, diagnoses and combines them;
:func:`numpyro_bnn.compare` puts methods beside a reference in one table;
:func:`numpyro_bnn.second_opinion` samples the same model in another way. Begin with ``fit.py``.
"""
