"""CPU sort schedules: a row per lane, per tile, radix sort, bucket sort."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import numus as nm
from numus import runtime
from numus.compiler.plan import clear_plans

RNG = np.random.default_rng(0)
DTYPES = (
    *(np.float32, np.bool_, np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64),
    *(np.float64, np.float16, ml_dtypes.bfloat16),
    *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
)
# shape, axis: lanes over rows, across columns, over several axes; a tile; parts; parts of rows
SHAPES = (
    ((40, 17), 1),
    ((70, 40), 0),
    ((5, 9, 11), 1),
    ((130, 2, 3), 0),
    ((2, 3_000), 1),
    ((1,), 0),
    ((40_003,), 0),
    ((2, 20_000), 1),
)


def stable_order(a, axis, descending):
    """The stable order by NumPy."""
    if a.dtype.name.startswith(("bfloat", "float8")):
        a = a.astype(np.float32)
    if not descending:
        return np.argsort(a, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(a, axis), axis=axis, kind="stable")
    return np.flip(a.shape[axis] - 1 - backwards, axis)


def data(shape, dtype):
    """Random numbers with ties; floats with zeros, infinities and NaN of any sign."""
    a = RNG.standard_normal(shape) * 50
    if np.dtype(dtype).kind == "u":
        a = np.abs(a)
    a = a.astype(dtype)
    if "float" in a.dtype.name:
        a.flat[::13] = np.nan
        a.flat[::26] = -a.flat[::26]
        a.flat[5::17] = -0.0
        a.flat[6::17] = 0.0
        a.flat[7::29] = np.inf
        a.flat[8::31] = -np.inf
    return a


def check(a, axis=-1):
    wide = a.astype(np.float32) if a.dtype.name.startswith(("bfloat", "float8")) else a
    for descending in (False, True):
        order = stable_order(a, axis, descending)
        found = nm.argsort(nm.asarray(a), axis=axis, descending=descending).numpy()
        np.testing.assert_array_equal(found, order)
        values = nm.sort(nm.asarray(a), axis=axis, descending=descending).numpy()
        wanted = np.take_along_axis(wide, order, axis)
        np.testing.assert_array_equal(values.astype(wide.dtype), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_every_dtype(dtype):
    for shape, axis in SHAPES:
        check(data(shape, dtype), axis)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, ml_dtypes.float8_e5m2])
def test_quicksort_of_short_keys(dtype, monkeypatch):
    """As where an instruction compresses lanes of any width: more elements than a key can count."""
    cpu = runtime.get("cpu")
    monkeypatch.setattr(cpu, "target", replace(cpu.target, compress_min_bytes=1))
    clear_plans()
    for shape in ((3_000,), (40_003,), (5, 9_000)):
        check(data(shape, dtype))
    clear_plans()


DISTRIBUTIONS = {
    "equal": np.zeros(50_000, np.float32),
    "ascending": np.arange(50_000),
    "descending": np.arange(50_000)[::-1].copy(),
    "one outlier": np.r_[np.zeros(49_999), 1e30].astype(np.float32),
    "few values": RNG.integers(0, 3, 50_000),
    "all bits": RNG.integers(-(2**63), 2**63, 50_001),
    "many powers of two": np.exp(RNG.standard_normal(50_000) * 50),
    "subnormal": RNG.standard_normal(50_000).astype(np.float32) * np.float32(1e-44),
    "nothing finite": RNG.choice([np.nan, np.inf, -np.inf], 50_000).astype(np.float32),
    "more than a tile, all close": np.float32(1) + RNG.integers(0, 9, 300_000) * np.float32(2**-23),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_any_distribution(name):
    check(DISTRIBUTIONS[name])


@pytest.mark.slow
def test_rows_too_long_for_tiles():
    """Enough of them that each is sorted by one thread, by radix."""
    count = 4 * nm.get_num_threads()
    check(RNG.standard_normal((count, 270_000)).astype(np.float32)[:, ::2])
    check(RNG.integers(0, 1000, (count, 540_000)))


def test_zeros_keep_their_signs():
    for a in (np.float32([0.0, -0.0, 1.0, -0.0]), np.zeros(40_000, np.float32)):
        a[::3] *= -1
        assert np.signbit(nm.sort(nm.asarray(a)).numpy()).sum() == np.signbit(a).sum()


def test_bits_do_not_depend_on_threads():
    a = nm.asarray(data((100_003,), np.float32))
    before = nm.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            nm.set_num_threads(count)
            found.append(nm.sort(a).numpy().tobytes() + nm.argsort(a).numpy().tobytes())
    finally:
        nm.set_num_threads(before)
    assert found.count(found[0]) == 3
