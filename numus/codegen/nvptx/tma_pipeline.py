"""Warp-specialised GEMM mainloop on Hopper: TMA, mbarriers and wgmma.

One thread of a producer warp issues TMA loads as many stages ahead as there are; two consumer
warpgroups multiply. Each stage has a full mbarrier, which counts bytes, and an empty one, which
counts warpgroups. In a persistent kernel the producer runs ahead into the next output tile, whose
first k tiles have arrived when the consumers finish their epilogue. Blocks of a cluster that have
the same tile of an operand load a part of it each, for all of them (multicast): an empty mbarrier
counts the warpgroups of all, and all blocks of a cluster have as many output tiles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from numus import ir
from numus.codegen.llvm.builder import Value, register_type
from numus.codegen.nvptx import analysis, cluster, mbarrier, thread_loops
from numus.codegen.nvptx.context import KernelContext
from numus.codegen.nvptx.pipeline_stages import CONSUMER_THREADS, PersistentStages, Role, Stages
from numus.codegen.nvptx.tensor_core.sparse_wgmma import MetadataLoader, sparse_k_tile_mma
from numus.codegen.nvptx.tensor_core.wgmma import (
    Tile,
    descriptor,
    k_tile_mma,
    warpgroup_tile,
    with_accumulators,
)
from numus.ir import statements

_CONSUMER_REGISTERS, _PRODUCER_REGISTERS = 240, 24  # setmaxnreg
_FIRST_TURN = 3  # named barrier by which a warpgroup tells the other that it has issued its MMAs


def persistent(r: KernelContext, loop: ir.For) -> None:
    """A persistent grid loop: one copy for the consumers, one for the producer."""
    t, x = r.t, r.x
    (s,) = _mainloops(loop.body)
    stop = x.uniform(loop.stop, "the size of the grid")
    step = t.new(f"zext i32 {r.special_register('nctaid.x')} to i64")
    stages = PersistentStages(t, s, x.buffers[s.scratch])
    _init_barriers(r, stages, sharing(s))
    block_threads = r.block_threads

    def tile_loop(role: Role, body: list[ir.Stmt]) -> None:
        r.role = role
        tile = dataclasses.replace(loop, body=body)
        r.loop(r.block, stop, step, lambda block: r.iteration(tile, block))
        r.role = None

    def consume() -> None:
        r.block_threads = CONSUMER_THREADS
        for register in s.accumulators:  # once: ptxas wants initialised registers
            ty = register_type(register.dtype)
            t.do(f"store {ty} {'0.0' if ty == 'float' else '0'}, ptr {x.storage(register)[0]}")
        if analysis.promotes(s):
            with t.conditional(t.new(f"icmp eq i32 {r.uniform_warpgroup}, 1"), "last"):
                r.asm(f"bar.arrive {_FIRST_TURN}, {2 * ir.WARPGROUP};", "~{memory}")
        tile_loop(Role(True, stages), loop.body)
        r.block_threads = block_threads

    def produce() -> None:
        tile_loop(Role(False, stages), _producer_part(loop.body))

    # setmaxnreg is for whole warpgroups
    _specialise(r, consume, produce, resize=block_threads - CONSUMER_THREADS == 128)
    if sharing(s) > 1:  # none ends before what others load for it, and tell it, has arrived
        cluster.barrier(r)


def sharing(s: ir.WgmmaMainloop) -> int:
    """Blocks of a cluster whose stages are filled together."""
    return max(s.a.sharing, s.b.sharing)


def _mainloops(body: list[ir.Stmt]) -> list[ir.WgmmaMainloop]:
    return [s for s in statements(body) if isinstance(s, ir.WgmmaMainloop)]


def _producer_part(body: list[ir.Stmt]) -> list[ir.Stmt]:
    """The statements of a block that its producer needs."""
    found: list[ir.Stmt] = []
    for s in body:
        if isinstance(s, (ir.Let, ir.WgmmaMainloop)):
            found.append(s)
        elif isinstance(s, ir.If) and _mainloops(s.body):
            found.append(ir.If(s.condition, _producer_part(s.body)))
    return found


def mainloop(r: KernelContext, s: ir.WgmmaMainloop) -> None:
    t, x = r.t, r.x
    if r.role is not None and r.role.is_consumer:
        _consume(r, s, r.role.stages, x.uniform(s.k_tiles, "the k tiles of a mainloop"))
        return
    k_tiles = x.uniform(s.k_tiles, "the k tiles of a mainloop")
    k_start = t.new(f"trunc i64 {x.uniform(s.k_start, 'the first k')} to i32")
    mn_batch = [
        [t.new(f"trunc i64 {x.uniform(e, 'a tile')} to i32") for e in (o.mn_offset, o.batch)]
        for o in (s.a, s.b)
    ]
    starts = [k_start if s.metadata is None else t.new(f"lshr i32 {k_start}, 1"), k_start]
    origins = [[k, *offsets] for k, offsets in zip(starts, mn_batch, strict=True)]
    if r.role is not None:
        _produce(r, s, r.role.stages, origins, k_tiles)
        return
    stages = Stages(t, s, x.buffers[s.scratch])
    _init_barriers(r, stages)
    produce = functools.partial(_produce, r, s, stages, origins, k_tiles)
    _specialise(r, lambda: _consume(r, s, stages, k_tiles), produce)
    x.invalidate(s.accumulators)


def _specialise(
    r: KernelContext, consume: Callable[[], None], produce: Callable[[], None], resize: bool = False
) -> None:
    """Branch by warp into consumers and the producer thread; `resize`: registers follow."""
    t, x = r.t, r.x
    # provably warp-uniform
    args = (("i32", "-1"), ("i32", r.warp), ("i32", "0"), ("i32", "31"))
    warp = t.call("i32", "llvm.nvvm.shfl.sync.idx.i32", *args)
    consumers, others = t.label("consume"), t.label("others")
    producer, done = t.label("produce"), t.label("done")
    t.branch(t.new(f"icmp ult i32 {warp}, {CONSUMER_THREADS // 32}"), consumers, others)
    t.start(consumers)
    if resize:
        r.asm(f"setmaxnreg.inc.sync.aligned.u32 {_CONSUMER_REGISTERS};", "~{memory}")
    with x.scope("branch"):
        r.uniform_warpgroup = t.new(f"lshr i32 {warp}, 2")
        consume()
    t.jump(done)
    t.start(others)
    if resize:
        r.asm(f"setmaxnreg.dec.sync.aligned.u32 {_PRODUCER_REGISTERS};", "~{memory}")
    t.branch(t.new(f"icmp eq i64 {r.thread}, {CONSUMER_THREADS}"), producer, done)
    t.start(producer)
    with x.scope("branch"):
        produce()
    t.jump(done)
    t.start(done)
    r.warp_barrier()


def _init_barriers(r: KernelContext, stages: Stages, blocks: int = 1) -> None:
    counts = ((stages.full, 1), (stages.empty, blocks * CONSUMER_THREADS // 128))
    mbarrier.initialise(
        r,
        [
            (r.t.new(f"add i32 {base}, {8 * stage}"), count)
            for base, count in counts
            for stage in range(stages.count)
        ],
        blocks,
    )


def _consume(r: KernelContext, s: ir.WgmmaMainloop, stages: Stages, k_tiles: str) -> None:
    t = r.t
    leader = t.new(f"icmp eq i64 {t.new(f'and i64 {r.thread}, 127')}, 0")

    def release(stage: str, condition: str) -> None:
        mbarrier.arrive(r, stages.address(stages.empty, 8, stage), condition, sharing(s))

    operands = (s.a, s.b)
    size = s.b.buffer.dtype.itemsize
    tile = (s.a.tile_mn, s.b.tile_mn, s.b.k_major, size, s.a.row_bytes)
    columns, strides = warpgroup_tile(*tile)
    bases = tuple(
        t.new(f"add i32 {base}, {t.new(f'mul i32 {r.uniform_warpgroup}, {stride}')}")
        if stride
        else base
        for base, stride in zip((stages.a, stages.b), strides, strict=True)
    )
    tile_bytes = (stages.a_bytes, stages.b_bytes)
    promotes = analysis.promotes(s)
    metadata = None if s.metadata is None else MetadataLoader(r, s, k_tiles)
    overlaps = not promotes and metadata is None  # wgmma of one k tile and of the next

    def k_tile(q: str) -> None:
        number = t.new(f"trunc i64 {q} to i32")
        stage, parity = stages.at(number)
        words = [] if metadata is None else metadata.words(q)
        mbarrier.wait(r, stages.address(stages.full, 8, stage), parity)
        tiles = []
        for base, nbytes, o in zip(bases, tile_bytes, operands, strict=True):
            address, dtype = stages.address(base, nbytes, stage), o.buffer.dtype
            tile_k = ir.SWIZZLE_BYTES // dtype.itemsize
            found = descriptor(t, address, o.k_major, tile_k, "i32", o.row_bytes)
            tiles.append((found, o.k_major, dtype))
        pair = (tiles[0], tiles[1])
        if promotes:
            _promote(r, s, pair, columns, q)
            release(stage, leader)
            stages.advance()
            return
        later = t.new(f"zext i1 {t.new(f'icmp ne i64 {q}, 0')} to i64") if s.zero_init else None
        count = len(s.accumulators)
        if words:
            text, inputs = sparse_k_tile_mma(r, pair, columns, count, words, later)
        else:
            text, inputs = k_tile_mma(t, pair, columns, count, later)
        with_accumulators(r, s.accumulators, text, inputs)
        if not overlaps:  # a wgmma reads the positions as it begins: their registers are taken
            with_accumulators(r, s.accumulators, "wgmma.wait_group.sync.aligned 0;", [])
            release(stage, leader)
            stages.advance()
            return
        # the previous wgmma is complete: its stage may be refilled
        with_accumulators(r, s.accumulators, "wgmma.wait_group.sync.aligned 1;", [])
        index = f"i32 {number}" if r.role is None else f"i64 {q}"
        releases = t.new(f"and i1 {leader}, {t.new(f'icmp ne {index}, 0')}")
        release(stages.previous(number), releases)
        stages.advance()

    r.loop("0", k_tiles, "1", k_tile)
    if r.role is None or overlaps:
        with_accumulators(r, s.accumulators, "wgmma.wait_group.sync.aligned 0;", [])
    if r.role is not None and overlaps:
        releases = t.new(f"and i1 {leader}, {t.new(f'icmp sgt i64 {k_tiles}, 0')}")
        release(stages.previous(""), releases)
    r.x.invalidate(s.accumulators)


def _promote(
    r: KernelContext, s: ir.WgmmaMainloop, pair: tuple[Tile, Tile], columns: int, q: str
) -> None:
    """FP8: each k tile is accumulated apart and added in float32, since the tensor cores keep fewer
    bits; scales are loaded while it is multiplied (as DeepGEMM does). Warpgroups of a persistent
    kernel issue their MMAs in turns, so that one multiplies while the other adds."""
    t, x = r.t, r.x
    count = len(s.accumulators)
    scales = None if s.scales is None else _scales(r, s.scales, q)
    text, operands = k_tile_mma(t, pair, columns, count, accumulate="")
    if r.role is not None:
        number, groups = count + len(operands), 2 * ir.WARPGROUP
        operands.append(("r", f"i32 {r.uniform_warpgroup}"))
        own, other = (
            f"@first bar.{how} {_FIRST_TURN + i}, {groups}; "
            f"@!first bar.{how} {_FIRST_TURN + 1 - i}, {groups};"
            for i, how in enumerate(("sync", "arrive"))
        )
        # barriers by name: those in registers would take all that there are
        turn = f"{{ .reg .pred first; setp.eq.u32 first, ${number}, 0; {own} }}"
        text = f"{turn} {text} {{ .reg .pred first; setp.eq.u32 first, ${number}, 0; {other} }}"
    text += " wgmma.wait_group.sync.aligned 0;"
    ty = register_type(s.accumulators[0].dtype)
    constraints = [*["=&f"] * count, *(c for c, _ in operands), "~{memory}"]
    results = r.asm_results(ty, count, text, constraints, [value for _, value in operands])
    for i, (register, part) in enumerate(zip(s.accumulators, results, strict=True)):
        (slot,) = x.storage(register)
        old = t.new(f"load {ty}, ptr {slot}")
        if scales is None:
            new = t.new(f"fadd {ty} {old}, {part}")
        else:
            factors = ((ty, part), (ty, scales[i // 2 % 2]), (ty, old))
            new = t.call(ty, "llvm.fma.f32", *factors)
        t.do(f"store {ty} {new}, ptr {slot}")


def _scales(r: KernelContext, scales: ir.KTileScales, q: str) -> list[str]:
    """The factors of a thread's two kinds of rows."""
    x = r.x
    threads = ir.const(CONSUMER_THREADS)
    lanes = ir.For(scales.lane, ir.const(0), threads, "lanes", [])
    with x.scope():
        thread_loops.enter(r, lanes, r.thread, "1", (0,), 1, 0)
        x.bind(x.values, scales.k_tile, Value((q,), False, x.depth))
        return [x.value(e).names[0] for e in scales.rows]


