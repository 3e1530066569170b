"""Integrals of functions: Gauss-Legendre, adaptive Gauss-Kronrod and Romberg quadrature.

`quad` bisects the interval with the largest error, as QUADPACK's QAG does, with its rule of 21
points and its error estimate (Piessens et al. 1983), in one loop of the graph. The integral's
derivatives are those of the sum over the final intervals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.integrate.samples import richardson
from numus.optimize.casting import cast
from numus.shapes import as_int
from numus.tensor import Tensor
from numus.transforms.control.closure import closure_convert
from numus.transforms.trace import require_function

__all__ = ["fixed_quad", "quad", "romberg"]

Function = Callable[..., Any]

# The positive half of the rule, from the outermost node to the centre; Gauss's nodes are every
# second one, from the second on.
_NODES = (
    0.9956571630258081,
    0.9739065285171717,
    0.9301574913557082,
    0.8650633666889845,
    0.7808177265864169,
    0.6794095682990244,
    0.5627571346686047,
    0.4333953941292472,
    0.2943928627014602,
    0.14887433898163122,
    0.0,
)
_KRONROD = (
    0.011694638867371874,
    0.032558162307964725,
    0.054755896574351995,
    0.07503967481091996,
    0.0931254545836976,
    0.10938715880229764,
    0.12349197626206584,
    0.13470921731147334,
    0.14277593857706009,
    0.14773910490133849,
    0.1494455540029169,
)
_GAUSS = (
    0.06667134430868814,
    0.1494513491505806,
    0.21908636251598204,
    0.26926671930999635,
    0.29552422471475287,
)


def _limits(op: str, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """The ends of an interval, as floats of one dtype."""
    ends = [nm.asarray(end) for end in (a, b)]
    dtype = nm.result_type(*ends, nm.float32)
    for name, end in zip("ab", ends, strict=True):
        if end.ndim or end.dtype.is_complex:
            raise ShapeError(
                f"{op}: the limit {name} must be one real number, not {end.dtype.name} of shape "
                f"{end.shape}; nm.vmap integrates over many intervals"
            )
    low, high = (cast(end, dtype) for end in ends)
    return low, high


def fixed_quad(
    func: Function, a: Any, b: Any, args: tuple[Any, ...] = (), n: int = 5
) -> tuple[Tensor, None]:
    """The integral by Gauss-Legendre quadrature of n points, and None.

    Args:
        func: takes a vector of points; values at them are along the last axis of the result.

    >>> round(nm.integrate.fixed_quad(lambda x: x**3, 0.0, 2.0, n=2)[0].item(), 4)
    4.0
    """
    require_function(func, "fixed_quad")
    n = as_int(n, "n", "fixed_quad")
    if n < 1:
        raise ValueError(f"fixed_quad: n must be at least 1, not {n}")
    low, high = _limits("fixed_quad", a, b)
    nodes, weights = (
        nm.asarray(x, dtype=low.dtype, device=low.device)
        for x in np.polynomial.legendre.leggauss(n)
    )
    half = (high - low) / 2
    values = func(half * (nodes + 1) + low, *args)
    return half * nm.sum(weights * values, axis=-1), None


def romberg(
    function: Function,
    a: Any,
    b: Any,
    args: tuple[Any, ...] = (),
    tol: float = 1.48e-8,
    rtol: float = 1.48e-8,
    divmax: int = 10,
) -> Tensor:
    """The integral by Romberg's method.

    All 2^divmax + 1 points are evaluated at once; the result is the first entry on the diagonal of
    the table that differs from the one before by less than the tolerances, or the last.

    Args:
        function: of one number.

    >>> round(nm.integrate.romberg(nm.exp, 0.0, 1.0).item(), 5)
    1.71828
    """
    require_function(function, "romberg")
    divmax = as_int(divmax, "divmax", "romberg")
    if not 1 <= divmax <= 20:
        raise ValueError(f"romberg: divmax must be between 1 and 20, not {divmax}")
    low, high = _limits("romberg", a, b)
    n = 2**divmax
    fractions = nm.asarray(np.arange(n + 1) / n, dtype=low.dtype, device=low.device)
    f = nm.vmap(lambda x: function(x, *args))(low + (high - low) * fractions)
    ends, rows = (f[0] + f[-1]) / 2, []
    for k in range(divmax + 1):
        step = n >> k
        rows.append((nm.sum(f[step:n:step], axis=0) + ends) * (high - low) / 2**k)
    diagonal = richardson(rows)
    found = diagonal[-1]
    for before, after in reversed(list(itertools.pairwise(diagonal))):
        close = nm.abs(after - before) < nm.maximum(tol, rtol * nm.abs(after))
        found = nm.where(close, after, found)
    return found


class _Mesh(NamedTuple):
    """Intervals, as fractions of the whole, with what the rule gives for them."""

    low: Tensor
    high: Tensor
    value: Tensor
    error: Tensor
    used: Tensor


def _rule(f: Function, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Integrals over intervals, and estimates of their errors."""
    half = [np.array(x) for x in (_NODES, _KRONROD)]
    inner = np.zeros(11)
    inner[1::2] = _GAUSS
    nodes, kronrod, gauss = (
        nm.asarray(np.concatenate([x, sign * x[-2::-1]]), dtype=low.dtype, device=low.device)
        for x, sign in ((half[0], -1), (half[1], 1), (inner, 1))
    )
    centre, width = nm.expand_dims((low + high) / 2, 1), nm.expand_dims((high - low) / 2, 1)
    values = nm.reshape(nm.vmap(f)(nm.reshape(centre + width * nodes, -1)), (-1, 21))
    width = width[:, 0]
    total = nm.sum(values * kronrod, axis=1)
    spread = nm.sum(nm.abs(values - nm.expand_dims(total / 2, 1)) * kronrod, axis=1) * width
    error = nm.abs(total - nm.sum(values * gauss, axis=1)) * width
    flat = spread == 0
    part = nm.minimum(1.0, (200 * error / nm.where(flat, 1.0, spread)) ** 1.5)
    return total * width, nm.where(flat | (error == 0), error, spread * part)


