"""The examples in the docstrings of the package are run, each module's by itself."""

import doctest
import importlib
from pathlib import Path

import pytest

import numpyro_bnn

PACKAGE = Path(numpyro_bnn.__file__).parent
WITH_EXAMPLES = [
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    for file in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_give_what_they_say(name, capsys):
    module = importlib.import_module(name)
    # Those that are marked to be skipped count as tried from Python 3.13 on only.
    assert any(found.examples for found in doctest.DocTestFinder().find(module))
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert not found.failed, capsys.readouterr().out
