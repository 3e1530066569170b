"""Products of matrices and of everything that reduces to them.

Operands are promoted to one dtype, that of the result; low-precision floats are accumulated in
float32. `preferred_element_type=` (JAX's name; NumPy's on `matmul` is `dtype=`) asks for another
accumulator and result, so that int8 by int8 can be int32 without a wider copy of either. Products
of booleans are logical: any(a and b).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.functions._base import common, method, node_of, pair, widened, wrap
from numus.functions.autocast import lowers, matmul_precision
from numus.functions.elementwise.output import write_out
from numus.functions.linear.labelled_contraction import Operand, arrange, product
from numus.functions.reduction.reductions import accumulator
from numus.functions.shape.splitting import diagonal
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.contract import contract
from numus.primitives.views import permute, reshape
from numus.shapes import as_int, normal_axes, normal_axis, size_of
from numus.shapes import broadcast as broadcast_shapes
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "addbmm", "addmm", "baddbmm", "bmm", "dot", "inner", "kron", "matmul", "mm", "mv", "outer",
    "tensordot", "trace", "vecdot",
]  # fmt: skip


def accumulated(op: str, a: Node, b: Node, dtype: Any) -> tuple[Node, Node, DType]:
    """Operands of one dtype as the contraction reads them, and the dtype it accumulates in.

    Small integers and low-precision floats are widened on the way in, element by element.
    """
    if dtype is None:
        return a, b, a.dtype
    dtype = dt.as_dtype(dtype)
    source = a.dtype
    if source is dtype:
        return a, b, dtype
    if dt.promote(source, dtype).kind != dtype.kind:
        raise DTypeError(
            f"{op}: dtype={dtype.name} cannot hold products of {source.name}; cast the operands"
        )
    integers = source.is_integer and dtype.is_integer
    floats = source.is_floating and dtype.itemsize <= dt.compute_dtype(source).itemsize
    if not integers and not floats:
        a, b = ew.cast(a, dtype), ew.cast(b, dtype)
    return a, b, dtype


def preferred(op: str, nodes: Sequence[Node], dtype: Any) -> list[Node]:
    """Operands in the dtype that products are to be accumulated in: cast as they are read."""
    if dtype is None:
        return list(nodes)
    wanted = dt.as_dtype(dtype)
    for x in nodes:
        if dt.promote(x.dtype, wanted).kind != wanted.kind:
            raise DTypeError(
                f"{op}: preferred_element_type={wanted.name} cannot hold products of "
                f"{x.dtype.name}; cast the operands"
            )
    return [ew.cast(x, wanted) for x in nodes]


def counted(a: Node, b: Node) -> tuple[Node, Node]:
    """Booleans as counts, of which those above zero are true."""
    return ew.cast(a, dt.int32), ew.cast(b, dt.int32)


def _each(a: Node, b: Node, dtype: DType) -> Node:
    """A batched matmul: one product per pair of matrices."""
    outer = a.shape[:-2]
    a, b = (reshape(x, (size_of(outer), *x.shape[-2:])) for x in (a, b))
    return reshape(contract(a, b, dtype), (*outer, a.shape[1], b.shape[2]))


def _matmul(a: Node, b: Node, dtype: DType) -> Node:
    if b.ndim <= 2:  # one matrix: all rows of a meet it in one product
        if a.ndim == b.ndim == 2:
            return contract(a, b, dtype)
        depth, columns = (*b.shape, 1)[:2]
        rows = size_of(a.shape[:-1])
        y = contract(reshape(a, (rows, depth)), reshape(b, (depth, columns)), dtype)
        return reshape(y, (*a.shape[:-1], *b.shape[1:]))
    if a.ndim > 1 and a.shape[:-2] == b.shape[:-2]:  # a matrix for each matrix
        return _each(a, b, dtype)
    # axes are named by their position, counted from the back of the batch; those of extent 1 that
    # meet a longer one are dropped: the other operand carries them alone
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2], "matmul")
    if a.shape[:-2] != lead != b.shape[:-2]:  # each is repeated for the other
        a, b = (broadcast(x, (*lead, *x.shape[-2:])) for x in (a, b))
        return _each(a, b, dtype)
    batch = tuple(range(-len(lead), 0))

    def named(x: Node, last: tuple[str, ...]) -> Operand:
        tail = x.shape[x.ndim - len(last) :]
        positions = batch[len(batch) - (x.ndim - len(last)) :]
        own = tuple(i for i in positions if x.shape[i - len(last)] == lead[i])
        return Operand(reshape(x, (*(lead[i] for i in own), *tail)), (*own, *last))

    row = ("row",) if a.ndim > 1 else ()
    left, right = named(a, (*row, "inner")), named(b, ("inner", "column"))
    out = (*batch, *row, "column")
    return arrange(product(left, right, out, dtype), out)


@method()
@templated
@lowers
def matmul(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    dtype: Any = None,
    preferred_element_type: Any = None,
    precision: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The matrix product over the last two axes; leading axes broadcast, vectors stay vectors.

    `dtype` (NumPy's name) or `preferred_element_type` (JAX's) is what products are accumulated in
    and what comes out: matmul(int8, int8, dtype=nm.int32) is the whole sum. `precision` is how
    exact products of float32 have to be: see `matmul_precision`. `out` is a tensor that takes the
    result.

    >>> nm.matmul(nm.asarray([[1.0, 2.0], [3.0, 4.0]]), nm.asarray([1.0, 10.0])).tolist()
    [21.0, 43.0]
    """
    if out is not None:
        how = {"dtype": dtype, "preferred_element_type": preferred_element_type}
        return write_out(matmul(x1, x2, precision=precision, **how), out, "matmul")
    if precision is not None:
        with matmul_precision(precision):
            return matmul(x1, x2, dtype=dtype, preferred_element_type=preferred_element_type)
    if preferred_element_type is not None:
        if dtype is not None:
            raise TypeError("matmul: dtype and preferred_element_type are one argument; give one")
        dtype = preferred_element_type
    return _product(x1, x2, dtype)


