"""Implicit GEMM convolution on wgmma and SIMT, on the simulated GPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.conv import tuning
from numus.compiler.plan import clear_plans
from numus.kernels.conv.gpu import implicit_gemm_wgmma

simt_machine.install()
MACHINE = nm.device("simt_wgmma").runtime


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(tuning, "GPU", replace(tuning.GPU, min_implicit_gemm_macs=1))
    clear_plans()
    yield
    clear_plans()


def drawn(seed, *shape, dtype):
    """Numbers that a low-precision dtype represents, as float32."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return nm.asarray(x).astype(dtype).astype("float32").numpy()


def found(function, arrays, cotangent, dtype="float32", device="cpu"):
    """Output and gradients, in float32."""
    xs = [nm.asarray(a, device=device).astype(dtype) for a in arrays]
    for x in xs:
        x.requires_grad = True
    y = function(*xs)
    y.backward(nm.asarray(cotangent, device=device).astype(dtype))
    nm.eval([y, *(x.grad for x in xs)])
    return [x.astype("float32").numpy() for x in (y, *(x.grad for x in xs))]


def compare(function, *shapes, dtype="bfloat16", kind="implicit_gemm_wgmma"):
    arrays = [drawn(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    cotangent = drawn(9, *function(*map(nm.asarray, arrays)).shape, dtype=dtype)
    want = found(function, arrays, cotangent)
    MACHINE.launched.clear()
    got = found(function, arrays, cotangent, dtype, "simt_wgmma")
    assert [p.name for p in MACHINE.launched].count(kind) == 3
    step = max(2.0 ** -getattr(nm, dtype).mantissa, 4e-7)  # what we compare with is float32
    for a, b in zip(got, want, strict=True):
        assert np.linalg.norm(a - b) <= 1.5 * step * np.linalg.norm(b)


CASES = {
    "same": (nm.conv2d, (2, 8, 9, 9), (12, 8, 3, 3), {"padding": 1}),
    "stride": (nm.conv2d, (2, 5, 9, 8), (7, 5, 3, 3), {"padding": 1, "stride": 2}),
    "groups": (nm.conv2d, (2, 6, 7, 7), (8, 3, 3, 3), {"groups": 2, "dilation": 2}),
    "one axis": (nm.conv1d, (3, 4, 30), (5, 4, 5), {"stride": 3}),
    "three axes": (nm.conv3d, (1, 3, 5, 6, 7), (4, 3, 2, 3, 2), {}),
    "whole slices": (nm.conv2d, (1, 64, 4, 4), (40, 64, 3, 3), {"padding": 1}),
    "transposed": (nm.conv_transpose2d, (1, 6, 5, 5), (6, 4, 3, 3), {"stride": 2}),
    "cut off": (nm.conv2d, (1, 3, 9, 9), (4, 3, 3, 3), {"padding": ((-1, 0), (2, -2))}),
}


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, splits, monkeypatch):
    function, *shapes, options = CASES[name]
    monkeypatch.setattr(implicit_gemm_wgmma, "split_k", lambda *a: min(splits, -(-a[-1] // 64)))
    dtype = "float16" if name == "one axis" else "bfloat16"
    compare(lambda x, w: function(x, w, **options), *shapes, dtype=dtype)


@pytest.mark.parametrize("name", CASES)
def test_simt_values_and_gradients(name):
    """The weights of "groups" are reshaped, permuted and reshaped again: loops over two of their
    axes at once would be out of bounds."""
    function, *shapes, options = CASES[name]
    dtype = "float64" if name == "one axis" else "float32"
    kind = "implicit_gemm_simt"
    compare(lambda x, w: function(x, w, **options), *shapes, dtype=dtype, kind=kind)


def test_epilogues_are_fused():
    shapes = ((2, 8, 9, 9), (12, 8, 3, 3))
    x, w = (nm.asarray(drawn(i, *s, dtype="bfloat16")) for i, s in enumerate(shapes))
    bias = nm.asarray(drawn(3, 12, dtype="bfloat16"))
    want = nm.relu(nm.conv2d(x, w, bias, padding="same")).numpy()
    x, w, bias = (t.to("simt_wgmma").astype("bfloat16") for t in (x, w, bias))
    nm.eval([x, w, bias])
    MACHINE.launched.clear()
    y = nm.relu(nm.conv2d(x, w, bias, padding="same"))
    nm.eval(y)
    assert [p.name for p in MACHINE.launched][2:] == ["implicit_gemm_wgmma"]
    got = y.astype("float32").numpy()
    assert np.linalg.norm(got - want) <= 2**-7 * np.linalg.norm(want)


def test_views_and_expressions_are_fused_into_the_relayout():
    compare(
        lambda x, w: nm.conv2d(nm.permute_dims(x, (0, 3, 1, 2)) * 2, w[::-1], padding=1),
        *((2, 7, 7, 8), (12, 8, 3, 3)),
    )


@pytest.mark.parametrize(
    ("rows", "outputs", "depth", "columns", "splits"),
    [
        (50176, 256, 2304, 256, 1),  # plenty of tiles
        (2304, 256, 200704, 256, 7),  # a weight gradient: few outputs, long sums
        (3136, 512, 4608, 256, 2),
        (200704, 64, 576, 64, 1),
        (49, 16, 144, 32, 1),
    ],
)
def test_tiles_follow_from_sizes(rows, outputs, depth, columns, splits):
    target = simt_machine.replace(simt_machine.WGMMA, num_cores=132)
    assert implicit_gemm_wgmma.tile_columns(target, 1, rows, outputs, depth) == columns
    assert implicit_gemm_wgmma.split_k(target, 1, rows, outputs, columns, depth) == splits
