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
from numus.codegen.nvptx.tensor_core.sparse_wgmma import GROUP, MetadataLoader, sparse_k_tile_mma
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


class _Consumer:
    """A warpgroup's side of the stages: tiles that have arrived, and those to be filled again."""

    def __init__(self, r: KernelContext, s: ir.WgmmaMainloop, stages: Stages) -> None:
        t = r.t
        self.r, self.s, self.stages = r, s, stages
        self.leader = t.new(f"icmp eq i64 {t.new(f'and i64 {r.thread}, 127')}, 0")
        size = s.b.buffer.dtype.itemsize
        tile = (s.a.tile_mn, s.b.tile_mn, s.b.k_major, size, s.a.row_bytes)
        self.columns, strides = warpgroup_tile(*tile)
        self.bases = tuple(
            t.new(f"add i32 {base}, {t.new(f'mul i32 {r.uniform_warpgroup}, {stride}')}")
            if stride
            else base
            for base, stride in zip((stages.a, stages.b), strides, strict=True)
        )

    def tiles(self, number: str) -> tuple[Tile, Tile]:
        """Those of a k tile (i32), which have arrived."""
        t, stages = self.r.t, self.stages
        stage, parity = stages.at(number)
        mbarrier.wait(self.r, stages.address(stages.full, 8, stage), parity)
        found = []
        tile_bytes = (stages.a_bytes, stages.b_bytes)
        for base, nbytes, o in zip(self.bases, tile_bytes, (self.s.a, self.s.b), strict=True):
            address, dtype = stages.address(base, nbytes, stage), o.buffer.dtype
            tile_k = ir.SWIZZLE_BYTES // dtype.itemsize
            matrix = descriptor(t, address, o.k_major, tile_k, "i32", o.row_bytes)
            found.append((matrix, o.k_major, dtype))
        return found[0], found[1]

    def release(self, stage: str, condition: str = "true") -> None:
        """Tell the producer that a stage may be filled again."""
        leads = self.leader
        if condition != "true":
            leads = self.r.t.new(f"and i1 {leads}, {condition}")
        address = self.stages.address(self.stages.empty, 8, stage)
        mbarrier.arrive(self.r, address, leads, sharing(self.s))

    def wait(self, pending: int) -> None:
        """Wait for the wgmmas of all but the last k tiles."""
        text = f"wgmma.wait_group.sync.aligned {pending};"
        with_accumulators(self.r, self.s.accumulators, text, [])


def _consume(r: KernelContext, s: ir.WgmmaMainloop, stages: Stages, k_tiles: str) -> None:
    consumer = _Consumer(r, s, stages)
    if s.metadata is not None:
        _consume_sparse(r, s, consumer, k_tiles)
    elif analysis.promotes(s):
        _consume_promoted(r, s, consumer, k_tiles)
    else:
        _consume_dense(r, s, consumer, k_tiles)
    r.x.invalidate(s.accumulators)


def _consume_dense(
    r: KernelContext, s: ir.WgmmaMainloop, consumer: _Consumer, k_tiles: str
) -> None:
    """wgmmas of one k tile and of the next overlap."""
    t, stages = r.t, consumer.stages

    def k_tile(q: str) -> None:
        number = t.new(f"trunc i64 {q} to i32")
        pair = consumer.tiles(number)
        later = t.new(f"zext i1 {t.new(f'icmp ne i64 {q}, 0')} to i64") if s.zero_init else None
        text, inputs = k_tile_mma(t, pair, consumer.columns, len(s.accumulators), later)
        with_accumulators(r, s.accumulators, text, inputs)
        consumer.wait(1)  # the previous wgmma is complete: its stage may be refilled
        index = f"i32 {number}" if r.role is None else f"i64 {q}"
        later = t.new(f"icmp ne {index}, 0")
        consumer.release(stages.previous(number), later)
        stages.advance()

    r.loop("0", k_tiles, "1", k_tile)
    consumer.wait(0)
    if r.role is not None:
        consumer.release(stages.previous(""), t.new(f"icmp sgt i64 {k_tiles}, 0"))


