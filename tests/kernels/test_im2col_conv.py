"""Implicit GEMM convolution by TMA's im2col mode; on a real GPU where `NUMUS_TEST_DEVICES` names
`cuda`, else on the simulated one."""

import os
from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.compiler.graph import channels_last
from numus.compiler.lower.conv import im2col_gemm, padded_gemm_plan, problem, tuning
from numus.compiler.plan import clear_plans
from numus.kernels.matmul.gpu import wgmma

simt_machine.install()
ON_GPU = "cuda" in os.environ.get("NUMUS_TEST_DEVICES", "").split(",")
GPU = "cuda" if ON_GPU else "simt_sm90"
KERNEL = im2col_gemm.Im2colGemm.name
CONVOLUTIONS = {3: nm.conv1d, 4: nm.conv2d, 5: nm.conv3d}
# Shapes of images and weights, options, and the kernels of a value with its gradients.
CASES = {
    "same": ((2, 8, 6, 5), (16, 8, 3, 3), {"padding": 1}, 3),
    "even": ((3, 8, 5, 6), (16, 8, 2, 4), {"padding": (0, 2)}, 3),
    "strides": ((2, 16, 8, 9), (8, 16, 3, 5), {"padding": (2, 1), "stride": (3, 2)}, 2),
    "phases": ((2, 8, 8, 6), (16, 8, 3, 3), {"padding": 1, "stride": 2}, 3),
    "uneven phases": ((2, 8, 8, 12), (16, 8, 5, 2), {"padding": (2, 0), "stride": (2, 3)}, 3),
    "partial phases": ((2, 12, 8, 6), (16, 12, 3, 3), {"padding": 1, "stride": 2}, 3),
    "dilation": ((2, 8, 9, 9), (8, 8, 3, 2), {"padding": 1, "dilation": 3}, 3),
    "one axis": ((3, 8, 20), (8, 8, 5), {"stride": 3}, 2),
    "three axes": ((2, 8, 3, 4, 3), (8, 8, 2, 3, 2), {"padding": 1}, 3),
    "wide margins": ((2, 8, 4, 4), (8, 8, 2, 2), {"padding": 3}, 3),
    "cut off": ((1, 8, 7, 6), (8, 8, 3, 3), {"padding": ((-1, 0), (2, -2))}, 3),
    "odd channels": ((2, 5, 7, 6), (7, 5, 3, 3), {"padding": 1}, 3),
    "whole tiles": ((3, 64, 5, 5), (72, 64, 3, 3), {"padding": 1}, 3),
    "partial tiles": ((2, 72, 5, 5), (8, 72, 3, 3), {"padding": 1}, 3),
}


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """The schedule is chosen for single small convolutions."""
    for name in ("MIN_MACS", "MIN_CHANNELS"):
        monkeypatch.setattr(channels_last, name, 1)
    if not ON_GPU:
        monkeypatch.setattr(im2col_gemm, "MIN_BYTES", 0)
    monkeypatch.setattr(im2col_gemm, "MIN_MERGED_GAIN", 1000)  # channels as they are
    monkeypatch.setattr(tuning, "GPU", replace(tuning.GPU, min_padded_gemm_macs=1))
    monkeypatch.setattr(problem, "choose", lambda g, e: padded_gemm_plan.plans(g, e)[0])
    clear_plans()
    yield
    clear_plans()


def drawn(seed, *shape):
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return nm.asarray(x).astype("bfloat16")


def gradients(function, operands, dtype, device):
    """A sum of squares of what follows a convolution, and its gradients."""

    def loss(*xs):
        return (nm.relu(function(*xs)).astype("float32") ** 2).sum()

    xs = [x.astype(dtype).to(device) for x in operands]
    value, found = nm.value_and_grad(loss, argnums=(0, 1))(*xs)
    nm.eval(value, found)
    return [np.asarray(v.astype("float32").numpy()) for v in (value, *found)]


def compare(x, w, options):
    """Values and gradients against float32 on the CPU; the kernels that were launched."""
    operands = drawn(0, *x), drawn(1, *w)

    def function(x, w):
        return CONVOLUTIONS[x.ndim](nm.tanh(x), w, **options)

    want = gradients(function, operands, "float32", "cpu")
    launched = getattr(nm.device(GPU).runtime, "launched", [])
    launched.clear()
    for a, b in zip(gradients(function, operands, "bfloat16", GPU), want, strict=True):
        assert np.linalg.norm(a - b) <= 1e-2 * np.linalg.norm(b)
    return [p.name for p in launched]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    x, w, options, count = CASES[name]
    names = compare(x, w, options)
    assert ON_GPU or names.count(KERNEL) == count


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 3, 14, 12), (16, 3, 7, 7), {"padding": 3, "stride": 2}),
        ((2, 5, 9, 11), (16, 5, 3, 4), {"padding": (1, 0), "dilation": 2}),
        ((2, 2, 5, 4, 6), (8, 2, 2, 3, 3), {"padding": 1}),
    ],
)
def test_taps_of_a_row_are_channels_where_these_are_few(x, w, options, monkeypatch):
    monkeypatch.setattr(im2col_gemm, "MIN_MERGED_GAIN", 2)
    names = compare(x, w, options)
    assert ON_GPU or names.count(KERNEL) == 3
    assert ON_GPU or "window_rows" in names


