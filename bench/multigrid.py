"""Algebraic multigrid against pyamg, in turns: setup, and CG to 1e-8 with a V-cycle.

python -m bench.multigrid [points of a side] [dimensions]
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import numus as nm
from bench.sparse_direct import poisson
from numus.sparse import SparseTensor, from_scipy, linalg, to_scipy

_ROUNDS = 6


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def _solved(a: SparseTensor, b: nm.Tensor, near: linalg.LinearOperator) -> linalg.SolveResult:
    found = linalg.cg(a, b, rtol=1e-8, M=near)
    found.x.numpy()  # computed now
    return found


def main() -> None:
    pyamg = importlib.import_module("pyamg")
    n, dimensions = (int(x) for x in (*sys.argv[1:], "500", "2")[:2])
    a = poisson(n, dimensions).to_csr()
    there = to_scipy(a)
    b = np.random.default_rng(0).standard_normal(a.shape[0])
    right = nm.asarray(b)
    pairs = {
        "ruge_stuben": (linalg.ruge_stuben, pyamg.ruge_stuben_solver),
        "smoothed_aggregation": (linalg.smoothed_aggregation, pyamg.smoothed_aggregation_solver),
    }
    for name, (own, theirs) in pairs.items():
        times: dict[str, list[float]] = {k: [] for k in ("setup", "peer_setup", "solve", "peer")}
        for _ in range(_ROUNDS):
            # another structure each time: nothing of the last is known
            taken, amg = _seconds(lambda own=own: own(from_scipy(there.copy())))
            times["setup"].append(taken)
            taken, peer = _seconds(lambda theirs=theirs: theirs(there))
            times["peer_setup"].append(taken)
        near = amg.preconditioner()
        for _ in range(_ROUNDS):
            taken, found = _seconds(lambda near=near: _solved(a, right, near))
            times["solve"].append(taken)
            history: list[float] = []
            taken, _ = _seconds(
                lambda peer=peer, h=history: peer.solve(b, tol=1e-8, accel="cg", residuals=h)
            )
            times["peer"].append(taken)
        best = {k: min(v) for k, v in times.items()}
        row = {
            "method": name,
            "grid": f"{n}^{dimensions}",
            **best,
            "iterations": int(found.iterations),
            "peer_iterations": len(history) - 1,
            "setup_ratio": best["peer_setup"] / best["setup"],
            "solve_ratio": best["peer"] / best["solve"],
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
