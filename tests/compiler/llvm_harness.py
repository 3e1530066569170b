"""Runs kernels written in IR by hand, on this machine, for several targets it can execute."""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus import ir
from numus.codegen.cpu.renderer import render
from numus.codegen.cpu.target import LlvmTarget, host
from numus.ir import INDEX, Buffer, For, const, scalar, var
from numus.runtime.cpu.jit import Jit

_NATIVE = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)


def targets() -> dict[str, LlvmTarget]:
    """This machine, and on x86 what older machines of its kind can do."""
    found = {"host": host()}
    if host().arch == "x86":
        if host().vector_bytes == 64:
            found["avx2"] = LlvmTarget(
                host().triple, "haswell", "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt"
            )
        found["sse4"] = LlvmTarget(host().triple, "x86-64-v2", "+ssse3,+sse4.1,+sse4.2,+popcnt")
    return found


@functools.cache
def jit(target: LlvmTarget) -> Jit:
    return Jit(target)


def compiled(kernel: ir.Kernel, target: LlvmTarget | None = None) -> Any:
    j = jit(target or host())
    code = j.link(j.object_code(render(kernel, j.target), kernel.small), ("kernel",))
    native = _NATIVE(code.addresses[0])
    native.code = code  # it is unloaded with the last reference
    return native


def run(
    kernel: ir.Kernel,
    arrays: list[np.ndarray[Any, Any]],
    scalars: tuple[Any, ...] = (),
    grid: int = 1,
    target: LlvmTarget | None = None,
    native: Any = None,
    worker: int = 0,
) -> None:
    """Run a kernel on arrays, in place."""
    native = native or compiled(kernel, target)
    # after the addresses: the pitch of scratch between workers
    addresses = (ctypes.c_void_p * (len(arrays) + 1))(*(a.ctypes.data for a in arrays))
    slots = b"".join(
        struct.pack("<d", v) if dtype.kind == "float" else struct.pack("<q", int(v))
        for v, (_, dtype) in zip(scalars, kernel.scalars, strict=True)
    )
    native(0, grid, worker, addresses, ctypes.create_string_buffer(slots + bytes(8)))


def one_block(*body: ir.Stmt) -> list[ir.Stmt]:
    """A grid of one block."""
    return [ir.For(ir.var("block"), ir.const(0), ir.const(1), "grid", list(body))]


ALL_TARGETS = targets()

# -- parts of kernels -----------------------------------------------------------------------------

LENGTHS = [*range(71), 127, 128, 129, 300]
N = (("n", INDEX),)


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
