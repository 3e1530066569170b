"""Elementwise arithmetic, comparison, selection, casts and complex numbers; the tables' machinery.

The derivative rules themselves need these operations, so the two share a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.dtypes import DType
from numus.graph import Array, Jvp, Node, Nodes, Primitive, Tangents
from numus.primitives import references
from numus.primitives.base import nondifferentiable, unary_jvp, zero_jvp, zero_vjp
from numus.primitives.broadcast import broadcast, unbroadcast
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.shapes import Shape
from numus.shapes import broadcast as broadcast_shapes

Partial = Callable[..., Any]
Unary = Callable[[Node], Node]
Binary = Callable[[Node, Node], Node]
Builder = TypeVar("Builder", Unary, Binary)


def elementwise_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
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


def _jvp_from(partials: Partial) -> Callable[[Node, Tangents], Node | None]:
    def jvp(node: Node, tangents: Tangents) -> Node | None:
        derivatives = partials(node, *node.inputs)
        if not isinstance(derivatives, tuple):
            derivatives = (derivatives,)
        pairs = zip(derivatives, tangents, strict=True)
        out = total(*(None if d is None or t is None else _scale(t, d) for d, t in pairs))
        return None if out is None else broadcast(out, node.shape)

    return jvp


def _scale(x: Node, by: Node | int, adjoint: bool = False) -> Node:
    """x times a derivative; 1 and -1 are free."""
    if isinstance(by, int):
        return x if by == 1 else neg(x)
    if adjoint and by.dtype.is_complex:
        by = conj(by)
    return mul(x, by)


def total(*terms: Node | None) -> Node | None:
    """The sum of terms, of which None are zero."""
    given = [x for x in terms if x is not None]
    return functools.reduce(add, given) if given else None


def conjugate(x: Node) -> Node:
    """The conjugate; real nodes as they are."""
    return conj(x) if x.dtype.is_complex else x


def _named(build: Builder, name: str) -> Builder:
    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"The elementwise primitive `{name}`."
    return build


def _elementwise(
    name: str, reference: Callable[..., Array], partials: Partial | None, *, computes: bool = True
) -> Primitive:
    """A row of the tables. `computes`: floats below 32 bits go through float32, as in kernels."""

    def evaluate(node: Node, *arrays: Array) -> Array:
        operands = map(references.widen, arrays) if computes else arrays
        with np.errstate(all="ignore"):
            return np.asarray(reference(*operands)).astype(node.dtype.np)

    rules = (zero_vjp, zero_jvp) if partials is None else (_vjp_from(partials), _jvp_from(partials))
    return Primitive(name, "elementwise", evaluate, *rules, elementwise_batch)


# -- one operand ----------------------------------------------------------------------------------


def unary(name: str, reference: Callable[..., Array], partial: Partial | None) -> Unary:
    prim = _elementwise(name, reference, partial)

    def build(x: Node) -> Node:
        return apply(prim, (x,), None, x.shape, x.dtype)

    return _named(build, name)


def scalar_like(value: float, like: Node) -> Node:
    """A constant of a node's dtype."""
    return constant(value, like.dtype)


neg: Unary = unary("neg", np.negative, lambda y, x: -1)
floor: Unary = unary("floor", np.floor, None)
ceil: Unary = unary("ceil", np.ceil, None)
trunc: Unary = unary("trunc", np.trunc, None)
rint: Unary = unary("rint", np.rint, None)
invert: Unary = unary("invert", np.invert, None)
popcount: Unary = unary("popcount", lambda x: np.bitwise_count(x), None)

# -- two operands ---------------------------------------------------------------------------------


def binary(
    name: str,
    reference: Callable[..., Array],
    partials: Partial | None,
    result: DType | None = None,
    *,
    computes: bool = True,
) -> Binary:
    prim = _elementwise(name, reference, partials, computes=computes)

    def build(a: Node, b: Node) -> Node:
        shape = a.shape if a.shape == b.shape else broadcast_shapes(a.shape, b.shape, prim.public)
        return apply(prim, (a, b), None, shape, result or a.dtype)

    return _named(build, name)


