"""R-hat and effective sample size of all scalars at once, equal to ArviZ's, in bounded memory.

``rhat.py`` has the functions that users call, then what computes them some scalars at a time.
"""
