"""The permutation test of chains: its p-values under the null, and what it must catch."""

from importlib import import_module

import numpy as np
import pytest
from autoregressive import autoregressive
from scipy import stats

from numpyro_bnn.diagnostics.convergence.rhat import (
    nested_rhat,
    nested_rhat_limit,
    rhat,
    rhat_limit,
)
from numpyro_bnn.diagnostics.monte_carlo.agreement import agreement, chain_groups
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import mean_errors
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

module = import_module("numpyro_bnn.diagnostics.monte_carlo.agreement")

# Fewer permutations than a report makes: p-values are coarser, not biased.
FEW = 299


def factors(rng, chains, draws, scalars, rho, heavy=False):
    """Stationary scalars of unit variance that depend on each other through five factors."""
    x = autoregressive(rng, (chains, draws, 5), rho)
    loadings = rng.standard_normal((5, scalars))
    x = x @ (loadings / np.linalg.norm(loadings, axis=0))
    return x / np.sqrt(rng.chisquare(3, (chains, draws, 1))) if heavy else x


SETTINGS = {
    "independent draws": (4, 150, 30, 0.0, False),
    "one scalar": (4, 300, 1, 0.5, False),
    "many chains": (16, 160, 10, 0.3, False),
    "slow": (4, 1200, 10, 0.8, False),
    "heavy tails": (4, 200, 30, 0.0, True),
    "two chains": (2, 600, 10, 0.5, False),
    "halves of one chain": (1, 1600, 10, 0.5, False),
}


def null_p(setting, runs, **options):
    """P-values `(3, run)` of runs that are all stationary: both together, of max, of median."""
    chains, draws, scalars, rho, heavy = SETTINGS[setting]
    rng = np.random.default_rng(list(setting.encode()))
    found = []
    for seed in range(runs):
        x = factors(rng, chains, draws, scalars, rho, heavy)
        result = agreement({"y": x}, num_permutations=FEW, seed=seed, **options)
        if result.tested:
            found.append((result.p, result.p_max, result.p_median))
    # Chance makes some runs look too slow for enough batches.
    assert len(found) >= 0.97 * runs
    return np.transpose(found)


def check_uniform(p, margin):
    for each in p:
        # Distance from the uniform distribution: by chance, from FEW + 1 levels, and what the correlation
        # of batches (1 + 2 r, not known exactly) leaves.
        distance = stats.kstest(each, "uniform").statistic
        assert distance < stats.kstwo.isf(0.001, each.size) + 1 / (FEW + 1) + margin


