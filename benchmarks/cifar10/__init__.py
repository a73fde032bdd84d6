"""What do samplers, ensembles and Gaussians predict on CIFAR-10, with the ResNet-20 of the HMC study?

One program with commands for the data, the runs, the scores and the costs: ``python -m
benchmarks.cifar10``. Its methods are configurations in :mod:`~benchmarks.cifar10.methods`; begin
reading there. It has not been run at full size.
"""
