"""Formats of quantised tensors: layouts bit for bit, errors of rounding, views, bad input."""

from pathlib import Path

import numpy as np
import pytest

import numus as nm
from numus.quant.nf4 import nf4_values
from numus.quant.packing import pack, unpack

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "gguf_blocks.npz"
GGUF = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL Q2_K Q3_K Q4_K Q5_K Q6_K".split()
# Largest relative RMS error for normal values: a little above what was measured.
ERRORS = {
    **{"int8-row": 0.009, "int8-tensor": 0.01, "int8-g32": 0.007, "int4-g128": 0.13},
    **{"uint4-g64": 0.1, "int3-g32": 0.26, "uint2-g32": 0.45, "int2-g64": 0.75, "nf4-g64": 0.1},
    **{"nf4-g64-single": 0.1, "q8-b128": 0.009, "q8-b32": 0.007, "fp8-e4m3-b128": 0.03},
    **{"fp8-e5m2-b64": 0.06, "mxfp4": 0.13, "mxfp8": 0.04, "mxfp8-e5m2": 0.06, "nvfp4": 0.11},
    **{"q4_0": 0.1, "q4_1": 0.09, "q5_0": 0.05, "q5_1": 0.045, "q8_0": 0.007, "iq4_nl": 0.09},
    **{"q2_k": 0.3, "q3_k": 0.16, "q4_k": 0.085, "q5_k": 0.045, "q6_k": 0.022},
}


@pytest.fixture(scope="module")
def blocks():
    with np.load(FIXTURE) as found:
        return dict(found)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 8])
def test_packing(bits):
    values = np.random.default_rng(bits).integers(0, 1 << bits, (3, 64)).astype(np.uint32)
    words = pack(nm.asarray(values), bits)
    assert words.shape == (3, 2 * bits)
    np.testing.assert_array_equal(unpack(words, bits).numpy(), values)


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    x = normal(24, 512)
    q = nm.quant.quantize(nm.asarray(x), name)
    values = q.dequantize().numpy()
    assert np.sqrt(np.mean((values - x) ** 2)) < ERRORS[name]
    assert q.format.name == name
    for (shape, dtype), part in zip(q.format.layout((24, 512)).values(), q.parts, strict=True):
        assert part.shape == shape
        assert part.dtype is dtype


@pytest.mark.parametrize("shape", [(7,), (2, 3, 70), (4, 0)])
@pytest.mark.parametrize("name", "uint3-g64 int8-row nf4-g64 q8-b32 nvfp4 q4_k".split())
def test_odd_shapes(name, shape):
    x = normal(*shape)
    q = nm.quant.quantize(nm.asarray(x), name)
    assert q.shape == shape
    values = q.dequantize().numpy()
    assert values.shape == shape
    np.testing.assert_allclose(values, x, atol=1.2)


@pytest.mark.parametrize(
    "name",
    "uint4-g32 nf4-g64 q8-b32 mxfp4 nvfp4 fp8 q4_0 q4_1 q3_k q5_k".split(),
)
def test_groups_of_zeros(name):
    q = nm.quant.quantize(nm.zeros((3, 256)), name)
    assert not q.dequantize().numpy().any()


def test_dtypes_and_axes():
    x = normal(64, 6)
    q = nm.quant.quantize(nm.asarray(x).astype(nm.bfloat16), "int8-g32", axis=0)
    assert q.shape == (64, 6)
    assert q.dequantize().dtype is nm.bfloat16
    np.testing.assert_allclose(q.dequantize(nm.float32).numpy(), x, atol=0.05)
    assert q.T.shape == (6, 64)
    np.testing.assert_array_equal(q.T.dequantize().numpy(), q.dequantize().numpy().T)


def test_products_and_gradients():
    w, x = normal(16, 256), normal(3, 256, seed=1)
    q = nm.quant.quantize(nm.asarray(w), "int4-g128")
    values = q.dequantize().numpy()
    found = nm.jit(lambda x, q: x @ q.T)(nm.asarray(x), q)
    np.testing.assert_allclose(found.numpy(), x @ values.T, atol=1e-4)
    slope = nm.grad(lambda x: nm.sum(x @ q.T))(nm.asarray(x))
    np.testing.assert_allclose(slope.numpy(), np.tile(values.sum(0), (3, 1)), atol=1e-4)
    np.testing.assert_allclose((q @ nm.asarray(x.T)).numpy(), values @ x.T, atol=1e-4)


