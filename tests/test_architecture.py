"""Rooms import in one way, files inside the large ones too; heavy libraries are imported in one room."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

import architecture
import pytest
from architecture import DOORS, FILES, imports, own_imports, room_of, tree_of

import numpyro_bnn

# Six layers, the lowest first. A room imports from the layers below its own, and inside of its own from
# rooms before it. A room that moves is a decision: say why in the commit.
LAYERS = (
    "distributions compilation data",
    "priors scores likelihoods storage models potential",
    "samplers samplers.sgmcmc samplers.gibbs samplers.tempering",
    "run posterior approximations",
    "diagnostics.convergence diagnostics.monte_carlo diagnostics plots",
    "fit_check workflow references cli",
)
ORDER = [room for layer in LAYERS for room in layer.split()]
HOME = {"flax": "models", "arviz": "posterior", "equinox": "models", "matfree": "approximations"}


def test_rooms_import_from_layers_below():
    found = architecture.edges()
    assert set(found) == set(ORDER), "say in LAYERS where a new room belongs"
    for room, others in found.items():
        below = ORDER[: ORDER.index(room)]
        upward = sorted(o for o in others if not o.startswith("_") and o not in below)
        assert not upward, f"the room {room} imports from {upward}, which stand above it in LAYERS"


def test_no_file_imports_itself_through_others():
    graph = {name: set(own_imports(name)) for name in FILES if name not in DOORS}
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("priors.base") < order.index("potential.potential") < order.index("cli.main")


@pytest.mark.parametrize(
    "name", [n for n in FILES if FILES[n].name == "__init__.py" and n != "__init__"]
)
def test_a_room_says_what_it_is_for(name):
    said = ast.get_docstring(tree_of(FILES[name])) or ""
    assert said.count(". ") + said.count(".\n") + said.endswith(".") >= 2, (
        f"{name}: two to five sentences"
    )


def test_the_picture_is_current():
    drawn = architecture.PICTURE.read_text(encoding="utf-8")
    assert drawn == architecture.picture(), "draw it again: python tests/support/architecture.py"


@pytest.mark.parametrize("library", HOME)
def test_one_room_knows_the_library(library):
    users = {
        room_of(name)
        for name in FILES
        if library in {imported.split(".")[0] for imported in imports(FILES[name])}
    }
    assert users == {HOME[library]}


HEAVY = ["flax", "equinox", "arviz", "matplotlib", "sklearn", "xarray", "rich"]


def test_what_is_used_first_imports_no_heavy_library():
    """By what files import outside of their functions; in a new process once a week."""
    first = (numpyro_bnn._ORIGIN["MCMC"], "numpyro_bnn.priors", numpyro_bnn._ORIGIN["potential_of"])
    files = ["__init__", *(name.removeprefix("numpyro_bnn.") for name in first)]
    for name in files:
        files += sorted({*own_imports(name, at_once=True)} - {*files})
        libraries = {imported.split(".")[0] for imported in imports(FILES[name], at_once=True)}
        assert not libraries & {*HEAVY}, name
    assert len(files) > 30


def test_importing_costs_nothing_beyond_jax_and_numpyro():
    program = (
        "import sys, numpyro_bnn; numpyro_bnn.MCMC; numpyro_bnn.priors; numpyro_bnn.potential_of;"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


# Libraries of different ages deprecate each other's functions while they are imported.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", numpyro_bnn.__all__)
def test_every_public_name_is_there(name):
    value = getattr(numpyro_bnn, name)
    assert name in dir(numpyro_bnn)
    assert value.__doc__


def test_another_name_is_not():
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = numpyro_bnn.optimise
