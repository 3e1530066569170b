"""CPU schedules of matmul, on this CPU and on emulated narrower ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from llvm_harness import targets

import numus as nm
from numus import dtypes as dt
from numus.compiler import hooks
from numus.compiler import plan as plans
from numus.ir import kernel_text
from numus.kernels.matmul.cpu.blocking import choose_blocking
from numus.runtime.cpu.jit import Jit
from numus.runtime.cpu.runtime import CpuRuntime
from numus.runtime.devices import Device

RNG = np.random.default_rng(0)


def numbers(shape, dtype):
    x = RNG.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * RNG.standard_normal(shape)
    if np.dtype(dtype).kind in "iu":
        x = np.rint(3 * x)
    return x.astype(dtype)


def given(x, transposed, device="cpu"):
    """A tensor in row-major memory, or in column-major."""
    if not transposed:
        return nm.asarray(x, device=device)
    return nm.asarray(np.ascontiguousarray(np.swapaxes(x, -1, -2)), device=device).mT


def kernels(function):
    """The names of the kernels that evaluating a result takes, and the result."""
    found = []

    def watch(device, plan, leaves, constants):
        found.extend(step.kernel.name for step in plan.steps)

    hooks.before_run.append(watch)
    try:
        y = function()
        nm.eval(y)
    finally:
        hooks.before_run.remove(watch)
    return found, y


def agrees(y, a, b, after=lambda x: x):
    wide = {"f": np.float64, "c": np.complex128, "i": np.int64}[a.dtype.kind]
    want = after(np.matmul(a.astype(wide), b.astype(wide)))
    y = np.asarray(y)
    if a.dtype.kind == "i":
        np.testing.assert_array_equal(y, want.astype(a.dtype))
        return
    unit = np.finfo(a.dtype).eps * max(4, a.shape[-1] ** 0.5)
    np.testing.assert_allclose(y, want, rtol=0, atol=8 * unit * max(1, np.abs(want).max()))


# shapes of A and B, and which of them are column-major
SIZES = {
    "one tile": ((13, 40), (40, 32), ""),
    "odd": ((65, 67), (67, 97), ""),
    "transposed": ((65, 67), (67, 97), "ab"),
    "shared rows": ((200, 600), (600, 601), "a"),
    "shared columns": ((601, 600), (600, 200), "b"),
    "both shared": ((601, 600), (600, 200), "a"),
    "blocks of k": ((40, 2000), (2000, 90), ""),
    "rows in one set of the cache": ((40, 1024), (1024, 90), ""),
    "split k": ((33, 9000), (9000, 35), ""),
    "a batch": ((7, 33, 17), (7, 17, 65), ""),
    "a few large ones": ((3, 150, 200), (3, 200, 300), "b"),
    "rows of gemv": ((301, 100), (100, 3), ""),
    "columns of gemv": ((2, 100), (100, 301), "b"),
    "a batch of gemv": ((5, 70, 100), (5, 100, 1), ""),
    "skinny": ((3, 100), (100, 1111), ""),
    "skinny, transposed": ((1111, 100), (100, 3), "a"),
    "few rows": ((20, 100), (100, 1111), ""),
    "few rows times a K-major matrix": ((20, 300), (300, 901), "b"),
    "small, in place": ((70, 64), (64, 192), ""),
    "small batch, in place": ((5, 30, 70), (5, 70, 64), ""),
    "few columns": ((70, 50), (50, 20), ""),
    "a batch of few columns": ((6, 31, 33), (6, 33, 16), ""),
    "one column more than a tile": ((31, 200), (200, 129), ""),
    "prefetched rows": ((1500, 200), (200, 33), ""),
    "vector and matrix": ((300,), (300, 401), ""),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize("name", SIZES)
def test_values(name, dtype):
    first, second, transposed = SIZES[name]
    a, b = numbers(first, dtype), numbers(second, dtype)
    x, y = given(a, "a" in transposed), given(b, "b" in transposed)
    agrees(x @ y, a, b)


@pytest.mark.parametrize("name", ["odd", "shared rows", "columns of gemv", "skinny, transposed"])
@pytest.mark.on_cpu("kernels of its matmuls")
def test_fused_operands_and_epilogue(name):
    """Expressions as operands, and an epilogue too long to be unrolled."""
    first, second, transposed = SIZES[name]
    a, b = numbers(first, np.float32), numbers(second, np.float32)
    x, y = given(a, "a" in transposed), given(b, "b" in transposed)
    bias = numbers((second[-1],), np.float32)
    found, z = kernels(lambda: nm.relu((x * 2) @ nm.abs(y) + nm.asarray(bias)) * 0.5)
    assert found[-1] in ("gemm", "gemv")
    agrees(z, 2 * a, np.abs(b), lambda p: np.maximum(p + bias, 0) * 0.5)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("odd", ["gemm"]),
        ("rows of gemv", ["gemv"]),
        ("columns of gemv", ["gemv"]),
        ("skinny", ["gemm"]),
    ],
)
def test_schedules(name, schedule):
    first, second, transposed = SIZES[name]
    a, b = numbers(first, np.float32), numbers(second, np.float32)
    assert kernels(lambda: given(a, "a" in transposed) @ given(b, "b" in transposed))[0] == schedule


@pytest.mark.on_cpu("kernels of its matmuls")
@pytest.mark.parametrize("device", ["cpu", "null"])  # null: the same kernels on every machine
def test_shared_operands_are_packed_once(device):
    """Operands that several tasks need and that can't be read in place."""
    for dtype, first, second in (
        (np.float16, (200, 600), (600, 1601)),
        (np.float32, (1601, 600), (600, 101)),
    ):
        a, b = numbers(first, dtype), numbers(second, dtype)
        found, y = kernels(
            lambda a=a, b=b: nm.asarray(a, device=device) @ nm.asarray(b, device=device)
        )
        if device == "null":
            assert found == ["pack", "gemm"]
        else:
            wide = a.astype("f") @ b.astype("f")
            np.testing.assert_allclose(y.numpy(), wide, atol=0.1, rtol=1e-5)


