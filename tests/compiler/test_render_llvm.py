"""Kernels written in IR by hand, rendered, compiled and compared with NumPy."""

from __future__ import annotations

import ctypes
import mmap

import llvm_harness as harness
import numpy as np
import pytest

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.ir import (
    INDEX,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Register,
    Set,
    Store,
    const,
    lanes_reduce,
    load,
    read,
    scalar,
    var,
)
from numus.compiler.render.llvm import render
from numus.errors import CompileError
from numus.runtime.cpu.target import Target, host

f32, f64, i32, i64 = dt.float32, dt.float64, dt.int32, dt.int64
ALL_TARGETS = harness.targets()
LENGTHS = [*range(71), 127, 128, 129, 300]
N = (("n", INDEX),)


@pytest.fixture(autouse=True)
def _fresh():
    ir.fresh()


@pytest.fixture(params=list(ALL_TARGETS))
def target(request):
    return ALL_TARGETS[request.param]


def lanes(body, stop=None, start=0, unroll=1, step=1, name="i"):
    stop = scalar("n") if stop is None else stop
    stop = const(stop) if isinstance(stop, int) else stop
    start = const(start) if isinstance(start, int) else start
    return For(var(name), start, stop, "lanes", body, const(step), unroll)


def serial(name, stop, body):
    return For(
        var(name), const(0), stop if isinstance(stop, ir.Expr) else const(stop), "serial", body
    )


def buffers(*dtypes, out=None):
    read_ = [Buffer(f"x{i}", d, "read") for i, d in enumerate(dtypes)]
    return [*read_, Buffer("y", out or dtypes[0], "write")]


def rand(n, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, n).astype(bool)
    if dtype.is_integer:
        low, high = dt.int_range(dtype)
        return rng.integers(low, high, n, dtype=dtype.np, endpoint=True)
    return rng.standard_normal(n).astype(dtype.np)


def lane():
    return var("i")


# -- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unroll", [1, 3, 4])
@pytest.mark.parametrize("dtype", [f32, f64, dt.uint8, dt.int16], ids=lambda d: d.name)
def test_map_has_every_tail(dtype, unroll, target):
    x, y = buffers(dtype)
    value = load(x, lane()) * 2 + 1
    kernel = Kernel(
        "map", (x, y), N, harness.one_block(lanes([Store(y, lane(), value)], unroll=unroll))
    )
    native = harness.compiled(kernel, target)
    for n in LENGTHS:
        a, b = rand(n, dtype), np.full(n + 80, 9, dtype.np)
        harness.run(kernel, [a, b], (n,), native=native)
        want = (a * dtype.np.type(2) + dtype.np.type(1)).astype(dtype.np)
        assert np.array_equal(b[:n], want), n
        assert (b[n:] == 9).all(), n


@pytest.mark.parametrize("unroll", [1, 4])
def test_small_kernels_are_short_and_right(unroll, target):
    x, y = buffers(f32)
    acc = Register("acc", f32, lanes=True)
    body = lanes(
        [Set(acc, read(acc) + load(x, lane())), Store(y, lane(), load(x, lane()) * 2.0)],
        unroll=unroll,
    )
    total = Buffer("total", f32, "write")
    block = harness.one_block(
        Set(acc, const(0, f32)), body, Store(total, const(0), lanes_reduce("add", acc))
    )
    kernel = Kernel("small", (x, y, total), N, block, small=True)
    usual = Kernel("usual", kernel.buffers, kernel.scalars, kernel.body)
    assert len(render(kernel, target)) <= len(render(usual, target))
    native = harness.compiled(kernel, target)
    for n in LENGTHS:
        a = np.random.default_rng(n).integers(-9, 9, n).astype(np.float32)
        b, s = np.full(n + 20, 9, np.float32), np.zeros(1, np.float32)
        harness.run(kernel, [a, b, s], (n,), native=native)
        assert np.array_equal(b[:n], a * 2)
        assert (b[n:] == 9).all()
        assert s[0] == a.sum()


