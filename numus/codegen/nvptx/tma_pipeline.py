"""Sums of tile products whose tiles an engine brings, as Hopper has it: TMA, mbarriers and wgmma.

One thread of a warp of its own orders tiles from the engine, as many stages ahead as there is room;
two groups of four warps multiply what has arrived, and tell when they are done with a stage. Each
stage has two barriers in shared memory: one that counts the bytes that have come, one that counts
who has finished with them. In a block that stays, the thread that orders goes on to the next tile
by itself: those that multiply find its slices there when they have stored their results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from numus import ir
from numus.codegen.llvm.builder import Value, register_type
from numus.codegen.nvptx import memory
from numus.codegen.nvptx.wgmma import (
    WORKERS,
    Tile,
    asm,
    layout_bits,
    multiply,
    share,
    with_sums,
)
from numus.ir import statements

if TYPE_CHECKING:
    from numus.codegen.nvptx.renderer import Renderer

SHARED = memory.SHARED
SHARED_SUMS = 64  # registers for them, so that two blocks have room on a unit
_MANY, _FEW = 240, 24  # registers of threads that multiply, where others leave them theirs


def registers(kernel: ir.Kernel) -> int:
    """Registers that a thread needs for the sums of a kernel; 0 where it has no such sums."""
    found = [s for s in statements(kernel.body) if isinstance(s, ir.WgmmaMainloop)]
    return max((len(s.accumulators) * (2 if _promotes(s) else 1) for s in found), default=0)


def _promotes(s: ir.WgmmaMainloop) -> bool:
    """Whether slices are summed by themselves before they are added to the sums."""
    dtype = s.a.buffer.dtype
    return dtype.itemsize == 1 and dtype.kind == "float"


class _Stages:
    """Where the slices and the barriers of a sum lie in its scratch memory."""

    def __init__(self, r: Renderer, s: ir.WgmmaMainloop) -> None:
        self.t, self.count = r.t, s.stages
        self.bytes_left = s.a.tile_mn * ir.SWIZZLE_BYTES
        self.bytes_right = s.b.tile_mn * ir.SWIZZLE_BYTES
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

    def before(self, q: str) -> str:
        """The stage of the slice before."""
        return self.at(self.t.new(f"sub i32 {q}, 1"))[0]

    def go_on(self) -> None:
        """To the next slice."""


class _Counted(_Stages):
    """The same where slices of one sum follow those of another: a thread counts stages."""

    def __init__(self, r: Renderer, s: ir.WgmmaMainloop) -> None:
        super().__init__(r, s)
        self.number, self.turn = r.t.alloca("i32"), r.t.alloca("i32")
        for slot in (self.number, self.turn):
            r.t.do(f"store i32 0, ptr {slot}")

    def at(self, q: str) -> tuple[str, str]:
        number, turn = (self.t.new(f"load i32, ptr {slot}") for slot in (self.number, self.turn))
        return number, turn

    def before(self, q: str) -> str:
        number, _ = self.at(q)
        first = self.t.new(f"icmp eq i32 {number}, 0")
        return self.t.new(f"select i1 {first}, i32 {self.count - 1}, i32 {self._away(number, -1)}")

    def go_on(self) -> None:
        t = self.t
        number, turn = self.at("")
        last = t.new(f"icmp eq i32 {number}, {self.count - 1}")
        after = t.new(f"select i1 {last}, i32 0, i32 {self._away(number, 1)}")
        t.do(f"store i32 {after}, ptr {self.number}")
        turn = t.new(f"xor i32 {turn}, {t.new(f'zext i1 {last} to i32')}")
        t.do(f"store i32 {turn}, ptr {self.turn}")


@dataclass(frozen=True, slots=True)
class Role:
    """What some threads of a block that stays are for."""

    multiplies: bool
    stages: _Counted


def stay(r: Renderer, loop: ir.For) -> None:
    """A block that takes one number of the grid after the other: a loop for those who multiply and
    store, and one for who orders tiles."""
    t, x = r.t, r.x
    (s,) = (s for s in statements(loop.body) if isinstance(s, ir.WgmmaMainloop))
    stop = x.uniform(loop.stop, "the size of the grid")
    blocks = t.call("i32", "llvm.nvvm.read.ptx.sreg.nctaid.x")
    step = t.new(f"zext i32 {blocks} to i64")
    stages = _Counted(r, s)
    _prepare(r, stages)
    group = r.group

    def through(role: Role, body: list[ir.Stmt]) -> None:
        r.role = role

        def one(g: str) -> None:
            r._count(loop, g)
            r._block(body)

        r.loop(r.block, stop, step, one)
        r.role = None

    def multiply() -> None:
        r.group = WORKERS
        for register in s.accumulators:  # once: assemblers want to see registers that have values
            ty = register_type(register.dtype)
            t.do(f"store {ty} {'0.0' if ty == 'float' else '0'}, ptr {x.storage(register)[0]}")
        through(Role(True, stages), loop.body)
        r.group = group

    def resize(how: str, count: int) -> None:
        if group - WORKERS == 128:  # threads that go together
            asm(r, f"setmaxnreg.{how}.sync.aligned.u32 {count};", "~{memory}")

    _apart(
        r,
        multiply,
        lambda: through(Role(False, stages), _orders(loop.body)),
        lambda: resize("inc", _MANY),
        lambda: resize("dec", _FEW),
    )


def _orders(body: list[ir.Stmt]) -> list[ir.Stmt]:
    """What of a block's work concerns who orders tiles."""
    found: list[ir.Stmt] = []
    for s in body:
        if isinstance(s, (ir.Let, ir.WgmmaMainloop)):
            found.append(s)
        elif isinstance(s, ir.If) and any(
            isinstance(y, ir.WgmmaMainloop) for y in statements(s.body)
        ):
            found.append(ir.If(s.condition, _orders(s.body)))
    return found


