#!/usr/bin/env bash
# ChainConsumer 1.3.0: the deviance information criterion (DIC) of a chain depends on the unit of a parameter.
#
# Guess, written first: `comparison.dic()` of one chain is the same, within .3, with a parameter in km or in mm; ten
# free normal parameters count as ten.
#
# Seen: the deviance at the mean is taken from the draw that lies nearest to the mean, in raw units. With one
# parameter in mm only that one counts: the draw is random in all the others, and one seen there says little about the
# mean. With 10 parameters and 10,000 draws the same model has a DIC lower by 5 to 16 in mm, in five seeds out of five,
# and a difference of 10 is often taken as decisive; with 5 parameters by 1 to 7. AIC and BIC do not move.
# Draws divided by their standard deviations help; the ten parameters then count as 8.8 to 9.5.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "chainconsumer==1.3.0" "numpy==2.4.6" "scipy==1.16.3" "pandas==2.3.3"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import pandas as pd
from chainconsumer import Chain, ChainConsumer

print(f"chainconsumer {version('chainconsumer')}")


def compared(seed, size):
    draws = np.random.default_rng(seed).normal(size=(10_000, size))
    deviance = (draws**2).sum(1)
    consumer = ChainConsumer()
    for name, unit in (("km", 1.0), ("mm", 1e6)):
        table = pd.DataFrame(draws.copy(), columns=[f"p{i}" for i in range(size)])
        table["p0"] *= unit
        table["log_posterior"] = -deviance / 2
        consumer.add_chain(Chain(samples=table, name=name, num_free_params=size, num_eff_data_points=100))
    criteria = consumer.comparison.dic(), consumer.comparison.aic(), consumer.comparison.bic()
    nearest = np.argmin(((draws - draws.mean(0)) ** 2).sum(1))
    right = deviance.mean() - (draws.mean(0) ** 2).sum()
    return *(c["km"] - c["mm"] for c in criteria), deviance.mean() - deviance[nearest], right


for size in (2, 5, 10):
    rows = np.array([compared(seed, size) for seed in range(5)])
    print(f"{size} parameters: DIC in km less that in mm {rows[:, 0].round(1)}; AIC {rows[:, 1]}; BIC {rows[:, 2]}")
    print(f"  parameters counted in km {rows[:, 3].round(2)}, with the deviance at the mean {rows[:, 4].round(2)}")
    assert not rows[:, 1:3].any(), "AIC or BIC have changed"
assert (rows[:, 0] > 3).all(), "the DIC no longer depends on the unit"
PYTHON
