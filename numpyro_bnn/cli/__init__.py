"""The command line ``python -m numpyro_bnn``: read a table, fit, report, predict new rows.

``main.py`` reads the options, ``tables.py`` the data and what its columns become. ``job.py`` fits and scores,
``job_report.py`` writes the page, ``saved_fit.py`` reads a fit and predicts with it. Begin with ``main.py``.
"""
