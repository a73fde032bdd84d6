"""Files of a run: checkpoints, from which it continues bit for bit, and draws in zarr stores.

``checkpoints.py`` stores chain states and how the run began, ``draw_store.py`` stores the draws, in chunks
with checksums (``chunk_files.py``). ``run_identity.py`` describes kernel, model, data and libraries in plain
text, so that only the same run can continue a stored one. ``shared_programs.py`` uses that description too:
calls that are equal by it share their compiled programs. Begin with ``checkpoints.py``.
Nothing here is ever unpickled.
"""