def _extreme_partials(y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    # ties share the gradient equally: symmetric in the operands
    half, one, zero = (scalar_like(value, y) for value in (0.5, 1, 0))
    tie = eq(a, b)
    by_a, by_b = (where(tie, half, where(eq(x, y), one, zero)) for x in (a, b))
    return by_a, by_b


add: Binary = binary("add", np.add, lambda y, a, b: (1, 1))
sub: Binary = binary("sub", np.subtract, lambda y, a, b: (1, -1))
mul: Binary = binary("mul", np.multiply, lambda y, a, b: (b, a))
div: Binary = binary("div", np.divide, lambda y, a, b: (div(scalar_like(1, b), b), neg(div(y, b))))
floor_divide: Binary = binary("floor_divide", references.floor_divide, None)
mod: Binary = binary("mod", references.mod, lambda y, a, b: (1, neg(floor_divide(a, b))))
maximum: Binary = binary("maximum", np.maximum, _extreme_partials)
minimum: Binary = binary("minimum", np.minimum, _extreme_partials)
copysign: Binary = binary(
    "copysign", np.copysign, lambda y, a, b: (mul(sign(a), copysign(scalar_like(1, b), b)), None)
)
nextafter: Binary = binary("nextafter", np.nextafter, None, computes=False)
and_: Binary = binary("and", np.bitwise_and, None)
or_: Binary = binary("or", np.bitwise_or, None)
xor: Binary = binary("xor", np.bitwise_xor, None)
shift_left: Binary = binary("shift_left", references.shift_left, None)
shift_right: Binary = binary("shift_right", references.shift_right, None)
lt: Binary = binary("lt", np.less, None, dt.bool_)
le: Binary = binary("le", np.less_equal, None, dt.bool_)
eq: Binary = binary("eq", np.equal, None, dt.bool_)
ne: Binary = binary("ne", np.not_equal, None, dt.bool_)


# -- three operands -------------------------------------------------------------------------------


def _where_vjp(node: Node, g: Node) -> tuple[Node | None, ...]:
    condition, a, b = node.inputs
    zero = scalar_like(0, g)
    return (
        None,
        unbroadcast(where(condition, g, zero), a.shape),
        unbroadcast(where(condition, zero, g), b.shape),
    )


def _linear_jvp(build: Callable[[Node, Node, Node], Node]) -> Jvp:
    """The jvp of an operation that is linear in its last two operands, as build(node, ta, tb)."""

    def jvp(node: Node, tangents: Tangents) -> Node | None:
        ta, tb = tangents[-2:]
        if ta is None and tb is None:
            return None
        zero = scalar_like(0, node.inputs[-1])
        return broadcast(build(node, ta or zero, tb or zero), node.shape)

    return jvp


_where = Primitive(
    "where",
    "elementwise",
    reference=lambda node, condition, a, b: np.asarray(np.where(condition, a, b)),
    vjp=_where_vjp,
    jvp=_linear_jvp(lambda node, ta, tb: where(node.inputs[0], ta, tb)),
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


_cast = Primitive(
    "cast",
    "elementwise",
    reference=lambda node, x: references.cast(x, node.dtype),
    vjp=_cast_vjp,
    jvp=unary_jvp(lambda node, t: cast(t, node.dtype) if node.dtype.is_inexact else None),
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
    if dtype.is_complex:
        value = value.astype(np.complex128)
    return float(value) if dtype.kind == "float" else value.item()


_bitcast = nondifferentiable(
    "bitcast",
    "elementwise",
    lambda node, x: np.ascontiguousarray(x).view(node.dtype.np).reshape(x.shape),
    elementwise_batch,
)


def bitcast(x: Node, dtype: DType) -> Node:
    """The bits reinterpreted as another dtype of equal width."""
    return x if x.dtype is dtype else apply(_bitcast, (x,), None, x.shape, dtype)


def _dtype_changing(
    name: str, reference: Callable[..., Array], to: Callable[[DType], DType], vjp: Any, jvp: Any
) -> Unary:
    """An operation on complex numbers, with vjp(node, g) and jvp(node, t) of its one operand."""
    prim = Primitive(
        name,
        "elementwise",
        reference=lambda node, *xs: np.asarray(reference(*xs)).astype(node.dtype.np),
        vjp=lambda node, g: (vjp(node, g),),
        jvp=unary_jvp(jvp),
        batch=elementwise_batch,
    )

    def build(x: Node) -> Node:
        return apply(prim, (x,), None, x.shape, to(x.dtype))

    return _named(build, name)


def _direction_tangent(x: Node, t: Node) -> Node:
    """The tangent of x/|x| for complex x: the component of t orthogonal to x, over |x|; 0 at 0.

    Self-adjoint, so the cotangent is the same map.
    """
    direction, length = sign(x), abs_(x)
    along = cast(real(mul(conj(direction), t)), x.dtype)
    at_zero = eq(length, scalar_like(0, length))
    safe = cast(where(at_zero, scalar_like(1, length), length), x.dtype)
    return where(at_zero, scalar_like(0, x), div(sub(t, mul(direction, along)), safe))


def _sign_rule(node: Node, t: Node) -> Node | None:
    x = node.inputs[0]
    return _direction_tangent(x, t) if x.dtype.is_complex else None


sign: Unary = _dtype_changing("sign", references.sign, lambda d: d, _sign_rule, _sign_rule)


def _abs_vjp(node: Node, g: Node) -> Node:
    x = node.inputs[0]
    return mul(cast(g, x.dtype), sign(x))


def _abs_jvp(node: Node, t: Node) -> Node:
    x = node.inputs[0]
    return real(mul(conj(sign(x)), t)) if x.dtype.is_complex else mul(t, sign(x))


def _zero(g: Node) -> Node:
    return constant(0.0, g.dtype)


abs_: Unary = _dtype_changing("abs", np.abs, dt.real_of, _abs_vjp, _abs_jvp)
real: Unary = _dtype_changing(
    "real", np.real, dt.real_of, lambda node, g: complex_(g, _zero(g)), lambda node, t: real(t)
)
imag: Unary = _dtype_changing(
    "imag", np.imag, dt.real_of, lambda node, g: complex_(_zero(g), g), lambda node, t: imag(t)
)
conj: Unary = _dtype_changing(
    "conj", np.conj, lambda d: d, lambda node, g: conj(g), lambda node, t: conj(t)
)


def _complex_reference(node: Node, a: Array, b: Array) -> Array:
    out = np.empty(node.shape, node.dtype.np)
    out.real, out.imag = a, b  # not a + 1j * b, which turns infinities into NaN and loses -0
    return out


_complex = Primitive(
    "complex",
    "elementwise",
    reference=_complex_reference,
    vjp=lambda node, g: tuple(
        unbroadcast(f(g), x.shape) for f, x in zip((real, imag), node.inputs, strict=True)
    ),
    jvp=_linear_jvp(lambda node, ta, tb: complex_(ta, tb)),
    batch=elementwise_batch,
)


def complex_(a: Node, b: Node) -> Node:
    """a + ib from two real nodes."""
    shape: Shape = broadcast_shapes(a.shape, b.shape, "complex")
    return apply(_complex, (a, b), None, shape, dt.complex_of(a.dtype))


# -- boundaries -----------------------------------------------------------------------------------

_stop_gradient = nondifferentiable(
    "stop_gradient", "elementwise", lambda node, x: x, elementwise_batch
)


def stop_gradient(x: Node) -> Node:
    """An identity that blocks gradients."""
    node = apply(_stop_gradient, (x,), None, x.shape, x.dtype)
    node.tracked = False
    return node


def is_boundary(node: Node) -> bool:
    """Gradients end at this node."""
    return node.prim is _stop_gradient
