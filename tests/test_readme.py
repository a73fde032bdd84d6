"""Every Python block of the README runs, in order, in one namespace."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")
@pytest.mark.filterwarnings("ignore:.*suspect and kept:UserWarning")
@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_python_blocks_run(short, tmp_path, monkeypatch, request):
    """Every change runs them with fewer draws, and every week as they stand."""
    if short:
        request.getfixturevalue("quick_compile")
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numpyro_bnn_report").mkdir()
    namespace: dict = {}
    for i, block in enumerate(blocks):
        if short:
            block = re.sub(r"\b(num_warmup|num_samples)=\d+", r"\1=20", block)
        exec(compile(block, f"README block {i + 1}", "exec"), namespace)
    assert namespace["probs"].shape == (150, 3)
    verdicts = ("within_tolerance", "within_tolerance_on_average", "run_longer", "chains_disagree")
    assert short or namespace["report"].verdict in verdicts
