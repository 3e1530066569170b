"""The compiler's caches: in memory, on disk, between processes, damaged."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import kernels_by_hand as kernels
import numpy as np
import pytest
from in_threads import in_threads

import numus as nm
from numus.codegen.cpu.target import LlvmTarget, host
from numus.compiler.plan import clear_plans
from numus.errors import CompileError
from numus.runtime import cache
from numus.runtime.cpu.compiler import Compiler


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    return tmp_path


def files(tmp_path):
    return [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_kernel_is_compiled_once(tmp_path):
    compiler = Compiler()
    first = compiler.compile(kernels.affine())
    assert compiler.compile(kernels.affine()) is first
    assert compiler.compile(kernels.affine(name="another name")) is first
    assert compiler.compile(kernels.affine(3.0)) is not first
    assert [r.cause for r in compiler.log] == ["compiled", "compiled"]
    record = compiler.log[0]
    assert (record.name, record.notes) == ("affine", ("mul", "add"))
    assert record.seconds > 0
    assert "define void @kernel" in record.source
    assert first.source == record.source
    assert len(files(tmp_path)) == 2


def test_the_disk_serves_another_compiler_without_rendering(monkeypatch):
    Compiler().compile(kernels.affine())
    second = Compiler()

    def unwanted():
        raise AssertionError("rendered although the code was there")

    monkeypatch.setattr("numus.codegen.cpu.renderer.render", unwanted)
    second.compile(kernels.affine())
    assert [r.cause for r in second.log] == ["disk"]


def test_the_disk_serves_another_process(tmp_path):
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import kernels_by_hand as kernels
from numus import runtime
runtime.get("cpu").compile(kernels.affine())
rendered = "numus.codegen.cpu.renderer" in sys.modules
print([r.cause for r in runtime.get("cpu").compile_log], rendered)
"""

    def run():
        environment = {**os.environ, "NUMUS_CACHE_DIR": str(tmp_path)}
        here = os.path.dirname(__file__)
        done = subprocess.run(
            [sys.executable, "-c", code, here],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=True,
        )
        return done.stdout.strip()

    assert run() == "['compiled'] True"
    assert run() == "['disk'] False"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_file_is_made_anew(tmp_path, damage):
    Compiler().compile(kernels.affine())
    (path,) = files(tmp_path)
    good = path.read_bytes()
    path.write_bytes(
        {
            "cut": good[:-10],
            "flip": good[:100] + bytes([good[100] ^ 1]) + good[101:],
            "empty": b"",
            "other": b"something else altogether",
        }[damage]
    )
    compiler = Compiler()
    compiler.compile(kernels.affine())
    assert [r.cause for r in compiler.log] == ["compiled"]
    assert path.read_bytes()[: len(good)] == good
    assert len(files(tmp_path)) == 1  # no temporary files left


def test_a_disk_that_refuses_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(blocked))
    compiler = Compiler()
    compiler.compile(kernels.affine())
    assert [r.cause for r in compiler.log] == ["compiled"]
    assert cache.get("00") is None


def test_code_that_was_not_used_for_longest_makes_room(tmp_path):
    keys = [f"{i:02x}" * 32 for i in range(1, 9)]
    for age, key in enumerate(keys):
        cache.put(key, bytes(1000))
        (path,) = tmp_path.rglob(key)
        os.utime(path, (time.time() - 1e6 * (age + 1),) * 2)
    assert cache.get(keys[-1]) is not None  # the oldest is wanted again
    cache.prune(limit=8000)
    assert len(files(tmp_path)) == 5  # three quarters of the limit
    assert [k for k in keys if cache.get(k) is None] == keys[-4:-1]
    cache.prune(cache.MAX_BYTES)
    assert len(files(tmp_path)) == 5


def test_a_cache_past_its_limit_is_pruned_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MAX_BYTES", 0)
    cache.put("1" * 64, b"code")
    assert len(files(tmp_path)) == 1
    cache.put("1" * 62 + "00", b"code")
    assert files(tmp_path) == []


def test_threads_that_want_the_same_kernel_share_it():
    compiler = Compiler()
    kernel_list = [kernels.affine() for _ in range(6)]
    got = in_threads(lambda number: compiler.compile(kernel_list[number]), 6)
    assert len({id(p) for p in got}) == 1
    assert len(compiler.log) == 1


