"""What `diagnose` says of real posteriors: two data sets, two samplers, and a run cut short.

XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m benchmarks.mixing.verdicts [--quick]
"""

import functools
from itertools import product

import jax
import numpy as np
from numpyro.infer import NUTS
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn
from benchmarks._shared import sampled_runs
from benchmarks._shared.study import Study, parser

NUM_CHAINS = 4
TABLES = {"breast cancer": (load_breast_cancer, 10), "digits": (load_digits, 16)}
# The shortest first, so that an interrupted study has most of its reports.
SAMPLERS = ("NUTS, cut short", "NUTS", "BAOAB")


def sampler(name, batch_size, quick):
    """Kernel over a model, and how long: warm-up, draws, steps to a draw."""
    scale = 10 if quick else 1
    deep = {"target_accept_prob": 0.9, "max_tree_depth": 8}
    many = 1000 // scale
    return {
        "NUTS": (lambda model: NUTS(model, **deep), 300 // scale, 400 // scale, 1),
        "BAOAB": (
            lambda model: bnn.BAOAB(model, step_size="auto", friction=10.0, batch_size=batch_size),
            100 * many,
            400 // scale * many,
            many,
        ),
        "NUTS, cut short": (lambda model: NUTS(model, max_tree_depth=4), 20, 100, 1),
    }[name]


def compute(size, data, sampler_name):
    """The row of one run, its report included."""
    load, hidden = TABLES[data]
    table = load()
    x, x_test, y, y_test = train_test_split(
        table.data, table.target, test_size=0.25, random_state=0, stratify=table.target
    )
    model = bnn.classification(
        bnn.MLP([hidden], len(table.target_names)), bnn.priors.Hierarchical(), x, y
    )
    starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=NUM_CHAINS, progress_bar=False)
    kernel, num_warmup, num_samples, thinning = sampler(sampler_name, len(x) // 4, size == "quick")
    lengths = num_warmup, num_samples // thinning, thinning
    mcmc = sampled_runs.sampler(kernel(model), NUM_CHAINS, *lengths, chain_method="parallel")
    mcmc.run(jax.random.key(1), x, y, init_params=starts)
    report = bnn.diagnose(mcmc, x_test, y_test)
    predictions = bnn.predict(model, mcmc, x_test)
    error = report.monte_carlo_error
    yield {
        "draws": num_samples // thinning,
        "verdict": report.verdict.words,
        "needed": report.needed,
        "total variation": np.nan if error is None else error.total_variation,
        "worst R-hat, predictions": report.predictions.max_rhat,
        "least ESS, predictions": report.predictions.min_ess,
        "worst R-hat, weights": report.weights.max_rhat,
        "log score": bnn.scores.lppd(predictions, y_test),
        "error": 1 - bnn.scores.accuracy(np.asarray(bnn.average(predictions)), y_test),
        "report": str(report),
    }


COLUMNS = {
    "run": "{data}, {sampler_name}",
    "draws × chains": "{draws} × 4",
    "seconds": "{seconds:.0f}",
    "verdict": "{verdict}",
    "times as many draws needed": "{needed:.1f}",
    "worst R-hat of predictions": "{worst R-hat, predictions:.3f}",
    "of weights": "{worst R-hat, weights:.3f}",
    "log score": "{log score:.4f}",
    "error": "{error:.4f}",
}


def main(argv=None):
    given = parser(__doc__, toy=False).parse_args(argv)
    study = Study(__file__, ("data", "sampler_name"), given)
    cells = [dict(zip(study.keys, pair)) for pair in product(TABLES, SAMPLERS)]
    # The cheapest of both tables first.
    cells.sort(key=lambda cell: SAMPLERS.index(cell["sampler_name"]))
    study.run(cells, functools.partial(compute, given.size))
    rows = sorted(study.rows, key=lambda row: (row["data"], row["sampler_name"]))
    study.publish([{title: form.format(**row) for title, form in COLUMNS.items()} for row in rows])
    texts = [
        f"{row['data']}, {row['sampler_name']}: {row['seconds']:.0f} s, log score {row['log score']:.4f}, "
        f"error {row['error']:.4f}\n\n{row['report']}\n"
        for row in rows
    ]
    study.path("txt").write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
