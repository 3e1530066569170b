"""Launch lists: kernels prepared once, encoded into one command buffer per run.

A step's pipeline, uniform array and bind groups are cached between runs, and renewed only where
sizes or buffers change. Buffers of a pool come back in ever new combinations: besides the
dispatches of whole runs, those of each step are found by its own addresses.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numus.codegen.wgsl.bindings import Variant
from numus.runtime.contract import LaunchList, LaunchStep, Values
from numus.runtime.locks import once
from numus.runtime.webgpu.context import GpuContext
from numus.runtime.webgpu.memory import OFFSET_BITS, GpuSession, Memory
from numus.runtime.webgpu.programs import Pipeline, pack, repack

_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_ALIGNMENT = 256  # bytes, of uniform arrays and of buffers in a merged binding
_SCRATCH_BYTES = 64 << 20  # of one launch, where fewer workers can do
_MAX_BIND_GROUPS = 64  # cached per step, and dispatches
_MAX_CACHED_RUNS = 16  # sets of addresses whose dispatches a launch list caches

Block = tuple[Memory, int]  # memory and an offset in bytes
Blocks = list[Block | None]  # of each buffer; None for scratch
Copy = tuple[Any, int, Any, int, int]  # source buffer and offset, target buffer and offset, bytes


def _aligned(nbytes: int, alignment: int = _ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


@dataclass(slots=True)
class _MergedBinding:
    """Buffers that share a binding: the offset of each memory in it, and its size."""

    buffers: tuple[int, ...]
    offsets: dict[int, int]  # by buffer id
    nbytes: int


class _Step:
    """A kernel of the list, with the state of its last run."""

    def __init__(self, step: LaunchStep, uniform_offset: int) -> None:
        self.step = step
        self.uniform_offset = uniform_offset  # of its array in the list's uniform buffer
        self.program = step.program
        self.buffers = self.program.kernel.buffers
        self.values: Sequence[Any] | None = None
        self.scalars: dict[str, int] = {}
        self.offsets: list[int] = []
        self.aliased: frozenset[int] = frozenset()
        self.segments: tuple[tuple[int, int], ...] = ()
        self.unaligned: frozenset[int] = frozenset()
        self.pipeline: Pipeline | None = None
        self.x = self.y = self.workers = 0
        self.scratch: list[int] = []  # bytes of each bound scratch buffer
        self.merged: list[_MergedBinding] = []
        self.bind_groups: dict[tuple[int, ...], Any] = {}  # by buffer ids
        self.slots = [ref[0] for ref in step.buffers if ref is not None]
        self.dispatches: dict[tuple[int, ...], _Dispatch] = {}  # by addresses, as configured

    @property
    def shape(self) -> tuple[Any, ...]:
        """Everything that its dispatch depends on, except memory."""
        return self.pipeline, self.x, self.y, self.workers, self.offsets

    @property
    def num_values(self) -> int:
        return len(self.program.slots) + 1

    def max_uniform_bytes(self) -> int:
        return _aligned(4 * (8 + len(self.buffers) + 2 * len(self.program.slots)))

    def blocks(self, slots: Sequence[Block]) -> Blocks:
        """The memory of each buffer; None for scratch."""
        found = [
            None if ref is None else (slots[ref[0]][0], slots[ref[0]][1] + ref[1])
            for ref in self.step.buffers
        ]
        return found + [None] * (len(self.buffers) - len(found))

    def set_values(self, values: Sequence[Any], context: GpuContext) -> None:
        """Choose the pipeline variant and the dispatch shape for a grid and scalars."""
        self.values = None  # until compiled: that may fail, now and the next time
        grid = int(values[0])
        self.scalars = dict(zip(self.program.slots, values[1:], strict=True))
        wide, unroll = self.program.variant_of(self.scalars)
        variant = Variant(wide, unroll, self.aliased, self.segments, self.unaligned)
        self.pipeline = self.program.pipeline(variant)
        shader, target = self.pipeline.shader, context.shader_target
        groups = -(-grid // shader.threads) if shader.per_thread else grid
        workers_per_group = shader.threads if shader.per_thread else 1
        scratch = [self.buffers[i].count(self.scalars) * nbytes for i, nbytes in shader.scratch]
        if scratch:
            affordable = max(1, _SCRATCH_BYTES // max(1, sum(scratch) * workers_per_group))
            groups = min(groups, affordable, target.max_workgroups)
        self.workers = groups * workers_per_group
        self.scratch = [nbytes * self.workers for nbytes in scratch]
        self.x = max(1, min(groups, target.max_workgroups))
        self.y = -(-groups // self.x)
        self.values = values

    def update_scalars(self, values: Sequence[Any], uniforms: bytearray) -> bool:
        """Write changed scalars in place; False where the grid or a size changed."""
        assert self.pipeline is not None
        assert self.values is not None
        if values[0] != self.values[0]:
            return False
        changed = {}
        for slot, old, new in zip(self.program.slots, self.values[1:], values[1:], strict=True):
            if old != new:
                if slot in self.program.size_slots:
                    return False
                changed[slot] = new
        self.values = values
        self.scalars.update(changed)
        scalars = self.pipeline.scalars
        repack([scalars[slot] for slot in changed], changed, uniforms, self.uniform_offset)
        return True


@dataclass(slots=True)
class _Staging:
    """Temporary memory of a step, and copies into it before and out of it after the dispatch."""

    temporaries: list[Memory]
    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)

    def keep(self, memory: Memory) -> Memory:
        """Keep memory until the run is submitted."""
        self.temporaries.append(memory)
        return memory

    def add(self, step: _Step, merged: _MergedBinding, blocks: Blocks, whole: Memory) -> None:
        """Copy all memory of a merged binding in, and the step's results back."""
        copied = set()
        sizes = step.step.nbytes
        for i in merged.buffers:
            block = blocks[i]
            assert block is not None
            memory, offset = block
            start = merged.offsets[memory.id]
            if memory.id not in copied:
                copied.add(memory.id)
                nbytes = _aligned(memory.nbytes, 4)
                self.before.append((memory.buffer, 0, whole.buffer, start, nbytes))
            if step.buffers[i].access == "write":
                nbytes = _aligned(sizes[i] if sizes is not None else memory.nbytes - offset, 4)
                self.after.append((whole.buffer, start + offset, memory.buffer, offset, nbytes))


