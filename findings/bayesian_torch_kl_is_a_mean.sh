#!/usr/bin/env bash
# bayesian-torch 0.5.0: the loss of its README makes the posterior of 100 weights nine times too narrow.
#
# Guess, written first: a layer's `kl_loss` is the divergence of its weights from the prior, so the mean loss of a batch
# + `get_kl_loss(model) / batch_size`, as in the README, is the negative ELBO. With one batch of all 400 rows, orthogonal
# inputs and 100 weights, where the exact posterior is a normal that factorises, its standard deviation is then found
# within 10 %. `prior_variance=4` is a prior of standard deviation 2.
#
# Seen: the divergence is the mean over the layer's weights, not the sum. The standard deviation is .0056, the exact one
# .0499. By the formula it is too small by the root of the number of weights: 10 here, 100 in a layer of 10,000. So a
# larger network is surer, and the prior counts for nearly nothing. No warning. With the divergence times the number of
# weights it is right. `prior_variance` is the standard deviation: 4 is a prior of variance 16.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "torch==2.13.0" "numpy==2.4.6"
# Without torchvision and tensorboard, which layers do not use.
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps "bayesian-torch==0.5.0"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import torch
from bayesian_torch.layers import LinearFlipout, LinearReparameterization
from bayesian_torch.models.dnn_to_bnn import get_kl_loss
from torch.distributions import Normal, kl_divergence

ROWS, WEIGHTS = 400, 100
torch.manual_seed(0)
print(f"bayesian-torch {version('bayesian-torch')}, torch {torch.__version__}")


def scale(layer):
    return torch.nn.functional.softplus(next(value for name, value in layer.named_parameters() if "rho" in name)).detach()


for kind in (LinearReparameterization, LinearFlipout):
    layer = kind(WEIGHTS, 1, prior_mean=0, prior_variance=4, posterior_mu_init=0.0, posterior_rho_init=0.0, bias=False)
    q = Normal(layer.mu_weight.detach(), scale(layer))
    theirs = float(get_kl_loss(torch.nn.Sequential(layer)).detach())
    by_sd = {sd: float(kl_divergence(q, Normal(0.0, sd)).mean()) for sd in (2.0, 4.0)}
    print(f"{kind.__name__}: divergence {theirs:.4f}; mean over weights for a prior of sd 2 {by_sd[2.0]:.4f}, "
          f"of sd 4 {by_sd[4.0]:.4f}; their sum {WEIGHTS * by_sd[4.0]:.2f}")
    assert abs(theirs - by_sd[4.0]) < 1e-3, "the divergence of a layer has changed"

x = torch.linalg.qr(torch.randn(ROWS, WEIGHTS))[0] * ROWS**0.5
y = x @ torch.randn(WEIGHTS, 1) + torch.randn(ROWS, 1)
exact_sd = (ROWS + 1) ** -0.5
exact_mean = (x.T @ y)[:, 0] / (ROWS + 1)


def fit(factor):
    layer = LinearReparameterization(WEIGHTS, 1, prior_mean=0, prior_variance=1, bias=False)
    model = torch.nn.Sequential(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4000)
    for _ in range(4000):
        optimizer.zero_grad()
        loss = (layer(x, return_kl=False) - y).square().mean() / 2 + factor * get_kl_loss(model) / ROWS
        loss.backward()
        optimizer.step()
        schedule.step()
    error = (layer.mu_weight.detach()[0] - exact_mean).square().mean().sqrt()
    return scale(layer).mean().item(), error.item()


documented, summed = fit(1), fit(WEIGHTS)
for name, (sd, error) in (("the README's loss", documented), (f"divergence times {WEIGHTS}", summed)):
    print(f"{name}: sd {sd:.4f}, exact {exact_sd:.4f}; mean off by {error:.4f}")
assert 0.9 < summed[0] / exact_sd < 1.1, "the sum of the divergence is no longer the ELBO"
assert documented[0] < 0.15 * exact_sd and documented[1] < 0.02, "the README's loss has changed"
PYTHON
