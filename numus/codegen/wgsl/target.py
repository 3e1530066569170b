"""WgslTarget: the features, limits and rounding of one adapter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WgslTarget:
    """An adapter to write shaders for.

    WGSL promises little about rounding: the flags below are measured when a device starts
    (`probe.py`), and inexact operations are emulated by exact ones (`prelude.py`).
    """

    block_size: int = 64  # threads of a workgroup
    shared_bytes: int = 16 << 10  # workgroup memory
    max_workgroups: int = 65535  # along one dimension of a dispatch
    max_buffers: int = 8
    max_binding_bytes: int = 128 << 20  # of one buffer binding, a multiple of 256
    i64: bool = False
    f64: bool = False
    f16: bool = False
    subgroups: bool = False
    exact_fma32: bool = False  # fma rounds once
    exact_fma64: bool = False
    exact_div32: bool = False  # correctly rounded quotients
    exact_sqrt32: bool = False
    exact_unpack16: bool = False  # of float16, subnormals too
    subnormals: bool = True  # not flushed to zero
    max_loop_iterations: int = 0  # of a thread's loops together, in some drivers; 0: any
