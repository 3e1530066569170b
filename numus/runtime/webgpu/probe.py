"""Probe of an adapter's arithmetic: fma, division, square root, float16, subnormals, loop limits.

WGSL leaves their rounding open. A few values are computed on the device and compared with the exact
ones; inexact operations are emulated in kernels (`codegen/wgsl/prelude.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from numus.codegen.wgsl.target import WgslTarget

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

# Mesa's software renderer leaves loops after 65535 iterations.
_ITERATIONS = 70000
_LOOP = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> c: array<f32>;
@group(0) @binding(3) var<storage, read_write> r: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  var count = 0.0;
  for (var i = 0.0; i < a[id.x]; i += 1.0) { count += b[u32(count) % 64u] / c[0]; }
  r[id.x] = count;
}
"""

_HALVES = """
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> r: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  for (var i = id.x; i < 32768u; i += 512u) {
    let both = unpack2x16float(a[i]);
    r[2u * i] = bitcast<u32>(both.x);
    r[2u * i + 1u] = bitcast<u32>(both.y);
  }
}
"""


def measured(device: Any, queue: Any, target: WgslTarget) -> WgslTarget:
    """The target with the measured flags."""
    fma32, div32, sqrt32, subnormals = _try(device, queue, np.float32)
    fma64 = target.f64 and all(_try(device, queue, np.float64)[:3])
    bounds = np.full(_COUNT, _ITERATIONS, np.float32)
    iterations = _run(device, queue, _LOOP, (bounds,) * 3)[0]
    return dataclasses.replace(
        target,
        exact_fma32=fma32,
        exact_fma64=fma64,
        exact_div32=div32,
        exact_sqrt32=sqrt32,
        exact_unpack16=_unpacks_halves(device, queue),
        subnormals=subnormals,
        max_loop_iterations=0 if iterations == _ITERATIONS else int(iterations) // 2,
    )


def _try(device: Any, queue: Any, kind: Any) -> tuple[bool, bool, bool, bool]:
    wide = kind is np.float64
    rng = np.random.default_rng(7)
    a, b = (rng.normal(size=_COUNT).astype(kind) for _ in range(2))
    # a * b - (a * b): an exact fma gives the rounding error of the product
    c = (-(a * b)).astype(kind)
    # products of these are subnormal
    d = np.full(_COUNT, 2.0**-515 if wide else 2.0**-67, kind) * (1 + np.arange(_COUNT) % 2)
    d = d.astype(kind)
    source = _SOURCE.format(f="f64" if wide else "f32", n=_COUNT)
    r = _run(device, queue, source, (a, b, c, d)).reshape(4, _COUNT)
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


def _unpacks_halves(device: Any, queue: Any) -> bool:
    """All float16 values become float32 unchanged, subnormals too."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    found = _run(device, queue, _HALVES, (halves.view(np.uint32),))[: 1 << 16].view(np.float32)
    wanted = halves.view(np.float16).astype(np.float32)
    same = found.view(np.uint32) == wanted.view(np.uint32)
    return bool(np.all(same | (np.isnan(found) & np.isnan(wanted))))


def _exact(x: float, y: float) -> Any:
    from fractions import Fraction

    return Fraction(float(x)) * Fraction(float(y))


def _run(device: Any, queue: Any, source: str, inputs: tuple[Any, ...]) -> Any:
    import wgpu

    usage = wgpu.BufferUsage
    buffers = [device.create_buffer_with_data(data=x, usage=usage.STORAGE) for x in inputs]
    nbytes = 4 * inputs[0].nbytes
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
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(_COUNT // 64)
    compute.end()
    queue.submit([encoder.finish()])
    return np.frombuffer(queue.read_buffer(result), inputs[0].dtype)