def _consume_sparse(
    r: KernelContext, s: ir.WgmmaMainloop, consumer: _Consumer, k_tiles: str
) -> None:
    """Of a group of k tiles, wgmmas of one and of the next overlap. Those of a group are complete
    before the positions of the next are selected: a wgmma reads them as it begins."""
    t, stages, count = r.t, consumer.stages, len(s.accumulators)
    metadata = MetadataLoader(r, s, k_tiles)

    def multiply(group: str, place: int, words: list[str], *, overlaps: bool) -> None:
        number = t.new(f"trunc i64 {t.new(f'add i64 {group}, {place}')} to i32")
        pair, later = consumer.tiles(number), None
        if place == 0 and s.zero_init:
            later = t.new(f"zext i1 {t.new(f'icmp ne i64 {group}, 0')} to i64")
        text, inputs = sparse_k_tile_mma(r, pair, consumer.columns, count, words, place, later)
        with_accumulators(r, s.accumulators, text, inputs)
        consumer.wait(1 if overlaps and place < GROUP - 1 else 0)
        if overlaps and place > 0:
            consumer.release(stages.previous(number))
        if not overlaps or place == GROUP - 1:
            consumer.release(stages.at(number)[0])
        stages.advance()

    def group(q: str) -> None:
        words = metadata.take(q)
        for place in range(GROUP):
            multiply(q, place, words, overlaps=True)

    whole = t.new(f"and i64 {k_tiles}, {-GROUP}")
    r.loop("0", whole, str(GROUP), group)
    left = t.new(f"sub i64 {k_tiles}, {whole}")
    with t.conditional(t.new(f"icmp sgt i64 {left}, 0"), "part"):
        words = metadata.take(whole)
        for place in range(GROUP - 1):
            with t.conditional(t.new(f"icmp sgt i64 {left}, {place}"), "one"):
                multiply(whole, place, words, overlaps=False)
    if r.role is None:
        consumer.wait(0)


def _consume_promoted(
    r: KernelContext, s: ir.WgmmaMainloop, consumer: _Consumer, k_tiles: str
) -> None:
    """wgmmas of one k tile and additions of another warpgroup's overlap."""
    scales = None if s.scales is None else _ScaleLoader(r, s.scales, k_tiles)

    def k_tile(q: str) -> None:
        number = r.t.new(f"trunc i64 {q} to i32")
        _promote(r, s, consumer.tiles(number), consumer.columns, q, scales)
        consumer.release(consumer.stages.at(number)[0])
        consumer.stages.advance()

    r.loop("0", k_tiles, "1", k_tile)
    if r.role is None:
        consumer.wait(0)


def _promote(
    r: KernelContext,
    s: ir.WgmmaMainloop,
    pair: tuple[Tile, Tile],
    columns: int,
    q: str,
    scales: _ScaleLoader | None,
) -> None:
    """FP8: each k tile is accumulated apart and added in float32, since the tensor cores keep fewer
    bits; the next one's scales are loaded while it is multiplied. Warpgroups of a persistent
    kernel issue their MMAs in turns, so that one multiplies while the other adds."""
    t, x = r.t, r.x
    count = len(s.accumulators)
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
    ty = register_type(s.accumulators[0].dtype)
    constraints = [*["=&f"] * count, *(c for c, _ in operands), "~{memory}"]
    parts = list(r.asm_results(ty, count, text, constraints, [value for _, value in operands]))
    factors = [] if scales is None else scales.take(q)
    constraints = [*["=f"] * count, *map(str, range(count)), "~{memory}"]
    wait = "wgmma.wait_group.sync.aligned 0;"
    results = r.asm_results(ty, count, wait, constraints, [f"{ty} {part}" for part in parts])
    for i, (register, part) in enumerate(zip(s.accumulators, results, strict=True)):
        (slot,) = x.storage(register)
        old = t.new(f"load {ty}, ptr {slot}")
        if factors:
            args = ((ty, part), (ty, factors[i // 2 % 2]), (ty, old))
            new = t.call(ty, "llvm.fma.f32", *args)
        else:
            new = t.new(f"fadd {ty} {old}, {part}")
        t.do(f"store {ty} {new}, ptr {slot}")


class _ScaleLoader:
    """The factors of a thread's two kinds of rows, loaded a k tile ahead: a load that misses L1
    would otherwise hold up the MMAs behind it."""

    def __init__(self, r: KernelContext, scales: ir.KTileScales, k_tiles: str) -> None:
        self.r, self.scales = r, scales
        self.last = r.t.new(f"sub i64 {k_tiles}, 1")
        self.slots = [r.t.alloca("float") for _ in scales.rows]
        self._load("0")

    def take(self, q: str) -> list[str]:
        """Those of k tile `q`; of the next, or of the last one again, they are on their way."""
        t = self.r.t
        found = [t.new(f"load float, ptr {slot}") for slot in self.slots]
        args = (("i64", t.new(f"add i64 {q}, 1")), ("i64", self.last))
        self._load(t.call("i64", "llvm.smin.i64", *args))
        return found

    def _load(self, q: str) -> None:
        r, x = self.r, self.r.x
        threads = ir.const(CONSUMER_THREADS)
        lanes = ir.For(self.scales.lane, ir.const(0), threads, "lanes", [])
        with x.scope():
            thread_loops.enter(r, lanes, r.thread, "1", (0,), 1, 0)
            x.bind(x.values, self.scales.k_tile, Value((q,), False, x.depth))
            for slot, e in zip(self.slots, self.scales.rows, strict=True):
                r.t.do(f"store float {x.value(e).names[0]}, ptr {slot}")


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
