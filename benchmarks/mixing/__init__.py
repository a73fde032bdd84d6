"""Claims on samplers: which one mixes best, whether it is right, and whether a run has converged.

Samplers against each other (:mod:`~benchmarks.mixing.which_sampler`, where to begin reading), against
long NUTS or HMC, and against BlackJAX; how far hard posteriors get; and convergence of functions
against that of weights.
"""