def test_targets_describe_machines():
    new = LlvmTarget("x86_64-pc-linux-gnu", "x", "+avx512f,+avx512bw,+avx512dq,+avx512vl,+f16c")
    old = LlvmTarget("x86_64-pc-linux-gnu", "x", "+sse4.2,-avx")
    arm = LlvmTarget("arm64-apple-darwin", "apple-m1", "+neon")
    assert (new.arch, new.vector_bytes, new.vector_registers, new.has_f16_conversion) == (
        "x86",
        64,
        32,
        True,
    )
    assert (old.arch, old.vector_bytes, old.vector_registers, old.has_f16_conversion) == (
        "x86",
        16,
        16,
        False,
    )
    assert (arm.arch, arm.vector_bytes, arm.vector_registers, arm.has_f16_conversion) == (
        "arm",
        16,
        32,
        True,
    )
    assert host().vector_bytes in (16, 32, 64)


def test_facts():
    from numus.runtime.cpu.runtime import target

    found = target()
    assert found.vector_bytes == host().vector_bytes
    assert 8 << 10 <= found.l1_bytes <= found.l2_bytes
    assert found.l3_bytes == 0 or found.l3_bytes >= found.l2_bytes
    assert found.num_cores >= 1
    assert np.float32.__name__ in found.dtypes


def test_llvm_objects_have_no_destructors(monkeypatch):
    """An interrupt that arrives in one is lost; modules go with their contexts."""
    from llvmlite.binding import ffi
    from llvmlite.binding.context import ContextRef
    from llvmlite.binding.module import ModuleRef

    calls = []
    for kind in (ContextRef, ModuleRef):
        monkeypatch.setattr(kind, "_dispose", lambda self: calls.append("destructor"))

    def counted(name):
        own = getattr(ffi.lib, name)._cfn

        def call(*args):
            calls.append(name)
            return own(*args)

        monkeypatch.setattr(getattr(ffi.lib, name), "_cfn", call)

    counted("LLVMPY_ContextCreate")
    counted("LLVMPY_ContextDispose")
    jit = Compiler().jit
    jit.object_code("define i64 @freed() { ret i64 1 }")
    with pytest.raises(CompileError, match="LLVM rejects"):
        jit.object_code("define i64 @freed() { ret i64 nothing }")
    gc.collect()
    assert calls[-4:] == ["LLVMPY_ContextCreate", "LLVMPY_ContextDispose"] * 2
    assert "destructor" not in calls


def test_loads_one_by_one_where_gathers_wait():
    """Instructions of a gather, with and without the feature that turns them into loads."""
    import llvmlite.binding as llvm

    if LlvmTarget(llvm.get_process_triple(), "", "").arch != "x86":
        pytest.skip("a feature of x86")
    text = f"""
    target triple = "{llvm.get_process_triple()}"
    declare <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr>, <8 x i1>, <8 x float>)
    define <8 x float> @f(<8 x ptr> %p) {{
      %x = call <8 x float> @llvm.masked.gather.v8f32.v8p0(
        <8 x ptr> align 4 %p, <8 x i1> splat (i1 true), <8 x float> zeroinitializer)
      ret <8 x float> %x
    }}"""
    target = llvm.Target.from_triple(llvm.get_process_triple())
    for more, gathers in (("", True), (",+prefer-no-gather", False)):
        features = "+avx2,+avx512f,+avx512vl,+avx512dq,+avx512bw" + more
        machine = target.create_target_machine(cpu="skylake-avx512", features=features)
        assert ("vgather" in machine.emit_assembly(llvm.parse_assembly(text))) == gathers


def test_code_of_another_optimisation_level_is_stored_apart(tmp_path, monkeypatch):
    def cause(level):
        monkeypatch.setenv("NUMUS_OPT_LEVEL", level)
        compiler = Compiler()
        compiler.compile(kernels.affine())
        return [r.cause for r in compiler.log]

    assert cause("2") == cause("0") == ["compiled"]
    first, second = files(tmp_path)
    assert first.read_bytes()[100:] != second.read_bytes()[100:]
    assert cause("0") == cause("2") == ["disk"]
    with pytest.raises(ValueError, match="NUMUS_OPT_LEVEL must be 0 or 2, not '3'"):
        cause("3")


@pytest.mark.on_cpu("its compiler")
def test_optimisation_changes_no_bit(monkeypatch):
    cpu = nm.device("cpu").runtime
    x = nm.asarray(np.random.default_rng(0).normal(size=(33, 300)).astype("float32"))
    found = {}
    for level in "20":
        monkeypatch.setenv("NUMUS_OPT_LEVEL", level)
        monkeypatch.setattr(cpu, "compiler", Compiler())
        clear_plans()
        results = (nm.softmax(x @ x.T, axis=1), nm.cumsum(nm.sin(x), axis=1), nm.sort(x, axis=0))
        found[level] = [result.numpy().tobytes() for result in results]
        assert len(cpu.compiler.log) > 2
    clear_plans()
    assert found["2"] == found["0"]
