"""Direct sparse solvers against SciPy's SuperLU: factorise, refactorise, solve, residuals.

python -m bench.sparse_direct
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from numus.sparse import SparseTensor, diags, eye, kron, linalg, to_scipy


def poisson(n: int, dimensions: int) -> SparseTensor:
    """The (2 d + 1)-point Laplacian on a grid."""
    line = diags([2.0, -1.0, -1.0], [0, 1, -1], (n, n), dtype=nm.float64, format="csr")
    out = line
    for _ in range(dimensions - 1):
        one, whole = eye(n, dtype=nm.float64), eye(out.shape[0], dtype=nm.float64)
        out = kron(out, one) + kron(whole, line)
    return out


def seconds(function: Callable[[], Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    from scipy.sparse.linalg import splu

    for n, dimensions in ((400, 2), (32, 3)):
        a = poisson(n, dimensions)
        there = to_scipy(a).tocsc()
        b = np.random.default_rng(0).standard_normal(a.shape[0])
        right = nm.asarray(b)
        lu = linalg.splu(a)
        own = seconds(lambda a=a: linalg.splu(a))
        again = seconds(lambda lu=lu, a=a: lu.refactorise(a.values))
        definite = seconds(lambda a=a: linalg.cholesky(a))
        x = lu.solve(right).numpy()
        solve = seconds(lambda lu=lu, right=right: lu.solve(right).numpy())
        peers = {}
        for ordering in ("COLAMD", "MMD_AT_PLUS_A"):
            options = {"SymmetricMode": True} if ordering != "COLAMD" else {}
            peer = splu(there, permc_spec=ordering, options=options)
            peers[ordering] = seconds(
                lambda there=there, o=ordering, s=options: splu(there, permc_spec=o, options=s), 1
            )
        y = peer.solve(b)
        row = {
            "grid": f"{n}^{dimensions}",
            "splu": own,
            "refactorise": again,
            "cholesky": definite,
            "solve": solve,
            "scipy": peers,
            "scipy_solve": seconds(lambda peer=peer, b=b: peer.solve(b)),
            "residual": float(np.linalg.norm(there @ x - b)),
            "scipy_residual": float(np.linalg.norm(there @ y - b)),
            "ratio": min(peers.values()) / own,
            "refactorise_ratio": min(peers.values()) / again,
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