def test_grid_blocks_with_start_and_step():
    x, y = buffers(f32)
    b, n = var("b"), scalar("n")
    stop = ir.minimum(b + 64, n)
    body = [lanes([Store(y, lane(), load(x, lane()) + 1.0)], stop, b, unroll=2)]
    kernel = Kernel("blocks", (x, y), N, [For(b, const(64), n, "grid", body, const(64))])
    a, out = rand(1000, f32), np.zeros(1000, np.float32)
    harness.run(kernel, [a, out], (1000,), grid=15)
    assert np.array_equal(out[64:], a[64:] + 1)
    assert (out[:64] == 0).all()


@pytest.mark.parametrize("extent", [4, 16, 32, 40, 64])
def test_constant_extent(extent, target):
    x, y = buffers(f32)
    body = lanes([Store(y, lane(), load(x, lane()) + 1.0)], extent, unroll=2)
    kernel = Kernel("constant", (x, y), (), harness.one_block(body))
    a, out = rand(extent, f32), np.zeros(extent + 20, np.float32)
    harness.run(kernel, [a, out], target=target)
    assert np.array_equal(out[:extent], a + 1)
    assert (out[extent:] == 0).all()
    if extent % (2 * target.lanes_bytes // 4) == 0:
        assert "masked" not in render(kernel, target)


@pytest.mark.parametrize("dtype", [f32, f64, dt.uint8], ids=lambda d: d.name)
def test_large_results_are_stored_past_the_caches(dtype, target):
    """Streamed stores need whole, aligned vectors: everything else must fall back."""
    x, y = buffers(dtype)
    body = lanes([Store(y, lane() + scalar("k"), load(x, lane()) + 1)], unroll=2)
    kernel = Kernel("stream", (x, y), (*N, ("k", INDEX)), harness.one_block(body))
    assert "!nontemporal" in render(kernel, target)
    native = harness.compiled(kernel, target)
    n = 1000
    a, block = rand(n, dtype), np.zeros(64 * 200, np.uint8)
    start = -block.ctypes.data % 64
    for offset in (0, 1, 3, 16, 64):
        out = block[start:][: 8 * (n + 80)].view(dtype.np)
        out[:] = 9
        harness.run(kernel, [a, out], (n, offset), native=native, worker=1 << 40)
        assert np.array_equal(out[offset : offset + n], a + dtype.np.type(1)), offset
        assert (out[:offset] == 9).all()
        assert (out[offset + n :] == 9).all()
    same = a.copy()
    harness.run(kernel, [same, same], (n, 0), native=native, worker=1 << 40)
    assert np.array_equal(same, a + dtype.np.type(1))


def test_lanes_step():
    x, y = buffers(f32)
    body = lanes([Store(y, lane(), load(x, lane()))], scalar("n"), 1, step=3)
    kernel = Kernel("step", (x, y), N, harness.one_block(body))
    native = harness.compiled(kernel)
    for n in (0, 1, 2, 5, 100, 101, 102):
        a, out = rand(n, f32), np.zeros(n, np.float32)
        harness.run(kernel, [a, out], (n,), native=native)
        want = np.zeros(n, np.float32)
        want[1::3] = a[1::3]
        assert np.array_equal(out, want), n


# -- reductions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dtype", "initial", "reference"),
    [
        ("add", f32, 0, np.sum),
        ("add", f64, 0, np.sum),
        ("mul", dt.int64, 1, np.prod),
        ("min", f32, np.inf, np.min),
        ("max", i32, -(2**31), np.max),
        ("max", dt.uint8, 0, np.max),
        ("and", dt.bool_, True, np.all),
        ("or", dt.bool_, False, np.any),
    ],
)
def test_reduce_over_lanes(op, dtype, initial, reference, target):
    x, y = buffers(dtype)
    acc = Register("acc", dtype, lanes=True)
    step = Set(acc, ir.binary(op, read(acc), load(x, lane())))
    kernel = Kernel(
        "reduce",
        (x, y),
        N,
        harness.one_block(
            Set(acc, const(initial, dtype)),
            lanes([step], unroll=3),
            Store(y, const(0), lanes_reduce(op, acc)),
        ),
    )
    native = harness.compiled(kernel, target)
    for n in LENGTHS[1:]:
        a = rand(n, dtype, n)
        if op == "add":
            a = np.random.default_rng(n).integers(-9, 9, n).astype(dtype.np)  # exact sums
        out = np.zeros(1, dtype.np)
        harness.run(kernel, [a, out], (n,), native=native)
        with np.errstate(over="ignore"):
            assert out[0] == reference(a).astype(dtype.np), n


