"""Files of a run: checkpoints, from which it continues bit for bit, and draws in zarr stores.

``checkpoints.py`` keeps chain states and how the run began, ``draw_store.py`` the draws, in chunks with
checksums (``chunk_files.py``). ``run_identity.py`` describes kernel, model, data and libraries in plain
text, so that a run is only continued by the same run; by the same description ``shared_programs.py`` keeps
compiled programs for equal calls. Begin with ``checkpoints.py``.
Nothing here is ever unpickled.
"""