def _produce(
    r: KernelContext, s: ir.WgmmaMainloop, stages: Stages, origins: list[list[str]], k_tiles: str
) -> None:
    """TMA loads of all k tiles, from the (k, mn, batch) `origins` of A and B."""
    t = r.t
    maps = [r.tensor_maps[id(o)] for o in (s.a, s.b)]
    for name in maps:
        r.asm("prefetch.tensormap [$0];", "l,~{memory}", f"ptr {name}")
    tile_bytes = (stages.a_bytes, stages.b_bytes)

    def k_tile(q: str) -> None:
        number = t.new(f"trunc i64 {q} to i32")
        stage, parity = stages.at(number)
        empty = stages.address(stages.empty, 8, stage)
        mbarrier.wait(r, empty, t.new(f"xor i32 {parity}, 1"))
        full = stages.address(stages.full, 8, stage)
        text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {sum(tile_bytes)};"
        r.asm(text, "r,~{memory}", f"i32 {full}")
        bases = (stages.a, stages.b)
        operands = zip((s.a, s.b), bases, tile_bytes, maps, origins, strict=True)
        for o, base, nbytes, name, (k, mn, batch) in operands:
            row = o.row_bytes // o.buffer.dtype.itemsize
            to = stages.address(base, nbytes, stage)
            if o.im2col is not None:
                k = t.new(f"add i32 {k}, {t.new(f'mul i32 {number}, {row}')}")
                _load_pixels(r, o, o.im2col, (name, to, k, full))
                continue
            if o.origin is not None:
                r.x.bind(r.x.values, o.k_tile, Value((q,), False, r.x.depth))
                inner, outer = (
                    t.new(f"trunc i64 {r.x.uniform(e, 'a tile')} to i32") for e in o.origin
                )
                k, mn = (inner, outer) if o.k_major else (outer, inner)
            else:
                k = t.new(f"add i32 {k}, {t.new(f'mul i32 {number}, {row}')}")
            own = o.tile_mn // o.sharing  # of the tile
            if o.sharing > 1:
                rank = t.new(f"trunc i64 {t.new(f'and i64 {r.block}, {o.sharing - 1}')} to i32")
                mn = t.new(f"add i32 {mn}, {t.new(f'mul i32 {rank}, {own}')}")
                to = t.new(f"add i32 {to}, {t.new(f'mul i32 {rank}, {own * o.row_bytes}')}")
            if o.k_major:
                _tma_load(r, name, to, (k, mn, batch), full, o.sharing)
                continue
            block_bytes = row * ir.SWIZZLE_BYTES
            for part in range(own // row):
                at = t.new(f"add i32 {mn}, {part * row}")
                smem = t.new(f"add i32 {to}, {part * block_bytes}")
                _tma_load(r, name, smem, (at, k, batch), full, o.sharing)
        stages.advance()

    r.loop("0", k_tiles, "1", k_tile)


def _load_pixels(
    r: KernelContext, o: ir.TmaTensor, i: ir.Im2col, given: tuple[str, str, str, str]
) -> None:
    """TMA loads of a tile in im2col mode, given the tensor map, where it goes, its first index
    along k, and its barrier."""
    (tensor_map, smem, k, barrier), t, rank = given, r.t, len(i.extents)
    r.x.bind(r.x.values, i.k, Value((t.new(f"zext i32 {k} to i64"),), False, r.x.depth))
    part_bytes = o.row_bytes // o.buffer.dtype.itemsize * ir.SWIZZLE_BYTES
    kinds = ["i32"] * rank + ["i16"] * (rank - 2)
    names = [f"${n + 3}" for n in range(len(kinds))]
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col"
        f".mbarrier::complete_tx::bytes [$0], [$1, {{{', '.join(names[:rank])}}}], [$2], "
        f"{{{', '.join(names[rank:])}}};"
    )
    constraints = ",".join(["r,l,r", *("r" if ty == "i32" else "h" for ty in kinds), "~{memory}"])
    for part, at in enumerate(i.at):
        values = [r.x.uniform(e, "a tile") for e in at]
        to = t.new(f"add i32 {smem}, {part * part_bytes}")
        arguments = [f"i32 {to}", f"ptr {tensor_map}", f"i32 {barrier}"]
        for ty, v in zip(kinds, values, strict=True):
            arguments.append(f"{ty} {t.new(f'trunc i64 {v} to {ty}')}")
        r.asm(text, constraints, ", ".join(arguments))


def _tma_load(
    r: KernelContext, tensor_map: str, smem: str, coordinates: tuple[str, str, str], barrier: str,
    blocks: int = 1,
) -> None:  # fmt: skip
    """Into the same place of each block of the cluster."""
    many = ".multicast::cluster" if blocks > 1 else ""
    text = (
        f"cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes{many} "
        f"[$0], [$1, {{$2, $3, $4}}], [$5]{', $6' if blocks > 1 else ''};"
    )
    at = ", ".join(f"i32 {x}" for x in coordinates)
    arguments = f"i32 {smem}, ptr {tensor_map}, {at}, i32 {barrier}"
    if blocks > 1:
        arguments += f", i16 {(1 << blocks) - 1}"
    r.asm(text, f"r,l,r,r,r,r,{'h,' if blocks > 1 else ''}~{{memory}}", arguments)
