"""Claims on seconds and memory of the package: a step, a run, chains on devices, a diagnosis.

Each against the same by hand or by other software, in turns within one process. Begin reading with
:mod:`~benchmarks.speed.sgmcmc_steps`.
"""
