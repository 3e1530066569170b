"""The CUDA backend, without a GPU and on one."""

import gc
import os
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest

import numus as nm
from numus.errors import DeviceError, OutOfMemoryError
from numus.runtime import devices
from numus.runtime.contract import LaunchStep
from numus.runtime.cuda import driver
from numus.runtime.cuda.runtime import CudaRuntime

gpu = pytest.mark.skipif(driver.count() == 0, reason="there is no NVIDIA GPU")
no_gpu = pytest.mark.skipif(driver.count() > 0, reason="there is an NVIDIA GPU")


@no_gpu
def test_error_without_a_gpu():
    with pytest.raises(DeviceError, match=r"no device 'cuda' here; (install numus\[cuda\]|the NV)"):
        nm.zeros(3).to("cuda")
    with pytest.raises(DeviceError, match="no device 'cuda:1'"):
        nm.device("cuda:1")
    assert all(d.kind != "cuda" for d in nm.devices())


@gpu
def test_the_device_is_listed():
    assert nm.device("cuda") in nm.devices()
    assert nm.device("cuda:0") is nm.device("cuda")
    with pytest.raises(DeviceError, match=f"cuda:{driver.count()}"):
        nm.device(f"cuda:{driver.count()}")
    x = nm.arange(5).to_gpu()
    assert x.device == "cuda"
    assert (x + 1).cpu().numpy().tolist() == [1, 2, 3, 4, 5]


@gpu
def test_copies_of_all_sizes():
    rng = np.random.default_rng(0)
    for size in (0, 1, 1000, (8 << 20) // 4, (40 << 20) // 4 + 3):
        array = rng.standard_normal(size).astype(np.float32)
        x = nm.asarray(array, device="cuda")
        assert np.array_equal(x.numpy(), array)
        assert np.array_equal(x[::-2].numpy(), array[::-2])


@gpu
def test_memory_reuse_and_out_of_memory():
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
def test_repeated_programs_are_replayed_as_graphs():
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
def test_dlpack_import_and_export():
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
    assert ".entry numus_" in program.source
    prepared = runtime.prepare([LaunchStep(program, [(0, 0)] * program.num_buffers, scratch=[])], 1)
    values = [1 << 31, *([0] * len(program.formats))]  # more blocks than a grid can have
    with pytest.raises(DeviceError, match=f"launching kernel '{program.name}'"):
        prepared.run([0], values)
    assert float(x.sum()) == 3


_HIDDEN = """
import warnings
import numus as nm
from numus.errors import DeviceError
from numus.runtime import devices
from numus.runtime.cuda import driver
from numus.runtime.cuda.runtime import CudaRuntime
assert driver.count() == 0
assert all(d.kind != "cuda" for d in nm.devices())
for name in ("cuda", "cuda:1"):
    try:
        nm.device(name)
        raise SystemExit(f"{name} was not refused")
    except DeviceError as error:
        assert "install numus[cuda]" in str(error) or "finds no GPU" in str(error), error
if not [d for d in nm.devices() if d.kind == "webgpu"]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        x = nm.arange(3).to_gpu().to_gpu()
        nm.ones(3).to_gpu()
    assert x.device == "cpu"
    assert [str(w.message) for w in told] == ["no GPU was found: tensors stay on the CPU"]
"""


def test_hidden_gpus_are_not_listed():
    """With a GPU or without: the driver is told of none."""
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "NUMUS_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", _HIDDEN], env=hidden, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@gpu
def test_streams_wait_for_each_other():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    n = 1 << 20
    for _ in range(3):
        theirs = torch.zeros(n, device="cuda")
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)  # tens of milliseconds
            theirs.fill_(3)
            ours = nm.from_dlpack(theirs, copy=False)
        assert float((ours * 2).sum()) == 6 * n
        x = nm.asarray(np.full((2048, 2048), 1 / 2048, np.float32), device="cuda")
        nm.eval(x)
        y = x
        for _ in range(60):  # milliseconds of work that nobody waits for
            y = y @ x
        with torch.cuda.stream(side):
            back = torch.from_dlpack(y)
            total = back.sum()
        side.synchronize()
        assert abs(total.item() / 2048 - 1) < 1e-3


