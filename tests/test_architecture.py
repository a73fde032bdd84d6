"""Imports point downward, heavy libraries are imported in one place and when used."""

import ast
import subprocess
import sys
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import numpyro_bnn

ROOT = Path(numpyro_bnn.__file__).parent

# Lower rows first. A file imports from lower rows, or from its own without going in circles.
ROWS = """
checks rules processes placement host_rows summed inverse_gaussian gamma
levels
scale_mixture
hierarchy observations
parameters structure
priors families hazards modules potential site_dims linearization
ready start chains draws stepping_stones
marginal perturbation ladder redraw
rung_adaptation
likelihoods sgmcmc sgmcmc.* rung_moves tempering gibbs moves
descent
curvature
faults fingerprint drawfiles
drawstore checkpoints chunked sampling
recording
mcmc optimization approximate iterates gaussian_laplace variational
buffers
rank_loops
time_loops permutation_loops effective_size
predictions score* rhat* sampler_stats modes disagreement symmetry mean_errors
prediction_units tolerance chain_groups
agreement_test monte_carlo_error
report verdict stacking comparison
diagnostics
inference_groups
storage inference_data plots*
tables job* pipeline recipe
__main__
__init__
"""
LAYERS = [row.split() for row in ROWS.split("\n") if row]
HOME = {"flax": "modules", "arviz": "inference_data"}


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(path):
    """Dotted names that a file imports, wherever in it."""
    package = ["numpyro_bnn", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def own_imports(path):
    """The files of this package that a file imports."""
    for name in imports(path):
        head, _, inner = name.partition(".")
        while head == "numpyro_bnn" and inner:
            if inner in FILES:
                yield inner
                break
            inner = inner.rpartition(".")[0]


def layer_of(name):
    rows = [i for i, row in enumerate(LAYERS) if any(fnmatchcase(name, pattern) for pattern in row)]
    assert len(rows) == 1, f"say in one row of ROWS where numpyro_bnn/{name}.py belongs"
    return rows[0]


@pytest.mark.parametrize("name", FILES)
def test_imports_point_downward(name):
    upward = [other for other in own_imports(FILES[name]) if layer_of(other) > layer_of(name)]
    assert not upward, f"{name}.py imports {upward} from a row above its own"


def test_no_file_imports_itself_through_others():
    graph = {name: set(own_imports(path)) for name, path in FILES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("rules") < order.index("priors") < order.index("__init__")


@pytest.mark.parametrize("library", HOME)
def test_one_file_knows_the_library(library):
    users = {
        name
        for name, path in FILES.items()
        if library in {imported.split(".")[0] for imported in imports(path)}
    }
    assert users == {HOME[library]}


def test_importing_costs_nothing_beyond_jax_and_numpyro():
    heavy = ["flax", "arviz", "matplotlib", "sklearn", "xarray", "rich"]
    program = (
        "import sys, numpyro_bnn; numpyro_bnn.MCMC; numpyro_bnn.priors; numpyro_bnn.potential_of;"
        f"print([name for name in {heavy} if name in sys.modules])"
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
