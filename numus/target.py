"""Target: the description of a device that schedules choose by.

A runtime makes one when it starts. Nothing above `runtime/` asks which backend it is on: it reads
these fields, and a new GPU is a new description. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """One device as schedules and the scheduler see it."""

    name: str  # of the backend, for people: no decision reads it
    description: str
    dtypes: frozenset[str]
    vector_bytes: int  # of a vector register, or of a warp's natural access
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    num_cores: int  # cores of a CPU, multiprocessors (SMs) of a GPU
    language: str  # that kernels are rendered to: "llvm", "ptx", "wgsl", or "none"
    features: frozenset[str] = field(default_factory=frozenset)  # as the device names them
    l1_ways: int = 8
    l3_bytes: int = 0  # of the cache that a CPU's cores share; 0: none, or unknown
    masked_store_min_bytes: int = 1 << 10  # the smallest element that masked stores take
    memory_bytes: int = 0  # of the device's own, where it has any
    compress_min_bytes: int = 1 << 10  # the smallest element of `lanes_compress` as an instruction
    small_elements: int = 1 << 13  # of SIMD loops up to which short code is better than fast code
    byte_dot: str = ""  # how CPUs compute `dot4`: codegen/cpu/target.py
    fma: bool = True  # whether a multiply-add is one instruction
    gathers: bool = True  # whether a gather takes less time than loads one by one
    streams_lines: bool = False  # whether lines that are stored around the caches pay off
    prefetches_results: bool = False  # whether stores along lanes prefetch the lines ahead
    libraries: frozenset[str] = field(default_factory=frozenset)  # vendors', of kernels
    approx_math: bool = False  # whether special-function units take exp2, log2, 1/x in float32

    # SIMT targets, whose lanes are threads of a block (docs/design/0004-lanes-as-threads.md)
    block_size: int = 0  # threads of a block unless a kernel asks for others; 0: lanes are SIMD
    max_block_size: int = 0  # where it is more
    shared_bytes: int = 0  # shared (workgroup) memory of a block
    static_shared: bool = False  # whether kernels, not launches, say how much of it they use
    subgroup_size: int = 0  # threads of a warp that exchange registers by shuffles; 0: none
    vector_access_bytes: int = 0  # the widest access of one thread; 0: an element
    packed_storage: bool = False  # whether elements below 4 bytes share a word
    async_copy: bool = False  # global to shared memory without registers (cp.async)
    mma: frozenset[str] = field(default_factory=frozenset)  # dtypes of warp-level MMA (mma.sync)
    wgmma: bool = False  # warpgroup MMA on operands that TMA brings to shared memory
    max_cluster_size: int = 1  # blocks that read each other's shared memory
    elides_copies: bool = False  # kernels that would copy a buffer to itself are not launched
    dependent_launch: bool = False  # a kernel may begin before the one ahead of it ends
    forward_progress: bool = False  # blocks start in order and run on: they may wait for earlier

    @property
    def simt(self) -> bool:
        """Whether lanes are threads of a block."""
        return self.block_size > 0
