"""Distributions that NumPyro lacks, and functions of its own distributions that it lacks.

:mod:`~numpyro_bnn.distributions.stable_densities` has densities that keep their digits, and Gamma draws
that are safe at tiny shapes; :mod:`~numpyro_bnn.distributions.generalized_inverse_gaussian` draws a precision
whose weights are t distributed or which has a level above;
:mod:`~numpyro_bnn.distributions.linear_gaussian` is the distribution of targets whose mean is linear in
Gaussian weights, with these integrated out; :mod:`~numpyro_bnn.distributions.polya_gamma` draws what makes
logistic targets Gaussian. :mod:`~numpyro_bnn.distributions.distribution_functions` has distribution functions
of targets, :mod:`~numpyro_bnn.distributions.unwrap` removes wrappers. Begin with
``generalized_inverse_gaussian.py``, which the exact Gibbs draws use.
"""
