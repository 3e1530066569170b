"""Regression in NumPy's style: arrays, formulas and `nm.grad`, without modules or optimisers.

    python examples/regression.py
    python examples/regression.py --device webgpu

Fits y = a exp(-b x) + c to noisy points by Newton's method: gradient and Hessian come from the
formula itself, and a whole step is one program.
"""

from __future__ import annotations

import argparse

import numpy as np

import numus as nm


def model(p: nm.Tensor, x: nm.Tensor) -> nm.Tensor:
    a, b, c = p
    return a * nm.exp(-b * x) + c


def loss(p: nm.Tensor, x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
    return ((model(p, x) - y) ** 2).mean()


@nm.jit
def newton(p: nm.Tensor, x: nm.Tensor, y: nm.Tensor, damping: float) -> nm.Tensor:
    """One damped step: the Hessian's 3 x 3 system, solved by elimination."""
    g = nm.grad(loss)(p, x, y)
    h = nm.hessian(loss)(p, x, y) + damping * nm.eye(3, dtype=p.dtype)
    rows = [[*h[i], g[i]] for i in range(3)]
    for i in range(3):
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for k in range(3):
            if k != i:
                rows[k] = [v - rows[k][i] * w for v, w in zip(rows[k], rows[i], strict=True)]
    return p - nm.stack([row[3] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    nm.set_default_device(options.device)
    floats = nm.__array_namespace_info__().dtypes(device=options.device, kind="real floating")
    dtype = floats.get("float64", nm.float32)  # not every GPU has it
    rng = np.random.default_rng(0)
    true = np.array([2.5, 1.3, 0.5])
    x = nm.linspace(0.0, 4.0, options.points, dtype=dtype)
    noise = nm.asarray(rng.normal(0, 0.02, options.points), dtype=dtype)
    y = model(nm.asarray(true, dtype=dtype), x) + noise

    p, damping = nm.ones(3, dtype=dtype), 0.1
    best = loss(p, x, y).item()
    for _ in range(options.steps):
        tried = newton(p, x, y, damping)
        value = loss(tried, x, y).item()
        if value < best:  # closer to Newton's step while that helps, closer to the gradient if not
            p, best, damping = tried, value, damping / 4
        else:
            damping *= 8
    print(f"loss      {best:.6f}  (the noise alone: {(noise**2).mean().item():.6f})")
    for name, found, wanted in zip("abc", p.tolist(), true, strict=True):
        print(f"{name} = {found:.4f}   (made with {wanted})")


if __name__ == "__main__":
    main()
