"""Keeps compiled programs on disk for the next process, in JAX's own cache; only where a user asks for it."""

from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

# Programs that compile faster than this are not worth a file.
_LEAST_SECONDS = 0.1


def cache(folder: str | Path | None) -> Path | None:
    """Keep compiled programs in a folder, so that the next process need not compile them again.

    The setting holds for this process: call it before the first fit. A program is found again for the same
    versions of JAX and of this package, the same model and arrays of the same shapes. Tracing (a second or
    two) is done in any case. The folder is JAX's compilation cache and can be deleted at any time.

    :param folder: the folder, which is made where it is not there; None switches the cache off.
    :return: the folder, absolute.
    :raises FileExistsError: if there is a file of that name.

    >>> import numpyro_bnn as bnn
    >>> bnn.cache("~/.cache/numpyro_bnn")                                   # doctest: +SKIP
    """
    settings: dict[str, Any] = {"jax_compilation_cache_dir": None}
    path = None
    if folder is not None:
        path = Path(folder).expanduser().absolute()
        if path.exists() and not path.is_dir():
            raise FileExistsError(
                f"cache: {str(path)!r} is a file, expected a folder or a name that is free. Give another."
            )
        path.mkdir(parents=True, exist_ok=True)
        settings = {
            "jax_compilation_cache_dir": str(path),
            "jax_persistent_cache_min_compile_time_secs": _LEAST_SECONDS,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
    for name, value in settings.items():
        jax.config.update(name, value)
    # JAX opens its cache once, at the first compilation.
    compilation_cache.reset_cache()
    return path
