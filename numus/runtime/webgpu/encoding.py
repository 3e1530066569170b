"""Dispatches handed to a compute pass, with as little as possible in between.

A step of training is a few hundred of them. wgpu's methods check for errors after every call;
what they call is called here directly, and errors show when the pass is finished.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

Recorder = tuple[Callable[[Any], None], Callable[[Any], None], Callable[[int, int], None]]


@functools.cache
def _native() -> tuple[Any, ...] | None:
    """The functions of wgpu's library; None where this version has others."""
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    names = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")
    found = [getattr(api.lib, f"wgpuComputePassEncoder{name}", None) for name in names]
    return None if None in found else (*found, api.ffi.NULL)


def recorder(computing: Any) -> Recorder:
    """How a pass is told the pipeline, the bind group, and how many groups to run."""
    native = _native()
    number = getattr(computing, "_internal", None)
    if native is None or number is None:
        return (
            computing.set_pipeline,
            lambda group: computing.set_bind_group(0, group),
            computing.dispatch_workgroups,
        )
    pipeline_of, group_of, dispatch_of, nothing = native
    return (
        lambda pipeline: pipeline_of(number, pipeline._internal),
        lambda group: group_of(number, 0, group._internal, 0, nothing),
        lambda x, y: dispatch_of(number, x, y, 1),
    )
