"""Padded implicit GEMM on wgmma, mma.sync and SIMT; depthwise and Winograd convolution.

On the simulated GPU; on a real one where `NUMUS_TEST_DEVICES` names `cuda`, which then also stands
in for older generations.
"""

import os
from dataclasses import replace

import numpy as np
import pytest
import simt_machine
import simt_threads

import numus as nm
from numus import ir
from numus.compiler.lower.conv import (
    depthwise,
    padded_gemm,
    padded_gemm_plan,
    problem,
    tuning,
    winograd,
)
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.plan import clear_plans
from numus.compiler.schedule import horizontal
from numus.ir import statements
from numus.kernels.conv import winograd as kernels
from numus.kernels.conv.gpu import depthwise as depthwise_kernel
from numus.kernels.conv.gpu import padded_gemm as padded_gemm_kernel
from numus.runtime import devices

simt_machine.install()
ON_GPU = "cuda" in os.environ.get("NUMUS_TEST_DEVICES", "").split(",")


def older(capability):
    def start(index):
        from numus.runtime.cuda import driver
        from numus.runtime.cuda.runtime import CudaRuntime

        assert driver.count()  # which starts the driver
        return CudaRuntime(nm.device("cpu").runtime, index, capability)

    return start


if ON_GPU:
    for name, capability in (("simt_sm90", None), ("simt_sm80", 80), ("simt_sm75", 75)):
        devices.BACKENDS[name] = older(capability)
# Device, dtype, and whether float32 may be rounded to TF32.
ENGINES = {
    "wgmma bfloat16": ("simt_sm90", "bfloat16", False),
    "wgmma float16": ("simt_sm90", "float16", False),
    "wgmma tf32": ("simt_sm90", "float32", True),
    "mma_sync bfloat16": ("simt_sm80", "bfloat16", False),
    "mma_sync float16": ("simt_sm75", "float16", False),
    "mma_sync tf32": ("simt_sm80", "float32", True),
    "mma_sync float64": ("simt_sm80", "float64", False),
    "simt float32": ("simt_sm80", "float32", False),
}
TOLERANCE = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2e-6, "float64": 1e-13}


def any_size(monkeypatch):
    """Padded GEMM, Winograd and depthwise kernels for small convolutions as well."""
    monkeypatch.setattr(tuning, "GPU", replace(tuning.GPU, min_padded_gemm_macs=1))


@pytest.fixture
def only_plans(monkeypatch):
    """Only plans with these attributes, and so many splits of K."""

    def only(splits=1, **attributes):
        def choose(g, engine):
            found = padded_gemm_plan.plans(g, engine)
            best = [p for p in found if all(getattr(p, k) == v for k, v in attributes.items())]
            return (best or found)[0]

        tiles = padded_gemm.choose_tiles
        if not ON_GPU:
            monkeypatch.setattr(padded_gemm_plan, "OVERLAPPING_ROWS", ("wgmma", "mma_sync", "simt"))
        any_size(monkeypatch)
        monkeypatch.setattr(winograd, "fits", lambda g: False)
        monkeypatch.setattr(problem, "choose", choose)
        monkeypatch.setattr(padded_gemm, "choose_tiles", lambda *a: (tiles(*a)[0], splits))
        clear_plans()

    yield only
    clear_plans()


def drawn(seed, shape, dtype):
    x = nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    return x.astype(dtype)


def both_ways(function, x, w, cotangent, rounds):
    with nm.matmul_precision("tf32" if rounds else "highest"):
        y, pull = nm.vjp(function, x, w)
    return (y, *pull(cotangent))


