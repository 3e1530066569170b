"""How exact an adapter's arithmetic is: a few numbers are computed on it, and compared.

WGSL leaves much open: whether `fma` rounds once, whether quotients and square roots are correctly
rounded, what becomes of subnormal numbers. What turns out not to be exact is written out in
kernels with what is (`compiler/render/wgsl_prelude.py`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.codegen.wgsl.target import WgslTarget

if TYPE_CHECKING:
    from numus.runtime.webgpu.context import GpuContext

_COUNT = 512

_SOURCE = """
@group(0) @binding(0) var<storage, read> a: array<{f}>;
@group(0) @binding(1) var<storage, read> b: array<{f}>;
@group(0) @binding(2) var<storage, read> c: array<{f}>;
@group(0) @binding(3) var<storage, read> d: array<{f}>;
@group(0) @binding(4) var<storage, read_write> r: array<{f}>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
  let i = id.x;
  r[i] = fma(a[i], b[i], c[i]);
  r[i + {n}u] = a[i] / b[i];
  r[i + 2u * {n}u] = sqrt(abs(a[i]));
  r[i + 3u * {n}u] = d[i] * d[{n}u - 1u - i];
}}
"""

# Mesa's software renderer leaves loops after 65535 turns.
_TURNS = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> c: array<f32>;
@group(0) @binding(3) var<storage, read_write> r: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  var turns = 0.0;
  for (var i = 0.0; i < a[id.x]; i += 1.0) { turns += b[u32(turns) % 64u] / c[0]; }
  r[id.x] = turns;
}
"""


def measured(context: GpuContext, target: WgslTarget) -> WgslTarget:
    """The target with what was found out."""
    fuses, divides, roots, subnormals = _try(context, np.float32)
    fuses64 = target.f64 and all(_try(context, np.float64)[:3])
    turns = _run(context, _TURNS, (np.full(_COUNT, 70000, np.float32),) * 3)[0]
    return dataclasses.replace(
        target,
        fuses32=fuses,
        fuses64=fuses64,
        divides=divides,
        roots=roots,
        subnormals=subnormals,
        max_loop_iterations=0 if turns == 70000 else int(turns) // 2,
    )


def _try(context: GpuContext, kind: Any) -> tuple[bool, bool, bool, bool]:
    wide = kind is np.float64
    rng = np.random.default_rng(7)
    a, b = (rng.normal(size=_COUNT).astype(kind) for _ in range(2))
    # a product that is not representable, taken off itself: what is left is its rounding error
    c = (-(a * b)).astype(kind)
    # products of these are subnormal
    d = np.full(_COUNT, 2.0**-515 if wide else 2.0**-67, kind) * (1 + np.arange(_COUNT) % 2)
    d = d.astype(kind)
    source = _SOURCE.format(f="f64" if wide else "f32", n=_COUNT)
    r = _run(context, source, (a, b, c, d)).reshape(4, _COUNT)
    if wide:
        triples = zip(a, b, c, strict=True)
        error = np.array([float(_exact(x, y) + _exact(z, 1.0)) for x, y, z in triples])
    else:
        error = (a.astype(np.float64) * b + c).astype(kind)
    return (
        bool(np.array_equal(r[0], error.astype(kind))),
        bool(np.array_equal(r[1], a / b)),
        bool(np.array_equal(r[2], np.sqrt(np.abs(a)))),
        bool(np.array_equal(r[3], d * d[::-1])),
    )


def _exact(x: float, y: float) -> Any:
    from fractions import Fraction

    return Fraction(float(x)) * Fraction(float(y))


def _run(context: GpuContext, source: str, given: tuple[Any, ...]) -> Any:
    wgpu, device = context.wgpu, context.device
    usage = wgpu.BufferUsage
    buffers = [device.create_buffer_with_data(data=x, usage=usage.STORAGE) for x in given]
    nbytes = 4 * given[0].nbytes
    result = device.create_buffer(size=nbytes, usage=usage.STORAGE | usage.COPY_SRC)
    module = device.create_shader_module(code=source)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    entries = [
        {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
        for i, b in enumerate([*buffers, result])
    ]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    work.dispatch_workgroups(_COUNT // 64)
    work.end()
    context.submit([encoder.finish()])
    return np.frombuffer(context.queue.read_buffer(result), given[0].dtype)
