"""Rendering to WGSL, without an adapter."""

import re

import numpy as np
import pytest

import numus as nm
from numus import dtypes as dt
from numus import ir
from numus.codegen.wgsl import renderer
from numus.codegen.wgsl.bindings import Variant
from numus.codegen.wgsl.index_width import IndexWidth
from numus.codegen.wgsl.target import WgslTarget
from numus.compiler.plan import clear_plans
from numus.runtime import devices
from numus.runtime.null import NullRuntime
from numus.target import Target

SHADERS = WgslTarget(
    block_size=256,
    shared_bytes=48 << 10,
    i64=True,
    f64=True,
    f16=True,
    subgroups=True,
    exact_fma32=True,
    exact_unpack16=True,
)
TARGET = Target(
    name="wgsl",
    description="a GPU through WebGPU, as far as schedules care",
    dtypes=frozenset(d.name for d in dt.ALL),
    vector_bytes=1024,
    vector_registers=64,
    l1_bytes=48 << 10,
    l2_bytes=4 << 20,
    num_cores=128,
    language="wgsl",
    packed_storage=True,
    block_size=256,
    max_block_size=1024,
    shared_bytes=48 << 10,
    static_shared=True,
)


class WgslRuntime(NullRuntime):
    """Renders every kernel and runs nothing."""

    def __init__(self):
        super().__init__()
        self.target = TARGET
        self.kernels = []

    def compile(self, kernel):
        program = super().compile(kernel)
        self.kernels.append(kernel)
        return program


devices.BACKENDS.setdefault("wgsl", lambda index: WgslRuntime())


@pytest.fixture
def shaders():
    """The WGSL of what a function launches."""

    def found(f):
        runtime = nm.device("wgsl").runtime
        runtime.kernels.clear()
        runtime._programs.clear()
        clear_plans()
        nm.eval(f())
        return {k.name: renderer.render(k, SHADERS).source for k in runtime.kernels}

    return found


def zeros(shape, dtype):
    x = nm.zeros(shape, dtype=dtype, device="wgsl")
    nm.eval(x)
    return x


@pytest.mark.parametrize("n", [1 << 24, 1 << 12, 1000])
def test_transforms_access_pairs_and_count_in_32_bits(shaders, n):
    x = zeros(n, "complex64")
    found = shaders(lambda: nm.fft.fft(x))
    assert len(found) == (3 if n == 1 << 24 else 1)
    for text in found.values():
        assert len(re.findall(r"var<storage, .*> b\d: array<vec2<f32>>", text)) == 3
        assert "var<workgroup> b3: array<vec2<f32>" in text
        assert not re.search(r"i64|hide32|\[\(", text)
        assert re.search(r"b2\[o2v \+ \w+\] = vec2<f32>\(", text)


def test_only_the_transform_itself_is_relaxed(shaders):
    x, y = zeros(256, "float32"), zeros(256, "float32")
    (text,) = shaders(lambda: nm.fft.fft(nm.complex(x * y + 1.0, x))).values()
    hidden = re.findall(r"(\w+) = hide32\(", text)
    assert 0 < len(hidden) <= 2 * 16  # a product and a sum of each point of a thread


def test_unaligned_buffers_are_accessed_by_elements():
    x, y = ir.Buffer("x", dt.float32, "read"), ir.Buffer("y", dt.float32, "write")
    b, i = ir.var("b"), ir.var("i")
    names = [ir.var(f"v{k}", dt.float32) for k in range(4)]
    body = [ir.Let(name, ir.load(x, i * 4 + k)) for k, name in enumerate(names)]
    body += [ir.Store(y, i * 4 + k, name) for k, name in enumerate(reversed(names))]
    loop = ir.For(i, b * 64, b * 64 + 64, "lanes", body)
    grid = ir.For(b, ir.const(0), ir.scalar("n"), "grid", [loop])
    kernel = ir.Kernel("reversed", (x, y), (("n", ir.INDEX),), [grid])
    text = renderer.render(kernel, SHADERS).source
    assert text.count("array<vec4<f32>>") == 2
    iterations = len(re.findall(r"= b0\[", text))
    assert len(re.findall(r"b1\[.*\] = vec4", text)) == iterations
    text = renderer.render(kernel, SHADERS, Variant(unaligned=frozenset({1}))).source
    assert "b1: array<f32>" in text
    assert len(re.findall(r"b1\[", text)) == 4 * iterations


@pytest.mark.parametrize("format", ["int4-g128", "q8-b128"])
def test_products_of_codes_count_in_32_bits(shaders, format):
    q = nm.quant.quantize(nm.ones((64, 1024)), format)
    q = q.to("wgsl")
    x = zeros((1, 1024), "float32")
    (text,) = shaders(lambda: x @ q.T).values()
    assert "array<vec4<f32>>" in text  # the activations
    assert not re.search(r"i64|hide32", text)


def test_ranges_of_shifts_and_masks():
    n, i = ir.scalar("n"), ir.var("i")
    x, y = ir.Buffer("x", dt.float32, "read"), ir.Buffer("y", dt.float32, "write")
    at = (i >> 3) * 8 + (i & 7)
    body = [ir.Store(y, at, ir.load(x, at))]
    grid = ir.For(i, ir.const(0), n, "grid", body)
    kernel = ir.Kernel("copy", (x, y), (("n", ir.INDEX),), [grid])
    widths = IndexWidth(kernel)
    assert {at, i >> 3, i & 7} <= widths.int32
    assert widths.fits({"n": 1 << 30})
    assert not widths.fits({"n": 1 << 32})
    grid = ir.For(i, ir.const(0), n, "grid", [ir.Store(y, i >> 40, ir.const(0.0, dt.float32))])
    assert i >> 40 not in IndexWidth(ir.Kernel("far", (y,), kernel.scalars, [grid])).int32


@pytest.mark.skipif(not devices.count("webgpu"), reason="there is no adapter for WebGPU here")
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_transforms_of_views(start):
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((2, 3 + 8192)).astype(np.float32)
    x = (parts[0] + 1j * parts[1]).astype(np.complex64)
    real, whole = (nm.asarray(a).to("webgpu") for a in (parts[0], x))
    nm.eval(real, whole)
    for given, host in ((real, parts[0]), (whole, x)):
        want = np.fft.fft(host[start : start + 8192].astype(np.complex128))
        got = nm.fft.fft(given[start : start + 8192]).numpy()
        assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()
        inverse = nm.fft.ifft(given[start : start + 1000] * 2).numpy()
        want = np.fft.ifft(host[start : start + 1000].astype(np.complex128) * 2)
        assert np.abs(inverse - want).max() < 1e-6 * np.abs(want).max()
