"""Sparse products and solvers against cuSPARSE, as PyTorch calls it, and 2:4 sparsity."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bench import sparse as made
from tools.cuda_bars.bars import Bar, Comparison, distance
from tools.cuda_timing import Bench

BYTES = 8  # of an entry in float32: its value and its column


def stencil(torch: Any, n: int) -> tuple[Any, Any, Any]:
    """All 27 neighbours of a point in a cube: pointers, columns and values of its rows."""
    at = torch.arange(n**3, dtype=torch.int32)
    place = (at // n**2, at // n % n, at % n)
    steps = [(i, j, k) for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)]
    there = torch.ones((n**3, 27), dtype=torch.bool)
    for column, step in enumerate(steps):
        for coordinate, by in zip(place, step, strict=True):
            moved = coordinate + by
            there[:, column] &= (moved >= 0) & (moved < n)
    offsets = torch.tensor([(i * n + j) * n + k for i, j, k in steps], dtype=torch.int32)
    columns = (at[:, None] + offsets)[there]
    ends = torch.cumsum(there.sum(1), 0)
    pointers = torch.cat([ends.new_zeros(1), ends]).to(torch.int32)
    return pointers, columns, torch.randn(len(columns))


def power_law(torch: Any, rows: int, entries: int) -> tuple[Any, Any, Any]:
    """Rows and columns of ever fewer entries, in random order."""
    a = made.power_law(rows, entries, "f4")
    device = torch.get_default_device()
    return tuple(torch.from_numpy(x).to(device) for x in (a.indptr, a.indices, a.data))


def _ours(nm: Any, pointers: Any, columns: Any, values: Any, *rest: Any) -> list[Any]:
    """A matrix of numus, whose structure is on the host, and the operands beside it."""
    n = pointers.shape[0] - 1
    host = (pointers.numpy(), columns.numpy())
    pattern = made.Pattern((n, n), *host)
    return [made.SparseTensor(made.CSR(pattern), values), *rest]


def _theirs(torch: Any, pointers: Any, columns: Any, values: Any, *rest: Any) -> list[Any]:
    n = len(pointers) - 1
    return [torch.sparse_csr_tensor(pointers, columns, values, (n, n)), *rest]


def _squared(a: Any) -> Any:
    """The values of A A, structure and all: nothing is known of the factor's beforehand."""
    fresh = made.SparseTensor(made.CSR(made.Pattern(a.shape, *_arrays(a))), a.values)
    return (fresh @ fresh).values


def _far_squared(torch: Any, values: Any, a: Any) -> float:
    """The distance of a square's values from PyTorch's, whose columns are in no order."""
    found, wanted = values.sort()[0], (a @ a).values().sort()[0]
    return distance(found, wanted)


def _arrays(a: Any) -> tuple[Any, Any]:
    pattern = a.structure.pattern
    return pattern.pointers.array, pattern.indices.array


def _poisson(torch: Any, n: int) -> tuple[Any, Any, Any]:
    a = made.grid(n, 3, "f4")
    device = torch.get_default_device()
    return tuple(torch.from_numpy(x).to(device) for x in (a.indptr, a.indices, a.data))


def _cg(torch: Any, a: Any, b: Any, iterations: int) -> Any:
    """Conjugate gradients, as one writes them in PyTorch."""
    x, r = torch.zeros_like(b), b
    p, rho = r, r @ r
    for _ in range(iterations):
        q = a @ p
        alpha = rho / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        rho, before = r @ r, rho
        p = r + rho / before * p
    return x


def bars(bench: Bench) -> Iterator[Bar]:
    torch, nm = bench.torch, bench.nm
    tiny = bool(bench.most)
    compared = partial(
        Comparison,
        family="sparse",
        prepared=partial(_ours, nm),
        prepared_theirs=partial(_theirs, torch),
    )

    def with_dense(matrix: Any, columns: int, *sizes: int) -> Any:
        def inputs() -> list[Any]:
            parts = matrix(torch, *sizes)
            n = len(parts[0]) - 1
            return [*parts, torch.randn(*((n, columns) if columns > 1 else (n,)))]

        return inputs

    def product(a: Any, x: Any) -> Any:
        return a @ x

    cube, law = (8,) if tiny else (256,), (500, 4000) if tiny else (1 << 20, 1 << 24)
    smaller = (6,) if tiny else (128,)
    entries = (3 * cube[0] - 2) ** 3
    yield compared(
        name="spmv 27-point 256^3 float32",
        inputs=with_dense(stencil, 1, *cube),
        ours=product,
        theirs=product,
        nbytes=BYTES * entries + 12 * cube[0] ** 3,
        share=0.7,
        order=0,
    ).bar()
    yield compared(
        name="spmm 27-point 128^3 with 64 columns float32",
        inputs=with_dense(stencil, 64, *smaller),
        ours=product,
        theirs=product,
        order=0,
    ).bar()
    for name, columns, order in (
        ("spmv power-law 2^20 with 2^24 entries", 1, 1),
        ("spmm power-law 2^20 with 2^24 entries, 64 columns", 64, 2),
    ):
        yield compared(
            name=f"{name} float32",
            inputs=with_dense(power_law, columns, *law),
            ours=product,
            theirs=product,
            order=order,
        ).bar()
    yield compared(
        name="spgemm 27-point 64^3 float32",
        inputs=partial(stencil, torch, 5 if tiny else 64),
        ours=_squared,
        theirs=lambda a: (a @ a).values(),
        check=lambda got, ts: _far_squared(torch, got[0], *_theirs(torch, *ts)),
        asked=0.7,
        jitted=False,
    ).bar()
    iterations = 5 if tiny else 200
    yield compared(
        name="cg 128^3, 200 iterations float32",
        inputs=with_dense(_poisson, 1, *smaller),
        ours=lambda a, b: nm.sparse.linalg.cg(a, b, rtol=1e-30, maxiter=iterations).x,
        theirs=lambda a, b: _cg(torch, a, b, iterations),
        tolerance=0.1,  # of an iterate that has not converged, in float32
        asked=2.0,
        jitted=False,
    ).bar()
    for m, order in ((4096, 0), (16, 2)):
        n = 4096 if not tiny else bench.most
        yield Comparison(
            family="sparse",
            name=f"2:4 of 4096x4096 with {m} columns bfloat16",
            inputs=lambda m=m, n=n: [
                torch.randn(n, n).bfloat16(),
                torch.randn(n, min(m, n)).bfloat16(),
            ],
            prepared=lambda a, x: [nm.sparse.to_semi_structured(nm.sparse.prune_2_4(a)), x],
            prepared_theirs=lambda a, x: [_pruned(torch, a), x],
            ours=product,
            theirs=product,
            tolerance=3e-2,
            asked=1.3,
            order=order,
        ).bar()


def _pruned(torch: Any, a: Any) -> Any:
    """Zeros in place of the two smallest of every four, the later of equal ones."""
    groups = a.reshape(-1, 4)
    order = torch.sort(groups.abs().float(), dim=1, descending=True, stable=True)[1]
    kept = torch.zeros_like(groups).scatter(1, order[:, :2], 1)
    return (groups * kept).reshape(a.shape)
