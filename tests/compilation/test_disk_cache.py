"""The cache of compiled programs on disk, which is JAX's own."""

import jax
import jax.numpy as jnp
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.compilation import program_identity


@pytest.fixture(autouse=True)
def settings():
    """Those of before, which the whole session shares."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    program_identity.compilation_cache.reset_cache()


def test_programs_are_kept_in_the_folder_until_it_is_switched_off(tmp_path, monkeypatch):
    monkeypatch.setattr(program_identity, "_LEAST_SECONDS", 0.0)
    folder = bnn.cache(tmp_path / "new" / "programs")
    assert folder == tmp_path / "new" / "programs"
    jax.block_until_ready(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3))))
    kept = list(folder.iterdir())
    assert kept
    assert bnn.cache(None) is None
    jax.block_until_ready(jax.jit(lambda x: jnp.cos(x) @ x)(jnp.ones((3, 3))))
    assert sorted(folder.iterdir()) == sorted(kept)


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(FileExistsError, match="taken"):
        bnn.cache(tmp_path / "taken")
