"""Divergence analysis of lanes loops: vector widths, and the stride of values from lane to lane.

A value inside a lanes loop is *uniform* (stride 0, a scalar), *affine* (an index with a
constant stride, so that unit-stride loads are vector loads), or *varying*.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from numus import ir
from numus.errors import CompileError
from numus.ir import expressions_of, statements

# Stride of a value from lane to lane; None: varying.
LaneStride = int | None


class LaneStrides:
    """Lane strides of the expressions in one lanes loop.

    `vector`: lanes are consecutive and aligned to this many, so that division by a multiple of it
    is uniform.
    """

    def __init__(self, var: ir.Expr, step: ir.Expr, vector: int = 0) -> None:
        self.known: dict[ir.Expr, LaneStride] = {var: step.attr if step.op == "const" else None}
        self._var, self._vector = var, vector

    def within_vector(self, e: ir.Expr) -> bool:
        """Whether a division or remainder by a multiple of `vector` has an aligned dividend."""
        return (
            self._vector > 0
            and e.op in ("idiv", "irem")
            and e.args[0] is self._var
            and is_multiple(e.args[1], self._vector)
        )

    def bind(self, var: ir.Expr, value: ir.Expr) -> None:
        self.known[var] = self.of(value)

    def of(self, e: ir.Expr) -> LaneStride:
        known = self.known
        if e in known:
            return known[e]
        stack = [e]
        while stack:
            top = stack[-1]
            if top in known:
                stack.pop()
                continue
            missing = [a for a in top.args if a not in known]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            known[top] = self._stride(top)
        return known[e]

    def _stride(self, e: ir.Expr) -> LaneStride:
        if e.op == "read":
            return None if e.attr.lanes else 0
        # the fill of a shift differs even where all lanes were equal
        if e.op in ("lanes_shift", "lanes_compress", "carry"):
            return None
        strides = [self.known[a] for a in e.args]
        if e.op in ("lanes_last", "lanes_count") or all(g == 0 for g in strides):
            return 0
        if e.op in ("lanes_xor", "lanes_max") or e.dtype is not ir.INDEX:
            return None
        if self.within_vector(e):
            return 0 if e.op == "idiv" else 1
        if e.op == "select":
            return strides[1] if strides[0] == 0 and strides[1] == strides[2] else None
        steps = [g for g in strides if g is not None]
        if len(steps) < len(strides):
            return None
        if e.op == "add":
            return steps[0] + steps[1]
        if e.op == "sub":
            return steps[0] - steps[1]
        if e.op == "neg":
            return -steps[0]
        if e.op == "mul":
            for step, by in zip(steps, reversed(e.args), strict=True):
                if by.op == "const":
                    return step * int(by.attr)
        if e.op == "shl" and e.args[1].op == "const":
            return steps[0] << int(e.args[1].attr)
        return None


def is_multiple(e: ir.Expr, n: int) -> bool:
    """Whether an index is provably a multiple of n."""
    if e.op == "const":
        return int(e.attr) % n == 0
    if e.op == "mul":
        return any(is_multiple(a, n) for a in e.args)
    return e.op == "add" and all(is_multiple(a, n) for a in e.args)


def are_consecutive(indices: Sequence[ir.Expr]) -> bool:
    """Whether indices are provably i, i + 1, i + 2, …"""
    if all(x.op == "const" for x in indices):
        return all(x.attr == indices[0].attr + i for i, x in enumerate(indices))
    base, start = ir.split_constant(indices[0])
    return all(ir.split_constant(x) == (base, start + i) for i, x in enumerate(indices))


@dataclass(slots=True)
class LanePlan:
    """Vector widths of the lanes loops and registers of one kernel."""

    widths: dict[ir.For, int]
    vectors: dict[ir.Register, int]  # vectors per lanes register
    register_widths: dict[ir.Register, int]
    op_counts: dict[ir.For, int]  # approximate operations of a body
    min_itemsize: dict[ir.For, int]  # smallest element loaded or stored by a body
    loaded: frozenset[ir.Buffer]


def plan_lanes(kernel: ir.Kernel, vector_bytes: int) -> LanePlan:
    """Width = vector bytes / the widest type computed on; loops that share registers agree."""
    items: dict[ir.For, int] = {}
    registers_of: dict[ir.For, set[ir.Register]] = {}
    op_counts: dict[ir.For, int] = {}
    for loop in _lanes_loops(kernel.body):
        item, registers_of[loop], op_counts[loop] = _body_summary(loop.body)
        items[loop] = vector_bytes // loop.width if loop.width else item
    item_of: dict[ir.Register, int] = {}
    vectors: dict[ir.Register, int] = {}
    changed = True
    while changed:
        changed = False
        for loop, registers in registers_of.items():
            widest = max([items[loop], *(item_of.get(r, 0) for r in registers)])
            changed |= widest != items[loop] or any(item_of.get(r) != widest for r in registers)
            items[loop] = widest
            item_of.update(dict.fromkeys(registers, widest))
    for loop, registers in registers_of.items():
        vectors.update({r: max(vectors.get(r, 1), loop.unroll) for r in registers})
    return LanePlan(
        widths={loop: vector_bytes // item for loop, item in items.items()},
        vectors=vectors,
        register_widths={r: vector_bytes // item for r, item in item_of.items()},
        op_counts=op_counts,
        min_itemsize={loop: _min_itemsize(loop.body) for loop in items},
        loaded=frozenset(e.attr for e in ir.loads(kernel.body)),
    )


def _lanes_loops(body: Sequence[ir.Stmt]) -> list[ir.For]:
    loops = [s for s in statements(body) if isinstance(s, ir.For) and s.kind == "lanes"]
    if any(s in loops for loop in loops for s in statements(loop.body)):
        raise CompileError("lanes loops must not be nested")
    return loops


def _body_summary(body: Sequence[ir.Stmt]) -> tuple[int, set[ir.Register], int]:
    """(widest itemsize computed on, lanes registers used, number of operations).

    64-bit integers count only as data (loaded, stored, in a register): index arithmetic mostly
    stays scalar.
    """
    widest = 1
    registers: set[ir.Register] = set()
    seen: set[ir.Expr] = set()
    addressing: list[ir.Expr] = []
    data: list[ir.Expr] = []
    for s in statements(body):
        if isinstance(s, ir.Store):
            widest = max(widest, s.buffer.dtype.itemsize)
            data.append(s.value)
            addressing += [s.index] if s.mask is None else [s.index, s.mask]
        elif isinstance(s, (ir.Set, ir.Let)):
            if isinstance(s, ir.Set) and s.register.lanes:
                registers.add(s.register)
                widest = max(widest, s.register.dtype.itemsize)
            data.append(s.value)
        else:
            addressing += expressions_of(s)
    for counts, pending in ((True, data), (False, addressing)):
        while pending:
            e = pending.pop()
            if e in seen:
                continue
            seen.add(e)
            if e.op == "read" and e.attr.lanes:
                registers.add(e.attr)
            if counts:
                widest = max(widest, _data_itemsize(e))
            if e.op == "load":
                addressing.extend(e.args)
            else:
                pending.extend(e.args)
    return widest, registers, len(seen)


def _min_itemsize(body: Sequence[ir.Stmt]) -> int:
    sizes = [e.dtype.itemsize for e in ir.loads(body)]
    sizes += [s.buffer.dtype.itemsize for s in statements(body) if isinstance(s, ir.Store)]
    return min(sizes, default=8)


def _data_itemsize(e: ir.Expr) -> int:
    if e.op in ("load", "read"):
        return e.dtype.itemsize
    if e.op == "cast" and (e.dtype.is_low_precision or e.args[0].dtype.is_low_precision):
        return 4  # computed through float32
    if (e.dtype.itemsize == 8 and e.dtype.is_integer) or e.op in ("const", "scalar"):
        return 1
    return e.dtype.itemsize


def loads_of(body: Sequence[ir.Stmt]) -> Iterator[ir.Expr]:
    """The loads that the statements of a body make themselves, each once; not those of a slow path,
    which may be out of bounds elsewhere."""
    seen: set[ir.Expr] = set()
    stack: list[ir.Expr] = []
    for s in body:
        if isinstance(s, (ir.Let, ir.Set)):
            stack.append(s.value)
        elif isinstance(s, ir.Store):
            stack.extend((s.index, s.value))
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.op == "load":
            yield e
        stack.extend((e.args[0], e.args[2]) if e.op == "slow_path" else e.args)


def written_by(body: Sequence[ir.Stmt]) -> frozenset[ir.Register | ir.Buffer]:
    """Registers and buffers that a body may write."""
    found: set[ir.Register | ir.Buffer] = set()
    for s in statements(body):
        if isinstance(s, ir.Set):
            found.add(s.register)
        elif isinstance(s, (ir.Store, ir.AtomicAdd)):
            found.add(s.buffer)
        elif isinstance(s, ir.AsyncCopy):
            found.add(s.dst)
        elif isinstance(s, (ir.Wgmma, ir.WgmmaWait)):
            found.update(s.accumulators)
        elif isinstance(s, ir.PackFragments):
            found.update(s.words)
        elif isinstance(s, ir.WarpMultisplit):
            found.add(s.counters)
    return frozenset(found)


def is_computable(index: ir.Expr, known: Container[ir.Expr], *counters: ir.Expr) -> bool:
    """Whether an index is arithmetic on known values and loop variables alone."""
    stack, seen = [index], set[ir.Expr]()
    while stack:
        e = stack.pop()
        if e in counters or e in known or e in seen:
            continue
        seen.add(e)  # operands are shared: an index may come from a hash of hundreds of operations
        if e.op in ("load", "read", "lanes_reduce", "lanes_min_where", "var", "slow_path", "carry"):
            return False
        stack.extend(e.args)
    return True
