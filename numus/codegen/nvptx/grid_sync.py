"""What threads do in turn, and what blocks tell each other: additions, tallies, boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus import dtypes as dt
from numus import ir
from numus.codegen.llvm.builder import Value, register_type
from numus.codegen.nvptx import memory

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

ALL = ("i32", "-1")  # threads of a warp


def add(r: Renderer, s: ir.AtomicAdd) -> None:
    """What is read nowhere needs no answer from memory: LLVM makes reductions of these."""
    x, t = r.x, r.t
    values = x.value(s.value).names
    places = memory.pointers(x, s.buffer, s.index)
    count = max(len(values), len(places))
    ty, space = register_type(s.buffer.dtype), x.spaces[s.buffer]
    for i in range(count):
        place, value = places[i % len(places)], values[i % len(values)]
        t.do(f"atomicrmw add {space} {place}, {ty} {value} monotonic")
    x.forget((s.buffer,))


def tally(r: Renderer, s: ir.WarpMultisplit) -> None:
    """The first of the lanes with one digit counts for all of them."""
    x, t = r.x, r.t
    digit = x.uniform(s.bucket.cast(dt.uint32), "a digit")
    same = "-1"
    for bit in range(s.bits):
        masked = t.new(f"and i32 {digit}, {1 << bit}")
        is_set = t.new(f"icmp ne i32 {masked}, 0")
        votes = t.call("i32", "llvm.nvvm.vote.ballot.sync", ALL, ("i1", is_set))
        other = t.new(f"xor i32 {votes}, -1")
        like = t.new(f"select i1 {is_set}, i32 {votes}, i32 {other}")
        same = like if bit == 0 else t.new(f"and i32 {same}, {like}")
    below = t.new(f"and i32 {same}, {r.below()}")
    rank = t.call("i32", "llvm.ctpop.i32", ("i32", below))
    count = t.call("i32", "llvm.ctpop.i32", ("i32", same))
    first = t.call("i32", "llvm.cttz.i32", ("i32", same), ("i1", "true"))
    start = x.uniform(s.offset, "a place to count at")
    at = t.new(f"add i64 {start}, {t.new(f'zext i32 {digit} to i64')}")
    space = x.spaces[s.counters]
    place = t.new(f"getelementptr i32, {space} {x.buffers[s.counters]}, i64 {at}")
    leads = t.new(f"icmp eq i32 {below}, 0")
    counts, done, before = t.label("counts"), t.label("counted"), t.block
    t.branch(leads, counts, done)
    t.start(counts)
    old = t.new(f"atomicrmw add {space} {place}, i32 {count} monotonic")
    t.jump(done)
    t.start(done)
    old = t.new(f"phi i32 [ 0, %{before} ], [ {old}, %{counts} ]")
    old = t.call(
        *("i32", "llvm.nvvm.shfl.sync.idx.i32", ALL, ("i32", old), ("i32", first), ("i32", "31"))
    )
    x.forget((s.counters,))
    _name(r, s.rank, t.new(f"add i32 {old}, {rank}"))


def _name(r: Renderer, result: ir.Expr, name: str) -> None:
    r.x.thread_lane.growths.known[result] = None  # it differs from thread to thread
    r.x.remember(r.x.values, result, Value((name,), True, r.x.depth))


def _word(board: ir.Buffer) -> tuple[str, str]:
    """A register's letter in assembly, and the type of a word."""
    return ("l", "u64") if board.dtype.itemsize == 8 else ("r", "u32")


def post(r: Renderer, s: ir.SetFlag) -> None:
    x, t = r.x, r.t
    letter, kind = _word(s.flags)
    value = x.uniform(s.value, "a word")
    (place,) = memory.pointers(x, s.flags, s.index)
    text = f"st.relaxed.gpu.global.{kind} [$0], $1;"
    t.do(
        f'call void asm sideeffect "{text}", "l,{letter},~{{memory}}"'
        f"({x.spaces[s.flags]} {place}, {register_type(s.flags.dtype)} {value})"
    )


def await_(r: Renderer, s: ir.SpinWait) -> None:
    """Read all words, again and again until none is 0 of those that are counted."""
    x, t = r.x, r.t
    letter, kind = _word(s.flags)
    ty, size = register_type(s.flags.dtype), s.flags.dtype.itemsize
    results = [name for run in s.reads for name in run.results]
    n = len(results)
    lines = ["{ .reg .pred zero, counts;", "again: setp.ne.u32 zero, 0, 0;"]
    arguments: list[str] = []
    checks: list[str] = []
    for run in s.reads:
        (place,) = memory.pointers(x, s.flags, run.index)
        count = t.new(f"trunc i64 {x.uniform(run.count, 'a count of words')} to i32")
        at = n + len(arguments)
        arguments += [f"{x.spaces[s.flags]} {place}", f"i32 {count}"]
        for k in range(len(run.results)):
            to, away = len(checks), k * run.stride * size
            lines.append(f"setp.gt.s32 counts, ${at + 1}, {k}; mov.{kind} ${to}, 0;")
            lines.append(f"@counts ld.relaxed.gpu.global.{kind} ${to}, [${at} + {away}];")
            checks.append(
                f"setp.gt.s32 counts, ${at + 1}, {k}; setp.eq.and.{kind} counts, ${to}, 0, counts; "
                "or.pred zero, zero, counts;"
            )
    lines += [*checks, "@zero bra again; }"]
    constraints = ",".join([f"=&{letter}"] * n + ["l,r"] * len(s.reads) + ["~{memory}"])
    result = ty if n == 1 else "{ " + ", ".join([ty] * n) + " }"
    text = " ".join(lines)
    given = ", ".join(arguments)
    whole = t.new(f'call {result} asm sideeffect "{text}", "{constraints}"({given})')
    for i, name in enumerate(results):
        _name(r, name, whole if n == 1 else t.new(f"extractvalue {result} {whole}, {i}"))
