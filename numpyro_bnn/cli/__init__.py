"""The command line ``python -m numpyro_bnn``: read a table, fit, report, predict new rows.

``main.py`` reads the options, ``tables.py`` the data: ``csv_reading.py`` the columns of a CSV file,
``columns_to_inputs.py`` makes inputs of a network of them. ``job.py`` fits and scores, ``job_report.py``
writes the files of a report, of which ``page.py`` is the page of HTML; ``saved_fit.py`` reads a fit again
and predicts with it. Begin with ``main.py``.
"""
