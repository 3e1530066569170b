"""Warp specialisation: each role is a branch of a block, some with registers of its own.

Named barriers: 1 is the consumers', 2 the producers', those from 3 on pass the turn from one
consumer warpgroup to the next.
"""

from __future__ import annotations

from numus import ir
from numus.codegen.nvptx import mbarrier
from numus.codegen.nvptx.context import KernelContext
from numus.ir import statements

_CONSUMERS, _PRODUCERS, _FIRST_TURN = 1, 2, 3


def roles(r: KernelContext, s: ir.WarpRoles) -> None:
    t = r.t
    barriers = range(len(s.barriers.arrivals))
    places = [_address(r, s.barriers, str(i)) for i in barriers]
    mbarrier.initialise(r, zip(places, s.barriers.arrivals, strict=True))
    threads = r.block_threads - ir.WARPGROUP
    # provably warp-uniform
    args = (("i32", "-1"), ("i32", r.warp), ("i32", "0"), ("i32", "31"))
    warp = t.call("i32", "llvm.nvvm.shfl.sync.idx.i32", *args)
    consume, produce, done = t.label("consume"), t.label("produce"), t.label("done")
    t.branch(t.new(f"icmp ult i32 {warp}, {threads // 32}"), consume, produce)
    kept = r.thread, r.warpgroup, r.block_threads
    t.start(consume)
    _set_registers(r, "inc", s.registers and s.registers[0])
    r.uniform_warpgroup = t.new(f"lshr i32 {warp}, 2")
    r.warpgroup = t.new(f"zext i32 {r.uniform_warpgroup} to i64")
    if any(isinstance(x, ir.WarpgroupTurn) for x in statements(s.consumers)):
        last = threads // ir.WARPGROUP - 1
        with t.conditional(t.new(f"icmp eq i32 {r.uniform_warpgroup}, {last}"), "last"):
            r.asm(f"bar.arrive {_FIRST_TURN}, {2 * ir.WARPGROUP};", "~{memory}")
    _role(r, s.consumers, _CONSUMERS, threads)
    t.jump(done)
    t.start(produce)
    _set_registers(r, "dec", s.registers and s.registers[1])
    r.thread = t.new(f"sub i64 {r.thread}, {threads}")
    _role(r, s.producers, _PRODUCERS, ir.WARPGROUP)
    t.jump(done)
    t.start(done)
    r.thread, r.warpgroup, r.block_threads = kept
    r.uniform_warpgroup = ""


def _set_registers(r: KernelContext, how: str, count: int | None) -> None:
    if count:
        r.asm(f"setmaxnreg.{how}.sync.aligned.u32 {count};", "~{memory}")


def _role(r: KernelContext, body: list[ir.Stmt], barrier: int, threads: int) -> None:
    r.group_barrier, r.block_threads = barrier, threads
    with r.x.scope("branch"):
        r.write_body(body)
    r.group_barrier = 0


def _address(r: KernelContext, barriers: ir.Mbarriers, index: str) -> str:
    base = r.t.new(f"ptrtoint ptr addrspace(3) {r.x.buffers[barriers.buffer]} to i32")
    if index.startswith("%"):
        index = r.t.new(f"trunc i64 {index} to i32")
    return r.t.new(f"add i32 {base}, {r.t.new(f'mul i32 {index}, 8')}")


def arrive(r: KernelContext, s: ir.Arrive) -> None:
    address = _address(r, s.barriers, r.x.uniform(s.index, "an mbarrier"))
    if s.copies:
        mbarrier.arrive_with_copies(r, address)
        return
    in_group = r.t.new(f"and i64 {r.thread}, {ir.WARPGROUP - 1}")
    mbarrier.arrive(r, address, r.t.new(f"icmp eq i64 {in_group}, 0"))


def await_phase(r: KernelContext, s: ir.AwaitPhase) -> None:
    address = _address(r, s.barriers, r.x.uniform(s.index, "an mbarrier"))
    parity = r.t.new(f"trunc i64 {r.x.uniform(s.parity, 'a parity')} to i32")
    mbarrier.wait(r, address, parity)


def turn(r: KernelContext, s: ir.WarpgroupTurn) -> None:
    t, groups = r.t, r.block_threads // ir.WARPGROUP
    which = r.uniform_warpgroup
    if not s.begins:
        last = t.new(f"icmp eq i32 {which}, {groups - 1}")
        which = t.new(f"select i1 {last}, i32 0, i32 {t.new(f'add i32 {which}, 1')}")
    barrier = t.new(f"add i32 {which}, {_FIRST_TURN}")
    how = "sync" if s.begins else "arrive"
    r.asm(f"bar.{how} $0, {2 * ir.WARPGROUP};", "r,~{memory}", f"i32 {barrier}")
