"""Primary functions of matrices: square roots, logarithms, powers, sign, cosine and sine.

Their derivatives are their own values: f of [[A, E], [0, A]] has f(A) on its diagonal and the
derivative of f at A in direction E above it (Mathias 1996); the adjoint of that is the derivative
at Aᴴ. So they hold for any spectrum, to all orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numus.functions._base import as_number, wrap
from numus.functions.autocast import widens
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import isfinite, where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.linalg._base import (
    Implicit,
    adjoint,
    check,
    differentiated,
    identity,
    matrices,
    scale_of,
    stacked,
    unstacked,
)
from numus.linalg.factor import blocked
from numus.linalg.factor.lu import inv_ex
from numus.linalg.functions import expm, matrix_power
from numus.linalg.general.host import hosted
from numus.linalg.general.schur import complexified, packed_schur
from numus.primitives.linalg import spectral
from numus.tensor import ArrayLike, Tensor
from numus.transforms.control import while_loop

Primary = Callable[[Tensor], Tensor]


def _directional(function: Primary, a: Tensor, direction: Tensor) -> Tensor:
    """The derivative of a primary function, the direction scaled to the size of a."""
    n = a.shape[-1]
    size = scale_of(a.detach()) / scale_of(direction.detach())
    top = concat([a, direction * size], axis=-1)
    below = concat([a * 0.0, a], axis=-1)
    return function(concat([top, below], axis=-2))[..., :n, n:] / size


def primary(compute: Primary) -> Primary:
    """A function of matrices with elements, differentiated."""

    def function(a: Tensor) -> Tensor:
        return differentiated(rule, compute, a)

    def tangent(value: Tensor, operands: list[Tensor], tangents: list[Tensor]) -> Tensor:
        return _directional(function, operands[0], tangents[0])

    def pull(value: Tensor, operands: list[Tensor], g: Tensor) -> tuple[Tensor]:
        return (_directional(function, adjoint(operands[0]), g),)

    rule = Implicit(tangent, pull)
    return function


def _of_schur_form(a: Tensor, function: Primary) -> Tensor:
    """Z f(T) Zᴴ for the complex Schur form; of a real matrix its real part, NaN where that is not
    all."""
    n = a.shape[-1]
    packed = packed_schur(complexified(a))
    t, z = packed[..., :n, :].triu(), packed[..., n : 2 * n, :].mT
    found = z @ function(t) @ adjoint(z)
    if a.dtype.is_complex:
        return found
    size = maximum_of(abs(found), axis=(-2, -1), keepdims=True)
    rest = maximum_of(abs(found.imag), axis=(-2, -1), keepdims=True)
    return where(rest <= finfo(found.dtype).eps ** 0.5 * size, found.real, float("nan"))


def _root(t: Tensor) -> Tensor:
    """The principal root of upper triangular complex matrices."""
    return unstacked(wrap(spectral.triangular_root(stacked(t)._node)), t.shape[:-2]).mT


def _sqrtm(a: Tensor) -> Tensor:
    scale = scale_of(a)
    even = where((scale.log2() % 2) == 0, scale, scale * 2.0)  # powers of 4 have exact roots
    return _of_schur_form(a / even, _root) * even.sqrt()


_SQRTM = primary(_sqrtm)

# Where the [7/7] Padé approximant of log(1 + x) is exact to the last digit of float64 (Higham 2008)
_LOG_DEGREE, _LOG_LIMIT = 7, 0.264
_MAX_ROOTS = 60


def _triangular_log(t: Tensor) -> Tensor:
    """Inverse scaling and squaring (Kenney & Laub 1989), the approximant in partial fractions."""
    n = t.shape[-1]
    one = identity(n, t)

    def distance(t: Tensor) -> Tensor:
        return maximum_of(abs(t - one).sum(axis=-2), axis=-1)

    def far(state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        t, _, turns = state
        return (distance(t) > _LOG_LIMIT).any() & (turns < _MAX_ROOTS)

    def halve(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        t, doubling, turns = state
        more = distance(t) > _LOG_LIMIT
        root = where(more[..., None, None], _root(t), t)
        return root, where(more, doubling * 2.0, doubling), turns + 1

    ones = (distance(t) * 0.0) + 1.0
    start = (t, ones, (ones.sum() * 0.0).astype("int32"))
    t, doubling, _ = while_loop(far, halve, start)
    x = t - one
    nodes, weights = np.polynomial.legendre.leggauss(_LOG_DEGREE)
    total = x * 0.0
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        fraction = blocked.solve_upper(stacked(one + float(node) * x), stacked(x))
        total = total + float(weight) * unstacked(fraction, t.shape[:-2])
    found = total * doubling[..., None, None]
    return where(distance(t)[..., None, None] <= _LOG_LIMIT, found, float("nan"))


def _logm(a: Tensor) -> Tensor:
    return _of_schur_form(a, _triangular_log)


_LOGM = primary(_logm)


def _info(found: Tensor) -> Tensor:
    return where(isfinite(found).all(axis=(-2, -1)), 0, 1)


def _call(op: str, function: Primary, x: ArrayLike, why: str) -> Tensor:
    a, dtype = matrices(op, x, square=True)
    if not a.size:
        return a.astype(dtype)
    found = function(a)
    check(op, _info(found.detach()), why)
    return found.astype(dtype)


_NO_ROOT = (
    "has no {}: it is singular, or real with negative eigenvalues; as a complex matrix the latter "
    "has one"
)


@hosted
@widens
def sqrtm(x: ArrayLike, /) -> Tensor:
    """The principal square roots of square matrices: y with y y = x (Björck & Hammarling 1983).

    As `nm.sqrt` does for numbers, it stays in the dtype of its argument: a real matrix with a
    negative eigenvalue is a `LinAlgError` (in `nm.jit` NaN), a complex one has a root. Tensors of
    a GPU are copied to the host and back.

    >>> nm.linalg.sqrtm(nm.asarray([[4.0, 0.0], [0.0, 9.0]])).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    return _call("sqrtm", _SQRTM, x, _NO_ROOT.replace("{}", "square root"))