def meet(r: Renderer) -> None:
    """All that multiply are here."""
    assert r.role is not None
    assert r.role.multiplies
    asm(r, f"bar.sync 1, {WORKERS};", "~{memory}")


def tile_sum(r: Renderer, s: ir.WgmmaMainloop) -> None:
    if r.role is not None and r.role.multiplies:
        _consume(r, s, r.role.stages, r.x.uniform(s.k_tiles, "the slices of a sum"))
        return
    slices, start, places = _numbers(r, s)
    if r.role is not None:
        _produce(r, s, r.role.stages, start, places, slices)
        return
    stages = _Stages(r, s)
    _prepare(r, stages)
    _apart(
        r,
        lambda: _consume(r, s, stages, slices),
        lambda: _produce(r, s, stages, start, places, slices),
    )
    r.x.forget(s.accumulators)


def _numbers(r: Renderer, s: ir.WgmmaMainloop) -> tuple[str, str, list[list[str]]]:
    """How many slices there are, and where they begin."""
    t, x = r.t, r.x
    slices = x.uniform(s.k_tiles, "the slices of a sum")
    start = t.new(f"trunc i64 {x.uniform(s.k_start, 'the start of a sum')} to i32")
    places = [
        [t.new(f"trunc i64 {x.uniform(e, 'a tile')} to i32") for e in (o.mn_offset, o.batch)]
        for o in (s.a, s.b)
    ]
    return slices, start, places


def _nothing() -> None: ...


def _apart(
    r: Renderer,
    multiply: Callable[[], None],
    order: Callable[[], None],
    many: Callable[[], None] = _nothing,
    few: Callable[[], None] = _nothing,
) -> None:
    """Threads that do different things; before, there are `many` or `few` of them."""
    t, x = r.t, r.x
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
    many()
    x.push("branch")
    r.half = t.new(f"lshr i32 {warp}, 2")
    multiply()
    x.pop()
    t.jump(done)
    t.start(others)
    few()
    orders = t.new(f"icmp eq i64 {r.thread}, {WORKERS}")
    t.branch(orders, produce, done)
    t.start(produce)
    x.push("branch")
    order()
    x.pop()
    t.jump(done)
    t.start(done)
    asm(r, "bar.warp.sync -1;", "~{memory}")


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


