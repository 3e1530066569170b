"""Peak memory of a training step, against PyTorch, above parameters, moments and the batch.

Both figures are requests to the allocator: numus's pool, PyTorch's profiler. Kernel scratch (packed
operands) is included for numus, with a column of its own; that of PyTorch's libraries is not
recorded.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numus as nm
from numus.compiler.explain import ProgramReport, recording

from . import larger
from .libraries import torch
from .table import Table
from .training import MODELS, Model, numus_step, torch_step, trainer_step

STEPS = 3
MIB = 1 << 20


class Count:
    """Bytes in use, and their peak."""

    def __init__(self) -> None:
        self.taken = self.peak = 0

    def add(self, nbytes: int) -> None:
        self.taken += nbytes
        self.peak = max(self.peak, self.taken)


@contextlib.contextmanager
def _counting(runtime: Any) -> Iterator[Count]:
    """Count allocations of the pool inside the context."""
    pool, count = runtime.memory, Count()
    allocate = pool.allocate

    def counted(nbytes: int) -> Any:
        block = allocate(nbytes)
        count.add(nbytes)
        weakref.finalize(block, count.add, -nbytes)
        return block

    pool.allocate = runtime.allocate = counted
    try:
        yield count
    finally:
        runtime.allocate = allocate
        del pool.allocate  # restores the class's method


def numus_peak(model: Model, modules: bool) -> tuple[int, int]:
    """Peak bytes, and kernel scratch among them."""
    runtime = nm.device("cpu").runtime
    found: list[ProgramReport] = []
    with _counting(runtime) as count:
        step = trainer_step(model) if modules else numus_step(model)
        with recording(found, timed=False):
            nm.eval(step())
        gc.collect()
        before = count.peak = count.taken
        for _ in range(STEPS):
            nm.eval(step())
        peak = count.peak - before
    scratch = max(report.scratch_bytes for report in found)
    return peak, scratch


def torch_peak(model: Model) -> int:
    """Peak bytes after the first step, which creates the moments, without its gradients."""
    step = torch_step(model)
    step()
    for thing in gc.get_objects():
        if type(thing) is torch.nn.Parameter:
            thing.grad = None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        for _ in range(STEPS):
            step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    count = Count()
    for event in sorted(events, key=lambda e: e.start_ns()):
        count.add(event.nbytes())
    return count.peak


def report(modules: bool, large: bool, markdown: bool) -> bool:
    """Print both peaks of each model; False if numus needs more than PyTorch."""
    head = ("MiB", "numus", "scratch of it", "torch", "torch/numus")
    table = Table(head, (28, 13, 13, 13, 12), markdown)
    fine = True
    for model in larger.MODELS if large else MODELS:
        own, scratch = numus_peak(model, modules or large)
        cells = [f"{own / MIB:.1f}", f"{scratch / MIB:.1f}", "-", "-"]
        if torch is not None:
            other = torch_peak(model)
            cells[2:] = [f"{other / MIB:.1f}", f"{other / own:.2f}"]
            fine &= own <= other
        table.row(model.name, *cells)
    return fine
