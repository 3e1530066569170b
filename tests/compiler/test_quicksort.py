"""The quicksort kernel on every target, whether an instruction compresses lanes there or not."""

import llvm_harness as harness
import numpy as np
import pytest

from numus import dtypes as dt
from numus import ir
from numus.ir import Buffer, Kernel, Store, load, scalar
from numus.kernels.sort.cpu_quick import QuickSort, quick_sort, quick_sort_share
from numus.kernels.sort.keys import record_layout

RNG = np.random.default_rng(0)
COUNT = 4099
INPUTS = {
    "normal": RNG.standard_normal(COUNT) * 1000,
    "few values": RNG.integers(0, 3, COUNT),
    "ascending": np.arange(COUNT),
    "organ pipe": np.minimum(np.arange(COUNT), np.arange(COUNT)[::-1]),
    "one outlier": np.r_[np.zeros(COUNT - 1), 1e6],
    "powers": 2.0 ** RNG.integers(0, 30, COUNT),
}


def sorter(dtype, target, levels):
    """A kernel that sorts n elements, and the sizes of its scratch buffers."""
    layout = record_layout(dtype, COUNT, False, False, compare_floats=True)
    lanes = target.vector_bytes // dtype.itemsize
    x, y = Buffer("x", dtype, "read"), Buffer("y", dtype, "write")
    s = QuickSort(layout, lanes, scalar("n"), levels)
    body, scratch = quick_sort(
        s,
        scalar("n"),
        lambda i: layout.tile_record(load(x, i), i),
        lambda rank, value: [Store(y, rank, value)],
    )
    kernel = Kernel("sort", (x, y, *scratch), harness.N, harness.one_block(*body))
    return kernel, scratch


def in_range(values, dtype):
    if dtype.kind == "int":
        values = np.clip(values, *(getattr(np.iinfo(dtype.np), x) for x in ("min", "max")))
    return values.astype(dtype.np)


@pytest.mark.parametrize(("dtype", "levels"), [(dt.float32, 2), (dt.int64, 0)])
def test_quicksort(dtype, levels, target):
    """Also where all ranges are cut in the middle of their keys."""
    kernel, scratch = sorter(dtype, target, levels)
    native = harness.compiled(kernel, target)
    for name, values in INPUTS.items():
        for n in (0, 1, 300, COUNT):
            a = in_range(values[:n], dtype)
            if dtype is dt.float32 and name == "normal":
                a[::7], a[3::50], a[4::50] = np.nan, np.inf, -np.inf
            found = np.zeros_like(a)
            memory = [np.zeros(b.count({"n": n}), b.dtype.np) for b in scratch]
            harness.run(kernel, [a, found, *memory], (n,), native=native)
            np.testing.assert_array_equal(found, np.sort(a), err_msg=f"{name} {n}")


@pytest.mark.parametrize("dtype", [dt.int8, dt.float32, dt.int64])
@pytest.mark.parametrize("descending", [False, True])
def test_shares_of_a_row(dtype, descending, target):
    """Tasks sort ranges of the keys, and write NaNs where they belong, once; more of them than a
    key counts to."""
    shares = 3
    layout = record_layout(dtype, COUNT, descending, False, compare_floats=True)
    lanes = target.vector_bytes // dtype.itemsize
    x, y = Buffer("x", dtype, "read"), Buffer("y", dtype, "write")
    written = Buffer("written", dt.int32, "write")
    body, scratch = quick_sort_share(
        *(QuickSort(layout, lanes, scalar("n")), scalar("n")),
        *(ir.var("task"), ir.const(shares)),
        lambda i: layout.tile_record(load(x, i), i),
        lambda rank, value: [Store(y, rank, value), Store(written, rank, ir.const(1, dt.int32))],
    )
    grid = [ir.For(ir.var("task"), ir.const(0), ir.const(shares), "grid", body)]
    kernel = Kernel("sort", (x, y, written, *scratch), harness.N, tuple(grid))
    native = harness.compiled(kernel, target)
    for name, values in INPUTS.items():
        for n in (8 * lanes, 300, COUNT):
            a = in_range(values[:n], dtype)
            if dtype is dt.float32 and name in ("normal", "one outlier"):
                a[::3], a[1::4], a[4::50] = np.nan, np.inf, -np.inf
            found, count = np.zeros_like(a), np.zeros(n, np.int32)
            memory = [np.zeros(b.count({"n": n}), b.dtype.np) for b in scratch]
            harness.run(kernel, [a, found, count, *memory], (n,), shares, native=native)
            assert count.all()
            expected = np.sort(a)[::-1] if descending else np.sort(a)
            np.testing.assert_array_equal(found, expected, err_msg=f"{name} {n}")


@pytest.mark.parametrize("dtype", [dt.int8, dt.int32])
def test_lanes_are_compressed_in_order(dtype, target):
    """Of a vector: the lanes of a mask first, and their number."""
    width = target.vector_bytes // dtype.itemsize
    x, y, c = Buffer("x", dtype, "read"), Buffer("y", dtype, "write"), ir.var("i")
    mask = (load(x, c) & 1).eq(1)
    count = ir.lanes_count(mask)
    total = Buffer("n", dt.int64, "write")
    stores = [
        Store(y, c, ir.lanes_compress(load(x, c), mask), c < count),
        Store(total, ir.const(0), count),
    ]
    loop = ir.For(c, ir.const(0), ir.const(width), "lanes", stores, width=width)
    kernel = Kernel("compress", (x, y, total), (), harness.one_block(loop))
    a, found = RNG.integers(0, 99, width, dtype=dtype.np), np.zeros(width, dtype.np)
    counted = np.zeros(1, np.int64)
    harness.run(kernel, [a, found, counted], target=target)
    odd = a[a % 2 == 1]
    assert counted[0] == odd.size
    np.testing.assert_array_equal(found, np.r_[odd, np.zeros(width - odd.size, dtype.np)])
