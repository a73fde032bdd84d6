"""The reference posteriors that ship: their routes agree, and what is off by a known amount is graded so."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split
from benchmarks.mixing import hierarchical_posteriors
from benchmarks.neal import posteriors
from benchmarks.neal.references import NAMES, ROWS

references = bnn.references
RNG = np.random.default_rng(0)
NAMED = pytest.mark.parametrize("name", references.names)


def drawn(reference, shift=0.0, factor=1.0):
    """Independent draws about the reference's means, off by `shift` sd, `factor` times as wide."""
    found = {}
    for name, known in (("functions", reference.functions), (None, reference.log_scales)):
        noise = RNG.normal(size=(4, 250, *known.sd.shape))
        values = known.mean + known.sd * (shift + factor * noise)
        if name:
            found[name] = values
        else:
            found |= {scale: values[..., i] for i, scale in enumerate(known.names)}
    return found


def sites_of(model, x, key):
    """Latent sites of one draw of the prior."""

    def drawn(key):
        return {
            site: value["value"]
            for site, value in trace(seed(model, key)).get_trace(x).items()
            if value["type"] == "sample" and not value["is_observed"] and site != "y"
        }

    return jax.jit(drawn)(jax.random.key(key))


def log_density_of(model, x, y, sites):
    return jax.jit(lambda given: log_density(model, (x, y), {}, given)[0])(sites)


@NAMED
def test_the_routes_agree(name):
    reference = references.load(name)
    assert reference.certified
    assert len(reference.routes) == 2
    assert f"{name}: " in str(reference)
    assert "the routes agree" in str(reference)
    # Ten errors of the reference: what it can tell apart.
    assert np.median(reference.functions.resolution) < 0.35


@NAMED
def test_a_route_that_is_off_takes_the_certificate(name):
    reference = references.load(name)
    means = reference.functions.route_means.copy()
    means[0, 3] += 0.5 * reference.functions.sd[3]
    assert not reference._replace(
        functions=reference.functions._replace(route_means=means)
    ).certified


@pytest.mark.parametrize("name", ["rdata", "cdata"])
def test_the_second_route_is_the_published_one(name, shared):
    reference = references.load(name)
    his = json.loads((shared / "fbm" / "reference_open.json").read_text())[name]["log_sigma"]
    assert reference.log_scales.names == tuple(NAMES[scale] for scale in his)
    for i, known in enumerate(his.values()):
        assert reference.log_scales.route_means[1, i] == known["mean"]
        assert reference.log_scales.route_errors[1, i] == known["mcse"]
    with np.load(shared / "fbm" / "predictions_open.npz") as file:
        mean = file[f"{posteriors.PREDICTED[name]}_mean"][:ROWS]
    np.testing.assert_allclose(reference.functions.route_means[1], mean, rtol=1e-6)


def study_of(name):
    """The model of the study that made a reference, and its rows as the reference has them."""
    if name != "digits":
        rows = Split(*posteriors.data_of(name, posteriors.SHARED))
        return posteriors.model_of(name), rows, rows
    given = hierarchical_posteriors.posterior(None, name, 0)
    units = given.model.standardization
    x, x_test = (
        np.float32((part - units.x_mean) / units.x_scale)
        for part in (given.split.x, given.split.x_test)
    )
    return given.model, given.split, given.split._replace(x=x, x_test=x_test)


@NAMED
@pytest.mark.usefixtures("shared")
def test_model_and_rows_are_those_of_the_study(name):
    reference = references.load(name)
    study, given, rows = study_of(name)
    np.testing.assert_array_equal(reference.x, rows.x)
    np.testing.assert_array_equal(reference.y, rows.y)
    # Of the digits the images of which the posterior is least sure.
    known = [tuple(np.ravel(x)) for x in np.asarray(rows.x_test)]
    chosen = [known.index(tuple(np.ravel(x))) for x in reference.x_test]
    np.testing.assert_array_equal(reference.y_test, np.asarray(rows.y_test)[chosen])
    if name != "digits":
        assert chosen == list(range(min(ROWS, len(rows.x_test))))
    assert len(set(chosen)) == len(chosen) >= 100
    sites = sites_of(reference.model, reference.x, 0)
    own = log_density_of(reference.model, reference.x, reference.y, sites)
    theirs = log_density_of(study, given.x, given.y, sites)
    np.testing.assert_allclose(own, theirs, rtol=1e-5)


@NAMED
def test_draws_of_the_reference_agree_with_it(name):
    reference = references.load(name)
    grade = references.grade({"functions": reference.draws[None]}, name)
    assert grade.agrees, str(grade)
    assert list(grade.parts) == ["functions"]
    assert 0.9 < grade.parts["functions"].spread < 1.1


