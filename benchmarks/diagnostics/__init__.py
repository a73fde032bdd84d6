"""Claims on the verdict: whether its errors are true, and how often it faults chains that agree.

:mod:`~benchmarks.diagnostics.verdict_calibration` judges draws whose distribution is known, many times.
"""
