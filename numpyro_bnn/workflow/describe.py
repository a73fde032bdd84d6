"""Which prior sits on which weight: a table of a model, in the order in which its layers are called."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.ops.provenance import track_deps_jaxpr

from numpyro_bnn._html import Grid, html_of
from numpyro_bnn._text import text_of
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import innermost, prepared, units_of
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.models.networks import call_order
from numpyro_bnn.models.random_module import calls
from numpyro_bnn.potential.sites import all_rows
from numpyro_bnn.potential.structure import as_jax, say_what_it_got
from numpyro_bnn.priors.base import is_parameter
from numpyro_bnn.priors.hierarchical import parameterize
from numpyro_bnn.priors.paths import is_auxiliary, layer_of, site_name
from numpyro_bnn.priors.precision_conditionals import Level, levels_of

# Types of the parameters of distributions.
_NUMBERS = (int, float, np.number, np.ndarray, jax.Array)


class Row(NamedTuple):
    """One parameter of a network, or one other latent site.

    - **site** - name of the site, or what it would be for a fixed parameter
    - **shape** - its shape
    - **layer** - place of its layer in the order of calls, from 0; None for sites of no layer, and for layers
      that are not called
    - **prior** - its distribution with numbers, and ``scale=tau`` or ``scale=f(tau)`` for one that is, or is
      computed from, the latent site ``tau``; or how it is computed; empty for fixed values
    - **kind** - ``"random"``, ``"computed"`` (from random sites) or ``"fixed"``
    - **size** - its number of entries
    """

    site: str
    shape: tuple[int, ...]
    layer: int | None
    prior: str
    kind: str
    size: int


class ModelTable:
    """The table that :func:`describe` returns; print it, or show it in a notebook.

    - **rows** - a :class:`Row` for every parameter and latent site
    - **num_random** - random entries of parameters of networks
    - **num_fixed** - fixed entries of parameters of networks
    - **not_called** - names of the networks that the model makes and does not call
    """

    _COLUMNS = ("layer", "site", "shape", "prior", "entries")

    def __init__(self, rows: list[Row], not_called: Sequence[str] = ()) -> None:
        self.rows = tuple(rows)
        # Precisions and scales of weights do not count.
        weights = (row for row in rows if "/" in row.site and not is_auxiliary(row.site))
        self.num_random = sum(row.size for row in weights if row.kind != "fixed")
        self.num_fixed = sum(row.size for row in rows if row.kind == "fixed")
        self.not_called = tuple(not_called)

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for row in self.rows:
            place = "" if row.layer is None else f"[{row.layer}]"
            told = "fixed" if row.kind == "fixed" else row.prior
            yield place, row.site, str(row.shape), told, f"{row.size:,}"

    @property
    def _total(self) -> str:
        fixed = f", {self.num_fixed:,} fixed" if self.num_fixed else ""
        order = "layers in the order in which they are called"
        if self.not_called:
            order = f"made and not called, so that no output depends on it: {', '.join(self.not_called)}"
        return f"{self.num_random:,} random weights{fixed}; {order}"

    def __repr__(self) -> str:
        lines = [self._COLUMNS, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines)]
        lines.insert(1, tuple("-" * width for width in widths))
        columns = ["<"] * (len(widths) - 1) + [">"]
        texts = [
            "  ".join(f"{text:{side}{width}}" for text, side, width in zip(line, columns, widths))
            for line in lines
        ]
        return "\n".join([*(text.rstrip() for text in texts), self._total])

    def _repr_html_(self) -> str:
        return html_of(Grid(self._COLUMNS, list(self._cells())), self._total)


def describe(model: Any, *args: PyTree, **kwargs: PyTree) -> ModelTable:
    """Which prior sits on which weight, in the order in which the layers are called.

    Flax numbers layers in the order in which they are made: in ``nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))`` the
    outer one is ``Dense_0``, so that a prior given by path can sit on another layer than was meant.
    Hierarchical priors are shown in centred coordinates, whatever those of the model; numbers of a prior that
    depend on other latent sites are shown by the names of these. Nothing of the model is changed.

    :param model: a NumPyro model, or an estimator after `fit`.
    :param args: arguments of the model, inputs first and targets where it needs them; a ready model that has
        seen its data needs none.
    :param kwargs: its keyword arguments.
    :return: the table.
    :raises ValueError: if inputs are needed and none were given.

    >>> import flax.linen as nn, jax.numpy as jnp
    >>> import numpyro_bnn as bnn
    >>> model = bnn.regression(bnn.MLP((2,), 1), bnn.priors.Normal(0.5))
    >>> bnn.describe(model, jnp.ones((3, 1)))
    layer  site                shape   prior                       entries
    -----  ------------------  ------  --------------------------  -------
    [0]    net/Dense_0.bias    (2,)    Normal(loc=0.0, scale=0.5)        2
    [0]    net/Dense_0.kernel  (1, 2)  Normal(loc=0.0, scale=0.5)        2
    [1]    net/Dense_1.bias    (1,)    Normal(loc=0.0, scale=0.5)        1
    [1]    net/Dense_1.kernel  (2, 1)  Normal(loc=0.0, scale=0.5)        2
           y.scale             ()      HalfNormal(scale=1.0)             1
    7 random weights; layers in the order in which they are called
    """
    model = getattr(model, "model_", model)
    ready = innermost(model)
    units = units_of(ready)
    if not args and not kwargs and units is not None:
        args = (units.x_mean[None],)
    unfitted = hasattr(ready, "forget") and units is None
    if unfitted and len(args) == 1 and "y" not in kwargs:
        # Its prior does not depend on the targets.
        args = (*args, np.zeros(len(args[0]), int if ready.kind == "classification" else float))
    try:
        args, kwargs = prepared(model, args, kwargs)
        with say_what_it_got(model, args, kwargs):
            return ModelTable(*_rows_of(model, as_jax(args), as_jax(kwargs)))
    finally:
        if unfitted:
            ready.forget()


def _typical(site: Mapping[str, Any]) -> Any:
    """A value of a latent site at which sites below have plain numbers: 0, or 1 if positive."""
    if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete:
        return None
    distribution = site["fn"]
    support = distribution.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.real:
        return jnp.zeros(distribution.shape())
    return jnp.ones(distribution.shape()) if support is constraints.positive else None


def _rows_of(model: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Row], list[str]]:
    handler = calls(parameterize(all_rows(model), "centered"))
    seeded = seed(substitute(handler, substitute_fn=_typical), jax.random.key(0))
    sites = trace(seeded).get_trace(*args, **kwargs)
    computed = _computed_numbers(handler.fn, args, kwargs, sites)
    # A target that is not given and values of single rows are no parameters, effects of groups are.
    sizes = {len(leaf) for leaf in jax.tree.leaves(args[:1]) if jnp.ndim(leaf)}

    def is_latent(site: Mapping[str, Any]) -> bool:
        if site["type"] != "sample":
            return site["type"] == "deterministic" and is_parameter(site)
        return not site["is_observed"] and not sizes & {p.size for p in site["cond_indep_stack"]}

    latent = {name: site for name, site in sites.items() if is_latent(site)}
    levels = levels_of(sites)
    rows: dict[str, Row] = {}

    def add(name: str, layer: int | None, fixed: tuple[int, ...] = ()) -> None:
        site = latent.get(name)
        shape = fixed if site is None else tuple(jnp.shape(site["value"]))
        if site is None:
            prior, kind = "", "fixed"
        elif site["type"] == "deterministic":
            parts = [n.removeprefix(name) for n in latent if n.startswith(f"{name}.")]
            prior, kind = f"from its {', '.join(parts)}", "computed"
        else:
            prior, kind = _prior_text(name, site, levels, computed[name]), "random"
        rows.setdefault(name, Row(name, shape, layer, prior, kind, prod(shape)))

    for network, (apply, values, inputs, keywords, _) in handler.seen.items():
        order = call_order(apply, jax.eval_shape(lambda own: own, values), inputs, keywords)
        for place, layer in enumerate([*order.layers, *order.not_called]):
            own = [path for path in values if layer_of(path) == layer]
            at = place if layer in order.layers else None
            names = [site_name(network, path) for path in own]
            # Precisions of a whole layer are named after it.
            starts = tuple(f"{name}." for name in (*names, site_name(network, layer)))
            beside = [name for name in latent if name.startswith(starts)]
            for name, path in zip(names, own):
                add(name, at, tuple(jnp.shape(values[path])))
            for name in beside:
                add(name, at)
    for name in latent:
        add(name, None)
    marked = (n for n, site in sites.items() if site.get("infer", {}).get("of_network"))
    made = dict.fromkeys(name.rpartition("/")[0].rpartition("/")[2] for name in marked)
    return [*rows.values()], [name for name in made if name not in handler.seen]


def _computed_numbers(
    model: Callable, args: tuple, kwargs: dict[str, Any], sites: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """What the numbers of distributions are that depend on latent sites, by site and parameter."""
    latent = {n: s for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}

    def numbers(values: dict[str, Any]) -> dict[str, dict[str, list[Any]]]:
        seeded = seed(substitute(model, data=values), jax.random.key(0))
        found = trace(seeded).get_trace(*args, **kwargs)
        return {
            name: {
                key: [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, _NUMBERS)]
                for key, value in _numbers(found[name]).items()
            }
            for name in latent
        }

    values = {name: site["value"] for name, site in latent.items()}
    program, shapes = jax.make_jaxpr(numbers, return_shape=True)(values)
    names = sorted(values)
    sources = track_deps_jaxpr(program.jaxpr, [frozenset([name]) for name in names])
    site_of = dict(zip(map(id, program.jaxpr.invars), names))

    def written(number: Any, latent: frozenset[str]) -> str:
        return site_of.get(id(number), f"f({', '.join(sorted(latent))})" if latent else "")

    found = map(written, program.jaxpr.outvars, sources)
    texts = jax.tree.unflatten(jax.tree.structure(shapes), found)
    return {
        name: {key: max(several, default="") for key, several in of_site.items()}
        for name, of_site in texts.items()
    }


def _numbers(site: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the distribution of a site."""
    distribution = unwrapped(site["fn"])
    found = {name: getattr(distribution, name, None) for name in type(distribution).arg_constraints}
    return {name: value for name, value in found.items() if value is not None}


def _prior_text(
    name: str, site: Mapping[str, Any], levels: Mapping[str, Level], computed: Mapping[str, str]
) -> str:
    """The distribution of a site, where it depends on others with the names of these."""
    if name in levels:
        level = levels[name]
        k = f"{level.concentration:g}"
        if level.parent is None:
            return f"Gamma({k}, {level.rate:.4g})"
        return f"Gamma({k}, {k}/τ), τ = {level.parent}"
    for level in levels.values():
        for array in level.arrays:
            if array.site == name:
                scale = "τ" if array.factor == 1 else f"({array.factor:g} τ)"
                family = "Normal(0, " if array.df is None else f"StudentT({array.df:g}, 0, "
                return f"{family}{scale}^-1/2), τ = {level.site}"
    numbers = _numbers(site).items()
    parts = [f"{key}={computed[key] or text_of(_rounded(value))}" for key, value in numbers]
    return f"{type(unwrapped(site['fn'])).__name__}({', '.join(parts)})"


def _rounded(value: Any) -> Any:
    """A number to four digits; arrays of one value as that value."""
    if not isinstance(value, _NUMBERS):
        return value
    values = np.unique(np.asarray(value))
    return float(f"{float(values[0]):.4g}") if values.size == 1 else value
