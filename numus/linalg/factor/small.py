"""Many small matrices: kernels that hold one in each SIMD lane of a CPU, or in the registers of a
block of a GPU, from operand to result.

What they leave out, factors and info numbers, is computed by the general functions where a
derivative or an error asks for it.
"""

from __future__ import annotations

from numus.evaluation.evaluate import elements, evaluate, is_known
from numus.functions._base import wrap
from numus.linalg._base import stacked, unstacked
from numus.linalg.factor import lapack
from numus.primitives.linalg import factor
from numus.tensor import Tensor

MAX_ORDER = 64  # those of a vector stay in L2
MIN_SUBGROUP = 32  # threads, each of which finds a pivot by shuffles
MIN_BATCH = 16  # below, lanes would be empty


def applies(a: Tensor) -> bool:
    """Whether a stack (…, m, n) consists of many small matrices of a CPU."""
    m, n = a.shape[-2:]
    device = a._node.device
    return (
        device is not None
        and not device.runtime.target.simt
        and a.dtype.is_inexact
        and 0 < n <= m <= MAX_ORDER
        and a.size >= MIN_BATCH * m * n
    )


def on_cpu(a: Tensor) -> bool:
    device = a._node.device
    return device is not None and not device.runtime.target.simt


def is_in_place(a: Tensor) -> bool:
    """Whether one primitive factorises square matrices (…, n, n), however large: on a CPU."""
    return on_cpu(a) and a.shape[-1] > MAX_ORDER


def in_registers(a: Tensor, *right: Tensor) -> bool:
    """Whether a block of a GPU holds square matrices and right-hand sides in registers."""
    fits = 0 < a.shape[-1] == a.shape[-2] <= MAX_ORDER
    return fits and _has_shuffles(a) and all(0 < b.shape[-1] <= MAX_ORDER for b in right)


def _has_shuffles(a: Tensor) -> bool:
    """Whether threads of the device exchange registers, of numbers that are factorised."""
    device = a._node.device
    if device is None or not a.dtype.is_inexact:
        return False
    target = device.runtime.target
    return target.simt and target.subgroup_size >= MIN_SUBGROUP


def columns_in_registers(a: Tensor) -> bool:
    """Whether a block of a GPU holds matrices (…, m, n) with m >= n, and Q, in registers."""
    m, n = a.shape[-2:]
    fits = 0 < n <= m <= MAX_ORDER or 0 < n <= MAX_ORDER // 2 < m <= 2 * MAX_ORDER
    return fits and _has_shuffles(a)


def is_direct(name: str, a: Tensor, *more: Tensor) -> bool:
    """Whether a result needs no factors: many small matrices that no derivative asks for, and that
    no library takes."""
    tracked = any(x._node.tracked for x in (a, *more))
    return not tracked and (applies(a) or in_registers(a)) and not lapack.is_chosen(name, a)


def solves_directly(a: Tensor, *more: Tensor) -> bool:
    """As `is_direct`, of systems: large matrices, too, are eliminated with their right-hand
    sides."""
    if any(x._node.tracked for x in (a, *more)) or lapack.is_chosen("lu", a):
        return False
    return applies(a) or is_in_place(a) or in_registers(a, *more)


def succeeded(failed: Tensor, result: Tensor) -> bool:
    """False where a failure is known; results are computed with it."""
    if not is_known(failed._node):
        return True
    evaluate((failed._node, result._node))
    return not elements(failed._node).any()


def solve(a: Tensor, b: Tensor) -> Tensor:
    """a⁻¹ b for equal leading axes; NaN where a matrix is singular."""
    found = wrap(factor.direct_solve(stacked(a)._node, stacked(b)._node))
    return unstacked(found, a.shape[:-2])


def inv(a: Tensor) -> Tensor:
    return unstacked(wrap(factor.direct_inverse(stacked(a)._node)), a.shape[:-2])


def det(a: Tensor) -> Tensor:
    return wrap(factor.small_determinant(stacked(a)._node)).reshape(a.shape[:-2])
