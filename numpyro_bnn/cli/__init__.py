"""The command line ``python -m numpyro_bnn``: read a table, fit, report.

``main.py`` reads the options, ``tables.py`` the data, ``job.py`` does the work, ``job_report.py``
writes the report.
"""
