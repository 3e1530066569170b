"""One training step of one rank, traced on the null backend: nothing is computed, all counted."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numus as nm
from numus.compiler.explain import KernelReport, ProgramReport, recording
from numus.distributed.data_parallel import DistributedDataParallel
from numus.distributed.planning.recording import PlannedGroup, Sent, on_null_device
from numus.distributed.planning.transformer import Model, Transformer, loss_of


@dataclass(frozen=True)
class Traced:
    """What a step of a rank takes, in bytes; its kernels, and what it sends."""

    parameters: int
    ends: int  # of these, what is before and behind the blocks
    gradients: int
    optimizer: int
    activations: int  # at the peak, with temporaries and scratch
    buffers: int  # of collectives: buckets of gradients
    kernels: tuple[KernelReport, ...]
    sent: tuple[tuple[Sent, int], ...]  # how often

    @property
    def total(self) -> int:
        """At the peak."""
        known = self.parameters + self.gradients + self.optimizer
        return known + self.activations + self.buffers


@functools.lru_cache(maxsize=256)
def trace_step(sizes: Transformer, layers: int, microbatch: int, tensor: int, data: int) -> Traced:
    """A step with this many layers on one rank."""
    with on_null_device() as runtime:
        gc.collect()
        before = runtime.reset().bytes_in_use
        group, copies = PlannedGroup("tensor", tensor), PlannedGroup("data", data)
        model: Any = Model(sizes, layers, group)
        nm.eval(list(model.parameters()))
        weights = sum(p.size * p.dtype.itemsize for p in model.parameters())
        inner = sum(p.size * p.dtype.itemsize for p in model.blocks.parameters())
        shape = (microbatch, sizes.length)
        x, y = (nm.zeros(shape, dtype="int64") for _ in range(2))
        nm.eval([x, y])
        wrapped = DistributedDataParallel(model, group=copies) if data > 1 else model
        optimizer = sizes.new_optimizer(model.parameters())
        step = _step(sizes, wrapped, optimizer, group)
        for _ in range(2):
            nm.eval(step(x, y))  # the second time as always
        reports: list[ProgramReport] = []
        group.recorded.sent.clear()
        copies.recorded.sent.clear()
        gc.collect()
        runtime.reset()
        with recording(reports, timed=False):
            nm.eval(step(x, y))
        peak = runtime.counts.peak - before
        held = runtime.counts.bytes_in_use - before
        gradients = sum(p.grad.size * p.grad.dtype.itemsize for p in model.parameters())
        sent = [*group.recorded.sent, *copies.recorded.sent]
    buckets = sum(s.nbytes for s in sent if s.axis == "data")
    state = held - weights - gradients - x.size * 16
    # gradients are parts of the buckets that came back: what was sent is there besides
    buffers = min(buckets, peak - held)
    return Traced(
        parameters=weights,
        ends=weights - inner,
        gradients=gradients,
        optimizer=state,
        activations=peak - weights - gradients - state - buffers,
        buffers=buffers,
        kernels=tuple(k for report in reports for k in report.kernels),
        sent=tuple(Counter(sent).items()),
    )


def _step(sizes: Transformer, model: Any, optimizer: Any, group: PlannedGroup) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        if sizes.dtype == "float32":
            loss = loss_of(model(x), y, group)
        else:
            with nm.autocast(sizes.dtype):
                loss = loss_of(model(x), y, group)
        loss.backward()
        optimizer.step()
        return loss

    return nm.jit(step)