@pytest.mark.on_cpu("kernels of its matmuls")
def test_expressions_are_evaluated_once():
    """An operand that each of several tasks would have to compute again."""
    a, b = numbers((512, 128), np.float32), numbers((512, 512), np.float32)
    x, y = nm.asarray(a), nm.asarray(b)
    nm.eval(x, y)
    found, z = kernels(lambda: ((x - 1) / 3).T @ y)
    assert found == ["pack", "gemm"]
    agrees(z, ((a - 1) / 3).T, b)


def test_prefetch():
    """Of consecutive rows of A, and of packed panels of B that L1 does not hold; small operands
    stay cached anyway."""

    def text(m, k, n=33):
        found = []
        a = given(numbers((m, k), np.float32), False)
        hooks.before_run.append(lambda _, plan, *__: found.extend(plan.steps))
        try:
            nm.eval(a @ given(numbers((k, n), np.float32), False))
        finally:
            hooks.before_run.pop()
        return kernel_text(found[-1].kernel)

    target = CpuRuntime().target
    assert "to read in L2" in text(target.l2_bytes // 512, 200)
    assert "to read in L2" not in text(50, 200)
    assert "to read in L1" in text(8, target.l1_bytes // target.vector_bytes, 1000)
    assert "to read in L1" not in text(50, 50, 1000)


def test_a_matrix_by_itself():
    """One value as both operands."""
    a = numbers((70, 70), np.float32)
    x = nm.asarray(a)
    agrees(x @ x, a, a)
    agrees(x @ x.T, a, a.T)


def narrow_cpu(name):
    """A CPU of this machine's kind with shorter vectors, as a device."""
    llvm_target = targets()[name]
    device = Device("cpu", 1 + list(targets()).index(name))
    runtime = CpuRuntime()
    runtime.target = replace(
        runtime.target,
        vector_bytes=llvm_target.vector_bytes,
        vector_registers=llvm_target.vector_registers,
        masked_store_min_bytes=llvm_target.masked_store_min_bytes,
    )
    runtime.compiler._jit = Jit(llvm_target)
    device._runtime = runtime
    return device


@pytest.mark.parametrize("dtype", ["float32", pytest.param("complex64", marks=pytest.mark.slow)])
def test_small_caches_give_the_same_bits(dtype):
    """Blocks of k with partial sums in memory; rows that conflict in L1."""
    device = Device("cpu", 8)
    device._runtime = runtime = CpuRuntime()
    runtime.target = replace(runtime.target, l1_bytes=1 << 14, l1_ways=4, l2_bytes=1 << 16)
    for name in ("blocks of k", "rows in one set of the cache", "both shared"):
        first, second, transposed = SIZES[name]
        a, b = numbers(first, dtype), numbers(second, dtype)
        bias = numbers(second[-1:], dtype)
        for end in (lambda x, _: x, lambda x, bias: x + bias):
            y, z = (
                np.asarray(
                    end(
                        given(a, "a" in transposed, p) @ given(b, "b" in transposed, p),
                        nm.asarray(bias, device=p),
                    )
                )
                for p in ("cpu", device)
            )
            agrees(z, a, b, lambda x, bias=bias, end=end: end(x, bias))
            np.testing.assert_array_equal(y, z)
    plans.clear_plans()  # they hold the other runtime


@pytest.mark.parametrize("llvm_target", [t for t in targets() if t != "host"])
def test_narrower_vectors_give_the_same_bits(llvm_target):
    """A running sum over k knows nothing of tiles; without fma it is rounded twice."""
    device = narrow_cpu(llvm_target)
    names = ("odd", "transposed", "shared columns", "blocks of k", "skinny", "rows of gemv")
    for name in (*names, "few columns", "one column more than a tile"):
        first, second, transposed = SIZES[name]
        a, b = numbers(first, np.float32), numbers(second, np.float32)
        y, z = (
            np.asarray(given(a, "a" in transposed, p) @ given(b, "b" in transposed, p))
            for p in ("cpu", device)
        )
        agrees(z, a, b)
        if name != "rows of gemv":
            np.testing.assert_array_equal(y, z)
    for dtype in ("float64", "complex128"):  # tiles with more rows than columns
        a, b = numbers((65, 67), dtype), numbers((67, 33), dtype)
        agrees(nm.asarray(a, device=device) @ nm.asarray(b, device=device), a, b)
    plans.clear_plans()  # they hold the narrow runtime


@pytest.mark.parametrize("llvm_target", [t for t in targets() if t != "host"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_in_narrower_vectors(llvm_target, dtype):
    """Also where a vector is shorter than the stretch of a product that is written out."""
    device = narrow_cpu(llvm_target)
    arrays = [numbers(shape, dtype) for shape in ((2, 9, 5), (2, 11, 5), (2, 11, 4))]

    def results(device):
        xs = [nm.asarray(a, device=device) for a in arrays]
        attend = nm.scaled_dot_product_attention
        gradients = nm.grad(lambda *xs: (attend(*xs, is_causal=True) ** 2).sum(), (0, 1, 2))(*xs)
        return [np.asarray(y) for y in (attend(*xs), *gradients)]

    for found, want in zip(results(device), results("reference"), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    plans.clear_plans()  # they hold the narrow runtime


@pytest.mark.parametrize(
    ("m", "n", "k", "shares"),
    [
        (333, 129, 257, (2, 1)),  # three strips of columns, two threads
        (2047, 1023, 65, (35, 1)),  # rows of C on pages of their own; B is packed before
        (257, 333, 129, (1, 7)),  # strips are even enough
        (63, 131, 2049, (1, 3)),  # packing B twice would cost more
    ],
)
def test_shares_of_two_threads(m, n, k, shares):
    cpu = nm.device("cpu").runtime.target
    caches = {"l1_bytes": 1 << 15, "l1_ways": 8, "l2_bytes": 1 << 20}
    target = replace(cpu, num_cores=2, vector_bytes=64, vector_registers=32, **caches)
    direct, a_stride = (True, False), 4 * k
    found = choose_blocking(target, dt.float32, 1, (1, m, n, k), False, direct, a_stride)
    assert found.a_access == "direct"
    assert (-(-m // found.task_rows), -(-n // found.task_columns)) == shares


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("n", [15, 33, 64, 130])
def test_columns_along_k_are_transposed(n, dtype):
    """B as rows of memory: whole squares of vectors, and what remains along both axes."""
    plans.clear_plans()
    for k in (16, 65, 130):
        a, b = numbers((70, k), dtype), numbers((n, k), dtype)
        x, y = nm.asarray(a, device="cpu"), nm.asarray(b, device="cpu")
        agrees(x @ y.mT, a, b.T)
        agrees(x @ y[:, ::-1].mT, a, b[:, ::-1].T)
        agrees(x[:, 3:] @ (y[:, 3:] * 2).mT, a[:, 3:], 2 * b[:, 3:].T)
        # the same bits as from columns that are adjacent in memory
        want = x @ nm.asarray(np.ascontiguousarray(b.T), device="cpu")
        np.testing.assert_array_equal((x @ y.mT).numpy(), want.numpy())
