"""The claim that Radford Neal's own examples have the posteriors that his program finds.

:mod:`~benchmarks.neal.posteriors` has the models and samples them by HMC and Gibbs,
:mod:`~benchmarks.neal.tempering` by parallel tempering; both store rows of one file, which
:mod:`~benchmarks.neal.story` tells. The reference is beside the checkout, in ``../shared/fbm``.
"""
