"""Atomic adds, warp multisplit by ballots, and flags in global memory with spin-waits."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import register_type
from numus.codegen.nvptx import memory
from numus.codegen.nvptx.context import GLOBAL, KernelContext, per_iteration

FULL_WARP = ("i32", "-1")


def atomic_add(r: KernelContext, s: ir.AtomicAdd) -> None:
    """Without a result; `red` in assembly, as LLVM writes `atom`, which returns one."""
    x, t = r.x, r.t
    dtype = s.buffer.dtype
    values = x.value(s.value).names
    pointers = memory.pointers(x, s.buffer, s.index)
    ty, space = register_type(dtype), x.spaces[s.buffer]
    op = "fadd" if dtype.is_floating else "add"
    kind = f"f{dtype.bits}" if dtype.is_floating else f"u{dtype.bits}"
    constraint = {"float": "f", "double": "d", "i64": "l"}.get(ty, "r")
    count = max(len(values), len(pointers))
    for pointer, value in zip(*(per_iteration(n, count) for n in (pointers, values)), strict=True):
        if space == GLOBAL:
            arguments = f"{space} {pointer}, {ty} {value}"
            r.asm(f"red.global.add.{kind} [$0], $1;", f"l,{constraint},~{{memory}}", arguments)
        else:
            t.do(f"atomicrmw {op} {space} {pointer}, {ty} {value} monotonic")
    x.invalidate((s.buffer,))


def multisplit(r: KernelContext, s: ir.WarpMultisplit) -> None:
    """Match by ballots; the first lane of each bucket adds for all of them."""
    x, t = r.x, r.t
    bucket = x.uniform(s.bucket.cast(dt.uint32), "a bucket")
    peers = "-1"
    for bit in range(s.bits):
        masked = t.new(f"and i32 {bucket}, {1 << bit}")
        is_set = t.new(f"icmp ne i32 {masked}, 0")
        votes = t.call("i32", "llvm.nvvm.vote.ballot.sync", FULL_WARP, ("i1", is_set))
        others = t.new(f"xor i32 {votes}, -1")
        same = t.new(f"select i1 {is_set}, i32 {votes}, i32 {others}")
        peers = same if bit == 0 else t.new(f"and i32 {peers}, {same}")
    lower_peers = t.new(f"and i32 {peers}, {r.special_register('lanemask.lt')}")
    rank = t.call("i32", "llvm.ctpop.i32", ("i32", lower_peers))
    count = t.call("i32", "llvm.ctpop.i32", ("i32", peers))
    leader = t.call("i32", "llvm.cttz.i32", ("i32", peers), ("i1", "true"))
    offset = x.uniform(s.offset, "the offset of counters")
    index = t.new(f"add i64 {offset}, {t.new(f'zext i32 {bucket} to i64')}")
    space = x.spaces[s.counters]
    pointer = t.new(f"getelementptr i32, {space} {x.buffers[s.counters]}, i64 {index}")
    is_leader = t.new(f"icmp eq i32 {lower_peers}, 0")
    add = f"atomicrmw add {space} {pointer}, i32 {count} monotonic"
    old = t.value_if(is_leader, "adds", lambda: t.new(add), "i32", "0")
    args = (FULL_WARP, ("i32", old), ("i32", leader), ("i32", "31"))
    old = t.call("i32", "llvm.nvvm.shfl.sync.idx.i32", *args)
    x.invalidate((s.counters,))
    x.bind_result(s.rank, t.new(f"add i32 {old}, {rank}"), vec=True)


def _word(flags: ir.Buffer) -> tuple[str, str]:
    """(register constraint, PTX type) of a flag word."""
    return ("l", "u64") if flags.dtype.itemsize == 8 else ("r", "u32")


def set_flag(r: KernelContext, s: ir.SetFlag) -> None:
    x = r.x
    constraint, kind = _word(s.flags)
    value = x.uniform(s.value, "a flag")
    (pointer,) = memory.pointers(x, s.flags, s.index)
    arguments = f"{x.spaces[s.flags]} {pointer}, {register_type(s.flags.dtype)} {value}"
    order = "release" if s.release else "relaxed"
    r.asm(f"st.{order}.gpu.global.{kind} [$0], $1;", f"l,{constraint},~{{memory}}", arguments)


def spin_wait(r: KernelContext, s: ir.SpinWait) -> None:
    """Read all words until none of those counted is 0."""
    x, t = r.x, r.t
    constraint, kind = _word(s.flags)
    ty, size = register_type(s.flags.dtype), s.flags.dtype.itemsize
    results = [name for read in s.reads for name in read.results]
    n, order = len(results), "acquire" if s.acquire else "relaxed"
    lines = ["{ .reg .pred zero, counts;", "again: setp.ne.u32 zero, 0, 0;"]
    arguments: list[str] = []
    checks: list[str] = []
    for read in s.reads:
        (pointer,) = memory.pointers(x, s.flags, read.index)
        count = t.new(f"trunc i64 {x.uniform(read.count, 'a count of flags')} to i32")
        at = n + len(arguments)
        arguments += [f"{x.spaces[s.flags]} {pointer}", f"i32 {count}"]
        for k in range(len(read.results)):
            to, offset = len(checks), k * read.stride * size
            lines.append(f"setp.gt.s32 counts, ${at + 1}, {k}; mov.{kind} ${to}, 0;")
            lines.append(f"@counts ld.{order}.gpu.global.{kind} ${to}, [${at} + {offset}];")
            checks.append(
                f"setp.gt.s32 counts, ${at + 1}, {k}; setp.eq.and.{kind} counts, ${to}, 0, counts; "
                "or.pred zero, zero, counts;"
            )
    text = " ".join([*lines, *checks, "@zero bra again; }"])
    constraints = [f"=&{constraint}"] * n + ["l,r"] * len(s.reads) + ["~{memory}"]
    values = r.asm_results(ty, n, text, constraints, arguments)
    for name, value in zip(results, values, strict=True):
        x.bind_result(name, value, vec=True)