def test_min_and_max_keep_nan(target):
    """Like NumPy's, from either side, also against constants and across lanes."""
    x0, x1, y = buffers(f32, f32)
    z, m = Buffer("z", f32, "write"), Buffer("m", f32, "write")
    acc = Register("acc", f32, lanes=True)
    a, b = load(x0, lane()), load(x1, lane())
    body = lanes(
        [
            Store(y, lane(), ir.minimum(a, b)),
            Store(z, lane(), ir.maximum(a, 0.5)),
            Set(acc, ir.maximum(read(acc), a)),
        ]
    )
    kernel = Kernel(
        "nan",
        (x0, x1, y, z, m),
        N,
        harness.one_block(
            Set(acc, const(-np.inf, f32)), body, Store(m, const(0), lanes_reduce("max", acc))
        ),
    )
    for n in (5, 16, 40):
        p, q = rand(n, f32, 1), rand(n, f32, 2)
        p[::3], q[1::3] = np.nan, np.nan
        out, out2, most = np.zeros(n, np.float32), np.zeros(n, np.float32), np.zeros(1, np.float32)
        harness.run(kernel, [p, q, out, out2, most], (n,), target=target)
        assert np.array_equal(out, np.minimum(p, q), equal_nan=True)
        assert np.array_equal(out2, np.maximum(p, np.float32(0.5)), equal_nan=True)
        assert np.isnan(most[0])


def test_columns_with_a_serial_loop_inside(target):
    """Lanes across columns, rows one after the other: the vectors share the inner loop."""
    x, y = buffers(f32)
    acc, n = Register("acc", f32, lanes=True), scalar("n")
    rows = scalar("rows")
    body = lanes(
        [
            Set(acc, const(0, f32)),
            serial("k", rows, [Set(acc, read(acc) + load(x, var("k") * n + lane()))]),
            Store(y, lane(), read(acc)),
        ],
        unroll=2,
    )
    kernel = Kernel("columns", (x, y), (*N, ("rows", INDEX)), harness.one_block(body))
    native = harness.compiled(kernel, target)
    for cols in (1, 16, 33, 70):
        a = rand(7 * cols, f32)
        out = np.zeros(cols, np.float32)
        harness.run(kernel, [a, out], (cols, 7), native=native)
        want = np.zeros(cols, np.float32)
        for row in a.reshape(7, cols):
            want += row
        assert np.array_equal(out, want)


def test_rows_of_stages():
    """A row program: a reduction, then a map that uses its result, row after row."""
    x, y = buffers(f32)
    n, r = scalar("n"), var("r")
    total = Register("total", f32, lanes=True)
    body = [
        Set(total, const(0, f32)),
        lanes([Set(total, read(total) + load(x, r * n + lane()))], unroll=2),
        Let(var("mean", f32), lanes_reduce("add", total) / ir.cast(n, f32)),
        lanes([Store(y, r * n + lane(), load(x, r * n + lane()) - var("mean", f32))]),
    ]
    kernel = Kernel("rows", (x, y), N, [For(r, const(0), scalar("rows"), "grid", body)])
    kernel = Kernel("rows", (x, y), (*N, ("rows", INDEX)), kernel.body)
    a = np.random.default_rng(0).integers(-8, 8, (5, 32)).astype(np.float32)
    out = np.zeros_like(a)
    harness.run(kernel, [a, out], (32, 5), grid=5)
    assert np.array_equal(out, a - a.mean(1, keepdims=True))


def test_tile_of_registers(target):
    """A matrix product's inner tile: registers of `unroll` vectors, set in a loop around lanes."""
    rows, width = 3, 2 * target.lanes_bytes // 4
    a_, b_, c_ = Buffer("a", f32, "read"), Buffer("b", f32, "read"), Buffer("c", f32, "write")
    acc = [Register(f"c{r}", f32, lanes=True) for r in range(rows)]
    k = var("k")
    step = [
        Set(acc[r], ir.fma(load(a_, k * rows + r), load(b_, k * width + lane()), read(acc[r])))
        for r in range(rows)
    ]
    kernel = Kernel(
        "tile",
        (a_, b_, c_),
        (("depth", INDEX),),
        harness.one_block(
            *(Set(r, const(0, f32)) for r in acc),
            serial("k", scalar("depth"), [lanes(step, width, unroll=2)]),
            lanes(
                [Store(c_, lane() + r * width, read(acc[r])) for r in range(rows)], width, unroll=2
            ),
        ),
    )
    a = np.random.default_rng(0).integers(-5, 5, (9, rows)).astype(np.float32)
    b = np.random.default_rng(1).integers(-5, 5, (9, width)).astype(np.float32)
    out = np.zeros((rows, width), np.float32)
    harness.run(kernel, [a, b, out], (9,), target=target)
    assert np.array_equal(out, a.T @ b)


