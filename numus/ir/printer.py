"""Kernels as text: readable, and equal for structurally equal kernels (the cache key)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from numus.ir import tensor_core as tc
from numus.ir.expressions import INDEX, Expr, Register, const_value
from numus.ir.grid_sync import (
    AtomicAdd,
    ClusterBarrier,
    ClusterGather,
    ClusterStore,
    SetFlag,
    SpinWait,
    WarpMultisplit,
)
from numus.ir.statements import (
    BlockReduce,
    BlockScan,
    DependencyWait,
    For,
    If,
    Kernel,
    Let,
    Prefetch,
    Set,
    Stmt,
    Store,
)
from numus.ir.visit import expressions_of
from numus.ir.warp_roles import Arrive, AwaitPhase, WarpgroupTurn, WarpRoles


def kernel_text(kernel: Kernel) -> str:
    """The kernel's text, without its name and notes; cached on the kernel."""
    if kernel.cached_text is None:
        kernel.cached_text = _Printer(kernel).text()
    return kernel.cached_text


def kernel_digest(kernel: Kernel) -> bytes:
    """A digest of the kernel's text; cached on the kernel."""
    if kernel.cached_digest is None:
        kernel.cached_digest = hashlib.sha256(kernel_text(kernel).encode()).digest()
    return kernel.cached_digest


