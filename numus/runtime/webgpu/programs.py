"""Compute pipelines of kernels, compiled on demand in variants.

A program renders a variant per index width, unroll factor, aliasing and segmentation of its
buffers, as launches need them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, ref

from numus.codegen.wgsl import index_width, renderer
from numus.codegen.wgsl.bindings import UniformScalar, Variant
from numus.codegen.wgsl.renderer import Shader
from numus.codegen.wgsl.vectors import vector_widths
from numus.errors import CompileError, DeviceError
from numus.ir import kernel_text
from numus.lru import LruTable
from numus.runtime.locks import once
from numus.runtime.programs import MAX_PROGRAMS, CompileLog, CompileRecord, KernelProgram
from numus.runtime.webgpu.context import GpuContext
from numus.runtime.webgpu.memory import GpuSession

_MAX_UNROLL = 32
_MAX_CACHED_SIZES = 64  # launch sizes whose variant a program remembers


@dataclass(slots=True)
class Pipeline:
    """A compiled shader."""

    shader: Shader
    pipeline: Any
    layout: Any
    scalars: dict[str, UniformScalar]  # by slot


class WebGpuProgram(KernelProgram):
    """A kernel and the variants of it that launches have needed so far."""

    def __init__(self, cache: PipelineCache, kernel: Any) -> None:
        super().__init__(kernel)
        self.slots = [slot for slot, _ in kernel.scalars]
        self._cache = cache
        self._variants: dict[Variant, Pipeline] = {}
        self._by_sizes: dict[tuple[int, ...], tuple[bool, int]] = {}
        self.size_slots = frozenset(slot for slot in self.slots if index_width.is_size(slot))

    def clear(self) -> None:
        self._variants.clear()
        self._by_sizes.clear()

    @functools.cached_property
    def vector_widths(self) -> list[tuple[int, int]]:
        """Buffers that are accessed by vectors where they begin at a whole one, and how wide."""
        found = vector_widths(self.kernel)
        return [(i, found[b]) for i, b in enumerate(self.kernel.buffers) if b in found]

    @functools.cached_property
    def _index_width(self) -> index_width.IndexWidth:
        return index_width.IndexWidth(self.kernel)

    @property
    def source(self) -> str:
        """The WGSL of the first variant; of the default one where there is none yet."""
        for variant in self._variants.values():
            return variant.shader.source
        return renderer.render(self.kernel, self._cache.context.shader_target).source

    def variant_of(self, sizes: dict[str, int]) -> tuple[bool, int]:
        """Whether a launch of these sizes needs 64-bit indices, and its unroll factor."""
        sizes = {slot: sizes[slot] for slot in self.slots if slot in self.size_slots}
        key = tuple(sizes.values())
        found = self._by_sizes.get(key)
        if found is None:
            if len(self._by_sizes) > _MAX_CACHED_SIZES:
                self._by_sizes.clear()
            wide = not self._index_width.fits(sizes)
            found = self._by_sizes[key] = (wide, self._unroll(sizes))
        return found

    def _unroll(self, sizes: dict[str, int]) -> int:
        """The unroll factor that keeps loops below the driver's iteration limit."""
        context = self._cache.context
        limit = context.shader_target.max_loop_iterations
        if not limit:
            return 1
        unroll = 1
        threads = self.kernel.block_size or context.shader_target.block_size
        while self._index_width.loop_iterations(sizes, threads, unroll) > limit:
            unroll *= 2
            if unroll > _MAX_UNROLL:
                raise DeviceError(
                    f"{self.name}: more iterations in one thread than the loop iteration limit "
                    f"of {context.name} ({context.target.description}), about {2 * limit}; use "
                    "smaller tensors, or device 'cpu'"
                )
        return unroll

    def pipeline(self, variant: Variant) -> Pipeline:
        found = self._variants.get(variant)
        if found is None:
            found = self._variants[variant] = self._cache.compile(self, variant)
        return found