def compare(function, engine, x, w, kind=None):
    """Output and gradients, by three kernels of a kind, against float64 on the CPU."""
    device, dtype, rounds = ENGINES[engine]
    x, w = drawn(0, x, dtype), drawn(1, w, dtype)
    cotangent = drawn(2, function(x, w).shape, dtype)
    want = both_ways(function, *(v.astype("float64") for v in (x, w, cotangent)), False)
    machine = nm.device(device).runtime
    launched = getattr(machine, "launched", [])
    launched.clear()
    got = both_ways(function, *(v.to(device) for v in (x, w, cotangent)), rounds)
    nm.eval(got)
    kinds = kind or (f"padded_gemm_conv_{engine.split()[0]}",)
    used = [p.name for p in launched if p.name in kinds]
    assert ON_GPU or len(used) == 3, used
    if device == "simt_sm75":  # without cp.async
        found = [s for p in launched for s in statements(p.kernel.body)]
        assert not any(isinstance(s, ir.AsyncCopy) for s in found)
    # tensor cores round TF32 operands to 11 bits
    tolerance = 2e-3 if ON_GPU and rounds else TOLERANCE[dtype]
    for a, b in zip(got, want, strict=True):
        a, b = a.astype("float64").numpy(), b.numpy()
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


CASES = {
    "same": (nm.conv2d, (2, 8, 6, 5), (12, 8, 3, 3), {"padding": 1}),
    "even": (nm.conv2d, (3, 8, 5, 6), (12, 8, 2, 4), {"padding": (0, 2)}),
    "strides": (nm.conv2d, (2, 5, 8, 9), (7, 5, 3, 5), {"padding": (2, 1), "stride": (3, 2)}),
    "dilation": (nm.conv2d, (2, 4, 9, 9), (6, 4, 3, 2), {"padding": 1, "dilation": 3}),
    "groups": (nm.conv2d, (1, 8, 4, 5), (12, 2, 3, 2), {"groups": 4, "padding": 1}),
    "one axis": (nm.conv1d, (3, 4, 20), (5, 4, 5), {"stride": 3}),
    "three axes": (nm.conv3d, (2, 3, 3, 4, 3), (4, 3, 2, 3, 2), {"padding": 1}),
    "transposed": (
        *(nm.conv_transpose2d, (2, 6, 4, 3), (6, 2, 4, 3)),
        {"stride": 2, "groups": 2, "padding": 1},
    ),
    "wide margins": (nm.conv2d, (2, 3, 4, 4), (4, 3, 2, 2), {"padding": 3}),
    "cut off": (nm.conv2d, (1, 3, 7, 6), (4, 3, 3, 3), {"padding": ((-1, 0), (2, -2))}),
    "few channels": (nm.conv2d, (2, 3, 4, 4), (5, 3, 2, 2), {"stride": 2}),
    "whole tiles": (nm.conv2d, (3, 64, 5, 5), (64, 64, 1, 2), {"padding": (0, 1)}),
}
PLANS = [
    ("same", "mma_sync bfloat16", {"wgrad": True, "splits": 2}),
    ("same", "simt float32", {"wgrad": True, "splits": 2}),
    ("even", "wgmma bfloat16", {"wgrad": True, "splits": 2}),
    ("strides", "wgmma bfloat16", {"splits": 2}),
    ("strides", "mma_sync tf32", {}),
    ("same", "wgmma tf32", {"wgrad": True, "splits": 2}),
    ("strides", "wgmma tf32", {"wgrad": True}),
    ("groups", "wgmma tf32", {"merged": 2, "wgrad": True}),
    ("one axis", "wgmma tf32", {"splits": 2}),
    ("dilation", "wgmma bfloat16", {"wgrad": True}),
    ("groups", "wgmma bfloat16", {"merged": 2}),
    ("groups", "wgmma bfloat16", {"merged": 4, "wgrad": True}),
    ("groups", "simt float32", {"merged": 2, "wgrad": True, "splits": 2}),
    ("groups", "mma_sync tf32", {"merged": 4}),
    ("same", "wgmma bfloat16", {"span": 3, "splits": 2}),
    ("strides", "wgmma bfloat16", {"span": 5}),
    ("strides", "wgmma tf32", {"span": 5}),
    ("same", "wgmma float16", {"span": 3, "wgrad": True, "splits": 2}),
    ("strides", "wgmma bfloat16", {"span": 5, "wgrad": True}),
    ("groups", "wgmma bfloat16", {"span": 2, "wgrad": True, "merged": 4}),
    ("three axes", "wgmma bfloat16", {"span": 2, "wgrad": True}),
    ("whole tiles", "wgmma bfloat16", {"span": 2, "wgrad": True}),
    ("strides", "simt float32", {"span": 5, "splits": 2}),
    ("strides", "simt float32", {"span": 5, "wgrad": True}),
    ("few channels", "mma_sync bfloat16", {"span": 2}),
    ("one axis", "mma_sync float16", {"span": 5}),
    ("few channels", "mma_sync float64", {"span": 2, "wgrad": True}),
    ("groups", "wgmma bfloat16", {"span": 2, "merged": 2}),
    ("one axis", "wgmma float16", {"span": 5}),
    ("three axes", "wgmma bfloat16", {"span": 2}),
    ("wide margins", "wgmma bfloat16", {"span": 2}),
    ("few channels", "wgmma tf32", {"span": 2}),
    ("one axis", "mma_sync float64", {"splits": 2}),
    ("few channels", "mma_sync float64", {}),  # K tiles could be of two taps
    ("one axis", "mma_sync float16", {}),
    ("strides", "mma_sync float16", {"wgrad": True}),
    ("three axes", "wgmma bfloat16", {"wgrad": True}),
    ("transposed", "wgmma bfloat16", {"merged": 2}),
    ("transposed", "simt float32", {"splits": 2}),
    ("wide margins", "wgmma float16", {}),
    ("cut off", "simt float32", {"splits": 2}),
    ("whole tiles", "simt float32", {"wgrad": True, "splits": 2}),
    ("whole tiles", "mma_sync float64", {"wgrad": True, "splits": 2}),
]


