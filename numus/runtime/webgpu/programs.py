"""Kernels in IR to compute pipelines, each made once."""

from __future__ import annotations

import functools
import importlib
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numus.codegen.wgsl import index_width, renderer
from numus.errors import CompileError, DeviceError
from numus.ir import kernel_text

if TYPE_CHECKING:
    from numus.runtime.webgpu.context import GpuContext
    from numus.runtime.webgpu.runtime import WebGpuRuntime

_MOST_UNROLLED = 32


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One pipeline that was made."""

    name: str
    key: str
    notes: tuple[str, ...]
    cause: str
    seconds: float
    program: Any

    @property
    def source(self) -> str:
        return str(self.program.source)


Windows = tuple[tuple[int, int], ...]  # buffers bound as several parts, and how many


@dataclass(slots=True)
class Pipeline:
    """A shader made ready: what a launch needs of it."""

    shader: Any
    pipeline: Any
    layout: Any
    words: dict[str, Any]  # how each scalar is written


class WebGpuProgram:
    """A kernel and the forms of it that launches have needed so far."""

    def __init__(self, cache: PipelineCache, kernel: Any) -> None:
        self.kernel = kernel
        self.name: str = kernel.name
        self.notes: tuple[str, ...] = kernel.notes
        self.slots = [slot for slot, _ in kernel.scalars]
        self._cache = cache
        self._forms: dict[tuple[Any, ...], Pipeline] = {}
        self._needs: dict[tuple[int, ...], tuple[bool, int]] = {}
        self._narrow: Any = None
        self.sizes = frozenset(slot for slot in self.slots if index_width.is_size(slot))

    def restart(self) -> None:
        self._forms.clear()
        self._needs.clear()

    @property
    def text(self) -> str:
        return kernel_text(self.kernel)

    @property
    def source(self) -> str:
        """The WGSL of the first form; of the usual one where there is none yet."""
        for form in self._forms.values():
            return str(form.shader.source)
        return str(renderer.render(self.kernel, self._cache.context.shader_target).source)

    def needs(self, sizes: dict[str, int]) -> tuple[bool, int]:
        """Whether indices of a launch with these numbers leave 32 bits; and how many turns of its
        loops have to be written out, for a driver that ends loops.
        """
        if self._narrow is None:
            self._narrow = index_width.Narrow(self.kernel)
        sizes = {slot: sizes[slot] for slot in self.slots if slot in self.sizes}
        key = tuple(sizes.values())
        found = self._needs.get(key)
        if found is None:
            if len(self._needs) > 64:
                self._needs.clear()
            found = self._needs[key] = (not self._narrow.fits(sizes), self._unroll(sizes))
        return found

    def _unroll(self, sizes: dict[str, int]) -> int:
        context = self._cache.context
        most = context.shader_target.max_loop_iterations
        if not most:
            return 1
        unroll = 1
        threads = self.kernel.block_size or context.shader_target.block_size
        while self._narrow.turns(sizes, threads, unroll) > most:
            unroll *= 2
            if unroll > _MOST_UNROLLED:
                raise DeviceError(
                    f"{self.name}: too much for one thread of {context.name} "
                    f"({context.target.description}), whose driver ends loops after some "
                    f"{2 * most} turns; use smaller parts, or device 'cpu'"
                )
        return unroll

    def form(
        self,
        wide: bool,
        unroll: int,
        shared: frozenset[int],
        windows: Windows = (),
    ) -> Pipeline:
        """The pipeline whose indices have 64 bits if `wide`, and whose buffers `shared` are bound
        as written to though they are only read: they lie in a buffer that is written to. Buffers
        that are too large to be bound at once are bound as several `windows`.
        """
        key = (wide, unroll, shared, windows)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = self._cache.make(self, *key)
        return found


class PipelineCache:
    """Programs by the text of their kernels; layouts are shared by all that bind alike."""

    def __init__(self, runtime: WebGpuRuntime) -> None:
        self._runtime = runtime
        self.log: list[CompileRecord] = []
        self._programs: dict[str, WebGpuProgram] = {}
        self._layouts: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._lock = threading.RLock()

    @property
    def context(self) -> GpuContext:
        return self._runtime.context

    def restart(self) -> None:
        """The device is another one: what was made on the old one is of no use."""
        self._layouts.clear()
        for program in self._programs.values():
            program.restart()

    def program(self, kernel: Any) -> WebGpuProgram:
        text = kernel_text(kernel)
        with self._lock:
            found = self._programs.get(text)
            if found is None:
                found = self._programs[text] = WebGpuProgram(self, kernel)
        return found

    def make(
        self,
        program: WebGpuProgram,
        wide: bool,
        unroll: int,
        shared: frozenset[int],
        windows: Windows,
    ) -> Pipeline:
        began = time.perf_counter()
        context = self.context
        if wide and not context.shader_target.i64:
            raise CompileError(
                f"{program.name}: more elements than 32-bit indices count, and {context.name} has "
                "no 64-bit integers (feature shader-int64); use smaller parts"
            )
        kernel = program.kernel
        parts = dict(windows)
        shader = renderer.render(kernel, context.shader_target, wide, shared, unroll, windows=parts)
        limits = context.shader_target
        if len(shader.bound) > limits.max_buffers:
            if parts:
                raise DeviceError(
                    f"{program.name}: {len(shader.bound)} bindings, some of them parts of buffers "
                    f"larger than the {limits.max_binding_bytes} bytes that {context.name} binds "
                    f"(max-storage-buffer-binding-size), and it binds {limits.max_buffers}"
                    " (max-storage-buffers-per-shader-stage); use smaller tensors"
                )
            shader = renderer.render(
                kernel, context.shader_target, wide, shared, unroll, pooled=True
            )
        kinds = tuple(
            "storage"
            if shader.pooled or kernel.buffers[i].access != "read" or i in shared
            else "read-only-storage"
            for i, *_ in shader.bound
        )
        layout, pipeline_layout = self._layout(kinds)
        try:
            module = _module(context, shader.source)
            pipeline = context.device.create_compute_pipeline(
                layout=pipeline_layout, compute={"module": module, "entry_point": "main"}
            )
        except context.wgpu.GPUError as error:
            failure = context.check(error)
            if failure is not error:
                raise failure from error
            raise CompileError(
                f"{program.name}: {context.name} refused the shader: {error}\n{shader.source}"
            ) from error
        seconds = time.perf_counter() - began
        made = Pipeline(shader, pipeline, layout, {word.slot: word for word in shader.slots})
        record = CompileRecord(program.name, "", program.notes, "compiled", seconds, program)
        self.log.append(record)
        return made

    def _layout(self, kinds: tuple[str, ...]) -> tuple[Any, Any]:
        found = self._layouts.get(kinds)
        if found is None:
            device, stage = self.context.device, self.context.wgpu.ShaderStage.COMPUTE
            entries = [
                {"binding": i, "visibility": stage, "buffer": {"type": kind}}
                for i, kind in enumerate(("uniform", *kinds))
            ]
            layout = device.create_bind_group_layout(entries=entries)
            whole = device.create_pipeline_layout(bind_group_layouts=[layout])
            found = self._layouts[kinds] = (layout, whole)
        return found


def _module(context: GpuContext, source: str) -> Any:
    """A shader without the checks that WebGPU adds to code nobody trusts: kernels keep within their
    buffers, and their loops end, by themselves.
    """
    trusted = _trusted(context, source) if _has_trusted() else None
    return trusted or context.device.create_shader_module(code=source)


@functools.cache
def _has_trusted() -> bool:
    """Whether this version of wgpu can be asked for it (it has no name of its own in Python)."""
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
    number = api.libf.wgpuDeviceCreateShaderModuleTrusted(context.device._internal, description, 0)
    return api.GPUShaderModule("", number, context.device) if number != ffi.NULL else None


def pack(shader: Any, head: Sequence[int], values: dict[str, Any]) -> bytes:
    """The words of `P` for a launch."""
    data = bytearray(4 * shader.words)
    struct.pack_into(f"<{len(head)}I", data, 0, *head)
    repack(shader.slots, values, data, 0)
    return bytes(data)


def repack(words: Sequence[Any], values: dict[str, Any], data: bytearray, at: int) -> None:
    """Write some of a kernel's scalars into the words of `P` that begin at a byte."""
    for word in words:
        value = values[word.slot]
        if word.format in "iq":
            value = int(value)
        elif word.format in "IQ":
            value = int(value) & ((1 << (32 if word.format == "I" else 64)) - 1)
        elif word.format == "f":
            value = _as_float32(value)
        struct.pack_into(f"<{word.format}", data, at + 4 * word.at, value)


def _as_float32(value: float) -> float:
    """A float that `struct` takes as float32: beyond its range are the infinities."""
    if abs(value) > 3.4028235677973366e38 and value == value:
        return float("inf") if value > 0 else float("-inf")
    return float(value)
