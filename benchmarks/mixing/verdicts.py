"""What `diagnose` says of real posteriors: two data sets, two samplers, and a run cut short.

A 64-16-10 network on the handwritten digits and a 30-10-2 network on the breast cancer table
(Wisconsin diagnostic, UCI), one Gamma precision for each array of weights, four chains from
optimised starts. NUTS and BAOAB get about as many passes over the rows; of NUTS there is also a
run that stops after 20 + 100 transitions of shallow trees, whose verdict must not be within tolerance.
Reports are printed and stored in `results/verdicts.txt`, the numbers in `results/verdicts.csv`.

    XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m benchmarks.mixing.verdicts [--quick]
"""

import platform
import time

import jax
import numpy as np
from numpyro.infer import NUTS
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn
from benchmarks._shared.study import Results, parser

NUM_CHAINS = 4


def runs(batch_size, quick):
    """Name, kernel over a model, and how long: warm-up, draws, steps to a draw."""
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
    }


def sampled(table, hidden, quick):
    """Reports and rows of a data set, by sampler."""
    data = {"digits": load_digits, "breast cancer": load_breast_cancer}[table]()
    x, x_test, y, y_test = train_test_split(
        data.data, data.target, test_size=0.25, random_state=0, stratify=data.target
    )
    model = bnn.classification(
        bnn.MLP([hidden], len(data.target_names)), bnn.priors.Hierarchical(), x, y
    )
    starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=NUM_CHAINS, progress_bar=False)
    for name, (kernel, num_warmup, num_samples, thinning) in runs(len(x) // 4, quick).items():
        mcmc = bnn.MCMC(
            kernel(model),
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=NUM_CHAINS,
            thinning=thinning,
            progress_bar=False,
        )
        begin = time.perf_counter()
        mcmc.run(jax.random.key(1), x, y, init_params=starts)
        jax.block_until_ready(mcmc.get_samples())
        seconds = time.perf_counter() - begin
        report = bnn.diagnose(mcmc, x_test)
        predictions = bnn.predict(model, mcmc, x_test)
        yield (
            report,
            {
                "data": table,
                "sampler": name,
                "draws": num_samples // thinning,
                "seconds": seconds,
                "verdict": report.verdict,
                "worst R-hat, predictions": report.predictions.max_rhat,
                "least ESS, predictions": report.predictions.min_ess,
                "worst R-hat, weights": report.weights.max_rhat,
                "log score": bnn.scores.lppd(predictions, y_test),
                "error": 1 - bnn.scores.accuracy(np.asarray(bnn.average(predictions)), y_test),
            },
        )


def main(argv=None):
    options = parser(__doc__, toy=False).parse_args(argv)
    results = Results(__file__, options)
    print(
        f"JAX {jax.__version__}, Python {platform.python_version()}, {jax.device_count()} devices"
    )
    rows, texts = [], []
    for table, hidden in (("breast cancer", 10), ("digits", 16)):
        for report, row in sampled(table, hidden, options.size == "quick"):
            title = f"{row['data']}, {row['sampler']}: {row['seconds']:.0f} s, log score "
            texts.append(f"{title}{row['log score']:.4f}, error {row['error']:.4f}\n\n{report}\n")
            rows.append(row)
            print(texts[-1], flush=True)
            results.write_rows(rows)
            results.path("txt").write_text("\n".join(texts))


if __name__ == "__main__":
    main()