@pytest.mark.parametrize(("name", "engine", "attributes"), PLANS)
def test_values_and_gradients(name, engine, attributes, only_plans):
    only_plans(**attributes)
    function, x, w, options = CASES[name]
    compare(lambda x, w: function(x, w, **options), engine, x, w)


def test_infinities_outside_a_window_do_not_spread(only_plans):
    only_plans(span=3)
    x, w = (drawn(i, s, "bfloat16") for i, s in enumerate([(2, 3, 6, 7), (4, 3, 2, 3)]))
    x = nm.where(nm.arange(x.size).reshape(x.shape) == 40, nm.inf, x).astype("bfloat16")
    want = nm.isfinite(nm.conv2d(x, w, padding=(0, 1))).numpy()
    got = nm.isfinite(nm.conv2d(x.to("simt_sm90"), w.to("simt_sm90"), padding=(0, 1))).numpy()
    assert 0 < want.sum() < want.size
    assert (got == want).all()


@pytest.mark.parametrize(
    ("x", "w", "padding"),
    [
        ((2, 3, 7, 6), (5, 3, 3, 3), 1),
        ((2, 4, 9, 10), (6, 4, 3, 3), (0, 2)),
        ((1, 4, 6, 13), (3, 4, 3, 3), ((1, 0), (-1, 1))),
        ((3, 5, 5), (4, 3, 3, 3), 1),
    ],
)
def test_winograd_values_and_gradients(x, w, padding, monkeypatch):
    any_size(monkeypatch)
    monkeypatch.setattr(winograd, "cost", lambda g, engine: 0)
    clear_plans()
    compare(
        lambda x, w: nm.conv2d(x, w, padding=padding),
        "simt float32",
        x,
        w,
        kind=("winograd_output_transform",),
    )
    clear_plans()


