"""Estimates: a step of the fullest rank of a layout, from traced programs and a machine model.

Layers are alike, so programs of one and two blocks tell what a block takes, and what is around
them; a few layers without stages are traced as they are. Ranks of the first stage hold the most
microbatches (1F1B: one for each stage behind it), those of the last have the scores of the words.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from numus.distributed.planning.layout import Layout
from numus.distributed.planning.machine import Machine
from numus.distributed.planning.trace import Traced, trace_step
from numus.distributed.planning.transformer import Transformer
from numus.dtypes import as_dtype
from numus.errors import DistributedError

_MAX_TRACED_LAYERS = 8  # more are computed from one and two
_BUCKET_BYTES = 25 << 20  # of gradients, as in DistributedDataParallel
_BACKWARD = 2 / 3  # of the time of a step's products


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest rank."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind along one axis, in a step of a rank."""

    axis: str
    kind: str
    calls: float
    nbytes: float
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """A step of a layout on a machine."""

    layout: Layout
    memory: Memory
    traffic: tuple[Traffic, ...]
    compute_seconds: float
    exposed_seconds: float  # of collectives that computation does not hide
    bubble_seconds: float
    flops: float  # of a rank

    @property
    def step_seconds(self) -> float:
        """The time of a step."""
        return self.compute_seconds + self.exposed_seconds + self.bubble_seconds

    def fits(self, machine: Machine) -> bool:
        """Whether it has room in a device's memory."""
        return self.memory.total <= machine.memory_bytes


def estimate(sizes: Transformer, layout: Layout, machine: Machine) -> Estimate:
    """Memory, traffic and time of a training step.

    >>> from numus.distributed import planning
    >>> sizes = planning.Transformer(64, 32, 2, 2, length=16, batch=8)
    >>> found = planning.estimate(sizes, planning.Layout(data=8), planning.MACHINES["h100"])
    >>> [t.kind for t in found.traffic]
    ['all_reduce']
    """
    widths = (sizes.width, sizes.hidden, sizes.vocabulary)
    problem = layout.problem(sizes.batch, sizes.layers, sizes.heads, widths)
    if problem:
        raise DistributedError(f"plan: {layout}: {problem}")
    stage = _Stage(sizes, layout, machine)
    count, pipe = layout.microbatches(sizes.batch), layout.pipe
    in_flight = min(pipe, count)
    memory = stage.memory(in_flight)
    traffic = stage.traffic(count)
    compute = count * stage.seconds
    tensor = sum(t.seconds for t in traffic if t.axis == "tensor")
    backward = _BACKWARD * stage.seconds
    exposed = tensor
    for axis, hidden in (("data", backward), ("shard", compute)):
        seconds = sum(t.seconds for t in traffic if t.axis == axis)
        exposed += max(0.0, seconds - hidden)
    sends = sum(t.seconds for t in traffic if t.axis == "pipe")
    bubble = (pipe - 1) * (compute + tensor + sends) / count
    return Estimate(layout, memory, tuple(traffic), compute, exposed, bubble, count * stage.flops)


class _Stage:
    """The layers of one rank, for one microbatch."""

    def __init__(self, sizes: Transformer, layout: Layout, machine: Machine) -> None:
        self._sizes, self._layout, self._machine = sizes, layout, machine
        self._layers = sizes.layers // layout.pipe
        self._exact = layout.pipe == 1 and self._layers <= _MAX_TRACED_LAYERS
        if self._exact:  # what is sent does not depend on how many ranks there are
            shape = layout.microbatch, layout.tensor, min(layout.data, 2)
            self._low = self._high = trace_step(sizes, self._layers, *shape)
        else:
            shape = layout.microbatch, layout.tensor, 1
            self._low, self._high = (trace_step(sizes, n, *shape) for n in (1, 2))
        self._more = 0 if self._exact else self._layers - 1  # blocks beside the first
        self.seconds = self._scaled(*map(self._compute_seconds, (self._low, self._high)))
        self.flops = self._scaled(
            *(sum(k.flops for k in traced.kernels) for traced in (self._low, self._high))
        )

    def _scaled(self, low: float, high: float) -> float:
        """From values with one and with two blocks."""
        return low + self._more * (high - low)

    def _compute_seconds(self, traced: Traced) -> float:
        dtype = self._sizes.dtype
        seconds = self._machine.kernel_seconds
        return sum(seconds(k.flops, k.bytes_read + k.bytes_written, dtype) for k in traced.kernels)

    def memory(self, in_flight: int) -> Memory:
        """Of the fullest rank, with this many microbatches under way."""
        low, high, shard = self._low, self._high, self._layout.shard
        block = high.parameters - low.parameters
        parameters = self._scaled(low.parameters, high.parameters)
        part = 1.0
        if self._layout.pipe > 1:  # a stage has the words before the blocks, or those behind
            part = 1 - low.ends / 2 / parameters
        # a step ends with gradients old and new; microbatches under way have none of their own
        slope = high.activations - low.activations - (high.gradients - low.gradients)
        saved = max(0, slope) * self._layers  # of a microbatch
        activations = self._scaled(low.activations, high.activations) + (in_flight - 1) * saved
        buffers = self._scaled(low.buffers, high.buffers)
        if not self._exact and self._layout.data > 1:  # buckets: gradients once more
            buffers += part * parameters / shard
        if shard > 1:  # two layers are gathered, one of gradients is reduced
            buffers += 3 * (block or low.parameters / max(1, self._layers))
        gradients = self._scaled(low.gradients, high.gradients)
        optimizer = self._scaled(low.optimizer, high.optimizer)
        share = part / shard
        return Memory(
            share * parameters, share * gradients, share * optimizer, activations, buffers
        )

    def traffic(self, count: int) -> list[Traffic]:
        """What a rank sends in a step of this many microbatches."""
        layout, machine = self._layout, self._machine
        totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

        def add(axis: str, kind: str, calls: float, nbytes: float) -> None:
            ranks = getattr(layout, axis)
            seconds = machine.collective_seconds(kind, nbytes, ranks, layout.stride(axis))
            found = totals[axis, kind]
            for i, number in enumerate((calls, calls * nbytes, calls * seconds)):
                found[i] += number

        for sign, traced in ((1 - self._more, self._low), (self._more, self._high)):
            for sent, calls in traced.sent:
                times = 1 if sent.axis == "data" else count  # gradients are averaged once
                add(sent.axis, sent.kind, sign * calls * times, sent.nbytes)
        weights = self._scaled(self._low.parameters, self._high.parameters)
        if layout.data > 1 and not self._exact:
            gradients = weights / layout.shard
            buckets = math.ceil(gradients / _BUCKET_BYTES)
            add("data", "all_reduce", buckets, gradients / buckets)
        if layout.shard > 1:
            layers = max(1, self._layers)
            add("shard", "all_gather", 2 * layers * count, weights / layers)
            add("shard", "reduce_scatter", layers * count, weights / layers)
        if layout.pipe > 1:
            itemsize = as_dtype(self._sizes.dtype).itemsize
            width = self._sizes.length * self._sizes.width * itemsize
            add("pipe", "send", 2 * count, layout.microbatch * width)
        return [Traffic(*key, *numbers) for key, numbers in totals.items() if numbers[0] > 0.5]
