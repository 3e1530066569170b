"""Convolution whose windows are displacements on a grid of cells, by everything that multiplies,
and with fewer multiplications.

On the imitated thread groups, so no GPU is needed; on one where `NUMUS_TEST_DEVICES` names `cuda`,
which then also pretends to be older than it is.
"""

import os

import numpy as np
import pytest
import simt_machine
import simt_threads

import numus as nm
from numus import ir
from numus.compiler.lower.conv import depthwise, padded_gemm, padded_gemm_plan, winograd
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.plan import clear_plans
from numus.ir import statements
from numus.kernels.conv.gpu import padded_gemm as padded_gemm_kernel
from numus.kernels.conv.gpu import winograd as kernels
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
# What there is for a dtype: the device, and whether float32 may be rounded.
UNITS = {
    "tiles bfloat16": ("simt_sm90", "bfloat16", False),
    "tiles float16": ("simt_sm90", "float16", False),
    "tiles tf32": ("simt_sm90", "float32", True),
    "warps bfloat16": ("simt_sm80", "bfloat16", False),
    "warps float16": ("simt_sm75", "float16", False),
    "warps tf32": ("simt_sm80", "float32", True),
    "warps float64": ("simt_sm80", "float64", False),
    "threads float32": ("simt_sm80", "float32", False),
}
TOLERANCE = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2e-6, "float64": 1e-13}


@pytest.fixture
def take(monkeypatch):
    """Only plans like this, and k in so many pieces."""

    def only(pieces=1, **like):
        def choose(g, unit):
            found = padded_gemm_plan.plans(g, unit)
            best = [p for p in found if all(getattr(p, k) == v for k, v in like.items())]
            return (best or found)[0]

        tiles = padded_gemm._tiles
        if not ON_GPU:
            monkeypatch.setattr(padded_gemm_plan, "OVERLAPPING", ("tiles", "warps", "threads"))
        monkeypatch.setattr(padded_gemm, "SMALL", 1)
        monkeypatch.setattr(winograd, "fits", lambda g: False)
        monkeypatch.setattr(padded_gemm, "choose", choose)
        monkeypatch.setattr(padded_gemm, "_tiles", lambda *a: (tiles(*a)[0], pieces))
        clear_plans()

    yield only
    clear_plans()


def drawn(seed, shape, dtype):
    x = nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    return x.astype(dtype)


def both_ways(function, x, w, up, rounds):
    with nm.matmul_precision("tf32" if rounds else "highest"):
        y, pull = nm.vjp(function, x, w)
    return (y, *pull(up))


