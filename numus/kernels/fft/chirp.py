"""Transforms of any length in shared memory, as a convolution with a chirp (Bluestein 1970).

With j k = (j^2 + k^2 - (k - j)^2) / 2, the sum over j is one over k - j: a cyclic convolution of m
points, m at least 2 n - 1. Its two transforms of m points are those of one block, without a pass
through memory between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, split_constant
from numus.kernels.fft.butterflies import Complex, swap
from numus.kernels.fft.roots import unit_roots
from numus.kernels.fft.shared_memory import (
    Rotation,
    ThreadBlock,
    loads,
    shared_buffer,
    shared_stockham,
    stores,
)
from numus.kernels.fft.stockham import Read, Transform, Write, pair


def chirp(n: int, dtype: DType) -> Any:
    """exp(-pi i k^2 / n) for k < n."""
    k = np.arange(n, dtype=object if n > 1 << 31 else np.int64)
    return unit_roots((k * k % (2 * n)).astype(np.int64), 2 * n, dtype)


def chirp_length(n: int) -> int:
    """The length of the convolution by which Bluestein's algorithm transforms n points: one of few
    structures, so that lengths share their kernels."""
    min_length = 2 * n - 1
    return min(odd << max(0, (-(-min_length // odd) - 1).bit_length()) for odd in (1, 3, 5, 9, 15))


def chirp_spectrum(n: int, dtype: DType) -> Any:
    """The scaled transform of the conjugate chirp, wrapped around to `chirp_length(n)` points."""
    m = chirp_length(n)
    wide = np.zeros(m, np.clongdouble if dtype is dt.complex128 else np.complex128)
    half = np.conj(chirp(n, dt.complex128))
    wide[:n] = half
    wide[m - n + 1 :] = half[:0:-1]
    return (np.fft.fft(wide) / m).astype(dtype.np)


def chirp_transform(
    block: ThreadBlock,
    points: int,
    chirp_at: Callable[[Expr], Complex],
    spectrum_at: Callable[[Expr], Complex],
    rotation: Rotation,
    read: Read,
    write: Write,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The statements of a block whose convolution has the block's length, and its shared memory.
    The table of the chirp goes on by zeros."""
    between = shared_buffer(block, "between")
    put, get = stores(block, between), loads(block, between)

    def operand(w: Transform, i: Expr) -> Complex:
        return read(w, ir.minimum(i, const(points - 1)))

    def product(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
        return put(w, k, swap(z))

    def result(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
        if split_constant(k)[1] >= points:
            return []
        found = write(w, k, swap(z))
        pair(found, False, block.paired[1])
        return [ir.If(ir.binary("lt", k, const(points)), found)]

    def operand_factor(i: Expr) -> Complex | None:
        return chirp_at(i) if split_constant(i)[1] < points else None

    def result_factor(k: Expr) -> Complex | None:
        """With swapped parts, the conjugate."""
        if split_constant(k)[1] >= points:
            return None
        c, s = chirp_at(k)
        return c, -s

    def root(k: Expr) -> Complex:
        raise AssertionError("a convolution of small radices has no loops over primes")

    forward = operand, product, (operand_factor, spectrum_at)
    first, scratch = shared_stockham(block, root, rotation, *forward)
    inverse = get, result, (None, result_factor)
    second, _ = shared_stockham(replace(block, name="inverse_"), root, rotation, *inverse, scratch)
    return [*first, *second], [*scratch, between]
