"""Operands of linalg as stacks of matrices, implicit derivatives, and errors about values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import LinAlgError, ShapeError
from numus.evaluation.evaluate import evaluate, is_known
from numus.functions._base import common, to_float, wrap
from numus.functions.autocast import autocast
from numus.functions.creation.creation import eye
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import maximum, minimum
from numus.functions.elementwise.comparison import isfinite, where
from numus.functions.elementwise.transcendental import exp2, log2
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.manipulation import broadcast_to
from numus.functions.template_cache import templated
from numus.graph import Node, Nodes, Tangents, grad_mode
from numus.kernels.vendor.registry import kernel_choice_key
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full_like
from numus.primitives.custom import implicit
from numus.primitives.views import reshape, slice_
from numus.shapes import Shape, size_of
from numus.tensor import Tensor
from numus.transforms.trace import Trace

# -- operands -------------------------------------------------------------------------------------


def operands(op: str, *xs: Any) -> tuple[list[Tensor], DType]:
    """Operands in the dtype that is computed in, and the dtype of results.

    Integers are taken in the default float, 16-bit floats compute in float32.
    """
    first = xs[0]
    if first.__class__ is Tensor:
        dtype = first.dtype
        plain = dtype.is_inexact and dt.compute_dtype(dtype) is dtype
        if plain and all(x.__class__ is Tensor and x.dtype is dtype for x in xs):
            return [wrap(x._node) for x in xs], dtype
    nodes = [to_float(n) for n in common(f"linalg.{op}", *xs)]
    dtype = nodes[0].dtype
    return [wrap(ew.cast(n, dt.compute_dtype(dtype))) for n in nodes], dtype


def matrices(op: str, x: Any, square: bool = False) -> tuple[Tensor, DType]:
    """Matrices, in the dtype that is computed in."""
    (a,), dtype = operands(op, x)
    require_matrices(op, a, square)
    return a, dtype


def require_matrices(op: str, a: Tensor, square: bool = False) -> None:
    kind = "square matrices" if square else "matrices"
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        raise LinAlgShapeError(f"linalg.{op}: takes {kind} or stacks of them, not shape {a.shape}")


class LinAlgShapeError(ShapeError, LinAlgError):
    """A shape that has no such factorisation: NumPy's LinAlgError, too."""


def real_part(x: Tensor) -> Tensor:
    return x.real if x.dtype.is_complex else x


def adjoint(a: Tensor) -> Tensor:
    """The conjugate transpose."""
    return a.mT.conj() if a.dtype.is_complex else a.mT


def stacked(a: Tensor) -> Tensor:
    """All leading axes as one."""
    return wrap(reshape(a._node, (size_of(a.shape[:-2]), *a.shape[-2:])))


def unstacked(x: Tensor, lead: Shape) -> Tensor:
    return wrap(reshape(x._node, (*lead, *x.shape[1:])))


def element(x: Tensor, i: int, j: int) -> Tensor:
    """An element of each matrix."""
    start = (0,) * (x.ndim - 2)
    at = (*start, i % x.shape[-2], j % x.shape[-1])
    picked = slice_(x._node, at, (1,) * x.ndim, (*x.shape[:-2], 1, 1))
    return wrap(reshape(picked, x.shape[:-2]))


def by_choice(function: Callable[..., Any]) -> Callable[..., Any]:
    """`templated`, for graphs that depend on which kernels are preferred, too."""
    cached = templated(lambda choice, *args: function(*args))

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return cached(kernel_choice_key(), *args)

    return run


def untracked_by_choice(function: Callable[..., Any]) -> Callable[..., Any]:
    """`by_choice` where no derivative asks for an operand."""
    cached = by_choice(function)

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        tracked = any(x.__class__ is Tensor and x._node.tracked for x in args)
        return function(*args) if tracked else cached(*args)

    return run


def identity(n: int, like: Tensor) -> Tensor:
    """The identity of order n, for each matrix of `like`."""
    one = eye(n, dtype=like.dtype, device=like.device)
    return broadcast_to(one, (*like.shape[:-2], n, n))


