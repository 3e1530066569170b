"""Products that read GGUF's blocks and integers as bytes, against those with their values."""

from types import SimpleNamespace

import numpy as np
import pytest

import numus as nm
from numus.functions._base import wrap
from numus.kernels.matmul.blocks import LAYOUTS, BlockPlanes
from numus.kernels.matmul.cpu.byte_gemm import is_faster_as_floats
from numus.primitives.blocks import block_planes, block_values
from numus.quant import block_products, products

KINDS = list(LAYOUTS)


def sample(rows, columns, m, format, device="cpu"):
    rng = np.random.default_rng(rows + columns)
    w = rng.standard_normal((rows, columns), dtype=np.float32)
    x = rng.standard_normal((m, columns), dtype=np.float32)
    q = nm.quant.quantize(nm.asarray(w, device="reference"), format)
    return q.to(device), nm.asarray(x, device=device)


def exact(x, q):
    return np.float64(x.astype(nm.float32).numpy()) @ np.float64(q.dequantize().numpy()).T


def error(y, wanted):
    return np.abs(y.astype(nm.float32).numpy() - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_give_the_values_of_blocks(kind):
    """The references of both products, which read blocks by the layouts that kernels read."""
    q, x = sample(5, 512, 3, kind, "reference")
    wanted = exact(x, q)
    assert error(block_products.matvec(x, q.parts[0], kind, 3, 8), wanted) < 2e-6
    assert error(block_products.block_gemm(x, q.parts[0], kind, 3, 2), wanted) < 2e-6


@pytest.mark.parametrize("kind", KINDS)
def test_planes_of_activations_are_those_of_the_reference(kind):
    layout = LAYOUTS[kind]
    x = np.random.default_rng(0).standard_normal((4, 3 * layout.values), dtype=np.float32)
    x[1], x[2, 5], x[3] = 0, 1e30, x[3] * 1e-28
    for planes in (1, 3):
        how = BlockPlanes(kind, planes, 5)
        own, wanted = (
            wrap(block_planes(nm.asarray(x, device=d)._node, how)).numpy()
            for d in ("cpu", "reference")
        )
        assert (own == wanted).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_with_infinite_activations_are_nan(value):
    q, x = sample(5, 512, 2, "q4_k")
    y = (x.at[1, 7].set(value) @ q.T).numpy()
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()


def values(q):
    return wrap(block_values(q.parts[0]._node, q.format.kind))


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_values_are_those_of_blocks(kind, device):
    for rows, columns in [(3, 300), (1, 1024)]:
        q, _ = sample(rows, columns, 1, kind, device)
        wanted = q.dequantize().numpy()
        assert np.abs(values(q).numpy()[:, :columns] - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_stored_values_in_vmap_and_of_no_rows():
    q, _ = sample(4, 64, 1, "q4_0", "reference")
    both = nm.vmap(lambda b: wrap(block_values(b._node, "q4_0")))(nm.stack([q.parts[0]] * 2))
    assert (both[1] == values(q)).all()
    assert values(sample(4, 64, 1, "q4_0")[0][:0]).shape == (0, 64)


@pytest.mark.parametrize(("kind", "columns"), [("q4_k", 512), ("q5_1", 300), ("q8_0", 96)])
def test_many_rows_times_stored_values(kind, columns, monkeypatch):
    monkeypatch.setattr(block_products, "MAX_STORED_VALUES", 5 * 512)
    q, x = sample(21, columns, 19, kind)
    for dtype, bound in ((nm.float32, 2e-6), (nm.bfloat16, 1e-2)):
        own = x.astype(dtype)
        y = block_products.float_gemm(own, q.parts[0], kind)
        assert y.dtype is dtype
        assert error(y, exact(own, q)) < bound


def test_products_of_bytes_where_they_are_faster():
    """The fewer instructions a dot product of bytes has, and the fewer rows share the unpacking."""

    def floats(how, m, planes, small=True):
        return is_faster_as_floats(SimpleNamespace(byte_dot=how), m, planes, 8, small)

    assert not any(floats(how, 9, 3, small) for how in ("vnni", "pmadd") for small in (True, False))
    assert not any(floats("vnni", 4096, planes) for planes in (1, 2))
    assert floats("vnni", 4096, 3)
    assert not floats("pmadd", 4096, 1)
    assert floats("pmadd", 512, 1, small=False)
    assert floats("pmadd", 512, 3)


@pytest.mark.parametrize("floats", [True, False])
def test_both_products_of_many_rows(floats, monkeypatch):
    monkeypatch.setattr(products, "is_faster_as_floats", lambda *_: floats)
    for format in ("q8_0", "int8-row"):
        q, x = sample(18, 192, 17, format)
        wanted = rounded(x.numpy()) @ np.float64(q.dequantize().numpy()).T
        assert error(nm.quant.matmul(x, q.T, activations="int8"), wanted) < 1e-6
        assert error(x @ q.T, exact(x, q)) < 2e-6


@pytest.mark.parametrize("kind", ["q4_k", "q5_0", "q8_0"])
def test_few_rows_read_blocks(kind):
    q, x = sample(39, 512, 2, kind)
    assert error(x @ q.T, exact(x, q)) < 2e-6


@pytest.mark.parametrize("kind", ["q6_k", "iq4_nl"])
def test_many_rows_read_blocks(kind):
    q, x = sample(21, 256, 19, kind)
    assert error(x @ q.T, exact(x, q)) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_at_all_sizes(kind):
    for rows, columns, m in [(1, 32, 1), (37, 4096, 8), (5, 300, 9), (40, 288, 40), (3, 8192, 1)]:
        q, x = sample(rows, columns, m, kind)
        for dtype, bound in ((nm.float32, 5e-6), (nm.bfloat16, 1.5e-2)):
            own = x.astype(dtype)
            assert error(own @ q.T, exact(own, q)) < bound
        assert error(nm.quant.matmul(x, q.T, activations="int8"), exact(x, q)) < 3e-2


def rounded(x):
    unit = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    return np.round(x / unit) * np.float64(unit)


@pytest.mark.parametrize("format", ["int8-row", "uint4-g64"])
def test_integers_times_integers(format):
    """Rounding a row to int8 is all that the result may differ by."""
    q, x = sample(18, 192, 17, format)
    wanted = rounded(x.numpy()) @ np.float64(q.dequantize().numpy()).T
    assert error(nm.quant.matmul(x, q.T, activations="int8"), wanted) < 1e-6
    text = str(nm.explain(lambda x: nm.quant.matmul(x, q.T, activations="int8"), x))
    assert "byte_matmul" in text


@pytest.mark.parametrize("format", ["int4-g32", "nf4-g64", "int3-g32", "int8-tensor"])
def test_rounded_activations_of_all_formats(format):
    for m in (1, 9):
        q, x = sample(6, 64, m, format, "reference")
        wanted = rounded(x.numpy()) @ np.float64(q.dequantize().numpy()).T
        assert error(nm.quant.matmul(x, q.T, activations="int8"), wanted) < 1e-6


def test_fp8_times_fp8():
    q, x = sample(6, 256, 3, "fp8-e4m3-b128", "reference")
    y = nm.quant.matmul(x, q.T, activations="fp8")
    groups = x.numpy().reshape(3, 2, 128)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(448)
    codes = nm.asarray(groups / scale, device="reference").astype(nm.float8_e4m3fn)
    own = (codes.astype(nm.float32).numpy() * scale).reshape(3, 256)
    assert error(y, np.float64(own) @ np.float64(q.dequantize().numpy()).T) < 1e-6
    assert 1e-3 < error(y, exact(x, q)) < 5e-2


def test_rounded_activations_are_straight_through():
    q, x = sample(4, 64, 9, "q8_0")
    x.requires_grad = True
    nm.quant.matmul(x, q.T, activations="int8").sum().backward()
    wanted = np.ones((9, 4)) @ q.dequantize().numpy()
    assert np.allclose(x.grad.numpy(), wanted, atol=1e-4)


def test_vmap_and_jit_of_blocks():
    q, x = sample(4, 64, 10, "q8_0", "reference")
    wanted = exact(x, q)

    def product(x, blocks):
        return block_products.block_gemm(x, blocks, "q8_0", 3, 2)

    stack = nm.stack([x, 2 * x])
    assert error(nm.vmap(lambda x: product(x, q.parts[0]))(stack)[1], 2 * wanted) < 2e-6
    few = nm.vmap(lambda x: block_products.matvec(x[None], q.parts[0], "q8_0", 3, 8)[0])(x)
    assert error(few, wanted) < 2e-6
    blocks = nm.stack([q.parts[0], q.parts[0]])
    both = nm.vmap(lambda x, b: block_products.matvec(x, b, "q8_0", 3, 8))(stack, blocks)
    assert error(both[0], wanted) < 2e-6
    q, x = sample(7, 512, 2, "q8_0")
    assert error(nm.jit(lambda x, q: x @ q.T)(x, q), exact(x, q)) < 2e-6


def test_nan_and_inf_reach_all_columns():
    q, x = sample(7, 512, 2, "q8_0")
    for bad in (np.nan, np.inf):
        y = (x + nm.asarray([[bad] + [0.0] * 511] * 2, device=x.device)) @ q.T
        assert not np.isfinite(y.numpy()).any()


def test_an_unknown_rounding_is_an_error():
    q, x = sample(4, 64, 1, "q8_0", "reference")
    with pytest.raises(ValueError, match='"int8" or "fp8"'):
        nm.quant.matmul(x, q.T, activations="int4")


def test_many_rows_times_a_matrix_without_rows():
    kind, layout = next(iter(LAYOUTS.items()))
    blocks = nm.zeros((0, layout.size), dtype=nm.uint8)
    assert block_products.float_gemm(nm.ones((5, layout.values)), blocks, kind).shape == (5, 0)