# -- addressing -----------------------------------------------------------------------------------


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
    assert "gather" in render(copy_kernel(f32, lane() * 3, lane()), host())


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


# -- order of statements --------------------------------------------------------------------------


def test_let_keeps_the_value_of_its_moment(target):
    x, y = buffers(f32)
    r, i = Register("r", f32, lanes=True), lane()
    body = lanes(
        [
            Set(r, load(x, i)),
            Let(var("old", f32), read(r) + 1.0),
            Set(r, read(r) * 10.0),
            Store(y, i, read(r) + var("old", f32)),
        ]
    )
    kernel = Kernel("let", (x, y), N, harness.one_block(body))
    a, out = rand(21, f32), np.zeros(21, np.float32)
    harness.run(kernel, [a, out], (21,), target=target)
    assert np.array_equal(out, a * 10 + (a + 1))


def test_an_expression_sees_registers_and_buffers_as_they_are():
    """The same expression object in three statements, with changes between them."""
    y = Buffer("y", f32, "write")
    r = Register("r", f32)
    now = read(r) + 1.0
    stored = load(y, const(0)) * 2.0
    kernel = Kernel(
        "now",
        (y,),
        (),
        harness.one_block(
            Set(r, const(1, f32)),
            Store(y, const(0), now),  # 2
            serial("k", 3, [Store(y, const(1), now), Set(r, now)]),  # 2, 3, 4; r = 4
            Store(y, const(2), now),  # 5
            Store(y, const(3), stored),  # 4
            Store(y, const(0), const(7, f32)),
            Store(y, const(4), stored),  # 14
            If(scalar_true(), [Set(r, const(20, f32))]),
            Store(y, const(5), now),  # 21
        ),
    )
    out = np.zeros(6, np.float32)
    harness.run(kernel, [out])
    assert out.tolist() == [7, 4, 5, 4, 14, 21]


def scalar_true():
    return ir.make("lt", dt.bool_, (const(0), var("block") + 1))


def test_if_and_unrolled_loops(target):
    x, y = buffers(f32)
    r, i = Register("r", f32, lanes=True), lane()
    j = var("j")
    body = lanes(
        [
            Set(r, const(0, f32)),
            For(j, const(0), const(4), "unroll", [Set(r, read(r) + load(x, i * 4 + j))]),
            If(scalar("n") > 10, [Set(r, -read(r))]),
            Store(y, i, read(r)),
        ]
    )
    kernel = Kernel("if", (x, y), N, harness.one_block(body))
    native = harness.compiled(kernel, target)
    for n in (3, 17):
        a = np.random.default_rng(n).integers(-9, 9, (n, 4)).astype(np.float32)
        out = np.zeros(n, np.float32)
        harness.run(kernel, [a, out], (n,), native=native)
        assert np.array_equal(out, a.sum(1) * (-1 if n > 10 else 1))


def test_uniform_values_inside_lanes(target):
    """Row-wise scalars are loaded once and spread; a uniform register may be set in the loop."""
    x, s, y = buffers(f32, f32)
    i, k = lane(), var("k")
    total = Register("total", f32)
    body = lanes(
        [
            Set(total, const(0, f32)),
            serial("k", 3, [Set(total, read(total) + load(s, k))]),
            Store(y, i, load(x, i) * read(total)),
        ],
        unroll=2,
    )
    kernel = Kernel("uniform", (x, s, y), N, harness.one_block(body))
    a, out = rand(50, f32), np.zeros(50, np.float32)
    harness.run(kernel, [a, np.array([1, 2, 3], np.float32), out], (50,), target=target)
    assert np.array_equal(out, a * 6)


