"""What users call: runs, a whole analysis in one call, methods compared, a second sampler.

:class:`numpyro_bnn.MCMC` runs a kernel, for so many draws or until predictions are known;
:func:`numpyro_bnn.fit` optimises an ensemble, runs a chain from each member, diagnoses and combines them;
:func:`numpyro_bnn.compare` puts methods beside a reference in one table;
:func:`numpyro_bnn.second_opinion` samples the same model in another way. Begin with ``mcmc.py`` and
``fit.py``.
"""
