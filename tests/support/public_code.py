"""The public functions, methods and fields of the package, read from its source: annotations and docstrings.

Public is what has no leading underscore: functions and classes of a module, methods and fields of such a
class. Parameters of ``__init__`` and ``__call__`` count too; these two are described by their class.
"""

import ast
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from architecture import FILES

# A pytree of arrays has no other type in JAX: its one name stands for it.
PYTREE = "PyTree"
_DESCRIBED_BY_THEIR_CLASS = ("__init__", "__call__")


class Annotation(NamedTuple):
    """The type that is written at a public parameter, result or field.

    - **place** - dotted name of the file, with the line
    - **text** - what is annotated, and the type as it is written
    - **names** - all names in the type
    """

    place: str
    text: str
    names: frozenset[str]


class Described(NamedTuple):
    """A public class, function or method, and whether it has a docstring."""

    place: str
    name: str
    has_docstring: bool


def names_in(annotation: ast.expr) -> frozenset[str]:
    """Names in a type, those inside of quotes too; of `typing.Any` the last part."""
    found = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                found |= names_in(ast.parse(node.value, mode="eval").body)
            except SyntaxError:  # a text that is no type, such as an entry of Literal
                continue
    return frozenset(found)


def _public(
    body: list[ast.stmt], inside: ast.ClassDef | None = None
) -> Iterator[tuple[ast.ClassDef | None, ast.stmt]]:
    """Public classes, functions, methods and fields, each with the class that it is in."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield inside, node
            yield from _public(node.body, node)
        elif isinstance(node, ast.FunctionDef) and not _is_overload(node):
            if not node.name.startswith("_") or node.name in _DESCRIBED_BY_THEIR_CLASS:
                yield inside, node
        elif inside is not None and isinstance(node, ast.AnnAssign):
            yield inside, node


def _is_overload(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(mark) == "overload" for mark in function.decorator_list)


def _typed(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Parameters and result of a function, with their types."""
    given = function.args
    several = [one for one in (given.vararg, given.kwarg) if one is not None]
    for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several):
        if parameter.annotation is not None:
            yield f"{function.name}({parameter.arg})", parameter.annotation
    if function.returns is not None:
        yield f"{function.name} ->", function.returns


@cache
def tree_of(name: str) -> ast.Module:
    """The parsed source of a file of the package, by its dotted name."""
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def annotations(name: str, tree: ast.Module | None = None) -> Iterator[Annotation]:
    """Types of all public parameters, results and fields of a file.

    :param name: dotted name of the file.
    :param tree: its parsed source, where it is not a file of the package.
    """
    for inside, node in _public((tree or tree_of(name)).body):
        prefix = "" if inside is None else f"{inside.name}."
        if isinstance(node, ast.FunctionDef):
            typed = list(_typed(node))
        elif isinstance(node, ast.AnnAssign):
            typed = [(ast.unparse(node.target), node.annotation)]
        else:
            continue
        for what, kind in typed:
            text = f"{prefix}{what}: {ast.unparse(kind)}"
            yield Annotation(f"{name}:{kind.lineno}", text, names_in(kind))


def described(name: str, tree: ast.Module | None = None) -> Iterator[Described]:
    """The public classes, functions and methods of a file, and whether they have docstrings."""
    for inside, node in _public((tree or tree_of(name)).body):
        if isinstance(node, ast.AnnAssign) or node.name in _DESCRIBED_BY_THEIR_CLASS:
            continue
        own = node.name if inside is None else f"{inside.name}.{node.name}"
        yield Described(f"{name}:{node.lineno}", own, bool(ast.get_docstring(node)))


def _aliases(tree: ast.Module) -> Iterator[tuple[str, frozenset[str]]]:
    """Names that a file assigns at its top level, with the names in their values."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, names_in(node.value)
        elif (
            isinstance(node, ast.AnnAssign)
            and node.value is not None
            and ast.unparse(node.annotation) == "TypeAlias"
        ):
            yield ast.unparse(node.target), names_in(node.value)


def _own_imports(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """File, name there and name here of everything that is imported from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numpyro_bnn."):
            for alias in node.names:
                yield node.module.partition(".")[2], alias.name, alias.asname or alias.name


def names_for_any(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """For each file the names that mean `Any` in it: that name, and aliases of types that hold it.

    :param trees: parsed sources by dotted name of the file.
    """
    found = {name: {"Any"} for name in trees}
    while True:
        before = sum(map(len, found.values()))
        for name, tree in trees.items():
            for alias, used in _aliases(tree):
                if used & found[name] and alias != PYTREE:
                    found[name].add(alias)
            for file, there, here in _own_imports(tree):
                if there in found.get(file, ()):
                    found[name].add(here)
        if sum(map(len, found.values())) == before:
            return found
