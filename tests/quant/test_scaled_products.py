"""Products of float8 in blocks and of int8 with codes: the GPU's kernels, interpreted."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.functions._base import wrap
from numus.primitives.quantized.scaled_matmul import code_matmul, scaled_matmul
from numus.quant.qtensor import QTensor

simt_machine.install()
rng = np.random.default_rng(8)
E4M3 = nm.float8_e4m3fn


def operands(m, n, k):
    """Codes and scales of A and B, and their product."""
    blocks = -(-k // 128)
    shapes = (m, k), (m, blocks), (n, k), (-(-n // 128), blocks)
    drawn = [nm.asarray(rng.standard_normal(s, dtype=np.float32)) for s in shapes]
    drawn[::2] = [x.astype(E4M3) for x in drawn[::2]]
    a, a_scales, b, b_scales = (x.astype("float32").numpy().astype(float) for x in drawn)
    wide = [np.repeat(x, 128, 1)[:, :k] for x in (a_scales, np.repeat(b_scales, 128, 0)[:n])]
    return drawn, (a * wide[0]) @ (b * wide[1]).T


def product(*parts, dtype=nm.float32):
    return wrap(scaled_matmul(tuple(t._node for t in parts), dtype))


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((70, 144, 272), "rows"),
        ((33, 19, 128), "rows"),
        ((20, 24, 144), "misaligned"),
        ((130, 392, 272), "rows"),
        ((130, 391, 128), "misaligned"),
        ((130, 392, 144), "misaligned"),
    ],
)
def test_scales_of_blocks(shape, view):
    parts, wanted = operands(*shape)
    parts = [p.to("simt_wgmma") for p in parts]
    if view == "misaligned":
        flat = nm.concat([nm.zeros(1, dtype=E4M3, device="simt_wgmma"), parts[2].reshape(-1)])
        nm.eval(flat)
        parts[2] = flat[1:].reshape(*parts[2].shape)
    else:
        both = nm.concat([parts[2], parts[2]], axis=1)
        nm.eval(both)
        parts[2] = both[:, : parts[2].shape[1]]
    nm.eval(parts)
    runtime = nm.device("simt_wgmma").runtime
    runtime.launched.clear()
    found = nm.relu(product(*parts)).numpy()
    assert [p.name for p in runtime.launched] == ["wgmma_gemm"]
    np.testing.assert_allclose(found, np.maximum(wanted, 0), atol=1e-4 * np.abs(wanted).max())


def test_results_rounded_to_few_bits():
    parts, wanted = operands(130, 400, 272)
    parts = [p.to("simt_wgmma") for p in parts]
    nm.eval(parts)
    runtime = nm.device("simt_wgmma").runtime
    runtime.launched.clear()
    for dtype, bound in ((nm.float32, 1e-4), (nm.bfloat16, 8e-3), (E4M3, 7e-2)):
        found = product(*parts, dtype=nm.float32 if dtype is E4M3 else dtype)
        found = found.astype(dtype, copy=False)
        nm.eval(found)
        assert runtime.launched[-1].name == "wgmma_gemm"
        found = found.astype("float32").numpy()
        np.testing.assert_allclose(found, wanted, atol=bound * np.abs(wanted).max())


def test_batches():
    parts, wanted = operands(3, 5, 130)
    both = nm.vmap(product)(*(nm.stack([p, p]).to("reference") for p in parts)).numpy()
    np.testing.assert_allclose(both[1], wanted, rtol=1e-5, atol=1e-5)


def test_rounded_activations():
    x = nm.asarray(rng.standard_normal((40, 256), dtype=np.float32)).astype("bfloat16")
    q = nm.quant.quantize(nm.asarray(rng.standard_normal((48, 256), dtype=np.float32)), "fp8")
    wanted = nm.quant.matmul(x, q.T, activations="fp8").astype("float32").numpy()
    runtime = nm.device("simt_wgmma").runtime
    runtime.launched.clear()
    found = nm.quant.matmul(x.to("simt_wgmma"), q.to("simt_wgmma").T, activations="fp8")
    np.testing.assert_allclose(found.astype("float32").numpy(), wanted, atol=2e-2 * wanted.max())
    assert [p.name for p in runtime.launched][1:] == ["wgmma_gemm"]


@pytest.mark.parametrize("view", ["", "rows", "misaligned", "columns"])
def test_int8_times_codes(view):
    w, x = (rng.standard_normal(s, dtype=np.float32) for s in ((40, 96), (19, 96)))
    x[3] = 0
    q = nm.quant.quantize(w, "int8-row")
    wanted = nm.quant.matmul(x, q.T, activations="int8").numpy()
    codes, scales = (p.to("simt_sm90") for p in q.parts)
    if view == "rows":
        wanted = wanted[:, 8:]
    elif view:  # words that no copy of 16 bytes reads
        before, axis = {"misaligned": (1, 0), "columns": (3, 1)}[view]
        flat = codes.reshape(-1) if axis == 0 else codes
        shape = (before,) if axis == 0 else (40, before)
        zeros = nm.zeros(shape, dtype=nm.uint32, device="simt_sm90")
        both = nm.concat([zeros, flat], axis=axis)
        nm.eval(both)
        codes = both[1:].reshape(*codes.shape) if axis == 0 else both[:, 3:]
    given = QTensor(q.format, q.stored_shape, (codes, scales), q.dtype)
    given = given[8:] if view == "rows" else given
    runtime = nm.device("simt_sm90").runtime
    x = nm.asarray(x, device="simt_sm90")
    nm.eval(x, given)
    runtime.launched.clear()
    found = nm.quant.matmul(x, given.T, activations="int8").numpy()
    assert "unpack" not in [p.name for p in runtime.launched]
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_int8_times_codes_in_batches():
    x = nm.asarray(rng.integers(-127, 128, (2, 3, 32)).astype(np.int8))
    words = nm.asarray(rng.integers(0, 1 << 32, (5, 8), dtype=np.uint32))
    wanted = x.numpy().astype(int) @ words.numpy().view(np.uint8).astype(int).T
    found = nm.vmap(lambda x, w: wrap(code_matmul(x._node, w._node)), in_axes=(0, None))(
        x.to("reference"), words.to("reference")
    )
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_rows_of_codes_with_one_scale():
    q = nm.quant.quantize(rng.standard_normal((6, 64), dtype=np.float32), "int8-row")
    np.testing.assert_array_equal(q[2:4].dequantize().numpy(), q.dequantize().numpy()[2:4])
    with pytest.raises(nm.errors.ShapeError, match="cannot be cut"):
        q[:, :32]


@pytest.mark.parametrize(
    ("kind", "shape", "cores", "columns", "blocks"),
    [
        ("float8", (512, 248, 512), 4, 128, 2),
        ("int8", (300, 392, 144), 16, 96, 1),  # an odd number of tiles of m
    ],
)
def test_clusters_and_narrow_tiles(monkeypatch, kind, shape, cores, columns, blocks):
    """Blocks that share tiles of B where tiles of m are in pairs, and int8 in 96 columns."""
    runtime = nm.device("simt_wgmma").runtime
    target = replace(runtime.target, num_cores=cores, max_cluster_size=2)
    monkeypatch.setattr(runtime, "target", target)
    m, n, k = shape
    if kind == "float8":
        parts, wanted = operands(*shape)
        found = product(*(p.to("simt_wgmma") for p in parts))
    else:
        a = rng.integers(-127, 128, (m, k)).astype(np.int8)
        words = rng.integers(0, 1 << 32, (n, k // 4), dtype=np.uint32)
        wanted = a.astype(int) @ words.view(np.uint8).astype(int).T
        given = [nm.asarray(x, device="simt_wgmma")._node for x in (a, words)]
        found = wrap(code_matmul(*given))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4 * np.abs(wanted).max())
    kernel = runtime.launched[-1].kernel
    (loop,) = [s for s in ir.statements(kernel.body) if isinstance(s, ir.WgmmaMainloop)]
    assert (loop.b.tile_mn, loop.b.sharing, kernel.cluster_blocks) == (columns, blocks, blocks)
