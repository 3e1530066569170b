"""Prefetches of transforms that pass through the caches of a CPU's core."""

import numpy as np
import pytest

import numus as nm
from numus import ir
from numus.codegen.cpu.renderer import render
from numus.codegen.cpu.target import LlvmTarget
from numus.compiler import hooks
from numus.ir import const, post_order, statements
from numus.kernels.fft.tables import TUNING
from numus.runtime.cpu.runtime import CpuRuntime

pytestmark = pytest.mark.on_cpu("kernels of its transforms")
TARGET = CpuRuntime().target
RNG = np.random.default_rng(0)


def prefetches(shape, axis=-1, name="fft"):
    """(written, level) of the prefetches of each kernel; the results are right."""
    x = (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype("complex64")
    given, found = nm.asarray(x), []
    nm.eval(given)
    hooks.before_run.append(lambda _, plan, *__: found.extend(plan.steps))
    try:
        y = getattr(nm.fft, name)(given, **({} if name == "fft2" else {"axis": axis}))
        nm.eval(y)
    finally:
        hooks.before_run.pop()
    want = getattr(np.fft, name)(x, **({} if name == "fft2" else {"axis": axis}))
    assert np.linalg.norm(y.numpy() - want) <= 1e-6 * np.linalg.norm(want)
    kernels = [step.kernel for step in found]
    return [
        {(s.write, s.level) for s in statements(k.body) if isinstance(s, ir.Prefetch)}
        for k in kernels
    ]


BOTH = {(False, 2), (True, 1)}
# Points of a core's L2 cache, and more than one kernel transforms along.
LONG = max(1 << (TARGET.l2_bytes // 8).bit_length() - 1, 2 * TUNING.max_length_along)


def fetched(*shape):
    """Operands, and results unless they go around the caches."""
    exceeds = 8 * np.prod(shape) > TARGET.num_cores * TARGET.l2_bytes
    streams = TARGET.streams_lines and exceeds and shape[-1] % 8 == 0
    return BOTH - {(True, 1)} if streams else BOTH


def test_columns_and_steps_are_prefetched():
    columns, rows = prefetches((LONG,))
    assert columns == BOTH
    # those read may be short ones, for which the next rows are fetched
    assert rows | {(False, 2)} == fetched(LONG)
    assert prefetches((LONG // 64, 64), axis=0)[-1] == fetched(LONG // 64, 64)
    planes = (64, LONG // 1024, 32)
    assert all(found == fetched(*planes) for found in prefetches(planes, name="fft2"))


@pytest.mark.parametrize("n", [18, 45, 94])  # odd factors: rows are lanes of vectors of any width
def test_short_rows_fetch_the_next(n):
    shape = (LONG // n, n)
    assert prefetches(shape) == [BOTH]
    x = (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype("complex64")
    y = abs(nm.fft.ifft(nm.asarray(x) * 2)).numpy()
    want = abs(np.fft.ifft(x * 2))
    assert np.linalg.norm(y - want) <= 1e-6 * np.linalg.norm(want)


def test_what_stays_in_cache_is_not():
    assert prefetches((16, 64)) == [set()]
    assert prefetches((64, 16), axis=0) == [set()]


@pytest.mark.parametrize(("shape", "axis"), [((LONG // 64, 64), 0), ((LONG // 94, 94), -1)])
def test_places_that_are_loaded_are_not(shape, axis):
    """Those of the iteration after the last one may be past the end of the indices."""
    x = RNG.normal(size=shape).astype("complex64")
    rows = RNG.integers(0, len(x), len(x))
    given, indices, found = nm.asarray(x), nm.asarray(rows), []
    nm.eval(given, indices)
    hooks.before_run.append(lambda _, plan, *__: found.extend(plan.steps))
    try:
        y = nm.fft.fft(given[indices], axis=axis).numpy()
    finally:
        hooks.before_run.pop()
    want = np.fft.fft(x[rows], axis=axis)
    assert np.linalg.norm(y - want) <= 1e-6 * np.linalg.norm(want)
    fetches = [s for k in found for s in statements(k.kernel.body) if isinstance(s, ir.Prefetch)]
    assert any(s.write for s in fetches) == ((True, 1) in fetched(*shape))
    assert not [e for s in fetches for e in post_order([s.index], set()) if e.op == "load"]


@pytest.mark.parametrize(("stride", "count"), [(0, 1), (1, 1), (2, 2), (-2, 2), (37, 16)])
def test_lines_of_all_lanes(stride, count):
    """A prefetch for each line that sixteen lanes access."""
    x, y = (ir.Buffer(n, nm.float32, use) for n, use in (("x", "read"), ("y", "write")))
    lane = ir.var("lane")
    body = [
        ir.Prefetch(x, lane * stride, write=False, lanes=True),
        ir.Store(y, lane, ir.load(x, lane)),
    ]
    loop = ir.For(lane, const(0), const(16), "lanes", body)
    grid = ir.For(ir.var("g"), const(0), const(1), "grid", [loop])
    kernel = ir.Kernel("k", [x, y], [], [grid])
    target = LlvmTarget("x86_64-unknown-linux-gnu", "x86-64-v4", _AVX512)
    vector = render(kernel, target).partition("store <16 x float>")[0]  # and no remainder
    assert vector.count("call void @llvm.prefetch.p0(") == count


_AVX512 = "+avx512f,+avx512bw,+avx512dq,+avx512vl"
