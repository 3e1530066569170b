"""Sums of tile products whose tiles an engine brings, as Hopper has it: TMA, mbarriers and wgmma.

One thread of a warp of its own orders tiles from the engine, as many stages ahead as there is room;
two groups of four warps multiply what has arrived, and tell when they are done with a stage. Each
stage has two barriers in shared memory: one that counts the bytes that have come, one that counts
who has finished with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numus.compiler import ir
from numus.compiler.ir import statements
from numus.compiler.render import ptx_memory
from numus.compiler.render.llvm_text import Value, register_type
from numus.compiler.render.ptx_units import (
    WORKERS,
    Tile,
    asm,
    layout_bits,
    multiply,
    share,
    with_sums,
)

if TYPE_CHECKING:
    from numus.compiler.render.ptx import Renderer

SHARED = ptx_memory.SHARED


def registers(kernel: ir.Kernel) -> int:
    """Registers that a thread needs for the sums of a kernel; 0 where it has no such sums."""
    found = [s for s in statements(kernel.body) if isinstance(s, ir.TileSum)]
    return max((len(s.sums) * (2 if _promotes(s) else 1) for s in found), default=0)


def _promotes(s: ir.TileSum) -> bool:
    """Whether slices are summed by themselves before they are added to the sums."""
    dtype = s.left.buffer.dtype
    return dtype.itemsize == 1 and dtype.kind == "float"


class _Stages:
    """Where the slices and the barriers of a sum lie in its scratch memory."""

    def __init__(self, r: Renderer, s: ir.TileSum) -> None:
        self.t, self.count = r.t, s.stages
        self.bytes_left = s.left.lines * ir.TILE_BYTES
        self.bytes_right = s.right.lines * ir.TILE_BYTES
        self.base = r.t.new(f"ptrtoint {SHARED} {r.x.buffers[s.scratch]} to i32")
        self.right = self._away(self.base, s.stages * self.bytes_left)
        self.full = self._away(self.right, s.stages * self.bytes_right)
        self.empty = self._away(self.full, 8 * s.stages)

    def _away(self, base: str, nbytes: int) -> str:
        return self.t.new(f"add i32 {base}, {nbytes}")

    def of(self, base: str, nbytes: int, number: str) -> str:
        """A stage's part of what begins at `base`."""
        return self.t.new(f"add i32 {base}, {self.t.new(f'mul i32 {number}, {nbytes}')}")

    def at(self, q: str) -> tuple[str, str]:
        """The stage of slice `q` (i32), and how often (odd or even) it has been filled before."""
        t = self.t
        turn = t.new(f"udiv i32 {q}, {self.count}")
        return t.new(f"urem i32 {q}, {self.count}"), t.new(f"and i32 {turn}, 1")


def tile_sum(r: Renderer, s: ir.TileSum) -> None:
    t, x = r.t, r.x
    slices = x.uniform(s.slices, "the slices of a sum")
    start = t.new(f"trunc i64 {x.uniform(s.start, 'the start of a sum')} to i32")
    places = [
        [t.new(f"trunc i64 {x.uniform(e, 'a tile')} to i32") for e in (o.first, o.matrix)]
        for o in (s.left, s.right)
    ]
    stages = _Stages(r, s)
    _prepare(r, stages)
    # every thread of a warp gets the same number, and is seen to
    warp = t.call(
        "i32",
        "llvm.nvvm.shfl.sync.idx.i32",
        *(("i32", "-1"), ("i32", r.warp), ("i32", "0"), ("i32", "31")),
    )
    consume, others = t.label("consume"), t.label("others")
    produce, done = t.label("produce"), t.label("done")
    t.branch(t.new(f"icmp ult i32 {warp}, {WORKERS // 32}"), consume, others)
    t.start(consume)
    x.push("branch")
    _consume(r, s, stages, warp, slices)
    x.pop()
    t.jump(done)
    t.start(others)
    orders = t.new(f"icmp eq i64 {r.thread}, {WORKERS}")
    t.branch(orders, produce, done)
    t.start(produce)
    x.push("branch")
    _produce(r, s, stages, start, places, slices)
    x.pop()
    t.jump(done)
    t.start(done)
    asm(r, "bar.warp.sync -1;", "~{memory}")
    x.forget(s.sums)


