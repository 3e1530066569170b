"""Kernels of a plan are compiled concurrently, to the same code as one by one."""

import io
import threading

import numpy as np
import pytest

import numus as nm
from numus.compiler.plan import clear_plans
from numus.errors import CompileError
from numus.runtime import compile_progress
from numus.runtime.compile_progress import CompileProgress
from numus.runtime.cpu.compiler import Compiler
from numus.runtime.cpu.jit import Jit

pytestmark = pytest.mark.on_cpu("its compiler")

CPU = nm.device("cpu").runtime


@pytest.fixture
def kernels(monkeypatch):
    """Distinct kernels of one plan."""
    found = []
    compile_all = CPU.compile_all

    def watched(given):
        found.extend(given)
        return compile_all(given)

    clear_plans()
    monkeypatch.setattr(CPU, "compile_all", watched)
    x = nm.asarray(np.ones((7, 9), "float32"))
    nm.eval(nm.sin(x), x.T @ x, nm.cumsum(x, axis=0), nm.sort(x, axis=1), x.sum(axis=0))
    clear_plans()
    assert len(found) > 3
    return found


def code_on_disk(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_code_is_that_of_single_compilations(kernels, tmp_path, monkeypatch):
    threads = []
    object_code = Jit.object_code

    def watched(self, source, small=False):
        threads.append(threading.get_ident())
        return object_code(self, source, small)

    monkeypatch.setattr(Jit, "object_code", watched)
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path / "together"))
    together = Compiler()
    programs = together.compile_all([*kernels, kernels[0]])
    assert [p.kernel.name for p in programs] == [k.name for k in [*kernels, kernels[0]]]
    assert programs[0] is programs[-1]
    assert threading.get_ident() not in threads
    assert {record.cause for record in together.log} == {"compiled"}
    assert all(record.seconds > 0 for record in together.log)

    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path / "alone"))
    alone = Compiler()
    for kernel in kernels:
        alone.compile(kernel)
    found = code_on_disk(tmp_path / "alone")
    assert found
    assert found == code_on_disk(tmp_path / "together")


def test_known_kernels_are_not_compiled_again(kernels, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    Compiler().compile_all(kernels)
    monkeypatch.setattr(Jit, "object_code", None)
    again = Compiler()
    again.compile_all(kernels)
    assert {record.cause for record in again.log} == {"disk"}


def test_errors_of_a_thread_are_raised(kernels, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "_render", lambda self, kernel: "no IR")
        with pytest.raises(CompileError, match="LLVM rejects"):
            (compiler := Compiler()).compile_all(kernels)
    assert len(compiler.compile_all(kernels)) == len(kernels)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "seconds"), [(Terminal, 0), (Terminal, 60), (io.StringIO, 0)])
def test_progress_is_for_terminals_that_wait(stream, seconds, monkeypatch):
    monkeypatch.setattr("sys.stderr", stream())
    monkeypatch.setattr(compile_progress, "SHOW_AFTER_SECONDS", seconds)
    with CompileProgress(12) as progress:
        progress.update(3)
        progress.update(4)
    import sys

    shown = sys.stderr.getvalue()
    assert ("compiling kernels: 4 of 12" in shown) == (stream is Terminal and not seconds)
    assert stream is Terminal or not shown