@NAMED
def test_what_is_off_is_told_by_how_much(name):
    reference = references.load(name)
    grade = references.grade(drawn(reference), reference)
    assert grade.agrees, str(grade)
    assert "no difference is seen" in str(grade)
    off = references.grade(drawn(reference, shift=0.4), reference)
    assert not off.agrees
    for part in off.parts.values():
        assert abs(part.typical - 0.4) < 5 / 1000**0.5
    wide = references.grade(drawn(reference, factor=2.0), reference)
    for part in wide.parts.values():
        assert 1.9 < part.spread < 2.1


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.3, 0.7, 1.4, 3.0, 10.0])
def test_draws_of_another_spread_differ(factor):
    reference = references.load("rdata")
    grade = references.grade(drawn(reference, factor=factor), reference)
    assert grade.outcome == "differs"
    for part in grade.parts.values():
        assert part.outcome == "differs"
        assert part.spread_errors > part.limit
    assert "differs from the reference" in str(grade)


def test_one_scale_of_another_spread_is_named():
    reference = references.load("rdata")
    values = drawn(reference)
    values["noise"] = values["noise"].mean() + 1.5 * (values["noise"] - values["noise"].mean())
    part = references.grade(values, reference).parts["log scales"]
    assert part.outcome == "differs"
    assert part.worst_spread == "noise"


def test_narrow_chains_far_from_each_other_cannot_be_told():
    """Their mean is right, and their spread shows that they disagree."""
    reference = references.load("rdata")
    values = drawn(reference, factor=0.05)
    values["functions"][:2] += 3 * reference.functions.sd
    values["functions"][2:] -= 3 * reference.functions.sd
    grade = references.grade({"functions": values["functions"]}, reference)
    assert grade.outcome == "cannot be told"
    assert not grade.agrees
    assert "it cannot be told whether it differs" in str(grade)
    # As do chains that stand still at different places.
    still = np.broadcast_to(values["functions"].mean(1, keepdims=True), values["functions"].shape)
    assert references.grade({"functions": still}, reference).outcome == "cannot be told"


@pytest.mark.parametrize("num_draws", [4, 8])
def test_few_draws_cannot_be_told(num_draws):
    reference = references.load("rdata")
    few = {"functions": drawn(reference)["functions"][:, :num_draws]}
    assert references.grade(few, reference).outcome == "cannot be told"


@NAMED
def test_exact_draws_are_hardly_ever_said_to_differ(name):
    """Independent draws from those that the reference keeps, its distribution here; chance: 1 in 100."""
    reference = references.load(name)
    kept, known = reference.draws, reference.functions
    sd = np.maximum(kept.std(0), 1e-12)
    exact = np.broadcast_to(kept.mean(0), known.route_means.shape)
    errors = np.broadcast_to(sd / 100.0, known.route_errors.shape)
    distribution = known._replace(sd=sd, route_means=exact, route_errors=errors)
    rng = np.random.default_rng(1)
    for _ in range(5):
        draws = kept[rng.integers(0, len(kept), (4, 250))]
        grade = references.grade({"functions": draws}, reference._replace(functions=distribution))
        assert grade.outcome == "no difference is seen", str(grade)


def test_one_scale_that_is_off_is_named():
    reference = references.load("rdata")
    values = drawn(reference)
    values["noise"] += 0.5 * reference.log_scales.sd[reference.log_scales.names.index("noise")]
    grade = references.grade(values, reference)
    assert not grade.agrees
    assert grade.parts["log scales"].worst == "noise"
    assert grade.parts["functions"].agrees


def test_chains_that_do_not_agree_are_told():
    reference = references.load("rdata")
    values = drawn(reference)
    values["functions"][0] += 3 * reference.functions.sd
    assert "chains do not agree" in str(references.grade(values, reference))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v | {"functions": v["functions"][..., :7]}, r"shape \(chain, draw, 200\)"),
        (lambda v: v | {"functions": v["functions"][:, :3]}, "got 3 draws a chain"),
        (lambda v: v | {"noise": v["noise"] * np.nan}, "1000 values that are not finite"),
    ],
)
def test_what_cannot_be_graded_is_refused(change, message):
    reference = references.load("rdata")
    with pytest.raises(ValueError, match=message):
        references.grade(change(drawn(reference)), reference)


def test_an_unknown_reference_is_refused():
    with pytest.raises(ValueError, match=r"expected one of .*mnist"):
        references.load("mnist")


def test_draws_of_the_model_are_graded():
    """Draws of the prior: its networks are nothing like those of the posterior."""
    reference = references.load("rdata")
    of_keys = jax.jit(jax.vmap(partial(sites_of, reference.model, reference.x)))
    sites = of_keys(jnp.arange(8))
    draws = {name: value.reshape(2, 4, *value.shape[1:]) for name, value in sites.items()}
    grade = references.grade(draws, reference)
    assert set(grade.parts) == {"functions", "log scales"}
    assert grade.parts["log scales"].num_scalars == 4
    assert grade.parts["functions"].spread > 10


@pytest.mark.parametrize("copies", [4, 16])
def test_copies_of_a_chain_count_once(copies):
    reference = references.load("rdata")
    one = reference.draws[None]
    known = references.grade({"functions": one}, reference)
    assert known.agrees
    assert references.grade({"functions": np.repeat(one, copies, 0)}, reference) == known