def compare(function, unit, x, w, kind=None):
    """The result and the gradients, by three kernels of a kind, against float64 on the CPU."""
    device, dtype, rounds = UNITS[unit]
    x, w = drawn(0, x, dtype), drawn(1, w, dtype)
    up = drawn(2, function(x, w).shape, dtype)
    want = both_ways(function, *(v.astype("float64") for v in (x, w, up)), False)
    machine = nm.device(device).runtime
    launched = getattr(machine, "launched", [])
    launched.clear()
    got = both_ways(function, *(v.to(device) for v in (x, w, up)), rounds)
    nm.eval(got)
    kinds = kind or (f"cell_convolution_by_{unit.split()[0]}",)
    used = [p.name for p in launched if p.name in kinds]
    assert ON_GPU or len(used) == 3, used
    if device == "simt_sm75":  # where nothing copies by itself
        found = [s for p in launched for s in statements(p.kernel.body)]
        assert not any(isinstance(s, ir.AsyncCopy) for s in found)
    # units of a GPU look at 11 bits of what may be rounded
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
TAKEN = [
    ("same", "warps bfloat16", {"by_results": True, "pieces": 2}),
    ("same", "threads float32", {"by_results": True, "pieces": 2}),
    ("even", "tiles bfloat16", {"by_results": True, "pieces": 2}),
    ("strides", "tiles bfloat16", {"pieces": 2}),
    ("strides", "warps tf32", {}),
    ("same", "tiles tf32", {"by_results": True, "pieces": 2}),
    ("strides", "tiles tf32", {"by_results": True}),
    ("groups", "tiles tf32", {"merged": 2, "by_results": True}),
    ("one axis", "tiles tf32", {"pieces": 2}),
    ("dilation", "tiles bfloat16", {"by_results": True}),
    ("groups", "tiles bfloat16", {"merged": 2}),
    ("groups", "tiles bfloat16", {"merged": 4, "by_results": True}),
    ("groups", "threads float32", {"merged": 2, "by_results": True, "pieces": 2}),
    ("groups", "warps tf32", {"merged": 4}),
    ("same", "tiles bfloat16", {"span": 3, "pieces": 2}),
    ("strides", "tiles bfloat16", {"span": 5}),
    ("strides", "tiles tf32", {"span": 5}),
    ("same", "tiles float16", {"span": 3, "by_results": True, "pieces": 2}),
    ("strides", "tiles bfloat16", {"span": 5, "by_results": True}),
    ("groups", "tiles bfloat16", {"span": 2, "by_results": True, "merged": 4}),
    ("three axes", "tiles bfloat16", {"span": 2, "by_results": True}),
    ("whole tiles", "tiles bfloat16", {"span": 2, "by_results": True}),
    ("strides", "threads float32", {"span": 5, "pieces": 2}),
    ("strides", "threads float32", {"span": 5, "by_results": True}),
    ("few channels", "warps bfloat16", {"span": 2}),
    ("one axis", "warps float16", {"span": 5}),
    ("few channels", "warps float64", {"span": 2, "by_results": True}),
    ("groups", "tiles bfloat16", {"span": 2, "merged": 2}),
    ("one axis", "tiles float16", {"span": 5}),
    ("three axes", "tiles bfloat16", {"span": 2}),
    ("wide margins", "tiles bfloat16", {"span": 2}),
    ("few channels", "tiles tf32", {"span": 2}),
    ("one axis", "warps float64", {"pieces": 2}),
    ("few channels", "warps float64", {}),  # slices could be of two taps
    ("one axis", "warps float16", {}),
    ("strides", "warps float16", {"by_results": True}),
    ("three axes", "tiles bfloat16", {"by_results": True}),
    ("transposed", "tiles bfloat16", {"merged": 2}),
    ("transposed", "threads float32", {"pieces": 2}),
    ("wide margins", "tiles float16", {}),
    ("cut off", "threads float32", {"pieces": 2}),
    ("whole tiles", "threads float32", {"by_results": True, "pieces": 2}),
    ("whole tiles", "warps float64", {"by_results": True, "pieces": 2}),
]


@pytest.mark.parametrize(("name", "unit", "like"), TAKEN)
def test_values_and_gradients(name, unit, like, take):
    take(**like)
    function, x, w, options = CASES[name]
    compare(lambda x, w: function(x, w, **options), unit, x, w)


def test_what_lies_beside_a_window_is_not_in_its_sum(take):
    take(span=3)
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
def test_with_fewer_multiplications(x, w, padding, monkeypatch):
    monkeypatch.setattr(padded_gemm, "SMALL", 1)
    monkeypatch.setattr(winograd, "cost", lambda g, unit: 0)
    clear_plans()
    compare(
        lambda x, w: nm.conv2d(x, w, padding=padding), "threads float32", x, w, kind=("from_form",)
    )
    clear_plans()


