"""Double precision for the tests that compare with linear algebra."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 for one test; set back afterwards, so that no other file sees it."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
