"""The objects that a function's code reads beside its arguments, and whether they belong to a library.

The names that a function loads are read from its bytecode: globals, variables of enclosing functions,
modules that it imports, and of modules, namespaces and classes only the attributes that it takes. An
object of the standard library or of an installed package is identified by the version of that package;
all others are the user's own, and their parts are compared.

Names that are computed while the code runs (``getattr(module, name)``, ``globals()[name]``) are not in
the bytecode: a module that is used like this counts as a whole.
"""

import dis
import functools
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_MISSING = object()
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ENCLOSING = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_OWN = str(Path(__file__).parents[1])
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
# Modules through which code reads what is not in its objects, and names of functions that do: the environment
# of the process, files, the clock, a generator of random numbers.
_OUTSIDE = {
    "os", "posix", "nt", "sys", "importlib", "subprocess", "time", "datetime", "random", "secrets",
    "io", "_io", "pathlib", "glob", "zipfile", "shelve", "sqlite3", "socket", "urllib", "http",
}  # fmt: skip
_BUILTINS_OUTSIDE = {"open", "globals", "locals", "vars", "eval", "exec", "input", "__import__"}
_READERS = {"load", "loadtxt", "genfromtxt", "fromfile", "memmap", "open"}


class Load(NamedTuple):
    """A name that code loads.

    - **scope** - ``"global"``, ``"enclosing"`` (a variable of an enclosing function) or ``"import"``
    - **name** - name of the variable, or of the module
    - **attributes** - attributes that are then taken, in order: ``("b", "c")`` for ``a.b.c``
    - **level** - number of dots before the name of a relatively imported module
    """

    scope: str
    name: str
    attributes: tuple[str, ...] = ()
    level: int = 0


def reached_from(function: types.FunctionType) -> dict[str, object]:
    """The objects that a function reads beside its arguments, by dotted name.

    For a function of a library, these are its default values and its closure only.

    :param function: a function written in Python.
    """
    code = function.__code__
    reached: dict[str, Any] = {}
    if function.__defaults__:
        reached["defaults"] = function.__defaults__
    if function.__kwdefaults__:
        reached["defaults by name"] = function.__kwdefaults__
    enclosing = _enclosing(function)
    if is_library_function(function):
        return reached | enclosing
    loads = set(_loads(code))
    for load in loads:
        if load.scope == "import":
            reached |= _imported(load, function, code)
            continue
        space = function.__globals__ if load.scope == "global" else enclosing
        if load.name in space:
            name, value = _follow(load.name, space[load.name], load.attributes)
            reached[name] = value
    loaded = {load.name for load in loads if load.scope == "enclosing"}
    return reached | {name: value for name, value in enclosing.items() if name not in loaded}


def reads_outside(function: types.FunctionType) -> bool:
    """Whether code of the user's own may read files, the environment, the clock or random numbers.

    What it finds there is part of a traced program, and may be something else the next time.
    """
    if is_library_function(function):
        return False
    code, enclosing = function.__code__, _enclosing(function)
    for load in set(_loads(code)):
        if load.scope == "import":
            root: Any = sys.modules.get(load.name)
            taken = {*load.attributes, *_all_names(code)}
        else:
            space = function.__globals__ if load.scope == "global" else enclosing
            if load.name not in space:
                if load.name in _BUILTINS_OUTSIDE:
                    return True
                continue
            root, taken = space[load.name], set(load.attributes)
        if _is_outside(root) or any(name in _READERS or name[:5] == "read_" for name in taken):
            return True
        if "random" in taken and root is np:
            return True
    return False


def _enclosing(function: types.FunctionType) -> dict[str, Any]:
    """Variables of enclosing functions that a function uses, of those that are bound."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
    return found


def _is_outside(value: Any) -> bool:
    """Whether a value is a module that reads outside, or something of one."""
    if isinstance(value, types.ModuleType):
        owner = value.__name__
    else:
        owner = getattr(value, "__module__", None) or type(value).__module__
    if not isinstance(owner, str):
        return False
    return owner.partition(".")[0] in _OUTSIDE or owner.startswith("numpy.random")


def _loads(code: types.CodeType) -> Iterator[Load]:
    """Every name that code loads, with the names that functions defined inside it load."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opname in _GLOBAL or step.opname in _ENCLOSING:
            taken = []
            for after in steps[i + 1 :]:
                if after.opname not in _ATTRIBUTE:
                    break
                taken.append(after.argval)
            scope = "global" if step.opname in _GLOBAL else "enclosing"
            yield Load(scope, step.argval, tuple(taken))
        elif step.opname == "IMPORT_NAME":
            level = steps[i - 2].argval
            names = []
            for after in steps[i + 1 :]:
                if after.opname == "IMPORT_FROM":
                    names.append(after.argval)
                elif not after.opname.startswith("STORE"):
                    break
            for name in names or [""]:
                yield Load("import", step.argval, (name,) if name else (), level)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _loads(constant)


