"""Launch lists with the memory they run on: what an evaluation needs of a plan.

Memory slots are numbered: first the leaves, then the results (one each), then the arena of
temporaries; between these two, where there are any, the hoisted values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Kernels
from numus.compiler.schedule import memory_plan
from numus.runtime import contract
from numus.shapes import Shape

Layout = tuple[int, Shape]  # offset and strides in elements


class LaunchArguments(NamedTuple):
    """A kernel and all that its launch is given."""

    program: Any
    grid: int
    scalars: Sequence[Any]  # numbers, or (constant, part) that each run fills in
    buffers: list[tuple[int, int]]  # slots, and offsets in bytes
    nbytes: list[int]  # of each buffer
    scratch: Sequence[int]  # bytes per worker of each scratch buffer
    concurrent: bool  # with the one before
    scratch_at: tuple[int, int] | None  # in the arena, and the bytes between two workers


class LaunchPlan:
    """Launches and memory of one graph structure."""

    runtime: contract.Runtime[Any]
    leaf_count: int
    result_bytes: list[int]
    arena: int  # bytes
    hoisted_bytes: int = 0  # of values that are computed once
    hoisted_steps: int = 0  # the first launches, which compute them
    _once: Any = None  # these, prepared
    outputs: list[tuple[int, Layout]]  # slots
    saved_for_backward: tuple[int, ...]

    def _prepare(self, launches: Iterable[LaunchArguments]) -> None:
        """Prepare the launches, so that a run only fills in addresses and constants."""
        self.values: list[Any] = []
        self.hoisted_values = 0  # those of the hoisted launches
        # scalars that a run fills in: (position in values, constant, part)
        self.scalar_patches: list[tuple[int, int, str]] = []
        self.launches: list[contract.LaunchStep] = []
        spaces = [n for n in (self.hoisted_bytes, self.arena) if n]
        self.allocations = [*self.result_bytes, *spaces]
        self.slot_count = self.leaf_count + len(self.allocations)
        for program, grid, scalars, used, nbytes, scratch, concurrent, scratch_at in launches:
            if len(self.launches) == self.hoisted_steps:
                self.hoisted_values = len(self.values)
            self.values.append(grid)
            start = len(self.values)
            self.values += scalars
            for i, s in enumerate(scalars, start):
                if s.__class__ is tuple:
                    self.scalar_patches.append((i, *s))
                    self.values[i] = 0
            buffers: list[tuple[int, int] | None] = [*used]
            pitch = 0
            if scratch:
                buffers += [None] * len(scratch)
                if scratch_at is not None:
                    start, pitch = scratch_at
                    for i, size in enumerate(scratch, len(used)):
                        buffers[i] = (self.slot_count - 1, start)
                        start += memory_plan.aligned(size)
            # tuples of numbers: the garbage collector need not follow them
            given = (program, tuple(buffers), tuple(nbytes), tuple(scratch), concurrent, pitch)
            self.launches.append(contract.LaunchStep(*given))
        self.prepared = (
            self.runtime.prepare(self.launches, self.slot_count) if self.launches else None
        )
        rest = self.launches[self.hoisted_steps :] if self.hoisted_steps else []
        self.rest = self.runtime.prepare(rest, self.slot_count) if rest else None

    def prepare_hoisted(self) -> Any:
        """The hoisted launches by themselves."""
        if self._once is None:
            once = self.launches[: self.hoisted_steps]
            self._once = self.runtime.prepare(once, self.slot_count)
        return self._once

    def single_launches(self) -> list[Callable[..., None]]:
        """Each kernel by itself, for timing."""
        alone = [dataclasses.replace(launch, concurrent=False) for launch in self.launches]
        return [self.runtime.prepare([launch], self.slot_count).run for launch in alone]

    def arguments(
        self, leaves: Sequence[Any], constants: Sequence[Any]
    ) -> tuple[list[Any], list[int], list[Any]]:
        """Memory of every slot, its addresses, and the scalars of a run."""
        memories = []
        addresses = []
        for n in leaves:
            view = n.view
            memory = view.storage.memory
            memories.append(memory)
            addresses.append(memory.address + view.offset * n.dtype.itemsize)
        allocate = self.runtime.allocate
        for size in self.allocations:
            memory = allocate(size)
            memories.append(memory)
            addresses.append(memory.address)
        values = self.values
        if self.scalar_patches:
            values = values.copy()
            for at, constant, part in self.scalar_patches:
                values[at] = scalar_part(constants[constant].params, part)
        return memories, addresses, values

    def run(self, leaves: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        """Launch; returns the memory of each output."""
        memories, addresses, values = self.arguments(leaves, constants)
        if self.prepared is not None:
            self.prepared.run(addresses, values)
        return [memories[slot] for slot, _ in self.outputs]


class ScheduledPlan(LaunchPlan):
    """A plan with the kernels it was made from.

    Attributes:
        workers: those that need scratch memory of the arena.
        jobs: the kernels of each group with elements, as they were lowered at first.
        waves: numbers of steps that may run concurrently.
        slot: of every value in memory.
        offset: of temporaries, in the arena.
    """

    workers: int
    groups: list[FusionGroup]
    jobs: list[Kernels]
    steps: Kernels
    waves: list[int]
    slot: dict[Value, int]
    offset: dict[Value, int]


def scalar_part(number: Any, part: str) -> Any:
    """A constant as a kernel's scalar: whole, or the real or imaginary part."""
    if part == "whole":
        return int(number) if number.__class__ is bool else number
    number = complex(number)
    return number.real if part == "real" else number.imag
