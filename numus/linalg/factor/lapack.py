"""Whole factorisations by LAPACK, or a library like it, where one is chosen.

`nm.kernels.prefer` chooses when a function is called: "auto" takes a library where it is faster.
"""

from __future__ import annotations

import math

from numus import dtypes as dt
from numus.functions._base import wrap
from numus.functions.creation.creation import arange
from numus.functions.elementwise.comparison import where
from numus.functions.shape.concatenation import stack
from numus.functions.shape.tiling import roll
from numus.kernels.vendor.lapack import OPERATION
from numus.kernels.vendor.registry import choose_vendor
from numus.linalg._base import adjoint
from numus.primitives import elementwise as ew
from numus.primitives.linalg.lapack import routine
from numus.runtime.lapack_routines import described, segments
from numus.tensor import Tensor

Parts = dict[str, Tensor]


def is_chosen(name: str, *xs: Tensor, option: int | str = 0) -> bool:
    """Whether a library computes a routine of stacks (batch, rows, columns)."""
    problem = described(name, option, *xs)
    if min(problem.batch, problem.m, problem.n) == 0 or not xs[0].dtype.is_inexact:
        return False
    device = xs[0]._node.device
    if device is None:
        return False
    return choose_vendor(OPERATION, problem, device.runtime.target) is not None


def on_gpu(a: Tensor) -> bool:
    """Whether a tensor is known to be on one."""
    device = a._node.device
    return device is not None and device.runtime.target.simt


def parts(name: str, *xs: Tensor, option: int | str = 0) -> Parts:
    """What a routine finds, by name (`segments`): (batch, …), not differentiated."""
    packed = wrap(routine(name, option, *(x._node for x in xs)))
    dtype = xs[0].dtype
    found: Parts = {}
    start = 0
    for segment in segments(described(name, option, *xs), dtype.is_complex):
        stop = start + segment.elements(dtype)
        x = packed[:, start:stop]
        if segment.part == "int":
            x = _integers(x)
        elif segment.part == "real":
            x = _reals(x)
        count = math.prod(segment.shape)
        found[segment.name] = x[:, :count].reshape((packed.shape[0], *segment.shape))
        start = stop
    return found


def _reals(x: Tensor) -> Tensor:
    """Real numbers that lie in the memory of complex ones."""
    if not x.dtype.is_complex:
        return x
    return stack([x.real, x.imag], axis=-1).reshape((x.shape[0], -1))


def _integers(x: Tensor) -> Tensor:
    """int32 that lie in the memory of floats."""
    x = _reals(x)
    if x.dtype.itemsize == 4:
        return wrap(ew.bitcast(x._node, dt.int32)).astype("int64")
    words = wrap(ew.bitcast(x._node, dt.int64))
    both = stack([(words << 32) >> 32, words >> 32], axis=-1)  # little-endian
    return both.reshape((x.shape[0], -1))


def eig(a: Tensor, vectors: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Complex eigenvalues (batch, n), right eigenvectors in columns, and info numbers (LAPACK's
    geev) of stacks of square matrices."""
    found = parts("eig", a.mT, option=int(vectors))
    values = found["w"] if a.dtype.is_complex else found["re"] + 1j * found["im"]
    columns = found["vectors"].mT
    if vectors and not a.dtype.is_complex:
        columns = _paired(columns, found["im"])
    return values, columns, found["info"][:, 0]


def _paired(columns: Tensor, imaginary: Tensor) -> Tensor:
    """Complex vectors: those of a conjugate pair are their common real part, then the imaginary."""
    first = (imaginary > 0)[:, None, :]
    second = (imaginary < 0)[:, None, :]
    real = where(second, roll(columns, 1, axis=-1), columns)
    other = where(first, roll(columns, -1, axis=-1), where(second, -columns, 0.0))
    return real + 1j * other


def schur(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """T (quasi-triangular where a is real), Z, eigenvalues and info numbers with a = Z T Zᴴ
    (LAPACK's gees) of stacks of square matrices."""
    found = parts("schur", a.mT)
    values = found["w"] if a.dtype.is_complex else found["re"] + 1j * found["im"]
    return found["t"].mT, found["z"].mT, values, found["info"][:, 0]


def qz(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """S, T, Q, Z, alpha, beta and info numbers with a = Q S Zᴴ, b = Q T Zᴴ (LAPACK's gges)."""
    found = parts("qz", a.mT, b.mT)
    alpha = found["w"] if a.dtype.is_complex else found["re"] + 1j * found["im"]
    square = tuple(found[name].mT for name in ("s", "t", "q", "z"))
    return (*square, alpha, found["beta"], found["info"][:, 0])  # type: ignore[return-value]


def cholesky(a: Tensor) -> Tensor:
    """Lower triangular L with L Lᴴ = a. Rows are NaN from a pivot on that is not positive."""
    found = parts("cholesky", a)
    info = found["info"][:, :, None]
    rows = arange(1, a.shape[-1] + 1, device=a.device)[:, None]
    factor = found["factor"].tril()  # above is what a had there
    return where((info > 0) & (rows >= info), float("nan"), factor)


def lu(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L and U in one matrix, the order of the rows, and the rows swapped with rows 0, 1, …"""
    with_order = not on_gpu(a)
    found = parts("lu", a.mT, option=int(with_order))
    if not with_order:  # few need it: a routine of its own
        bits = wrap(ew.bitcast(found["swaps"].astype("int32")._node, dt.float32))
        order = parts("order", bits[..., None], option=a.shape[-2])["order"]
    else:
        order = found["order"]
    return found["factor"].mT, order, found["swaps"] - 1


def system(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a⁻¹ b of stacks of square matrices, and info numbers: that of a pivot that is zero."""
    found = parts("system", a, b.mT)
    return found["x"].mT, found["info"][:, 0]


def qr(a: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Q (m, columns), and R (m, n) above what is left of the reflectors."""
    found = parts("qr", a.mT, option=columns)
    return found["q"].mT, found["r"].mT


def eigh(a: Tensor, vectors: bool = True) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues, and eigenvectors in columns; the lower triangle is read."""
    found = parts("eigh", a, option=int(vectors))
    failed = found["info"] != 0
    return where(failed, float("nan"), found["values"]), adjoint(found["vectors"])


def svd(a: Tensor, job: str = "S") -> tuple[Tensor, Tensor, Tensor]:
    """U, s and Vᴴ: thin (job "S"), square ("A") or empty ("N")."""
    # cuSOLVER has no other: its matrices are the transposed ones
    if on_gpu(a) and a.shape[-2] > a.shape[-1]:
        u, s, vh = svd(adjoint(a), job)
        return adjoint(vh), s, adjoint(u)
    found = parts("svd", a, option=job)
    failed = found["info"] != 0
    return found["u"], where(failed, float("nan"), found["s"]), found["vh"]


def solve_triangular(a: Tensor, b: Tensor, lower: bool, unit_diagonal: bool) -> Tensor:
    return parts("solve", a, b, option=_solve_option(lower, unit_diagonal))["x"]


def solve_is_chosen(a: Tensor, b: Tensor, lower: bool, unit_diagonal: bool) -> bool:
    return is_chosen("solve", a, b, option=_solve_option(lower, unit_diagonal))


def _solve_option(lower: bool, unit_diagonal: bool) -> int:
    return int(lower) + 2 * int(unit_diagonal)
