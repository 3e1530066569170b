"""A program for NumPy: chances."""

import numpy as np
from numpy.random import default_rng

rng = default_rng(12345)
# pi, options, random walks, MCMC, bootstrap
xy = rng.random((20000, 2))
pi = 4 * np.count_nonzero(np.linalg.norm(xy, axis=1) <= 1) / len(xy)
print(abs(pi - np.pi) < 0.05)
S0, K, T, r, sigma, M, I = 100.0, 105.0, 1.0, 0.05, 0.2, 20, 4000
dt = T / M
S = np.zeros((M + 1, I))
S[0] = S0
for t in range(1, M + 1):
    z = rng.standard_normal(I)
    z = (z - z.mean()) / z.std()
    S[t] = S[t - 1] * np.exp((r - 0.5 * sigma**2) * dt + sigma * np.sqrt(dt) * z)
C0 = np.exp(-r * T) * np.sum(np.maximum(S[-1] - K, 0)) / I
print("call", 7.3 < C0 < 8.8, type(C0))
steps = rng.choice([-1, 1], size=(500, 100))
walks = steps.cumsum(axis=1)
hits30 = (np.abs(walks) >= 10).any(axis=1)
cross = (np.abs(walks[hits30]) >= 10).argmax(axis=1)
print(hits30.sum() > 100, 20 < cross.mean() < 80)


def metropolis(logp, x0, n, scale):
    x = np.array(x0, dtype=float)
    out = np.empty((n, x.size))
    lp = logp(x)
    acc = 0
    for i in range(n):
        prop = x + rng.normal(scale=scale, size=x.shape)
        lq = logp(prop)
        if np.log(rng.uniform()) < lq - lp:
            x, lp, acc = prop, lq, acc + 1
        out[i] = x
    return out, acc / n


chain, rate = metropolis(lambda v: -0.5 * np.sum((v - 1) ** 2), [0.0, 0.0], 300, 1.0)
print(chain.shape, 0.2 < rate < 0.95, abs(chain[50:].mean() - 1) < 0.6)
data = rng.gamma(2.0, 3.0, size=80)
boot = rng.choice(data, size=(400, data.size), replace=True).mean(axis=1)
lo, hi = np.quantile(boot, [0.025, 0.975])
print(lo < data.mean() < hi, np.std(data, ddof=1) > 0)
idx = rng.permutation(10)
print(sorted(idx.tolist()) == list(range(10)))
deck = np.arange(52)
rng.shuffle(deck)
print(sorted(deck) == list(range(52)))
print(
    rng.integers(0, 6, size=(3, 2), endpoint=True).max() <= 6,
    rng.poisson(3, 5).dtype,
    rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 4).shape,
    rng.dirichlet([1, 2, 3]).sum().round(10),
    rng.exponential(size=2).shape,
)
np.random.seed(0)
a = np.random.randn(3, 3)
b = np.random.rand(2)
np.random.seed(0)
assert (np.random.randn(3, 3) == a).all()
# ising
L = 12
spins = 2 * np.random.randint(2, size=(L, L)) - 1
beta = 0.6
for sweep in range(5):
    for parity in (0, 1):
        nb = (
            np.roll(spins, 1, 0)
            + np.roll(spins, -1, 0)
            + np.roll(spins, 1, 1)
            + np.roll(spins, -1, 1)
        )
        flip = (np.random.rand(L, L) < np.exp(-2 * beta * spins * nb)) & (
            np.add.outer(np.arange(L), np.arange(L)) % 2 == parity
        )
        spins[flip] *= -1
print(set(np.unique(spins).tolist()) <= {-1, 1}, spins.dtype)
