"""Claims on long and large runs: they survive, cost no memory, and use many devices and processes.

A run that is killed goes on to the same draws (:mod:`~benchmarks.large_runs.kill_and_resume`), draws
are streamed to disk (:mod:`~benchmarks.large_runs.streaming`), more devices make it faster
(:mod:`~benchmarks.large_runs.scaling`). :mod:`~benchmarks.large_runs.distributed` is the program that
the launch files for SLURM and Kubernetes start.
"""
