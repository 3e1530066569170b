"""Solve Poisson's equation on a square by conjugate gradients, with several preconditioners.

    python examples/poisson.py

The right-hand side is that of sin(πx) sin(πy), so the error is known. Multigrid needs about as many
iterations on any grid; the others need more as it gets finer. Writes the residuals of all methods
to out/poisson.png.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus.png import curves, write_png
from numus.sparse import SparseTensor, diags, eye, kron, linalg


def laplacian(n: int) -> SparseTensor:
    """The 5-point stencil on n × n inner points of the unit square."""
    line = diags([2.0, -1.0, -1.0], [0, 1, -1], (n, n), dtype=nm.float64) * float((n + 1) ** 2)
    one = eye(n, dtype=nm.float64)
    return (kron(line, one) + kron(one, line)).to_csr()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=200, help="points of a side")
    parser.add_argument("--out", type=Path, default=Path("out/poisson.png"))
    options = parser.parse_args()

    n = options.size
    a = laplacian(n)
    x = np.arange(1, n + 1) / (n + 1)
    exact = np.outer(np.sin(np.pi * x), np.sin(np.pi * x)).ravel()
    # some noise, as no real right-hand side is an eigenvector
    rough = np.random.default_rng(0).standard_normal(n * n)
    b = nm.asarray(2 * np.pi**2 * exact) + a @ nm.asarray(1e-3 * rough)
    methods: dict[str, Any] = {
        "none": lambda: None,
        "cholesky": lambda: linalg.ic_preconditioner(a),
        "aggregation": lambda: linalg.smoothed_aggregation(a).preconditioner(),
        "classical": lambda: linalg.ruge_stuben(a).preconditioner(),
    }
    lines = {}
    print(f"unknowns       {n * n}")
    for name, make in methods.items():
        near = make()
        start = time.perf_counter()
        found = linalg.cg(a, b, rtol=1e-10, maxiter=4 * n, M=near)
        error = float(nm.max(nm.abs(found.x - nm.asarray(exact + 1e-3 * rough))))
        seconds = time.perf_counter() - start
        count = int(found.iterations)
        history = found.history.numpy()[: count + 1]
        lines[name] = np.stack([np.arange(count + 1), history / history[0]], 1)
        print(f"{name:<14} {count} iterations, {seconds:.2f} s, error {error:.1e}")
    print(found.plot())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_png(options.out, curves({"residual": lines}, logarithmic=["residual"]))
    print(f"picture        {options.out}")


if __name__ == "__main__":
    main()
