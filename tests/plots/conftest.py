"""Figures of these tests are closed, and nobody shows them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    import matplotlib.pyplot as plt

    def show(*_: Any, **__: Any) -> None:
        raise AssertionError("a plot called plt.show")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plt, "show", show)
        yield
    plt.close("all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Matplotlib 3.9, the oldest supported, uses old names of the newest pyparsing."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for module in ("matplotlib", "pyparsing"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::DeprecationWarning:{module}"))
