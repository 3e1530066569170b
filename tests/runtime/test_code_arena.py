"""Machine code shares mappings, is unloaded when unused, and never while in use."""

from __future__ import annotations

import ctypes
import gc
import random
import sys

import kernels_by_hand as kernels
import numpy as np
import pytest

from numus.codegen.cpu.target import host
from numus.errors import CompileError, OutOfMemoryError
from numus.lru import LruTable
from numus.runtime.contract import Launch
from numus.runtime.cpu import elf_loader, runtime
from numus.runtime.cpu.code_arena import CodeArena
from numus.runtime.cpu.jit import Jit

owned = pytest.mark.skipif(
    sys.platform != "linux" or not host().triple.startswith("x86_64"),
    reason="LLVM's linker loads objects here",
)


def mappings():
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)


@owned
def test_a_thousand_objects_share_mappings():
    jit = Jit()
    code = jit.object_code("define i64 @kernel(i64 %x) {\n %y = add i64 %x, 3\n ret i64 %y\n}")
    before = mappings()
    loaded = [jit.link(code, ("kernel",)) for _ in range(1000)]
    assert mappings() - before < 40
    for found in loaded[::100]:
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(found.addresses[0])(4) == 7


@owned
def test_memory_of_unloaded_objects_is_used_again():
    jit = Jit()
    code = jit.object_code("define i64 @kernel(i64 %x) {\n %y = add i64 %x, 3\n ret i64 %y\n}")
    for _ in range(3000):
        jit.link(code, ("kernel",))
    assert jit._linker.arena.mapped_bytes <= 2 << 20
    assert jit.loaded_count <= 2


@owned
def test_pages_at_random():
    """No page is given twice; all come back."""
    arena, held, rng = CodeArena(), {}, random.Random(3)
    for step in range(2000):
        if held and rng.random() < 0.5:
            address = rng.choice(list(held))
            nbytes, mark = held.pop(address)
            assert ctypes.string_at(address, nbytes) == bytes([mark]) * nbytes
            arena.release(address, nbytes)
        else:
            nbytes, mark = rng.randrange(1, 60_000), step % 251
            address = arena.allocate(nbytes)
            ctypes.memset(address, mark, nbytes)
            arena.seal(address, nbytes)
            held[address] = nbytes, mark
    for address, (nbytes, _) in held.items():
        arena.release(address, nbytes)
    assert sum(size for _, size in arena._free) == arena.mapped_bytes


CALLS = """
declare double @fma(double, double, double)
declare ptr @memset(ptr, i32, i64)
@count = internal global i64 40
@table = private constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@where = internal constant ptr @table
define i64 @next() {
  %a = load i64, ptr @count
  %b = add i64 %a, 1
  store i64 %b, ptr @count
  ret i64 %b
}
define i64 @entry(i64 %i) {
  %t = load ptr, ptr @where
  %p = getelementptr i64, ptr %t, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define double @twice(double %x) {
  %a = call double @fma(double %x, double 2.0, double 1.0)
  ret double %a
}
define void @fill(ptr %to, i32 %byte, i64 %count) {
  %a = call ptr @memset(ptr %to, i32 %byte, i64 %count)
  ret void
}
define ptr @function() {
  ret ptr @memset
}
"""


def test_data_tables_and_calls_of_the_process():
    jit = Jit()
    names = ("next", "entry", "twice", "fill", "function")
    first, second = (jit.link(jit.object_code(CALLS), names) for _ in range(2))
    n, p = ctypes.c_int64, ctypes.c_void_p
    for found in (first, second):  # each has its own data
        count, entry, twice, fill, function = found.addresses
        assert [ctypes.CFUNCTYPE(n)(count)() for _ in range(3)] == [41, 42, 43]
        assert [ctypes.CFUNCTYPE(n, n)(entry)(i) for i in range(4)] == [10, 20, 30, 40]
        assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(twice)(4.0) == 9.0
        buffer = ctypes.create_string_buffer(8)
        ctypes.CFUNCTYPE(None, p, ctypes.c_int32, n)(fill)(ctypes.addressof(buffer), 65, 5)
        assert buffer.value == b"AAAAA"
        memset = ctypes.cast(ctypes.CDLL(None).memset, p).value
        assert ctypes.CFUNCTYPE(p)(function)() == memset


def test_an_unknown_function():
    jit = Jit()
    code = jit.object_code(
        "declare void @no_such_function()\n"
        "define void @kernel() {\n call void @no_such_function()\n ret void\n}"
    )
    with pytest.raises(CompileError):
        jit.link(code, ("kernel",))


@owned
def test_objects_cut_short():
    arena, jit = CodeArena(), Jit()
    code = jit.object_code(CALLS)
    for end in range(0, len(code), 7):
        with pytest.raises(CompileError):
            elf_loader.load(code[:end], ("next",), arena)
    with jit._tools() as tools:
        unlinked = tools.object_code(CALLS, small=False)
    assert elf_loader.prelink(unlinked) == code
    for end in range(0, len(unlinked), 7):
        with pytest.raises(CompileError):
            elf_loader.prelink(unlinked[:end])
    assert sum(size for _, size in arena._free) == arena.mapped_bytes


@owned
def test_no_memory_for_code(monkeypatch):
    jit = Jit()
    code = jit.object_code("define void @kernel() {\n ret void\n}")

    def full(nbytes):
        raise OutOfMemoryError("full")

    monkeypatch.setattr(jit._linker.arena, "_map", full)
    with pytest.raises(MemoryError):
        jit.link(code, ("kernel",))
    assert jit.loaded_count == 0


def test_kernels_are_unloaded_when_unused_and_only_then(monkeypatch, tmp_path, fast_gc):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    cpu = runtime.CpuRuntime()
    cpu.compiler._programs = LruTable(4)
    used = cpu.compile(kernels.affine(7.0))
    x = np.arange(64, dtype=np.float32)
    a, b = cpu.allocate(x.nbytes), cpu.allocate(x.nbytes)
    cpu.upload(a, x)
    for i in range(20):
        cpu.compile(kernels.affine(float(i)))
        gc.collect()
        cpu.run([Launch(used, [a, b], [x.size], 1)])
        assert np.array_equal(b.view(np.float32), x * 7 + 1)
    natives = len(cpu.compiler._native)
    assert cpu.compiler.jit.loaded_count <= natives + 7
    assert len(cpu.compile_log) == 21
    assert cpu.compile_log[0].program is used  # in use
    assert cpu.compile_log[2].program is None
    assert cpu.compile_log[2].source == ""


def test_a_kernel_evicted_while_it_is_launched(monkeypatch, tmp_path):
    """Launch lists keep their kernels."""
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    cpu = runtime.CpuRuntime()
    cpu.compiler._programs = LruTable(1)
    x = np.arange(64, dtype=np.float32)
    a, b = cpu.allocate(x.nbytes), cpu.allocate(x.nbytes)
    cpu.upload(a, x)
    from numus.runtime.contract import launch_arguments, launch_steps

    lists = []
    for i in range(12):
        launches = [Launch(cpu.compile(kernels.affine(float(i))), [a, b], [x.size], 1)]
        lists.append((cpu.prepare(*launch_steps(launches)), launch_arguments(launches)))
    del launches
    gc.collect()
    for i, (prepared, arguments) in enumerate(lists):
        prepared.run(*arguments)
        assert np.array_equal(b.view(np.float32), x * np.float32(i) + 1)
