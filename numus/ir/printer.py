"""Kernels as text: to be read, and to tell whether two are the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from numus.ir.expressions import (
    INDEX,
    Expr,
    Register,
    const_value,
)
from numus.ir.grid_sync import AtomicAdd, SetFlag, SpinWait, WarpMultisplit, operands_of
from numus.ir.statements import BlockReduce, BlockScan, For, If, Let, Prefetch, Set, Stmt, Store
from numus.ir.tensor_core import (
    AsyncCommit,
    AsyncCopy,
    AsyncFence,
    AsyncWait,
    MmaOperand,
    MmaSync,
    Wgmma,
    WgmmaMainloop,
    WgmmaTile,
    WgmmaWait,
)

if TYPE_CHECKING:
    from numus.ir.kernel import Kernel


class Printer:
    """Numbers every value in order of first use, so that the text depends on structure alone."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.names: dict[Any, str] = {}
        self.count = 0
        self.scopes: list[list[Any]] = [[]]

    def text(self) -> str:
        k = self.kernel
        if k.vendor is not None:
            self.lines.append(f"{k.vendor.name}: {k.problem}")
        if k.small:
            self.lines.append("small")
        if k.block_size:
            how = (("pack", k.packed_blocks), ("spread", k.cluster_size))
            more = "".join(f" {w} {n}" for w, n in how if n > 1)
            more += " stays" * k.persistent
            self.lines.append(f"group {k.block_size}{more}")
        for i, b in enumerate(k.buffers):
            self.names[b] = f"b{i}"
            size = f"[{self.expr(b.size, 0)}]" if b.size is not None else ""
            size += f" over {self.names[b.aliases]}" if b.aliases is not None else ""
            size += " by warp" * b.warp_private
            self.lines.append(f"{b.access} b{i}: {b.dtype.name}{size}")
        if k.flags is not None:
            self.lines.append(f"board {self.names[k.flags[0]]}: {k.flags[1]} words")
        for slot, dtype in k.scalars:
            self.lines.append(f"scalar {slot}: {dtype.name}")
        self.block(k.body, 0)
        return "\n".join(self.lines) + "\n"

    def name(self, thing: Any, prefix: str) -> str:
        if thing not in self.names:
            self.names[thing] = f"{prefix}{self.count}"
            self.count += 1
            self.scopes[-1].append(thing)
        return self.names[thing]

    def expr(self, e: Expr, depth: int) -> str:
        if e.op == "const":
            return f"{const_value(e)!r}" + ("" if e.dtype is INDEX else f":{e.dtype.name}")
        if e.op == "scalar":
            return str(e.attr)
        if e.op == "address":
            return f"address {self.names[e.attr]}"
        if e.op == "var":
            return self.name(e, "v")
        if e.op == "read":
            return self.name(e.attr, "r")
        if e.op == "lanes_reduce":
            return f"lanes_{e.attr[0]}({self.name(e.attr[1], 'r')})"
        if e.op == "lanes_least":
            which, like = (self.name(r, "r") for r in e.attr)
            return f"lanes_least({which} where {like} is {self.name(e.args[0], 'v')})"
        if e in self.names:
            return self.names[e]
        # operands first, iteratively: chains may be thousands deep
        stack = [e]
        while stack:
            top = stack[-1]
            if top in self.names:
                stack.pop()
                continue
            missing = [a for a in top.args if a.args and a not in self.names]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            args = ", ".join(self.expr(a, depth) for a in top.args)
            head = top.op
            if top.op == "load":
                head = f"load {self.names[top.attr]}"
            elif top.attr is not None:
                head = f"{top.op}[{top.attr}]"
            name = self.name(top, "t")
            self.lines.append(f"{'  ' * depth}{name}: {top.dtype.name} = {head}({args})")
        return self.names[e]

    def block(self, body: Iterable[Stmt], depth: int) -> None:
        pad = "  " * depth
        for s in body:
            if isinstance(s, For):
                start, stop, step = (self.expr(x, depth) for x in (s.start, s.stop, s.step))
                by = f" by {step}" if step != "1" else ""
                times = f" x{s.unroll}" if s.unroll != 1 else ""
                times += f" by vectors of {s.width}" if s.width else ""
                times += " held" if s.resident else ""
                times += f" {s.full_vectors} full" if s.full_vectors else ""
                self.lines.append(
                    f"{pad}for {self.name(s.var, 'v')} in {start}..{stop}{by}: {s.kind}{times}"
                )
                self.inner(s.body, depth + 1)
            elif isinstance(s, If):
                condition = self.expr(s.condition, depth)
                self.lines.append(f"{pad}if {condition}:")
                self.inner(s.body, depth + 1)
            elif isinstance(s, Let):
                value = self.expr(s.value, depth)
                how = " ahead" if s.early else f" run of {s.vector}" if s.vector else ""
                self.lines.append(f"{pad}{self.name(s.var, 'v')} = {value}{how}")
            elif isinstance(s, Set):
                value = self.expr(s.value, depth)
                lanes = " per lane" if s.register.lanes else ""
                dtype = s.register.dtype.name
                self.lines.append(
                    f"{pad}set {self.name(s.register, 'r')}: {dtype}{lanes} = {value}"
                )
            elif isinstance(s, Store):
                index, value = self.expr(s.index, depth), self.expr(s.value, depth)
                mask = f" if {self.expr(s.mask, depth)}" if s.mask is not None else ""
                how = f" run of {s.vector}" if s.vector else ""
                self.lines.append(f"{pad}{self.names[s.buffer]}[{index}] = {value}{mask}{how}")
            elif isinstance(s, (BlockReduce, BlockScan)):
                self.across(s, depth)
            elif isinstance(s, Prefetch):
                index, why = self.expr(s.index, depth), "" if s.write else " to read"
                self.lines.append(f"{pad}prefetch {self.names[s.buffer]}[{index}]{why}")
            elif isinstance(s, (AtomicAdd, WarpMultisplit, SetFlag, SpinWait)):
                self.between(s, depth)
            else:
                self.tiles(s, depth)

    def between(self, s: Stmt, depth: int) -> None:
        pad = "  " * depth
        given = [self.expr(e, depth) for e in operands_of(s)]
        if isinstance(s, AtomicAdd):
            self.lines.append(f"{pad}{self.names[s.buffer]}[{given[0]}] += {given[1]}")
        elif isinstance(s, WarpMultisplit):
            name, counters = self.name(s.result, "v"), self.names[s.counters]
            self.lines.append(
                f"{pad}{name} = tally {counters}[{given[0]} + {given[1]} of {s.bits} bits]"
            )
        elif isinstance(s, SetFlag):
            self.lines.append(f"{pad}post {self.names[s.flags]}[{given[0]}] = {given[1]}")
        elif isinstance(s, SpinWait):
            for run, index, count in zip(s.reads, given[::2], given[1::2], strict=True):
                names = ", ".join(self.name(v, "v") for v in run.results)
                where = f"{self.names[s.flags]}[{index} by {run.stride}]"
                self.lines.append(f"{pad}{names} = await {where} upto {count}")

    def tiles(self, s: Stmt, depth: int) -> None:
        pad = "  " * depth
        if isinstance(s, AsyncCopy):
            to, frm, limit = (
                self.expr(e, depth) for e in (s.target_index, s.source_index, s.limit)
            )
            target, source = self.names[s.target], self.names[s.source]
            what = f"copy {s.nbytes} {target}[{to}] = {source}[{frm}]"
            self.lines.append(f"{pad}{what} upto {limit}")
        elif isinstance(s, WgmmaWait):
            sums = ", ".join(self.name(r, "r") for r in s.accumulators)
            self.lines.append(f"{pad}tile wait {s.pending}: {sums}")
        elif isinstance(s, AsyncCommit):
            self.lines.append(f"{pad}commit")
        elif isinstance(s, AsyncFence):
            self.lines.append(f"{pad}fence")
        elif isinstance(s, AsyncWait):
            self.lines.append(f"{pad}wait {s.pending}{' fence' if s.fence else ''}")
        elif isinstance(s, Wgmma):
            sums = ", ".join(self.name(r, "r") for r in s.accumulators)
            left, right = (self.operand(o, depth) for o in (s.left, s.right))
            what = f"tile {s.columns} {s.depth}{' fresh' if s.zero_init else ''}"
            self.lines.append(f"{pad}{what} {left} {right}: {sums}")
        else:
            self.units(s, depth)

    def units(self, s: Stmt, depth: int) -> None:
        pad = "  " * depth
        if isinstance(s, MmaSync):
            words = ", ".join(self.expr(e, depth) for e in (*s.left, *s.right))
            sums = ", ".join(self.name(r, "r") for r in s.accumulators)
            self.lines.append(f"{pad}product {s.dtype.name} {words}: {sums}")
        elif isinstance(s, WgmmaTile):
            sums = ", ".join(self.name(r, "r") for r in s.accumulators)
            what = f"slice {self.names[s.scratch]} {s.rows} {s.columns} {s.k_major}"
            what += f" onto {self.expr(s.accumulate, depth)}" if s.accumulate is not None else ""
            self.lines.append(f"{pad}{what}: {sums}")
        elif isinstance(s, WgmmaMainloop):
            start, slices = self.expr(s.start, depth), self.expr(s.k_tiles, depth)
            for side in (s.left, s.right):
                how = "along" if side.k_major else "across"
                numbers = (*side.extents, *side.strides, side.first, side.matrix)
                values = ", ".join(self.expr(e, depth) for e in numbers)
                self.lines.append(f"{pad}{how} {self.names[side.buffer]}({values}) x{side.lines}")
                if side.k_tile is not None and side.origin is not None:
                    name = self.name(side.k_tile, "v")
                    where = ", ".join(self.expr(e, depth) for e in side.origin)
                    self.lines.append(f"{pad}  of slice {name} at {where}")
            sums = ", ".join(self.name(r, "r") for r in s.accumulators)
            scratch = self.names[s.scratch]
            how = "fresh sum" if s.zero_init else "sum"
            self.lines.append(f"{pad}{how} {start} +{slices} by {s.stages} in {scratch}: {sums}")
        else:  # what is not written would not tell kernels apart
            raise AssertionError(f"no statement of the kernel IR: {s!r}")

    def operand(self, o: MmaOperand | list[Register], depth: int) -> str:
        if isinstance(o, list):
            return f"({', '.join(self.name(r, 'r') for r in o)})"
        lines = f" of {o.lines}" if o.lines else ""
        where = f"{self.names[o.buffer]}[{self.expr(o.start, depth)}]"
        return f"{where}{'' if o.k_major else 't'}{lines}"

    def across(self, s: BlockReduce | BlockScan, depth: int) -> None:
        pad = "  " * depth
        registers = ", ".join(self.name(r, "r") for r in s.registers)
        start = ""
        if isinstance(s, BlockScan):
            start = f" from {', '.join(self.expr(x, depth) for x in s.initial)}"
        sides = [", ".join(self.name(v, "v") for v in side) for side in (s.left, s.right)]
        head = "scan" if isinstance(s, BlockScan) else "combine"
        self.lines.append(f"{pad}{head} {registers}{start}: ({sides[0]}), ({sides[1]})")
        self.scopes.append([])
        merged = ", ".join(self.expr(x, depth + 1) for x in s.merged)
        for thing in self.scopes.pop():
            del self.names[thing]
        results = ", ".join(self.name(v, "v") for v in s.results)
        self.lines.append(f"{pad}  {results} = {merged}")

    def inner(self, body: Iterable[Stmt], depth: int) -> None:
        """A block whose values are not visible after it."""
        self.scopes.append([])
        self.block(body, depth)
        for thing in self.scopes.pop():
            del self.names[thing]