def quad(
    func: Function,
    a: Any,
    b: Any,
    args: tuple[Any, ...] = (),
    full_output: bool = False,
    epsabs: float = 1.49e-8,
    epsrel: float = 1.49e-8,
    limit: int = 50,
) -> tuple[Any, ...]:
    """The integral of a function of one number from a to b, and an estimate of its error.

    Differentiable by the limits, by `args` and by tensors that the function closes over.

    Args:
        a: the lower limit: a number, which may be -inf, or a finite tensor.
        b: the upper limit.
        full_output: add a dict: `last`, the number of intervals, `neval`, that of evaluations, and
            `ier`, which is 1 where `limit` intervals did not reach the tolerances.
        limit: the largest number of intervals.

    >>> value, error = nm.integrate.quad(lambda x: nm.exp(-x * x), -nm.inf, nm.inf)
    >>> round(value.item(), 4)
    1.7725
    """
    op = "quad"
    require_function(func, op)
    limit = as_int(limit, "limit", op)
    if limit < 1:
        raise ValueError(f"{op}: limit must be at least 1, not {limit}")
    unit, low, high, sign = _on_unit_interval(func, a, b, args)
    convert, held = closure_convert(op, unit, low, high, low)
    known = [x.detach() for x in (low, high, *held)]
    with nm.no_grad():
        mesh = _bisected(
            lambda u: convert(known[2:], known[0], known[1], u), known[0], limit, epsabs, epsrel
        )
    total, error = nm.sum(mesh.value), nm.sum(mesh.error)
    if any(x._node.tracked for x in (low, high, *held)):
        total = nm.sum(_rule(lambda u: convert(held, low, high, u), mesh.low, mesh.high)[0])
    if not full_output:
        return sign * total, error
    missed = error > nm.maximum(epsabs, epsrel * nm.abs(total))
    info = {"last": mesh.used, "neval": 42 * mesh.used - 21, "ier": cast(missed, nm.int32)}
    return sign * total, error, info


def _bisected(f: Function, like: Tensor, limit: int, epsabs: float, epsrel: float) -> _Mesh:
    """Intervals that meet the tolerances, or `limit` of them; unused ones are empty."""
    slots = nm.arange(limit, device=like.device)
    empty = nm.zeros_like(like) * cast(slots, like.dtype)
    first = slots == 0
    value, error = _rule(f, nm.zeros_like(empty[:1]), nm.ones_like(empty[:1]))
    mesh = _Mesh(
        empty,
        nm.where(first, 1.0, empty),
        nm.where(first, value, empty),
        nm.where(first, error, empty),
        nm.zeros_like(like, dtype=nm.int32) + 1,
    )

    def goes_on(m: _Mesh) -> Tensor:
        wanted = nm.maximum(epsabs, epsrel * nm.abs(nm.sum(m.value)))
        return (nm.sum(m.error) > wanted) & (m.used < limit)

    def bisect(m: _Mesh) -> _Mesh:
        worst, last = slots == nm.argmax(m.error), slots == m.used
        low, high = (nm.sum(nm.where(worst, x, 0.0)) for x in (m.low, m.high))
        middle = (low + high) / 2
        lows, highs = nm.stack([low, middle]), nm.stack([middle, high])
        value, error = _rule(f, lows, highs)

        def put(x: Tensor, pair: Tensor) -> Tensor:
            return nm.where(worst, pair[0], nm.where(last, pair[1], x))

        count = cast(m.used + 1, nm.int32)
        return _Mesh(
            put(m.low, lows), put(m.high, highs), put(m.value, value), put(m.error, error), count
        )

    return nm.while_loop(goes_on, bisect, mesh)


def _on_unit_interval(
    func: Function, a: Any, b: Any, args: tuple[Any, ...]
) -> tuple[Function, Tensor, Tensor, float]:
    """The integrand as a function of the limits and of a number between 0 and 1, and the limits;
    infinite ones are mapped by x = (1 - u) / u."""

    def infinite(end: Any) -> bool:
        return not isinstance(end, Tensor) and math.isinf(end)

    if not (infinite(a) or infinite(b)):
        low, high = _limits("quad", a, b)
        return lambda p, q, u: (q - p) * func(p + (q - p) * u, *args), low, high, 1.0
    if infinite(a) and infinite(b):
        low, high = _limits("quad", 0.0, 0.0)
        sign = 0.0 if a == b else (1.0 if a < b else -1.0)

        def both(p: Tensor, q: Tensor, u: Tensor) -> Tensor:
            x = (1 - u) / u
            return (func(x, *args) + func(-x, *args)) / (u * u)

        return both, low, high, sign
    finite, far = (a, b) if infinite(b) else (b, a)
    low, high = _limits("quad", finite, finite)
    way = 1.0 if far > 0 else -1.0
    sign = way if infinite(b) else -way
    # to infinity from a finite limit, and the other way round
    return (
        lambda p, q, u: func(p + way * (1 - u) / u, *args) / (u * u),
        low,
        high,
        sign,
    )
