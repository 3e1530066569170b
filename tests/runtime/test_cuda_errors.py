"""Failures of a CUDA device, on the fake driver: errors and recovery."""

import os
from types import SimpleNamespace

import fake_cuda_driver
import numpy as np
import pytest

import numus as nm
from numus.codegen.nvptx.assembler import Assembler
from numus.errors import DeviceError, OutOfMemoryError
from numus.kernels.vendor import registry
from numus.runtime.contract import Launch
from numus.runtime.cuda import cublas
from numus.runtime.cuda import driver as cuda
from numus.runtime.cuda.runtime import CudaRuntime

MIB = 1 << 20


def tensor(*shape):
    return nm.asarray(np.ones(shape, np.float32))


def pooled():
    """Fill the pool with free blocks."""
    held = [tensor(MIB) for _ in range(12)]
    nm.eval(held)
    del held


@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuGraphInstantiate"])
def test_other_allocations_get_pooled_memory(driver, name):
    runtime = nm.device(driver.device).runtime
    pooled()
    kept = runtime.memory.pooled
    assert kept > 40 * MIB
    asked = []

    def full(*args):
        asked.append(runtime.memory.pooled)
        return (0, 1) if runtime.memory.pooled < MIB else (2, 0)

    setattr(driver, name, full)
    x = tensor(8, 8)

    @nm.jit
    def function(x):
        sorts = [nm.sort(nm.cumsum(nm.sort(x, axis=k), axis=0), axis=k) for k in (0, 1)]
        return sorts + [x.sum() for _ in "ab"]

    for _ in range(4):
        nm.eval(function(x), [x.prod(), x @ x, nm.cumsum(x, axis=0), nm.argsort(x, axis=0)])
    assert asked[0] >= kept
    assert asked[1] < MIB


