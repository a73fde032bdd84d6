"""The table of a model: which prior, with which numbers, on which weight of which layer."""

from html.parser import HTMLParser
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from flax import nnx

import numpyro_bnn as bnn
from numpyro_bnn.workflow.describe import Row

X = np.arange(15.0).reshape(5, 3)
P = bnn.priors


class Nested(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(4)(x)))


class Twice(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.out = nnx.Linear(4, 1, rngs=rngs)
        self.features = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.features(x)))


def test_a_plain_prior_row_by_row():
    table = bnn.describe(bnn.regression(Nested(), P.FanIn(2.0)), X)
    assert table.rows == (
        Row("net/Dense_1.bias", (4,), 0, "Normal(loc=0.0, scale=1.414)", "random", 4),
        Row("net/Dense_1.kernel", (3, 4), 0, "Normal(loc=0.0, scale=0.8165)", "random", 12),
        Row("net/Dense_0.bias", (1,), 1, "Normal(loc=0.0, scale=1.414)", "random", 1),
        Row("net/Dense_0.kernel", (4, 1), 1, "Normal(loc=0.0, scale=0.7071)", "random", 4),
        Row("y.scale", (), None, "HalfNormal(scale=1.0)", "random", 1),
    )
    assert (table.num_random, table.num_fixed) == (21, 0)


@pytest.mark.parametrize("coordinates", ["noncentered", "centered", "collapsed"])
def test_a_hierarchy_tells_its_levels_in_any_coordinates(coordinates):
    units = P.Hierarchical.width(0.2, group=0.5, unit=1.0, weight=3.0, scale_by_fan_in=True)
    prior = P.ByPath({"layer[0].kernel": units, "*": P.Hierarchical(2.0, 0.5)})
    table = bnn.describe(bnn.parameterize(bnn.regression(Nested(), prior), coordinates), X)
    told = {row.site: row.prior for row in table.rows}
    kernel = "net/Dense_1.kernel"
    assert told[kernel] == f"StudentT(3, 0, τ^-1/2), τ = {kernel}.unit_precision"
    assert told[f"{kernel}.precision"] == "Gamma(0.25, 0.001111)"
    assert told[f"{kernel}.unit_precision"] == f"Gamma(0.5, 0.5/τ), τ = {kernel}.precision"
    assert told["net/Dense_0.bias.precision"] == "Gamma(2, 0.5)"
    layers = {row.site: row.layer for row in table.rows}
    assert layers[f"{kernel}.unit_precision"] == 0
    assert layers["net/Dense_0.bias.precision"] == 1
    assert table.num_random == 21


def test_fixed_and_computed_parameters():
    prior = P.ByPath({"features.*": None, "*": P.Horseshoe(0.1)})
    table = bnn.describe(bnn.regression(Twice(), prior), X)
    kinds = {row.site: (row.kind, row.layer) for row in table.rows}
    assert kinds["net/features.kernel"] == ("fixed", 0)
    assert kinds["net/out.kernel"] == ("computed", 1)
    assert kinds["net/out.kernel.local_scale"] == ("random", 1)
    computed = next(row for row in table.rows if row.site == "net/out.kernel")
    assert computed.prior == "from its .global_scale, .local_scale, .slab_variance, .base"
    assert (table.num_random, table.num_fixed) == (5, 16)
    assert "5 random weights, 16 fixed" in repr(table)


def test_a_model_of_the_users_own_with_two_networks():
    def model(x, y=None):
        tau = numpyro.sample("tau", dist.Gamma(2.0, 3.0))
        one = bnn.random_module("one", nn.Dense(2), dist.Normal(0.0, 2.0), x[:1])
        two = bnn.random_module(
            "two", nn.Dense(1), lambda path, shape: dist.Laplace(0.0, tau), x[:1]
        )
        with numpyro.plate("groups", len(x) + 1):
            a = numpyro.sample("a", dist.Normal(0.0, tau))
        with numpyro.plate("data", len(x)):
            f = one(x).sum(1) + two(x)[:, 0] + a[: len(x)]
            numpyro.sample("y", dist.Normal(f, 1.0), obs=y)

    table = bnn.describe(model, X)
    assert [row.site for row in table.rows] == [
        *("one/bias", "one/kernel", "two/bias", "two/kernel", "tau", "a")
    ]
    assert table.rows[0].prior == "Normal(loc=0.0, scale=2.0)"
    assert table.rows[3].prior == "Laplace(loc=0.0, scale=tau)"
    assert table.rows[4].prior == "Gamma(concentration=2.0, rate=3.0)"
    assert bnn.describe(model, X, np.zeros(5)).rows == table.rows


