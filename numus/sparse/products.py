"""Products on fixed patterns, and their derivatives: SpMM, SDDMM and masked SpGEMM.

The values of a product are linear in each operand, and the three are closed under derivatives: of
A X by the values of A an SDDMM, by X a product with Aᵀ; of an SDDMM two products; of A B at the
positions of a mask two more masked products. So derivatives live on the patterns, to any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numus import dtypes as dt
from numus.evaluation.evaluate import is_known
from numus.graph import Node, Nodes, Tangents, grad_mode, mode
from numus.primitives import elementwise as ew
from numus.primitives import sparse as primitives
from numus.primitives.broadcast import full, reduce_sum
from numus.primitives.custom import custom
from numus.primitives.indexing import gather
from numus.primitives.views import reshape
from numus.runtime.devices import default
from numus.shapes import Shape, size_of
from numus.sparse.pattern import OnDevices, Pattern, index_dtype
from numus.tensor import Tensor
from numus.transforms.rules import CallRule

Compute = Callable[[Node, Node], Node]


@dataclass(eq=False)
class Bilinear(CallRule):
    """The rule of a function of two operands, linear in each, by its cotangents in both."""

    apply: Compute
    first: Compute  # of (cotangent, second operand)
    second: Compute  # of (cotangent, first operand)

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        a, b = operands
        (g,) = cotangents
        if g is None:
            return [None, None]
        return [
            self.first(g, ew.conjugate(b)) if a.tracked else None,
            self.second(g, ew.conjugate(a)) if b.tracked else None,
        ]

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        a, b = operands
        by_a, by_b = tangents
        parts = [self.apply(by_a, b)] if by_a is not None else []
        parts += [self.apply(a, by_b)] if by_b is not None else []
        return [functools.reduce(ew.add, parts) if parts else None]


def differentiated(
    owner: Pattern, key: object, make: Callable[[], Bilinear], compute: Compute, a: Node, b: Node
) -> Node:
    """compute(a, b), with a rule that the pattern keeps: the same object each time, as caches of
    graphs ask. It refers to the pattern, so that none is made before it is needed."""
    with grad_mode(False):
        value = compute(a, b)
    if not (mode.grad and (a.tracked or b.tracked)):
        return value
    rules = owner.__dict__.setdefault("rules", {})
    if key not in rules:
        rules[key] = make()
    return custom(rules[key], 0, value, (a, b))


def at_positions(values: Node, order: OnDevices) -> Node:
    """Elements of a vector by number; the kernel that reads the result reads through it."""
    return gather(values, (ew.cast(order.on(values.device), dt.int64),), (0,))


@dataclass(eq=False)
class Selected(CallRule):
    """The rule of elements by number: its transpose adds up, in the order of the entries."""

    order: OnDevices
    operand: Shape

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        (g,) = cotangents
        if g is None:
            return [None]
        count, *rest = self.operand
        ones = full((g.shape[0],), 1, g.dtype)
        columns = reshape(g, (g.shape[0], size_of(tuple(rest))))
        out = transposed_product_nodes(_selection(self.order, count), ones, columns)
        return [reshape(out, self.operand)]

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        (t,) = tangents
        return [None if t is None else taken_nodes(t, self.order)]


def taken_nodes(values: Node, order: OnDevices) -> Node:
    """Elements along the first axis by number."""
    with grad_mode(False):
        found = at_positions(values, order)
    if not (mode.grad and values.tracked):
        return found
    rule = order.rules.setdefault(values.shape, Selected(1, order, values.shape))
    return custom(rule, 0, found, (values,))


def _counted(function: Callable[..., Node], *operands: Node) -> Node:
    """A sum of products of bools: whether any is true, as NumPy and SciPy have it."""
    count = function(*(ew.cast(x, dt.int32) for x in operands))
    return ew.ne(count, full(count.shape, 0, dt.int32))


def product_nodes(pattern: Pattern, values: Node, x: Node) -> Node:
    """A X, of values (nnz,) and X (n, columns)."""
    if values.dtype is dt.bool_:
        return _counted(functools.partial(product_nodes, pattern), values, x)

    def compute(values: Node, x: Node) -> Node:
        dev = x.device or values.device or default.device
        arrays = pattern.arrays(dev)
        batch = reshape(values, (1, *values.shape))
        known = pattern.known_rows(dev, is_known(x)) if x.shape[1] == 1 else ()
        out = primitives.csr_matmul(*arrays, batch, reshape(x, (1, *x.shape)), *known)
        return reshape(out, out.shape[1:])

    def make() -> Bilinear:
        return Bilinear(
            *(1, functools.partial(product_nodes, pattern)),
            first=lambda g, x: sampled_nodes(pattern, g, x),
            second=lambda g, values: transposed_product_nodes(pattern, values, g),
        )

    return differentiated(pattern, "product", make, compute, values, x)


def _is_one_number(values: Node) -> bool:
    """A constant that is broadcast, as the ones of a sum."""
    return values.prim.name == "broadcast" and values.inputs[0].prim.name == "constant"


def transposed_product_nodes(pattern: Pattern, values: Node, x: Node) -> Node:
    """Aᵀ X, by the transposed pattern, which is kept."""
    if _is_one_number(values):
        return product_nodes(pattern.swapped, values, x)
    swapped, order = pattern.transposed
    return product_nodes(swapped, at_positions(values, order), x)


def sampled_nodes(pattern: Pattern, a: Node, b: Node) -> Node:
    """The elements of a bᵀ at a pattern's positions, of a (m, k) and b (n, k): SDDMM."""
    if a.dtype is dt.bool_:
        return _counted(functools.partial(sampled_nodes, pattern), a, b)

    def compute(a: Node, b: Node) -> Node:
        dev = a.device or b.device
        rows, columns = (ew.cast(i.on(dev), dt.int64) for i in (pattern.rows, pattern.indices))
        terms = ew.mul(gather(a, (rows,), (0,)), gather(b, (columns,), (0,)))
        return reduce_sum(terms, (1,))

    def make() -> Bilinear:
        return Bilinear(
            *(1, functools.partial(sampled_nodes, pattern)),
            first=lambda g, b: product_nodes(pattern, g, b),
            second=lambda g, a: transposed_product_nodes(pattern, g, a),
        )

    return differentiated(pattern, "sampled", make, compute, a, b)


