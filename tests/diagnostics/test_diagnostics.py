"""Verdicts and explanations of constructed situations, and what a report holds."""

import functools
import warnings

import numpy as np
import pytest
from autoregressive import autoregressive

from numpyro_bnn import diagnostics
from numpyro_bnn.diagnostics import diagnose_draws

with warnings.catch_warnings():
    # What old Matplotlib and old ArviZ say about their own dependencies when first imported.
    warnings.simplefilter("ignore")
    import matplotlib.pyplot
    from test_rhat import arviz_of


C, N, INPUTS = 4, 500, 50


def weights_of(rng, chains=C, draws=N):
    return {
        "net/Dense_0.kernel": rng.normal(size=(chains, draws, 3, 4)),
        "net/Dense_0.kernel.precision": np.exp(rng.normal(size=(chains, draws))),
    }


def probs_of(logits):
    p = 1 / (1 + np.exp(-logits))
    return {"probs": np.stack([1 - p, p], axis=-1)}


def relabelled(rng):
    """Each chain holds the hidden units in its own order: the same functions."""
    units = np.arange(4) + 0.1 * rng.normal(size=(C, N, 4))
    return {"kernel": np.stack([units[c][:, rng.permutation(4)] for c in range(C)])}


def shifted(rng, chains, inputs, by=3.0):
    x = rng.normal(size=(C, N, INPUTS))
    x[np.ix_(chains, np.arange(N), np.arange(inputs))] += by
    return x


