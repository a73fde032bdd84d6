"""Public types are types, and public things are described: shares of the package, counted in its source.

Public is what has no leading underscore: functions and classes of a module, methods and fields of such a
class. Parameters of ``__init__`` and ``__call__`` count too; these two are described by their class.
"""

import ast
import doctest
import importlib
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from architecture import FILES, room_of, tree_of

import numpyro_bnn

MOST_ANY = 0.05
LEAST_DESCRIBED = 0.97
# Types that may hold `Any` at the top of a file. A pytree of arrays has no other type in JAX.
ALIASES = {"PyTree", "Functions", "Known", "Values"}
BY_THEIR_CLASS = ("__init__", "__call__")


def trees():
    """The parsed sources of the package with their names."""
    return [(name, tree_of(path)) for name, path in FILES.items()]


def names_in(annotation):
    """Names in a type, those inside of quotes too; of `typing.Any` the last part."""
    nodes = list(ast.walk(annotation))
    texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    names = {word for text in texts for word in re.findall(r"\w+", text)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def public(body, prefix=""):
    """Public classes, functions, methods and fields with their dotted names."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            yield from public(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            marks = map(ast.unparse, node.decorator_list)
            if "overload" not in marks and (node.name[0] != "_" or node.name in BY_THEIR_CLASS):
                yield f"{prefix}{node.name}", node
        elif prefix and isinstance(node, ast.AnnAssign):
            yield f"{prefix}{ast.unparse(node.target)}", node


def annotations(tree):
    """Types of all public parameters, results and fields, by their names in words."""
    for name, node in public(tree.body):
        if isinstance(node, ast.AnnAssign):
            yield name, node.annotation
        elif isinstance(node, ast.FunctionDef):
            given = node.args
            several = [one for one in (given.vararg, given.kwarg) if one is not None]
            for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several):
                if each.annotation is not None:
                    yield f"{name}({each.arg})", each.annotation
            if node.returns is not None:
                yield f"{name} ->", node.returns


def described(tree):
    """Whether each public class, function and method has a docstring."""
    for name, node in public(tree.body):
        if not isinstance(node, ast.AnnAssign) and name.split(".")[-1] not in BY_THEIR_CLASS:
            yield name, bool(ast.get_docstring(node))


def worst(places):
    """Files with most of these places, and the first of them."""
    counts = Counter(name for name, _ in places).most_common(8)
    return "\n".join([", ".join(f"{name} ({n})" for name, n in counts), *map(str, places[:40])])


def test_public_annotations_are_types():
    found = [(name, *one) for name, tree in trees() for one in annotations(tree)]
    bad = [(name, what) for name, what, kind in found if "Any" in names_in(kind)]
    assert len(bad) / len(found) <= MOST_ANY, worst(bad)


def test_few_names_stand_for_any():
    for name, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if "Any" in names_in(node.value):
                    assert ast.unparse(target) in ALIASES, name


def test_public_things_have_docstrings():
    found = [(name, *one) for name, tree in trees() for one in described(tree)]
    missing = [(name, what) for name, what, has_docstring in found if not has_docstring]
    assert 1 - len(missing) / len(found) >= LEAST_DESCRIBED, worst(missing)


@pytest.mark.parametrize("room", ["posterior", "diagnostics", "workflow"])
def test_a_run_has_one_type(room):
    """An argument `run` is whatever holds draws: an MCMC, a fit, an estimator, draws by site."""
    files = [tree for name, tree in trees() if room_of(name) == room]
    taken = [one for tree in files for one in annotations(tree) if one[0].endswith("(run)")]
    assert taken
    other = [what for what, kind in taken if "Run" not in names_in(kind)]
    assert not other, f"write Run of posterior/draws.py: {other}"


SOURCE = '''
def plain(x: Any, *args: Any, y: int = 0, **kwargs: "list[Any]") -> None: ...
def other(x: PyTree, y: "Known | None") -> "Any | None": ...
def _private(x: Any) -> Any: ...

class Public:
    """Described."""
    field: tuple[typing.Any, ...]
    sound: int
    def __init__(self, x: Any) -> None: ...
    def bare(self) -> int: ...
    def _private(self, x: Any) -> None: ...
'''


def test_every_kind_of_any_and_what_has_no_docstring_are_named():
    tree = ast.parse(SOURCE)
    bad = [what for what, kind in annotations(tree) if "Any" in names_in(kind)]
    wanted = ["plain(x)", "plain(args)", "plain(kwargs)"]
    wanted += ["other ->", "Public.field", "Public.__init__(x)"]
    assert bad == wanted
    missing = [what for what, has_docstring in described(tree) if not has_docstring]
    assert missing == ["plain", "other", "Public.bare"]


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


NAMES = {
    "": """
        AMAGOLD BAOAB BNNClassifier BNNRegressor Draws GGMC MALA MAMS MCLMC MCMC MLP OnHost
        PSGLD ParallelTempering
        PrecisionGibbs RandomWalk SGHMC SGLD SGMCMC SGNHT WindowedHMC average cache calibrate
        check_fit classification
        compare constant_sgd deep_ensemble describe diagnose diagnostics export fit from_inference_data
        from_params gradients laplace likelihoods load map_estimate mean_field moves neal noisy_inputs
        optimize parameterize plots potential_of preconditioners predict prior_predictive
        priors random_module randomized_map references regression save schedules scores second_opinion
        stack stacking_weights swag thin to_inference_data to_params update without
    """,
    "diagnostics": """
        HiddenLayer QuantileDifference Relabelling
        Report RhatTable
        SecondOpinion Summary VarianceParts align compare_draws
        diagnose diagnose_draws ebfmi ess find_hidden_layers
        mcse_mean nested_rhat rhat summarize variance_parts
    """,
    "likelihoods": """
        Precision ReadyModel Standardization bernoulli categorical classification gaussian
        heteroscedastic regression student_t survival
    """,
    "plots": """
        PALETTE plot_decision_boundary plot_density_surface
        plot_layer_temperature plot_pit plot_predictive_band plot_reliability plot_rhat
        plot_score_against_time plot_temperature plot_trace
    """,
    "priors": """
        ByPath FanIn FromFunction Hierarchical Horseshoe Laplace Normal Prior StudentT
        pretrained
    """,
    "scores": """
        PairedDifference Reliability Uncertainty accuracy agreement brier coverage crps
        entropy expected_calibration_error lppd ood_auroc
        paired_difference pit reliability rmse standard_error total_variation uncertainty
        wasserstein
    """,
    "references": """
        Differences Grade Quantities Reference grade load names
    """,
    "gradients": """
        control_variate full minibatch svrg
    """,
    "preconditioners": """
        diagonal from_warmup given_precisions identity rmsprop
    """,
    "schedules": """
        cyclical polynomial
    """,
    "moves": """
        Bound Interleaved Move OutputLayerGibbs PrecisionRedraw RidgeScaling UnitRefresh UnitRescaling
    """,
}
ALL = [(module, name) for module, names in NAMES.items() for name in names.split()]


# Libraries of different ages deprecate each other's functions while they are imported.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("module", "name"), ALL)
def test_a_public_name_is_where_it_was(module, name):
    root = import_module("numpyro_bnn")
    assert getattr(getattr(root, module) if module else root, name).__class__


def test_moves_are_imported_by_their_short_name():
    from numpyro_bnn.moves import Interleaved, RidgeScaling

    assert Interleaved.__module__.startswith("numpyro_bnn.samplers.gibbs")
    assert RidgeScaling.__module__.startswith("numpyro_bnn.samplers.gibbs")
