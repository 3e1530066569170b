"""User WGSL kernels: bindings parsed from the source, pipelines compiled once."""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numus.dtypes import DType
from numus.errors import CompileError, DeviceError, DTypeError
from numus.runtime.webgpu.context import GpuContext
from numus.runtime.webgpu.memory import Memory
from numus.runtime.webgpu.session import GpuSession

# The WGSL type of a dtype, and the feature that it takes.
TYPES = {
    "float32": ("f32", ""),
    "int32": ("i32", ""),
    "uint32": ("u32", ""),
    "float16": ("f16", "shader-f16"),
    "float64": ("f64", "shader-f64"),
    "int64": ("i64", "shader-int64"),
    "uint64": ("u64", "shader-int64"),
    "complex64": ("vec2<f32>", ""),
}
_FORMATS = {"f32": "f", "i32": "i", "u32": "I", "f64": "d", "i64": "q", "u64": "Q"}
_MAX_CACHED = 64  # bind groups, and uniform buffers, per shader

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BINDING = re.compile(
    r"@group\s*\(\s*(\d+)u?\s*\)\s*@binding\s*\(\s*(\d+)u?\s*\)\s*var\s*<\s*(\w+)\s*(?:,\s*(\w+)\s*)?>"
    r"\s*(\w+)\s*:\s*([^;]+);"
)
_ENTRY = re.compile(r"@compute\b(.*?)\bfn\s+(\w+)\s*\(", re.DOTALL)
_WORKGROUP_SIZE = re.compile(r"@workgroup_size\s*\(([^)]*)\)")

Block = tuple[Memory, int, int]  # memory, an offset and a size in bytes
Named = Sequence[tuple[str, DType]]


@dataclass(frozen=True)
class Shader:
    """A user's shader for one set of dtypes."""

    name: str
    text: str
    entry: str
    threads: int  # of a workgroup; 0 where the text does not tell
    bindings: tuple[tuple[int, str], ...]  # number and type, of arrays first, then of scalars
    fields: tuple[tuple[str, str, int], ...]  # of scalars: name, `struct` format, offset


def parse(
    name: str,
    source: str,
    inputs: Named,
    outputs: Named,
    scalars: Named,
    features: frozenset[str],
) -> Shader:
    """The shader of a source. `scalar` in it is the dtype of the first input (of the first output,
    where there are no inputs); a source without bindings gets them declared.
    """
    bare = _COMMENT.sub(" ", source)
    first = (*inputs, *outputs)[0][1]
    head = []
    kind, needed = TYPES.get(first.name, ("", ""))
    if re.search(r"\bscalar\b", bare) or "@binding" not in bare:
        if kind and not kind.startswith("vec"):
            _require(name, first, needed, features)
            head.append(f"alias scalar = {kind};")
        elif re.search(r"\bscalar\b", bare):
            known = ", ".join(d for d, (t, _) in TYPES.items() if not t.startswith("vec"))
            raise DTypeError(
                f"{name}: WGSL has no scalar for {first.name}; there are {known}: cast the first "
                "operand, or write the shader for words (array<u32>)"
            )
    declared = [(int(b), s, a, v, t.strip()) for g, b, s, a, v, t in _BINDING.findall(bare)]
    if any(int(m[0]) for m in _BINDING.findall(bare)):
        raise CompileError(f"{name}: all bindings must be in @group(0)")
    if not declared:
        declared, lines = _declare(name, inputs, outputs, scalars, features, first)
        head += lines
        fields = _fields([(n, _scalar_type(name, n, d)) for n, d in scalars])[0]
    else:
        fields = _check(name, bare, declared, inputs, outputs, scalars, kind)
    found = _ENTRY.findall(bare)
    if len(found) != 1:
        raise CompileError(
            f"{name}: a shader must have one @compute function; this one has {len(found)}"
        )
    attributes, entry = found[0]
    head = [*(["enable f16;"] if re.search(r"\bf16\b", bare + "".join(head)) else []), *head]
    text = "\n".join([*head, re.sub(r"\benable\s+f16\s*;", "", source)])
    arrays = [d for d in declared if d[1] == "storage"]
    bindings = [(d[0], "storage" if d[2] == "read_write" else "read-only-storage") for d in arrays]
    bindings += [(d[0], "uniform") for d in declared if d[1] == "uniform"]
    return Shader(name, text, entry, _workgroup_size(attributes), tuple(bindings), fields)


def _require(name: str, dtype: DType, feature: str, features: frozenset[str]) -> None:
    if feature and feature not in features:
        raise DTypeError(
            f"{name}: {dtype.name} in a shader takes the feature {feature}, which this adapter "
            "lacks; use another dtype or device"
        )