class PipelineCache:
    """Programs by kernel text, and bind group layouts by binding types."""

    def __init__(self, session: GpuSession) -> None:
        self._session = session
        self.log = CompileLog()
        self._programs: LruTable[str, WebGpuProgram] = LruTable(MAX_PROGRAMS)
        self._all: WeakSet[WebGpuProgram] = WeakSet()  # those in use among them
        self._layouts: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._lock = threading.RLock()

    @property
    def context(self) -> GpuContext:
        return self._session.context

    def clear(self) -> None:
        """Drop the pipelines of a lost device."""
        self._layouts.clear()
        for program in list(self._all):
            program.clear()

    def program(self, kernel: Any) -> WebGpuProgram:
        text = kernel_text(kernel)
        with self._lock:
            found = self._programs.get(text)
            if found is None:
                found = self._programs[text] = WebGpuProgram(self, kernel)
                self._all.add(found)
        return found

    def compile(self, program: WebGpuProgram, variant: Variant) -> Pipeline:
        began = time.perf_counter()
        context = self.context
        if variant.wide and not context.shader_target.i64:
            raise CompileError(
                f"{program.name}: its indices exceed 32 bits, and {context.name} has no 64-bit "
                "integers (feature shader-int64); use smaller tensors"
            )
        kernel = program.kernel
        target = context.shader_target
        shader = renderer.render(kernel, target, variant)
        if len(shader.bound) > target.max_buffers:
            if variant.segments:
                raise DeviceError(
                    f"{program.name}: {len(shader.bound)} bindings, some of them segments of "
                    f"buffers larger than {target.max_binding_bytes} bytes "
                    f"(max-storage-buffer-binding-size); {context.name} takes at most "
                    f"{target.max_buffers} (max-storage-buffers-per-shader-stage); use smaller "
                    "tensors"
                )
            shader = renderer.render(kernel, target, dataclasses.replace(variant, merged=True))
        types = tuple(
            "storage"
            if shader.merged or kernel.buffers[i].access != "read" or i in variant.aliased
            else "read-only-storage"
            for i, *_ in shader.bound
        )
        if types not in self._layouts:
            self._layouts[types] = context.layouts(enumerate(("uniform", *types)))
        layout, pipeline_layout = self._layouts[types]
        try:
            module = _module(context, shader.source)
            pipeline = context.device.create_compute_pipeline(
                layout=pipeline_layout, compute={"module": module, "entry_point": "main"}
            )
        except context.wgpu.GPUError as error:
            context.raise_if_lost(error)
            raise CompileError(
                f"{program.name}: {context.name} rejects the shader: {error}\n{shader.source}"
            ) from error
        seconds = time.perf_counter() - began
        record = CompileRecord(program.name, "", program.notes, "compiled", seconds, ref(program))
        self.log.append(record)
        return Pipeline(shader, pipeline, layout, {s.slot: s for s in shader.scalars})


def _module(context: GpuContext, source: str) -> Any:
    """A shader module without WebGPU's bounds checks and loop guards, where wgpu has that."""
    trusted = _trusted(context, source) if _has_trusted() else None
    return trusted or context.device.create_shader_module(code=source)


@once
def _has_trusted() -> bool:
    """Whether this wgpu-native has trusted modules, which its Python binding does not expose."""
    native = importlib.import_module("wgpu.backends.wgpu_native")
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    names = ("GPUShaderModule", "new_struct_p", "to_c_string_view", "libf")
    return hasattr(native.lib, "wgpuDeviceCreateShaderModuleTrusted") and all(
        hasattr(api, name) for name in names
    )


def _trusted(context: GpuContext, source: str) -> Any:
    api = importlib.import_module("wgpu.backends.wgpu_native._api")
    ffi, lib = api.ffi, api.lib
    code = api.new_struct_p("WGPUShaderSourceWGSL *", code=api.to_c_string_view(source))
    code[0].chain.next = ffi.NULL
    code[0].chain.sType = lib.WGPUSType_ShaderSourceWGSL
    description = api.new_struct_p(
        "WGPUShaderModuleDescriptor *",
        nextInChain=ffi.cast("WGPUChainedStruct *", code),
        label=api.to_c_string_view(""),
    )
    handle = api.libf.wgpuDeviceCreateShaderModuleTrusted(context.device._internal, description, 0)
    return api.GPUShaderModule("", handle, context.device) if handle != ffi.NULL else None


def pack(shader: Shader, header: Sequence[int], values: dict[str, Any]) -> bytes:
    """The uniform array `P` of a launch."""
    data = bytearray(4 * shader.words)
    struct.pack_into(f"<{len(header)}I", data, 0, *header)
    repack(shader.scalars, values, data, 0)
    return bytes(data)


def repack(
    scalars: Sequence[UniformScalar], values: dict[str, Any], data: bytearray, start: int
) -> None:
    """Write scalars into the array `P` that starts at a byte of `data`."""
    for scalar in scalars:
        value = values[scalar.slot]
        if scalar.format in "iq":
            value = int(value)
        elif scalar.format in "IQ":
            value = int(value) & ((1 << (32 if scalar.format == "I" else 64)) - 1)
        elif scalar.format == "f":
            value = _as_float32(value)
        struct.pack_into(f"<{scalar.format}", data, start + 4 * scalar.word, value)


def _as_float32(value: float) -> float:
    """A float in range of float32, or an infinity: `struct` takes no others."""
    if abs(value) > 3.4028235677973366e38 and value == value:
        return float("inf") if value > 0 else float("-inf")
    return float(value)
