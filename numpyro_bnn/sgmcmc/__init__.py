"""Stochastic-gradient MCMC: dynamics, gradients, preconditioners and schedules in one kernel."""
