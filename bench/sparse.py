"""Sparse tensors against SciPy and PyTorch, in turns: `python -m bench.sparse [words]`.

Products, transposition, Krylov loops and eigenvalues; a line of JSON for each row whose name
contains one of the words. Each call makes all that its operation needs: structures of products and
transposes are new ones in every call, as they are in a peer's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import numus as nm
from bench.timing import wait_until_idle
from numus.sparse import SparseTensor, from_scipy, linalg
from numus.sparse.pattern import Pattern
from numus.sparse.structure import CSR

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Call = Callable[[], Any]
_SECONDS = 1.0  # of a row, about


def in_turns(calls: dict[str, Call]) -> dict[str, float]:
    """The best time of each, all of them in every round; peers far behind another have one."""
    best = {}
    for name, call in calls.items():
        if name == "numus":
            call()  # compiles
        best[name] = _seconds(call)
    fastest = min(time for name, time in best.items() if name != "numus")
    near = {k: call for k, call in calls.items() if k == "numus" or best[k] < 3 * fastest}
    end = time.perf_counter() + _SECONDS
    rounds = 0
    while rounds < 2 or (time.perf_counter() < end and rounds < 40):
        for name, call in near.items():
            wait_until_idle()
            best[name] = min(best[name], _seconds(call))
        rounds += 1
    return best


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def computed(x: nm.Tensor) -> nm.Tensor:
    """A tensor whose elements are in memory; `numpy()` would copy them."""
    nm.eval(x)
    return x


# -- matrices -------------------------------------------------------------------------------------


def grid(n: int, dimensions: int, dtype: Any = np.float64) -> Any:
    """The (2 d + 1)-point Laplacian."""
    line = sp.diags([2.0, -1.0, -1.0], [0, 1, -1], (n, n))
    out = line
    for _ in range(dimensions - 1):
        out = sp.kron(out, sp.eye(n)) + sp.kron(sp.eye(out.shape[0]), line)
    return _int32(sp.csr_matrix(out).astype(dtype))


def stencil(n: int, dtype: Any = np.float64) -> Any:
    """All 27 neighbours of a point in a cube."""
    line = sp.diags([2.0, -1.0, -1.0], [0, 1, -1], (n, n))
    return _int32(sp.csr_matrix(sp.kron(sp.kron(line, line), line)).astype(dtype))


def potential(n: int) -> Any:
    """A Laplacian with random numbers on the diagonal: its last eigenvalues are apart, so that they
    converge to the last digit."""
    numbers = np.random.default_rng(0).random(n * n)
    return _int32(sp.csr_matrix(grid(n, 2) + sp.diags(8 * numbers)))


def power_law(n: int, nnz: int, dtype: Any) -> Any:
    """Rows and columns of ever fewer entries, in random order."""
    rng = np.random.default_rng(0)
    share = rng.random(n, np.float32) ** 3
    counts = np.floor(share * (nnz / share.sum(dtype=np.float64))).astype(np.int32)
    ends = np.zeros(n + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    total = int(ends[-1])
    skewed = (rng.random(total, np.float32) ** 3 * n).astype(np.int32)
    columns = rng.permutation(n).astype(np.int32)[np.minimum(skewed, n - 1)]
    data = rng.standard_normal(total, np.float32).astype(dtype)
    return sp.csr_matrix((data, columns, ends), (n, n))


def _int32(a: Any) -> Any:
    a.sort_indices()
    a.indices, a.indptr = a.indices.astype(np.int32), a.indptr.astype(np.int32)
    return a


def fresh(a: Any) -> SparseTensor:
    """A matrix of whose structure nothing is known yet; its index arrays are not checked again."""
    return SparseTensor(CSR(Pattern(a.shape, a.indptr, a.indices)), nm.asarray(a.data, copy=False))


def _torch(a: Any) -> Any:
    return torch.sparse_csr_tensor(a.indptr, a.indices, a.data, a.shape)


# -- rows -----------------------------------------------------------------------------------------


def dense_product(a: Any, columns: int) -> dict[str, Call]:
    shape = (a.shape[1],) if columns == 1 else (a.shape[1], columns)
    x = np.random.default_rng(0).standard_normal(shape).astype(a.dtype)
    own, right = from_scipy(a), nm.asarray(x)
    assert np.allclose((own @ right).numpy(), a @ x, rtol=1e-3, atol=1e-3)
    calls = {"numus": lambda: computed(own @ right), "scipy": lambda: a @ x}
    if torch is not None:
        there, column = _torch(a), torch.from_numpy(x)
        calls["torch"] = lambda: there @ column
    return calls


def sparse_product(a: Any) -> dict[str, Call]:
    def own() -> Any:
        matrix = fresh(a)
        return computed((matrix @ matrix).values)

    assert np.allclose(np.asarray(own()), _int32(a @ a).data)
    calls = {"numus": own, "scipy": lambda: a @ a}
    if torch is not None:
        there = _torch(a)
        calls["torch"] = lambda: there @ there
    return calls


def transposition(a: Any) -> dict[str, Call]:
    def own() -> Any:
        return computed(fresh(a).T.to_csr().values)

    assert np.array_equal(np.asarray(own()), a.T.tocsr().data)
    calls = {"numus": own, "scipy": lambda: a.T.tocsr()}
    if torch is not None:
        there = _torch(a)
        calls["torch"] = lambda: there.t().to_sparse_csr()
    return calls


def conversion(a: Any) -> dict[str, Call]:
    """Coordinates in random order to compressed rows."""
    order = np.random.default_rng(0).permutation(a.nnz)
    coo = a.tocoo()
    rows, columns, data = coo.row[order], coo.col[order], coo.data[order]
    both = np.stack([rows, columns])

    def own() -> Any:
        there = nm.sparse.coo_tensor(both, data, a.shape)
        return computed(there.to_csr().sum_duplicates().values)

    assert np.allclose(np.asarray(own()), a.data)
    calls = {"numus": own, "scipy": lambda: sp.coo_matrix((data, (rows, columns)), a.shape).tocsr()}
    if torch is not None:
        there = torch.from_numpy(both), torch.from_numpy(data)
        calls["torch"] = lambda: torch.sparse_coo_tensor(*there, a.shape).to_sparse_csr()
    return calls


def krylov(method: str, a: Any, iterations: int, **options: Any) -> dict[str, Call]:
    b = np.random.default_rng(0).standard_normal(a.shape[0])
    own, right = from_scipy(a), nm.asarray(b)
    name = "maxiter"
    count = iterations
    if method == "gmres":  # SciPy counts restarts
        count = iterations // options["restart"]

    def solve() -> Any:
        found = getattr(linalg, method)(own, right, rtol=1e-30, maxiter=iterations, **options)
        return computed(found.x)

    def peer() -> Any:
        return getattr(spla, method)(a, b, rtol=1e-30, **{name: count}, **options)[0]

    return {"numus": solve, "scipy": peer}


def eigenvalues(a: Any, k: int, which: str) -> dict[str, Call]:
    v0 = np.random.default_rng(0).standard_normal(a.shape[0])
    own, start = from_scipy(a), nm.asarray(v0)

    def find() -> Any:
        return computed(linalg.eigsh(own, k, which=which, v0=start)[0])

    def peer() -> Any:
        return spla.eigsh(a, k, which=which, v0=v0)[0]

    return {"numus": find, "scipy": peer}


ROWS: dict[str, Callable[[], dict[str, Call]]] = {
    "spmv 5-point 1000^2 f64": lambda: dense_product(grid(1000, 2), 1),
    "spmv 5-point 1000^2 f32": lambda: dense_product(grid(1000, 2, np.float32), 1),
    "spmv power-law 1M x 16M f32": lambda: dense_product(power_law(1 << 20, 1 << 24, "f4"), 1),
    "spmv power-law 1M x 16M f64": lambda: dense_product(power_law(1 << 20, 1 << 24, "f8"), 1),
    "spmm 64 columns 5-point 400^2 f32": lambda: dense_product(grid(400, 2, np.float32), 64),
    "spmm 64 columns 5-point 400^2 f64": lambda: dense_product(grid(400, 2), 64),
    "spgemm 27-point 64^3 f64": lambda: sparse_product(stencil(64)),
    "spgemm 27-point 64^3 f32": lambda: sparse_product(stencil(64, np.float32)),
    "transposition 27-point 64^3 f64": lambda: transposition(stencil(64)),
    "transposition 5-point 1000^2 f64": lambda: transposition(grid(1000, 2)),
    "transposition random 1M x 4M f32": lambda: transposition(power_law(1 << 20, 1 << 22, "f4")),
    "conversion 5-point 500^2 f64": lambda: conversion(grid(500, 2)),
    "cg 20 iterations 5-point 1000^2": lambda: krylov("cg", grid(1000, 2), 20),
    "gmres(30) 30 iterations 5-point 500^2": lambda: krylov("gmres", grid(500, 2), 30, restart=30),
    "eigsh LA k=10 random potential 500^2": lambda: eigenvalues(potential(500), 10, "LA"),
}


def main() -> None:
    words = sys.argv[1:]
    for name, make in ROWS.items():
        if words and not any(word in name for word in words):
            continue
        times = in_turns(make())
        best = min(time for library, time in times.items() if library != "numus")
        shown = {library: round(1e3 * time, 3) for library, time in times.items()}
        print(json.dumps({"row": name, "ms": shown, "ratio": round(best / times["numus"], 2)}))


if __name__ == "__main__":
    main()
