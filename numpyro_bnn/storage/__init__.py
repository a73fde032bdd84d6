"""Files of a run: checkpoints, from which it continues bit for bit, and draws in zarr stores.

``checkpoints.py`` stores chain states and how the run began, ``draw_store.py`` stores the draws, in chunks
with checksums (``stored_array.py``). ``same_run.py`` compares settings, data, libraries and the program of a
stored run with those of the run that would continue it. Begin with ``checkpoints.py``. Nothing here is ever
unpickled.
"""
