"""The CUDA backend: what must hold without a GPU, and, where there is one, on it."""

import gc

import numpy as np
import pytest

import numus as nm
from numus.errors import DeviceError, OutOfMemoryError
from numus.runtime.contract import Step
from numus.runtime.cuda import driver

gpu = pytest.mark.skipif(driver.count() == 0, reason="there is no NVIDIA GPU")
no_gpu = pytest.mark.skipif(driver.count() > 0, reason="there is an NVIDIA GPU")


@no_gpu
def test_without_a_gpu_the_device_is_refused():
    with pytest.raises(DeviceError, match=r"no device 'cuda' here; (install numus\[cuda\]|the NV)"):
        nm.zeros(3).to("cuda")
    with pytest.raises(DeviceError, match="no device 'cuda:1'"):
        nm.device("cuda:1")
    assert all(d.kind != "cuda" for d in nm.devices())


@gpu
def test_the_device_is_there():
    assert nm.device("cuda") in nm.devices()
    assert nm.device("cuda:0") is nm.device("cuda")
    with pytest.raises(DeviceError, match=f"cuda:{driver.count()}"):
        nm.device(f"cuda:{driver.count()}")
    x = nm.arange(5).to_gpu()
    assert x.device == "cuda"
    assert (x + 1).cpu().numpy().tolist() == [1, 2, 3, 4, 5]


@gpu
def test_copies_of_all_sizes_come_back():
    rng = np.random.default_rng(0)
    for size in (0, 1, 1000, (8 << 20) // 4, (40 << 20) // 4 + 3):
        array = rng.standard_normal(size).astype(np.float32)
        x = nm.asarray(array, device="cuda")
        assert np.array_equal(x.numpy(), array)
        assert np.array_equal(x[::-2].numpy(), array[::-2])


@gpu
def test_memory_is_reused_and_its_end_is_told():
    runtime = nm.device("cuda").runtime
    x = nm.zeros((1 << 20,), device="cuda") + 1
    nm.eval(x)
    before = runtime.memory_stats()["mapped"]
    for _ in range(20):
        x = x * 2
        nm.eval(x)
    assert runtime.memory_stats()["mapped"] <= before + 2
    with pytest.raises(OutOfMemoryError, match="cuda cannot provide"):
        nm.eval(nm.ones((1 << 40,), dtype=nm.float64, device="cuda") * 2)
    assert float((x * 0 + 1).sum()) == 1 << 20


@gpu
def test_a_program_that_comes_again_is_replayed():
    x = nm.asarray(np.random.default_rng(0).standard_normal((64, 64)), device="cuda")

    def step(x):
        for _ in range(4):
            x = nm.tanh(x @ x * 0.1)
        return x

    first = step(x).numpy()
    for _ in range(8):
        y = step(x)
        nm.eval(y)
        assert np.array_equal(y.numpy(), first)


@gpu
def test_dlpack_both_ways():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    for kind in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        theirs = (torch.randn(30, 50, device="cuda") * 10).to(kind)
        for copy in (None, False):
            ours = nm.from_dlpack(theirs, copy=copy)
            assert ours.device == "cuda"
            back = torch.from_dlpack(ours)
            assert back.dtype is kind
            assert torch.equal(back, theirs)
            assert (back.data_ptr() == theirs.data_ptr()) is (copy is False)
    shared = nm.from_dlpack(theirs.T[1:], copy=False)
    assert torch.equal(torch.from_dlpack(shared), theirs.T[1:])
    assert theirs.sum().item() == pytest.approx(complex(nm.sum(nm.from_dlpack(theirs))), rel=1e-4)
    del shared, ours, back
    gc.collect()


@gpu
def test_errors_name_the_kernel():
    runtime = nm.device("cuda").runtime
    x = nm.zeros(3, device="cuda") + 1
    nm.eval(x)
    program = runtime.compile_log[-1].program
    assert ".entry kernel" in program.source
    prepared = runtime.prepare([Step(program, [(0, 0)] * program.buffers, scratch=[])], 1)
    values = [1 << 31, *([0] * len(program.formats))]  # more blocks than a grid can have
    with pytest.raises(DeviceError, match=f"launching kernel '{program.name}'"):
        prepared.run([0], values)
    assert float(x.sum()) == 3
