"""Products with quantised weights against those with the values that the weights stand for."""

import numpy as np
import pytest

import numus as nm
from numus import dtypes as dt
from numus import ir
from numus.errors import DTypeError, ShapeError
from numus.kernels.matmul.cpu.packed_rows import RowSizes, rows_of_task
from numus.kernels.matmul.packed import Operands, PackedShape, Packing
from numus.quant.products import packing_of

PACKED = [
    *("int8-row", "int8-tensor", "uint8-g32", "int4-g128", "int4-g32", "uint4-g64", "int4-g96"),
    *("int3-g64", "uint3-g32", "int2-g64", "uint2-g32", "int4-row", "q8-b32", "q8-b128"),
]
EXPRESSIONS = [
    *("nf4-g64", "fp8-e4m3-b128", "mxfp4", "mxfp8", "nvfp4", "q4_0", "q4_1", "q5_0", "q8_0"),
    *("iq4_nl", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
]


def sample(rows, columns, vectors, format, device="cpu"):
    rng = np.random.default_rng(rows + columns)
    w = nm.asarray(rng.standard_normal((rows, columns), dtype=np.float32), device=device)
    x = nm.asarray(rng.standard_normal((vectors, columns), dtype=np.float32), device=device)
    return nm.quant.quantize(w, format), x


def exact(x, q):
    return np.float64(x.astype(nm.float32).numpy()) @ np.float64(q.dequantize().numpy()).T


def error(y, wanted):
    return np.abs(y.astype(nm.float32).numpy() - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("format", ["int8-row", "uint4-g32", "int3-g64", "q8-b32"])
def test_packed_products_are_exact(format):
    for rows, columns, vectors in [(37, 384, 1), (6, 256, 5)]:
        q, x = sample(rows, columns, vectors, format)
        assert packing_of(q) is not None
        assert error(x @ q.T, exact(x, q)) < 2e-6


@pytest.mark.parametrize("format", ["nf4-g64", "q4_k"])
def test_other_formats_multiply_too(format):
    q, x = sample(16, 256, 2, format)
    assert error(x @ q.T, exact(x, q)) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("format", PACKED + EXPRESSIONS)
@pytest.mark.parametrize("dtype", [nm.float32, nm.float16, nm.bfloat16])
def test_all_formats_in_all_dtypes(format, dtype):
    for rows, columns, vectors in [(37, 512, 1), (64, 300, 3), (9, 4096, 8), (33, 200, 40)]:
        q, x = sample(rows, columns, vectors, format)
        x = x.astype(dtype)
        bound = {"float32": 5e-6, "float16": 2e-3, "bfloat16": 1.5e-2}[dtype.name]
        assert error(x @ q.T, exact(x, q)) < bound


def test_odd_widths_ranks_and_many_rows():
    q, x = sample(5, 50, 3, "int4-g32")
    wanted = exact(x, q)
    assert error(x @ q.T, wanted) < 2e-6
    assert error(x[0] @ q.T, wanted[0]) < 2e-6
    assert error((x[:, None] @ q.T)[:, 0], wanted) < 2e-6
    assert error((q @ x.T).T, wanted) < 2e-6
    many = nm.concat([x] * 20)
    assert error(many @ q.T, np.concatenate([wanted] * 20)) < 2e-6


def test_16_bit_activations_keep_their_dtype():
    q, x = sample(8, 128, 2, "int8-row")
    for dtype in (nm.float16, nm.bfloat16):
        y = x.astype(dtype) @ q.T
        assert y.dtype is dtype
        assert error(y, exact(x.astype(dtype), q)) < 1e-2


def test_gradients_reach_the_activations():
    q, x = sample(6, 64, 2, "int4-g32")
    x.requires_grad = True
    (x @ q.T).square().sum().backward()
    w = q.dequantize()
    y = x.detach() @ w.T
    assert nm.allclose(x.grad, 2 * y @ w, rtol=1e-4, atol=1e-4)
    tangent = nm.jvp(lambda x: x @ q.T, (x.detach(),), (nm.ones_like(x),))[1]
    assert nm.allclose(tangent, nm.ones_like(x) @ w.T, atol=1e-3)


def test_jit_and_vmap():
    q, x = sample(6, 64, 4, "int4-g32")
    wanted = exact(x, q)
    assert error(nm.jit(lambda x, q: x @ q.T)(x, q), wanted) < 2e-6
    assert error(nm.vmap(lambda x: x @ q.T)(x), wanted) < 2e-6
    stack = nm.stack([x[:1], 2 * x[:1]])
    codes = nm.stack([q.parts[0], q.parts[0]])

    def product(x, codes):
        return x @ nm.quant.QTensor(q.format, q.stored_shape, (codes, q.parts[1]), q.dtype).T

    assert error(nm.vmap(product)(stack, codes)[1], 2 * wanted[:1]) < 2e-6


def test_nan_and_inf_are_seen():
    q, x = sample(4, 64, 1, "int8-row")
    for bad in (np.nan, np.inf):
        y = (x + nm.asarray([bad] + [0.0] * 63, device=x.device)) @ q.T
        assert not np.isfinite(y.numpy()).any()
    assert (nm.zeros((1, 64), device=x.device) @ q.T).tolist() == [[0.0] * 4]


def test_no_dense_weight_is_stored():
    q, x = sample(256, 1024, 1, "int4-g128")
    for part in (*q.parts, x):
        part.numpy()
    text = str(nm.explain(lambda x: x @ q.T, x))
    assert "packed_matmul" in text
    stored = [line for line in text.splitlines() if "temporaries" in line]
    assert "MiB" not in stored[0]


@pytest.mark.parametrize("format", ["uint4-g32", "int3-g64", "int8-row", "q4_k"])
@pytest.mark.parametrize("dtype", [nm.float32, nm.bfloat16])
def test_largest_codes_and_activations(format, dtype):
    """Integers of all planes, joined in a word where they fit."""
    w = np.where(np.arange(4)[:, None] % 2, 1, -1) * np.ones((1, 512), np.float32)
    w[:, ::64] *= 0.5
    q = nm.quant.quantize(nm.asarray(w), format)
    for sign in (-1, 1):
        x = nm.full((1, 512), sign * 7.0, dtype=dtype)
        bound = 1e-2 if dtype is nm.bfloat16 else 2e-6
        assert error(x @ q.T, exact(x, q)) < bound


@pytest.mark.parametrize("activations", [None, "int8"])
def test_integers_of_long_rows_do_not_overflow(activations):
    """Largest codes times largest activations, all of one sign, in more words than 32 bits hold."""
    q = nm.quant.quantize(nm.ones((3, 300_000)), "int8-row")
    x = nm.full((1, 300_000), -2.0)
    y = nm.quant.matmul(x, q.T, activations=activations)
    np.testing.assert_allclose(y.numpy(), exact(x, q), rtol=1e-6)


@pytest.mark.parametrize("format", ["int8-row", "int4-g128"])
def test_one_kernel_multiplies_and_scales(format):
    q, x = sample(64, 512, 1, format)
    nm.eval(*q.parts, x)
    lines = str(nm.explain(lambda x: x @ q.T, x)).splitlines()
    kernels = [line.split()[0] for line in lines[1:] if " reads " in line]
    assert kernels[-1] == "packed_matmul"


@pytest.mark.parametrize("activations", [None, "int8"])
def test_activations_are_rounded_once(activations):
    """By a kernel of their own, not by every task of the product."""
    q, x = sample(64, 512, 1, "int8-g128")
    nm.eval(*q.parts, x)
    text = str(nm.explain(lambda x: nm.quant.matmul(x, q.T, activations=activations), x))
    lines = text.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.strip().startswith("packed_matmul"))
    assert "rint" not in lines[at + 1]


def test_the_next_rows_are_prefetched():
    """The words of a task's next rows, as it reads these."""
    packing = Packing(4, 16)
    words, x = ir.Buffer("w", dt.uint32, "read"), ir.Buffer("x", dt.uint32, "read")
    operands = Operands(
        x=lambda v, plane, f, c: ir.load(x, c),
        x_sum=lambda v, c: ir.load(x, c).cast(dt.float32),
        word=lambda row, at: ir.load(words, row * 64 + at),
        scale=lambda row, group: row.cast(dt.float32),
        zero=None,
        store=lambda v, row, value: [],
    )
    shape = PackedShape(packing, 1, 1, 4)
    sizes = RowSizes(ir.const(64), ir.const(4), 16, 16)
    body, _ = rows_of_task(shape, operands, (ir.const(0), ir.const(8)), sizes)
    fetched = [s for s in ir.statements(body) if isinstance(s, ir.Prefetch)]
    assert len(fetched) == shape.rows
    assert all(s.buffer is words and not s.write for s in fetched)


def test_bytes_multiply_as_the_reference_does():
    rng = np.random.default_rng(0)
    w = rng.standard_normal((5, 96)).astype(np.float32)
    for format in ("uint3-g32", "q8-b32", "uint4-g96"):
        results = []
        for device in ("cpu", "reference"):
            q = nm.quant.quantize(nm.asarray(w, device=device), format)
            x = nm.asarray(w[:2] * 3, device=device)
            results.append((x @ q.T).numpy())
        np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


def test_wrong_operands_say_what_is_wrong():
    q, x = sample(4, 64, 1, "int8-row")
    with pytest.raises(ShapeError, match=r"q\.T exchanges"):
        x @ q
    with pytest.raises(DTypeError, match="int32"):
        nm.quant.matmul(nm.ones((1, 64), dtype=nm.int32), q.T)
    with pytest.raises(TypeError, match="QTensor"):
        nm.quant.matmul(x, x)
