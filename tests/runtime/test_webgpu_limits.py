"""Limits of adapters: segmented bindings, workgroup memory, lost devices."""

import dataclasses
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import numus as nm
from numus import ir
from numus.errors import DeviceError
from numus.runtime.devices import count

pytestmark = pytest.mark.skipif(not count("webgpu"), reason="there is no adapter for WebGPU here")


@pytest.fixture
def limit_binding(monkeypatch):
    """Limits the bytes of one buffer binding."""
    runtime = nm.device("webgpu").runtime

    def limit(nbytes):
        target = dataclasses.replace(runtime.context.shader_target, max_binding_bytes=nbytes)
        monkeypatch.setattr(runtime.context, "shader_target", target)
        runtime.pipelines.clear()
        return runtime

    yield limit
    monkeypatch.undo()
    runtime.pipelines.clear()


def on_gpu(array):
    return nm.asarray(array).to("webgpu")


@pytest.mark.parametrize("kind", ["float32", "float16", "uint8", "bool", "int64", "complex64"])
def test_buffers_larger_than_a_binding(limit_binding, kind):
    """They are bound in several segments, read and written across their boundaries."""
    a = (np.arange(9001) % 199).astype(kind)
    limit_binding(4096 * a.itemsize)
    x = on_gpu(a)
    np.testing.assert_array_equal(nm.flip(x, axis=0).numpy(), a[::-1])
    np.testing.assert_array_equal(nm.concat([x[8000:], x[::-3]]).numpy(), [*a[8000:], *a[::-3]])
    at = np.array([9000, 0, 4097])
    np.testing.assert_array_equal(x[on_gpu(at)].numpy(), a[at])


@pytest.mark.slow
def test_kernels_over_segmented_buffers(limit_binding):
    limit_binding(16 << 10)
    a = np.random.default_rng(0).standard_normal((120, 130)).astype(np.float32)
    x = on_gpu(a)
    np.testing.assert_allclose((x @ x.T).numpy(), a @ a.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(nm.sum(x, axis=0).numpy(), a.sum(0), rtol=1e-4, atol=1e-4)
    e = np.exp(a - a.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(nm.softmax(x, axis=1).numpy(), want, rtol=1e-5)


@pytest.mark.slow
def test_sorts_and_scans_over_segmented_buffers(limit_binding):
    limit_binding(16 << 10)
    a = np.random.default_rng(0).standard_normal((120, 130)).astype(np.float32)
    x = on_gpu(a)
    np.testing.assert_array_equal(nm.sort(x, axis=0).numpy(), np.sort(a, 0))
    np.testing.assert_allclose(nm.cumsum(x, axis=1).numpy(), a.cumsum(1), rtol=1e-4, atol=1e-4)


def test_too_many_segments_name_both_limits(limit_binding, monkeypatch):
    context = limit_binding(4096).context
    target = dataclasses.replace(context.shader_target, max_buffers=8)
    monkeypatch.setattr(context, "shader_target", target)
    x = on_gpu(np.ones(20000, np.float32))
    with pytest.raises(DeviceError, match="max-storage-buffer-binding-size") as told:
        nm.eval(x + 1)
    assert "max-storage-buffers-per-shader-stage" in str(told.value)


def test_matmul_tiles_fit_workgroup_memory():
    """A tile that does not fit would be placed in a storage buffer."""
    from numus.kernels.matmul.gpu.simt import choose_tile

    target = nm.device("webgpu").runtime.target
    for group, memory in ((256, 48 << 10), (256, 16 << 10), (64, 16 << 10)):
        given = dataclasses.replace(target, block_size=group, shared_bytes=memory, num_cores=1)
        for dtype in (nm.float32, nm.float64, nm.int64):
            for store_only, unrolled in itertools.product((True, False), repeat=2):
                tiles = choose_tile(given, dtype, 1, 4096, 4096, store_only, unrolled)
                assert tiles.smem_bytes(dtype, store_only) <= memory
                lanes = [ir.const(lane) for lane in range(tiles.threads)]
                places = {
                    tuple(ir.evaluate_size(x, {}) for x in tiles.thread_position(lane))
                    for lane in lanes
                }
                assert places == set(np.ndindex(tiles.threads // tiles.threads_n, tiles.threads_n))


def test_matmul_with_the_smallest_workgroup_memory(monkeypatch):
    """Matmul scratch stays in workgroup memory at WebGPU's minimum limit."""
    runtime = nm.device("webgpu").runtime
    context = runtime.context
    small = 16 << 10
    monkeypatch.setattr(context, "target", dataclasses.replace(context.target, shared_bytes=small))
    target = dataclasses.replace(context.shader_target, shared_bytes=small)
    monkeypatch.setattr(context, "shader_target", target)
    nm.device("cpu")
    a = np.random.default_rng(1).standard_normal((190, 170)).astype(np.float32)
    x = on_gpu(a)
    found = nm.explain(lambda: nm.gelu(x @ x.T + 1), timed=False)
    assert any("gemm" in k.name for k in found.kernels)
    assert all("storage, read_write> b3" not in k.source for k in found.kernels)
    runtime.pipelines.clear()


def test_scalars_that_change_from_run_to_run():
    """Dispatches are cached by memory; scalars are updated in place."""

    @nm.jit
    def f(x, t):
        return x * t + nm.sum(x) / (t + 1)

    a = np.arange(6, dtype=np.float32)
    x = on_gpu(a)
    kept = []  # other memory at every call, then memory that comes again
    for i in range(12):
        t = float(i % 5)
        y = f(x, t)
        np.testing.assert_allclose(y.numpy(), a * t + a.sum() / (t + 1), rtol=1e-6)
        kept = [*kept[-(i % 3) :], y]


def _python(code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_memory_stays_constant_over_many_steps():
    """10,000 of them: python -m tools.webgpu_report --only steps"""
    out, said = _python(
        "import numus as nm\nfrom tools.webgpu_report import run_steps\n"
        "print(run_steps(nm, 300, 100)[0])"
    )
    assert "wgpu logged 0 warnings" in out, said


@pytest.mark.slow
def test_a_device_lost_during_training():
    out, said = _python(
        "import numpy as np, numus as nm\n"
        "from numus.errors import DeviceError\n"
        "def training():\n"
        "    w = nm.asarray(np.ones((8, 8), np.float32)).to('webgpu')\n"
        "    x = nm.asarray(np.eye(8, dtype=np.float32)).to('webgpu')\n"
        "    @nm.jit\n"
        "    def step(): w.assign(w * 0.5 + x @ w * 0.25); return nm.sum(w)\n"
        "    return step\n"
        "step = training()\n"
        "for i in range(20):\n"
        "    try:\n"
        "        if i == 7: nm.device('webgpu').runtime.context.device.destroy()\n"
        "        loss = step().item()\n"
        "    except DeviceError as e:\n"
        "        print(i, 'lost' in str(e), 'restarted' in str(e)); break\n"
        "step = training()\n"
        "print(round(sum(step().item() for _ in range(3)), 3))\n"
    )
    assert out.splitlines() == ["7 True True", "111.0"], said
