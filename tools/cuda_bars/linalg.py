"""Linear algebra against cuSOLVER and MAGMA, as PyTorch calls them: large matrices, and stacks of
small ones. Factorisations are checked by what they multiply to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tools.cuda_bars.bars import Bar, Comparison, distance
from tools.cuda_timing import Bench, fitted

TRIAL_EXTENT = 16
AUTO = 0.95  # asked of every function
Checked = Callable[[list[Any], Sequence[Any]], float]


@dataclass(frozen=True)
class Function:
    """What both libraries have under one name, unless another is given."""

    made: str  # how its matrices are made
    check: Checked | None = None
    ours: str = ""


def _product(got: list[Any], ts: Sequence[Any]) -> float:
    return distance(got[0] @ got[0].mH, ts[0])


def _solved(got: list[Any], ts: Sequence[Any]) -> float:
    return distance(ts[0] @ got[0], ts[1])


def _inverse(got: list[Any], ts: Sequence[Any]) -> float:
    one = ts[0] @ got[0]
    return distance(one, one.new_ones(one.shape[-1]).diag().expand(one.shape))


def _orthogonal(got: list[Any], ts: Sequence[Any]) -> float:
    return distance(got[0] @ got[1], ts[0])


def _symmetric(got: list[Any], ts: Sequence[Any]) -> float:
    values, vectors = got
    return distance((vectors * values[..., None, :]) @ vectors.mH, ts[0])


def _singular(got: list[Any], ts: Sequence[Any]) -> float:
    u, s, vh = got
    return distance((u * s[..., None, :]) @ vh, ts[0])


def _general(got: list[Any], ts: Sequence[Any]) -> float:
    values, vectors = got
    return distance(ts[0].to(vectors.dtype) @ vectors, vectors * values[..., None, :])


FUNCTIONS = {
    "cholesky": Function("positive", _product),
    "solve": Function("system", _solved),
    "inv": Function("general", _inverse),
    "det": Function("near_one"),
    "qr": Function("general", _orthogonal),
    "eigh": Function("positive", _symmetric),
    "svd": Function("general", _singular),
    "eig": Function("general", _general),
    "expm": Function("near_one", ours="expm"),
    "lstsq": Function("tall"),
}


def _made(torch: Any, kind: str, shape: tuple[int, ...], dtype: str) -> list[Any]:
    """Matrices of one kind."""
    d, n = getattr(torch, dtype), shape[-1]
    if kind == "tall":
        return [torch.randn(*shape, dtype=d), torch.randn(shape[-2], 4, dtype=d)]
    a, one = torch.randn(*shape, n, dtype=d), torch.eye(n, dtype=d)
    if kind == "positive":
        return [a @ a.mH / n + one]
    if kind == "near_one":
        return [one + a / (4 * n)]
    a = a + n**0.5 * one
    return [a, torch.randn(*a.shape[:-1], 1, dtype=d)] if kind == "system" else [a]


def _compared(
    bench: Bench, name: str, shape: tuple[int, ...], dtype: str, native: float, order: int
) -> Bar:
    torch, nm, f = bench.torch, bench.nm, FUNCTIONS[name]
    sizes = fitted(min(bench.most, TRIAL_EXTENT), shape)
    theirs = torch.matrix_exp if name == "expm" else getattr(torch.linalg, name)
    ours: Callable[..., Any] = getattr(nm.linalg, f.ours or name)
    if name == "svd":
        ours, theirs = (partial(g, full_matrices=False) for g in (ours, theirs))
    if name == "lstsq":
        own, other = ours, theirs
        ours, theirs = (lambda a, b: own(a, b)[0]), (lambda a, b: other(a, b)[0])
    wide = dtype in ("float64", "complex128")
    told = "x".join(map(str, shape if f.made == "tall" else (*shape, shape[-1])))
    return Comparison(
        family="linalg",
        name=f"{name} {told} {dtype}",
        inputs=partial(_made, torch, f.made, sizes, dtype),
        ours=ours,
        theirs=theirs,
        asked=AUTO,
        native=native,
        check=f.check,
        tolerance=1e-8 if wide else 3e-3,
        jitted=name not in ("eig", "lstsq"),  # those of the host, and of ranks that are counted
        order=order,
    ).bar()


def bars(bench: Bench) -> Iterator[Bar]:
    large = {"cholesky": 0.8, "solve": 0.8, "qr": 0.6, "eigh": 0.4, "svd": 0.4}
    for name, native in large.items():
        n = 2048 if name in ("eigh", "svd") else 4096
        for dtype in ("float32", "float64"):
            order = 0 if dtype == "float32" and name not in ("eigh", "svd") else 1
            yield _compared(bench, name, (n,), dtype, native, order)
    for n in (8, 32, 64):
        for name in ("cholesky", "solve", "inv", "det", "qr", "eigh", "svd"):
            # PyTorch takes a minute for 10,000 of these: it has them one by one
            count = 500 if n == 64 and name in ("eigh", "svd", "qr") else 10_000
            order = 0 if n == 32 and name in ("cholesky", "inv") else 2
            yield _compared(bench, name, (count, n), "float32", 1.5, order)
    for name, shape, dtype in (
        ("inv", (2048,), "float32"),
        ("det", (2000,), "float64"),
        ("cholesky", (3001,), "float32"),
        ("solve", (3001,), "float64"),
        ("cholesky", (2048,), "complex64"),
        ("expm", (1024,), "float64"),
        ("lstsq", (16384, 500), "float32"),
        ("eig", (512,), "float64"),
    ):
        yield _compared(bench, name, shape, dtype, 0.0, 2)
