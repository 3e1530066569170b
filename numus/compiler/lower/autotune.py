"""Choosing schedules by measuring them, where that is asked for.

Schedules follow from a target's description. Tuning lowers a group for other descriptions as well
(smaller caches, more cores), times what differs, and remembers which was best: the schedules know
nothing of it. One whose results have other bits (more cores of a GPU share out sums otherwise) is
no choice. What is remembered lies on disk, by kernel, sizes and machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from numus import config
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import GEMM_KINDS, Value
from numus.compiler.lower.dispatch import lower_group
from numus.compiler.lower.emitter import LoweredKernel
from numus.dtypes import DType
from numus.ir import kernel_text
from numus.runtime import cache, contract
from numus.runtime.contract import Runtime
from numus.shapes import Shape, row_major
from numus.target import Target

SECONDS = 0.02  # that one schedule is timed for, at least
CLEARLY = 0.97  # of the default's time: what is not below it is not worth another choice

# Targets to pretend, by the names under which choices are remembered.
VARIANTS: dict[str, Callable[[Target], Target]] = {
    "half the first cache": lambda f: replace(f, l1_bytes=f.l1_bytes // 2),
    "twice the first cache": lambda f: replace(f, l1_bytes=f.l1_bytes * 2),
    "half the second cache": lambda f: replace(f, l2_bytes=f.l2_bytes // 2),
    "twice the second cache": lambda f: replace(f, l2_bytes=f.l2_bytes * 2),
    "twice the cores": lambda f: replace(f, num_cores=f.num_cores * 2),
    "one core": lambda f: replace(f, num_cores=1),
}

Job = list[LoweredKernel]


class _Choices:
    """What was found to be best: variants by key, "" for the target as it is."""

    def __init__(self) -> None:
        self.measuring = 0  # how many blocks of `tuned` we are inside
        self._known: dict[str, str] | None = None

    @property
    def known(self) -> dict[str, str]:
        if self._known is None:
            self._known = _read()
        return self._known

    def keep(self, key: str, variant: str) -> None:
        self._known = {**_read(), **self.known, key: variant}  # others may have written meanwhile
        _write(self._known)


choices = _Choices()


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Measure the schedules of every product that is compiled inside."""
    choices.measuring += 1
    try:
        yield
    finally:
        choices.measuring -= 1


def lower(group: FusionGroup, layouts: dict[Value, Shape], runtime: Runtime[Any]) -> Job:
    """The kernels of a group, by the schedule that was found best for them."""
    usual = lower_group(group, layouts, runtime.target)
    if group.kind not in GEMM_KINDS or not (choices.measuring or choices.known):
        return usual
    key = _key(usual, runtime.target)
    variant = choices.known.get(key)
    if variant is None and choices.measuring:
        variant = _best(usual, group, layouts, runtime)
        choices.keep(key, variant)
    if not variant or variant not in VARIANTS:
        return usual
    return lower_group(group, layouts, VARIANTS[variant](runtime.target))


def _best(
    usual: Job, group: FusionGroup, layouts: dict[Value, Shape], runtime: Runtime[Any]
) -> str:
    """The name of the quickest variant; "" where none is clearly quicker than the usual."""
    jobs = {"": usual}
    seen = {_signature(usual)}
    for name, variant in VARIANTS.items():
        job = lower_group(group, layouts, variant(runtime.target))
        if _signature(job) not in seen:
            seen.add(_signature(job))
            jobs[name] = job
    if len(jobs) == 1:
        return ""
    runs = {name: _Run(job, layouts, runtime) for name, job in jobs.items()}
    times = _times(runs, runtime)
    usual_bits = runs[""].results(group.stored)
    quick = [name for name in times if times[name] < CLEARLY * times[""]]
    for name in sorted(quick, key=lambda name: times[name]):
        if runs[name].results(group.stored) == usual_bits:
            return name
    return ""


