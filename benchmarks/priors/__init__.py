"""Claims on priors: which scale, whether hierarchies help, what evidence, temperature and width tell.

Begin reading with :mod:`~benchmarks.priors.hierarchy_helps`.
"""
