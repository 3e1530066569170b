"""Emission context of a GPU kernel: thread indices, barriers, shared memory.

`ThreadContext` holds the expressions of one thread, `KernelContext` the kernel around them. Modules
that emit one kind of statement know these alone; the renderer has a table of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from numus import ir
from numus.codegen.llvm.builder import IRBuilder, TargetFeatures, Value, register_type
from numus.codegen.llvm.context import Lane
from numus.codegen.llvm.control_flow import Control
from numus.codegen.llvm.divergence import plan_lanes
from numus.codegen.llvm.expressions import Expressions
from numus.codegen.nvptx.pipeline_stages import CONSUMER_THREADS, Role
from numus.codegen.nvptx.warp import WARP

GLOBAL, SHARED, GENERIC = "ptr addrspace(1)", "ptr addrspace(3)", "ptr"
ACCESS_BYTES = 16  # widest access of a thread


@dataclass(slots=True)
class ThreadLane(Lane):
    """A stage of a lanes loop, as one thread sees it."""

    offsets: tuple[int, ...] = (0,)  # of the iterations handled at a time, from the first
    vector: int = 1  # consecutive, aligned iterations among them
    active: tuple[str, ...] = ()  # predicates of the iterations; empty: all
    slot: int = 0  # first slot of registers that hold several iterations


@dataclass(slots=True)
class ThreadContext(Expressions):
    """Expressions of one thread."""

    spaces: dict[ir.Buffer, str] = field(default_factory=dict)  # pointer types
    counters: set[ir.Expr] = field(default_factory=set)  # loop variables
    counter_bounds: dict[ir.Expr, int] = field(default_factory=dict)  # the largest they get
    block_indices: set[ir.Expr] = field(default_factory=set)  # variables of the grid
    halves: dict[str, tuple[str, int]] = field(default_factory=dict)  # (word, 1: upper half)
    streamed: set[ir.Buffer] = field(default_factory=set)  # loaded with an eviction policy

    @property
    def thread_lane(self) -> ThreadLane:
        assert isinstance(self.lane, ThreadLane)
        return self.lane

    def slots_of(self, register: ir.Register) -> list[str]:
        """The slots of the iterations handled now."""
        slots, lane = self.storage(register), self.thread_lane
        first = lane.slot if len(slots) > lane.unroll else 0
        return slots[first : first + lane.unroll]

    def load_slots(self, register: ir.Register) -> list[str]:
        """A thread's values of a register, over all iterations handled at a time."""
        ty = register_type(register.dtype)
        return [self.t.new(f"load {ty}, ptr {slot}") for slot in self.storage(register)]

    def assignment(self, register: ir.Register, v: Value) -> Iterable[tuple[str, str]]:
        is_lane = register.lanes and self.lane is not None
        slots = self.slots_of(register) if is_lane else self.storage(register)
        return zip(slots, per_iteration(v.names, len(slots)), strict=True)

    def bind_result(self, e: ir.Expr, name: str, vec: bool = False) -> None:
        """Bind the variable of a statement's result."""
        if vec:
            self.thread_lane.strides.known[e] = None
        self.bind(self.values, e, Value((name,), vec, self.depth))


def per_iteration(names: Sequence[str], count: int) -> Sequence[str]:
    """The names of `count` iterations; a single one is common to all."""
    return names if len(names) == count else tuple(names) * count


class KernelContext(Control):
    """A kernel under construction."""

    x: ThreadContext
    shapes: dict[ir.For, tuple[int, int]]  # of lanes loops: (vectors, width) per thread
    resident_loops: list[ir.For]
    issue_loads_first: bool  # resident loops issue all loads before any use
    cross_thread: frozenset[ir.Buffer]  # buffers that need barriers
    # set by the renderer's prologue
    lane: str
    warp: str
    cta_thread: str  # i32, in the CTA
    cta_rank: str  # i32, in the cluster
    thread: str  # i64, in the block
    warpgroup: str  # i64
    block: str  # i64
    is_first: str
    tensor_maps: dict[int, str]  # parameters, by id of a TmaTensor

    def __init__(
        self, kernel: ir.Kernel, target: TargetFeatures, capability: int, cta_threads: int
    ) -> None:
        self.kernel = kernel
        self.capability = capability
        self.t = IRBuilder(target)
        self.plan = plan_lanes(kernel, ACCESS_BYTES)
        self.block_threads = cta_threads // kernel.packed_blocks * kernel.cluster_size
        self.warps = self.block_threads // kernel.cluster_size // WARP  # of a block, in one CTA
        self.globals: list[str] = []
        self.loop_depth = 0  # serial loops
        self.cluster_waited = False
        self.flags_used = 0
        self.uniform_warpgroup = ""  # i32, warp-uniform; in consumer warps
        self.role: Role | None = None  # of a persistent GEMM
        self.group_barrier = 0  # named barrier of the threads of a role, in warp-specialised code

    def shared(self, type_: str, align: int = 16) -> str:
        """A static shared-memory variable."""
        name = f"@shared{len(self.globals)}"
        self.globals.append(f"{name} = internal addrspace(3) global {type_} undef, align {align}")
        return name

    def special_register(self, name: str) -> str:
        return self.t.call("i32", f"llvm.nvvm.read.ptx.sreg.{name}")

    def barrier(self) -> None:
        """CTA barrier; in warp-specialised code, of the consumer warps."""
        if self.group_barrier:
            self.asm(f"bar.sync {self.group_barrier}, {self.block_threads};", "~{memory}")
            return
        if self.role is None:
            self.t.call("void", "llvm.nvvm.barrier.cta.sync.aligned.all", ("i32", "0"))
            return
        assert self.role.is_consumer
        self.asm(f"bar.sync 1, {CONSUMER_THREADS};", "~{memory}")

    def warp_barrier(self) -> None:
        self.asm("bar.warp.sync -1;", "~{memory}")

    def asm(self, text: str, constraints: str, arguments: str = "") -> None:
        self.t.do(f'call void asm sideeffect "{text}", "{constraints}"({arguments})')

    def asm_results(
        self, ty: str, count: int, text: str, constraints: Sequence[str], arguments: Sequence[str]
    ) -> Iterator[str]:
        """Inline assembly with results of one type."""
        result = ty if count == 1 else "{ " + ", ".join([ty] * count) + " }"
        call = f'"{text}", "{",".join(constraints)}"({", ".join(arguments)})'
        whole = self.t.new(f"call {result} asm sideeffect {call}")
        if count == 1:
            yield whole
            return
        for i in range(count):
            yield self.t.new(f"extractvalue {result} {whole}, {i}")

    def asm_into(
        self, registers: list[ir.Register], text: str, constraints: list[str], arguments: list[str]
    ) -> None:
        """Inline assembly whose results are set to the registers."""
        t, ty = self.t, register_type(registers[0].dtype)
        slots = [self.x.storage(register)[0] for register in registers]
        results = self.asm_results(ty, len(slots), text, constraints, arguments)
        for slot, result in zip(slots, results, strict=True):
            t.do(f"store {ty} {result}, ptr {slot}")
        self.x.invalidate(registers)