WINDOWS = {
    "one each": (nm.conv2d, (9, 6, 7, 6), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    "stride": (nm.conv2d, (3, 6, 7, 6), (12, 2, 3, 2), {"groups": 3, "stride": 2}),
    "one axis": (nm.conv1d, (3, 6, 20), (6, 1, 5), {"groups": 6, "dilation": 2}),
    "three axes": (nm.conv3d, (2, 4, 3, 3, 4), (4, 1, 2, 3, 2), {"groups": 4, "padding": 1}),
    "transposed": (nm.conv_transpose2d, (1, 4, 4, 5), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
    "many outputs": (nm.conv2d, (2, 4, 6, 9), (10, 2, 3, 3), {"groups": 2, "dilation": (1, 3)}),
}


@pytest.fixture
def by_sums(monkeypatch):
    monkeypatch.setattr(padded_gemm, "SMALL", 1)
    monkeypatch.setattr(winograd, "fits", lambda g: False)
    monkeypatch.setattr(padded_gemm, "choose", lambda g, unit: "sums")
    monkeypatch.setattr(depthwise, "_enough", lambda target: 0)
    clear_plans()
    yield
    clear_plans()


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_sums_over_single_windows(name, gathers, by_sums, monkeypatch):
    function, x, w, options = WINDOWS[name]
    unit = {"one axis": "tiles bfloat16", "three axes": "warps float64"}
    given = (unit.get(name, "threads float32"), x, w)
    if gathers:
        monkeypatch.setattr(depthwise, "LEAST", 1)
    kinds = ("window_sums", "gathered_sums")
    launched = nm.device(UNITS[given[0]][0]).runtime
    compare(lambda x, w: function(x, w, **options), *given, kind=kinds)
    names = [p.name for p in getattr(launched, "launched", [])]
    assert ON_GPU or ("gathered_sums" in names) == gathers


def as_rendered(function, x, w):
    """Against float64 on the CPU, by threads of the host that run what a GPU would be given."""
    devices.BACKENDS.setdefault("blocks", lambda index: simt_threads.Machine())
    x, w = drawn(0, x, "float32"), drawn(1, w, "float32")
    up = drawn(2, function(x, w).shape, "float32")
    want = both_ways(function, *(v.astype("float64") for v in (x, w, up)), False)
    got = both_ways(function, *(v.to("blocks") for v in (x, w, up)), False)
    nm.eval(got)
    for a, b in zip(got, want, strict=True):
        a, b = a.numpy().astype(float), b.numpy()
        assert np.linalg.norm(a - b) <= TOLERANCE["float32"] * np.linalg.norm(b)
    return {kernel.name for kernel in nm.device("blocks").runtime.rendered}


def test_sums_as_rendered(by_sums, monkeypatch):
    monkeypatch.setattr(depthwise, "LEAST", 1)
    function, x, w, options = WINDOWS["one each"]
    names = as_rendered(lambda x, w: function(x, w, **options), x, w)
    assert {"window_sums", "gathered_sums"} <= names


def test_forms_as_rendered(monkeypatch):
    monkeypatch.setattr(padded_gemm, "SMALL", 1)
    monkeypatch.setattr(winograd, "cost", lambda g, unit: 0)
    clear_plans()
    shapes = (1, 3, 6, 5), (2, 3, 3, 3)
    names = as_rendered(lambda x, w: nm.conv2d(x, w, padding=1), *shapes)
    assert {"to_form", "from_form"} <= names
    clear_plans()


def test_fewer_multiplications_are_for_windows_of_nine_steps_of_one():
    assert winograd.fits(geometry(64, 64, 64, 56, 3))
    assert winograd.fits(geometry(64, 64, 64, 56, 3, by_weights=True))
    assert not winograd.fits(geometry(64, 64, 64, 56, 5))
    assert not winograd.fits(geometry(64, 64, 64, 56, 3, stride=2))
    assert not winograd.fits(geometry(64, 4, 4, 56, 3, groups=16))
    # moving forms costs more than multiplications where channels are few
    few, many = geometry(64, 8, 8, 56, 3), geometry(64, 64, 64, 56, 3)
    assert winograd.cost(few, PLAIN) > few.work
    assert winograd.cost(many, PLAIN) < many.work


@pytest.mark.parametrize(("results", "taps"), [(4, 3), (3, 4)])
def test_forms_give_the_sums_of_windows(results, taps):
    of_data, of_window, of_result = (
        np.array(rows, float)
        for rows in (
            kernels.of_data(),
            kernels.of_window(taps),
            kernels.of_result(results),
        )
    )
    rng = np.random.default_rng(0)
    data, window = rng.standard_normal(6), rng.standard_normal(taps)
    want = np.correlate(data, window)
    np.testing.assert_allclose(of_result @ ((of_window @ window) * (of_data @ data)), want)


@pytest.mark.skipif(ON_GPU, reason="which kernels run is told by the imitated machine")
def test_what_follows_is_done_along_with_it(take):
    take()
    shapes = [(2, 8, 6, 6), (20, 8, 3, 3), (20,)]
    given = [drawn(i, s, "bfloat16") for i, s in enumerate(shapes)]

    def layer(x, w, b):
        return nm.maximum(nm.conv2d(x, w, b, padding=1), 0)

    want = layer(*(v.astype("float32") for v in given)).numpy()
    for device, kind in (("simt_sm90", "tiles"), ("simt_sm80", "warps")):
        machine = nm.device(device).runtime
        xs = [v.to(device) for v in given]
        nm.eval(xs)
        machine.launched.clear()
        got = layer(*xs).astype("float32").numpy()
        assert [p.name for p in machine.launched][2:3] == [f"cell_convolution_by_{kind}"]
        assert np.linalg.norm(got - want) <= 2.0**-7 * np.linalg.norm(want)


def geometry(batch, channels, outputs, space, taps, stride=1, groups=1, by_weights=False):
    """Of a convolution that keeps its size, but for the stride, or of its gradient by weights."""
    extents = -(-space // stride)
    sizes = (batch, groups, channels, outputs, (1, space, space), (1, taps, taps))
    steps = ((1, 1, 1), (1, stride, stride))
    low = (0, taps // 2, taps // 2)
    if by_weights:
        sizes = (channels, groups, batch, outputs, (1, space, space), (1, extents, extents))
        return Geometry(*sizes, (1, taps, taps), *steps, (1, 1, 1), low)
    return Geometry(*sizes, (1, extents, extents), *steps[::-1], (1, 1, 1), low)


HOPPER = padded_gemm_plan.Unit("tiles", 2, 64, 128, 64, 80)
PLAIN = padded_gemm_plan.Unit("threads", 4, 16, 64, 32, 6)


@pytest.mark.parametrize(
    ("g", "unit", "way"),
    [
        (geometry(64, 64, 64, 56, 3), HOPPER, (1, False)),
        (geometry(64, 64, 64, 56, 3, by_weights=True), HOPPER, (1, True)),
        (geometry(64, 64, 64, 56, 3, by_weights=True), PLAIN, (1, True)),
        (geometry(64, 512, 512, 7, 3), HOPPER, (1, False)),
        (geometry(64, 3, 64, 224, 7, 2), HOPPER, "windows"),  # few channels
        (geometry(64, 3, 64, 224, 7, 2), PLAIN, (1, False)),
        (geometry(64, 3, 64, 224, 7, 2, by_weights=True), PLAIN, (1, True)),
        (geometry(64, 4, 4, 56, 3, groups=32), HOPPER, (16, False)),
        (geometry(64, 4, 4, 56, 3, groups=32, by_weights=True), HOPPER, (16, True)),
        (geometry(64, 4, 4, 56, 3, groups=32, by_weights=True), PLAIN, "sums"),
        (geometry(64, 1, 1, 56, 3, groups=64), PLAIN, "sums"),
        (geometry(4096, 256, 256, 224, 3), HOPPER, "windows"),  # too much to count
    ],
)
def test_which_way_it_goes(g, unit, way):
    found = padded_gemm_plan.choose(g, unit)
    if isinstance(found, padded_gemm_plan.Plan):
        found = (found.merged, found.by_results)
    assert found == way


@pytest.mark.parametrize(
    ("axis", "up", "count"),
    [
        ((56, 3, 56, 1, 1, 1), 1, 57),
        ((56, 3, 28, 2, 1, 1), 1, 29),
        ((56, 1, 28, 2, 1, 0), 0, 28),
        ((8, 3, 6, 1, 1, 0), 0, 8),
        ((4, 2, 9, 1, 1, 3), 3, 9),
    ],
)
def test_the_grid_has_room_for_data_zeros_and_results(axis, up, count):
    found = padded_gemm_kernel.Axis(*axis)
    assert (found.up, found.cells) == (up, count)
