"""Sub-warp scans of short rows on an interpreted GPU, against NumPy."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices

RNG = np.random.default_rng(3)


@pytest.fixture(scope="module", autouse=True)
def machine():
    devices.BACKENDS["subwarp"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
    return nm.device("subwarp").runtime


def rows(length):
    """Enough to fill the machine, and a block that is not full."""
    return max(17, 512 * 8 // length) + 3


def scanned(machine, function, x):
    machine.launched.clear()
    found = function(nm.asarray(x, device="subwarp")).numpy()
    names = [p.name for p in machine.launched]
    assert any(name.startswith("scan_") and name.endswith("_subwarp") for name in names), names
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 8, 16, 31, 64, 100, 129, 256, 1000, 1024])
def test_rows_of_any_length(length, machine):
    x = RNG.standard_normal((rows(length), length)).astype(np.float32)
    found = scanned(machine, lambda x: nm.cumsum(x, axis=1), x)
    np.testing.assert_allclose(found, x.cumsum(1, dtype=np.float64), rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "uint16", "int64", "bool"]
)
@pytest.mark.parametrize("length", [24, 200])
def test_dtypes(dtype, length, machine):
    numbers = RNG.integers(0, 2 if dtype == "bool" else 3, (rows(length), length))
    x = nm.asarray(numbers, device="subwarp").astype(getattr(nm, dtype))
    found = scanned(machine, lambda x: nm.cumsum(x, axis=1).astype(nm.float64), x)
    want = numbers.cumsum(1)
    if dtype == "bfloat16":  # sums are rounded once
        want = nm.asarray(want.astype(np.float32)).astype(nm.bfloat16).astype(nm.float64).numpy()
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(dtype, machine):
    x = (RNG.standard_normal((200, 60)) + 1j * RNG.standard_normal((200, 60))).astype(dtype)
    rtol = 1e-5 if dtype is np.complex64 else 1e-13
    for ours, theirs in ((nm.cumsum, np.cumsum), (nm.cumprod, np.cumprod)):
        found = scanned(machine, lambda x, ours=ours: ours(x, axis=1), x)
        np.testing.assert_allclose(found, theirs(x, 1), rtol=20 * rtol, atol=rtol)


@pytest.mark.parametrize("name", ["cumprod", "cummax", "cummin"])
def test_other_operations(name, machine):
    theirs = {
        "cumprod": np.cumprod,
        "cummax": np.maximum.accumulate,
        "cummin": np.minimum.accumulate,
    }
    x = RNG.standard_normal((90, 77)).astype(np.float32)
    x[3, 5], x[4, 70], x[5, 0] = np.nan, np.inf, -np.inf
    found = scanned(machine, lambda x: getattr(nm, name)(x, axis=1), x)
    np.testing.assert_allclose(found, theirs[name](x, 1), rtol=1e-5)


def test_non_finite_elements(machine):
    x = np.ones((80, 100), np.float32)
    x[0, 99], x[1, 50], x[2, 0] = np.inf, np.nan, -np.inf
    found = scanned(machine, lambda x: nm.cumsum(x, axis=1), x)
    np.testing.assert_array_equal(found, x.cumsum(1))


@pytest.mark.parametrize("length", [20, 96, 130])
def test_reverse_scans(length, machine):
    """The derivative of a scan runs the other way."""
    x = RNG.standard_normal((rows(length), length)).astype(np.float32)
    w = RNG.standard_normal(x.shape).astype(np.float32)
    weights = nm.asarray(w, device="subwarp")
    found = scanned(machine, nm.grad(lambda x: (nm.cumsum(x, axis=1) * weights).sum()), x)
    want = w[:, ::-1].cumsum(1)[:, ::-1]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=2e-5)


VIEWS = {
    "reversed": lambda x: x[:, ::-1],
    "every second": lambda x: x[:, ::2],
    "unaligned": lambda x: x[1:, 3:],
    "an expression": lambda x: x * 2 + 1,
    "broadcast rows": lambda x: x[:1] + 0 * x[:, :1],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name, machine):
    x = RNG.standard_normal((260, 72)).astype(np.float32)
    found = scanned(machine, lambda x: nm.cumsum(VIEWS[name](x), axis=1), x)
    np.testing.assert_allclose(found, VIEWS[name](x).cumsum(1), rtol=1e-5, atol=2e-5)


def test_axes_that_are_not_the_last(machine):
    x = RNG.standard_normal((14, 40, 5)).astype(np.float32)
    found = scanned(machine, lambda x: nm.cumsum(x, axis=1), x)
    np.testing.assert_allclose(found, x.cumsum(1), rtol=1e-5, atol=1e-5)


def test_few_or_long_rows_get_whole_blocks(machine):
    for shape in ((2, 100), (40, 1100)):
        machine.launched.clear()
        nm.eval(nm.cumsum(nm.asarray(np.ones(shape, np.float32), device="subwarp"), axis=1))
        assert not any(p.name.endswith("_subwarp") for p in machine.launched)
