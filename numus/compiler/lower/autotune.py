"""Autotuning of GEMMs and convolutions: measured schedules, cached on disk.

Schedules follow from a target's description, so tuning lowers a group for altered descriptions
(smaller caches, more cores), times the distinct ones and records the best, by structure, sizes and
machine: from then on the group is lowered for that description. Variants with other result bits
(more cores of a GPU may split sums) are rejected, and so are those that a second measurement does
not confirm.

`nm.tune` measures all variants of what it meets. Unasked, programs that are run many times are
measured when their kernels are on disk already, from an earlier process: only variants that need
no compilation, which differ in how the work is cut into tasks, and for a fraction of a second.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from numus import config
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import flops
from numus.compiler.graph.value import GEMM_KINDS, Layouts, Value
from numus.compiler.lower.dispatch import lower_group
from numus.compiler.lower.emitter import Kernels
from numus.dtypes import DType
from numus.ir import kernel_text
from numus.runtime import cache, contract
from numus.runtime.contract import Runtime
from numus.shapes import row_major
from numus.target import Target

SECONDS = 0.02  # that one schedule is timed for, at least,
UNASKED_SECONDS = 0.005  # and where nobody asked for it;
MAX_UNASKED_SECONDS = 0.25  # of a process
UNASKED_FLOPS = (1 << 23, 1 << 30)  # of a product: from 0.1 to 10 ms of a core
UNASKED = ":tasks"  # ends the keys of choices among some variants only
REPEATED_SMALL_ELEMENTS = 1 << 8  # of kernels that are compiled quickly in what runs many times
MAX_TIME_RATIO = 0.97  # to the default's time, of a variant that replaces it

# Altered targets, by the names under which choices are recorded.
VARIANTS: dict[str, Callable[[Target], Target]] = {
    "half the L1 cache": lambda f: replace(f, l1_bytes=f.l1_bytes // 2),
    "twice the L1 cache": lambda f: replace(f, l1_bytes=f.l1_bytes * 2),
    "half the L2 cache": lambda f: replace(f, l2_bytes=f.l2_bytes // 2),
    "twice the L2 cache": lambda f: replace(f, l2_bytes=f.l2_bytes * 2),
    "twice the cores": lambda f: replace(f, num_cores=f.num_cores * 2),
    "one core": lambda f: replace(f, num_cores=1),
}


class _Choices:
    """The best variants by key, "" for the target as it is."""

    def __init__(self) -> None:
        self.measuring = 0  # depth of nested `tuned` blocks,
        self.repeated = 0  # and of `repeated` ones
        self.seconds_left = MAX_UNASKED_SECONDS
        self._known: dict[str, str] | None = None

    @property
    def known(self) -> dict[str, str]:
        if self._known is None:
            self._known = _read()
        return self._known

    @property
    def active(self) -> bool:
        """GEMMs and convolutions are, or were, measured."""
        return bool(self.measuring or self.repeated or self.known)

    def may_measure(self, group: FusionGroup) -> bool:
        """A product is worth some time though nobody asked for it."""
        if not self.repeated or self.seconds_left <= 0:
            return False
        least, most = UNASKED_FLOPS
        return least <= flops(group.members) <= most

    def record(self, key: str, variant: str) -> None:
        self._known = {**_read(), **self.known, key: variant}  # others may have written meanwhile
        _write(self._known)


choices = _Choices()


@contextlib.contextmanager
def tuned() -> Iterator[None]:
    """Measure the schedules of every GEMM and convolution that is compiled inside."""
    choices.measuring += 1
    try:
        yield
    finally:
        choices.measuring -= 1


@contextlib.contextmanager
def repeated() -> Iterator[None]:
    """What is compiled inside is run many times."""
    choices.repeated += 1
    try:
        yield
    finally:
        choices.repeated -= 1


def target_for_runs(target: Target) -> Target:
    """The target for loops: in what runs many times, few are so small that their code is short."""
    return _repeated_target(target) if choices.repeated and not target.simt else target


@functools.cache
def _repeated_target(target: Target) -> Target:
    return replace(target, small_elements=REPEATED_SMALL_ELEMENTS)


def target_of(group: FusionGroup, key: str | None, target: Target) -> Target | None:
    """The target to lower a group for, by the choice that is recorded under a key; None where it
    is to be measured first."""
    if key is None or group.kind not in GEMM_KINDS or not choices.active:
        return target
    variant = choices.known.get(key)
    if variant is None and choices.measuring:
        return None
    if variant is None:
        variant = choices.known.get(key + UNASKED)
        if variant is None and not target.simt and choices.may_measure(group):
            return None
    return VARIANTS[variant](target) if variant in VARIANTS else target


def measured(
    group: FusionGroup, key: str, layouts: Layouts, runtime: Runtime[Any], known: Kernels | None
) -> Target:
    """The target to lower a group for, measured and recorded under a key. `known` are its kernels
    where it was lowered before: unasked, nothing else is measured."""
    if not choices.measuring and (known is None or not _is_compiled(known, runtime)):
        return runtime.target
    began = time.perf_counter()
    default = known or lower_group(group, layouts, runtime.target)
    variant = _best(default, group, layouts, runtime)
    if not choices.measuring:
        choices.seconds_left -= time.perf_counter() - began
        key += UNASKED
    choices.record(key, variant)
    return VARIANTS[variant](runtime.target) if variant else runtime.target


def _is_compiled(kernels: Kernels, runtime: Runtime[Any]) -> bool:
    return all(runtime.has_code(step.kernel) for step in kernels)


def _best(default: Kernels, group: FusionGroup, layouts: Layouts, runtime: Runtime[Any]) -> str:
    """The name of the fastest variant; "" where none is clearly faster than the default."""
    candidates = {"": default}
    seen = {_signature(default)}
    for name, variant in VARIANTS.items():
        kernels = lower_group(group, layouts, variant(runtime.target))
        if _signature(kernels) not in seen and (
            choices.measuring or _is_compiled(kernels, runtime)
        ):
            seen.add(_signature(kernels))
            candidates[name] = kernels
    if len(candidates) == 1:
        return ""
    runs = {name: _Run(kernels, layouts, runtime) for name, kernels in candidates.items()}
    times = _times(runs, runtime)
    default_bits: list[bytes] | None = None
    faster = [name for name in times if times[name] < MAX_TIME_RATIO * times[""]]
    for name in sorted(faster, key=lambda name: times[name]):
        if default_bits is None:
            default_bits = runs[""].results(group.stored)
        if runs[name].results(group.stored) != default_bits:
            continue
        again = _times({"": runs[""], name: runs[name]}, runtime)
        if again[name] < MAX_TIME_RATIO * again[""]:
            return name
    return ""


def _times(runs: dict[str, _Run], runtime: Runtime[Any]) -> dict[str, float]:
    """The least seconds of each, interleaved, so that noise hits all of them."""
    times = dict.fromkeys(runs, float("inf"))
    spent = 0.0
    seconds = SECONDS if choices.measuring else UNASKED_SECONDS
    while spent < seconds * len(runs):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            runtime.synchronize()
            took = time.perf_counter() - began
            times[name] = min(times[name], took)
            spent += took
    return times


_DISTINCT_NUMBERS = (1 << 16) + 1  # which are repeated: drawing them takes longer than kernels


class _Run:
    """Kernels on memory of their own: random floats, zeros of other dtypes."""

    def __init__(self, kernels: Kernels, layouts: Layouts, runtime: Runtime[Any]) -> None:
        self._runtime = runtime
        self._memories: dict[Value, Any] = {}
        self._addresses: list[int] = []
        self._values: list[int | float] = []
        slots: dict[Value, int] = {}
        steps = []
        for step in kernels:
            for v in step.buffers:
                if v not in slots:
                    slots[v] = len(slots)
                    before, count = _storage_extent(v, layouts)
                    memory = self._memories[v] = runtime.allocate(count * v.dtype.itemsize)
                    runtime.upload(memory, _numbers(v.dtype, count))
                    self._addresses.append(memory.address + before * v.dtype.itemsize)
            operands: list[tuple[int, int] | None] = [(slots[v], 0) for v in step.buffers]
            operands += [None] * len(step.scratch)
            nbytes = [v.size * v.dtype.itemsize for v in step.buffers]
            program = runtime.compile(step.kernel)
            steps.append(contract.LaunchStep(program, operands, nbytes, step.scratch))
            self._values += [step.grid, *(1 if s.__class__ is tuple else s for s in step.scalars)]
        self._launch = runtime.prepare(steps, len(slots)).run
        self()  # warm up

    def __call__(self) -> None:
        self._launch(self._addresses, self._values)

    def results(self, stored: Iterable[Value]) -> list[bytes]:
        """The bits of the results."""
        download, memories = self._runtime.download, self._memories
        wanted = sorted((v for v in stored if v in memories), key=lambda v: v.id)
        return [download(memories[v], v.dtype, v.size).tobytes() for v in wanted]


def _storage_extent(v: Value, layouts: Layouts) -> tuple[int, int]:
    """Elements of a value's memory before its first one (negative strides), and in all."""
    strides = layouts.get(v, row_major(v.shape))
    spans = [(n - 1) * step for n, step in zip(v.shape, strides, strict=True)]
    before = -sum(span for span in spans if span < 0)
    return before, before + 1 + sum(span for span in spans if span > 0) if v.size else 0


def _numbers(dtype: DType, count: int) -> np.ndarray[Any, Any]:
    if dtype.is_floating or dtype.is_complex:
        rng = np.random.default_rng(0)
        block = rng.standard_normal(min(count, _DISTINCT_NUMBERS), np.float32)
        return np.resize(block.astype(dtype.np), count)
    return np.zeros(count, dtype.np)


# -- keys and the file ----------------------------------------------------------------------------


def _signature(kernels: Kernels) -> Any:
    """The texts, grids and sizes of kernels."""
    return tuple(
        (kernel_text(k.kernel), k.grid, tuple(s for s in k.scalars if s.__class__ is not tuple))
        for k in kernels
    )


def _path() -> Path:
    return config.cache_dir() / "tuning.json"


def _read() -> dict[str, str]:
    """The file on disk; empty where it can't be read or is damaged."""
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
