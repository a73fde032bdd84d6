"""The PyTorch contender of `sgmcmc_steps.py`, for an interpreter with `torch` and `posteriors`.

    python benchmarks/speed/sgmcmc_steps_torch.py {SGLD,SGHMC} BATCH_SIZE STEPS

Each line on standard input asks for one run, whose seconds it prints.
"""

import sys
import time

import numpy as np
import posteriors
import torch

N, INPUTS, HIDDEN, CLASSES = 60_000, 784, 100, 10
EPSILON, H, FRICTION = 1e-6, 1e-3, 10.0  # as in sgmcmc_steps.py


def main(method: str, batch_size: int, steps: int) -> None:
    torch.set_num_threads(2)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((N, INPUTS), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, N))
    params = {
        "k1": torch.zeros(INPUTS, HIDDEN),
        "b1": torch.zeros(HIDDEN),
        "k2": torch.zeros(HIDDEN, CLASSES),
        "b2": torch.zeros(CLASSES),
    }

    def log_posterior(params, batch):
        x, y = batch
        h = torch.relu(x @ params["k1"] + params["b1"])
        logits = h @ params["k2"] + params["b2"]
        prior = sum((-0.5 * v**2).sum() for v in params.values())
        fit = -torch.nn.functional.cross_entropy(logits, y, reduction="sum")
        return prior + N / batch_size * fit, torch.tensor([])

    if method == "SGLD":
        # Its drift is lr and its noise 2 lr T: half of our epsilon.
        transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=EPSILON / 2)
    else:
        transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=H, alpha=FRICTION)
    state = transform.init(params)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(steps):
            rows = torch.randint(0, N, (batch_size,))
            state, _ = transform.update(state, (x[rows], y[rows]))
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