def _prepare(r: Renderer, stages: _Stages) -> None:
    """Barriers as they are before the first tile."""
    t = r.t
    first, ready = t.label("first"), t.label("ready")
    t.branch(r.is_first, first, ready)
    t.start(first)
    for base, count in ((stages.full, 1), (stages.empty, WORKERS // 128)):
        for number in range(stages.count):
            text = f"mbarrier.init.shared::cta.b64 [$0], {count};"
            asm(r, text, "r,~{memory}", f"i32 {t.new(f'add i32 {base}, {8 * number}')}")
    asm(r, "fence.mbarrier_init.release.cluster;", "~{memory}")
    t.jump(ready)
    t.start(ready)
    r.barrier()


def _wait(r: Renderer, barrier: str, phase: str) -> None:
    """Until a phase of a barrier is over."""
    text = (
        "{ .reg .pred over; again: mbarrier.try_wait.parity.shared::cta.b64 over, [$0], $1; "
        "@over bra passed; bra again; passed: }"
    )
    asm(r, text, "r,r,~{memory}", f"i32 {barrier}, i32 {phase}")


def _consume(r: Renderer, s: ir.TileSum, stages: _Stages, warp: str, slices: str) -> None:
    t, x = r.t, r.x
    half = t.new(f"lshr i32 {warp}, 2")
    speaks = t.new(f"and i64 {r.thread}, 127")
    speaks = t.new(f"icmp eq i64 {speaks}, 0")
    sides = (s.left, s.right)
    size = s.right.buffer.dtype.itemsize
    columns, away = share(s.left.lines, s.right.lines, s.right.along, size)
    bases = [
        t.new(f"add i32 {base}, {t.new(f'mul i32 {half}, {own}')}") if own else base
        for base, own in zip((stages.base, stages.right), away, strict=True)
    ]
    sizes = (stages.bytes_left, stages.bytes_right)
    promotes = _promotes(s)

    def slice_(q: str) -> None:
        number = t.new(f"trunc i64 {q} to i32")
        stage, phase = stages.at(number)
        _wait(r, stages.of(stages.full, 8, stage), phase)
        tiles = []
        for base, nbytes, side in zip(bases, sizes, sides, strict=True):
            address = stages.of(base, nbytes, stage)
            bits = t.new(f"lshr i32 {t.new(f'and i32 {address}, {(1 << 18) - 1}')}, 4")
            layout = layout_bits(side.along, ir.TILE_BYTES // side.buffer.dtype.itemsize)
            wide = t.new(f"or i64 {t.new(f'zext i32 {bits} to i64')}, {layout}")
            tiles.append((wide, side.along, side.buffer.dtype))
        pair = (tiles[0], tiles[1])
        count = len(s.sums)
        names = ",".join(f"${i}" for i in range(count))
        if promotes:
            _promoted(r, s, pair, columns, names)
            _leave(r, stages.of(stages.empty, 8, stage), speaks)
            return
        text, descriptors = multiply(r, pair, columns, names, 2 * count)
        with_sums(r, s.sums, text, descriptors)
        # the product before is done: its stage may be filled again
        with_sums(r, s.sums, "wgmma.wait_group.sync.aligned 1;", [])
        before, _ = stages.at(t.new(f"sub i32 {number}, 1"))
        later = t.new(f"icmp ne i32 {number}, 0")
        tells = t.new(f"and i1 {speaks}, {later}")
        _leave(r, stages.of(stages.empty, 8, before), tells)

    r.loop("0", slices, "1", slice_)
    with_sums(r, s.sums, "wgmma.wait_group.sync.aligned 0;", [])
    x.forget(s.sums)


def _leave(r: Renderer, barrier: str, condition: str) -> None:
    flag = r.t.new(f"zext i1 {condition} to i32")
    text = (
        "{ .reg .pred tells; setp.ne.b32 tells, $1, 0; "
        "@tells mbarrier.arrive.shared::cta.b64 _, [$0]; }"
    )
    asm(r, text, "r,r,~{memory}", f"i32 {barrier}, i32 {flag}")


def _promoted(
    r: Renderer, s: ir.TileSum, pair: tuple[Tile, Tile], columns: int, names: str
) -> None:
    """A slice by itself, added to the sums in full precision: the units keep fewer digits of sums
    of 8-bit floats than float32 has."""
    t, x = r.t, r.x
    count = len(s.sums)
    text, descriptors = multiply(r, pair, columns, names, count, fresh=True)
    text += " wgmma.wait_group.sync.aligned 0;"
    ty = register_type(s.sums[0].dtype)
    result = "{ " + ", ".join([ty] * count) + " }"
    constraints = ",".join([*["=&f"] * count, *["l"] * len(descriptors), "~{memory}"])
    arguments = ", ".join(f"i64 {name}" for name in descriptors)
    whole = t.new(f'call {result} asm sideeffect "{text}", "{constraints}"({arguments})')
    for i, register in enumerate(s.sums):
        (slot,) = x.storage(register)
        part = t.new(f"extractvalue {result} {whole}, {i}")
        old = t.new(f"load {ty}, ptr {slot}")
        t.do(f"store {ty} {t.new(f'fadd {ty} {old}, {part}')}, ptr {slot}")


def _produce(
    r: Renderer,
    s: ir.TileSum,
    stages: _Stages,
    start: str,
    places: list[list[str]],
    slices: str,
) -> None:
    t = r.t
    maps = [r.maps[id(o)] for o in (s.left, s.right)]
    for name in maps:
        asm(r, "prefetch.tensormap [$0];", "l,~{memory}", f"ptr {name}")
    sizes = (stages.bytes_left, stages.bytes_right)

    def slice_(q: str) -> None:
        number = t.new(f"trunc i64 {q} to i32")
        stage, phase = stages.at(number)
        _wait(r, stages.of(stages.empty, 8, stage), t.new(f"xor i32 {phase}, 1"))
        full = stages.of(stages.full, 8, stage)
        text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {sum(sizes)};"
        asm(r, text, "r,~{memory}", f"i32 {full}")
        bases = (stages.base, stages.right)
        sides = zip((s.left, s.right), bases, sizes, maps, places, strict=True)
        for side, base, nbytes, name, (first, matrix) in sides:
            wide = ir.TILE_BYTES // side.buffer.dtype.itemsize
            to = stages.of(base, nbytes, stage)
            if side.at is not None:
                r.x.remember(r.x.values, side.slice, Value((q,), False, r.x.depth))
                quick, slow = (
                    t.new(f"trunc i64 {r.x.uniform(e, 'a tile')} to i32") for e in side.at
                )
                k, first = (quick, slow) if side.along else (slow, quick)
            else:
                k = t.new(f"add i32 {start}, {t.new(f'mul i32 {number}, {wide}')}")
            if side.along:
                _order(r, name, to, (k, first, matrix), full)
                continue
            block = wide * ir.TILE_BYTES  # bytes of a block of lines across k
            for part in range(side.lines // wide):
                line = t.new(f"add i32 {first}, {part * wide}")
                _order(r, name, t.new(f"add i32 {to}, {part * block}"), (line, k, matrix), full)

    r.loop("0", slices, "1", slice_)


def _order(r: Renderer, name: str, to: str, place: tuple[str, str, str], barrier: str) -> None:
    text = (
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[$0], [$1, {$2, $3, $4}], [$5];"
    )
    where = ", ".join(f"i32 {x}" for x in place)
    asm(r, text, "r,l,r,r,r,r,~{memory}", f"i32 {to}, ptr {name}, {where}, i32 {barrier}")