@pytest.mark.parametrize("setting", SETTINGS)
def test_p_is_uniform_for_stationary_chains(setting):
    check_uniform(null_p(setting, 60), 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_p_is_uniform_in_many_runs(setting):
    p = null_p(setting, 500)
    check_uniform(p, 0.02)
    # False alarms at 1 %: three binomial errors above.
    assert (p <= 0.01).mean(axis=1).max() < 0.01 + 3 * np.sqrt(0.01 / p.shape[1])


def test_the_statistic_is_f_over_one_plus_two_r(rng):
    batches = factors(rng, 5, 40, 50, 0.3)
    flat = module.standardized(batches)
    share, r = module._observed_share(flat.reshape(batches.shape))
    assert 0.2 < r < 0.4
    f = share / 4 / ((1 - share) / (5 * 39))
    expected = stats.f_oneway(*batches, axis=0).statistic / (1 + 2 * r)
    np.testing.assert_allclose(f, expected, rtol=1e-10)


@pytest.mark.parametrize("length", [4, 5, 7, 8])
@pytest.mark.parametrize(("chains", "sums"), [(2, 1), (3, 60), (6, 1 << 21)])
def test_shuffled_shares_are_those_of_an_analysis_of_variance(
    rng, chains, length, sums, monkeypatch
):
    # Scalars at a time: one, a few, all of them.
    monkeypatch.setattr(module, "_SUMS", sums)
    batches = rng.standard_normal((chains, length, 300))
    flat = module.standardized(batches)
    order = rng.permuted(np.tile(np.arange(chains * length), (9, 1)), axis=1)
    order = order.reshape(9, chains, length)
    largest, kept = module._shuffled(flat, order, 200)
    for k in range(9):
        dealt = flat[order[k]]
        share = np.square(dealt.mean(axis=1)).sum(axis=0)
        f = stats.f_oneway(*dealt, axis=0).statistic
        within = chains * (length - 1)
        np.testing.assert_allclose(share / (1 - share) * within / (chains - 1), f, rtol=1e-8)
        np.testing.assert_allclose(kept[k], share[:200], rtol=1e-4, atol=1e-7)
        assert largest[k] == pytest.approx(share.max(), rel=1e-4)


@pytest.mark.parametrize("scalars", [1, 5])
def test_an_arrangement_does_not_beat_itself(rng, scalars):
    # Two chains of four batches: 35 ways to deal them out, so no p below one in 35 is possible.
    means = rng.standard_normal((2, 4, scalars)) + 100 * np.arange(2)[:, None, None]
    _, found = module._permutation_test(means, 2000, 0)
    assert [found["p"], found["p_max"]] == pytest.approx([1 / 35] * 2)


@pytest.mark.parametrize(("chains", "batches"), [(2, 4), (2, 6), (3, 4), (5, 3)])
def test_orders_deal_out_every_batch_once(chains, batches):
    order = module._orders(chains, batches, 99, 0)
    each = np.sort(order.reshape(len(order), -1), axis=1)
    assert (each == np.arange(chains * batches)).all()
    if chains == 2:
        dealt = {tuple(sorted(map(tuple, np.sort(one, axis=1).tolist()))) for one in order}
        assert len(order) == len(dealt) == module._ways(2, batches) - 1
        assert (tuple(range(batches)), tuple(range(batches, 2 * batches))) not in dealt


def test_the_least_number_of_batches_is_that_of_ways_to_deal_them_out():
    # Without names of chains: C(8, 4) / 2 for two chains of four batches.
    assert [module._ways(2, k) for k in (4, 5, 6)] == [35, 126, 462]
    assert [module.least_batches(c) for c in (2, 3, 4, 64)] == [6, 4, 4, 4]
    for chains in (2, 3, 4):
        assert 2 / module._ways(chains, module.least_batches(chains)) < module.SIGNIFICANT


@pytest.mark.parametrize("scalars", [1, 20])
@pytest.mark.parametrize("permutations", [200, 2000])
def test_chains_far_apart_never_agree(rng, scalars, permutations):
    """Two chains with any number of batches, or the halves of one, disagree or are not tested."""
    x = factors(rng, 2, 330, 20, 0.0)
    x[1, :, :scalars] += 10
    for draws in range(30, 330, 25):
        two = agreement({"y": x[:, :draws]}, num_permutations=permutations)
        one = agreement(
            {"y": x[:, :draws].reshape(1, 2 * draws, 20)}, num_permutations=permutations
        )
        for found in (two, one):
            assert found.disagree(Tolerance()) == found.tested
            assert found.tested == (found.needed <= 1)
    assert two.tested


SHIFTS = [("probs", 0.05), ("y", 1.0)]


@pytest.mark.parametrize(("name", "scale"), SHIFTS)
def test_few_scalars_and_many_are_seen(rng, name, scale):
    def found(shift, scalars):
        x = factors(rng, 4, 600, 200, 0.3)
        x[2, :, :scalars] += shift
        return agreement({name: (0.1 + scale * x).reshape(4, 600, 20, 10)})

    few = found(1.0, 4)
    assert few.disagree(Tolerance())
    assert few.p_max < 0.01
    # In one run of forty chance parts the others too.
    assert np.count_nonzero(few.members == few.members[2]) == 1
    assert few.differs[name].reshape(-1)[:4].all()
    # The others depend on each other: in one run of twenty chance takes several along.
    assert few.differs[name].sum() < 20
    many = found(0.5, 200)
    assert many.disagree(Tolerance())
    assert many.p_median < 0.01
    assert (many.groups, many.members.tolist()) == (2, [0, 0, 1, 0])
    key = "total_variation" if name == "probs" else "relative"
    apart = 0.5 * 10 * scale * 0.5 if name == "probs" else 0.5
    assert getattr(many, key) == pytest.approx(apart, rel=0.5)


def test_what_is_below_the_tolerance_is_no_disagreement(rng):
    x = factors(rng, 4, 20_000, 10, 0.0)
    x[0] += 0.04
    found = agreement({"y": x, "scale": 2 + 0 * x, "mean": 10 * x})
    close = agreement({"mean": 0.1 * x, "scale": np.ones_like(x)})
    assert found.p < 0.01
    assert close.p < 0.01
    assert close.groups == 1
    assert not close.disagree(Tolerance())
    assert close.disagree(Tolerance(relative=0.001))


@pytest.mark.parametrize(
    ("centers", "members"),
    [
        ([0, 0, 5, 5], [0, 0, 1, 1]),
        ([0, 5, 0, 5, 0], [0, 1, 0, 1, 0]),
        ([0, 3, 6, 9], [0, 1, 2, 3]),
        ([1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("scalars", [1, 300])
def test_groups_of_chains(rng, centers, members, scalars):
    x = factors(rng, len(centers), 800, scalars, 0.3)
    x += np.array(centers)[:, None, None]
    found = agreement({"y": x}, num_permutations=499)
    assert found.members.tolist() == members
    assert found.groups == max(members) + 1


def test_stuck_chains_disagree(rng):
    apart = np.broadcast_to(np.arange(4.0)[:, None, None], (4, 200, 3)).copy()
    assert agreement({"y": apart}).groups == 4
    apart[1:] = rng.standard_normal((3, 200, 3))
    apart[0] = 2.0
    assert agreement({"y": apart}).members.tolist() == [0, 1, 1, 1]
    same = agreement({"y": np.ones((4, 200, 3))})
    assert not same.tested
    assert same.needed == 0
    assert not same.disagree(Tolerance())


def test_slow_scalars_are_left_out_and_named(rng):
    x = factors(rng, 4, 2000, 100, 0.0)
    x[:, :, 7] = factors(rng, 4, 2000, 1, 0.97)[:, :, 0]
    found = agreement({"y": x})
    assert found.tested
    assert np.flatnonzero(found.left_out["y"]).tolist() == [7]
    assert not found.differs["y"][7]
    # A tenth and more set the length for all.
    x[:, :, :30] = factors(rng, 4, 2000, 30, 0.8)
    slow = agreement({"y": x})
    assert not slow.left_out["y"][:30].all()
    assert slow.batch_length >= 60


def test_batches_are_as_long_as_times_are_and_not_as_their_estimates_scatter(rng):
    # Nineteen draws for every scalar: of 200 scalars' estimates a tenth are above 24.
    x = np.concatenate([factors(rng, 4, 1000, 40, 0.9) for _ in range(5)], axis=2)
    errors = mean_errors(x)
    assert np.quantile(errors.time, 0.9) > 22
    assert 150 <= agreement({"y": x}, errors={"y": errors}).batch_length <= 10 * 22
    # Times that do differ are not drawn together.
    x[:, :, :40] = factors(rng, 4, 1000, 40, 0.0)
    mixed = np.concatenate([x[:, :, :40], factors(rng, 4, 1000, 10, 0.8)], axis=2)
    assert agreement({"y": mixed}).batch_length > 10 * 6


def test_a_given_analysis_is_used_and_the_result_is_the_same(rng):
    x = factors(rng, 4, 300, 20, 0.3)
    one, two = agreement({"y": x}), agreement({"y": x}, errors={"y": mean_errors(x)})
    assert (one.p, one.p_max, one.p_median) == (two.p, two.p_max, two.p_median)
    assert agreement({"y": x}, seed=1).p_max == pytest.approx(one.p_max, abs=0.1)


def test_too_few_permutations_are_refused(rng):
    with pytest.raises(ValueError, match=r"at least 200 permutations.* num_permutations=199"):
        agreement({"y": rng.standard_normal((4, 100, 3))}, num_permutations=199)


def test_groups_are_at_least_two(rng):
    # The test has found a difference: it is never one group.
    assert len(set(chain_groups(rng.standard_normal((4, 8, 5))))) >= 2


# R-hat with the limit that belongs to the number of scalars.


@pytest.mark.parametrize(
    ("chains", "draws", "scalars"), [(4, 300, 1), (4, 300, 100), (16, 100, 30)]
)
def test_stationary_chains_stay_below_the_limit_of_rhat(rng, chains, draws, scalars):
    x = rng.standard_normal((chains, draws, 60 * scalars))
    worst = rhat(x).reshape(60, scalars).max(axis=1)
    limit = rhat_limit(scalars, chains, chains * draws)
    # At most 5 %: three binomial errors above.
    assert (worst > limit).mean() < 0.05 + 3 * np.sqrt(0.05 / 60)
    assert limit < 1.1 * worst.max()
    shifted = x[:, :, :scalars] + np.eye(chains)[0][:, None, None]
    assert rhat(shifted).max() > limit


def test_limits_of_rhat_by_hand():
    # Median R-hat**2 of m half-chains is 1 + m / S; 97.5 % below 1.01 takes S = 910 for one scalar.
    assert float(rhat_limit(1, 4, 910)) == pytest.approx(1.01, abs=2e-5)
    assert float(rhat_limit(4500, 4, 2080)) == pytest.approx(1.01, abs=2e-5)
    np.testing.assert_allclose(rhat_limit(1, 4, [910, 91]) ** 2 - 1, [0.0201, 0.201], rtol=0.01)


@pytest.mark.parametrize(("superchains", "size", "draws"), [(4, 16, 1), (8, 8, 10), (2, 2, 100)])
def test_stationary_chains_stay_below_the_limit_of_nested_rhat(rng, superchains, size, draws):
    chains = superchains * size
    x = rng.standard_normal((chains, draws, 3000))
    found = nested_rhat(x, superchains, method="identity").reshape(100, 30)
    limit = nested_rhat_limit(30, superchains, chains, chains * draws)
    assert (found > limit).any(axis=1).mean() < 0.05 + 3 * np.sqrt(0.05 / 100)
    x[:size] += 2
    assert (nested_rhat(x, superchains, method="identity") > limit).mean() > 0.5 or size == 2
