"""What effective draws cost beside those of Neal's program: by CPU second, and by gradient."""

import json

import numpy as np

from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean

# What the reference has for each test case.
PREDICTED = {"rdata": "rdata_mean_function", "cdata": "cdata_prob"}


def effective(draws):
    """Effective number of draws of every scalar, by the error that is stored of it."""
    return draws.std((0, 1)) ** 2 / mcse_mean(draws) ** 2


def known_speed(problem, shared):
    """What FBM's worst effective draws cost, {what: (draws, {unit: units})}; warm-up at the same rate."""
    reference = json.loads((shared / "reference_open.json").read_text()).get(problem)
    if reference is None:
        return {}
    kept, seconds = reference["kept_per_segment"], reference["cpu_seconds_kept"]
    steps = reference["segments"] * kept * reference["leapfrog_steps_per_iteration"]
    spent = {
        "cpu_second": seconds,
        "cpu_second_of_all": seconds * (kept + reference["burn_in_iterations"]) / kept,
        "million_gradients": steps / 1e6,
    }
    name = PREDICTED[problem]
    with np.load(shared / "predictions_open.npz") as file:
        predictions = np.min(file[f"{name}_sd"] ** 2 / file[f"{name}_mcse"] ** 2)
    scales = min(v["ess_per_cpu_second"] for v in reference["log_sigma"].values()) * seconds
    return {"log_sigma": (scales, spent), "predictions": (predictions, spent)}


def cost_rows(problem, draws, spent, shared):
    """Worst effective draws, {what: number}, by what they cost, {unit: units}, beside FBM's."""
    known = known_speed(problem, shared)
    for name, value in draws.items():
        for unit, units in spent.items():
            quantity = f"worst_ess_per_{unit.removesuffix('_of_all')}_{name}"
            quantity += "_of_all" if unit.endswith("_of_all") else ""
            row = {"quantity": quantity, "mean": f"{value / units:.4g}"}
            if known:
                theirs, cost = known[name]
                row["reference"] = f"{theirs / cost[unit]:.4g}"
            yield row


def speed_rows(problem, scalars, predictions, seconds, options, gradients=None):
    """Worst effective draws per CPU second, of all and of kept sweeps, and per gradient where counted."""
    draws = {
        "log_sigma": min(float(effective(v)) for v in scalars.values()),
        "predictions": float(effective(predictions).min()),
    }
    spent = {"cpu_second": seconds[1], "cpu_second_of_all": seconds[0]}
    spent |= {} if gradients is None else {"million_gradients": gradients / 1e6}
    yield from cost_rows(problem, draws, spent, options.shared)