def test_out_of_memory_while_loading_a_kernel(driver, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    x = tensor(8, 8)
    driver.cuModuleLoadData = lambda *args: (2, 0)
    told = r"loading kernel 'pointwise' \(sinh\): CUDA_ERROR_OUT_OF_MEMORY; free tensors"
    for kind in (OutOfMemoryError, DeviceError, MemoryError):
        with pytest.raises(kind, match=told):
            nm.eval(nm.sinh(x))
    del driver.cuModuleLoadData
    nm.eval(nm.sinh(x))


def test_a_launch_without_memory_is_retried(driver):
    runtime = nm.device(driver.device).runtime
    x = tensor(8, 8)
    nm.eval(x + x)
    pooled()
    driver.code.value = 2
    empty = runtime.memory.empty

    def emptied():
        driver.code.value = 0
        empty()

    runtime.memory.empty = emptied
    nm.eval(x + x * 3)
    driver.code.value = 2
    runtime.memory.empty = empty
    with pytest.raises(OutOfMemoryError, match="launching kernel 'pointwise'"):
        nm.eval(x + x * 5)
    driver.code.value = 0


def test_grids_are_never_truncated(driver):
    """The driver takes 32-bit grids; larger ones raise."""
    runtime = nm.device(driver.device).runtime
    x = tensor(8, 8)
    nm.eval(x * 7)
    program = runtime.compile_log[-1].program
    sizes = [0] * len(program.kernel.scalars)
    before = driver.launched
    runtime.run([Launch(program, (None, None), tuple(sizes), (1 << 31) - 1)])
    assert driver.launched == before + 1
    for grid in (1 << 31, 1 << 32, (1 << 32) + 5):
        with pytest.raises(DeviceError, match=r"launching kernel 'pointwise' .* 2\*\*31 blocks"):
            runtime.run([Launch(program, (None, None), tuple(sizes), grid)])
    assert driver.launched == before + 1


def test_launches_that_cannot_be_captured(driver, monkeypatch):
    """A user's kernel may do what is forbidden during a capture."""
    runtime = nm.device(driver.device).runtime
    calls = []

    class Launcher:
        workspace = 0

        def __call__(self, addresses, workspace):
            calls.append(runtime.capturing)
            if runtime.capturing:
                raise RuntimeError("not during a capture")

    monkeypatch.setattr(registry._State, "registered", registry._State.registered)
    always = lambda problem, target: True
    nm.kernels.register(
        registry.Vendor("users", "contract", always, always, lambda r, q: Launcher())
    )
    x = tensor(8, 8)
    function = nm.jit(lambda x: nm.sort(nm.cumsum(nm.sort(x, axis=0) @ x, axis=0), axis=1))
    for _ in range(5):
        nm.eval(function(x))
    assert calls == [False, True, False, False, False, False]
    assert not runtime.capturing
    assert driver.calls["cuStreamBeginCapture"] == driver.calls["cuStreamEndCapture"] == 1


def test_graphs_that_cannot_be_instantiated(driver):
    runtime = nm.device(driver.device).runtime
    driver.cuStreamEndCapture = lambda stream: (901, 0)
    x = tensor(8, 8)
    function = nm.jit(lambda x: nm.sort(nm.cumsum(nm.sort(x, axis=0), axis=0), axis=1))
    for _ in range(5):
        nm.eval(function(x))
    assert not runtime.capturing
    assert driver.calls["cuGraphLaunch"] == 0


def test_vendors_registered_later_are_used(driver, monkeypatch):
    """Cached programs are replaced."""
    for state in ("registered", "registrations", "key"):
        monkeypatch.setattr(registry._State, state, getattr(registry._State, state))

    class Launcher:
        workspace = 0

        def __call__(self, addresses, workspace):
            pass

    x = tensor(8, 8)
    chain = lambda: nm.sort(nm.cumsum(x @ (x + 1), axis=0), axis=1)
    products = (lambda: x @ x, chain)
    for _ in range(4):
        nm.eval([f() for f in products])
    always = lambda problem, target: True
    nm.kernels.register(
        registry.Vendor("laters", "contract", always, always, lambda r, q: Launcher())
    )
    for f in products:
        names = [k.name for p in nm.explain(f, timed=False).programs for k in p.kernels]
        assert "laters" in names
    with nm.kernels.prefer("native"):
        names = [k.name for p in nm.explain(products[0], timed=False).programs for k in p.kernels]
        assert "laters" not in names
    with pytest.raises(TypeError, match=r"register: takes an nm.kernels.Vendor, not str"):
        nm.kernels.register("laters")


def test_strided_views_are_read_without_gaps(driver):
    copied = []

    def copy(to, source, size, stream):
        copied.append(size)
        return (0,)

    x = tensor(1024, 1024)
    nm.eval(x)
    driver.cuMemcpyDtoHAsync = copy
    assert x[:, 3].numpy().shape == (1024,)
    assert sum(copied) == 4096
    copied.clear()
    assert x[::2, ::-1].numpy().shape == (512, 1024)  # half of it, in one piece
    assert sum(copied) == 4 * (1023 * 1024)
    assert nm.broadcast_to(x[0], (10000, 1024)).numpy().shape == (10000, 1024)
    assert sum(copied) == 4 * (1024 * 1024)


def test_the_context_is_made_current_again(monkeypatch):
    fake, _ = fake_cuda_driver.install(monkeypatch)
    monkeypatch.setattr(cuda, "count", lambda: 2)
    runtime, current = CudaRuntime(nm.device("cpu").runtime), []
    fake.cuCtxSetCurrent = lambda context: current.append(context) or (0,)
    memory = runtime.allocate(MIB)
    assert len(current) == 1
    runtime.upload(memory, np.ones(3))
    assert len(current) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_processes_get_a_clear_error(driver, monkeypatch):
    x = tensor(8, 8)
    monkeypatch.setattr(cuda, "_PROCESS", os.getpid() + 1)
    driver.code.value = 3
    with pytest.raises(DeviceError, match=r"forked from one that uses .* 'spawn'"):
        nm.eval(x + x)
    driver.code.value = 0
    driver.cuEventSynchronize = lambda event: (3,)
    with pytest.raises(DeviceError, match=r"forked from one that uses .* 'spawn'"):
        x.numpy()


def test_unsupported_devices_are_not_counted(driver, monkeypatch):
    majors = [9, 7, 6]
    driver.cuDeviceGetCount = lambda: (0, len(majors))
    driver.cuDeviceGet = lambda number: (0, number)
    driver.cuDeviceGetAttribute = lambda name, device: (0, majors[device])
    uncached = cuda.count.__wrapped__
    assert uncached() == 2
    majors.clear()
    assert uncached() == 0
    majors.append(6)
    assert uncached() == 0
    assert "compute capability 7.0 or later" in cuda.unavailable_hint()
    driver.cuInit = lambda flags: (100,)
    assert uncached() == 0


def test_old_drivers_get_a_clear_error(driver):
    driver.functions = {"cuLaunchKernelEx": 0}
    with pytest.raises(DeviceError, match=r"has no cuLaunchKernelEx; drivers for CUDA 12"):
        cuda.function_address("cuLaunchKernelEx")


def test_unknown_devices_get_compatible_code():
    assert {n: Assembler(n).cpu for n in (70, 73, 87, 88, 90, 110, 199)} == {
        **{70: "sm_70", 73: "sm_72", 87: "sm_87", 88: "sm_87", 90: "sm_90a"},
        **{110: "sm_90", 199: "sm_90"},
    }


def test_matmuls_beyond_int32_sizes_are_not_for_cublas():
    matrix = SimpleNamespace(transposed=False, ld=1 << 20, offset=0, batch_stride=0)
    common = {"batch": 1, "m": 1, "k": 100, "dtype": "float32", "result": "float32"}
    problem = SimpleNamespace(**common, n=1 << 20, tf32=False, bias=False, a=matrix, b=matrix)
    assert cublas.is_supported(problem)
    problem.n = 1 << 31
    assert not cublas.is_supported(problem)