def test_scratch_is_each_worker_s_own():
    x, y = buffers(f32)
    t = Buffer("t", f32, "scratch", scalar("n"))
    i = lane()
    body = [
        lanes([Store(t, i, load(x, i) * 2.0)]),
        lanes([Store(y, i, load(t, scalar("n") - 1 - i))]),
    ]
    kernel = Kernel("scratch", (x, y, t), N, harness.one_block(*body))
    a, out, space = rand(21, f32), np.zeros(21, np.float32), np.zeros(200, np.float32)
    native = harness.compiled(kernel)
    addresses = (ctypes.c_void_p * 3)(a.ctypes.data, out.ctypes.data, space.ctypes.data)
    native(0, 1, 2, addresses, (ctypes.c_int64 * 1)(21))
    assert np.array_equal(out, (a * 2)[::-1])
    stride = 32  # 21 floats rounded up to 64 bytes
    assert np.array_equal(space[2 * stride : 2 * stride + 21], a * 2)
    assert (space[: 2 * stride] == 0).all()


# -- guards ---------------------------------------------------------------------------------------


def test_guard_computes_the_slow_side_where_needed(target):
    x, y = buffers(f32)
    v = load(x, lane())
    slow = ir.sqrt(v) * 3.0
    value = ir.guard(v > 1.0, slow, v + 1.0) * 2.0
    kernel = Kernel(
        "guard", (x, y), N, harness.one_block(lanes([Store(y, lane(), value)], unroll=2))
    )
    native = harness.compiled(kernel, target)
    for n in (5, 16, 70):
        for scale in (0.1, 1.0, 10.0):
            a, out = np.abs(rand(n, f32)) * np.float32(scale), np.zeros(n, np.float32)
            harness.run(kernel, [a, out], (n,), native=native)
            want = np.where(a > 1, np.sqrt(a) * np.float32(3), a + np.float32(1)) * np.float32(2)
            assert np.array_equal(out, want)


def test_guard_nested_uniform_and_reused(target):
    """A guard in a guard's slow side, a uniform one, and a slow side that is used again later."""
    x, y = buffers(f32)
    z = Buffer("z", f32, "write")
    v = load(x, lane())
    slow = v * 7.0
    inner = ir.guard(v > 2.0, slow, v * 3.0)
    outer = ir.guard(v > 1.0, inner + 1.0, v)
    uniform = ir.guard(scalar("n") > 20, load(x, const(0)) * 2.0, const(5, f32))
    body = lanes([Store(y, lane(), outer + uniform), Store(z, lane(), slow)])
    kernel = Kernel("guards", (x, y, z), N, harness.one_block(body))
    native = harness.compiled(kernel, target)
    for n in (9, 40):
        a, out, out2 = rand(n, f32) * 3, np.zeros(n, np.float32), np.zeros(n, np.float32)
        a = a.astype(np.float32)
        harness.run(kernel, [a, out, out2], (n,), native=native)
        extra = a[0] * 2 if n > 20 else np.float32(5)
        want = np.where(a > 1, np.where(a > 2, a * 7, a * 3) + 1, a) + extra
        assert np.allclose(out, want, rtol=1e-6)
        assert np.array_equal(out2, a * 7)


def test_chains_may_be_thousands_deep():
    x, y = buffers(f32)
    v = load(x, lane())
    for k in range(3000):
        v = v + 1.0 if k % 3 else ir.guard(v > 1e9, v * 0.5, v)
    kernel = Kernel("deep", (x, y), N, harness.one_block(lanes([Store(y, lane(), v)])))
    text = render(kernel, host())
    assert text.count("fadd") == 4000  # full vectors and the masked rest


# -- arithmetic -----------------------------------------------------------------------------------

