"""Pages of scientific models with a network inside: each finds what its data were made with."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from documents import PAGES, blocks_of

import numpyro_bnn as bnn

SCIENCE = PAGES / "science"
# Lines of a page.
LONGEST = 150
# Standard deviations that a right value may be away from the mean of its posterior.
WIDTHS = 3.0
# Monte Carlo errors of a page, in standard deviations of the parameter. A verdict accepts 0.1.
MOST_ERROR = {"formula": 0.2, "ode": 0.15}


def program_of(name):
    """The one program of a page."""
    (block,) = (b for b in blocks_of(SCIENCE / f"{name}.md") if b.language == "python")
    return compile(block.text, block.name, "exec")


def groups(made):
    """A school that is new varies by what schools differ and by the noise, in closed form."""
    draws, sd = made["mcmc"].get_samples(), made["expected"].sd
    spread = draws["level_sd"] ** 2 + (1.5 * draws["gain_sd"]) ** 2 + draws["noise"] ** 2
    right = np.sqrt(spread.mean() + (draws["common"] + 1.5 * draws["slope"]).var())
    np.testing.assert_allclose(sd[1], right, rtol=0.1)
    assert sd[0] < 0.65
    assert made["lines"] + 0.3 < made["mine"] < made["best"] + 0.1


def ode(made):
    drags, right = made["drags"], made["friction"](np.array([1.0, 2.0]))
    assert (abs(drags.mean(0) - right) < WIDTHS * drags.std(0)).all()
    assert (drags.std(0) < 0.2).all()
    mine, linear, best = made["scores"]
    assert linear < mine < best + 0.1
    np.testing.assert_allclose(
        made["places"](made["times"], 4.0, made["friction"]), made["right"], atol=0.005
    )


def space(made):
    """As good as the exact process allows, which is known in closed form."""
    mine, other, best = made["scores"]
    assert other < mine < best + 0.1
    unknown = np.sqrt(made["best_sd"] ** 2 - 0.4**2)
    assert (abs(made["predicted"].mean - made["best"]) < WIDTHS * unknown).all()
    assert "needs a plate around the observed sites" in made["refusal"]


def rates(made):
    right = np.exp(np.sin(2 * made["ages"]))
    rate = made["rate"]
    assert (abs(rate.mean((0, 1)) - right) < WIDTHS * rate.std((0, 1))).all()


def survival(made):
    alive, right = made["alive"], np.exp(-made["spent"])
    assert (abs(alive.mean((0, 1)) - right) < WIDTHS * alive.std((0, 1))).all()


def formula(made):
    free, pinned = (made["runs"][name].get_samples() for name in ("not pinned", "pinned"))
    assert np.log(free["efficiency"]).std() > 20 * np.log(free["product at 25"]).std()
    np.testing.assert_allclose(free["product at 25"].mean(), 0.2, rtol=0.03)
    np.testing.assert_allclose(pinned["efficiency"], pinned["product at 25"], rtol=1e-5)


def assert_minibatches_are_unbiased(made):
    """Both halves of the rows have the energy of all on average."""
    y = made["y"]
    potential = bnn.potential_of(made["model"], made["x"], y)
    starts = made["starts"] if "starts" in made else made["mcmc"].last_state.z
    z = jax.tree.map(lambda start: start[0], starts)
    halves = np.arange(len(y)).reshape(2, -1)
    parts = [potential.minibatch(z, jnp.asarray(half), "data") for half in halves]
    np.testing.assert_allclose(np.mean(parts), potential(z), rtol=1e-4)


ANSWERS = {answer.__name__: answer for answer in (groups, rates, ode, survival, space, formula)}


def test_every_page_has_an_answer_and_is_short():
    paths = sorted(SCIENCE.glob("*.md"))
    assert sorted(ANSWERS) == [path.stem for path in paths]
    overview = (PAGES / "science.md").read_text(encoding="utf-8")
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= LONGEST
        assert f"science/{path.name}" in overview
        assert re.findall("^## (.*)$", text, re.M) == [
            "Model and run",
            "Answer",
            "What can go wrong",
        ]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_right_answer_is_found(name, capsys):
    if name == "ode":
        pytest.importorskip("diffrax")
    made: dict = {}
    exec(program_of(name), made)
    printed = capsys.readouterr().out
    found = made["report"].parameter_errors
    for parameter, right in made["truth"].items():
        i = found.names.index(parameter)
        assert found.relative[i] < MOST_ERROR.get(name, 0.1), printed
        assert abs(found.mean[i] - right) < WIDTHS * found.sd[i], printed
    ANSWERS[name](made)
    assert_minibatches_are_unbiased(made)
