"""Loads and stores of kernels written in IR by hand: strides, masks, indices from memory."""

from __future__ import annotations

import ctypes
import mmap

import llvm_harness as harness
import numpy as np
import pytest
from llvm_harness import LENGTHS, N, buffers, lane, lanes, rand

from numus import dtypes as dt
from numus import ir
from numus.codegen.cpu.renderer import render
from numus.codegen.cpu.target import LlvmTarget, host
from numus.ir import (
    INDEX,
    Buffer,
    Kernel,
    Store,
    const,
    load,
    scalar,
)

f32, f64, i32, i64 = dt.float32, dt.float64, dt.int32, dt.int64


def copy_kernel(dtype, from_index, to_index, scalars=(), unroll=2):
    x, y = buffers(dtype)
    body = lanes([Store(y, to_index, load(x, from_index))], unroll=unroll)
    return Kernel("copy", (x, y), (*N, *scalars), harness.one_block(body))


@pytest.mark.parametrize("dtype", [f32, f64, dt.uint8, dt.float16, dt.bool_], ids=lambda d: d.name)
@pytest.mark.parametrize("kind", ["reversed", "reversed store", "second", "third", "slot", "block"])
def test_strided_access(kind, dtype, target):
    n_, s = scalar("n"), scalar("s")
    flip, i = n_ - 1 - lane(), lane()
    source, sink, take = {
        "reversed": (flip, i, lambda a, n: a[:n][::-1]),
        "reversed store": (i, flip, lambda a, n: a[:n][::-1]),
        "second": (i * 2 + 1, i, lambda a, n: a[1 : 2 * n + 1 : 2]),
        "third": (i * 3, i, lambda a, n: a[: 3 * n : 3]),
        "slot": (i * s, i, lambda a, n: a[: 5 * n : 5]),
        "block": (
            ir.make("idiv", INDEX, (i, const(4))) * 4 + ir.make("irem", INDEX, (i, s)),
            i,
            lambda a, n: np.array([a[k // 4 * 4 + k % 5] for k in range(n)], a.dtype),
        ),
    }[kind]
    kernel = copy_kernel(dtype, source, sink, (("s", INDEX),))
    native = harness.compiled(kernel, target)
    for n in (0, 1, 2, 15, 16, 17, 31, 33, 64, 65, 130):
        size = {"second": 2 * n, "third": 3 * n, "slot": 5 * n, "block": n + 5}.get(kind, n)
        a, out = rand(size, dtype), np.zeros(n, dtype.np)
        if kind == "second":
            a = rand(2 * n, dtype)
        harness.run(kernel, [a, out], (n, 5), native=native)
        assert np.array_equal(out, take(a, n)), n


def test_accesses_of_stride_one_and_two_are_wide():
    text = render(copy_kernel(f32, lane(), lane()), host())
    assert "gather" not in text
    assert "scatter" not in text
    assert "gather" not in render(copy_kernel(f32, lane() * 2, lane()), host())
    eight_lanes = LlvmTarget("x86_64-unknown-linux-gnu", "x86-64-v3", "+avx,+avx2,+fma")
    for cpu in (eight_lanes, host()):
        assert "gather" in render(copy_kernel(f32, lane() * 3, lane()), cpu)


def test_loads_of_stride_two_stay_inside(target):
    """The last element wanted is the last one of the page: reading on would be a fault."""
    page = mmap.PAGESIZE
    block = mmap.mmap(-1, 2 * page)
    whole = np.frombuffer(block, np.float32)
    ctypes_protect(whole.ctypes.data + page, page)
    per = page // 4
    for n in (16, 32, 64, 100):
        count = 2 * n - 1
        a = whole[per - count : per]
        a[:] = np.arange(count)
        out = np.zeros(n, np.float32)
        harness.run(copy_kernel(f32, lane() * 2, lane()), [a, out], (n,), target=target)
        assert np.array_equal(out, a[::2])


def ctypes_protect(address, size):
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mprotect"):
        pytest.skip("no mprotect here")
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert libc.mprotect(address, size, 0) == 0


@pytest.mark.parametrize("dtype", [f32, f64], ids=lambda d: d.name)
@pytest.mark.parametrize("unroll", [1, 2])
def test_complex_pairs(dtype, unroll, target):
    """(a + bi)(c + di), real and imaginary parts in turn: wide loads and stores, no gather."""
    x, z, y = buffers(dtype, dtype)
    i = lane()
    a, b = load(x, i * 2), load(x, i * 2 + 1)
    c, d = load(z, i * 2), load(z, i * 2 + 1)
    body = [Store(y, i * 2, a * c - b * d), Store(y, i * 2 + 1, a * d + b * c)]
    kernel = Kernel("complex", (x, z, y), N, harness.one_block(lanes(body, unroll=unroll)))
    text = render(kernel, target)
    assert "gather" not in text
    assert "scatter" not in text
    native = harness.compiled(kernel, target)
    complex_ = np.complex64 if dtype is f32 else np.complex128
    for n in LENGTHS[::3]:
        rng = np.random.default_rng(n)
        p, q = (rng.integers(-9, 9, 2 * n).astype(dtype.np).view(complex_) for _ in range(2))
        out = np.full(n + 8, 7 + 7j, complex_)
        harness.run(kernel, [p, q, out], (n,), native=native)
        assert np.array_equal(out[:n], p * q), n
        assert (out[n:] == 7 + 7j).all()


def test_masked_load_is_never_read(target):
    """A window with zeros around it: the mask keeps what is outside the buffer untouched."""
    x, y = buffers(f32)
    i = lane()
    j = i - 3
    inside = ir.binary("and", j >= 0, j < scalar("size"))
    body = lanes([Store(y, i, load(x, j, inside) + 1.0)], unroll=2)
    kernel = Kernel("pad", (x, y), (*N, ("size", INDEX)), harness.one_block(body))
    native = harness.compiled(kernel, target)
    for size in (0, 1, 10, 16, 40):
        n = size + 7
        a, out = rand(size, f32), np.zeros(n, np.float32)
        harness.run(kernel, [a, out], (n, size), native=native)
        assert np.array_equal(out, np.pad(a, (3, 4)) + 1)


def test_masked_uniform_and_scalar_loads(target):
    """One element for all lanes, under a mask that varies or not; address zero must not be read."""
    x, y = buffers(f32)
    z = Buffer("z", f32, "write")
    i = lane()
    body = lanes(
        [
            Store(y, i, load(x, const(0), i < scalar("k"))),
            Store(z, i, load(x, const(0), scalar("k") > 0)),
        ]
    )
    kernel = Kernel("spread", (x, y, z), (*N, ("k", INDEX)), harness.one_block(body))
    native = harness.compiled(kernel, target)
    out, out2 = np.ones(20, np.float32), np.ones(20, np.float32)
    a = np.array([5], np.float32)
    harness.run(kernel, [a, out, out2], (20, 7), native=native)
    assert np.array_equal(out, np.where(np.arange(20) < 7, 5, 0))
    assert (out2 == 5).all()
    addresses = (ctypes.c_void_p * 3)(8, out.ctypes.data, out2.ctypes.data)
    slots = (ctypes.c_int64 * 2)(20, 0)
    native(0, 1, 0, addresses, slots)
    assert (out == 0).all()
    assert (out2 == 0).all()


def test_masked_stores(target):
    x, y = buffers(f32)
    z = Buffer("z", f32, "write")
    v = load(x, lane())
    body = lanes([Store(y, lane(), v, v > 0.0), Store(z, const(0), const(3, f32), scalar("n") > 5)])
    kernel = Kernel("masked", (x, y, z), N, harness.one_block(body))
    for n in (3, 16, 37):
        a, out, one = rand(n, f32), np.full(n, 9, np.float32), np.zeros(1, np.float32)
        harness.run(kernel, [a, out, one], (n,), target=target)
        assert np.array_equal(out, np.where(a > 0, a, 9))
        assert one[0] == (3 if n > 5 else 0)


def test_scatter_of_duplicates_keeps_the_last(target):
    ids, y = Buffer("ids", i64, "read"), Buffer("y", f32, "write")
    body = lanes([Store(y, load(ids, lane()), ir.cast(lane(), f32))])
    kernel = Kernel("scatter", (ids, y), N, harness.one_block(body))
    index = np.random.default_rng(0).integers(0, 10, 100)
    out, want = np.zeros(10, np.float32), np.zeros(10, np.float32)
    for k, j in enumerate(index):
        want[j] = k
    harness.run(kernel, [index, out], (100,), target=target)
    assert np.array_equal(out, want)


def test_gather_through_an_index_buffer(target):
    ids, x, y = Buffer("ids", i32, "read"), Buffer("x", f32, "read"), Buffer("y", f32, "write")
    body = lanes([Store(y, lane(), load(x, ir.cast(load(ids, lane()), i64)))], unroll=2)
    kernel = Kernel("take", (ids, x, y), N, harness.one_block(body))
    index = np.random.default_rng(0).integers(0, 50, 77).astype(np.int32)
    table, out = rand(50, f32), np.zeros(77, np.float32)
    harness.run(kernel, [index, table, out], (77,), target=target)
    assert np.array_equal(out, table[index])
