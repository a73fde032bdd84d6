#!/usr/bin/env bash
# CatBoost 1.2.10: with `posterior_sampling=True` the default leaves get no noise, so the knowledge uncertainty is zero.
#
# Guess, written first: one feature with two values, 500 rows of each, noise of deviation 1. The posterior deviation of
# either mean is 1 / sqrt(500) = .0447. `posterior_sampling=True` is Langevin boosting, so the virtual ensemble has a
# knowledge uncertainty whose root is within a factor of 1.5 of it.
#
# Seen: the root is below 4e-8, and the interval of ± 1.96 of it holds the true mean in 0 of 20 cases. The diffusion
# temperature does nothing: 1e-4, 1 and 1e4 with two seeds give the same predictions to the last bit. Noise reaches the
# leaves only with `leaf_estimation_method="Gradient"`; the default here is Newton. Then the root is .0014, which
# is sqrt(1000) too small, the root of the number of rows. With a continuous feature the noise moves the splits, and the
# root is .012 with the option and .012 without it, where refits to fresh data scatter by .10. There is no warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "catboost==1.2.10"
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import catboost
import numpy as np

ROWS = 500
sides = np.repeat([[0.0], [1.0]], ROWS, axis=0)
posterior_deviation = ROWS**-0.5


def fitted(x, y, seed, iterations=1000, **options):
    model = catboost.CatBoostRegressor(
        iterations=iterations, random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False, **options
    )
    return model.fit(x, y)


def mean_and_deviation(model, x):
    found = model.virtual_ensembles_predict(x, prediction_type="TotalUncertainty", virtual_ensembles_count=10)
    return found[:, 0], np.sqrt(found[:, 1])


def two_sides(loss, datasets=10, **options):
    deviations, held = [], []
    for seed in range(datasets):
        y = np.random.default_rng(seed).normal(sides[:, 0], 1.0)
        model = fitted(sides, y, seed, loss_function=loss, posterior_sampling=True, **options)
        mean, deviation = mean_and_deviation(model, [[0.0], [1.0]])
        deviations.append(deviation)
        held.append(abs(mean - [0.0, 1.0]) < 1.96 * deviation)
    print(f"two means, {loss} {options}: deviation {np.min(deviations):.1e} to {np.max(deviations):.1e}, the posterior has "
          f"{posterior_deviation:.4f}; the truth is within 1.96 of them in {np.sum(held)} of {np.size(held)}")
    return np.array(deviations), np.sum(held)


print(f"catboost {catboost.__version__}")
for loss in ("RMSE", "RMSEWithUncertainty"):
    deviations, held = two_sides(loss)
    assert deviations.max() < 1e-4 and held == 0, "the default leaves have a spread"
deviations, held = two_sides("RMSE", leaf_estimation_method="Gradient")
ratio = posterior_deviation / np.sqrt((deviations**2).mean())
print(f"  too small by {ratio:.1f}, sqrt(rows) is {(2 * ROWS) ** 0.5:.1f}")
assert 24 < ratio < 40, "the gradient leaves have another spread"

y = np.random.default_rng(0).normal(sides[:, 0], 1.0)
predictions = [
    fitted(sides, y, seed, 200, langevin=True, diffusion_temperature=temperature).predict([[0.0], [1.0]])
    for seed in (1, 2)
    for temperature in (1e-4, 1.0, 1e4)
]
print(f"three temperatures and two seeds: {len(np.unique(predictions, axis=0))} different prediction(s)")
assert len(np.unique(predictions, axis=0)) == 1, "the diffusion temperature counts"

grid = np.linspace(-2, 2, 21)[:, None]
for sampling in (True, False):
    means, deviations = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-2, 2, size=(1000, 1))
        model = fitted(x, rng.normal(np.sin(2 * x[:, 0]), 0.5), seed, loss_function="RMSEWithUncertainty",
                       posterior_sampling=sampling)
        mean, deviation = mean_and_deviation(model, grid)
        means.append(mean)
        deviations.append(deviation)
    scatter = np.sqrt(np.var(means, axis=0, ddof=1).mean())
    deviation = np.sqrt(np.square(deviations).mean())
    print(f"sine, posterior_sampling={sampling}: deviation {deviation:.4f}, scatter over refits {scatter:.4f}")
    assert scatter > 5 * deviation, "the spread is near that of refits"
PYTHON
