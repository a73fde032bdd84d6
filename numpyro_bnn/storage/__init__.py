"""What lies on disk: checkpoints that continue bit for bit, and draws in zarr.

``run_identity.py`` says in plain text what makes two runs the same run; ``checkpoints.py`` keeps
states and the start, ``draw_store.py`` the draws, in chunks with checksums (``chunk_files.py``).
Nothing here is ever unpickled.
"""
