"""Fast command encoding: calls of wgpu-native without the Python binding's error checks.

A training step is a few hundred dispatches, and the binding checks for errors after each. Here
errors show when the pass is finished.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

PassEncoder = tuple[Callable[[Any], None], Callable[[Any], None], Callable[[int, int], None]]


@functools.cache
def _native() -> tuple[Any, ...] | None:
    """The functions of wgpu-native; None where this version lacks one."""
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    names = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")
    found = [getattr(api.lib, f"wgpuComputePassEncoder{name}", None) for name in names]
    return None if None in found else (*found, api.ffi.NULL)


def pass_encoder(compute: Any) -> PassEncoder:
    """(set_pipeline, set_bind_group, dispatch_workgroups) of a compute pass."""
    native = _native()
    handle = getattr(compute, "_internal", None)
    if native is None or handle is None:
        return (
            compute.set_pipeline,
            lambda group: compute.set_bind_group(0, group),
            compute.dispatch_workgroups,
        )
    set_pipeline, set_bind_group, dispatch, null = native
    return (
        lambda pipeline: set_pipeline(handle, pipeline._internal),
        lambda group: set_bind_group(handle, 0, group._internal, 0, null),
        lambda x, y: dispatch(handle, x, y, 1),
    )
