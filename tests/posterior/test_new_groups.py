"""Groups that the fit never saw: refused by default, drawn from their population on request."""

from functools import partial

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from small_models import row_model

import numpyro_bnn as bnn

DRAWS = 4000
RNG = np.random.default_rng(0)
SPREAD, CENTRE = 0.5 + RNG.random(DRAWS), RNG.normal(size=DRAWS)
EFFECTS = RNG.normal(size=(DRAWS, 3))
X = np.array([[0, 1.0], [2, 1.0], [3, 1.0], [5, 1.0], [5, 2.0]], np.float32)


def model(x, y=None, *, centred=True):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", 3):
        own = dist.Normal(centre, spread) if centred else dist.Normal(0.0, 1.0)
        effect = numpyro.sample("effect" if centred else "base", own)
    if not centred:
        effect = numpyro.deterministic("effect", centre + spread * effect)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(2 * x[:, 1] + effect[x[:, 0].astype(int)], 0.1), obs=y)


BASE = (EFFECTS - CENTRE[:, None]) / SPREAD[:, None]
KNOWN = {"spread": SPREAD, "centre": CENTRE}
MODELS = {
    "centred": (model, {"effect": EFFECTS}),
    "noncentred": (partial(model, centred=False), {"base": BASE}),
}


@pytest.mark.parametrize("name", MODELS)
def test_new_groups_have_the_distribution_of_their_population(name):
    model, values = MODELS[name]
    means = np.asarray(bnn.predict(model, KNOWN | values, X, new_groups="sample").mean)
    means = means.reshape(DRAWS, 5).astype(np.float64)
    # Known groups have their own effects.
    np.testing.assert_allclose(means[:, 0], 2 + EFFECTS[:, 0], atol=1e-5)
    np.testing.assert_allclose(means[:, 1], 2 + EFFECTS[:, 2], atol=1e-5)
    # Given a draw, those of new ones are Normal(centre, spread).
    standard = (means[:, 2:] - 2 * X[2:, 1] - CENTRE[:, None]) / SPREAD[:, None]
    assert (abs(standard.mean(0)) < 5 / np.sqrt(DRAWS)).all()
    assert (abs(standard.var(0) - 1) < 5 * np.sqrt(2 / DRAWS)).all()
    # Two rows of one new group share its effect; two groups do not.
    np.testing.assert_allclose(standard[:, 1], standard[:, 2], atol=1e-4)
    assert abs(np.corrcoef(standard[:, 0], standard[:, 1])[0, 1]) < 5 / np.sqrt(DRAWS)


def test_without_new_groups_nothing_changes():
    known = X[:2]
    given = bnn.predict(model, KNOWN | {"effect": EFFECTS}, known)
    on_request = bnn.predict(model, KNOWN | {"effect": EFFECTS}, known, new_groups="sample")
    np.testing.assert_array_equal(given.mean, on_request.mean)


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (X, {}, r"new_groups='sample'"),
        (X * [-1, 1], {"new_groups": "sample"}, "has the value -"),
        (X, {"new_groups": "prior"}, "'sample' or None"),
    ],
)
def test_other_groups_are_refused(x, options, words):
    with pytest.raises(ValueError, match=words):
        bnn.predict(model, KNOWN | {"effect": EFFECTS}, x, **options)


@pytest.mark.parametrize("door", [bnn.diagnose, partial(bnn.thin, k=10)])
def test_other_doors_refuse_them_under_their_own_names(door):
    draws = {name: value[None, :200] for name, value in (KNOWN | {"effect": EFFECTS}).items()}
    with pytest.raises(ValueError, match=r"^(diagnose|thin): column 0 of x .* for each\.$"):
        door(bnn.Draws(draws, model), x=X)


def test_a_table_that_is_no_plate_has_no_population():
    embedded = row_model(
        lambda x, table: dist.Normal(table[x[:, 0].astype(int)], 0.1),
        table=dist.Normal(0.0, 1.0).expand([3]).to_event(1),
    )
    with pytest.raises(ValueError, match="table of 3 entries"):
        bnn.predict(embedded, {"table": EFFECTS}, X, new_groups="sample")