DEPTHWISE = {
    "one each": (nm.conv2d, (9, 6, 7, 6), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "stride": (nm.conv2d, (3, 6, 7, 6), (12, 2, 3, 2), {"groups": 3, "stride": 2}),
    "one axis": (nm.conv1d, (3, 6, 20), (6, 1, 5), {"groups": 6, "dilation": 2}),
    "three axes": (nm.conv3d, (2, 4, 3, 3, 4), (4, 1, 2, 3, 2), {"groups": 4, "padding": 1}),
    "transposed": (nm.conv_transpose2d, (1, 4, 4, 5), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
    "many outputs": (nm.conv2d, (2, 4, 6, 9), (10, 2, 3, 3), {"groups": 2, "dilation": (1, 3)}),
}


@pytest.fixture
def depthwise_only(monkeypatch):
    any_size(monkeypatch)
    monkeypatch.setattr(winograd, "fits", lambda g: False)
    monkeypatch.setattr(problem, "choose", lambda g, engine: "depthwise")
    monkeypatch.setattr(depthwise, "min_outputs", lambda target: 0)
    # small kernels would share launches, which have one name
    one = replace(horizontal.TUNING, max_kernels=1)
    monkeypatch.setattr(horizontal, "TUNING", one)
    clear_plans()
    yield
    clear_plans()


def small_wgrad(monkeypatch):
    monkeypatch.setattr(depthwise_kernel, "TUNING", replace(depthwise_kernel.TUNING, min_split_k=1))


@pytest.mark.parametrize("wgrad", [False, True])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_values_and_gradients(name, wgrad, depthwise_only, monkeypatch):
    function, x, w, options = DEPTHWISE[name]
    engine = {"one axis": "wgmma bfloat16", "three axes": "mma_sync float64"}
    given = (engine.get(name, "simt float32"), x, w)
    if wgrad:
        small_wgrad(monkeypatch)
    kinds = ("depthwise_conv", "depthwise_wgrad")
    launched = nm.device(ENGINES[given[0]][0]).runtime
    compare(lambda x, w: function(x, w, **options), *given, kind=kinds)
    names = [p.name for p in getattr(launched, "launched", [])]
    assert ON_GPU or ("depthwise_wgrad" in names) == wgrad


def as_rendered(function, x, w):
    """Against float64 on the CPU, by host threads that run the rendered GPU kernels."""
    devices.BACKENDS.setdefault("blocks", lambda index: simt_threads.Machine())
    x, w = drawn(0, x, "float32"), drawn(1, w, "float32")
    cotangent = drawn(2, function(x, w).shape, "float32")
    want = both_ways(function, *(v.astype("float64") for v in (x, w, cotangent)), False)
    got = both_ways(function, *(v.to("blocks") for v in (x, w, cotangent)), False)
    nm.eval(got)
    for a, b in zip(got, want, strict=True):
        a, b = a.numpy().astype(float), b.numpy()
        assert np.linalg.norm(a - b) <= TOLERANCE["float32"] * np.linalg.norm(b)
    return {kernel.name for kernel in nm.device("blocks").runtime.rendered}


@pytest.mark.slow
def test_depthwise_as_rendered(depthwise_only, monkeypatch):
    small_wgrad(monkeypatch)
    function, x, w, options = DEPTHWISE["one each"]
    names = as_rendered(lambda x, w: function(x, w, **options), x, w)
    assert {"depthwise_conv", "depthwise_wgrad"} <= names


@pytest.mark.slow
def test_winograd_as_rendered(monkeypatch):
    any_size(monkeypatch)
    monkeypatch.setattr(winograd, "cost", lambda g, engine: 0)
    clear_plans()
    shapes = (1, 3, 6, 5), (2, 3, 3, 3)
    names = as_rendered(lambda x, w: nm.conv2d(x, w, padding=1), *shapes)
    assert {"winograd_transform", "winograd_output_transform"} <= names
    clear_plans()


def test_winograd_is_for_windows_of_nine_with_stride_one():
    assert winograd.fits(geometry(64, 64, 64, 56, 3))
    assert winograd.fits(geometry(64, 64, 64, 56, 3, wgrad=True))
    assert not winograd.fits(geometry(64, 64, 64, 56, 5))
    assert not winograd.fits(geometry(64, 64, 64, 56, 3, stride=2))
    assert not winograd.fits(geometry(64, 4, 4, 56, 3, groups=16))
    # transforms cost more than multiplications where channels are few
    few, many = geometry(64, 8, 8, 56, 3), geometry(64, 64, 64, 56, 3)
    assert winograd.cost(few, SIMT) > few.macs
    assert winograd.cost(many, SIMT) < many.macs


@pytest.mark.parametrize(("results", "taps"), [(4, 3), (3, 4)])
def test_winograd_transforms_compute_correlations(results, taps):
    of_input, of_filter, of_output = (
        np.array(rows, float)
        for rows in (
            kernels.input_transform(),
            kernels.filter_transform(taps),
            kernels.output_transform(results),
        )
    )
    rng = np.random.default_rng(0)
    data, window = rng.standard_normal(6), rng.standard_normal(taps)
    want = np.correlate(data, window)
    np.testing.assert_allclose(of_output @ ((of_filter @ window) * (of_input @ data)), want)


@pytest.mark.skipif(ON_GPU, reason="the simulated GPU records launches")
def test_epilogues_are_fused(only_plans):
    only_plans()
    shapes = [(2, 8, 6, 6), (20, 8, 3, 3), (20,)]
    given = [drawn(i, s, "bfloat16") for i, s in enumerate(shapes)]

    def layer(x, w, b):
        return nm.maximum(nm.conv2d(x, w, b, padding=1), 0)

    want = layer(*(v.astype("float32") for v in given)).numpy()
    for device, kind in (("simt_sm90", "wgmma"), ("simt_sm80", "mma_sync")):
        machine = nm.device(device).runtime
        xs = [v.to(device) for v in given]
        nm.eval(xs)
        machine.launched.clear()
        got = layer(*xs).astype("float32").numpy()
        assert [p.name for p in machine.launched][2:3] == [f"padded_gemm_conv_{kind}"]
        assert np.linalg.norm(got - want) <= 2.0**-7 * np.linalg.norm(want)


def geometry(batch, channels, outputs, space, taps, stride=1, groups=1, wgrad=False):
    """Of a convolution with 'same' padding, or of its weight gradient."""
    extents = -(-space // stride)
    sizes = (batch, groups, channels, outputs, (1, space, space), (1, taps, taps))
    steps = ((1, 1, 1), (1, stride, stride))
    padding_low = (0, taps // 2, taps // 2)
    if wgrad:
        sizes = (channels, groups, batch, outputs, (1, space, space), (1, extents, extents))
        return Geometry(*sizes, (1, taps, taps), *steps, (1, 1, 1), padding_low)
    return Geometry(*sizes, (1, extents, extents), *steps[::-1], (1, 1, 1), padding_low)


HOPPER = padded_gemm_plan.Engine("wgmma", 2, 64, 128, 64, 80)
SIMT = padded_gemm_plan.Engine("simt", 4, 16, 64, 32, 6)


@pytest.mark.parametrize(
    ("g", "engine", "schedule"),
    [
        (geometry(64, 64, 64, 56, 3), HOPPER, (1, False)),
        (geometry(64, 64, 64, 56, 3, wgrad=True), HOPPER, (1, True)),
        (geometry(64, 64, 64, 56, 3, wgrad=True), SIMT, (1, True)),
        (geometry(64, 512, 512, 7, 3), HOPPER, (1, False)),
        (geometry(64, 3, 64, 224, 7, 2), HOPPER, "implicit_gemm"),  # few channels
        (geometry(64, 3, 64, 224, 7, 2), SIMT, (1, False)),
        (geometry(64, 3, 64, 224, 7, 2, wgrad=True), SIMT, (1, True)),
        (geometry(64, 4, 4, 56, 3, groups=32), HOPPER, (16, False)),
        (geometry(64, 4, 4, 56, 3, groups=32, wgrad=True), HOPPER, (16, True)),
        (geometry(64, 4, 4, 56, 3, groups=32, wgrad=True), SIMT, "depthwise"),
        (geometry(64, 1, 1, 56, 3, groups=64), SIMT, "depthwise"),
        (geometry(4096, 256, 256, 224, 3), HOPPER, "implicit_gemm"),  # beyond 32-bit indices
    ],
)
def test_the_cost_model_selects(g, engine, schedule):
    found = padded_gemm_plan.choose(g, engine)
    if isinstance(found, padded_gemm_plan.PaddedGemmPlan):
        found = (found.merged, found.wgrad)
    assert found == schedule


@pytest.mark.parametrize(
    ("axis", "halo_low", "size"),
    [
        ((56, 3, 56, 1, 1, 1), 1, 57),
        ((56, 3, 28, 2, 1, 1), 1, 29),
        ((56, 1, 28, 2, 1, 0), 0, 28),
        ((8, 3, 6, 1, 1, 0), 0, 8),
        ((4, 2, 9, 1, 1, 3), 3, 9),
    ],
)
def test_the_padded_grid_holds_input_zeros_and_outputs(axis, halo_low, size):
    found = padded_gemm_kernel.Axis(*axis)
    assert (found.halo_low, found.grid) == (halo_low, size)
