"""What WGSL for an adapter may use, and how exact its arithmetic is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WgslTarget:
    """An adapter to write shaders for.

    WGSL promises little about rounding, so these are measured when a device starts (see
    `probe.py`): what an adapter does not do exactly is written out with what it does.
    """

    block_size: int = 64  # threads of a workgroup
    shared_bytes: int = 16 << 10  # bytes that a workgroup shares
    max_workgroups: int = 65535  # along one dimension of a dispatch
    max_buffers: int = 8
    max_binding_bytes: int = (
        128 << 20
    )  # bytes of a buffer that can be bound at once, a multiple of 256
    i64: bool = False
    f64: bool = False
    f16: bool = False
    subgroups: bool = False
    fuses32: bool = False  # whether fma rounds once
    fuses64: bool = False
    divides: bool = False  # whether quotients of float32 are correctly rounded
    roots: bool = False  # whether square roots of float32 are
    subnormals: bool = True  # whether they are kept
    max_loop_iterations: int = (
        0  # of all loops of a thread together, where the driver ends them; 0: any
    )