def stores(code: types.CodeType) -> set[str]:
    """Names of the attributes that code sets, on any object."""
    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}


def _imported(load: Load, function: types.FunctionType, code: types.CodeType) -> dict[str, Any]:
    """The modules or attributes that an import inside a function binds; empty if not imported yet."""
    name = load.name
    if load.level:
        package = function.__globals__.get("__package__") or ""
        try:
            name = importlib.util.resolve_name("." * load.level + name, package)
        except ImportError:
            return {}
    # `import a.b` binds a, of which the attribute b is taken.
    found = [
        sys.modules[n] for n in dict.fromkeys((name, name.partition(".")[0])) if n in sys.modules
    ]
    label = f"import {name}"
    if load.attributes:
        named = [_follow(label, module, load.attributes) for module in found[:1]]
        return dict(named)
    own = [module for module in found if home_of(module.__name__) is None]
    taken = _all_names(code)
    parts = {
        f"{label}.{attribute}": value
        for module in own
        for attribute, value in vars(module).items()
        if attribute in taken
    }
    if found and not parts:
        parts[label] = found[0]
    return parts


def _all_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _all_names(constant)
    return names


def _follow(name: str, value: Any, attributes: tuple[str, ...]) -> tuple[str, Any]:
    """The last value along some attributes that is reached without running code, with its dotted name."""
    for attribute in attributes:
        step = _attribute(value, attribute)
        if step is _MISSING:
            break
        name, value = f"{name}.{attribute}", step
    return name, value


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, types.ModuleType):
        if home_of(value.__name__) is not None:
            return _MISSING
        return vars(value).get(name, _MISSING)
    if isinstance(value, type):
        found = vars(value).get(name, _MISSING) if home_of(value.__module__) is None else _MISSING
        return _MISSING if callable(found) or hasattr(found, "__get__") else found
    own = isinstance(value, (types.SimpleNamespace, types.FunctionType))
    if own or home_of(type(value).__module__) is None:
        return getattr(value, "__dict__", {}).get(name, _MISSING)
    return _MISSING


def is_library_function(function: types.FunctionType) -> bool:
    """Whether a function belongs to a library, whose version identifies it.

    Decided by the file of its code: wrappers such as those of ``jax.vmap`` carry the names and the module
    of the function that they wrap.
    """
    file = function.__code__.co_filename
    if file.startswith("<") and not file.startswith("<frozen"):
        return home_of(function.__module__ or "") is not None
    return file.startswith("<frozen") or _is_library_file(file)


def _is_library_file(file: str) -> bool:
    parts = Path(file).parts
    installed = "site-packages" in parts or "dist-packages" in parts
    return installed or file.startswith((_OWN, *_STANDARD))


@functools.cache
def _home_of_top(top: str, file: str) -> str | None:
    if file.startswith(_OWN):
        return "numpyro_bnn"
    if file and not _is_library_file(file):
        return None
    if top in sys.stdlib_module_names:
        return "python"
    if not file:
        return None
    try:
        version(top)
        return top
    except PackageNotFoundError:
        return next(iter(packages_distributions().get(top, [])), None)


def home_of(module: str) -> str | None:
    """The distribution that a module belongs to, ``"python"`` for the standard library.

    :param module: its dotted name.
    :return: None for modules of the user's own.
    """
    top = module.partition(".")[0]
    loaded = sys.modules.get(module) or sys.modules.get(top)
    file = getattr(loaded, "__file__", None)
    if file is None:
        # Packages without `__init__.py` have folders.
        file = next(iter(getattr(loaded, "__path__", [])), "")
    return _home_of_top(top, file)
