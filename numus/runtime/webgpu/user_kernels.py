"""User WGSL kernels: bindings parsed from the source, pipelines compiled once."""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from numus.dtypes import DType
from numus.errors import CompileError, DeviceError, DTypeError
from numus.runtime.webgpu.context import GpuContext
from numus.runtime.webgpu.memory import GpuSession, Memory

# The WGSL type of a dtype, and the feature that it takes.
TYPES = {
    **{"float32": ("f32", ""), "int32": ("i32", ""), "uint32": ("u32", "")},
    **{"float16": ("f16", "shader-f16"), "float64": ("f64", "shader-f64")},
    **{"int64": ("i64", "shader-int64"), "uint64": ("u64", "shader-int64")},
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
Fields = tuple[tuple[str, str, int], ...]  # of scalars: name, `struct` format, offset
Scalars = dict[str, int | float]


@dataclass(frozen=True)
class Shader:
    """A user's shader for one set of dtypes."""

    name: str
    text: str
    entry: str
    threads: int  # of a workgroup; 0 where the text does not tell
    bindings: tuple[tuple[int, str], ...]  # number and type, of arrays first, then of scalars
    fields: Fields


class _Declaration(NamedTuple):
    binding: int
    space: str  # "storage" or "uniform"
    access: str
    variable: str
    type: str

    def __str__(self) -> str:
        space = f"{self.space}, {self.access}" if self.access else self.space
        return f"@group(0) @binding({self.binding}) var<{space}> {self.variable}: {self.type};"


@dataclass(frozen=True)
class _Signature:
    """Name and operands of a custom op on an adapter."""

    name: str
    inputs: Named
    outputs: Named
    scalars: Named
    features: frozenset[str]

    @property
    def arrays(self) -> list[tuple[str, DType, str]]:
        """Name, dtype and access of each array, in binding order."""
        read = [(n, d, "read") for n, d in self.inputs]
        return read + [(n, d, "read_write") for n, d in self.outputs]

    def require(self, dtype: DType, feature: str) -> None:
        if feature and feature not in self.features:
            raise DTypeError(
                f"{self.name}: {dtype.name} in a shader takes the feature {feature}, which this "
                "adapter lacks; use another dtype or device"
            )

    def scalar_types(self) -> dict[str, str]:
        types = {n: TYPES.get(d.name, ("", ""))[0] for n, d in self.scalars}
        for scalar, dtype in self.scalars:
            if types[scalar] not in _FORMATS:
                raise DTypeError(
                    f"{self.name}: the scalar {scalar!r} is {dtype.name}; shaders take float32, "
                    "int32, uint32 and the 64-bit ones"
                )
        return types


def parse(
    name: str, source: str, inputs: Named, outputs: Named, scalars: Named, features: frozenset[str]
) -> Shader:
    """The shader of a source. `scalar` in it is the dtype of the first input (of the first output,
    where there are no inputs); a source without bindings gets them declared.
    """
    op = _Signature(name, inputs, outputs, scalars, features)
    bare = _COMMENT.sub(" ", source)
    first = op.arrays[0][1]
    head = []
    kind, needed = TYPES.get(first.name, ("", ""))
    if re.search(r"\bscalar\b", bare) or "@binding" not in bare:
        if kind and not kind.startswith("vec"):
            op.require(first, needed)
            head.append(f"alias scalar = {kind};")
        elif re.search(r"\bscalar\b", bare):
            known = ", ".join(d for d, (t, _) in TYPES.items() if not t.startswith("vec"))
            raise DTypeError(
                f"{name}: WGSL has no scalar for {first.name}; there are {known}: cast the first "
                "operand, or write the shader for words (array<u32>)"
            )
    found = _BINDING.findall(bare)
    if any(int(group) for group, *_ in found):
        raise CompileError(f"{name}: all bindings must be in @group(0)")
    declared = [_Declaration(int(b), s, a, v, t.strip()) for _, b, s, a, v, t in found]
    if not declared:
        declared, lines = _declare(op, first)
        head += lines
        fields = _fields(op.scalar_types().items())
    else:
        fields = _check(op, bare, declared, kind)
    entries = _ENTRY.findall(bare)
    if len(entries) != 1:
        raise CompileError(
            f"{name}: a shader must have one @compute function; this one has {len(entries)}"
        )
    attributes, entry = entries[0]
    head = [*(["enable f16;"] if re.search(r"\bf16\b", bare + "".join(head)) else []), *head]
    text = "\n".join([*head, re.sub(r"\benable\s+f16\s*;", "", source)])
    bindings = [
        (d.binding, "storage" if d.access == "read_write" else "read-only-storage")
        for d in declared
        if d.space == "storage"
    ]
    bindings += [(d.binding, "uniform") for d in declared if d.space == "uniform"]
    return Shader(name, text, entry, _workgroup_size(attributes), tuple(bindings), fields)


def _workgroup_size(attributes: str) -> int:
    found = _WORKGROUP_SIZE.search(attributes)
    total = 1
    for part in found[1].split(",") if found else ["0"]:
        size = part.strip().rstrip("u")
        if size:
            total *= int(size) if size.isdecimal() else 0
    return total


def _declare(op: _Signature, first: DType) -> tuple[list[_Declaration], list[str]]:
    """Declarations of all arrays, and of the scalars as members of `p`; and their text."""
    declared, struct_ = [], []
    for i, (array, dtype, access) in enumerate(op.arrays):
        kind, feature = TYPES.get(dtype.name, ("u32", ""))  # smaller ones are packed into words
        op.require(dtype, feature)
        if dtype is first and kind != "u32" and not kind.startswith("vec"):
            kind = "scalar"
        declared.append(_Declaration(i, "storage", access, array, f"array<{kind}>"))
    if op.scalars:
        members = ", ".join(f"{n}: {kind}" for n, kind in op.scalar_types().items())
        declared.append(_Declaration(len(declared), "uniform", "", "p", "Numbers"))
        struct_.append(f"struct Numbers {{ {members} }}")
    return declared, [*struct_, *map(str, declared)]


def _fields(members: Iterable[tuple[str, str]]) -> Fields:
    """Name, `struct` format and offset of each scalar."""
    offset, out = 0, []
    for member, kind in members:
        size = struct.calcsize(_FORMATS[kind])
        offset = -(-offset // size) * size
        out.append((member, _FORMATS[kind], offset))
        offset += size
    return tuple(out)


def _check(op: _Signature, bare: str, declared: list[_Declaration], scalar: str) -> Fields:
    """Check that a shader binds its inputs, then its outputs, then its scalars."""
    declared.sort()
    arrays = [d for d in declared if d.space == "storage"]
    if len(arrays) != len(op.arrays):
        raise CompileError(
            f"{op.name}: the shader binds {len(arrays)} arrays, but the op has {len(op.inputs)} "
            f"inputs and {len(op.outputs)} outputs, which are bound in that order"
        )
    for d, (array, dtype, access) in zip(arrays, op.arrays, strict=True):
        label = f"{op.name}: {d.variable} (binding {d.binding}) is"
        if (d.access or "read") != access:
            role = "an input" if access == "read" else "an output"
            raise CompileError(f"{label} {role}, {array!r}: declare it var<storage, {access}>")
        element = re.fullmatch(r"array\s*<\s*(?:vec\d\s*<\s*)?(\w+)\s*>?\s*(?:,[^>]*)?>", d.type)
        if element is None:
            continue  # a struct of the user's own
        found = scalar if element[1] == "scalar" else element[1]
        expected = TYPES.get(dtype.name, ("u32", ""))[0]
        if found in {t for t, _ in TYPES.values()} and found not in (expected, "u32"):
            if expected == "vec2<f32>" and found == "f32":
                continue
            raise DTypeError(f"{label} {d.type}, but {array!r} is {dtype.name}")
    uniforms = [d for d in declared if d.space == "uniform"]
    if len(uniforms) != bool(op.scalars):
        raise CompileError(
            f"{op.name}: the op has {len(op.scalars)} scalars, and the shader {len(uniforms)} "
            "uniform variables; it takes one, a struct of all scalars"
        )
    if not op.scalars:
        return ()
    body = re.search(rf"struct\s+{re.escape(uniforms[0].type)}\s*\{{([^}}]*)\}}", bare)
    members = re.findall(r"(\w+)\s*:\s*(\w+)", body[1] if body else "")
    members = [(n, scalar if t == "scalar" else t) for n, t in members]
    if dict(members) != op.scalar_types() or len(members) != len(op.scalars):
        raise CompileError(
            f"{op.name}: {uniforms[0].variable} is a struct of {dict(members)}; the op's scalars "
            f"are {op.scalar_types()}"
        )
    return _fields(members)


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
        self, shader: Shader, blocks: Sequence[Block], scalars: Scalars, grid: Sequence[int]
    ) -> None:
        """Run a shader over a grid of workgroups; blocks are inputs, then outputs."""
        context = self._session.alive()
        cap = context.limits["max-compute-workgroups-per-dimension"]
        if max(grid) > cap:
            raise DeviceError(
                f"{shader.name}: {max(grid)} workgroups along one dimension; {context.name} takes "
                f"{cap} (max-compute-workgroups-per-dimension): use more dimensions (grid=...), "
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
        self._layout, layout = context.layouts(shader.bindings)
        module = context.device.create_shader_module(code=shader.text)
        self._pipeline = context.device.create_compute_pipeline(
            layout=layout, compute={"module": module, "entry_point": shader.entry}
        )
        self._uniforms: OrderedDict[bytes, Any] = OrderedDict()  # by content
        self._bind_groups: OrderedDict[Any, Any] = OrderedDict()

    def launch(self, blocks: Sequence[Block], scalars: Scalars, grid: Sequence[int]) -> None:
        context = self._context
        bind_group = self._bind_group(blocks, self._pack(scalars))
        encoder = context.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(self._pipeline)
        compute.set_bind_group(0, bind_group)
        compute.dispatch_workgroups(*grid)
        compute.end()
        context.queue.submit([encoder.finish()])

    def _pack(self, scalars: Scalars) -> bytes:
        data = bytearray(-(-max((at + 8 for *_, at in self._shader.fields), default=0) // 16) * 16)
        for member, form, at in self._shader.fields:
            value = scalars[member]
            struct.pack_into(f"<{form}", data, at, value if form in "fd" else int(value))
        return bytes(data)

    def _bind_group(self, blocks: Sequence[Block], data: bytes) -> Any:
        device, usage = self._context.device, self._context.wgpu.BufferUsage.UNIFORM

        def create() -> Any:
            resources = [
                {"buffer": memory.buffer, "offset": start, "size": max(4, -(-nbytes // 4) * 4)}
                for memory, start, nbytes in blocks
            ]
            if data:
                upload = partial(device.create_buffer_with_data, data=data, usage=usage)
                buffer = _cached(self._uniforms, data, upload)
                resources.append({"buffer": buffer, "offset": 0, "size": len(data)})
            pairs = zip(self._shader.bindings, resources, strict=True)
            entries = [{"binding": b, "resource": resource} for (b, _), resource in pairs]
            return device.create_bind_group(layout=self._layout, entries=entries)

        key = (data, *((memory.id, start, nbytes) for memory, start, nbytes in blocks))
        return _cached(self._bind_groups, key, create)


def _cached(cache: OrderedDict[Any, Any], key: Any, create: Callable[[], Any]) -> Any:
    found = cache.get(key)
    if found is None:
        found = cache[key] = create()
        if len(cache) > _MAX_CACHED:
            cache.popitem(last=False)
    return found