INTEGERS = [dt.uint8, dt.int8, dt.int16, dt.uint16, i32, dt.uint32, i64, dt.uint64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_arithmetic(dtype, target):
    n, bits = 203, dtype.bits
    a, b = rand(n, dtype, 1), rand(n, dtype, 2)
    low, high = dt.int_range(dtype)
    a[:4] = [low, high, low, high]
    b[:4] = [-1 if low < 0 else 1, -1 if low < 0 else 1, 1, high]
    b[b == 0] = 3
    x0, x1, *_ = buffers(dtype, dtype)
    i = lane()
    p, q = load(x0, i), load(x1, i)
    shift = ir.binary("and", q, const(bits - 1, dtype))
    right = "ashr" if dtype.kind == "int" else "lshr"
    s = (b & dtype.np.type(bits - 1)).astype(dtype.np)
    wide = [(int(u), int(v)) for u, v in zip(a, b, strict=True)]

    def wrap(values):
        return np.array([(v - low) % (1 << bits) + low for v in values], dtype.np)

    def quotient(u, v):
        whole = abs(u) // abs(v)
        return whole if (u < 0) == (v < 0) else -whole

    cases = {
        "add": (p + q, wrap(u + v for u, v in wide)),
        "sub": (p - q, wrap(u - v for u, v in wide)),
        "mul": (p * q, wrap(u * v for u, v in wide)),
        "mulhi": (ir.binary("mulhi", p, q), wrap((u * v) >> bits for u, v in wide)),
        "idiv": (ir.binary("idiv", p, q), wrap(quotient(u, v) for u, v in wide)),
        "irem": (ir.binary("irem", p, q), wrap(u - quotient(u, v) * v for u, v in wide)),
        "idiv7": (ir.binary("idiv", p, const(7, dtype)), wrap(quotient(u, 7) for u, _ in wide)),
        "min": (ir.minimum(p, q), np.minimum(a, b)),
        "max": (ir.maximum(p, q), np.maximum(a, b)),
        "and": (p & q, a & b),
        "or": (p | q, a | b),
        "xor": (p ^ q, a ^ b),
        "shl": (
            ir.binary("shl", p, shift),
            wrap(int(u) << int(v) for u, v in zip(a, s, strict=True)),
        ),
        "shr": (ir.binary(right, p, shift), a >> s),
        "neg": (-p, wrap(-u for u, _ in wide)),
        "not": (~p, ~a),
        "abs": (ir.unary("abs", p), wrap(abs(u) for u, _ in wide)),
        "popcount": (
            ir.unary("popcount", p),
            np.array([(u % (1 << bits)).bit_count() for u, _ in wide]).astype(dtype.np),
        ),
        "clz": (
            ir.unary("clz", p),
            np.array([bits - (u % (1 << bits)).bit_length() for u, _ in wide]).astype(dtype.np),
        ),
        "lt": (ir.cast(p < q, dtype), (a < b).astype(dtype.np)),
        "ge": (ir.cast(p >= q, dtype), (a >= b).astype(dtype.np)),
    }
    outs = [Buffer(f"y{k}", dtype, "write") for k in range(len(cases))]
    body = [Store(y, i, e) for y, (e, _) in zip(outs, cases.values(), strict=True)]
    kernel = Kernel("int", (x0, x1, *outs), N, harness.one_block(lanes(body)))
    results = [np.zeros(n, dtype.np) for _ in cases]
    harness.run(kernel, [a, b, *results], (n,), target=target)
    for (name, (_, want)), got in zip(cases.items(), results, strict=True):
        assert np.array_equal(got, want), (name, got[got != want][:3], want[got != want][:3])


@pytest.mark.parametrize("divisor", ["varying", "slot", "constant"])
def test_division_of_64_bit_integers(divisor, target):
    """Small ones go through floats, large ones lane by lane; remainders share the quotient."""
    x0, x1, y = buffers(i64, i64)
    z, w = Buffer("z", i64, "write"), Buffer("w", i64, "write")
    i = lane()
    d = {"varying": load(x1, i), "slot": scalar("d"), "constant": const(12345)}[divisor]
    body = [
        Store(y, i, ir.binary("idiv", load(x0, i), d)),
        Store(z, i, ir.binary("irem", load(x0, i), d)),
        Store(w, i, ir.binary("irem", i * 3 + scalar("s"), d)),
    ]
    slots = (*N, ("d", INDEX), ("s", INDEX))
    kernel = Kernel("divide", (x0, x1, y, z, w), slots, harness.one_block(lanes(body, unroll=2)))
    native = harness.compiled(kernel, target)
    rng = np.random.default_rng(0)
    for bits in (8, 30, 51, 52, 53, 63):
        for n in (5, 64, 83):
            a = rng.integers(-(1 << bits) + 1, 1 << bits, n, dtype=np.int64)
            b = rng.integers(1, 1 << min(bits, 62), n, dtype=np.int64) * rng.choice([-1, 1], n)
            a[: n // 2] //= b[: n // 2]
            a[: n // 2] *= b[: n // 2]  # exact multiples
            many = {"varying": b, "slot": b[:1].repeat(n), "constant": np.full(n, 12345)}[divisor]
            outs = [np.zeros(n, np.int64) for _ in range(3)]
            start = (1 << bits) - 7 * n
            harness.run(kernel, [a, b, *outs], (n, int(b[0]), start), native=native)
            pairs = list(zip(a.tolist(), many.tolist(), strict=True))
            want = [abs(u) // abs(v) * (1 if (u < 0) == (v < 0) else -1) for u, v in pairs]
            assert outs[0].tolist() == want
            assert outs[1].tolist() == [u - q * v for (u, v), q in zip(pairs, want, strict=True)]
            third = [start + 3 * k for k in range(n)]
            assert outs[2].tolist() == [
                u - abs(u) // abs(v) * (1 if (u < 0) == (v < 0) else -1) * v
                for u, v in zip(third, many.tolist(), strict=True)
            ]


@pytest.mark.parametrize("dtype", [f32, f64], ids=lambda d: d.name)
def test_float_arithmetic(dtype, target):
    rng = np.random.default_rng(3)
    n = 301
    a, b, c = (rng.standard_normal(n).astype(dtype.np) * 3 for _ in range(3))
    edges = np.array(
        [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, np.inf, -np.inf, np.nan, 1e-42, 3e9], dtype.np
    )
    a = np.concatenate([a, edges]).astype(dtype.np)
    b, c = (np.concatenate([v, v[: len(edges)]]).astype(dtype.np) for v in (b, c))
    n = len(a)
    x0, x1, x2, _ = buffers(dtype, dtype, dtype)
    i = lane()
    p, q, r = load(x0, i), load(x1, i), load(x2, i)
    with np.errstate(all="ignore"):
        exact = np.array(
            [_fused(u, v, w, dtype) for u, v, w in zip(a, b, c, strict=True)], dtype.np
        )
        cases = {
            "add": (p + q, a + b),
            "sub": (p - q, a - b),
            "mul": (p * q, a * b),
            "div": (p / q, a / b),
            "fma": (ir.fma(p, q, r), exact),
            "sqrt": (ir.sqrt(p), np.sqrt(a)),
            "floor": (ir.unary("floor", p), np.floor(a)),
            "ceil": (ir.unary("ceil", p), np.ceil(a)),
            "trunc": (ir.unary("trunc", p), np.trunc(a)),
            "rint": (ir.unary("rint", p), np.rint(a)),
            "abs": (ir.unary("abs", p), np.abs(a)),
            "neg": (-p, -a),
            "copysign": (ir.binary("copysign", q, p), np.copysign(b, a)),
            "muladd": (p * q + r, a * b + c),
            **{
                op: (ir.cast(ir.binary(op, p, q), dtype), getattr(np, name)(a, b).astype(dtype.np))
                for op, name in {
                    "lt": "less",
                    "le": "less_equal",
                    "gt": "greater",
                    "ge": "greater_equal",
                    "eq": "equal",
                    "ne": "not_equal",
                }.items()
            },
        }
    outs = [Buffer(f"y{k}", dtype, "write") for k in range(len(cases))]
    body = [Store(y, i, e) for y, (e, _) in zip(outs, cases.values(), strict=True)]
    kernel = Kernel("float", (x0, x1, x2, *outs), N, harness.one_block(lanes(body)))
    results = [np.zeros(n, dtype.np) for _ in cases]
    harness.run(kernel, [a, b, c, *results], (n,), target=target)
    for (name, (_, want)), got in zip(cases.items(), results, strict=True):
        assert np.array_equal(got, want, equal_nan=True), name
        real = ~np.isnan(want)
        assert np.array_equal(np.signbit(got[real]), np.signbit(want[real])), name


def _fused(u, v, w, dtype):
    from fractions import Fraction

    if not all(np.isfinite(t) for t in (u, v, w)):
        return u * v + w
    exact = Fraction(float(u)) * Fraction(float(v)) + Fraction(float(w))
    if dtype is f64:
        return float(exact)
    # nearest float32, ties to even
    near = np.float32(float(exact))
    best = min(
        (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))),
        key=lambda t: (abs(Fraction(float(t)) - exact), int(t.view(np.uint32)) & 1),
    )
    return best


def test_bitcasts_selects_and_bools(target):
    x0, x1, y = buffers(f32, dt.bool_)
    z, w = Buffer("z", dt.uint32, "write"), Buffer("w", dt.bool_, "write")
    i = lane()
    v, b = load(x0, i), load(x1, i)
    body = [
        Store(y, i, ir.select(b, v, const(2, f32))),
        Store(z, i, v.bitcast(dt.uint32) ^ 1),
        Store(w, i, ir.binary("and", ~b, v > 0.0)),
    ]
    kernel = Kernel("mixed", (x0, x1, y, z, w), N, harness.one_block(lanes(body, unroll=2)))
    a, c = rand(99, f32), rand(99, dt.bool_)
    outs = [np.zeros(99, np.float32), np.zeros(99, np.uint32), np.zeros(99, bool)]
    harness.run(kernel, [a, c, *outs], (99,), target=target)
    assert np.array_equal(outs[0], np.where(c, a, 2))
    assert np.array_equal(outs[1], a.view(np.uint32) ^ 1)
    assert np.array_equal(outs[2], ~c & (a > 0))


def test_scalar_slots_have_their_dtypes():
    kinds = [f32, f64, dt.bool_, dt.int8, dt.uint64, dt.float16, dt.bfloat16]
    given = (0.1, 0.1, True, -5, -1, 1.5, 1.5)
    outs = [Buffer(f"y{k}", d, "write") for k, d in enumerate(kinds)]
    slots = tuple((f"s{k}", d) for k, d in enumerate(kinds))
    body = [Store(y, const(0), scalar(f"s{k}", y.dtype)) for k, y in enumerate(outs)]
    kernel = Kernel("slots", tuple(outs), slots, harness.one_block(*body))
    results = [np.zeros(1, d.np) for d in kinds]
    harness.run(kernel, results, given)
    assert [r[0] for r in results] == [
        *(np.float32(0.1), 0.1, True, -5, 2**64 - 1),
        *(np.float16(1.5), dt.bfloat16.np.type(1.5)),
    ]


# -- what is refused ------------------------------------------------------------------------------


def test_errors_name_the_cause():
    x, y = buffers(f32)
    v = load(x, lane())
    with pytest.raises(CompileError, match="varies between lanes"):
        render(Kernel("if", (x, y), N, harness.one_block(lanes([If(v > 0.0, [])]))), host())
    r = Register("r", f32)
    with pytest.raises(CompileError, match="uniform"):
        render(Kernel("set", (x, y), N, harness.one_block(lanes([Set(r, v)]))), host())
    with pytest.raises(CompileError, match="no value"):
        render(
            Kernel("var", (x, y), N, harness.one_block(Store(y, var("q"), const(0, f32)))), host()
        )
    narrow = Buffer("h", dt.float16, "read")
    h = load(narrow, lane())
    body = harness.one_block(lanes([Store(narrow, lane(), h + h)]))
    with pytest.raises(CompileError, match="add on"):
        render(Kernel("half", (narrow,), N, body), host())


# -- other machines -------------------------------------------------------------------------------


def test_text_compiles_for_arm():
    """No Arm here to run it, but its code generator must accept what is written."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arm = Target("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon,+fullfp16")
    x, y = buffers(f32)
    h = Buffer("h", dt.float16, "write")
    acc = Register("acc", f32, lanes=True)
    v = load(x, lane())
    body = [
        Set(acc, const(0, f32)),
        lanes(
            [
                Store(y, lane(), ir.guard(v > 3.0, ir.sqrt(v), ir.maximum(v, 0.0))),
                Store(h, lane(), ir.cast(ir.cast(v, i32), dt.float16)),
                Set(acc, read(acc) + v),
            ],
            unroll=4,
        ),
        Store(y, const(0), lanes_reduce("add", acc)),
    ]
    text = render(Kernel("arm", (x, y, h), N, harness.one_block(*body)), arm)
    assert "<4 x float>" in text
    machine = llvm.Target.from_triple(arm.triple).create_target_machine(
        cpu=arm.cpu, features=arm.features, opt=2
    )
    module = llvm.parse_assembly(text)
    module.verify()
    assert "fmax" in machine.emit_assembly(module)
