"""The Python blocks of the README run, in order, in one namespace; none calls what there is not."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import numpyro_bnn

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


def run(blocks):
    namespace: dict = {}
    for i, block in enumerate(blocks):
        exec(compile(block, f"README block {i + 1}", "exec"), namespace)
    return namespace


@pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")
@pytest.mark.filterwarnings("ignore:.*suspect and kept:UserWarning")
@pytest.mark.usefixtures("quick_compile")
def test_the_first_block_runs_with_few_draws():
    short = re.sub(r"\b(num_warmup|num_samples)=\d+", r"\1=20", BLOCKS[0])
    assert short != BLOCKS[0]
    assert run([short])["probs"].shape == (150, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")
@pytest.mark.filterwarnings("ignore:.*suspect and kept:UserWarning")
def test_all_blocks_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numpyro_bnn_report").mkdir()
    namespace = run(BLOCKS)
    assert namespace["probs"].shape == (150, 3)
    verdicts = ("within_tolerance", "within_tolerance_on_average", "run_longer", "chains_disagree")
    assert namespace["report"].verdict in verdicts


def calls_of_the_package(block):
    """Calls ``bnn.name(…)`` and ``MCMC(…)`` of a block: the path after `bnn`, and the call."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call):
            first, *rest = ast.unparse(node.func).split(".")
            if first in ("bnn", "MCMC"):
                yield (rest if first == "bnn" else [first]), node


def assert_taken(path, call):
    """There is a function of that name, and its signature takes these arguments."""
    function = numpyro_bnn
    for name in path:
        function = getattr(function, name)
    named = {keyword.arg: None for keyword in call.keywords}
    inspect.signature(function).bind(*call.args, **named)


def test_every_block_calls_what_there_is():
    assert len(BLOCKS) >= 3
    found = [pair for block in BLOCKS for pair in calls_of_the_package(block)]
    assert len(found) > 15
    for path, call in found:
        assert_taken(path, call)


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("bnn.diagnoze(mcmc)", AttributeError, "diagnoze"),
        ("bnn.MLP([8], 1, depth=3)", TypeError, "depth"),
        ("MCMC()", TypeError, "missing a required argument"),
    ],
)
def test_a_call_of_what_there_is_not_is_seen(line, error, message):
    ((path, call),) = calls_of_the_package(line)
    with pytest.raises(error, match=message):
        assert_taken(path, call)