def scale_of(a: Tensor, axis: int | tuple[int, ...] = (-2, -1)) -> Tensor:
    """A power of two per matrix near its largest element, or with `axis` -2 per column, by which
    squares neither overflow nor underflow; 1 where all elements are zero or one is not finite. Its
    reciprocal is a normal number, so that of subnormal elements it is larger than they are."""
    largest = maximum_of(abs(a), axis=axis, keepdims=True)
    info = finfo(largest.dtype)
    usable = (largest > 0) & (largest <= info.max)
    bounded = minimum(maximum(largest, 4 * info.smallest_normal), info.max / 4)
    return where(usable, exp2(log2(where(usable, bounded, 1.0)).floor()), 1.0)


# -- derivatives ----------------------------------------------------------------------------------

Tangent = Callable[..., Tensor]


class Implicit:
    """A rule by the tangent of a result: `tangent(result, operands, tangents)`, linear in tangents.

    Its transpose is the reverse mode, unless `pull(result, operands, cotangent)` is given: a rule
    that is written with itself, as that of a solution is, has none.
    """

    def __init__(self, tangent: Tangent, pull: Callable[..., Sequence[Any]] | None = None) -> None:
        self._tangent, self._pull = tangent, pull

    def jvp(self, result: Node, operands: Nodes, tangents: Tangents) -> Node | None:
        zeros = [
            full_like(x, 0) if t is None else t for x, t in zip(operands, tangents, strict=True)
        ]
        found = self._tangent(wrap(result), [wrap(x) for x in operands], [wrap(t) for t in zeros])
        return found._node

    def vjp(self, result: Node, operands: Nodes, cotangent: Node) -> Tangents:
        given = [wrap(x) for x in operands]
        if self._pull is not None:
            found = self._pull(wrap(result), given, wrap(cotangent))
            return [None if g is None else g._node for g in found]
        moving = [i for i, x in enumerate(operands) if x.tracked and x.dtype.is_inexact]
        zeros = [wrap(full_like(x, 0)) for x in operands]

        def tangent(*ts: Tensor) -> Tensor:
            tangents = list(zeros)
            for i, t in zip(moving, ts, strict=True):
                tangents[i] = t
            return self._tangent(wrap(result), given, tangents)

        trace = Trace("linalg", tangent, [zeros[i] for i in moving])
        pulled = dict(zip(moving, trace.vjp([cotangent]), strict=True))
        return [pulled.get(i) for i in range(len(operands))]


def differentiated(rule: Implicit, compute: Callable[..., Tensor], *xs: Tensor) -> Tensor:
    """compute(*xs), differentiated by a rule alone."""
    with grad_mode(False), autocast(enabled=False):
        value = compute(*xs)
    if not any(x._node.tracked for x in xs):
        return value
    return wrap(implicit(rule, value._node, *(x._node for x in xs)))


# -- values ---------------------------------------------------------------------------------------


def check(op: str, info: Tensor, why: str, *results: Tensor) -> bool:
    """Raise where an info number is not 0; `why` has a place for it. Nothing is raised where values
    are not known, as in `nm.jit`: False then. Results are computed with the info numbers, so that
    factors of both need not be kept."""
    if not is_known(info._node):
        return False
    known = [x._node for x in results if is_known(x._node)]  # right-hand sides may be traced
    evaluate([info._node, *known])
    numbers = np.asarray(info.numpy())
    bad = np.argwhere(numbers)
    if not len(bad):
        return True
    at = tuple(int(i) for i in bad[0])
    which = f"matrix {at[0] if len(at) == 1 else at} of the batch" if at else "the matrix"
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    raise LinAlgError(f"linalg.{op}: {which}{more} {why.format(int(numbers[at]))}")


UNCONVERGED = "did not converge or has elements that are not finite"


def unconverged(values: Tensor) -> Tensor:
    """Info numbers of spectra: 1 where a value is not finite, which those of matrices with NaN or
    infinite elements are, and those that did not converge."""
    return (~isfinite(values.detach())).any(axis=-1).astype(dt.int64)


def spoiled(x: Tensor, info: Tensor, axes: int = 2) -> Tensor:
    """x with NaN in the matrices (or vectors) whose info number is not 0."""
    bad = info.reshape((*info.shape, *(1,) * axes)) != 0
    return where(bad, float("nan"), x)