@pytest.mark.parametrize("name", "int4-g128 uint4-g128 int8-row mxfp8 q4_0".split())
def test_unpacking_is_fused(name):
    q = nm.quant.quantize(nm.asarray(normal(64, 256)), name)
    nm.eval(*q.parts)
    explained = nm.explain(lambda x, q: x @ q.T, nm.asarray(normal(1, 256)), q)
    readers = [k for k in explained.kernels if k.bytes_read >= q.nbytes]
    assert len(readers) == 1  # of the codes, once; others prepare the activations
    assert readers[0].bytes_written <= 4 * 64
    assert all(k.bytes_written < q.nbytes / 2 for k in explained.kernels)


def test_evaluation_reaches_all_parts():
    x = nm.asarray(normal(4, 64)) + 1
    q, other = nm.quant.quantize(x), nm.quant.quantize(x, "uint4-g32")
    nm.eval([q, {"other": other}])
    assert all(part._node.view is not None for part in (*q.parts, *other.parts))


@pytest.mark.parametrize("name", "int4-g64 uint3-g32 nf4-g64-single mxfp8 q5_k".split())
def test_views_along_groups(name):
    q = nm.quant.quantize(nm.asarray(normal(6, 512)), name)
    values = q.dequantize().numpy()
    np.testing.assert_array_equal(q[2:5].dequantize().numpy(), values[2:5])
    np.testing.assert_array_equal(q[3].dequantize().numpy(), values[3])
    np.testing.assert_array_equal(q[:, 256:].dequantize().numpy(), values[:, 256:])
    with pytest.raises(nm.errors.ShapeError, match="between groups"):
        q[:, 1:]


def test_saving(tmp_path):
    from numus import nn

    tensors, metadata = {}, {}
    for name in ("int4-g64", "uint4-g64", "nf4-g64", "q8-b32", "q4_k"):
        q = nm.quant.quantize(nm.asarray(normal(4, 256)), name)
        parts, described = q.state(name)
        tensors.update(parts)
        metadata.update(described)
    path = tmp_path / "q.safetensors"
    nn.save_safetensors(tensors, path, metadata)
    loaded = nn.load_safetensors(path)
    for name in ("int4-g64", "uint4-g64", "nf4-g64", "q8-b32", "q4_k"):
        q = nm.quant.QTensor.from_state(name, loaded, metadata)
        expected = nm.quant.quantize(nm.asarray(normal(4, 256)), name)
        np.testing.assert_array_equal(q.dequantize().numpy(), expected.dequantize().numpy())
    wrong = {**loaded, "int4-g64.codes": nm.zeros((1, 2), dtype=nm.uint32)}
    with pytest.raises(ValueError, match=r"codes of a tensor of shape \(4, 256\) must be uint32"):
        nm.quant.QTensor.from_state("int4-g64", wrong, metadata)


# -- layouts, bit for bit -------------------------------------------------------------------------


