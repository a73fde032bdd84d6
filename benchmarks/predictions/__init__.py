"""Claims on predictions: what averaging over a posterior adds to, or takes from, a point estimate.

On tables (:mod:`~benchmarks.predictions.tabular`, where to begin reading, and beside other packages
:mod:`~benchmarks.predictions.against_boosting`), in the gap of a regression,
at a class boundary, on corrupted and on foreign images; and whether descent or ensembles do as well.
"""
