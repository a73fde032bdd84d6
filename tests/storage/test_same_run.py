"""Facts about settings and data, by which a stored run is compared with another one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.storage.same_run import digest, facts_of, refuse_other_facts


def test_arrays_are_told_apart_by_every_value_and_type(monkeypatch):
    monkeypatch.setattr("numpyro_bnn.storage.same_run._BLOCK", 16)  # a block is one row
    values = np.arange(12.0).reshape(6, 2)
    assert digest(values) == digest(values.copy(order="F"))
    changed = values.copy()
    changed[5, 1] = np.nextafter(11.0, 12.0)
    found = [values, changed, values.astype(np.float32), values.reshape(2, 6), values[:0]]
    assert len({digest(v) for v in found}) == len(found)
    with pytest.raises(TypeError, match=r"array of Python objects, shape \(2,\)"):
        digest(np.array([{}, []], dtype=object))


def test_every_leaf_is_a_fact_by_its_path():
    tables = pytest.importorskip("pandas")
    values = {
        "sites": {"net/Dense_0.kernel": "(2, 1)"},
        "data": [(np.zeros(2), {"a": jnp.ones(3)}, None), {"scale": 2.0, "form": "linear"}],
        "key": jax.random.key(0),
        "table": tables.DataFrame({"a": [1.0]}),
        "method": functools.partial(jax.vmap, in_axes=0),
        "thing": object(),
    }
    facts = facts_of(values)
    assert set(facts) >= {"data.0.0", "data.0.1.a", "data.0.2", "data.1.scale", "data.1.form"}
    assert facts["sites.net/Dense_0.kernel"] == "'(2, 1)'"
    assert facts["data.0.0"].startswith("float64[2] ")
    assert facts["data.0.2"] == "None"
    assert facts["table"].startswith("float64[1, 1] ")
    assert facts["key"].startswith("key uint32[2] ")
    assert not [text for text in facts.values() if re.search(" at 0x", text)]


def test_numbers_that_are_read_on_demand_are_compared(tmp_path):
    zarr = pytest.importorskip("zarr")

    def stored(value):
        array = zarr.create_array(tmp_path / "x.zarr", shape=(4,), dtype="f4", overwrite=True)
        array[:] = value
        return array

    facts = facts_of({"v": stored(0.0)})
    assert facts_of({"v": OnHost(stored(0.0))}) == facts
    assert facts_of({"v": stored(1.0)}) != facts


def test_a_difference_names_what_it_can():
    before = {f"data.{i}": "a" for i in range(12)}
    refuse_other_facts("there", before, before, ())
    refuse_other_facts("there", before, {}, ["data"])
    message = r"data\.0: there a, here absent; data\.1:.*and 4 more\. .*accept=\['data\.0', "
    with pytest.raises(ValueError, match=message):
        refuse_other_facts("there", before, {}, ())
    with pytest.raises(ValueError, match="data") as refused:
        refuse_other_facts("there", before, {}, None)
    assert "accept" not in str(refused.value)
