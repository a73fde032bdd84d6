"""Runs that share no compiled program with what is outside of a context, before, during or after it."""

from functools import partial
from unittest.mock import patch

from numpyro_bnn.compilation import program_identity

separate_programs = partial(patch.dict, program_identity.traced_once, clear=True)
