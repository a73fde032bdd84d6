# %% [markdown]
# # Every plot of `numpyro_bnn.plots`, on real runs
#
# A regression with a gap in its inputs and a classification of two moons: each picture below is
# drawn from draws of a sampler, none from made-up numbers. `python notebooks/plots.py` renders the
# page anew, `plots.png` and `plots_dark.png` beside this file (about two minutes).

# %%
from pathlib import Path

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import NUTS
from sklearn.datasets import make_moons

import numpyro_bnn as bnn
from numpyro_bnn import MCMC, plots, scores

HERE = Path(__file__).parent if "__file__" in globals() else Path()
SETTINGS = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}

# %% [markdown]
# ## A curve with a gap: NUTS


# %%
def targets(x, rng):
    return np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=len(x))


rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-2.5, -0.7, 40), rng.uniform(0.7, 2.5, 40)])[:, None]
y = targets(x, rng)
curve = bnn.regression(bnn.MLP([16], 1), bnn.priors.FanIn(2.0), x, y)
starts = bnn.optimize(curve, jax.random.key(0), x, y, num_chains=4, progress_bar=False)
nuts = MCMC(NUTS(curve, max_tree_depth=6), num_warmup=300, num_samples=300, **SETTINGS)
nuts.run(
    jax.random.key(1), x, y, init_params=starts, extra_fields=("potential_energy", "num_steps")
)
grid = np.linspace(-3.5, 3.5, 200)[:, None]
report = bnn.diagnose(nuts, grid)
print(report)

# %% [markdown]
# ## The same curve with minibatches: BAOAB and its temperatures

# %%
step_size = bnn.schedules.polynomial(0.2, 300.0, 0.55)
kernel = bnn.BAOAB(curve, step_size=step_size, batch_size=40, friction=10.0)
baoab = MCMC(kernel, num_warmup=2000, num_samples=10_000, thinning=20, **SETTINGS)
baoab.run(jax.random.key(2), x, y, init_params=starts, extra_fields=("kinetic_temperature",))
temperature = baoab.get_extra_fields(group_by_chain=True)["kinetic_temperature"]
by_layer = bnn.diagnose(baoab, grid).sampler.temperatures

# %% [markdown]
# ## Fresh rows: what a method costs, and whether its intervals hold what they claim

# %%
fresh = np.concatenate([rng.uniform(-2.5, -0.7, 500), rng.uniform(0.7, 2.5, 500)])[:, None]
y_fresh = targets(fresh, rng)
at_fresh = bnn.predict(curve, nuts, fresh)
draws = nuts.get_samples(group_by_chain=True)
counts = [1, 3, 10, 30, 100, 300]


def score_of(samples, count):
    part = {name: value[:, :count] for name, value in samples.items()}
    rows = scores.lppd(bnn.predict(curve, part, fresh), y_fresh, pointwise=True)
    return rows.mean(), scores.standard_error(rows)


learning = {
    name: (
        counts,
        *np.transpose([score_of(run.get_samples(group_by_chain=True), n) for n in counts]),
    )
    for name, run in {"NUTS": nuts, "BAOAB": baoab}.items()
}

# %% [markdown]
# ## Two moons: MAP beside the posterior average, and what a shift of the inputs does

# %%
x2, y2 = make_moons(200, noise=0.25, random_state=0)
moons = bnn.classification(bnn.MLP([16], 2), bnn.priors.FanIn(2.0), x2, y2)
point = bnn.map_estimate(moons, jax.random.key(3), x2, y2, progress_bar=False)
starts2 = bnn.optimize(moons, jax.random.key(4), x2, y2, num_chains=4, progress_bar=False)
average = MCMC(NUTS(moons, max_tree_depth=6), num_warmup=200, num_samples=200, **SETTINGS)
average.run(jax.random.key(5), x2, y2, init_params=starts2)
x_test, y_test = make_moons(1000, noise=0.25, random_state=1)
noise = 0.15 * np.arange(6)
shifted = {
    name: (
        noise,
        [
            scores.lppd(bnn.predict(moons, run, x_test + s * rng.normal(size=x_test.shape)), y_test)
            for s in noise
        ],
    )
    for name, run in {"MAP": point, "posterior average": average}.items()
}

# %% [markdown]
# ## The page


# %%
def page(path, style):
    with plt.style.context(style):
        figure, ax = plt.subplots(5, 3, figsize=(17, 24), layout="constrained")
        plots.plot_predictive_band(
            grid[:, 0], bnn.predict(curve, nuts, grid), data=(x[:, 0], y), num_draws=8, ax=ax[0, 0]
        )
        plots.plot_trace(
            -nuts.get_extra_fields(group_by_chain=True)["potential_energy"], ax=ax[0, 1]
        )
        plots.plot_rhat(report.weights.rhat, report.predictions.rhat, ax=ax[0, 2])
        plots.plot_decision_boundary(
            lambda inputs: bnn.predict(moons, average, inputs).probs,
            x2,
            y2,
            point=lambda inputs: bnn.predict(moons, point, inputs).probs,
            ax=ax[1, :2],
        )
        plots.plot_reliability(
            bnn.predict(moons, average, x_test), y_test, num_bins=10, ax=ax[1, 2]
        )
        last = [{name: value[c, -1] for name, value in draws.items()} for c in range(3)]
        plots.plot_density_surface(bnn.potential_of(curve, x, y), last, ax=ax[2, 2])
        plots.plot_pit(scores.pit(at_fresh, y_fresh), ax=ax[2, 1])
        plots.plot_score_against_time(learning, against="draws of each chain", ax=ax[2, 0])
        plots.plot_temperature({"kinetic": temperature}, ax=ax[3, 1])
        plots.plot_layer_temperature(by_layer, ax=ax[3, 0])
        plots.plot_score_against_time(
            shifted, against="noise of the inputs (units of x)", log=False, ax=ax[3, 2]
        )
        report.plot(ax[4, :2])
        ax[4, 2].set_axis_off()
        figure.savefig(path, dpi=70)
        plt.close(figure)


page(HERE / "plots.png", "default")
page(HERE / "plots_dark.png", "dark_background")
