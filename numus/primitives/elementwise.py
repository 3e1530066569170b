"""Elementwise primitives: one result element per element of the (broadcast) operands.

Each row of the tables gives the name, the NumPy reference and the partial derivatives; vjp, jvp
and batching follow from those. Operands have one dtype (the functions above promote) and broadcast
as NumPy's do; a complex cotangent is multiplied by the conjugate of the derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.dtypes import DType
from numus.graph import Array, Node, Primitive
from numus.primitives import references
from numus.primitives.base import zero_jvp, zero_vjp
from numus.primitives.source import constant
from numus.primitives.views import reshape, unbroadcast
from numus.shapes import Shape
from numus.shapes import broadcast as broadcast_shapes

Partial = Callable[..., Any]
Unary = Callable[[Node], Node]
Binary = Callable[[Node, Node], Node]


def elementwise_batch(
    node: Node, inputs: Sequence[Node], batched: Sequence[bool], size: int
) -> Node:
    rank = len(node.shape)
    aligned = []
    for x, is_batched in zip(inputs, batched, strict=True):
        if is_batched and x.ndim - 1 < rank:
            x = reshape(x, (size, *(1,) * (rank - x.ndim + 1), *x.shape[1:]))
        aligned.append(x)
    shape = (size, *node.shape)
    return apply(node.prim, tuple(aligned), node.params, shape, node.dtype)


def _vjp_from(partials: Partial) -> Callable[[Node, Node], tuple[Node | None, ...]]:
    def vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
        derivatives = partials(node, *node.inputs)
        if not isinstance(derivatives, tuple):
            derivatives = (derivatives,)
        return tuple(
            None if d is None or not x.tracked else unbroadcast(_scale(g, d, True), x.shape)
            for d, x in zip(derivatives, node.inputs, strict=True)
        )

    return vjp


def _jvp_from(partials: Partial) -> Callable[[Node, Sequence[Node | None]], Node | None]:
    def jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
        derivatives = partials(node, *node.inputs)
        if not isinstance(derivatives, tuple):
            derivatives = (derivatives,)
        total: Node | None = None
        for d, t in zip(derivatives, tangents, strict=True):
            if d is not None and t is not None:
                term = _scale(t, d)
                total = term if total is None else add(total, term)
        if total is not None and total.shape != node.shape:
            from numus.primitives.views import broadcast

            total = broadcast(total, node.shape)
        return total

    return jvp


def _scale(x: Node, by: Node | int, conjugate: bool = False) -> Node:
    """x times a derivative; 1 and -1 cost nothing."""
    if isinstance(by, int):
        return x if by == 1 else neg(x)
    if conjugate and by.dtype.is_complex:
        by = conj(by)
    return mul(x, by)


def _define(
    name: str, reference: Callable[..., Array], partials: Partial | None, *, computes: bool = True
) -> Primitive:
    """A row of the tables. `computes`: narrow floats go through float32, as in the kernels."""

    def evaluate(node: Node, *arrays: Array) -> Array:
        operands = arrays
        if computes:
            operands = tuple(
                a.astype(np.float32) if x.dtype.is_narrow_float else a
                for a, x in zip(arrays, node.inputs, strict=True)
            )
        with np.errstate(all="ignore"):
            return np.asarray(reference(*operands)).astype(node.dtype.np)

    return Primitive(
        name,
        "elementwise",
        reference=evaluate,
        vjp=zero_vjp if partials is None else _vjp_from(partials),
        jvp=zero_jvp if partials is None else _jvp_from(partials),
        batch=elementwise_batch,
    )


# -- one operand ----------------------------------------------------------------------------------


def _unary(name: str, reference: Callable[..., Array], partial: Partial | None) -> Unary:
    prim = _define(name, reference, partial)

    def build(x: Node) -> Node:
        return apply(prim, (x,), None, x.shape, x.dtype)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"The elementwise primitive `{name}`."
    return build


def _c(value: float, like: Node) -> Node:
    return constant(value, like.dtype)


# (2k + 1) B_2k for k = 8 … 1: see `_tetragamma`
_TETRAGAMMA = (-3617 / 30, 35 / 2, -691 / 210, 5 / 6, -3 / 10, 1 / 6, -1 / 6, 1 / 2)


def _tetragamma(y: Node, x: Node) -> Node:
    """The derivative of trigamma, composed of primitives, so that it has every further one.

    Below 1/2 it is reflected; then ten steps lead to where its asymptotic series holds:
    -1/z^2 - 1/z^3 - sum (2k + 1) B_2k / z^(2k + 2).
    """
    one = _c(1, x)
    reflected = lt(x, _c(0.5, x))
    z = where(reflected, sub(one, x), x)
    total = _c(0, x)
    for _ in range(10):
        total = add(total, div(_c(2, x), mul(z, mul(z, z))))
        z = add(z, one)
    w = div(one, mul(z, z))
    series = _c(0, x)
    for coefficient in _TETRAGAMMA:
        series = mul(add(series, _c(coefficient, x)), w)
    total = add(total, mul(w, add(add(one, div(one, z)), series)))
    angle = mul(_c(math.pi, x), where(reflected, x, _c(0.5, x)))
    cube = mul(sin(angle), mul(sin(angle), sin(angle)))
    beyond = div(mul(_c(2 * math.pi**3, x), cos(angle)), cube)
    return neg(add(total, where(reflected, beyond, _c(0, x))))


neg: Unary = _unary("neg", np.negative, lambda y, x: -1)
floor: Unary = _unary("floor", np.floor, None)
ceil: Unary = _unary("ceil", np.ceil, None)
trunc: Unary = _unary("trunc", np.trunc, None)
rint: Unary = _unary("rint", np.rint, None)
invert: Unary = _unary("invert", np.invert, None)
popcount: Unary = _unary("popcount", lambda x: np.bitwise_count(x), None)

sqrt: Unary = _unary("sqrt", np.sqrt, lambda y, x: div(_c(0.5, x), y))
rsqrt: Unary = _unary("rsqrt", lambda x: 1 / np.sqrt(x), lambda y, x: mul(_c(-0.5, x), div(y, x)))
cbrt: Unary = _unary("cbrt", np.cbrt, lambda y, x: div(_c(1 / 3, x), mul(y, y)))
exp: Unary = _unary("exp", np.exp, lambda y, x: y)
exp2: Unary = _unary("exp2", np.exp2, lambda y, x: mul(y, _c(math.log(2), x)))
expm1: Unary = _unary("expm1", np.expm1, lambda y, x: add(y, _c(1, x)))
log: Unary = _unary("log", np.log, lambda y, x: div(_c(1, x), x))
log2: Unary = _unary("log2", np.log2, lambda y, x: div(_c(1 / math.log(2), x), x))
log10: Unary = _unary("log10", np.log10, lambda y, x: div(_c(1 / math.log(10), x), x))
log1p: Unary = _unary("log1p", np.log1p, lambda y, x: div(_c(1, x), add(x, _c(1, x))))
sin: Unary = _unary("sin", np.sin, lambda y, x: cos(x))
cos: Unary = _unary("cos", np.cos, lambda y, x: neg(sin(x)))
tan: Unary = _unary("tan", np.tan, lambda y, x: add(mul(y, y), _c(1, x)))
asin: Unary = _unary("asin", np.arcsin, lambda y, x: rsqrt(mul(sub(_c(1, x), x), add(_c(1, x), x))))
acos: Unary = _unary(
    "acos", np.arccos, lambda y, x: neg(rsqrt(mul(sub(_c(1, x), x), add(_c(1, x), x))))
)
atan: Unary = _unary("atan", np.arctan, lambda y, x: div(_c(1, x), add(mul(x, x), _c(1, x))))
sinh: Unary = _unary("sinh", np.sinh, lambda y, x: cosh(x))
cosh: Unary = _unary("cosh", np.cosh, lambda y, x: sinh(x))
tanh: Unary = _unary("tanh", np.tanh, lambda y, x: sub(_c(1, x), mul(y, y)))
asinh: Unary = _unary("asinh", np.arcsinh, lambda y, x: rsqrt(add(mul(x, x), _c(1, x))))
acosh: Unary = _unary(
    "acosh",
    np.arccosh,
    lambda y, x: mul(rsqrt(sub(x, _c(1, x))), rsqrt(add(x, _c(1, x)))),
)
atanh: Unary = _unary(
    "atanh", np.arctanh, lambda y, x: div(_c(1, x), mul(sub(_c(1, x), x), add(_c(1, x), x)))
)
erf: Unary = _unary(
    "erf",
    references.special("erf"),
    lambda y, x: mul(_c(2 / math.sqrt(math.pi), x), exp(neg(mul(x, x)))),
)
erfc: Unary = _unary(
    "erfc",
    references.special("erfc"),
    lambda y, x: mul(_c(-2 / math.sqrt(math.pi), x), exp(neg(mul(x, x)))),
)
erfinv: Unary = _unary(
    "erfinv",
    references.special("erfinv"),
    lambda y, x: mul(_c(math.sqrt(math.pi) / 2, x), exp(mul(y, y))),
)
ndtr: Unary = _unary(
    "ndtr",
    references.special("ndtr"),
    lambda y, x: mul(_c(1 / math.sqrt(2 * math.pi), x), exp(mul(_c(-0.5, x), mul(x, x)))),
)
lgamma: Unary = _unary("lgamma", references.special("gammaln"), lambda y, x: digamma(x))
digamma: Unary = _unary("digamma", references.special("digamma"), lambda y, x: trigamma(x))
trigamma: Unary = _unary("trigamma", lambda x: references.special("polygamma")(1, x), _tetragamma)


sigmoid: Unary = _unary("sigmoid", references.sigmoid, lambda y, x: mul(y, sub(_c(1, x), y)))


# -- two operands ---------------------------------------------------------------------------------


def _binary(
    name: str,
    reference: Callable[..., Array],
    partials: Partial | None,
    result: DType | None = None,
    *,
    computes: bool = True,
) -> Binary:
    prim = _define(name, reference, partials, computes=computes)

    def build(a: Node, b: Node) -> Node:
        shape = a.shape if a.shape == b.shape else broadcast_shapes(a.shape, b.shape, prim.public)
        return apply(prim, (a, b), None, shape, result or a.dtype)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"The elementwise primitive `{name}`."
    return build


def _extreme_partials(y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    # ties share the gradient equally, so that the derivative is the same whichever came first
    half = _c(0.5, y)
    one, zero = _c(1, y), _c(0, y)
    tie = eq(a, b)
    return (
        where(tie, half, where(eq(a, y), one, zero)),
        where(tie, half, where(eq(b, y), one, zero)),
    )


def _part(x: Node, length: Node) -> Node:
    """x over a length; 0 where that is 0, as the derivative of |x| has it."""
    at_zero = eq(length, _c(0, length))
    return where(at_zero, _c(0, x), div(x, where(at_zero, _c(1, length), length)))


def _pow_partials(y: Node, a: Node, b: Node) -> tuple[Node | int | None, Node | None]:
    return _pow_by_base(a, b), _pow_by_exponent(y, a) if b.tracked else None


def _pow_by_base(a: Node, b: Node) -> Node | int | None:
    """b a^(b-1), without 0 * inf at b = 0."""
    one, zero = _c(1, a), _c(0, a)
    if b.prim is not zero.prim:
        less = where(eq(b, zero), one, sub(b, one))
        return where(eq(b, zero), zero, mul(b, pow_(a, less)))
    power = b.params  # a number on the host: the usual case
    if power in (0, 1):
        return 1 if power else None
    return mul(b, a if power == 2 else pow_(a, _c(power - 1, a)))


def _pow_by_exponent(y: Node, a: Node) -> Node:
    """y log a; 0 where a is 0, NaN where it is negative."""
    zero = _c(0, y)
    known = ne(a, zero) if y.dtype.is_complex else lt(zero, a)
    slope = mul(y, log(where(known, a, _c(1, y))))
    unknown = zero if y.dtype.is_complex else where(lt(a, zero), _c(math.nan, y), zero)
    return where(known, slope, unknown)


add: Binary = _binary("add", np.add, lambda y, a, b: (1, 1))
sub: Binary = _binary("sub", np.subtract, lambda y, a, b: (1, -1))
mul: Binary = _binary("mul", np.multiply, lambda y, a, b: (b, a))
div: Binary = _binary("div", np.divide, lambda y, a, b: (div(_c(1, b), b), neg(div(y, b))))
floor_divide: Binary = _binary("floor_divide", references.floor_divide, None)
mod: Binary = _binary("mod", references.mod, lambda y, a, b: (1, neg(floor_divide(a, b))))
pow_: Binary = _binary("pow", references.power, _pow_partials)
atan2: Binary = _binary(
    "atan2",
    np.arctan2,
    # divided twice by the length: its square may overflow or vanish
    lambda y, a, b: (
        _part(_part(b, hypot(a, b)), hypot(a, b)),
        neg(_part(_part(a, hypot(a, b)), hypot(a, b))),
    ),
)
hypot: Binary = _binary("hypot", np.hypot, lambda y, a, b: (_part(a, y), _part(b, y)))
maximum: Binary = _binary("maximum", np.maximum, _extreme_partials)
minimum: Binary = _binary("minimum", np.minimum, _extreme_partials)
copysign: Binary = _binary(
    "copysign",
    np.copysign,
    lambda y, a, b: (mul(sign(a), copysign(_c(1, b), b)), None),
)
nextafter: Binary = _binary("nextafter", np.nextafter, None, computes=False)
and_: Binary = _binary("and", np.bitwise_and, None)
or_: Binary = _binary("or", np.bitwise_or, None)
xor: Binary = _binary("xor", np.bitwise_xor, None)
shift_left: Binary = _binary("shift_left", references.shift_left, None)
shift_right: Binary = _binary("shift_right", references.shift_right, None)
lt: Binary = _binary("lt", np.less, None, dt.bool_)
le: Binary = _binary("le", np.less_equal, None, dt.bool_)
eq: Binary = _binary("eq", np.equal, None, dt.bool_)
ne: Binary = _binary("ne", np.not_equal, None, dt.bool_)


# -- three operands -------------------------------------------------------------------------------


def _where_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    condition, a, b = node.inputs
    zero = _c(0, g)
    return (
        None,
        unbroadcast(where(condition, g, zero), a.shape),
        unbroadcast(where(condition, zero, g), b.shape),
    )


def _where_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    _, ta, tb = tangents
    if ta is None and tb is None:
        return None
    zero = _c(0, node)
    out = where(node.inputs[0], zero if ta is None else ta, zero if tb is None else tb)
    if out.shape != node.shape:
        from numus.primitives.views import broadcast

        out = broadcast(out, node.shape)
    return out


def _where_reference(node: Node, condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


_where = Primitive(
    "where",
    "elementwise",
    reference=_where_reference,
    vjp=_where_vjp,
    jvp=_where_jvp,
    batch=elementwise_batch,
)


def where(condition: Node, a: Node, b: Node) -> Node:
    """a where the (bool) condition holds, b elsewhere."""
    shape = broadcast_shapes(broadcast_shapes(condition.shape, a.shape, "where"), b.shape, "where")
    return apply(_where, (condition, a, b), None, shape, a.dtype)


# -- dtype changes, complex numbers ---------------------------------------------------------------


def _cast_vjp(node: Node, g: Node) -> tuple[Node | None]:
    source = node.inputs[0].dtype
    return (cast(g, source) if source.is_inexact and node.dtype.is_inexact else None,)


def _cast_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    t = tangents[0]
    if t is None or not node.dtype.is_inexact:
        return None
    return cast(t, node.dtype)


_cast = Primitive(
    "cast",
    "elementwise",
    reference=lambda node, x: references.cast(x, node.dtype),
    vjp=_cast_vjp,
    jvp=_cast_jvp,
    batch=elementwise_batch,
)


def cast(x: Node, dtype: DType) -> Node:
    """The value in another dtype. Complex to real takes the real part; callers warn or refuse."""
    if x.dtype is dtype:
        return x
    if x.prim.name == "constant":
        node = constant(_cast_number(x, dtype), dtype)
        node.device = x.device
        return node
    return apply(_cast, (x,), None, x.shape, dtype)


def _cast_number(x: Node, dtype: DType) -> Any:
    value = references.cast(x.prim.reference(x), dtype)
    return value.astype(np.complex128).item() if dtype.is_complex else _plain(value, dtype)


def _plain(value: Array, dtype: DType) -> Any:
    return float(value) if dtype.kind == "float" else value.item()


_bitcast = Primitive(
    "bitcast",
    "elementwise",
    reference=lambda node, x: np.ascontiguousarray(x).view(node.dtype.np).reshape(x.shape),
    vjp=zero_vjp,
    jvp=zero_jvp,
    batch=elementwise_batch,
)


def bitcast(x: Node, dtype: DType) -> Node:
    """The same bits read as another dtype of the same width."""
    return x if x.dtype is dtype else apply(_bitcast, (x,), None, x.shape, dtype)


def _dtype_changing(
    name: str, reference: Callable[..., Array], to: Callable[[DType], DType], vjp: Any, jvp: Any
) -> Unary:
    prim = Primitive(
        name,
        "elementwise",
        reference=lambda node, *xs: np.asarray(reference(*xs)).astype(node.dtype.np),
        vjp=vjp,
        jvp=jvp,
        batch=elementwise_batch,
    )

    def build(x: Node) -> Node:
        return apply(prim, (x,), None, x.shape, to(x.dtype))

    build.__name__ = build.__qualname__ = name
    return build


def _map_tangent(build: Unary) -> Any:
    return lambda node, ts: None if ts[0] is None else build(ts[0])


def _turn(x: Node, t: Node) -> Node:
    """How x/|x| changes as complex x changes by t: by the part across x, over |x|; 0 at 0.

    It is its own transpose.
    """
    direction, length = sign(x), abs_(x)
    along = cast(real(mul(conj(direction), t)), x.dtype)
    at_zero = eq(length, _c(0, length))
    safe = cast(where(at_zero, _c(1, length), length), x.dtype)
    return where(at_zero, _c(0, x), div(sub(t, mul(direction, along)), safe))


def _sign_vjp(node: Node, g: Node) -> tuple[Node | None]:
    x = node.inputs[0]
    return (_turn(x, g) if x.dtype.is_complex else None,)


def _sign_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    x, t = node.inputs[0], tangents[0]
    return None if t is None or not x.dtype.is_complex else _turn(x, t)


sign: Unary = _dtype_changing("sign", references.sign, lambda d: d, _sign_vjp, _sign_jvp)


def _abs_vjp(node: Node, g: Node) -> tuple[Node]:
    x = node.inputs[0]
    if x.dtype.is_complex:
        return (mul(cast(g, x.dtype), sign(x)),)
    return (mul(g, sign(x)),)


def _abs_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    x, t = node.inputs[0], tangents[0]
    if t is None:
        return None
    if x.dtype.is_complex:
        return real(mul(conj(sign(x)), t))
    return mul(t, sign(x))


abs_: Unary = _dtype_changing("abs", np.abs, dt.real_of, _abs_vjp, _abs_jvp)
real: Unary = _dtype_changing(
    "real",
    np.real,
    dt.real_of,
    lambda node, g: (complex_(g, constant(0.0, g.dtype)),),
    _map_tangent(lambda t: real(t)),
)
imag: Unary = _dtype_changing(
    "imag",
    np.imag,
    dt.real_of,
    lambda node, g: (complex_(constant(0.0, g.dtype), g),),
    _map_tangent(lambda t: imag(t)),
)
conj: Unary = _dtype_changing(
    "conj", np.conj, lambda d: d, lambda node, g: (conj(g),), _map_tangent(lambda t: conj(t))
)


def _complex_jvp(node: Node, tangents: Sequence[Node | None]) -> Node | None:
    a, b = tangents
    if a is None and b is None:
        return None
    zero = constant(0.0, node.inputs[0].dtype)
    out = complex_(zero if a is None else a, zero if b is None else b)
    if out.shape != node.shape:
        from numus.primitives.views import broadcast

        out = broadcast(out, node.shape)
    return out


def _complex_reference(node: Node, a: Array, b: Array) -> Array:
    out = np.empty(node.shape, node.dtype.np)
    out.real, out.imag = a, b  # not a + 1j * b, which turns infinities into NaN and loses -0
    return out


_complex = Primitive(
    "complex",
    "elementwise",
    reference=_complex_reference,
    vjp=lambda node, g: (
        unbroadcast(real(g), node.inputs[0].shape),
        unbroadcast(imag(g), node.inputs[1].shape),
    ),
    jvp=_complex_jvp,
    batch=elementwise_batch,
)


def complex_(a: Node, b: Node) -> Node:
    """a + ib from two real nodes."""
    shape: Shape = broadcast_shapes(a.shape, b.shape, "complex")
    return apply(_complex, (a, b), None, shape, dt.complex_of(a.dtype))


# -- boundaries -----------------------------------------------------------------------------------

_stop_gradient = Primitive(
    "stop_gradient",
    "elementwise",
    reference=lambda node, x: x,
    vjp=zero_vjp,
    jvp=zero_jvp,
    batch=elementwise_batch,
)


def stop_gradient(x: Node) -> Node:
    """The same value, through which no gradient flows."""
    node = apply(_stop_gradient, (x,), None, x.shape, x.dtype)
    node.tracked = False
    return node


def is_boundary(node: Node) -> bool:
    """Whether gradients end at this node whatever it was computed from."""
    return node.prim is _stop_gradient