@pytest.mark.parametrize("tile", [(64, 64), (128, 64), (128, 128), (128, 256)])
def test_tiles_with_splits(tile, monkeypatch):
    def choose(target, dtype, shape, k, **options):
        k_tiles = -(-k // wgmma.tile_k(dtype))
        splits = -(-k_tiles // -(-k_tiles // 3))  # none without tiles
        return wgmma.fit_stages(target, tile, 1, persistent=True), splits

    monkeypatch.setattr(wgmma, "choose_tile", choose)
    names = compare((3, 64, 9, 8), (72, 64, 3, 3), {"padding": 1})
    assert ON_GPU or names.count(KERNEL) == 3


def test_images_that_tma_cannot_read_are_computed_by_threads():
    """A view begins in the middle of a 16-byte word."""
    w = drawn(1, 8, 8, 3, 3)
    whole = drawn(0, 2 * 6 * 5 * 8 + 4)

    def function(flat, w):
        x = flat[4:].reshape(2, 6, 5, 8).transpose(0, 3, 1, 2)
        return nm.conv2d(x, w, padding=1)

    want = function(whole.astype("float32"), w.astype("float32")).numpy()
    flat = whole.to(GPU)[4:]
    nm.eval(flat)
    x = flat.reshape(2, 6, 5, 8).transpose(0, 3, 1, 2)
    got = nm.conv2d(x, w.to(GPU), padding=1).astype("float32").numpy()
    assert np.linalg.norm(got - want) <= 1e-2 * np.linalg.norm(want)


@pytest.mark.parametrize("extents", [(2, 6, 5), (2, 9, 8), (3, 6, 8), (4, 7, 5)])
def test_epilogues_read_parts_of_larger_images(extents):
    """Whose axes are one in memory, too, but longer than those of the result."""
    x, w = drawn(0, 2, 8, 6, 5), drawn(1, 16, 8, 3, 3)
    images, height, width = extents
    wide = drawn(2, images, height, width, 16)

    def function(x, w, wide):
        part = nm.tanh(wide).transpose(0, 3, 1, 2)[:2, :, :6, :5]
        return nm.conv2d(nm.tanh(x), w, padding=1) + part

    want = function(*(v.astype("float32") for v in (x, w, wide))).numpy()
    given = [v.to(GPU) for v in (x, w, wide)]
    nm.eval(*given)
    got = function(*given).astype("float32").numpy()
    assert np.linalg.norm(got - want) <= 1e-2 * np.linalg.norm(want)


def vector_loads(kernel):
    """Buffers that a kernel loads as vectors."""
    lets = [s for s in ir.statements(kernel.body) if isinstance(s, ir.Let) and s.vector]
    return {s.value.attr.name for s in lets if s.value.attr.access == "read"}


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 64, 8, 8), (64, 64, 3, 3), {"padding": 1}),
        ((2, 64, 16, 16), (64, 64, 3, 3), {"padding": 1, "stride": 2}),  # phases of gradients
        ((2, 64, 12, 16), (24, 64, 4, 2), {"padding": (1, 0), "stride": 2}),
    ],
)
def test_epilogues_of_whole_tiles_read_vectors(x, w, options):
    """Of images, of vectors of channels, and of both in gradients."""
    rng = np.random.default_rng(3)
    scale = nm.asarray(rng.random(x[1]).astype(np.float32) + 0.5)
    wide = nm.conv2d(nm.zeros(x), nm.zeros(w), **options).shape
    rest = drawn(4, wide[0], *wide[2:], wide[1])

    def function(x, w):  # of images with channels last in memory
        own, more = (v.to(x.device) for v in (scale, rest))
        x = nm.relu((x.astype("float32") * own).astype(x.dtype)).transpose(0, 3, 1, 2)
        return nm.conv2d(x, w, **options) + more.astype(x.dtype).transpose(0, 3, 1, 2)

    operands = drawn(0, x[0], *x[2:], x[1]), drawn(1, *w)
    want = gradients(function, operands, "float32", "cpu")
    launched = getattr(nm.device(GPU).runtime, "launched", [])
    launched.clear()
    for a, b in zip(gradients(function, operands, "bfloat16", GPU), want, strict=True):
        assert np.linalg.norm(a - b) <= 1e-2 * np.linalg.norm(b)
    gemms = [p.kernel for p in launched if p.name == KERNEL]
    assert ON_GPU or sum(bool(vector_loads(kernel)) for kernel in gemms) == 2
