"""What the studies of more than one theme share.

:mod:`~benchmarks._shared.study` has the options, stored files and tables that make a program a
study. Beside it are the data sets, runs of all chains at once with a verdict on their convergence, a
network for many small chains and posteriors of MNIST. What one theme alone needs lies in its folder.
"""