def transcribed_q8(x, block):
    """RUMUS's quantize.wgsl, element by element."""
    flat = x.reshape(-1)
    words = np.zeros((-(-flat.size // block), 1 + block // 4), np.uint32)
    for b in range(words.shape[0]):
        part = flat[b * block : (b + 1) * block]
        largest = np.float32(np.abs(part).max())
        scale = np.float32(1) if largest == 0 else largest / np.float32(127)
        inverse = np.float32(0) if largest == 0 else np.float32(127) / largest
        words[b, 0] = np.float16(scale).view(np.uint16)
        for i, v in enumerate(part):
            code = int(np.clip(np.rint(v * inverse), -128, 127)) & 255
            words[b, 1 + i // 4] |= np.uint32(code << (8 * (i % 4)))
    return words


@pytest.mark.parametrize(("shape", "block"), [((4, 64), 32), ((5, 33), 128), ((7, 9), 12)])
def test_q8_layout(shape, block):
    x = normal(*shape)
    x.reshape(-1)[:block] = 0
    q = nm.quant.quantize(nm.asarray(x), f"q8-b{block}")
    np.testing.assert_array_equal(q.parts[0].numpy(), transcribed_q8(x, block))


@pytest.mark.parametrize("name", GGUF)
def test_gguf_blocks(name, blocks):
    if f"{name}.x" in blocks:
        q = nm.quant.quantize(nm.asarray(blocks[f"{name}.x"]), name.lower())
        np.testing.assert_array_equal(q.parts[0].numpy(), blocks[f"{name}.encoded"])
    raw, decoded = blocks[f"{name}.raw"], blocks[f"{name}.decoded"]
    format = nm.quant.quantize(nm.zeros((1, 256)), name.lower()).format
    q = nm.quant.QTensor(format, decoded.shape, (nm.asarray(raw),), nm.float32)
    np.testing.assert_array_equal(q.dequantize().numpy(), decoded)


@pytest.mark.slow
@pytest.mark.parametrize("name", GGUF)
def test_many_gguf_blocks(name):
    gguf = pytest.importorskip("gguf")
    from tools.gguf_fixture import WITH_ENCODER, special_rows

    kind = getattr(gguf.GGMLQuantizationType, name)
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    x = special_rows(np.random.default_rng(1), 1000, block)
    q = nm.quant.quantize(nm.asarray(x), name.lower())
    if name in WITH_ENCODER:
        np.testing.assert_array_equal(q.parts[0].numpy(), gguf.quants.quantize(x, kind))
    raw = np.random.default_rng(2).integers(0, 256, (1000, nbytes), dtype=np.uint8)
    found = nm.quant.QTensor(q.format, x.shape, (nm.asarray(raw),), nm.float32).dequantize()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.numpy(), gguf.quants.dequantize(raw, kind))


def test_nf4_values():
    """Those of the paper's appendix, as printed."""
    printed = [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004]
    np.testing.assert_allclose(nf4_values()[:8], [*printed, 0], atol=1e-6)
    assert nf4_values()[-1] == 1


def test_e2m1_rounds_to_even():
    from numus.quant.floats import _decode_e2m1, _encode_e2m1

    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -2.5, -0.0]
    found = _decode_e2m1(_encode_e2m1(nm.asarray(ties, dtype=nm.float32)))
    assert found.tolist() == [0, 1, 1, 2, 2, 4, 4, 6, -2, 0]


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value):
    x = normal(4, 64)
    x[1, 3] = value
    for format in ("int4-g32", "q8_0"):
        with pytest.raises(ValueError, match=r"values of up to 1e.30 are beyond the scales of"):
            nm.quant.quantize(nm.full((2, 64), 1e30), format)
    with pytest.raises(ValueError, match="beyond float16"):
        nm.quant.search_scales(nm.full((2, 64), 1e30), nm.quant.Integers(4, 32))
    with pytest.raises(ValueError, match="1 of 256 values are NaN or infinite"):
        nm.quant.quantize(nm.asarray(x), "int4-g32")


@pytest.mark.parametrize(
    ("format", "error", "text"),
    [
        ("int5", ValueError, "names no format"),
        ("int4-g33", ValueError, "multiple of 32"),
        ("int4-g-1", ValueError, "names no format"),
        ("q8-b6", ValueError, "multiple of 4"),
        ("q8-b0", ValueError, "multiple of 4"),
        ("nf4-g0", ValueError, "multiple of 32"),
        (4, TypeError, "a name or a Format"),
    ],
)
def test_bad_formats(format, error, text):
    with pytest.raises(error, match=text):
        nm.quant.quantize(nm.ones((4, 64)), format)


def test_bad_tensors():
    with pytest.raises(nm.errors.ShapeError, match="scalar"):
        nm.quant.quantize(nm.asarray(1.0))
    with pytest.raises(TypeError, match="takes floats, not int64"):
        nm.quant.quantize(nm.asarray([1, 2], dtype=nm.int64))
    with pytest.raises(nm.errors.ShapeError, match="axis=2"):
        nm.quant.quantize(nm.ones((4, 64)), axis=2)
    with pytest.raises(ValueError, match="blocks of two axes"):
        nm.quant.quantize(nm.ones(64), "fp8")