def _workgroup_size(attributes: str) -> int:
    found = _WORKGROUP_SIZE.search(attributes)
    total = 1
    for part in found[1].split(",") if found else ["0"]:
        digits = part.strip().rstrip("u")
        if digits:
            total *= int(digits) if digits.isdecimal() else 0
    return total


def _scalar_type(name: str, scalar: str, dtype: DType) -> str:
    kind = TYPES.get(dtype.name, ("", ""))[0]
    if kind not in _FORMATS:
        raise DTypeError(
            f"{name}: the scalar {scalar!r} is {dtype.name}; shaders take float32, int32, uint32 "
            "and the 64-bit ones"
        )
    return kind


def _declare(
    name: str,
    inputs: Named,
    outputs: Named,
    scalars: Named,
    features: frozenset[str],
    first: DType,
) -> tuple[list[tuple[int, str, str, str, str]], list[str]]:
    """Declarations of all arrays, and of the scalars as members of `p`."""
    declared, text = [], []
    arrays = [(n, d, "read") for n, d in inputs] + [(n, d, "read_write") for n, d in outputs]
    for i, (array, dtype, access) in enumerate(arrays):
        kind, feature = TYPES.get(dtype.name, ("u32", ""))  # smaller ones are packed into words
        _require(name, dtype, feature, features)
        if dtype is first and kind != "u32" and not kind.startswith("vec"):
            kind = "scalar"
        declared.append((i, "storage", access, array, f"array<{kind}>"))
        text.append(f"@group(0) @binding({i}) var<storage, {access}> {array}: array<{kind}>;")
    if scalars:
        members = ", ".join(f"{n}: {_scalar_type(name, n, d)}" for n, d in scalars)
        declared.append((len(arrays), "uniform", "", "p", "Numbers"))
        text += [
            f"struct Numbers {{ {members} }}",
            f"@group(0) @binding({len(arrays)}) var<uniform> p: Numbers;",
        ]
    return declared, text


