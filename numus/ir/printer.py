"""Kernels as text: readable, and equal for structurally equal kernels (the cache key)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numus.ir.expressions import (
    INDEX,
    Expr,
    Register,
    const_value,
)
from numus.ir.grid_sync import AtomicAdd, SetFlag, SpinWait, WarpMultisplit, operands
from numus.ir.kernel import Kernel
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


def kernel_text(kernel: Kernel) -> str:
    """The kernel's text, without its name and notes; cached on the kernel."""
    if kernel.cached_text is None:
        kernel.cached_text = _Printer(kernel).text()
    return kernel.cached_text


class _Printer:
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
            counts = (("packed", k.packed_blocks), ("cluster", k.cluster_size))
            launch = "".join(f" {word} {n}" for word, n in counts if n > 1)
            launch += " persistent" * k.persistent
            self.lines.append(f"block {k.block_size}{launch}")
        for i, b in enumerate(k.buffers):
            self.names[b] = f"b{i}"
            size = f"[{self.expr(b.size, 0)}]" if b.size is not None else ""
            size += f" aliases {self.names[b.aliases]}" if b.aliases is not None else ""
            size += " by warp" * b.warp_private
            self.lines.append(f"{b.access} b{i}: {b.dtype.name}{size}")
        if k.flags is not None:
            self.lines.append(f"flags {self.names[k.flags[0]]}: {k.flags[1]} words")
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

    def registers(self, registers: Iterable[Register]) -> str:
        return ", ".join(self.name(r, "r") for r in registers)

    def exprs(self, values: Iterable[Expr], depth: int) -> str:
        return ", ".join(self.expr(e, depth) for e in values)

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
        if e.op == "lanes_min_where":
            which, values = (self.name(r, "r") for r in e.attr)
            return f"lanes_min_where({which} where {values} is {self.name(e.args[0], 'v')})"
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
                times += " resident" if s.resident else ""
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
                how = " early" if s.early else f" vector of {s.vector}" if s.vector else ""
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
                how = f" vector of {s.vector}" if s.vector else ""
                self.lines.append(f"{pad}{self.names[s.buffer]}[{index}] = {value}{mask}{how}")
            elif isinstance(s, (BlockReduce, BlockScan)):
                self.collective(s, depth)
            elif isinstance(s, Prefetch):
                index, why = self.expr(s.index, depth), "" if s.write else " to read"
                self.lines.append(f"{pad}prefetch {self.names[s.buffer]}[{index}]{why}")
            elif isinstance(s, (AtomicAdd, WarpMultisplit, SetFlag, SpinWait)):
                self.sync(s, depth)
            else:
                self.lines.append(f"{pad}{self.tensor_core(s, depth)}")

    def sync(self, s: Stmt, depth: int) -> None:
        pad = "  " * depth
        args = [self.expr(e, depth) for e in operands(s)]
        if isinstance(s, AtomicAdd):
            self.lines.append(f"{pad}{self.names[s.buffer]}[{args[0]}] += {args[1]}")
        elif isinstance(s, WarpMultisplit):
            name, counters = self.name(s.rank, "v"), self.names[s.counters]
            self.lines.append(
                f"{pad}{name} = multisplit {counters}[{args[0]} + {args[1]} of {s.bits} bits]"
            )
        elif isinstance(s, SetFlag):
            self.lines.append(f"{pad}set_flag {self.names[s.flags]}[{args[0]}] = {args[1]}")
        elif isinstance(s, SpinWait):
            for read, index, count in zip(s.reads, args[::2], args[1::2], strict=True):
                names = ", ".join(self.name(v, "v") for v in read.results)
                where = f"{self.names[s.flags]}[{index} by {read.stride}]"
                self.lines.append(f"{pad}{names} = spin_wait {where} upto {count}")

    def tensor_core(self, s: Stmt, depth: int) -> str:
        if isinstance(s, AsyncCopy):
            dst, src, valid = (
                self.expr(e, depth) for e in (s.dst_index, s.src_index, s.valid_elements)
            )
            copy = f"copy {s.nbytes} {self.names[s.dst]}[{dst}] = {self.names[s.src]}[{src}]"
            return f"{copy} upto {valid}"
        if isinstance(s, AsyncCommit):
            return "commit"
        if isinstance(s, AsyncFence):
            return "fence"
        if isinstance(s, AsyncWait):
            return f"wait {s.pending}{' fence' if s.fence else ''}"
        if isinstance(s, WgmmaWait):
            return f"wgmma wait {s.pending}: {self.registers(s.accumulators)}"
        if isinstance(s, Wgmma):
            accumulators = self.registers(s.accumulators)
            a, b = (self.operand(o, depth) for o in (s.a, s.b))
            return f"wgmma {s.n} {s.k}{' zero' if s.zero_init else ''} {a} {b}: {accumulators}"
        if isinstance(s, MmaSync):
            words = self.exprs((*s.a, *s.b), depth)
            return f"mma_sync {s.dtype.name} {words}: {self.registers(s.accumulators)}"
        if isinstance(s, WgmmaTile):
            accumulators = self.registers(s.accumulators)
            tile = f"k_tile {self.names[s.scratch]} {s.m} {s.n} {s.k_major}"
            tile += f" onto {self.expr(s.accumulate, depth)}" if s.accumulate is not None else ""
            return f"{tile}: {accumulators}"
        if isinstance(s, WgmmaMainloop):
            return self.mainloop(s, depth)
        # an omitted statement would make different kernels equal
        raise AssertionError(f"no statement of the kernel IR: {s!r}")

    def mainloop(self, s: WgmmaMainloop, depth: int) -> str:
        pad = "  " * depth
        start, k_tiles = self.expr(s.k_start, depth), self.expr(s.k_tiles, depth)
        for o in (s.a, s.b):
            major = "k_major" if o.k_major else "mn_major"
            values = self.exprs((*o.extents, *o.strides, o.mn_offset, o.batch), depth)
            self.lines.append(f"{pad}{major} {self.names[o.buffer]}({values}) x{o.tile_mn}")
            if o.k_tile is not None and o.origin is not None:
                name = self.name(o.k_tile, "v")
                self.lines.append(f"{pad}  of k_tile {name} at {self.exprs(o.origin, depth)}")
        accumulators = self.registers(s.accumulators)
        head = "zero mainloop" if s.zero_init else "mainloop"
        ahead = f"+{k_tiles} by {s.stages} in {self.names[s.scratch]}"
        return f"{head} {start} {ahead}: {accumulators}"

    def operand(self, o: MmaOperand | list[Register], depth: int) -> str:
        if isinstance(o, list):
            return f"({self.registers(o)})"
        rows = f" of {o.tile_mn}" if o.tile_mn else ""
        where = f"{self.names[o.buffer]}[{self.expr(o.offset, depth)}]"
        return f"{where}{'' if o.k_major else 't'}{rows}"

    def collective(self, s: BlockReduce | BlockScan, depth: int) -> None:
        pad = "  " * depth
        registers = self.registers(s.registers)
        head, start = "block_reduce", ""
        if isinstance(s, BlockScan):
            head, start = "block_scan", f" from {self.exprs(s.initial, depth)}"
        left, right = (", ".join(self.name(v, "v") for v in side) for side in (s.left, s.right))
        self.lines.append(f"{pad}{head} {registers}{start}: ({left}), ({right})")
        self.scopes.append([])
        merged = self.exprs(s.merged, depth + 1)
        self.pop()
        results = ", ".join(self.name(v, "v") for v in s.results)
        self.lines.append(f"{pad}  {results} = {merged}")

    def inner(self, body: Iterable[Stmt], depth: int) -> None:
        """A block whose values are not visible after it."""
        self.scopes.append([])
        self.block(body, depth)
        self.pop()

    def pop(self) -> None:
        for thing in self.scopes.pop():
            del self.names[thing]
