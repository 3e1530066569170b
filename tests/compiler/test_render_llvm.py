"""Kernels written in IR by hand, rendered, compiled and compared with NumPy."""

from __future__ import annotations

import ctypes

import llvm_harness as harness
import numpy as np
import pytest
from llvm_harness import LENGTHS, N, buffers, lane, lanes, rand, serial

from numus import dtypes as dt
from numus import ir
from numus.codegen.cpu.renderer import render
from numus.codegen.cpu.target import LlvmTarget, host
from numus.errors import CompileError
from numus.ir import (
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

f32, f64, i32, i64 = dt.float32, dt.float64, dt.int32, dt.int64


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
def test_small_kernels_are_short(unroll, target):
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
    if extent % (2 * target.vector_bytes // 4) == 0:
        assert "masked" not in render(kernel, target)


@pytest.mark.parametrize("dtype", [f32, f64, dt.uint8], ids=lambda d: d.name)
def test_large_results_use_nontemporal_stores(dtype, target):
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


def test_results_that_l3_holds_go_through_the_caches_of_skylakes():
    """Around them, x * 2 of 4 MB took three times as long on two cores of a Cascade Lake."""
    x, y = buffers(f32)
    body = lanes([Store(y, lane(), load(x, lane()) + 1)], unroll=2)
    kernel = Kernel("stream", (x, y), N, harness.one_block(body))
    features = "+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
    for cpu, l3, smallest in (
        ("cascadelake", 1 << 24, 1 << 24),
        ("cascadelake", 0, 1 << 20),
        ("emeraldrapids", 1 << 24, 1 << 20),
    ):
        target = LlvmTarget("x86_64-unknown-linux-gnu", cpu, features, 1 << 20, l3)
        assert target.nontemporal_min_bytes == smallest
        assert f", {smallest}\n" in render(kernel, target)


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


def test_row_reduction_in_passes():
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
    rows, width = 3, 2 * target.vector_bytes // 4
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


# -- order of statements --------------------------------------------------------------------------


def test_let_binds_the_current_value(target):
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


def test_writes_invalidate_expressions():
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


def test_scratch_is_per_worker():
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
    stride = 48  # of 4 bytes
    addresses = (ctypes.c_void_p * 4)(*(x.ctypes.data for x in (a, out, space)), 4 * stride)
    native(0, 1, 2, addresses, (ctypes.c_int64 * 1)(21))
    assert np.array_equal(out, (a * 2)[::-1])
    assert np.array_equal(space[2 * stride : 2 * stride + 21], a * 2)
    assert (space[: 2 * stride] == 0).all()


def test_chains_may_be_thousands_deep():
    x, y = buffers(f32)
    v = load(x, lane())
    for k in range(3000):
        v = v + 1.0 if k % 3 else ir.slow_path_select(v > 1e9, v * 0.5, v)
    kernel = Kernel("deep", (x, y), N, harness.one_block(lanes([Store(y, lane(), v)])))
    text = render(kernel, host())
    assert text.count("fadd") == 4000  # full vectors and the masked rest


# -- errors ---------------------------------------------------------------------------------------


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


# -- other targets --------------------------------------------------------------------------------


def test_text_compiles_for_arm():
    """No Arm here to run it, but its code generator must accept what is written."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arm = LlvmTarget("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon,+fullfp16,+dotprod")
    x, y = buffers(f32)
    words, dots = Buffer("words", dt.uint32, "read"), Buffer("dots", i32, "write")
    word = load(words, lane())
    h = Buffer("h", dt.float16, "write")
    acc = Register("acc", f32, lanes=True)
    v = load(x, lane())
    body = [
        Set(acc, const(0, f32)),
        lanes(
            [
                Store(y, lane(), ir.slow_path_select(v > 3.0, ir.sqrt(v), ir.maximum(v, 0.0))),
                Store(h, lane(), ir.cast(ir.cast(v, i32), dt.float16)),
                Set(acc, read(acc) + v),
                Store(dots, lane(), ir.dot4(ir.dot4(const(0, i32), word, word), word, word, 127)),
            ],
            unroll=4,
        ),
        Store(y, const(0), lanes_reduce("add", acc)),
    ]
    text = render(Kernel("arm", (x, words, y, h, dots), N, harness.one_block(*body)), arm)
    assert "<4 x float>" in text
    machine = llvm.Target.from_triple(arm.triple).create_target_machine(
        cpu=arm.cpu, features=arm.features, opt=2
    )
    module = llvm.parse_assembly(text)
    module.verify()
    assembly = machine.emit_assembly(module)
    assert "fmax" in assembly
    assert "sdot" in assembly


@pytest.mark.skipif(host().arch != "x86", reason="has vectors no wider than its stack's alignment")
def test_spilled_vectors_are_aligned():
    """Of a body with more values than registers: they do not cross cache lines."""
    x, y = buffers(f32)
    values = [load(x, lane() + 64 * j) for j in range(80)]
    names = [var(f"v{j}", f32) for j in range(80)]
    lets = [Let(name, v) for name, v in zip(names, values, strict=True)]
    stores = [
        Store(y, lane() + 64 * j, name * (name - other) + other)
        for j, (name, other) in enumerate(zip(names, reversed(names), strict=True))
    ]
    kernel = Kernel("spills", (x, y), N, harness.one_block(lanes([*lets, *stores])))
    target = LlvmTarget("x86_64-unknown-linux-gnu", "haswell", "+avx,+avx2,+fma")
    assembly = harness.jit(target).assembly(render(kernel, target))
    spills = [x for x in assembly.splitlines() if "(%rsp)" in x and "%ymm" in x and "vmov" in x]
    assert spills
    assert not any("vmovups" in x for x in spills)