def matmul_transposed(x1: ArrayLike, x2: Any) -> Tensor:
    """x1 @ x2.T: what `linear` computes, without a template and a view of its own."""
    if x2.ndim != 2 or not isinstance(x2, Tensor):
        return _product(x1, x2.T, None)
    return _product(x1, wrap(permute(x2._node, (1, 0))), None)


def _product(x1: ArrayLike, x2: ArrayLike, dtype: Any) -> Tensor:
    a, b = pair("matmul", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            f"matmul: takes vectors, matrices and stacks of them, not shapes {a.shape} and "
            f"{b.shape}; use * to multiply by a scalar"
        )
    depth = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != depth:
        raise ShapeError(
            f"matmul: shapes {a.shape} and {b.shape} do not fit: {a.shape[-1]} columns meet "
            f"{depth} rows"
        )
    if a.dtype.kind == "bool":
        if dtype is None:
            return wrap(ew.cast(_matmul(*counted(a, b), dt.int32), dt.bool_))
        a, b = (ew.cast(x, dt.as_dtype(dtype)) for x in (a, b))
    a, b, result = accumulated("matmul", a, b, dtype)
    if a.ndim == b.ndim == 1:
        return wrap(product(Operand(a, ("k",)), Operand(b, ("k",)), (), result).node)
    return wrap(_matmul(a, b, result))


def _ranked(op: str, *operands: tuple[Any, int]) -> None:
    for x, rank in operands:
        shape = node_of(x, op).shape
        if len(shape) != rank:
            raise ShapeError(f"{op}: takes a tensor of {rank} dimensions, not of shape {shape}")


@method()
def mm(a: Any, b: Any, /) -> Tensor:
    """The product of two matrices."""
    _ranked("mm", (a, 2), (b, 2))
    return matmul(a, b)


@method()
def bmm(a: Any, b: Any, /) -> Tensor:
    """The products of two stacks of matrices, (b, m, k) by (b, k, n)."""
    _ranked("bmm", (a, 3), (b, 3))
    first, second = node_of(a, "bmm").shape[0], node_of(b, "bmm").shape[0]
    if first != second:
        raise ShapeError(f"bmm: stacks of {first} and {second} matrices; matmul broadcasts")
    return matmul(a, b)


