"""Refuses names of sites that files or ArviZ cannot hold, before any step is taken.

A site becomes a folder of a zarr store, a variable of an xarray dataset, whose axes have names too, and a
variable of a netCDF file. Each of these accepts most names, and fails at some of them late.
"""

from collections.abc import Iterable, Mapping

# Bytes of the name of a folder, on the file systems in use.
_LONGEST = 255


def refuse_names(
    owner: str, names: Mapping[str, str], axes: Iterable[str], on_disk: bool = False
) -> None:
    """Refuse names under which a site cannot be written, or not be read again.

    :param owner: the caller, for the message.
    :param names: name in the file by name of the site.
    :param axes: names of all axes in the same file.
    :param on_disk: whether every variable becomes a folder, as in a zarr store.
    :raises ValueError: naming the site.
    """
    sites: dict[str, str] = {}
    axes = {"chain", "draw", *axes}
    for site, name in names.items():
        why = _fault(name, axes) or (_fault_on_disk(name) if on_disk else "")
        if why:
            raise ValueError(
                f"{owner}: the site {site!r} cannot be stored under {name!r}, {why}. Rename it in the "
                "model."
            )
        if name in sites:
            raise ValueError(
                f"{owner}: the sites {sites[name]!r} and {site!r} would be stored under one name, "
                f"{name!r}. Rename one in the model."
            )
        sites[name] = site


def _fault(name: str, axes: set[str]) -> str:
    """The reason why ArviZ or netCDF cannot hold a name; empty where they can."""
    if name in ("", ".", ".."):
        return "which is no name to a file system"
    if name in axes:
        return "which is the name of an axis of the draws"
    if "\0" in name:
        return "because names in files end at a null character"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "which is no valid Unicode"
    return ""


def _fault_on_disk(name: str) -> str:
    if name == "zarr.json":
        return "which is the name of a file of zarr"
    if "\\" in name:
        return "because a backslash means a subfolder"
    if len(name.encode()) > _LONGEST:
        return f"because it has {len(name.encode())} bytes, and the limit is {_LONGEST}"
    return ""