def masked_nodes(a: Pattern, b: Pattern, mask: Pattern, values: Node, others: Node) -> Node:
    """The elements of A B at a mask's positions, of values (nnz of a,) and (nnz of b,)."""
    if values.dtype is dt.bool_:
        return _counted(functools.partial(masked_nodes, a, b, mask), values, others)

    def compute(values: Node, others: Node) -> Node:
        dev = values.device or others.device or default.device
        first, second = (reshape(v, (1, *v.shape)) for v in (values, others))
        given = ((*a.arrays(dev), first), (*b.arrays(dev), second), mask.arrays(dev), b.shape[1])
        searches = dev.runtime.target.simt
        out = primitives.csr_masked_matmul(*given, b.longest.bit_length() if searches else 0)
        return reshape(out, out.shape[1:])

    def by_first(g: Node, others: Node) -> Node:
        swapped, order = b.transposed
        return masked_nodes(mask, swapped, a, g, at_positions(others, order))

    def by_second(g: Node, values: Node) -> Node:
        swapped, order = a.transposed
        return masked_nodes(swapped, mask, b, at_positions(values, order), g)

    def make() -> Bilinear:
        return Bilinear(1, functools.partial(masked_nodes, a, b, mask), by_first, by_second)

    return differentiated(mask, ("masked", a, b), make, compute, values, others)


# -- on tensors -----------------------------------------------------------------------------------


def product(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    """A X, of operands in one dtype."""
    return Tensor(product_nodes(pattern, values._node, x._node))


def transposed_product(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    return Tensor(transposed_product_nodes(pattern, values._node, x._node))


def sampled(pattern: Pattern, a: Tensor, b: Tensor) -> Tensor:
    return Tensor(sampled_nodes(pattern, a._node, b._node))


def masked(a: Pattern, b: Pattern, mask: Pattern, values: Tensor, others: Tensor) -> Tensor:
    return Tensor(masked_nodes(a, b, mask, values._node, others._node))


def taken(values: Tensor, order: OnDevices) -> Tensor:
    """values[order], whose derivative is that of a matrix with a one in each row: the product with
    its transpose, which adds up in the order of the entries."""
    node = values._node
    if values.dtype is dt.bool_ or values.shape[0] == 0:
        return Tensor(at_positions(node, order))
    return Tensor(taken_nodes(node, order))


def _selection(order: OnDevices, count: int) -> Pattern:
    """Rows with one entry each."""
    found = order.patterns.get(count)
    if found is None:
        rows = order.array.shape[0]
        dtype = index_dtype(rows, count)
        pointers = np.arange(rows + 1, dtype=dtype)
        found = Pattern((rows, count), pointers, order.array.astype(dtype, copy=False))
        order.patterns[count] = found
    return found
