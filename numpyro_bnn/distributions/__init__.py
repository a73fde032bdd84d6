"""Laws that NumPyro lacks, and how a distribution is unwrapped.

:mod:`~numpyro_bnn.distributions.gamma` draws Gamma variables by their logarithm, safe at tiny
shapes; :mod:`~numpyro_bnn.distributions.generalized_inverse_gaussian` draws the law of a precision
whose weights are t distributed or which has a level above. Begin with the latter: the exact Gibbs
draws rest on it.
"""
