"""Schedules for other sizes: order, waves and memory of a plan's kernels, reused.

Which kernel has to wait for which depends on a structure and not on its sizes. A plan for other
sizes takes over the order of an earlier one; its kernels get numbers from lowering templates, and
temporaries move in the arena, above those that they were placed above before. That serves plans
whose temporaries stay in the L2 cache: beyond it, sizes decide about order, in-place results and
rematerialisation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from numus.compiler.fused_graph import FusedGraph
from numus.compiler.graph.value import Value
from numus.compiler.group_templates import Positions
from numus.compiler.launch_plan import LaunchArguments, LaunchPlan, ScheduledPlan
from numus.compiler.lower import templates
from numus.compiler.lower.templates import Numbers, Template
from numus.compiler.schedule.memory_plan import ALIGNMENT, aligned, plan_memory
from numus.ir.symbolic_size import SymbolicSize
from numus.runtime.contract import LaunchList, LaunchStep, Runtime

_MAX_SHARED = 8  # launch lists of a schedule, by the kernels that serve a size

# For the first of equal groups, by number, its template and the numbers of its kernels.
Lowered = dict[int, tuple[Template, Numbers]]


class _Step(NamedTuple):
    """A kernel of a schedule."""

    first: int  # the number of the first group equal to its own
    number: int  # among the kernels of the group
    constants: dict[int, int]  # the plan's numbers of constants among its group's values
    buffers: list[int]  # numbers of memories
    wave: int
    concurrent: bool


class _Number(NamedTuple):
    """A number, or the position of one."""

    position: int | None
    number: int

    def of(self, numbers: Numbers) -> int:
        return self.number if self.position is None else numbers[self.position]


class _Memory(NamedTuple):
    """A buffer of a schedule: its slot (None in the arena), and what its size follows from."""

    slot: int | None
    intermediate: tuple[int, int] | None  # of a group, numbered
    factor: int  # bytes, and
    extents: tuple[int, ...]  # positions of numbers, which multiply them


class _SharedLaunches(NamedTuple):
    """A launch list for every size that the same kernels serve: a slot for each memory, whatever
    its place in the arena, then the scratch buffers of each kernel, then the bytes between two
    workers of those that have some."""

    prepared: LaunchList
    scalar_patches: list[tuple[int, int, str]]


class ResizedPlan(LaunchPlan):
    """A plan for other sizes.

    Args:
        like: the schedule.
        numbers, lowered: of the fused graph and its kernels.
    """

    _shared: _SharedLaunches
    _offsets: list[int]  # in the arena, of slots behind those of the results
    _pitches: list[int]

    def __init__(
        self, runtime: Runtime[Any], like: ScheduleTemplate, numbers: Numbers, lowered: Lowered
    ) -> None:
        self.runtime = runtime
        self.leaf_count = like.leaf_count
        self.saved_for_backward = like.saved_for_backward
        self._made_from = like, numbers, lowered

    def share(self, shared: _SharedLaunches, offsets: list[int], pitches: list[int]) -> None:
        """Run by a launch list of several sizes; one of its own is made where it is asked for."""
        self._shared, self._offsets, self._pitches = shared, offsets, pitches
        self.scalar_patches = shared.scalar_patches
        self.allocations = [*self.result_bytes, *([self.arena] if self.arena else [])]

    def _prepare_own(self) -> None:
        like, numbers, lowered = self._made_from
        placed = like.placed(numbers, lowered, self.runtime)
        assert placed is not None
        self._prepare(like.launches(placed, self.runtime))

    def __getattr__(self, name: str) -> Any:
        """Launches of its own, for these sizes alone."""
        if name not in ("launches", "prepared"):
            raise AttributeError(f"a plan has no {name}")
        self._prepare_own()
        return self.__dict__[name]

    def run(self, leaves: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        if "prepared" in self.__dict__:
            return super().run(leaves, constants)
        memories, addresses, values = self.arguments(leaves, constants)
        if self.arena:
            arena = addresses.pop()
            addresses += [arena + offset for offset in self._offsets]
            addresses += self._pitches
        self._shared.prepared.run(addresses, values)
        return [memories[slot] for slot, _ in self.outputs]


class _Placed(NamedTuple):
    """The numbers of a schedule in one size."""

    arguments: dict[int, Any]  # of each group's kernels, as `Template.arguments` gives them
    sizes: list[int]  # bytes of each memory
    starts: list[int]  # of those in the arena, and then of the scratch memory of waves
    arena: int  # bytes
    pitch: list[int]  # of each wave, the scratch bytes of a worker


class ScheduleTemplate:
    """Order, waves and memory of a plan, as functions of its sizes.

    Args:
        plan: of a fused graph with numbers.
        fused: the same with symbolic sizes.
        lowered: the templates of the plan's kernels.
    """

    def __init__(
        self, plan: ScheduledPlan, fused: FusedGraph, position: Positions, lowered: Lowered
    ) -> None:
        self.leaf_count, self.saved_for_backward = plan.leaf_count, plan.saved_for_backward
        self._workers = plan.workers
        self._steps: list[_Step] = []
        self._memories: list[_Memory] = []
        self._shared: dict[tuple[Any, ...], _SharedLaunches] = {}  # by programs
        self._serving: dict[tuple[Template, ...], _SharedLaunches] = {}
        self._collect(plan, fused, position, lowered)

        def symbolic(n: Any) -> _Number:
            named = n.__class__ is SymbolicSize
            return _Number(position[n.name] if named else None, 0 if named else n)

        self._outputs = [
            (slot, symbolic(view.offset), tuple(map(symbolic, view.strides)))
            for (slot, _), view in zip(plan.outputs, fused.views, strict=True)
        ]
        results = {m.slot: i for i, m in enumerate(self._memories) if m.slot is not None}
        self._results = [results[plan.leaf_count + i] for i in range(len(plan.result_bytes))]
        self._kernels = [(first, len(lowered[first][0].steps)) for first in lowered]

    @staticmethod
    def supports(plan: ScheduledPlan) -> bool:
        """There are kernels, those that groups were lowered to at first, all of them."""
        steps = {id(step) for job in plan.jobs for step in job}
        complete = len(plan.jobs) == len(plan.groups) and len(plan.steps) == len(steps) > 0
        return complete and all(id(step) in steps for step in plan.steps)

    def _collect(
        self, plan: ScheduledPlan, fused: FusedGraph, position: Positions, lowered: Lowered
    ) -> None:
        """Steps, memories, and where these lie relative to each other."""
        groups = list(fused.equal_groups.values())
        constants = [
            {i: v.params[-1] for i, v in enumerate(values) if v.op == "constant"}
            for _, values in groups
        ]
        origin = {id(s): (i, k) for i, job in enumerate(plan.jobs) for k, s in enumerate(job)}
        number: dict[Value, int] = {}
        lives: list[list[int]] = []  # the first and the last wave of each memory
        left = iter(plan.steps)
        waves = []
        for w, count in enumerate(plan.waves):
            wave = [next(left) for _ in range(count)]
            waves.append([(step, ()) for step in wave])
            for n, step in enumerate(wave):
                i, k = origin[id(step)]
                first, values = groups[i]
                for v, at in zip(step.buffers, lowered[first][0].steps[k].buffers, strict=True):
                    if v not in number:
                        number[v] = len(number)
                        lives.append([w, w])
                        slot = None if v in plan.offset else plan.slot[v]
                        itemsize = v.dtype.itemsize
                        if at < len(values):
                            made = _memory(slot, itemsize, values[at].shape, position)
                        else:
                            made = _Memory(slot, (first, at - len(values)), itemsize, ())
                        self._memories.append(made)
                    lives[number[v]][1] = w
                used = [number[v] for v in step.buffers]
                self._steps.append(_Step(first, k, constants[i], used, w, n > 0))
        external = {v for v in plan.slot if v not in plan.offset}
        found = plan_memory(waves, external, self._workers)
        arena = [v for v in number if v in found.offset]
        self._in_arena = [number[v] for v in arena]
        self._with_scratch = [w for w, (_, size) in enumerate(found.scratch) if size]
        starts = [found.offset[v] for v in arena]
        starts += [found.scratch[w][0] for w in self._with_scratch]
        spans = [tuple(lives[number[v]]) for v in arena] + [(w, w) for w in self._with_scratch]
        self._below = _placed_below(starts, spans)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shared": {}, "_serving": {}}  # of this process

    def plan(self, numbers: Numbers, lowered: Lowered, runtime: Runtime[Any]) -> ResizedPlan | None:
        """The plan of the fused graph with these numbers; None where it has to be scheduled by
        itself."""
        placed = self.placed(numbers, lowered, runtime)
        if placed is None:
            return None
        sizes = placed.sizes
        out = ResizedPlan(runtime, self, numbers, lowered)
        out.arena, out.result_bytes = placed.arena, [sizes[i] for i in self._results]
        out.outputs = [
            (slot, (offset.of(numbers), tuple([n.of(numbers) for n in strides])))
            for slot, offset, strides in self._outputs
        ]
        serving = tuple([template for template, _ in lowered.values()])
        shared = self._serving.get(serving) or self._shared_launches(placed.arguments, runtime)
        if shared is None:
            out._prepare(self.launches(placed, runtime))
            return out
        if len(self._serving) >= _MAX_SHARED and serving not in self._serving:
            self._serving = {}
        self._serving[serving] = shared
        values = out.values = list[Any]()
        offsets = placed.starts[: len(self._in_arena)]
        pitches = []
        scratch = self._scratch_starts(placed)
        for first, k, _, _, wave, _ in self._steps:
            _, grid, own_scratch, scalars = placed.arguments[first][0][k]
            values.append(grid)
            values += scalars
            if own_scratch:
                offsets += _scratch_offsets(scratch[wave], own_scratch)
                pitches.append(placed.pitch[wave])
        for at, _, _ in shared.scalar_patches:
            values[at] = 0
        out.share(shared, offsets, pitches)
        return out

    def placed(self, numbers: Numbers, lowered: Lowered, runtime: Runtime[Any]) -> _Placed | None:
        """What kernels are given and where memories lie; None where that cannot follow from this
        schedule."""
        arguments = {i: template.arguments(found) for i, (template, found) in lowered.items()}
        sizes = []
        for _, intermediate, factor, extents in self._memories:
            if intermediate is not None:
                first, n = intermediate
                factor *= math.prod(arguments[first][1][n])
            for at in extents:
                factor *= numbers[at]
            sizes.append(factor)
        if 0 in sizes:  # a group without elements is not computed
            return None
        pitch, blocks = self._scratch(arguments)
        if [w for w, size in enumerate(pitch) if size] != self._with_scratch:
            return None
        spaces = [sizes[i] for i in self._in_arena]
        spaces += [min(self._workers, blocks[w]) * pitch[w] for w in self._with_scratch]
        starts, total = self._arena_offsets(spaces)
        if total > runtime.target.l2_bytes:
            return None
        return _Placed(arguments, sizes, starts, total, pitch)

    def _programs(self, arguments: dict[int, Any], runtime: Runtime[Any]) -> list[Any]:
        """The programs of all groups, one group after the other."""
        kernels = [step.kernel for first, _ in self._kernels for step in arguments[first][0]]
        return list(runtime.compile_all(kernels))

    def _program_of_step(self, programs: Sequence[Any]) -> Iterator[Any]:
        left = iter(programs)
        found = {(i, k): next(left) for i, count in self._kernels for k in range(count)}
        return iter([found[step.first, step.number] for step in self._steps])

    def _scratch_starts(self, placed: _Placed) -> dict[int, int]:
        """Where the scratch memory of waves lies in the arena."""
        starts = placed.starts[len(self._in_arena) :]
        return dict(zip(self._with_scratch, starts, strict=True))

    def launches(self, placed: _Placed, runtime: Runtime[Any]) -> list[LaunchArguments]:
        """The launches of one size."""
        arguments, sizes, starts, _, pitch = placed
        slot = self.leaf_count + len(self._results)
        places = [(m.slot or 0, 0) for m in self._memories]
        for i, start in zip(self._in_arena, starts, strict=False):
            places[i] = slot, start
        scratch = self._scratch_starts(placed)
        programs = self._program_of_step(self._programs(arguments, runtime))
        out = []
        for first, k, constants, buffers, wave, concurrent in self._steps:
            _, grid, own_scratch, scalars = arguments[first][0][k]
            out.append(
                LaunchArguments(
                    next(programs),
                    grid,
                    templates.with_constants(scalars, constants) if constants else scalars,
                    [places[i] for i in buffers],
                    [sizes[i] for i in buffers],
                    own_scratch,
                    concurrent,
                    (scratch[wave], pitch[wave]) if own_scratch and self._workers else None,
                )
            )
        return out

    def _shared_launches(
        self, arguments: dict[int, Any], runtime: Runtime[Any]
    ) -> _SharedLaunches | None:
        """The launch list of these kernels for all sizes; None where launches are made for one."""
        programs = self._programs(arguments, runtime)
        key = tuple(programs)
        found = self._shared.get(key)
        if found is not None:
            return found
        of_step = self._program_of_step(programs)
        own = self.leaf_count + len(self._results)  # the next slot that is of this schedule
        slots = [m.slot for m in self._memories]
        for i in self._in_arena:
            slots[i], own = own, own + 1
        given = [arguments[step.first][0][step.number] for step in self._steps]
        pitch_slot = own + sum([len(step.scratch) for step in given])
        steps: list[LaunchStep] = []
        patches: list[tuple[int, int, str]] = []
        at = 0  # among the values
        for step, (_, _, scratch, scalars) in zip(self._steps, given, strict=True):
            places = [slots[i] or 0 for i in step.buffers]
            places += range(own, own + len(scratch))
            own += len(scratch)
            buffers = _starts(tuple(places))
            at_slot = pitch_slot if scratch else None
            pitch_slot += bool(scratch)
            given_to = (next(of_step), buffers)
            steps.append(LaunchStep(*given_to, concurrent=step.concurrent, pitch_slot=at_slot))
            scalars = templates.with_constants(scalars, step.constants)
            patches += [(at + 1 + i, *s) for i, s in enumerate(scalars) if s.__class__ is tuple]
            at += 1 + len(scalars)
        prepared = runtime.prepare_unsized(steps, pitch_slot)
        if prepared is None:
            return None
        if len(self._shared) >= _MAX_SHARED:
            self._shared = {}
        self._shared[key] = _SharedLaunches(prepared, patches)
        return self._shared[key]

    def _scratch(self, arguments: dict[int, Any]) -> tuple[list[int], list[int]]:
        """For each wave the scratch bytes of a worker, and its blocks."""
        count = self._steps[-1].wave + 1
        pitch, blocks = [0] * count, [0] * count
        for first, k, _, _, wave, _ in self._steps:
            _, grid, scratch, _ = arguments[first][0][k]
            blocks[wave] += grid
            if scratch:
                pitch[wave] = max(pitch[wave], sum(map(aligned, scratch)))
        return pitch, blocks

    def _arena_offsets(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Offsets in the arena, each above those that are live together with it and were below;
        and its bytes."""
        ends = [0] * len(sizes)
        starts = [0] * len(sizes)
        for i, below in self._below:
            at = 0
            for x in below:
                if ends[x] > at:
                    at = ends[x]
            starts[i] = at
            ends[i] = at + (sizes[i] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return starts, max(ends, default=0)


@functools.lru_cache(4096)
def _starts(slots: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Buffers at the start of slots; one object for all launch lists that have them."""
    return tuple([(slot, 0) for slot in slots])


def _scratch_offsets(start: int, sizes: Sequence[int]) -> list[int]:
    """Where the first worker's scratch buffers lie."""
    places = []
    for size in sizes:
        places.append(start)
        start += aligned(size)
    return places


def _memory(slot: int | None, itemsize: int, shape: Any, position: Positions) -> _Memory:
    """The memory of a value of a symbolic shape."""
    named = [n for n in shape if n.__class__ is SymbolicSize]
    fixed = [n for n in shape if n.__class__ is not SymbolicSize]
    extents = tuple([position[n.name] for n in named])
    return _Memory(slot, None, itemsize * math.prod(fixed), extents)


def _placed_below(
    starts: Sequence[int], spans: Sequence[tuple[int, ...]]
) -> list[tuple[int, list[int]]]:
    """Blocks from the lowest up, each with those below it that are live together with it; those
    that are below one of these again are left out."""
    order = sorted(range(len(starts)), key=lambda i: starts[i])
    below: dict[int, set[int]] = {}
    out = []
    for n, i in enumerate(order):
        first, last = spans[i]
        found = {x for x in order[:n] if spans[x][0] <= last and spans[x][1] >= first}
        below[i] = found
        implied = {y for x in found for y in below[x]}
        out.append((i, [x for x in found if x not in implied]))
    return out