@method()
def mv(a: Any, v: Any, /) -> Tensor:
    """The product of a matrix and a vector."""
    _ranked("mv", (a, 2), (v, 1))
    return matmul(a, v)


def contracted(op: str, a: Node, b: Node, axes_a: Sequence[int], axes_b: Sequence[int]) -> Tensor:
    """The sum of products over pairs of axes; a's other axes come first, then b's."""
    for i, j in zip(axes_a, axes_b, strict=True):
        if a.shape[i] != b.shape[j]:
            raise ShapeError(
                f"{op}: shapes {a.shape} and {b.shape} do not fit: axis {i} has {a.shape[i]} and "
                f"axis {j} has {b.shape[j]}"
            )
    names = {j: i for i, j in zip(axes_a, axes_b, strict=True)}
    left = tuple(range(a.ndim))
    right = tuple(names.get(j, a.ndim + j) for j in range(b.ndim))
    out = (*(x for x in left if x not in right), *(x for x in right if x not in left))
    logical = a.dtype.kind == "bool"
    if logical:
        a, b = counted(a, b)
    y = arrange(product(Operand(a, left), Operand(b, right), out, a.dtype), out)
    return wrap(ew.cast(y, dt.bool_) if logical else y)


def _multiply(x: Node, y: Node) -> Node:
    return ew.and_(x, y) if x.dtype.kind == "bool" else ew.mul(x, y)


@method()
@lowers
def dot(a: Any, b: Any, /) -> Tensor:
    """NumPy's dot: the sum of products over a's last axis and b's last but one (or only) axis.

    >>> nm.dot(nm.asarray([1.0, 2.0]), nm.asarray([3.0, 4.0])).item()
    11.0
    """
    x, y = pair("dot", a, b)
    if x.ndim == 0 or y.ndim == 0:
        return wrap(_multiply(x, y))
    return contracted("dot", x, y, (x.ndim - 1,), (max(y.ndim - 2, 0),))


@method()
@lowers
def inner(a: Any, b: Any, /) -> Tensor:
    """The sum of products over the last axes; nothing is conjugated."""
    x, y = pair("inner", a, b)
    if x.ndim == 0 or y.ndim == 0:
        return wrap(_multiply(x, y))
    return contracted("inner", x, y, (x.ndim - 1,), (y.ndim - 1,))