def test_numbers_that_latent_sites_decide_are_told_by_their_names():
    def model(x, y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(10.0))
        share = numpyro.sample("share", dist.Beta(1.0, 2.0))
        kind = numpyro.sample("kind", dist.Bernoulli(0.3))
        numpyro.sample("w", dist.Normal(0.0, tau).expand([3]).to_event(1))
        # Equal to a constant at tau = 1.
        numpyro.sample("square", dist.Normal(jnp.full(3, 0.5), tau**2).to_event(1))
        numpyro.sample("both", dist.Normal(share * tau, 1.0))
        numpyro.sample("chosen", dist.Normal(jnp.array([-2.0, 2.0])[kind], 1.0))
        numpyro.sample("zeros", dist.ZeroInflatedDistribution(dist.Poisson(tau), gate=0.2))
        bnn.random_module("net", nn.Dense(1), dist.Normal(0.0, 0.01 * tau), x[:1])(x)

    told = {row.site: row.prior for row in bnn.describe(model, X).rows}
    assert told["tau"] == "HalfNormal(scale=10.0)"
    assert told["share"] == "Beta(concentration1=1.0, concentration0=2.0)"
    assert told["w"] == "Normal(loc=0.0, scale=tau)"
    assert told["square"] == "Normal(loc=0.5, scale=f(tau))"
    assert told["both"] == "Normal(loc=f(share, tau), scale=1.0)"
    assert told["chosen"] == "Normal(loc=f(kind), scale=1.0)"
    assert told["net/kernel"] == "Normal(loc=0.0, scale=f(tau))"
    assert "1.0" not in told["zeros"]


def test_text_is_aligned_and_html_is_escaped():
    table = bnn.describe(bnn.regression(Nested(), P.Normal(0.5)), X)
    lines = repr(table).splitlines()
    assert lines[0].split() == ["layer", "site", "shape", "prior", "entries"]
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert lines[2].split()[:2] == ["[0]", "net/Dense_1.bias"]

    class Cells(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open, self.found = [], []

        def handle_starttag(self, tag, attributes):
            self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

        def handle_data(self, data):
            if self.open and self.open[-1] == "td":
                self.found.append(data)

    cells = Cells()
    odd = type(table)([Row("<b>&", (1,), 0, "a<b", "random", 1)])
    cells.feed(odd._repr_html_())
    assert not cells.open
    assert cells.found == ["[0]", "<b>&", "(1,)", "a<b", "1"]


def test_a_model_is_left_as_it_was():
    model = bnn.regression(Nested(), P.FanIn())
    before = repr(model)
    bnn.describe(model, X)
    assert repr(model) == before
    assert "no data yet" in before
    labels = bnn.classification(bnn.MLP((2,), 3), P.FanIn(), X, np.array([0, 1, 2, 0, 1]))
    assert bnn.describe(labels).num_random == 17
    estimator = SimpleNamespace(model_=labels)
    assert bnn.describe(estimator).rows == bnn.describe(labels).rows


def test_inputs_are_asked_for():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        bnn.describe(bnn.regression(Nested(), P.FanIn()))


def test_a_network_that_is_made_and_not_called_is_told_so():
    def model(x):
        net = bnn.random_module("net", bnn.MLP((2,), 1), bnn.priors.Normal(1.0), x)
        other = bnn.random_module("other", bnn.MLP((), 1), bnn.priors.Hierarchical(), x)
        numpyro.sample("y", dist.Normal(net(x)[:, 0] if other is None else 0.0, 1.0))
        net(x)

    table = bnn.describe(model, jnp.ones((3, 4)))
    assert (table.num_random, table.not_called) == (4 * 2 + 2 + 2 + 1 + 4 + 1, ("other",))
    assert "made and not called, so that no output depends on it: other" in repr(table)
