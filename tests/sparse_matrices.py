"""Matrices that tests of sparse tensors and solvers share, as dense NumPy arrays."""

import numpy as np


def poisson(*sizes):
    """The (2 d + 1)-point Laplacian on a grid, symmetric and positive definite."""
    out = np.zeros((1, 1))
    for n in sizes:
        line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
        out = np.kron(out, np.eye(n)) + np.kron(np.eye(out.shape[0]), line)
    return out


def anisotropic(n, ratio):
    line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    return np.kron(line, np.eye(n)) + ratio * np.kron(np.eye(n), line)


def convection(n, speed):
    """Convection and diffusion, upwind: not symmetric."""
    wind = np.eye(n) - np.eye(n, k=-1)
    return poisson(n, n) + speed * (np.kron(wind, np.eye(n)) + np.kron(np.eye(n), wind))


def random(m, n, density, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, n)) * (rng.random((m, n)) < density)


def power_law(n, seed=0):
    rng = np.random.default_rng(seed)
    out = np.zeros((n, n))
    for i, count in enumerate(np.minimum(rng.zipf(1.6, n), n)):
        out[i, rng.choice(n, count, replace=False)] = rng.standard_normal(count)
    return out


def arrow(n):
    out = np.diag(np.full(n, float(n)))
    out[0], out[:, 0] = 1.0, 1.0
    out[0, 0] = 2.0 * n
    return out


def with_empty_rows(n):
    out = random(n, n, 0.3, 5)
    out[::2] = 0.0
    out[:, 1] = 0.0
    return out


ANY = {
    "poisson2": poisson(6, 5),
    "poisson3": poisson(3, 4, 3),
    "anisotropic": anisotropic(5, 0.01),
    "convection": convection(5, 2.0),
    "random": random(17, 23, 0.2, 1),
    "power law": power_law(24),
    "arrow": arrow(20),
    "empty rows": with_empty_rows(12),
    "one row": random(1, 30, 0.4, 2),
    "one column": random(30, 1, 0.4, 3),
    "nothing": np.zeros((4, 7)),
    "no rows": np.zeros((0, 5)),
    "dense": random(9, 8, 1.0, 4),
}
