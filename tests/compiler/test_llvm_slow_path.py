"""Selects with a slow path (`ir.slow_path_select`) in LLVM IR."""

from __future__ import annotations

import llvm_harness as harness
import numpy as np
from llvm_harness import N, buffers, lane, lanes, rand

from numus import dtypes as dt
from numus import ir
from numus.ir import Buffer, Kernel, Store, const, load, scalar

f32 = dt.float32


def test_slow_path_runs_where_needed(target):
    x, y = buffers(f32)
    v = load(x, lane())
    slow = ir.sqrt(v) * 3.0
    value = ir.slow_path_select(v > 1.0, slow, v + 1.0) * 2.0
    kernel = Kernel(
        "slow_path", (x, y), N, harness.one_block(lanes([Store(y, lane(), value)], unroll=2))
    )
    native = harness.compiled(kernel, target)
    for n in (5, 16, 70):
        for scale in (0.1, 1.0, 10.0):
            a, out = np.abs(rand(n, f32)) * np.float32(scale), np.zeros(n, np.float32)
            harness.run(kernel, [a, out], (n,), native=native)
            want = np.where(a > 1, np.sqrt(a) * np.float32(3), a + np.float32(1)) * np.float32(2)
            assert np.array_equal(out, want)


def test_slow_path_nested_uniform_and_reused(target):
    """A nested slow path, a uniform one, and one whose value is used again."""
    x, y = buffers(f32)
    z = Buffer("z", f32, "write")
    v = load(x, lane())
    slow = v * 7.0
    inner = ir.slow_path_select(v > 2.0, slow, v * 3.0)
    outer = ir.slow_path_select(v > 1.0, inner + 1.0, v)
    uniform = ir.slow_path_select(scalar("n") > 20, load(x, const(0)) * 2.0, const(5, f32))
    body = lanes([Store(y, lane(), outer + uniform), Store(z, lane(), slow)])
    kernel = Kernel("slow_paths", (x, y, z), N, harness.one_block(body))
    native = harness.compiled(kernel, target)
    for n in (9, 40):
        a, out, out2 = rand(n, f32) * 3, np.zeros(n, np.float32), np.zeros(n, np.float32)
        a = a.astype(np.float32)
        harness.run(kernel, [a, out, out2], (n,), native=native)
        extra = a[0] * 2 if n > 20 else np.float32(5)
        want = np.where(a > 1, np.where(a > 2, a * 7, a * 3) + 1, a) + extra
        assert np.allclose(out, want, rtol=1e-6)
        assert np.array_equal(out2, a * 7)
