"""Machine model: a roofline per device (Williams et al., 2009) and two kinds of links.

Collectives take the time of ring algorithms (Thakur et al., 2005): each rank sends its part around,
at the speed of the slowest link; a group that spans several nodes reduces within each node first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_GB = 1e9
_GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """Devices in nodes. Speeds are those that programs reach, not those of data sheets.

    Args:
        memory_gib: memory of a device, GiB.
        tflops: 10^12 operations per second in matrix products, by dtype.
        bandwidth_gbs: 10^9 bytes per second of a device's memory.
        devices_per_node: devices that the fast links connect.
        node_gbs: 10^9 bytes per second that a device sends within its node.
        network_gbs: the same, to other nodes.
        latency_us: microseconds of a message.
    """

    name: str
    memory_gib: float
    tflops: dict[str, float]
    bandwidth_gbs: float
    devices_per_node: int
    node_gbs: float
    network_gbs: float
    latency_us: float

    @property
    def memory_bytes(self) -> float:
        """Memory of a device."""
        return self.memory_gib * _GIB

    def kernel_seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """The time of a kernel: that of its arithmetic or of its bytes."""
        speed = self.tflops.get(dtype, self.tflops["float32"]) * 1e12
        return max(flops / speed, nbytes / (self.bandwidth_gbs * _GB))

    def collective_seconds(self, kind: str, nbytes: float, ranks: int, stride: int) -> float:
        """The time of a collective of `ranks` ranks that are `stride` apart; `nbytes` of the whole
        tensor, that of all ranks where parts are gathered or scattered."""
        if ranks == 1:
            return 0.0
        if kind == "all_reduce":
            halves = ("reduce_scatter", "all_gather")
            return sum(self.collective_seconds(half, nbytes, ranks, stride) for half in halves)
        within = max(1, min(ranks, self.devices_per_node // stride))  # in one node
        between = math.ceil(ranks / within)
        latency = self.latency_us * 1e-6
        if kind in ("send", "permute", "broadcast"):
            speed = self.node_gbs if between == 1 else self.network_gbs
            return nbytes / (speed * _GB) + latency * math.ceil(math.log2(ranks))
        seconds = (within - 1) / within * nbytes / (self.node_gbs * _GB)
        share = nbytes / within if kind != "all_to_all" else nbytes
        seconds += (between - 1) / between * share / (self.network_gbs * _GB)
        steps = math.ceil(math.log2(within)) + math.ceil(math.log2(between))
        return seconds + latency * steps


_H100 = {"float32": 200.0, "bfloat16": 500.0, "float16": 500.0}
_A100 = {"float32": 90.0, "bfloat16": 200.0, "float16": 200.0}

MACHINES = {
    m.name: m
    for m in (
        # 8 GPUs on NVLink 4 (450 GB/s each way), a 400 Gbit/s adapter per GPU
        Machine("h100", 80, _H100, 2600, 8, 370, 42, 5),
        Machine("h200", 141, _H100, 3900, 8, 370, 42, 5),
        # 8 GPUs on NVLink 3 (300 GB/s each way), a 200 Gbit/s adapter per GPU
        Machine("a100", 80, _A100, 1600, 8, 235, 21, 5),
        # one process per core, messages through shared memory
        Machine("cpu", 16, {"float32": 0.06}, 10, 64, 1.4, 1.0, 10),
    )
}
