"""Compiled programs: what makes two of them the same, and where they are kept.

``program_identity.py`` reads the text that a function lowers to: equal texts share one executable in this
process, and a stored run goes on only with the text that began it. ``cache`` keeps executables on disk for
the next process.
"""
