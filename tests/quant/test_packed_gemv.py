"""Products of floats with packed codes: the GPU's kernel, interpreted, and the CPU's."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.functions._base import wrap
from numus.primitives.quantized.packed import packed_gemv, unpack
from numus.quant.products import packing_of
from numus.runtime import devices

devices.BACKENDS["simt_warps"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
devices.BACKENDS["simt_blocks"] = lambda index: simt_machine.Machine(simt_machine.TARGET)
rng = np.random.default_rng(5)


def operands(format, rows, columns, vectors, device, dtype):
    w = nm.asarray(rng.standard_normal((rows, columns), dtype=np.float32))
    x = nm.asarray(rng.standard_normal((vectors, columns), dtype=np.float32)).astype(dtype)
    q = nm.quant.quantize(w, format)
    wanted = x.astype(nm.float32).numpy().astype(float) @ q.dequantize().numpy().T.astype(float)
    return x.to(device), q.to(device), wanted


@pytest.mark.parametrize(
    ("format", "rows", "columns", "vectors", "dtype"),
    [
        ("int4-g64", 9, 512, 1, "bfloat16"),
        ("int4-g128", 9, 512, 3, "float32"),
        ("int4-g32", 5, 640, 1, "float32"),
        ("uint4-g64", 6, 1024, 1, "float16"),
        ("int8-row", 7, 528, 1, "float32"),
        ("q8-b32", 5, 384, 1, "bfloat16"),
        ("int4-row", 300, 1024, 1, "float32"),
        ("q8-b128", 5, 4224, 1, "bfloat16"),  # by dot products of bytes, as the next ones
        ("uint4-g128", 6, 1152, 1, "float16"),
        ("uint4-g128", 6, 1088, 1, "float16"),  # not by these: its last step is not whole
        ("int8-row", 7, 528, 1, "bfloat16"),
    ],
)
def test_warps(format, rows, columns, vectors, dtype):
    x, q, wanted = operands(format, rows, columns, vectors, "simt_warps", dtype)
    runtime = nm.device("simt_warps").runtime
    runtime.launched.clear()
    y = x @ q.T
    found = y.astype("float32").numpy()
    assert "packed_gemv" in [p.name for p in runtime.launched]
    assert y.dtype.name == dtype
    bound = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize("on", ["simt_blocks", "webgpu"])
@pytest.mark.parametrize(
    ("format", "rows", "columns", "vectors", "dtype"),
    [
        ("int4-g128", 19, 1024, 1, "float32"),
        ("q8-b128", 17, 640, 1, "float32"),
        ("int4-g32", 5, 1056, 3, "float32"),
        ("uint4-g64", 6, 320, 8, "float32"),
        ("uint4-g64", 3, 1024, 1, "float16"),
        ("int8-row", 7, 528, 2, "bfloat16"),
        ("q8-b32", 5, 384, 1, "float16"),
        ("int4-row", 1, 544, 1, "float32"),
        ("int4-g128", 9, 4096, 2, "float32"),
        ("int4-g128", 9, 2048, 8, "float32"),
        ("int2-g64", 5, 320, 1, "float32"),
        ("int8-row", 3, 516, 1, "float32"),
    ],
)
def test_blocks(format, rows, columns, vectors, dtype, on):
    if not devices.count(on):
        pytest.skip("there is no adapter for WebGPU here")
    x, q, wanted = operands(format, rows, columns, vectors, on, dtype)
    y = nm.relu(x @ q.T)
    found = y.astype("float32").numpy()
    runtime = nm.device(on).runtime
    log = runtime.launched if on == "simt_blocks" else list(runtime.compile_log)
    assert "packed_gemv" in [p.name for p in log]
    assert y.dtype.name == dtype
    bound = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert np.abs(found - np.maximum(wanted, 0)).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("format", "rows", "columns", "vectors", "dtype"),
    [
        ("int4-g128", 9, 512, 9, "bfloat16"),
        ("int4-g128", 40, 1152, 1, "bfloat16"),
        ("uint4-g128", 19, 1024, 4, "bfloat16"),
        ("uint4-g128", 70, 1152, 17, "float16"),
        ("q8-b128", 5, 2304, 16, "bfloat16"),
        ("int4-g128", 35, 256, 37, "bfloat16"),
        ("uint4-g32", 37, 1056, 40, "float16"),
        ("int8-row", 7, 528, 33, "bfloat16"),
        ("int4-g128", 40, 1152, 41, "bfloat16"),
        ("int4-g64", 20, 640, 3, "float16"),
        ("uint4-g32", 18, 1056, 10, "bfloat16"),
        ("q8-b32", 5, 352, 9, "float16"),
        ("int8-row", 7, 528, 11, "float16"),
    ],
)
def test_tensor_cores(format, rows, columns, vectors, dtype):
    x, q, wanted = operands(format, rows, columns, vectors, "simt_warps", dtype)
    runtime = nm.device("simt_warps").runtime
    runtime.launched.clear()
    y = nm.relu(x @ q.T)
    found = y.astype("float32").numpy()
    assert runtime.launched[0].name == "packed_gemv_mma"
    assert y.dtype.name == dtype
    bound = {"float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert np.abs(found - np.maximum(wanted, 0)).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("format", "rows", "columns", "vectors", "dtype"),
    [
        ("int4-g128", 40, 4096, 1, "bfloat16"),
        ("uint4-g128", 35, 4224, 1, "float16"),  # a warp's last step is past the end
        ("int8-row", 40, 2064, 1, "bfloat16"),
        ("uint8-g64", 33, 1088, 1, "float16"),
        ("uint4-g128", 33, 9344, 1, "bfloat16"),  # several iterations
    ],
)
def test_bytes_on_tensor_cores(format, rows, columns, vectors, dtype):
    x, q, wanted = operands(format, rows, columns, vectors, "simt_warps", dtype)
    runtime = nm.device("simt_warps").runtime
    runtime.launched.clear()
    found = (x @ q.T).astype("float32").numpy()
    kernel = runtime.launched[-1].kernel
    assert kernel.name == "packed_gemv_mma"
    mmas = [s for s in ir.statements(kernel.body) if isinstance(s, ir.MmaSync)]
    assert {s.dtype for s in mmas} == {nm.int8}
    bound = {"float16": 1e-3, "bfloat16": 8e-3}[dtype]
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("format", "rows", "columns", "dtype"),
    [
        ("int4-g128", 3, 5120, "bfloat16"),
        ("uint4-g32", 5, 160, "float32"),
        ("q8-b32", 2, 2080, "float16"),
        ("uint8-row", 4, 48, "bfloat16"),
    ],
)
@pytest.mark.parametrize("on", ["simt_warps", "cpu"])
def test_codes_are_unpacked_once_for_many_rows(format, rows, columns, dtype, on):
    w = nm.asarray(rng.standard_normal((rows, columns), dtype=np.float32))
    q = nm.quant.quantize(w, format)
    p, kind = packing_of(q), getattr(nm, dtype)
    codes, *rest = (t.to(on) for t in q.parts)
    parts = (codes.reshape(1, rows, codes.size // rows), *(rest or [nm.ones((1, 1)).to(on)]))

    def values(*parts):
        return wrap(unpack(tuple(t._node for t in parts), p, columns, kind))

    wanted = q.dequantize(kind).numpy()
    np.testing.assert_array_equal(values(*parts).numpy(), wanted)
    both = nm.vmap(values)(*(nm.stack([t, t]) for t in parts)).numpy()
    np.testing.assert_array_equal(both[1], wanted)


def test_products_of_many_rows_and_their_gradients():
    x, q, wanted = operands("int4-g32", 6, 256, 40, "simt_warps", "float32")
    runtime = nm.device("simt_warps").runtime
    runtime.launched.clear()
    np.testing.assert_allclose((x @ q.T).numpy(), wanted, atol=1e-4)
    assert "unpack" in [p.name for p in runtime.launched]
    jitted = nm.jit(lambda x: x @ q.T)
    for _ in range(3):  # in every run: captured weights stay packed
        runtime.launched.clear()
        np.testing.assert_allclose(jitted(x).numpy(), wanted, atol=1e-4)
        assert "unpack" in [p.name for p in runtime.launched]
    slope = nm.grad(lambda x: (x @ q.T).sum())(x).numpy()
    expected = q.to("cpu").dequantize().numpy().sum(0)
    np.testing.assert_allclose(slope, np.broadcast_to(expected, slope.shape), atol=1e-4)


@pytest.mark.parametrize("format", ["int8-row", "int4-tensor"])
def test_rounded_activations_are_multiplied_as_integers(format):
    x, q, _ = operands(format, 19, 96, 33, "simt_warps", "float32")
    runtime = nm.device("simt_warps").runtime
    runtime.launched.clear()
    found = nm.quant.matmul(x, q.T, activations="int8").numpy()
    assert {"unpack", "mma_sync_gemm"} <= {p.name for p in runtime.launched}
    a = x.numpy().astype(float)
    unit = np.abs(a).max(1, keepdims=True) / 127
    wanted = np.round(a / unit) * unit @ q.to("cpu").dequantize().numpy().T.astype(float)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_activations_are_stored_once():
    """An expression of them would be computed by every warp."""
    x, q, wanted = operands("int4-g32", 40, 256, 1, "simt_warps", "float32")
    nm.eval(x)
    runtime = nm.device("simt_warps").runtime
    runtime.launched.clear()
    found = ((x * 3 - x) @ q.T).numpy()
    names = [p.name for p in runtime.launched]
    assert len(names) == 2
    assert names[-1] == "packed_gemv"
    np.testing.assert_allclose(found, 2 * wanted, atol=2e-4)


@pytest.mark.parametrize(
    ("dtype", "format"),
    [("bfloat16", "int4-g32"), ("bfloat16", "int4-g128"), ("float32", "int4-g32")],
)
def test_norms_gates_and_residuals_are_inside(dtype, format):
    weight = nm.asarray(rng.standard_normal(256, dtype=np.float32)).astype(dtype)
    shapes = {"gate": (9, 256), "up": (9, 256), "down": (256, 320)}
    matrices = {
        name: nm.quant.quantize(nm.asarray(rng.standard_normal(s, dtype=np.float32)), format)
        for name, s in shapes.items()
    }
    x = nm.asarray(rng.standard_normal((1, 256), dtype=np.float32)).astype(dtype)
    wide = nm.asarray(rng.standard_normal((1, 320), dtype=np.float32)).astype(dtype)

    def layer(x, wide, weight, gate, up, down):
        y = x.astype(nm.float32, copy=False)
        scaled = y * nm.rsqrt(nm.mean(y * y, axis=-1, keepdims=True) + 1e-5)
        h = weight * scaled.astype(x.dtype, copy=False)
        return nm.silu(h @ gate.T) * (h @ up.T), x + wide @ down.T

    def dense(m):
        return m.dequantize(x.dtype)

    want = layer(x, wide, weight, *map(dense, matrices.values()))
    on = "simt_warps"
    runtime = nm.device(on).runtime
    given = [v.to(on) for v in (x, wide, weight, *matrices.values())]
    nm.eval(*given[:3])
    runtime.launched.clear()
    found = layer(*given)
    nm.eval(*found)
    assert {p.name for p in runtime.launched} <= {"packed_gemv", "packed_gemv_mma"}
    bound = {"float32": 3e-5, "bfloat16": 2e-2}[dtype]
    for a, b in zip(found, want, strict=True):
        a, b = a.astype("float32").numpy(), b.astype("float32").numpy()
        assert np.abs(a - b).max() < bound * np.abs(b).max()


def test_misaligned_activations_and_rows_of_zeros():
    x, q, wanted = operands("int4-g32", 4, 256, 1, "simt_warps", "float32")
    base = nm.concat([nm.zeros((1, 1), device="simt_warps"), x], axis=1)
    nm.eval(base)
    found = (base[:, 1:] @ q.T).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert (nm.zeros((1, 256), device="simt_warps") @ q.T).numpy().max() == 0


@pytest.mark.parametrize("rows", [4, 40])  # by dot products of bytes, on tensor cores
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e36, 1e-40])
def test_extreme_activations(rows, value):
    x, q, _ = operands("int8-row", rows, 512, 1, "cpu", "bfloat16")
    x = x.astype("float32").numpy() * (1e-38 if value == 1e-40 else 1)
    x[0, 3] = value
    x = nm.asarray(x).astype("bfloat16")
    wanted = (x @ q.T).astype("float32").numpy()
    found = (x.to("simt_warps") @ q.to("simt_warps").T).astype("float32").numpy()
    bound = 8e-3 * np.abs(np.nan_to_num(wanted)).max() + 1e-30
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("format", ["int4-g128", "uint8-g32", "q8-b32"])
def test_tasks_of_a_cpu(format):
    x, q, wanted = operands(format, 6, 256, 2, "cpu", "float32")
    p = packing_of(q)
    codes, *rest = q.parts
    codes = codes.reshape(1, 6, codes.size // 6)
    rest = rest or [nm.ones((1, 1), device="cpu")]

    def product(x):
        parts = tuple(t._node for t in (codes, *rest))
        return wrap(packed_gemv(x.reshape(1, 2, 256)._node, parts, p))

    np.testing.assert_allclose(product(x).numpy(), wanted, atol=1e-4)
    both = nm.vmap(product)(nm.stack([x, 2 * x])).numpy()
    np.testing.assert_allclose(both[1], 2 * wanted, atol=2e-4)
