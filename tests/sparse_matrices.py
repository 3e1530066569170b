"""Matrices that tests of sparse tensors and solvers share, as dense NumPy arrays; a mark of those
that need WebGPU."""

import numpy as np
import pytest

from numus.runtime import devices

on_webgpu = pytest.mark.skipif(
    not devices.count("webgpu"), reason="there is no adapter for WebGPU here"
)


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


def elasticity(n, ratio=0.3):
    """Plane strain on a grid of n × n cells, bilinear elements, fixed at its left side."""
    side = n + 1
    out = np.zeros((2 * side * side,) * 2)
    corner = np.array([0, 1, side + 1, side])
    spot = 1 / np.sqrt(3)
    law = np.array([[1 - ratio, ratio, 0], [ratio, 1 - ratio, 0], [0, 0, 0.5 - ratio]])
    local = np.zeros((8, 8))
    for x in (-spot, spot):
        for y in (-spot, spot):
            by_x = np.array([-(1 - y), 1 - y, 1 + y, -(1 + y)]) / 2
            by_y = np.array([-(1 - x), -(1 + x), 1 + x, 1 - x]) / 2
            strain = np.zeros((3, 8))
            strain[0, ::2] = strain[2, 1::2] = by_x
            strain[1, 1::2] = strain[2, ::2] = by_y
            local += strain.T @ law @ strain
    for i in range(n):
        for j in range(n):
            nodes = i * side + j + corner
            at = np.stack([2 * nodes, 2 * nodes + 1], 1).ravel()
            out[np.ix_(at, at)] += local
    free = np.repeat(np.arange(side * side) % side != 0, 2)
    return out[np.ix_(free, free)]


def systems():
    """60 square matrices by name, most of them regular."""
    rng = np.random.default_rng(7)
    out = {}
    for n in (3, 7, 12, 17):
        out[f"poisson {n}x{n + 1}"] = poisson(n, n + 1)
        out[f"convection {n}"] = convection(n, 10.0 / n)
        out[f"upwind {n}"] = convection(n, 100.0)
        for ratio in (1e-1, 1e-3):
            out[f"anisotropic {n} {ratio}"] = anisotropic(n, ratio)
        out[f"elasticity {n}"] = elasticity(n)
    for n in (3, 5, 7):
        out[f"poisson {n}^3"] = poisson(n, n, n)
        out[f"skewed {n}^3"] = poisson(n, n, n) + np.eye(n**3, k=1) * 0.3
    for n in (1, 2, 30, 120, 200):
        out[f"arrow {n}"] = arrow(n) if n > 1 else np.ones((1, 1))
        out[f"random {n}"] = random(n, n, 3 / n, n) + np.diag(rng.random(n) + 0.1)
        out[f"shuffled {n}"] = (random(n, n, 3 / n, n) + 3 * np.eye(n))[rng.permutation(n)]
        out[f"scaled {n}"] = out[f"random {n}"] * 10.0 ** rng.integers(-6, 7, n)
        out[f"power law {n}"] = power_law(n, n) + np.diag(0.01 + rng.random(n))
        zero = random(n, n, 4 / n, n) + np.eye(n)[rng.permutation(n)]
        np.fill_diagonal(zero, 0.0 if n > 2 else 1.0)
        out[f"saddle {n}"] = np.block([[2 * np.eye(n), zero.T], [zero, np.zeros((n, n))]])
    return out