@hosted
@widens
def logm(x: ArrayLike, /) -> Tensor:
    """The principal logarithms of square matrices: y with expm(y) = x.

    It stays in the dtype of its argument: a real matrix with a negative eigenvalue, and a singular
    one, is a `LinAlgError` (in `nm.jit` NaN). Tensors of a GPU are copied to the host and back.

    >>> nm.linalg.logm(nm.asarray([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return _call("logm", _LOGM, x, _NO_ROOT.replace("{}", "logarithm"))


@hosted
@widens
def fractional_matrix_power(x: ArrayLike, t: Any, /) -> Tensor:
    """Powers of square matrices with real exponents: expm(t logm(x)), integer parts by products.

    >>> nm.linalg.fractional_matrix_power(nm.asarray([[4.0, 0.0], [0.0, 9.0]]), 0.5).tolist()
    [[2.0, 0.0], [0.0, 3.0]]
    """
    power = float(as_number(t, "t", "linalg.fractional_matrix_power"))
    if not np.isfinite(power):
        raise ValueError(f"linalg.fractional_matrix_power: the exponent {t!r} is not finite")
    a, dtype = matrices("fractional_matrix_power", x, square=True)
    whole = int(np.floor(power))
    rest = power - whole
    if not a.size or rest == 0:
        return matrix_power(a, whole).astype(dtype)
    why = _NO_ROOT.replace("{}", "power")
    if rest == 0.5:
        part = _call("fractional_matrix_power", _SQRTM, a, why)
    else:
        part = expm(rest * _call("fractional_matrix_power", _LOGM, a, why))
    return (part if whole == 0 else matrix_power(a, whole) @ part).astype(dtype)


# -- the sign -------------------------------------------------------------------------------------

_MAX_NEWTON = 100


def _signm(a: Tensor) -> Tensor:
    """Newton's iteration x ← (x + x⁻¹) / 2, scaled by norms until it converges (Higham 2008)."""
    n = a.shape[-1]
    bound = 10 * n * finfo(a.dtype).eps

    def norm(x: Tensor) -> Tensor:
        return maximum_of(abs(x).sum(axis=-2), axis=-1)[..., None, None]

    def again(state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        _, change, turns = state
        return (change > bound).any() & (turns < _MAX_NEWTON)

    def step(state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        x, change, turns = state
        inverse = inv_ex(x)[0]
        factor = where(change > 0.01, (norm(inverse) / norm(x)).sqrt(), 1.0).astype(x.dtype)
        new = (factor * x + inverse / factor) / 2.0
        size = norm(new)
        moved = where(isfinite(size), norm(new - x) / size, 0.0)  # what is not finite ends
        return new, moved, turns + 1

    start = a / scale_of(a)
    change = norm(start) * 0.0 + 1.0
    x, change, _ = while_loop(again, step, (start, change, (change.sum() * 0.0).astype("int32")))
    return where(change <= bound, x, float("nan"))


_SIGNM = primary(_signm)


@widens
def signm(x: ArrayLike, /) -> Tensor:
    """The signs of square matrices: eigenvalues become 1 or -1, as their real part is.

    A matrix with an eigenvalue on the imaginary axis has none: a `LinAlgError`, in `nm.jit` NaN.

    >>> nm.linalg.signm(nm.asarray([[2.0, 0.0], [0.0, -3.0]])).tolist()
    [[1.0, 0.0], [0.0, -1.0]]
    """
    why = f"has no sign: an eigenvalue is on the imaginary axis ({_MAX_NEWTON} iterations)"
    return _call("signm", _SIGNM, x, why)


# -- cosine and sine ------------------------------------------------------------------------------


def _rotation(op: str, x: ArrayLike) -> tuple[Tensor, Any, int]:
    """exp of [[0, -x], [x, 0]], which is [[cos x, -sin x], [sin x, cos x]]."""
    a, dtype = matrices(op, x, square=True)
    none = a * 0.0
    turn = concat([concat([none, -a], axis=-1), concat([a, none], axis=-1)], axis=-2)
    return (expm(turn) if a.size else turn), dtype, a.shape[-1]


@widens
def cosm(x: ArrayLike, /) -> Tensor:
    """The cosines of square matrices.

    >>> nm.linalg.cosm(nm.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    rotation, dtype, n = _rotation("cosm", x)
    return rotation[..., :n, :n].astype(dtype)


@widens
def sinm(x: ArrayLike, /) -> Tensor:
    """The sines of square matrices.

    >>> nm.linalg.sinm(nm.zeros((2, 2))).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    rotation, dtype, n = _rotation("sinm", x)
    return rotation[..., n:, :n].astype(dtype)