def _times(runs: dict[str, _Run], runtime: Runtime[Any]) -> dict[str, float]:
    """The least seconds of each, in turns, so that a disturbance hits all of them."""
    times = dict.fromkeys(runs, float("inf"))
    spent = 0.0
    while spent < SECONDS * len(runs):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            runtime.synchronize()
            took = time.perf_counter() - began
            times[name] = min(times[name], took)
            spent += took
    return times


class _Run:
    """A job on memory of its own: floats are random numbers, everything else is zero."""

    def __init__(self, job: Job, layouts: dict[Value, Shape], runtime: Runtime[Any]) -> None:
        self._runtime = runtime
        self._memories: dict[Value, Any] = {}
        self._addresses: list[int] = []
        self._values: list[int | float] = []
        slots: dict[Value, int] = {}
        steps = []
        for step in job:
            for v in step.buffers:
                if v not in slots:
                    slots[v] = len(slots)
                    before, count = _reach(v, layouts)
                    memory = self._memories[v] = runtime.allocate(count * v.dtype.itemsize)
                    runtime.upload(memory, _numbers(v.dtype, count))
                    self._addresses.append(memory.address + before * v.dtype.itemsize)
            places: list[tuple[int, int] | None] = [(slots[v], 0) for v in step.buffers]
            places += [None] * len(step.scratch)
            nbytes = [v.size * v.dtype.itemsize for v in step.buffers]
            program = runtime.compile(step.kernel)
            steps.append(contract.ProgramStep(program, places, nbytes, step.scratch))
            self._values += [step.grid, *(1 if s.__class__ is tuple else s for s in step.scalars)]
        self._launch = runtime.prepare(steps, len(slots)).run
        self()  # once, for what only the first run does

    def __call__(self) -> None:
        self._launch(self._addresses, self._values)

    def results(self, stored: Iterable[Value]) -> list[bytes]:
        """The bits of what it stores."""
        download, memories = self._runtime.download, self._memories
        wanted = sorted((v for v in stored if v in memories), key=lambda v: v.id)
        return [download(memories[v], v.dtype, v.size).tobytes() for v in wanted]


def _reach(v: Value, layouts: dict[Value, Shape]) -> tuple[int, int]:
    """How many elements of a value's memory lie before its first one, and how many there are."""
    strides = layouts.get(v, row_major(v.shape))
    ways = [(n - 1) * step for n, step in zip(v.shape, strides, strict=True)]
    before = -sum(way for way in ways if way < 0)
    return before, before + 1 + sum(way for way in ways if way > 0) if v.size else 0


def _numbers(dtype: DType, count: int) -> np.ndarray[Any, Any]:
    """What memory is filled with: always the same."""
    if dtype.is_floating or dtype.is_complex:
        rng = np.random.default_rng(0)
        return rng.standard_normal(count, np.float32).astype(dtype.np)
    return np.zeros(count, dtype.np)


# -- keys and the file ----------------------------------------------------------------------------


def _signature(job: Sequence[LoweredKernel]) -> Any:
    """What a job runs, and on which sizes."""
    numbers = ([s for s in step.scalars if s.__class__ is not tuple] for step in job)
    texts = (kernel_text(step.kernel) for step in job)
    return tuple((t, step.grid, tuple(n)) for t, n, step in zip(texts, numbers, job, strict=True))


def _key(job: Sequence[LoweredKernel], target: Target) -> str:
    fields = [sorted(x) if isinstance(x, frozenset) else x for x in astuple(target)]
    whole = repr((_signature(job), fields))
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def _path() -> Path:
    return config.cache_dir() / "tuning.json"


def _read() -> dict[str, str]:
    """What is on disk; nothing where it can't be read or is no such file."""
    try:
        found = json.loads(_path().read_text())
    except (OSError, RuntimeError, ValueError):  # the second: there is no home directory
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, str)}


def _write(known: dict[str, str]) -> None:
    with contextlib.suppress(RuntimeError):  # there is no home directory
        cache.write(_path(), json.dumps(known).encode())
