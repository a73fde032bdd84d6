"""The command line ``python -m numpyro_bnn``: read a table, fit, report, predict new rows.

``main.py`` reads the options, ``tables.py`` the data: ``csv_columns.py`` makes inputs of a network of the
columns of a file. ``job.py`` fits and scores, ``job_report.py`` writes the files of a report, of which
``page.py`` is the page of HTML; ``saved_fit.py`` reads a fit and predicts with it. Begin with ``main.py``.
"""