@method()
@lowers
def outer(a: Any, b: Any, /) -> Tensor:
    """All products of an element of a (rows) and one of b (columns), each taken flat.

    >>> nm.outer(nm.asarray([1, 2]), nm.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    x, y = pair("outer", a, b)
    rows, columns = (reshape(n, (size_of(n.shape),)) for n in (x, y))
    return contracted("outer", rows, columns, (), ())


@method()
@spelled
def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1, out: Tensor | None = None) -> Tensor:
    """The dot products of vectors along an axis of both; x1 is conjugated, other axes broadcast.

    `out` is a tensor that takes the result.
    """
    if out is not None:
        return write_out(vecdot(x1, x2, axis=axis), out, "vecdot")
    a, b = pair("vecdot", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"vecdot: takes vectors, not shapes {a.shape} and {b.shape}")
    i, j = normal_axis(axis, a.ndim, "vecdot"), normal_axis(axis, b.ndim, "vecdot")
    if a.shape[i] != b.shape[j]:
        raise ShapeError(
            f"vecdot: shapes {a.shape} and {b.shape} have vectors of {a.shape[i]} and "
            f"{b.shape[j]} along axis {axis}"
        )
    a, b = (permute(x, (*(n for n in range(x.ndim) if n != k), k)) for x, k in ((a, i), (b, j)))
    if a.dtype.is_complex:
        a = ew.conj(a)
    logical = a.dtype.kind == "bool"
    if logical:
        a, b = counted(a, b)
    products = ew.mul(widened(a), widened(b))
    total = reduce_sum(products, (products.ndim - 1,))
    return wrap(ew.cast(total, dt.bool_ if logical else a.dtype))


@method()
@lowers
def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axes: int | tuple[Sequence[int], Sequence[int]] = 2,
    preferred_element_type: Any = None,
) -> Tensor:
    """The sum of products over pairs of axes.

    `axes` is how many (the last of x1 with the first of x2), or the axes of each.
    `preferred_element_type` is what products are accumulated in and what comes out.

    >>> nm.tensordot(nm.ones((2, 3, 4)), nm.ones((4, 3, 5)), axes=((1, 2), (1, 0))).shape
    (2, 5)
    """
    a, b = preferred("tensordot", pair("tensordot", x1, x2), preferred_element_type)
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise ShapeError(f"tensordot: axes must be a number or two sequences, not {axes!r}")
        first = normal_axes(axes[0], a.ndim, "tensordot")
        second = normal_axes(axes[1], b.ndim, "tensordot")
        if len(first) != len(second):
            raise ShapeError(f"tensordot: axes pair {len(first)} axes with {len(second)}")
    else:
        count = as_int(axes, "axes", "tensordot")
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ShapeError(
                f"tensordot: shapes {a.shape} and {b.shape} have no {count} axes to contract"
            )
        first, second = tuple(range(a.ndim - count, a.ndim)), tuple(range(count))
    return contracted("tensordot", a, b, first, second)


@method()
def kron(a: Any, b: Any, /) -> Tensor:
    """The Kronecker product: every element of a times the whole of b, in blocks.

    >>> nm.kron(nm.asarray([1, 10]), nm.asarray([1, 2])).tolist()
    [1, 2, 10, 20]
    """
    x, y = pair("kron", a, b)
    rank = max(x.ndim, y.ndim)
    left = (1,) * (rank - x.ndim) + x.shape
    right = (1,) * (rank - y.ndim) + y.shape
    x = reshape(x, tuple(n for extent in left for n in (extent, 1)))
    y = reshape(y, tuple(n for extent in right for n in (1, extent)))
    return wrap(reshape(_multiply(x, y), tuple(m * n for m, n in zip(left, right, strict=True))))


@method()
def trace(
    x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, *, dtype: Any = None
) -> Tensor:
    """The sum along a diagonal; small integers are summed in int64, as `sum` does.

    >>> nm.trace(nm.asarray([[1, 2], [3, 4]])).item()
    5
    """
    node = accumulator("trace", node_of(x, "trace"), dtype)
    line = diagonal(wrap(node), as_int(offset, "offset", "trace"), axis1, axis2)._node
    return wrap(reduce_sum(line, (line.ndim - 1,)))


def _plus(op: str, addend: Any, y: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * addend + alpha * y, where beta = 0 means that the addend is not looked at."""
    if alpha != 1:
        y = wrap(ew.mul(*pair(op, y, alpha)))
    if beta == 0:
        return y
    if beta != 1:
        addend = wrap(ew.mul(*pair(op, addend, beta)))
    given, node = common(op, addend, y)
    if broadcast_shapes(given.shape, node.shape, op) != node.shape:
        raise ShapeError(f"{op}: an addend of shape {given.shape} does not fit {node.shape}")
    return wrap(ew.add(given, node))


@method()
@lowers
def addmm(addend: Any, a: Any, b: Any, /, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * addend + alpha * (a @ b) for matrices a and b."""
    return _plus("addmm", addend, mm(a, b), beta, alpha)


@method()
@lowers
def baddbmm(addend: Any, a: Any, b: Any, /, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * addend + alpha * (a @ b) for stacks of matrices a and b."""
    return _plus("baddbmm", addend, bmm(a, b), beta, alpha)


@method()
@lowers
def addbmm(addend: Any, a: Any, b: Any, /, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * addend + alpha * (the sum of a @ b over the stack)."""
    _ranked("addbmm", (a, 3), (b, 3))
    x, y = pair("addbmm", a, b)
    return _plus("addbmm", addend, contracted("addbmm", x, y, (0, 2), (0, 1)), beta, alpha)
