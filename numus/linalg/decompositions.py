"""Decompositions of tensors: canonical polyadic, Tucker, tensor train (Kolda & Bader 2009,
Oseledets 2011). Results have the whole tensor again: `full()`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numus import random
from numus.errors import ShapeError
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.functions.linear.matmul import tensordot
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import moveaxis
from numus.linalg._base import adjoint, identity, operands, real_part
from numus.linalg.factor.lu import solve_ex
from numus.linalg.factor.svd import thin
from numus.linalg.products import khatri_rao, trace
from numus.shapes import as_int
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import fori_loop


def _given(op: str, x: ArrayLike) -> tuple[Tensor, Any]:
    (a,), dtype = operands(op, x)
    if a.ndim < 1 or not a.size:
        raise ShapeError(f"linalg.{op}: takes tensors with axes and elements, not shape {a.shape}")
    return a, dtype


def _count(op: str, name: str, value: Any) -> int:
    found = as_int(value, name, f"linalg.{op}")
    if found < 1:
        raise ValueError(f"linalg.{op}: {name} must be at least 1, not {found}")
    return found


def _counts(op: str, value: Any, length: int) -> list[int]:
    """A rank for each of `length` places."""
    given = list(value) if isinstance(value, Sequence) else [value] * length
    if len(given) != length:
        raise ValueError(f"linalg.{op}: {length} ranks are needed, not {len(given)}")
    return [_count(op, "ranks", r) for r in given]


def unfolded(x: Tensor, axis: int) -> Tensor:
    """A matrix whose rows are an axis, all others in their order as columns."""
    return moveaxis(x, axis, 0).reshape((x.shape[axis], -1))


def along(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """The product of a matrix with the vectors along an axis."""
    return moveaxis(tensordot(matrix, x, axes=((1,), (axis,))), 0, axis)


def _leading(a: Tensor, rank: int) -> Tensor:
    """The first left singular vectors."""
    return thin(a)[0][..., :rank]


# -- canonical polyadic ---------------------------------------------------------------------------


class CPResult(NamedTuple):
    """What `cp` gives: a weight per component, and a matrix (extent, rank) per axis."""

    weights: Tensor
    factors: tuple[Tensor, ...]

    def full(self) -> Tensor:
        """The sum of the outer products."""
        first, *rest = self.factors
        first = first * self.weights
        if not rest:
            return first.sum(axis=-1)
        shape = tuple(f.shape[0] for f in self.factors)
        return (first @ functools.reduce(khatri_rao, rest).mT).reshape(shape)


def _normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    size = (abs(x) ** 2).sum(axis=0).sqrt()
    size = size + (size == 0).astype(size.dtype)
    return x / size, size


@widens
def cp(x: ArrayLike, /, rank: int, *, iterations: int = 100, key: Any = None) -> CPResult:
    """The canonical polyadic decomposition: a sum of `rank` outer products near x, by alternating
    least squares.

    It starts from singular vectors of the unfoldings (and random ones, of `key`, beyond an extent)
    and takes a fixed number of iterations, through which it is differentiated.

    >>> a, b = nm.asarray([1.0, 2.0]), nm.asarray([3.0, 4.0, 5.0])
    >>> found = nm.linalg.cp(a[:, None] * b, 1)
    >>> bool((abs(found.full() - a[:, None] * b) < 1e-4).all())
    True
    """
    a, dtype = _given("cp", x)
    count = _count("cp", "rank", rank)
    turns = _count("cp", "iterations", iterations)
    factors = []
    for axis, extent in enumerate(a.shape):
        start = _leading(unfolded(a.detach(), axis), min(count, extent))
        if start.shape[1] < count:
            shape = (extent, count - start.shape[1])
            kind = real_part(a).dtype
            more = random.normal(shape, dtype=kind, device=a.device, key=key).astype(a.dtype)
            start = concat([start, more], axis=1)
        factors.append(start)

    def sweep(_: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = list(state[:-1])
        sizes = state[-1]
        for axis in range(a.ndim):
            found[axis], sizes = _normalised(_least_squares(a, found, axis))
        return (*found, sizes)

    sizes = (abs(factors[0]) ** 2).sum(axis=0).sqrt()
    *done, weights = fori_loop(0, turns, sweep, (*factors, sizes))
    weights = weights if dtype.is_complex else weights.astype(dtype)
    return CPResult(weights, tuple(f.astype(dtype) for f in done))


def _least_squares(a: Tensor, factors: list[Tensor], axis: int) -> Tensor:
    """The factor of an axis for those of the others: normal equations, with a shift of the size of
    rounding errors against components that have become equal."""
    others = [f for i, f in enumerate(factors) if i != axis]
    if not others:
        return a[:, None] / factors[0].shape[1] + factors[0] * 0.0
    gram = functools.reduce(lambda x, y: x * y, [adjoint(f) @ f for f in others])
    rank = gram.shape[-1]
    shift = 4 * finfo(gram.dtype).eps * real_part(trace(gram))
    gram = gram + identity(rank, gram) * shift.astype(gram.dtype)
    right = unfolded(a, axis) @ functools.reduce(khatri_rao, others).conj()
    return solve_ex(gram, right.mT)[0].mT


# -- Tucker ---------------------------------------------------------------------------------------


class TuckerResult(NamedTuple):
    """What `tucker` gives: a core, and orthonormal columns (extent, rank) per axis."""

    core: Tensor
    factors: tuple[Tensor, ...]

    def full(self) -> Tensor:
        """The core times the factor of each axis."""
        x = self.core
        for axis, factor in enumerate(self.factors):
            x = along(x, factor, axis)
        return x


@widens
def tucker(x: ArrayLike, /, ranks: Any, *, iterations: int = 10) -> TuckerResult:
    """The Tucker decomposition: a core of extents `ranks` and an orthonormal basis per axis, by
    higher-order orthogonal iteration (HOOI) from higher-order singular values.

    >>> found = nm.linalg.tucker(nm.ones((3, 4, 5)), 1)
    >>> found.core.shape, bool((abs(found.full() - 1) < 1e-4).all())
    ((1, 1, 1), True)
    """
    a, dtype = _given("tucker", x)
    counts = [min(r, n) for r, n in zip(_counts("tucker", ranks, a.ndim), a.shape, strict=True)]
    counts = [min(r, math.prod(counts) // r) if a.ndim > 1 else r for r in counts]
    turns = _count("tucker", "iterations", iterations)
    factors = [_leading(unfolded(a, i), r) for i, r in enumerate(counts)]

    def sweep(_: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found = list(state)
        for axis, rank in enumerate(counts):
            found[axis] = _leading(unfolded(_projected(a, found, axis), axis), rank)
        return tuple(found)

    if a.ndim > 1:
        factors = list(fori_loop(0, turns, sweep, tuple(factors)))
    core = _projected(a, factors, None)
    return TuckerResult(core.astype(dtype), tuple(f.astype(dtype) for f in factors))


def _projected(a: Tensor, factors: list[Tensor], axis: int | None) -> Tensor:
    for i, factor in enumerate(factors):
        if i != axis:
            a = along(a, adjoint(factor), i)
    return a


# -- tensor train ---------------------------------------------------------------------------------


class TensorTrainResult(NamedTuple):
    """What `tensor_train` gives: a core (rank, extent, next rank) per axis."""

    cores: tuple[Tensor, ...]

    def full(self) -> Tensor:
        """The product of the cores."""
        x = self.cores[0]
        for core in self.cores[1:]:
            x = tensordot(x, core, axes=1)
        return x.reshape(x.shape[1:-1])


@widens
def tensor_train(x: ArrayLike, /, ranks: Any) -> TensorTrainResult:
    """The tensor-train decomposition: a core per axis, by successive singular value decompositions
    (TT-SVD).

    `ranks` is the largest rank between neighbours, or one for each pair of them; it is no more than
    the unfolding allows.

    >>> found = nm.linalg.tensor_train(nm.ones((3, 4, 5)), 1)
    >>> [core.shape for core in found.cores]
    [(1, 3, 1), (1, 4, 1), (1, 5, 1)]
    """
    a, dtype = _given("tensor_train", x)
    counts = _counts("tensor_train", ranks, a.ndim - 1)
    cores = []
    rest, before = a, 1
    for extent, rank in zip(a.shape[:-1], counts, strict=True):
        u, s, v = thin(rest.reshape((before * extent, -1)))
        rank = min(rank, s.shape[-1])
        cores.append(u[:, :rank].reshape((before, extent, rank)).astype(dtype))
        rest = s[:rank, None].astype(a.dtype) * adjoint(v[:, :rank])
        before = rank
    cores.append(rest.reshape((before, a.shape[-1], 1)).astype(dtype))
    return TensorTrainResult(tuple(cores))
