"""Convolution whose windows are displacements, on the imitated thread groups: no GPU is needed."""

import group_machine
import numpy as np
import pytest

import numus as nm
from numus.compiler import cell_convolutions
from numus.compiler.program import clear_plans
from numus.kernels import cell_convolution, tile_contraction

group_machine.install()
MACHINE = nm.device("tiles").runtime


@pytest.fixture(autouse=True)
def all_of_them(monkeypatch):
    monkeypatch.setattr(cell_convolutions, "SMALL", 1)
    monkeypatch.setattr(cell_convolutions, "MOST_VAIN", 1e9)
    monkeypatch.setattr(cell_convolutions, "MOST_VAIN_BY_RESULTS", 1e9)
    clear_plans()
    yield
    clear_plans()


def drawn(seed, *shape, dtype):
    """Numbers that a narrow dtype has, as float32."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return nm.asarray(x).astype(dtype).astype("float32").numpy()


CASES = {
    "same": (nm.conv2d, (2, 8, 9, 7), (12, 8, 3, 3), {"padding": 1}),
    "even": (nm.conv2d, (3, 8, 6, 7), (12, 8, 2, 4), {"padding": (0, 2)}),
    "stride": (nm.conv2d, (2, 5, 9, 8), (7, 5, 3, 3), {"padding": 1, "stride": 2}),
    "strides": (nm.conv2d, (2, 5, 10, 11), (7, 5, 3, 5), {"padding": (2, 1), "stride": (3, 2)}),
    "dilation and stride": (
        *(nm.conv2d, (2, 4, 13, 12), (6, 4, 3, 3)),
        {"padding": 2, "stride": 2, "dilation": 3},
    ),
    "groups": (nm.conv2d, (2, 6, 7, 7), (8, 3, 3, 3), {"groups": 2, "dilation": 2}),
    "one axis": (nm.conv1d, (3, 4, 30), (5, 4, 5), {"stride": 3}),
    "three axes": (nm.conv3d, (2, 3, 3, 4, 5), (4, 3, 2, 3, 2), {"padding": 1}),
    "whole slices": (nm.conv2d, (1, 128, 4, 4), (70, 128, 3, 3), {"padding": 1}),
    "transposed": (nm.conv_transpose2d, (2, 6, 5, 4), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    "transposed far": (nm.conv_transpose2d, (1, 6, 4, 5), (6, 4, 5, 2), {"stride": (3, 1)}),
    "transposed groups": (
        *(nm.conv_transpose2d, (1, 6, 4, 5), (6, 2, 4, 4)),
        {"stride": 2, "groups": 2, "output_padding": 1},
    ),
    "wide margins": (nm.conv2d, (2, 3, 4, 4), (4, 3, 2, 2), {"padding": 3}),
    "cut off": (nm.conv2d, (2, 3, 9, 9), (4, 3, 3, 3), {"padding": ((-1, 0), (2, -2))}),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name, monkeypatch):
    pieces = 1 + (len(name) % 2)
    function, *shapes, options = CASES[name]
    choose = tile_contraction.choose
    monkeypatch.setattr(tile_contraction, "choose", lambda *a: (choose(*a)[0], pieces))
    dtype = "float16" if name == "same" else "bfloat16"
    arrays = [drawn(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    want = function(*map(nm.asarray, arrays), **options).numpy()
    MACHINE.launched.clear()
    given = [nm.asarray(a, device="tiles").astype(dtype) for a in arrays]
    got = function(*given, **options).astype("float32").numpy()
    assert "cell_convolution" in [p.name for p in MACHINE.launched]
    assert np.linalg.norm(got - want) <= 2.0**-8 * np.linalg.norm(want)


@pytest.mark.parametrize("name", ["same", "stride", "dilation and stride", "one axis"])
def test_gradients(name, monkeypatch):
    """Of those by weights, windows are larger than results."""
    pieces = 1 + 2 * (len(name) % 2)
    function, *shapes, options = CASES[name]
    choose = tile_contraction.choose
    monkeypatch.setattr(tile_contraction, "choose", lambda *a: (choose(*a)[0], pieces))
    monkeypatch.setattr(cell_convolutions, "_by_taps", lambda g: None)
    arrays = [drawn(i, *shape, dtype="bfloat16") for i, shape in enumerate(shapes)]
    x, w = (nm.asarray(a) for a in arrays)
    cotangent = drawn(9, *function(x, w, **options).shape, dtype="bfloat16")
    want = nm.vjp(lambda w: function(x, w, **options), w)[1](nm.asarray(cotangent))[0].numpy()
    MACHINE.launched.clear()
    x, w, up = (nm.asarray(a, device="tiles").astype("bfloat16") for a in (*arrays, cotangent))
    (got,) = nm.vjp(lambda w: function(x, w, **options), w)[1](up)
    got = got.astype("float32").numpy()
    assert "cell_convolution" in [p.name for p in MACHINE.launched]
    assert np.linalg.norm(got - want) <= 2.0**-8 * np.linalg.norm(want)


def test_what_follows_is_done_along_with_it():
    x, w = (drawn(i, *s, dtype="bfloat16") for i, s in enumerate([(2, 8, 6, 6), (20, 8, 3, 3)]))
    b = drawn(3, 20, dtype="bfloat16")

    def layer(x, w, b):
        return nm.maximum(nm.conv2d(x, w, b, padding=1), 0)

    want = layer(*map(nm.asarray, (x, w, b))).numpy()
    MACHINE.launched.clear()
    given = [nm.asarray(a, device="tiles").astype("bfloat16") for a in (x, w, b)]
    got = layer(*given).astype("float32").numpy()
    assert [p.name for p in MACHINE.launched].count("cell_convolution") == 1
    assert np.linalg.norm(got - want) <= 2.0**-7 * np.linalg.norm(want)


def test_only_where_little_is_in_vain(monkeypatch):
    monkeypatch.setattr(cell_convolutions, "MOST_VAIN", 3.0)
    monkeypatch.setattr(cell_convolutions, "MOST_VAIN_BY_RESULTS", 1.6)

    def name_of(data, weights, **options):
        given = [nm.ones(s, dtype="bfloat16", device="tiles") for s in (data, weights)]
        nm.eval(*given)
        MACHINE.launched.clear()
        nm.eval(nm.conv2d(*given, **options))
        return MACHINE.launched[-1].name

    assert name_of((1, 64, 8, 8), (8, 64, 3, 3), padding=1) == "cell_convolution"
    assert name_of((1, 3, 16, 16), (8, 3, 7, 7)) != "cell_convolution"  # few channels
    assert name_of((2, 64, 5, 5), (8, 64, 5, 5)) != "cell_convolution"  # few results


@pytest.mark.parametrize(
    ("axis", "up", "cells"),
    [
        ((56, 3, 56, 1, 1, 1), 1, 57),
        ((56, 3, 28, 2, 1, 1), 1, 29),
        ((56, 1, 28, 2, 1, 0), 0, 28),
        ((8, 3, 6, 1, 1, 0), 0, 8),
        ((4, 2, 9, 1, 1, 3), 3, 9),
    ],
)
def test_the_grid_has_room_for_data_zeros_and_results(axis, up, cells):
    found = cell_convolution.Axis(*axis)
    assert (found.up, found.cells) == (up, cells)
