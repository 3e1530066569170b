"""What a lanes loop needs to know before it is written: how wide, and what varies how.

A value inside a lanes loop is *uniform* (the same in every lane, kept as a scalar), *affine* (an
index that grows by a constant from lane to lane, so that a load of it is one wide access), or
merely *varying*.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from numus import ir
from numus.errors import CompileError
from numus.ir import expressions_of, post_order, statements

# The growth of a value from lane to lane; None: it varies, and not by a constant.
LaneStride = int | None


class LaneStrides:
    """Growth per lane of the expressions in one lanes loop.

    `run`: lanes are so many neighbours that begin at a whole multiple of their number. They go
    through the places of a longer multiple together: among them, its number stays the same.
    """

    def __init__(self, var: ir.Expr, step: ir.Expr, run: int = 0) -> None:
        self.known: dict[ir.Expr, LaneStride] = {var: step.attr if step.op == "const" else None}
        self._var, self._run = var, run

    def within_vector(self, e: ir.Expr) -> bool:
        """Whether lanes are counted by something of which they are all within one."""
        return (
            self._run > 0
            and e.op in ("idiv", "irem")
            and e.args[0] is self._var
            and is_multiple(e.args[1], self._run)
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
        if e.op == "lanes_shift":  # what comes in differs even where all lanes were equal
            return None
        growths = [self.known[a] for a in e.args]
        if e.op == "lanes_last" or all(g == 0 for g in growths):
            return 0
        if e.op == "lanes_xor":
            return None
        if e.dtype is not ir.INDEX:
            return None
        if self.within_vector(e):
            return 0 if e.op == "idiv" else 1
        if e.op == "select":
            return growths[1] if growths[0] == 0 and growths[1] == growths[2] else None
        steps = [g for g in growths if g is not None]
        if len(steps) < len(growths):
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
    """Whether an index is known to be a multiple of n."""
    if e.op == "const":
        return int(e.attr) % n == 0
    if e.op == "mul":
        return any(is_multiple(a, n) for a in e.args)
    return e.op == "add" and all(is_multiple(a, n) for a in e.args)


@dataclass(slots=True)
class Plan:
    """Widths of the lanes loops and numbers of vectors in the registers of one kernel."""

    widths: dict[ir.For, int]
    vectors: dict[ir.Register, int]  # of lanes registers: how many vectors each holds
    register_widths: dict[ir.Register, int]
    sizes: dict[ir.For, int]  # roughly how many operations a body has
    narrowest: dict[ir.For, int]  # the smallest item that a body loads or stores
    loaded: frozenset[ir.Buffer]  # buffers that the kernel reads


def plan(kernel: ir.Kernel, lanes_bytes: int) -> Plan:
    """Lanes = vector width / the widest type computed on; loops that share registers agree."""
    loops: list[tuple[ir.For, int, set[ir.Register], int]] = []
    for loop in _lanes_loops(kernel.body):
        item, registers, size = _body_facts(loop.body)
        if loop.width:
            item = lanes_bytes // loop.width
        loops.append((loop, item, registers, size))
    # loops that share a lanes register form a group with one width
    width_of: dict[ir.Register, int] = {}
    changed = True
    while changed:
        changed = False
        for index, (loop, item, registers, size) in enumerate(loops):
            most = max([item, *(width_of.get(r, 0) for r in registers)])
            if most != item:
                loops[index] = (loop, most, registers, size)
                changed = True
            for r in registers:
                if width_of.get(r) != most:
                    width_of[r] = most
                    changed = True
    vectors: dict[ir.Register, int] = {}
    for loop, _, registers, _ in loops:
        for r in registers:
            vectors[r] = max(vectors.get(r, 1), loop.unroll)
    return Plan(
        widths={loop: lanes_bytes // item for loop, item, _, _ in loops},
        vectors=vectors,
        register_widths={r: lanes_bytes // item for r, item in width_of.items()},
        sizes={loop: size for loop, _, _, size in loops},
        narrowest={loop: _narrowest(loop.body) for loop, _, _, _ in loops},
        loaded=frozenset(e.attr for e in _loads(kernel.body)),
    )


def _lanes_loops(body: Sequence[ir.Stmt]) -> Iterator[ir.For]:
    for s in body:
        if isinstance(s, ir.For):
            if s.kind == "lanes":
                if any(True for _ in _lanes_loops(s.body)):
                    raise CompileError("a lanes loop inside a lanes loop")
                yield s
            else:
                yield from _lanes_loops(s.body)
        elif isinstance(s, ir.If):
            yield from _lanes_loops(s.body)


def _body_facts(body: Sequence[ir.Stmt]) -> tuple[int, set[ir.Register], int]:
    """The widest item computed on, the lanes registers touched, and the number of operations.

    64-bit integers count only where they are data (loaded, stored, kept in a register): index
    arithmetic is 64 bits wide as well but mostly stays scalar.
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
            addressing.append(s.index)
            if s.mask is not None:
                addressing.append(s.mask)
        elif isinstance(s, ir.Set):
            if s.register.lanes:
                registers.add(s.register)
                widest = max(widest, s.register.dtype.itemsize)
            data.append(s.value)
        elif isinstance(s, ir.Let):
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
                widest = max(widest, _weight(e))
            if e.op == "load":
                addressing.extend(e.args)
            else:
                pending.extend(e.args)
    return widest, registers, len(seen)


def _loads(body: Sequence[ir.Stmt]) -> Iterator[ir.Expr]:
    """Every load that a block makes."""
    seen: set[ir.Expr] = set()
    for s in statements(body):
        yield from (e for e in post_order(expressions_of(s), seen) if e.op == "load")


def _narrowest(body: Sequence[ir.Stmt]) -> int:
    sizes = [e.dtype.itemsize for e in _loads(body)]
    sizes += [s.buffer.dtype.itemsize for s in statements(body) if isinstance(s, ir.Store)]
    return min(sizes, default=8)


def _weight(e: ir.Expr) -> int:
    if e.op in ("load", "read"):
        return e.dtype.itemsize
    if e.op == "cast" and (e.dtype.is_narrow_float or e.args[0].dtype.is_narrow_float):
        return 4  # computed through float32
    if e.dtype.itemsize == 8 and e.dtype.is_integer:
        return 1
    if e.op in ("const", "scalar"):
        return 1
    return e.dtype.itemsize


def changed(body: Sequence[ir.Stmt]) -> frozenset[ir.Register | ir.Buffer]:
    """The registers and buffers that a block may change."""
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
        elif isinstance(s, ir.WarpMultisplit):
            found.add(s.counters)
    return frozenset(found)


def computed_from(index: ir.Expr, known: Container[ir.Expr], *counters: ir.Expr) -> bool:
    """Whether an index needs nothing but arithmetic on what is known before its loop, and on the
    variables of loops."""
    stack = [index]
    while stack:
        e = stack.pop()
        if e in counters or e in known:
            continue
        if e.op in ("load", "read", "lanes_reduce", "lanes_min_where", "var", "slow_path"):
            return False
        stack.extend(e.args)
    return True