def _operands(s: Stmt) -> list[Expr]:
    """Operands that are printed in order, ahead of the statement's own names."""
    if isinstance(s, tc.AsyncCopy):
        return [s.dst_index, s.src_index, s.valid_elements]
    return [] if isinstance(s, (BlockReduce, BlockScan)) else expressions_of(s)


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
        if k.copies:
            self.lines.append("copies")
        if k.block_size:
            counts = (
                *(("packed", k.packed_blocks), ("cluster", k.cluster_size)),
                ("clusters of", k.cluster_blocks),
            )
            launch = "".join(f" {word} {n}" for word, n in counts if n > 1)
            launch += " persistent" * k.persistent
            launch += f" resident {k.resident_blocks}" if k.resident_blocks else ""
            self.lines.append(f"block {k.block_size}{launch}")
        for i, b in enumerate(k.buffers):
            self.names[b] = f"b{i}"
            size = f"[{self.expr(b.size, 0)}]" if b.size is not None else ""
            size += f" aliases {self.names[b.aliases]}" if b.aliases is not None else ""
            size += " by warp" * b.warp_private + " once" * b.stored_once
            size += " streamed" * b.streamed
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

    def variables(self, values: Iterable[Expr]) -> str:
        return ", ".join(self.name(v, "v") for v in values)

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
        if e.op == "carry":
            return self.name(e, "c")
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
        for s in body:
            text = self.statement(s, depth)
            self.lines.append("  " * depth + text)
            if isinstance(s, (For, If)):
                self.scopes.append([])
                self.block(s.body, depth + 1)
                self.pop()
            elif isinstance(s, WarpRoles):
                for role, of in (("consume", s.consumers), ("produce", s.producers)):
                    self.lines.append(f"{'  ' * depth}{role}:")
                    self.scopes.append([])
                    self.block(of, depth + 1)
                    self.pop()

    def statement(self, s: Stmt, depth: int) -> str:
        """The text of a statement, after the lines of its operands."""
        names, args = self.names, [self.expr(e, depth) for e in _operands(s)]
        match s:
            case For():
                by = f" by {args[2]}" if args[2] != "1" else ""
                times = f" x{s.unroll}" if s.unroll != 1 else ""
                times += f" by vectors of {s.width}" if s.width else ""
                times += " resident" if s.resident else ""
                times += f" {s.full_vectors} full" if s.full_vectors else ""
                return f"for {self.name(s.var, 'v')} in {args[0]}..{args[1]}{by}: {s.kind}{times}"
            case If():
                return f"if {args[0]}:"
            case Let():
                how = " early" if s.early else f" vector of {s.vector}" if s.vector else ""
                how += " relaxed" if s.relaxed else ""
                return f"{self.name(s.var, 'v')} = {args[0]}{how}"
            case Set():
                dtype = s.register.dtype.name + (" per lane" if s.register.lanes else "")
                return f"set {self.name(s.register, 'r')}: {dtype} = {args[0]}"
            case Store():
                how = f" if {args[2]}" if s.mask is not None else ""
                how += f" vector of {s.vector}" if s.vector else ""
                how += " streams" if s.streams else ""
                return f"{names[s.buffer]}[{args[0]}] = {args[1]}{how}"
            case BlockReduce() | BlockScan():
                return self.collective(s, depth)
            case Prefetch():
                use = "write" if s.write else "read"
                lanes = " by all lanes" * s.lanes
                return f"prefetch {names[s.buffer]}[{args[0]}] to {use} in L{s.level}{lanes}"
            case ClusterGather():
                how = " in turns" * s.in_turns
                return f"gather {s.count} of {names[s.src]}[{args[0]}] to {names[s.dst]}{how}"
            case ClusterBarrier():
                return f"cluster barrier{' of begun blocks' * s.begun}"
            case ClusterStore():
                return f"block {args[0]}: {names[s.buffer]}[{args[1]}] = {args[2]}"
            case DependencyWait():
                return f"wait for earlier kernels{', after loads' * s.loads_before}"
            case AtomicAdd():
                return f"{names[s.buffer]}[{args[0]}] += {args[1]}"
            case WarpMultisplit():
                where = f"{names[s.counters]}[{args[0]} + {args[1]} of {s.bits} bits]"
                return f"{self.name(s.rank, 'v')} = multisplit {where}"
            case SetFlag():
                order = " release" * s.release
                return f"set_flag{order} {names[s.flags]}[{args[0]}] = {args[1]}"
            case SpinWait():
                lines, wait = [], "spin_wait" + " acquire" * s.acquire
                for read, index, count in zip(s.reads, args[::2], args[1::2], strict=True):
                    where = f"{names[s.flags]}[{index} by {read.stride}]"
                    lines.append(f"{self.variables(read.results)} = {wait} {where} upto {count}")
                return ("\n" + "  " * depth).join(lines)
            case tc.AsyncCopy():
                where = f"{names[s.dst]}[{args[0]}] = {names[s.src]}[{args[1]}]"
                return f"copy {s.nbytes} {where} upto {args[2]}"
            case tc.AsyncCommit():
                return "commit"
            case tc.AsyncFence():
                return "fence"
            case tc.AsyncWait():
                return f"wait {s.pending}{' fence' if s.fence else ''}"
            case tc.PackFragments():
                words, values = self.registers(s.words), self.registers(s.accumulators)
                return f"pack {s.dtype.name} {words}: {values}"
            case WarpRoles():
                counts = f"{names[s.barriers.buffer]} {s.barriers.arrivals}"
                registers = f" of {s.registers} registers" if s.registers else ""
                return f"roles{registers} with barriers {counts}:"
            case Arrive():
                copies = " with copies" * s.copies
                return f"arrive at {names[s.barriers.buffer]}[{args[0]}]{copies}"
            case AwaitPhase():
                return f"await {names[s.barriers.buffer]}[{args[0]}] {args[1]}"
            case WarpgroupTurn():
                return "begin turn" if s.begins else "end turn"
            case tc.WgmmaWait():
                return f"wgmma wait {s.pending}: {self.registers(s.accumulators)}"
            case tc.Wgmma():
                accumulators = self.registers(s.accumulators)
                a, b = (self.operand(o, depth) for o in (s.a, s.b))
                how = f"{' zero' if s.zero_init else ''}{' columns' if s.by_columns else ''}"
                return f"wgmma {s.n} {s.k}{how} {a} {b}: {accumulators}"
            case tc.MmaSync():
                words = ", ".join(args)
                return f"mma_sync {s.dtype.name} {words}: {self.registers(s.accumulators)}"
            case tc.WgmmaTile():
                accumulators = self.registers(s.accumulators)
                onto = f" onto {self.expr(s.accumulate, depth)}" if s.accumulate is not None else ""
                kind = f" of {s.b_dtype.name}" if s.b_dtype is not None else ""
                tile = f"{names[s.scratch]} {s.m} {s.n}{kind} {s.k_major}{onto}"
                return f"k_tile {tile}: {accumulators}"
            case tc.WgmmaMainloop():
                return self.mainloop(s, depth)
        # an omitted statement would make different kernels equal
        raise AssertionError(f"no statement of the kernel IR: {s!r}")

    def mainloop(self, s: tc.WgmmaMainloop, depth: int) -> str:
        pad = "  " * depth
        start, k_tiles = self.expr(s.k_start, depth), self.expr(s.k_tiles, depth)
        for o in (s.a, s.b):
            major = "k_major" if o.k_major else "mn_major"
            values = self.exprs((*o.extents, *o.strides, o.mn_offset, o.batch), depth)
            row = f" rows of {o.row_bytes}" if o.row_bytes != tc.SWIZZLE_BYTES else ""
            shared = f" shared by {o.sharing}" if o.sharing > 1 else ""
            tile = f"x{o.tile_mn}{row}{shared}"
            self.lines.append(f"{pad}{major} {self.names[o.buffer]}({values}) {tile}")
            if o.k_tile is not None and o.origin is not None:
                name = self.name(o.k_tile, "v")
                self.lines.append(f"{pad}  of k_tile {name} at {self.exprs(o.origin, depth)}")
            if o.im2col is not None:
                i = o.im2col
                values = self.exprs((*i.extents, *i.strides), depth)
                box = f"{i.lower} to {i.upper} by {i.steps}"
                self.lines.append(f"{pad}  im2col({values}) from {box}, k {self.name(i.k, 'v')}")
                self.lines += [f"{pad}  at {self.exprs(at, depth)}" for at in i.at]
        if s.scales is not None:
            lane, k_tile = (self.name(v, "v") for v in (s.scales.lane, s.scales.k_tile))
            factors = self.exprs(s.scales.rows, depth)
            self.lines.append(f"{pad}  scaled for lane {lane}, k_tile {k_tile} by {factors}")
        if s.metadata is not None:
            m = s.metadata
            values = self.exprs((m.first_byte, m.rows, m.row_bytes), depth)
            of = f"{self.names[m.buffer]}({values})"
            self.lines.append(f"{pad}sparse by {of} in {m.load_bytes}")
        head = "zero mainloop" if s.zero_init else "mainloop"
        ahead = f"+{k_tiles} by {s.stages} in {self.names[s.scratch]}"
        return f"{head} {start} {ahead}: {self.registers(s.accumulators)}"

    def operand(self, o: tc.MmaOperand | list[Register], depth: int) -> str:
        if isinstance(o, list):
            return f"({self.registers(o)})"
        rows = f" of {o.tile_mn}" if o.tile_mn else ""
        where = f"{self.names[o.buffer]}[{self.expr(o.offset, depth)}]"
        return f"{where}{'' if o.k_major else 't'}{rows}"

    def collective(self, s: BlockReduce | BlockScan, depth: int) -> str:
        head = f"block_reduce {self.registers(s.registers)}"
        if isinstance(s, BlockScan):
            head = f"block_scan {self.registers(s.registers)} from {self.exprs(s.initial, depth)}"
        left, right = self.variables(s.left), self.variables(s.right)
        self.lines.append(f"{'  ' * depth}{head}: ({left}), ({right})")
        self.scopes.append([])
        merged = self.exprs(s.merged, depth + 1)
        self.pop()
        return f"  {self.variables(s.results)} = {merged}"

    def pop(self) -> None:
        for thing in self.scopes.pop():
            del self.names[thing]