def situation(name, rng):
    w, f = weights_of(rng), rng.normal(size=(C, N, INPUTS))
    noise = {"scale": np.exp(0.1 * rng.normal(size=(C, N, INPUTS)))}

    def with_stats(**stats):
        return {"weights": w, "predictions": f, "sample_stats": stats}

    match name:
        case "independent":
            return {"weights": w, "predictions": f, "log_joint": rng.normal(size=(C, N))}
        case "relabelled":
            return {"weights": relabelled(rng), "predictions": f}
        case "one mode a chain in weights, classes alike":
            w["net/Dense_0.kernel"] += 5 * rng.normal(size=(C, 1, 3, 4))
            return {"weights": w, "predictions": probs_of(f)}
        case "two groups":
            return {"weights": w, "predictions": {"mean": shifted(rng, [1, 3], 7), **noise}}
        case "every chain apart":
            return {"weights": w, "predictions": f + 3 * np.arange(C)[:, None, None]}
        case "one stuck":
            f[2], w["net/Dense_0.kernel"][2] = f[2, 0], w["net/Dense_0.kernel"][2, 0]
            return {"weights": w, "predictions": f}
        case "all stuck":
            return {"weights": {"w": np.ones((C, N, 2))}, "predictions": np.ones((C, N, 3))}
        case "one NaN chain":
            f[1, 137:] = np.nan
            return {"weights": w, "predictions": f}
        case "infinite weight":
            w["net/Dense_0.kernel"][3, -1, 0, 0] = np.inf
            return {"weights": w, "predictions": f}
        case "all NaN":
            return {"weights": w, "predictions": f * np.nan}
        case "too short":
            return {"weights": weights_of(rng, draws=99), "predictions": f[:, :99]}
        case "NaN and too short":
            f[0, 0] = np.nan
            return {"weights": weights_of(rng, draws=50), "predictions": f[:, :50]}
        case "three draws":
            return {"weights": weights_of(rng, draws=3), "predictions": f[:, :3]}
        case "one chain":
            return {
                "weights": weights_of(rng, chains=1, draws=2 * N),
                "predictions": rng.normal(size=(1, 2 * N, INPUTS)),
            }
        case "trend":
            return {"weights": w, "predictions": f + np.linspace(0, 2, N)[:, None]}
        case "few effective draws":
            # Slow, but the halves of all chains hold the same values: no R-hat at all.
            half = autoregressive(rng, (1, N // 2, INPUTS), 0.95)
            chain = np.concatenate([half, half[:, ::-1]], axis=1)
            return {"weights": w, "predictions": chain.repeat(C, axis=0)}
        case "other scale":
            f[0] *= 3
            return {"weights": w, "predictions": f}
        case "precision apart":
            w["net/Dense_0.kernel.precision"][0] += 20
            return {"weights": w, "predictions": f}
        case "log joint apart":
            joint = rng.normal(size=(C, N)) + 4 * np.arange(C)[:, None]
            return {"weights": w, "predictions": f, "log_joint": joint}
        case "weights alone":
            return {"weights": w}
        case "weights alone, relabelled":
            return {"weights": relabelled(rng)}
        case "weights alone, one stuck":
            w["net/Dense_0.kernel"][2] = w["net/Dense_0.kernel"][2, 0]
            return {"weights": w}
        case "predictions alone":
            return {"predictions": f}
        case "predictions and log joint":
            return {"predictions": f, "log_joint": rng.normal(size=(C, N))}
        case "some inputs constant":
            f[:, :, :30] = 1.0
            return {"weights": w, "predictions": f}
        case "divergences":
            return with_stats(diverging=np.arange(C * N).reshape(C, N) % 5 == 0)
        case "saturated trees":
            steps = np.where(np.arange(C * N).reshape(C, N) % 2, 1023, 7)
            return with_stats(num_steps=steps, max_num_steps=1023)
        case "cut trajectories":
            steps = np.where(np.arange(C * N).reshape(C, N) % 4, 200, 255)
            return with_stats(num_steps=steps, trajectory_limit=255)
        case "surely rejected":
            accept = np.where(np.arange(C * N).reshape(C, N) % 20, 0.9, 1e-6)
            return with_stats(
                num_steps=np.full((C, N), 9), trajectory_limit=255, accept_prob=accept
            )
        case "low acceptance":
            accept = np.where(np.arange(C) == 1, 0.02, 0.8)[:, None] * np.ones(N)
            return with_stats(accept_prob=accept)
        case "low E-BFMI":
            return with_stats(energy=autoregressive(rng, (C, N), 0.98))
        case "second opinion agrees":
            other = {"net/Dense_0.kernel": np.zeros((2, 9, 1)), **weights_of(rng)}
            return {"weights": w, "predictions": f, "second": (other, rng.normal(size=f.shape))}
        case "second opinion parts":
            other = {"weights": weights_of(rng), "predictions": shifted(rng, [0, 1, 2, 3], 1, 0.5)}
            return {"weights": w, "predictions": f, "second": other}
    raise KeyError(name)


# What is said, and in which order: the first is at the beginning.
WITHIN = "within_tolerance"
SITUATIONS = {
    "independent": (WITHIN, ["The chains agree (p = ", "no part of the verdict"]),
    "relabelled": (WITHIN, ["The chains agree", "no part of the verdict", "relabelled"]),
    "one mode a chain in weights, classes alike": (
        WITHIN,
        ["class probabilities", "in total variation", "no part of the verdict"],
    ),
    "two groups": (
        "chains_disagree",
        [
            "2 groups of chains (0, 2 | 1, 3) differ at 14 % of inputs, such as mean[0]",
            "accepted",
            "The chains found different solutions",
            "are those of an ensemble",
            "ParallelTempering",
        ],
    ),
    "every chain apart": (
        "chains_disagree",
        ["Every chain tells its own story at 100 % of inputs"],
    ),
    "one stuck": (
        "chains_disagree",
        ["groups of chains (0, 1, 3 | 2)", "Chains that do not move: 2."],
    ),
    "all stuck": (
        "run_longer",
        ["Copies", "Every draw of every chain is the same", "One chain only"],
    ),
    "one NaN chain": (
        "invalid",
        ["Chain 1 holds NaN", "137 on (predictions", "Leave out chain 1", "within tolerance"],
    ),
    "infinite weight": ("invalid", ["Chain 3", "from draw 499 on (weights 'net/Dense_0.kernel')"]),
    "all NaN": ("invalid", ["at all rows, while the weights are finite", "Chain 0", "Chain 3"]),
    "too short": ("too_short", ["99 draws a chain are too few", "at least 100"]),
    "NaN and too short": ("invalid", ["Chain 0 holds NaN", "too short"]),
    "three draws": ("too_short", ["3 draws a chain are too few"]),
    "one chain": (
        WITHIN,
        ["halves of the one chain", "One chain only: other modes cannot be seen"],
    ),
    "trend": ("run_longer", ["cannot be tested yet", "The chains drift"]),
    "few effective draws": (
        "run_longer",
        ["cannot be tested yet", "fewer than 50 effective draws", "times as many draws (set by"],
    ),
    "other scale": (
        WITHIN,
        ["The chains agree", "R-hat of 50 of 50", "how far the draws spread there may not"],
    ),
    "precision apart": (WITHIN, ["The chains agree", "no part of the verdict"]),
    "log joint apart": (WITHIN, ["The chains agree"]),
    "weights alone": (WITHIN, ["The chains agree (p = 0.52 over all weights)", "No predictions"]),
    "weights alone, relabelled": ("chains_disagree", ["Every chain tells", "No predictions"]),
    "weights alone, one stuck": (
        "chains_disagree",
        ["Chains that do not move: 2.", "No predictions"],
    ),
    "predictions alone": (WITHIN, ["The chains agree"]),
    "predictions and log joint": (WITHIN, ["The chains agree"]),
    "some inputs constant": (WITHIN, ["The chains agree"]),
    "divergences": (
        WITHIN,
        ["transitions diverged (20 %)", "no R-hat can show", "The chains agree"],
    ),
    "saturated trees": (WITHIN, ["ended at the largest tree (50 %)", "The chains agree"]),
    "surely rejected": (WITHIN, ["transitions diverged (5 %). The draws miss where"]),
    "cut trajectories": (WITHIN, ["cut at the most steps allowed (25 %)", "Raise max_num_steps"]),
    "low acceptance": (WITHIN, ["Chain 1 accepts 2 %", "The chains agree"]),
    "low E-BFMI": (WITHIN, ["E-BFMI of chain", "The chains agree"]),
    "second opinion agrees": (
        WITHIN,
        ["The chains agree", "Averages of a second run are 0.0", "A second run agrees in all 204"],
    ),
    "second opinion parts": (
        "chains_disagree",
        [
            "The chains agree",
            "A second run differs in",
            "predictions[0]",
            "One of them has missed something",
        ],
    ),
}


@functools.cache
def report_of(name):
    return diagnose_draws(**situation(name, np.random.default_rng(0)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SITUATIONS)
def test_verdict_and_explanation_of_a_constructed_situation(name):
    verdict, phrases = SITUATIONS[name]
    report = report_of(name)
    assert report.verdict == verdict, str(report)
    place = 0
    for phrase in phrases:
        assert phrase in report.explanation[place:], report.explanation
        place = report.explanation.index(phrase, place)
    # Each can be shown, and says the verdict and what carries it first.
    assert str(report).startswith(f"Verdict: {report.verdict.words}: ")
    assert report.headline
    assert verdict.replace("_", " ") in str(report)
    assert verdict.replace("_", " ") in report._repr_html_()


def test_relabelling_is_large_in_weights_and_nothing_in_functions():
    report = report_of("relabelled")
    assert report.weights.max_rhat > 1.7
    assert report.predictions.max_rhat < 1.01
    assert report.predictions.min_ess > 1000


def test_a_report_holds_arvizs_numbers_of_the_right_scalars(rng):
    arrays = situation("two groups", rng)
    report = diagnose_draws(**arrays)
    mean, kernel = arrays["predictions"]["mean"], arrays["weights"]["net/Dense_0.kernel"]
    by_input = [arviz_of("rhat", mean[:, :, i]) for i in range(INPUTS)]
    assert report.predictions.max_rhat == pytest.approx(max(by_input), rel=1e-6)
    assert report.predictions.worst(1)[0].site == f"mean[{np.argmax(by_input)}]"
    sizes = [arviz_of("ess", x, method="bulk") for x in kernel.reshape(C, N, 12).transpose(2, 0, 1)]
    assert report.weights.min_ess == pytest.approx(min(sizes), rel=1e-6)
    assert report.weights.median_ess == pytest.approx(np.median(sizes), rel=1e-6)
    worst = report.weights.worst(12)[-1].site
    index = tuple(int(i) for i in worst.split("[")[1].rstrip("]").split(", "))
    expected = [arviz_of("rhat", x) for x in kernel.reshape(C, N, 12).transpose(2, 0, 1)]
    assert np.ravel_multi_index(index, (3, 4)) == np.argmin(expected)
    assert report.precisions.num_scalars == 1
    assert report.sampler.divergences is report.sampler.saturated_trees is None


def test_small_probabilities_do_not_count_as_drift(rng):
    # Off by a factor of two, at a thousandth: R-hat sees it, but no one would act on it.
    p = 1e-3 * np.exp(0.1 * rng.normal(size=(2, N, 9))) * np.repeat([1, 2], N // 2)[:, None]
    said = {
        name: diagnose_draws(None, values).explanation
        for name, values in (("probs", {"probs": np.stack([p, 1 - p], -1)}), ("mean", {"mean": p}))
    }
    assert "The chains drift" not in said["probs"]
    assert "The chains drift" in said["mean"]


def test_numbers_leave_out_what_is_constant_and_say_so():
    report = report_of("some inputs constant")
    (group,) = report.predictions.groups
    assert group.num_scalars == INPUTS
    # The size of a constant is the number of draws; more than half would make it the median.
    assert (group.ess[:30] == C * N).all()
    assert report.predictions.median_ess == group.median_ess == np.median(group.ess[30:])


def test_sampler_statistics_of_both_libraries_are_read(rng):
    w = {"w": rng.normal(size=(2, 200))}
    diverging, full = np.zeros((2, 200), bool), np.zeros((2, 200), bool)
    diverging[0, :3] = full[1, :5] = True
    energy, accept = rng.normal(size=(2, 200)), rng.random((2, 200))
    arviz_names = {
        "diverging": diverging,
        "reached_max_treedepth": full,
        "acceptance_rate": accept,
        "energy": energy,
        "step_size": 0.1,
    }
    numpyro_names = {
        "diverging": diverging,
        "num_steps": np.where(full, 31, 3),
        "max_num_steps": 31,
        "accept_prob": accept,
        "energy": energy,
    }
    for given in (arviz_names, numpyro_names):
        report = diagnose_draws(w, sample_stats=given)
        assert (report.sampler.divergences, report.sampler.saturated_trees) == (3, 5)
        np.testing.assert_array_equal(report.sampler.ebfmi, diagnostics.ebfmi(energy))
        np.testing.assert_array_equal(report.sampler.acceptance, accept.mean(axis=1))
        assert "3 divergences · 5 saturated trees" in report.details()


def test_the_table_fits_a_terminal_and_shows_the_worst_of_many_sites(rng):
    w = {f"a/long/name/of/a/site/in/layer/{i}.kernel": rng.normal(size=(2, 100)) for i in range(30)}
    w["a/long/name/of/a/site/in/layer/7.kernel"][0] += 9
    text = diagnose_draws(w).details().split("\n- ")[0]
    assert max(map(len, text.splitlines())) <= 90
    assert "/7.kernel" in text
    assert "(18 more, all better)" in text
    assert "nan" not in text


def test_a_site_without_scalars_is_left_out(rng):
    w = weights_of(rng) | {"empty": np.zeros((C, N, 0))}
    report = diagnose_draws(w, np.zeros((C, N, 0, 2)))
    assert {g.name for g in report.weights.groups} == {"net/Dense_0.kernel"}
    assert not report.predictions


def test_plot_draws_every_rhat_beside_the_limit():
    report = report_of("two groups")
    left, right = report.plot()
    assert sum(p.get_height() for p in left.patches) == 12
    assert sum(p.get_height() for p in right.patches) == 2 * INPUTS
    assert left.lines[0].get_xdata()[0] == right.lines[0].get_xdata()[0] == report.rhat_limit
    assert not report_of("all stuck").plot(matplotlib.pyplot.subplots(1, 2)[1])[0].patches
    matplotlib.pyplot.close("all")


def test_predictions_and_the_mapping_of_their_values_are_alike(rng):
    class Predictions:
        values = probs_of(rng.normal(size=(C, N, 5)))

    assert diagnose_draws(weights_of(rng), Predictions()).predictions.groups[0].name == "probs"
