"""Claims on the judge: whether its errors are true, and how often it convicts chains that agree.

:mod:`~benchmarks.diagnostics.verdict_calibration` judges draws whose distribution is known, many times.
"""
