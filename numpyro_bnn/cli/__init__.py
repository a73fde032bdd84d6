"""The command line ``python -m numpyro_bnn``: read a table, fit, report, predict new rows.

``main.py`` reads the options, ``tables.py`` the data, ``job.py`` does the work, ``job_report.py``
writes the files of a report, of which ``page.py`` is the page of HTML; ``saved_fit.py`` reads a fit again
and predicts with it.
"""