def _consume(r: Renderer, s: ir.WgmmaMainloop, stages: _Stages, slices: str) -> None:
    t, x = r.t, r.x
    speaks = t.new(f"and i64 {r.thread}, 127")
    speaks = t.new(f"icmp eq i64 {speaks}, 0")

    def leave(number: str, condition: str) -> None:
        _leave(r, stages.of(stages.empty, 8, number), condition)

    sides = (s.a, s.b)
    size = s.b.buffer.dtype.itemsize
    columns, away = share(s.a.tile_mn, s.b.tile_mn, s.b.k_major, size)
    bases = tuple(
        t.new(f"add i32 {base}, {t.new(f'mul i32 {r.half}, {nbytes}')}") if nbytes else base
        for base, nbytes in zip((stages.base, stages.right), away, strict=True)
    )
    sizes = (stages.bytes_left, stages.bytes_right)
    promotes = _promotes(s)

    def slice_(q: str) -> None:
        number = t.new(f"trunc i64 {q} to i32")
        stage, turn = stages.at(number)
        _wait(r, stages.of(stages.full, 8, stage), turn)
        tiles = []
        for base, nbytes, side in zip(bases, sizes, sides, strict=True):
            address = stages.of(base, nbytes, stage)
            bits = t.new(f"lshr i32 {t.new(f'and i32 {address}, {(1 << 18) - 1}')}, 4")
            layout = layout_bits(side.k_major, ir.SWIZZLE_BYTES // side.buffer.dtype.itemsize)
            wide = t.new(f"or i64 {t.new(f'zext i32 {bits} to i64')}, {layout}")
            tiles.append((wide, side.k_major, side.buffer.dtype))
        pair = (tiles[0], tiles[1])
        count = len(s.accumulators)
        names = ",".join(f"${i}" for i in range(count))
        if promotes:
            _promoted(r, s, pair, columns, names)
            leave(stage, speaks)
            stages.go_on()
            return
        later = t.new(f"zext i1 {t.new(f'icmp ne i64 {q}, 0')} to i64") if s.zero_init else None
        text, descriptors = multiply(r, pair, columns, names, 2 * count, onto=later)
        with_sums(r, s.accumulators, text, descriptors)
        # the product before is done: its stage may be filled again
        with_sums(r, s.accumulators, "wgmma.wait_group.sync.aligned 1;", [])
        begun = f"i32 {number}" if r.role is None else f"i64 {q}"
        tells = t.new(f"and i1 {speaks}, {t.new(f'icmp ne {begun}, 0')}")
        leave(stages.before(number), tells)
        stages.go_on()

    r.loop("0", slices, "1", slice_)
    if r.role is None or not promotes:
        with_sums(r, s.accumulators, "wgmma.wait_group.sync.aligned 0;", [])
    if r.role is not None and not promotes:
        tells = t.new(f"and i1 {speaks}, {t.new(f'icmp sgt i64 {slices}, 0')}")
        leave(stages.before(""), tells)
    x.forget(s.accumulators)


def _leave(r: Renderer, barrier: str, condition: str) -> None:
    flag = r.t.new(f"zext i1 {condition} to i32")
    text = (
        "{ .reg .pred tells; setp.ne.b32 tells, $1, 0; "
        "@tells mbarrier.arrive.shared::cta.b64 _, [$0]; }"
    )
    asm(r, text, "r,r,~{memory}", f"i32 {barrier}, i32 {flag}")


def _promoted(
    r: Renderer, s: ir.WgmmaMainloop, pair: tuple[Tile, Tile], columns: int, names: str
) -> None:
    """A slice by itself, added to the sums in full precision: the units keep fewer digits of sums
    of 8-bit floats than float32 has."""
    t, x = r.t, r.x
    count = len(s.accumulators)
    text, descriptors = multiply(r, pair, columns, names, count, fresh=True)
    text += " wgmma.wait_group.sync.aligned 0;"
    ty = register_type(s.accumulators[0].dtype)
    result = "{ " + ", ".join([ty] * count) + " }"
    constraints = ",".join([*["=&f"] * count, *["l"] * len(descriptors), "~{memory}"])
    arguments = ", ".join(f"i64 {name}" for name in descriptors)
    whole = t.new(f'call {result} asm sideeffect "{text}", "{constraints}"({arguments})')
    for i, register in enumerate(s.accumulators):
        (slot,) = x.storage(register)
        part = t.new(f"extractvalue {result} {whole}, {i}")
        old = t.new(f"load {ty}, ptr {slot}")
        t.do(f"store {ty} {t.new(f'fadd {ty} {old}, {part}')}, ptr {slot}")


def _produce(
    r: Renderer,
    s: ir.WgmmaMainloop,
    stages: _Stages,
    start: str,
    places: list[list[str]],
    slices: str,
) -> None:
    t = r.t
    maps = [r.maps[id(o)] for o in (s.a, s.b)]
    for name in maps:
        asm(r, "prefetch.tensormap [$0];", "l,~{memory}", f"ptr {name}")
    sizes = (stages.bytes_left, stages.bytes_right)

    def slice_(q: str) -> None:
        number = t.new(f"trunc i64 {q} to i32")
        stage, turn = stages.at(number)
        _wait(r, stages.of(stages.empty, 8, stage), t.new(f"xor i32 {turn}, 1"))
        full = stages.of(stages.full, 8, stage)
        text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {sum(sizes)};"
        asm(r, text, "r,~{memory}", f"i32 {full}")
        bases = (stages.base, stages.right)
        sides = zip((s.a, s.b), bases, sizes, maps, places, strict=True)
        for side, base, nbytes, name, (first, matrix) in sides:
            wide = ir.SWIZZLE_BYTES // side.buffer.dtype.itemsize
            to = stages.of(base, nbytes, stage)
            if side.origin is not None:
                r.x.remember(r.x.values, side.k_tile, Value((q,), False, r.x.depth))
                quick, slow = (
                    t.new(f"trunc i64 {r.x.uniform(e, 'a tile')} to i32") for e in side.origin
                )
                k, first = (quick, slow) if side.k_major else (slow, quick)
            else:
                k = t.new(f"add i32 {start}, {t.new(f'mul i32 {number}, {wide}')}")
            if side.k_major:
                _order(r, name, to, (k, first, matrix), full)
                continue
            block = wide * ir.SWIZZLE_BYTES  # bytes of a block of lines across k
            for part in range(side.tile_mn // wide):
                line = t.new(f"add i32 {first}, {part * wide}")
                _order(r, name, t.new(f"add i32 {to}, {part * block}"), (line, k, matrix), full)
        stages.go_on()

    r.loop("0", slices, "1", slice_)


def _order(r: Renderer, name: str, to: str, place: tuple[str, str, str], barrier: str) -> None:
    text = (
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[$0], [$1, {$2, $3, $4}], [$5];"
    )
    where = ", ".join(f"i32 {x}" for x in place)
    asm(r, text, "r,l,r,r,r,r,~{memory}", f"i32 {to}, ptr {name}, {where}, i32 {barrier}")