def _fields(members: Sequence[tuple[str, str]]) -> tuple[tuple[tuple[str, str, int], ...], int]:
    """The offset of each scalar, and the size of all."""
    at, out = 0, []
    for member, kind in members:
        size = struct.calcsize(_FORMATS[kind])
        at = -(-at // size) * size
        out.append((member, _FORMATS[kind], at))
        at += size
    return tuple(out), at


def _check(
    name: str,
    bare: str,
    declared: list[tuple[int, str, str, str, str]],
    inputs: Named,
    outputs: Named,
    scalars: Named,
    scalar: str,
) -> tuple[tuple[str, str, int], ...]:
    """Check that a shader binds its inputs, then its outputs, then its scalars."""
    declared.sort()
    arrays = [d for d in declared if d[1] == "storage"]
    operands = [(n, d, "read") for n, d in inputs] + [(n, d, "read_write") for n, d in outputs]
    if len(arrays) != len(operands):
        raise CompileError(
            f"{name}: the shader binds {len(arrays)} arrays, but the op has {len(inputs)} inputs "
            f"and {len(outputs)} outputs, which are bound in that order"
        )
    for (binding, _, access, variable, kind), (array, dtype, wanted) in zip(
        arrays, operands, strict=True
    ):
        if (access or "read") != wanted:
            what = "an input" if wanted == "read" else "an output"
            raise CompileError(
                f"{name}: {variable} (binding {binding}) is {what}, {array!r}: declare it "
                f"var<storage, {wanted}>"
            )
        element = re.fullmatch(r"array\s*<\s*(?:vec\d\s*<\s*)?(\w+)\s*>?\s*(?:,[^>]*)?>", kind)
        if element is None:
            continue  # a struct of the user's own
        found = scalar if element[1] == "scalar" else element[1]
        expected = TYPES.get(dtype.name, ("u32", ""))[0]
        if found in {t for t, _ in TYPES.values()} and found not in (expected, "u32"):
            if expected == "vec2<f32>" and found == "f32":
                continue
            raise DTypeError(
                f"{name}: {variable} (binding {binding}) is {kind}, but {array!r} is {dtype.name}"
            )
    uniforms = [d for d in declared if d[1] == "uniform"]
    if len(uniforms) != bool(scalars):
        raise CompileError(
            f"{name}: the op has {len(scalars)} scalars, and the shader {len(uniforms)} uniform "
            "variables; it takes one, a struct of all scalars"
        )
    if not scalars:
        return ()
    body = re.search(rf"struct\s+{re.escape(uniforms[0][4])}\s*\{{([^}}]*)\}}", bare)
    members = re.findall(r"(\w+)\s*:\s*(\w+)", body[1] if body else "")
    members = [(n, scalar if t == "scalar" else t) for n, t in members]
    wanted_members = {n: _scalar_type(name, n, d) for n, d in scalars}
    if dict(members) != wanted_members or len(members) != len(scalars):
        raise CompileError(
            f"{name}: {uniforms[0][3]} is a struct of {dict(members)}; the op's scalars are "
            f"{wanted_members}"
        )
    return _fields(members)[0]


class UserKernels:
    """The pipelines of users' shaders on one device."""

    def __init__(self, session: GpuSession) -> None:
        self._session = session
        self._pipelines: dict[Shader, _Pipeline] = {}

    def clear(self) -> None:
        """Drop the pipelines of a lost device."""
        self._pipelines.clear()

    @property
    def alignment(self) -> int:
        """Bytes to which arrays must be aligned."""
        return self._session.context.limits["min-storage-buffer-offset-alignment"]

    def launch(
        self,
        shader: Shader,
        blocks: Sequence[Block],
        scalars: dict[str, int | float],
        grid: Sequence[int],
    ) -> None:
        """Run a shader over a grid of workgroups; blocks are inputs, then outputs."""
        context = self._session.alive()
        most = context.limits["max-compute-workgroups-per-dimension"]
        if max(grid) > most:
            raise DeviceError(
                f"{shader.name}: {max(grid)} workgroups along one dimension; {context.name} takes "
                f"{most} (max-compute-workgroups-per-dimension): use more dimensions (grid=...), "
                "or more work per workgroup"
            )
        limit = context.limits["max-storage-buffer-binding-size"]
        for _, _, nbytes in blocks:
            if nbytes > limit:
                raise DeviceError(
                    f"{shader.name}: an array of {nbytes} bytes; {context.name} binds {limit} "
                    "(max-storage-buffer-binding-size): use smaller arrays"
                )
        with self._session.lock:
            try:
                pipeline = self._pipelines.get(shader)
                if pipeline is None:
                    pipeline = self._pipelines[shader] = _Pipeline(context, shader)
                pipeline.launch(blocks, scalars, grid)
            except context.wgpu.GPUError as error:
                context.raise_if_lost(error)
                raise CompileError(
                    f"{shader.name}: {context.name} rejects the shader: {error}\n{shader.text}"
                ) from error


class _Pipeline:
    def __init__(self, context: GpuContext, shader: Shader) -> None:
        self._context = context
        self._shader = shader
        device, stage = context.device, context.wgpu.ShaderStage.COMPUTE
        self._layout = device.create_bind_group_layout(
            entries=[
                {"binding": b, "visibility": stage, "buffer": {"type": kind}}
                for b, kind in shader.bindings
            ]
        )
        self._pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[self._layout]),
            compute={
                "module": device.create_shader_module(code=shader.text),
                "entry_point": shader.entry,
            },
        )
        self._uniforms: OrderedDict[bytes, Any] = OrderedDict()  # by content
        self._bind_groups: OrderedDict[Any, Any] = OrderedDict()

    def launch(
        self, blocks: Sequence[Block], scalars: dict[str, int | float], grid: Sequence[int]
    ) -> None:
        context = self._context
        bind_group = self._bind_group(blocks, self._pack(scalars))
        encoder = context.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        compute.set_bind_group(0, bind_group)
        compute.dispatch_workgroups(*grid)
        compute.end()
        context.queue.submit([encoder.finish()])

    def _pack(self, scalars: dict[str, int | float]) -> bytes:
        data = bytearray(-(-max((at + 8 for *_, at in self._shader.fields), default=0) // 16) * 16)
        for member, form, at in self._shader.fields:
            value = scalars[member]
            struct.pack_into(f"<{form}", data, at, value if form in "fd" else int(value))
        return bytes(data)

    def _bind_group(self, blocks: Sequence[Block], data: bytes) -> Any:
        key = (data, *((memory.id, start, nbytes) for memory, start, nbytes in blocks))
        found = self._bind_groups.get(key)
        if found is None:
            resources = [
                {"buffer": memory.buffer, "offset": start, "size": max(4, -(-nbytes // 4) * 4)}
                for memory, start, nbytes in blocks
            ]
            if data:
                resources.append(
                    {"buffer": self._uniform_buffer(data), "offset": 0, "size": len(data)}
                )
            found = self._bind_groups[key] = self._context.device.create_bind_group(
                layout=self._layout,
                entries=[
                    {"binding": b, "resource": resource}
                    for (b, _), resource in zip(self._shader.bindings, resources, strict=True)
                ],
            )
            if len(self._bind_groups) > _MAX_CACHED:
                self._bind_groups.popitem(last=False)
        return found

    def _uniform_buffer(self, data: bytes) -> Any:
        found = self._uniforms.get(data)
        if found is None:
            usage = self._context.wgpu.BufferUsage
            found = self._uniforms[data] = self._context.device.create_buffer_with_data(
                data=data, usage=usage.UNIFORM
            )
            if len(self._uniforms) > _MAX_CACHED:
                self._uniforms.popitem(last=False)
        return found