_NO_STAGING = _Staging([])


class _Dispatch(NamedTuple):
    pipeline: Any
    bind_group: Any
    x: int
    y: int
    staging: _Staging


class WebGpuLaunchList(LaunchList):
    """Kernels with slots for memory and values that change from run to run."""

    def __init__(self, session: GpuSession, steps: Sequence[LaunchStep]) -> None:
        self._session = session
        self._context = session.context
        self._steps: list[_Step] = []
        nbytes = 0
        for step in steps:
            self._steps.append(_Step(step, nbytes))
            nbytes += self._steps[-1].max_uniform_bytes()
        self._uniforms = bytearray(nbytes)  # the arrays of all steps
        self._uniform_buffer: Any = None
        self._version = 0  # changes with a step's pipeline, dispatch shape or offsets
        self._values: Sequence[Any] = ()  # of the last run
        # By addresses: version and dispatches of a run; None for steps with temporary memory.
        self._runs: OrderedDict[tuple[int, ...], tuple[int, list[_Dispatch | None]]] = OrderedDict()

    def run(self, addresses: Sequence[int], values: Values) -> None:
        """Encode all steps and submit them."""
        context = self._session.alive()
        with self._session.lock:
            if context is not self._context:  # restarted after a loss
                self._context, self._uniform_buffer = context, None
                self._steps = [_Step(step.step, step.uniform_offset) for step in self._steps]
                self._runs.clear()
            try:
                self._run(addresses, values)
            except context.wgpu.GPUError as error:
                context.raise_if_lost(error)
                raise

    def _run(self, addresses: Sequence[int], values: Values) -> None:
        context, find = self._context, self._session.memory_of
        slots = [(find(address >> OFFSET_BITS), address & _OFFSET_MASK) for address in addresses]
        if self._uniform_buffer is None:
            usage = context.wgpu.BufferUsage
            self._uniform_buffer = context.device.create_buffer(
                size=max(_ALIGNMENT, len(self._uniforms)), usage=usage.UNIFORM | usage.COPY_DST
            )
            self._values = ()
        temporaries: list[Memory] = []
        dispatches, stale = self._dispatches(tuple(addresses), slots, values, temporaries)
        if not dispatches:
            return
        if stale:
            context.queue.write_buffer(self._uniform_buffer, 0, self._uniforms)
        context.queue.submit([self._encode(dispatches)])

    def _encode(self, dispatches: Sequence[_Dispatch]) -> Any:
        encoder = self._context.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        set_pipeline, set_bind_group, dispatch = _pass_encoder(compute)
        last = None

        def copy(copies: Sequence[Copy]) -> None:
            nonlocal compute, last, set_pipeline, set_bind_group, dispatch
            compute.end()
            for transfer in copies:
                encoder.copy_buffer_to_buffer(*transfer)
            compute, last = encoder.begin_compute_pass(), None
            set_pipeline, set_bind_group, dispatch = _pass_encoder(compute)

        for pipeline, bind_group, x, y, staging in dispatches:
            if staging.before:
                copy(staging.before)
            if pipeline is not last:
                set_pipeline(pipeline)
                last = pipeline
            set_bind_group(bind_group)
            dispatch(x, y)
            if staging.after:
                copy(staging.after)
        compute.end()
        return encoder.finish()

    def _with_values(self, values: Values) -> Iterator[tuple[_Step, Values]]:
        """Each step with its grid and scalars."""
        at = 0
        for step in self._steps:
            yield step, values[at : at + step.num_values]
            at += step.num_values

    def _dispatches(
        self,
        key: tuple[int, ...],
        slots: Sequence[Block],
        values: Values,
        temporaries: list[Memory],
    ) -> tuple[list[_Dispatch], bool]:
        """The dispatches of a run, and whether the uniform arrays changed."""
        updated = self._update_scalars(values)
        version, cached = self._runs.get(key, (None, []))
        if version == self._version and updated is not None:
            if None not in cached:
                return [d for d in cached if d is not None], updated
            active = [step for step, given in self._with_values(values) if given[0]]
            pairs = zip(active, cached, strict=True)
            return [d or self._dispatch(step, slots, temporaries) for step, d in pairs], updated
        stale = updated is not False  # some scalars may have been written before a size changed
        dispatches, retained = list[_Dispatch](), list[_Dispatch | None]()
        for step, given in self._with_values(values):
            if not given[0]:
                continue
            own = tuple([key[i] for i in step.slots])
            if updated is not None and (found := step.dispatches.get(own)):
                dispatches.append(found)
                retained.append(found)
                continue
            stale = self._configure(step, given, step.blocks(slots)) or stale
            dispatches.append(self._dispatch(step, slots, temporaries))
            if step.scratch or step.merged:
                retained.append(None)
                continue
            # not the staging itself: it keeps the temporaries of all steps of this run
            found = dispatches[-1]._replace(staging=_NO_STAGING)
            retained.append(found)
            if len(step.dispatches) >= _MAX_BIND_GROUPS:
                step.dispatches.clear()
            step.dispatches[own] = found
        self._values = list(values)
        self._runs[key] = (self._version, retained)
        if len(self._runs) > _MAX_CACHED_RUNS:
            self._runs.popitem(last=False)
        return dispatches, stale

    def _update_scalars(self, values: Values) -> bool | None:
        """Take over the scalars of a run; whether any changed, None where a size did."""
        if values == self._values:
            return False
        for step, given in self._with_values(values):
            if given == step.values or not (given[0] or step.values):
                continue  # unchanged, or an empty grid as before
            if not step.values or not step.update_scalars(given, self._uniforms):
                self._values = ()
                return None
        self._values = list(values)
        return True

    def _dispatch(
        self, step: _Step, slots: Sequence[Block], temporaries: list[Memory]
    ) -> _Dispatch:
        """The dispatch of a configured step."""
        staging = _Staging(temporaries)
        bind_group = self._bind_group(step, step.blocks(slots), staging)
        assert step.pipeline is not None
        return _Dispatch(step.pipeline.pipeline, bind_group, step.x, step.y, staging)

    def _configure(self, step: _Step, values: Sequence[Any], blocks: Blocks) -> bool:
        """Set a step's pipeline, offsets and uniform array; whether the array changed."""
        access = [b.access for b in step.buffers]
        memories = {i: block[0] for i, block in enumerate(blocks) if block is not None}
        written = {memory.id for i, memory in memories.items() if access[i] == "write"}
        read = {i: memory.id for i, memory in memories.items() if access[i] == "read"}
        aliased = frozenset(i for i, id_ in read.items() if id_ in written)
        limit = self._context.shader_target.max_binding_bytes
        sizes = {i: memory.buffer.size for i, memory in memories.items()}
        segments = tuple((i, -(-size // limit)) for i, size in sizes.items() if size > limit)
        unaligned = frozenset(
            i
            for i, width in step.program.vector_widths
            if (block := blocks[i]) and block[1] // step.buffers[i].dtype.itemsize % width
        )
        before = step.shape
        properties = aliased, segments, unaligned
        same = (step.values, step.aliased, step.segments, step.unaligned) == (values, *properties)
        if not same:
            step.aliased, step.segments, step.unaligned = properties
            step.set_values(values, self._context)
            if step.pipeline is not before[0]:
                step.bind_groups.clear()
        assert step.pipeline is not None
        if step.pipeline.shader.merged:
            step.merged = _merged_bindings(step.pipeline, blocks)
        offsets = [
            _binding_offset(step, i, block) // step.buffers[i].dtype.itemsize
            for i, block in enumerate(blocks)
            if block is not None
        ]
        if same and step.offsets == offsets:
            return False
        step.dispatches.clear()
        step.offsets = offsets
        self._version += step.shape != before
        data = pack(step.pipeline.shader, (0, step.x, step.workers, 0, *offsets), step.scalars)
        self._uniforms[step.uniform_offset : step.uniform_offset + len(data)] = data
        return True

    def _bind_group(self, step: _Step, blocks: Blocks, staging: _Staging) -> Any:
        assert step.pipeline is not None
        shader, allocate = step.pipeline.shader, self._session.pool.allocate
        bound = list(blocks)
        for (i, _), nbytes in zip(shader.scratch, step.scratch, strict=True):
            bound[i] = (staging.keep(allocate(nbytes)), 0)
        for merged in step.merged:
            whole = staging.keep(allocate(merged.nbytes))
            staging.add(step, merged, blocks, whole)
            for i in merged.buffers:
                bound[i] = (whole, 0)
        memories = [block[0] for i, *_ in shader.bound if (block := bound[i]) is not None]
        key = tuple(memory.id for memory in memories)
        found = step.bind_groups.get(key)
        if found is None:
            if len(step.bind_groups) >= _MAX_BIND_GROUPS:
                step.bind_groups.clear()
            limit = self._context.shader_target.max_binding_bytes
            entries = [_entry(0, self._uniform_buffer, step.uniform_offset, shader.words * 4)]
            for n, (memory, segment) in enumerate(zip(memories, shader.segments, strict=True), 1):
                start = segment * limit
                size = min(limit, memory.buffer.size - start)
                entries.append(_entry(n, memory.buffer, start, size))
            found = step.bind_groups[key] = self._context.device.create_bind_group(
                layout=step.pipeline.layout, entries=entries
            )
        return found


def _merged_bindings(pipeline: Pipeline, blocks: Blocks) -> list[_MergedBinding]:
    """The layout of each binding that several buffers share."""
    scratch = {i for i, _ in pipeline.shader.scratch}
    found = []
    for buffers in pipeline.shader.bound:
        if scratch.isdisjoint(buffers):
            merged = _MergedBinding(buffers, {}, 0)
            for i in buffers:
                block = blocks[i]
                assert block is not None
                if block[0].id not in merged.offsets:
                    merged.offsets[block[0].id] = merged.nbytes
                    merged.nbytes += _aligned(block[0].nbytes)
            found.append(merged)
    return found


def _binding_offset(step: _Step, which: int, block: Block) -> int:
    """The offset of a buffer in its binding, in bytes."""
    for merged in step.merged:
        if which in merged.buffers:
            return merged.offsets[block[0].id] + block[1]
    return block[1]


def _entry(binding: int, buffer: Any, offset: int, size: int) -> dict[str, Any]:
    return {"binding": binding, "resource": {"buffer": buffer, "offset": offset, "size": size}}


# -- command encoding -----------------------------------------------------------------------------

# Calls of wgpu-native without the Python binding's error check after each: a training step is a few
# hundred dispatches. Errors show when the pass is finished.
_PassEncoder = tuple[Callable[[Any], None], Callable[[Any], None], Callable[[int, int], None]]


@once
def _native() -> tuple[Any, ...] | None:
    """The functions of wgpu-native; None where this version lacks one."""
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    names = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")
    found = [getattr(api.lib, f"wgpuComputePassEncoder{name}", None) for name in names]
    return None if None in found else (*found, api.ffi.NULL)


def _pass_encoder(compute: Any) -> _PassEncoder:
    """(set_pipeline, set_bind_group, dispatch_workgroups) of a compute pass."""
    native = _native()
    handle = getattr(compute, "_internal", None)
    if native is None or handle is None:
        return (
            compute.set_pipeline,
            lambda group: compute.set_bind_group(0, group),
            compute.dispatch_workgroups,
        )
    set_pipeline, set_bind_group, dispatch, null = native
    return (
        lambda pipeline: set_pipeline(handle, pipeline._internal),
        lambda group: set_bind_group(handle, 0, group._internal, 0, null),
        lambda x, y: dispatch(handle, x, y, 1),
    )