@gpu
def test_imported_memory_on_a_side_stream_is_released_in_order():
    """PyTorch uses such memory again at once, on that stream, and waits for nobody."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    n = 1 << 22
    x = nm.asarray(np.full((2048, 2048), 1 / 2048, np.float32), device="cuda")
    nm.eval(x)
    side = torch.cuda.Stream()
    for _ in range(3):
        y = x
        for _ in range(60):  # milliseconds of work, before which nothing is read
            y = y @ x
        nm.eval(y)
        with torch.cuda.stream(side):
            theirs = torch.full((n,), 3.0, device="cuda")
            ours = nm.from_dlpack(theirs, copy=False)
            total = (ours * 2).sum() + y[0, 0] * 0
            nm.eval(total)
            del theirs, ours
            for _ in range(8):
                torch.full((n,), 7.0, device="cuda")  # in the same place, if it is free
        assert float(total) == 6 * n


@gpu
def test_device_arrays_become_tensors_in_place():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    theirs = torch.arange(12, device="cuda").reshape(3, 4)
    for x in (nm.asarray(theirs), nm.tensor(theirs), nm.asarray(theirs.T[1:, ::2])):
        assert x.device == "cuda"
    assert nm.asarray(theirs, device="cpu").device == "cpu"
    assert np.array_equal(x.numpy(), theirs.T[1:, ::2].cpu().numpy())
    narrow = nm.asarray(theirs, dtype="float16")
    assert narrow.dtype is nm.float16
    assert narrow.tolist() == theirs.tolist()
    shared = nm.asarray(theirs, copy=False)
    theirs += 1
    torch.cuda.synchronize()
    assert shared.tolist() == theirs.tolist()
    assert x.tolist() == (theirs - 1).T[1:, ::2].tolist()
    with pytest.raises(ValueError, match="copy=False"):
        nm.asarray(theirs, dtype="float32", copy=False)


@gpu
def test_copies_during_captures_of_other_threads():
    """What one thread copies is no part of a graph that another records: it would come again."""
    rng = np.random.default_rng(0)
    x = nm.asarray(rng.standard_normal((64, 64)).astype(np.float32), device="cuda")
    nm.eval(x)
    wrong, stop = [], threading.Event()

    def copies():
        while not stop.is_set():
            array = rng.standard_normal(1000).astype(np.float32)
            if not np.array_equal(nm.asarray(array, device="cuda").numpy(), array):
                wrong.append("copy")
            nm.synchronize("cuda")

    thread = threading.Thread(target=copies)
    thread.start()
    try:
        for k in range(40):  # programs that are new, recorded, and replayed
            held = nm.zeros((k + 1, 1000), device="cuda") + 1
            nm.eval(held)
            f = nm.jit(lambda x, k=k: nm.tanh(nm.sort(x @ x, axis=0) * (k + 1)).sum(axis=0) @ x)
            found = [y.numpy().tobytes() for y in (f(x) for _ in range(6))]
            one = [nm.cumsum(x @ x, axis=k % 2).sum().numpy().tobytes() for _ in range(6)]
            wrong += [k] * (len(set(found)) != 1 or len(set(one)) != 1)
    finally:
        stop.set()
        thread.join()
    assert not wrong


@gpu
def test_ten_thousand_steps_retain_no_memory():
    runtime = nm.device("cuda").runtime
    x = nm.asarray(np.random.default_rng(0).standard_normal((64, 64)), device="cuda")
    step = nm.jit(lambda w: w - 0.001 * nm.tanh(w @ x))

    def used():
        gc.collect()
        runtime.synchronize()
        return runtime.memory_stats()

    w = x
    for i in range(10_000):
        w = step(w)
        nm.eval(w @ x)
        if i == 5000:
            before = used()
    after = used()
    assert after["in_use"] == before["in_use"]
    assert after["pooled"] <= before["pooled"]
    assert nm.isfinite(w).all()


@gpu
def test_freed_programs_leave_no_graphs_and_events(monkeypatch):
    """Jitted steps of many kernels, replayed as graphs, whose losses are read before they end."""
    runtime = nm.device("cuda").runtime
    counts = Counter()
    call = driver.call

    def counted(name, *args, **kwargs):
        counts[name] += 1
        return call(name, *args, **kwargs)

    monkeypatch.setattr(driver, "call", counted)
    x = nm.asarray(np.random.default_rng(0).standard_normal((64, 64)) / 64, device="cuda")
    total = float(x.sum())

    def once():
        @nm.jit
        def step(x):
            y = x
            for _ in range(12):
                y = nm.cumsum(y @ x, axis=0)
            return x.sum(), y

        for _ in range(6):
            loss, _ = step(x)
            assert loss.item() == total
        runtime.last_launched = None  # kept to be named in errors
        del step, loss
        gc.collect()

    def left():
        runtime.prepare([], 0)
        runtime.synchronize()
        graphs = counts["cuGraphInstantiate"] - counts["cuGraphExecDestroy"]
        events = counts["cuEventCreate"] - counts["cuEventDestroy"]
        return graphs, events, runtime.memory_stats()["in_use"]

    once()
    assert counts["cuEventRecordWithFlags"] > 0
    assert counts["cuGraphInstantiate"] > 0
    once()
    before = left()
    for _ in range(10):
        once()
    assert left() == before


@gpu
def test_matmul_is_deterministic():
    """Launched by the library, and replayed as a graph; with memory that moves or does not."""
    rng = np.random.default_rng(0)
    for dtype, near in (("float32", 1e-5), ("bfloat16", 2e-2), ("float64", 1e-12)):
        for m, n, k in ((64, 96, 128), (1, 300, 200), (200, 1, 96), (33, 65, 17)):
            a, b, c = (rng.standard_normal(s) for s in ((m, k), (n, k), (n,)))
            x, w, v = (nm.asarray(t, device="cuda").astype(dtype) for t in (a, b, c))
            nm.eval(x, w, v)
            for bias in (False, True):

                def f(x=x, w=w, v=v, bias=bias):
                    return x @ w.T + v if bias else x @ w.T

                with nm.kernels.prefer("vendor"):
                    first = f().astype("float64").numpy()
                    kept = []
                    for i in range(12):
                        y = f()
                        nm.eval(y)
                        assert np.array_equal(y.astype("float64").numpy(), first)
                        if i % 3 == 0:
                            kept.append(y)
                    for y in kept:
                        assert np.array_equal(y.astype("float64").numpy(), first)
                expected = a @ b.T + c if bias else a @ b.T
                np.testing.assert_allclose(first, expected, rtol=near, atol=near * 10 * k**0.5)


@gpu
def test_bias_is_added_before_rounding():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x, w, b = (torch.randn(s, device="cuda").bfloat16() for s in ((512, 256), (768, 256), (768,)))
    with nm.kernels.prefer("vendor"):
        ours = nm.from_dlpack(x) @ nm.from_dlpack(w).T + nm.from_dlpack(b)
        wide = (x.double() @ w.double().T + b.double()).bfloat16()
        same = (torch.from_dlpack(ours) == wide).float().mean().item()
        assert same > 0.99
        for part in (b[:-1], b[1:]):  # memory that begins anywhere, and ends there
            ours = nm.from_dlpack(x) @ nm.from_dlpack(w)[1:].T + nm.from_dlpack(part, copy=False)
            wide = x.double() @ w[1:].double().T + part.double()
            off = (torch.from_dlpack(ours).double() - wide).norm() / wide.norm()
            assert off < 5e-3


def _families(put):
    """One of each family of kernels, with gradients of those that have kernels of their own."""
    x, q, k, v = put(37, 520), *(put(1, 2, 70, 64) for _ in range(3))
    image, weights = put(2, 16, 11, 11), put(8, 16, 3, 3)
    wide = lambda y: y.astype("float32")
    attend = lambda *z: wide(nm.scaled_dot_product_attention(*z, is_causal=True))
    convolve = lambda *z: wide(nm.conv2d(*z, padding=1))
    squared = lambda f: lambda *z: (f(*z) ** 2).sum()
    return [
        *(attend(q, k, v), *nm.grad(squared(attend), argnums=(0, 1, 2))(q, k, v)),
        *(convolve(image, weights), *nm.grad(squared(convolve), argnums=(0, 1))(image, weights)),
        *(nm.softmax(x, axis=-1), nm.layer_norm(x), wide(x).sum(0), wide(x).sum(1), x.max(1)),
        *(nm.cumsum(wide(x), axis=1), nm.sort(x, axis=1), nm.argmax(x, axis=0), x[:, ::-1].T + 1),
        *(x @ put(520, 96), nm.gelu(x @ put(520, 33) + put(33))),
    ]


@gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("capability", [70, 75, 80, 86, 89])
def test_kernels_for_older_devices(capability, dtype):
    name = f"cuda_sm{capability}"
    devices.BACKENDS.setdefault(
        name, lambda index: CudaRuntime(nm.device("cpu").runtime, index, capability)
    )
    found = {}
    for place in (name, "cpu"):
        rng = np.random.default_rng(0)

        def put(*shape, rng=rng, place=place):
            x = rng.standard_normal(shape).astype(np.float32)
            return nm.asarray(x, device=place).astype(dtype)

        with nm.kernels.prefer("native"):
            results = _families(put)
            nm.eval(results)
        found[place] = [y.astype("float32").numpy() for y in results]
    near = 3e-2 if dtype == "bfloat16" else 2e-4
    for i, (got, want) in enumerate(zip(found[name], found["cpu"], strict=True)):
        off = np.linalg.norm(got - want) / max(1e-6, np.linalg.norm(want))
        assert off < near, (i, off)
