"""How far is each method from the posterior at equal passes over the data; does being near predict better?

The prior scale of one posterior is chosen by `against_hmc_prior`; the methods are in `against_hmc_methods`.
Errors are over test rows, and a jackknife over chains or networks (over seeds where there is one chain).

    python -m benchmarks.mixing.against_hmc [--quick]

After table 4 and figure 8 of Izmailov, Vikram, Hoffman and Wilson, *What are Bayesian neural network
posteriors really like?* (2021).
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial

import jax

import numpyro_bnn as bnn
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.sampled_runs import columns, convergence, publish, scores_of_chains
from benchmarks._shared.study import Results, Row, Study, parser
from benchmarks.mixing import against_hmc_prior
from benchmarks.mixing.against_hmc_methods import (
    AGAIN,
    ALONE,
    CHOSEN,
    EQUAL,
    OPTIMISED,
    PROBLEMS,
    REFERENCE,
    SAMPLED,
    SIZES,
    SVRG,
    Case,
    Size,
    given,
    hmc_run,
    optimised,
    sampler_run,
)
from benchmarks.mixing.against_hmc_words import TABLE, averaged, distances, draw, findings
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.workflow.compare import scored_row

KEYS = ("problem", "method", "seed")
# Of each problem of the toy size, to see in seconds whether all kinds run.
IN_TOY = {CHOSEN: ("mean field", SVRG), "boston": (EQUAL, "deep ensemble")}


@cache
def predicted(case: Case, seed: int) -> Predictions:
    """Predictions of long HMC at the test rows."""
    return bnn.predict(None, hmc_run(case, seed).draws, given(case).split.x_test)


def one_method(case: Case, method: str, seed: int) -> Iterator[Row]:
    """The row of one method, as ``bnn.compare`` judges it, with the errors over chains and R-hat."""
    reference, theirs = hmc_run(case, 0), predicted(case, 0)
    model, data = given(case)
    begin = time.perf_counter()
    if method in (REFERENCE, AGAIN):
        which = 0 if method == REFERENCE else 1
        own = reference if which == 0 else hmc_run(case, which)
        passes, seconds, mine = own.passes, own.seconds, predicted(case, which)
    else:
        compute = optimised if method in OPTIMISED else sampler_run
        run, passes = compute(case, method, seed)
        seconds = time.perf_counter() - begin
        mine = bnn.predict(model, run, data.x_test)
    found = scored_row(method, mine, theirs, data.y_test, math.nan, passes, seconds)
    row = found._asdict()
    for name in ("method", "max_rhat", "suspect"):
        del row[name]
    row = {"prior_scale": case.scale, "predictive": "", "over_chains": ""} | row
    by_chain = scores_of_chains(mine.log_prob(data.y_test))
    if len(by_chain) > 1:
        row["over_chains"] = jackknife_error(without_each(by_chain).mean(1))
    if not given(case).has_classes:
        row["agreement"] = ""
        keys = jax.random.split(jax.random.key(0))
        samples = [p.sample(key) for p, key in zip((mine, theirs), keys)]
        row["predictive"] = bnn.scores.wasserstein(*samples)
    yield row | {"fit_seconds": row.pop("seconds")} | convergence(mine.values)


def cells(size: Size) -> Iterator[Row]:
    """One by problem, method and seed, the first seed first; the reference and its repeat have their own."""
    first, *others = size.seeds
    for name in size.problems:
        for method in (REFERENCE, AGAIN, *methods(size, name)):
            yield {"problem": name, "method": method, "seed": first}
    for seeds, again in ((others, methods(size, size.problems[0])), (size.more, ALONE)):
        for seed in seeds:
            for method in again:
                for name in size.problems:
                    yield {"problem": name, "method": method, "seed": seed}


def methods(size: Size, name: str) -> tuple[str, ...]:
    """The methods that are held against HMC."""
    return IN_TOY[name] if size is SIZES["toy"] else (*OPTIMISED, *SAMPLED)


def main(argv: Sequence[str] | None = None) -> None:
    asked = parser(__doc__ or "").parse_args(argv)
    size = SIZES[asked.size]
    prior = Study(__file__, against_hmc_prior.KEYS, asked, "prior")
    of_scale = partial(against_hmc_prior.cell, size=size, folder=asked.data)
    prior.run([{"scale": scale} for scale in size.scales], of_scale)
    scale = against_hmc_prior.chosen(prior.rows)
    table = columns(prior.rows, against_hmc_prior.TABLE)
    prior.publish(table, against_hmc_prior.findings(prior.rows))

    def one(problem: str, method: str, seed: int) -> Iterator[Row]:
        own = PROBLEMS[problem].scale or scale
        return one_method(Case(asked.data, size, problem, own), method, seed)

    study = Study(__file__, KEYS, asked)
    study.run(cells(size), one)
    rows = averaged(study.rows)
    publish(study, rows, TABLE, findings(rows), lambda: draw(rows))
    Results(__file__, asked, "distances").report(list(distances(rows)))


if __name__ == "__main__":
    main()
