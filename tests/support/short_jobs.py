"""Jobs of the command line that end with their first few draws, by a time limit that is over."""

import pytest

from numpyro_bnn.cli.main import main
from numpyro_bnn.workflow import fit, until


def main_in_short(arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit.TimeLimit, "left", 3600.0)
        patch.setattr(until.UntilKnown, "is_late", lambda judge: True)
        return main(arguments)
