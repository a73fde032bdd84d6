"""Public types are types, and public things are described: shares of the package, counted in its source."""

import ast
from collections import Counter

import pytest
from architecture import FILES, room_of
from public_code import PYTREE, Annotation, annotations, described, names_for_any, tree_of

MOST_ANY = 0.05
LEAST_DESCRIBED = 0.97


def loose(trees: dict[str, ast.Module]) -> tuple[list[Annotation], int]:
    """Annotations that hold `Any` or an alias of it, and the number of all annotations."""
    means_any = names_for_any(trees)
    found = {name: list(annotations(name, tree)) for name, tree in trees.items()}
    bad = [one for name in trees for one in found[name] if one.names & means_any[name]]
    return bad, sum(map(len, found.values()))


def worst(places: list[str]) -> str:
    """The files with most of these places."""
    counts = Counter(place.rpartition(":")[0] for place in places)
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common(8))


def test_public_annotations_are_types():
    bad, count = loose({name: tree_of(name) for name in FILES})
    share = len(bad) / count
    shown = "\n".join(f"{one.place} {one.text}" for one in bad[:40])
    assert share <= MOST_ANY, (
        f"{share:.1%} of {count} public annotations are Any, at most {MOST_ANY:.0%} are allowed; most in "
        f"{worst([one.place for one in bad])}:\n{shown}"
    )


def test_public_things_have_docstrings():
    everything = [one for name in FILES for one in described(name)]
    missing = [one for one in everything if not one.has_docstring]
    share = 1 - len(missing) / len(everything)
    shown = "\n".join(f"{one.place} {one.name}" for one in missing[:40])
    assert share >= LEAST_DESCRIBED, (
        f"{share:.1%} of {len(everything)} public classes and functions have a docstring, at least "
        f"{LEAST_DESCRIBED:.0%} must:\n{shown}"
    )


@pytest.mark.parametrize("room", ["posterior", "diagnostics", "workflow"])
def test_a_run_has_one_type(room):
    """An argument `run` is whatever holds draws: an MCMC, a fit, an estimator, draws by site."""
    taken = [one for name in FILES if room_of(name) == room for one in annotations(name)]
    taken = [one for one in taken if "(run)" in one.text]
    assert taken
    other = [f"{one.place} {one.text}" for one in taken if "Run" not in one.names]
    assert not other, f"write Run of posterior/draws.py: {other}"


LOOSE = '''
from typing import Any, TypeAlias
from numpyro_bnn.b import Hidden, Tree

Own: TypeAlias = dict[str, Any]
PyTree: TypeAlias = Any

def plain(x: Any, *args: Any, y: int = 0, **kwargs: "list[Any]") -> None: ...
def through_an_alias(x: Own, y: Hidden, z: PyTree, t: Tree) -> "Own | None": ...
def _private(x: Any) -> Any: ...

class Public:
    """Described."""
    field: tuple[Any, ...]
    sound: int
    def __init__(self, x: Any, y: Literal["Any thing"]) -> None: ...
    def bare(self) -> int: ...
    def told(self) -> int:
        """Described."""
    def _private(self, x: Any) -> None: ...

class _Private:
    field: Any
'''
OTHER = (
    "from typing import Any\nfrom numpyro_bnn._types import PyTree\nHidden = Any\nTree = PyTree\n"
)


def test_every_kind_of_any_is_counted_once():
    bad, count = loose({"a": ast.parse(LOOSE), "b": ast.parse(OTHER)})
    wanted = ["plain(x)", "plain(args)", "plain(kwargs)"]
    wanted += ["through_an_alias(x)", "through_an_alias(y)", "through_an_alias ->"]
    wanted += ["Public.field", "Public.__init__(x)"]
    assert [one.text.rpartition(":")[0].partition(":")[0] for one in bad] == wanted
    # Parameters and results of two functions, two fields, and those of three methods.
    assert count == 5 + 5 + 2 + 3 + 2
    assert not any(PYTREE in one.names for one in bad)


def test_what_has_no_docstring_is_named():
    found = {one.name: one.has_docstring for one in described("a", ast.parse(LOOSE))}
    assert found == {
        **{"plain": False, "through_an_alias": False, "Public": True},
        **{"Public.bare": False, "Public.told": True},
    }
