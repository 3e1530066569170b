"""The webgpu device, on any adapter: a software one is enough."""

import dataclasses
import gc
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import numus as nm
from numus import config, nn, optim
from numus.codegen.wgsl import prelude
from numus.codegen.wgsl.bindings import Variant
from numus.compiler.plan import clear_plans
from numus.dispatch.call_cache import eager_calls
from numus.errors import CompileError, DeviceError, DTypeError, OutOfMemoryError
from numus.lru import LruTable
from numus.runtime.devices import count
from numus.runtime.webgpu.launch import WebGpuLaunchList

pytestmark = pytest.mark.skipif(not count("webgpu"), reason="there is no adapter for WebGPU here")


@pytest.fixture
def device():
    return nm.device("webgpu")


def on_gpu(array):
    return nm.asarray(array).to("webgpu")


def test_a_line_of_arithmetic():
    x = np.linspace(-3, 3, 1001, dtype=np.float32)
    y = nm.relu(on_gpu(x) * 2 + 1)
    assert y.device == "webgpu"
    np.testing.assert_array_equal(y.numpy(), np.maximum(x * np.float32(2) + np.float32(1), 0))


def test_pipelines_that_are_not_used_are_dropped(device, monkeypatch, fast_gc):
    pipelines = device.runtime.pipelines
    monkeypatch.setattr(pipelines, "_programs", LruTable(2))
    x = on_gpu(np.linspace(0, 1, 10, dtype=np.float32))
    before, used = len(pipelines._all), nm.jit(lambda x: x * 0.25)
    for length in range(1, 7):
        y = x
        for _ in range(length):
            y = y * y
        assert float(nm.max(y)) == 1
        np.testing.assert_array_equal(used(x).numpy(), x.numpy() * np.float32(0.25))
        clear_plans()
        eager_calls.clear()
        del y
        gc.collect()
    assert len(pipelines._programs) == 2
    assert len(pipelines._all) <= before + 3


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "uint16", "float16"])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_packed_elements_do_not_disturb_each_other(kind, start):
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, 5003).astype(kind)
    base = on_gpu(x)
    flipped = nm.flip(base[start:], axis=0).copy()
    np.testing.assert_array_equal(flipped.numpy(), np.flip(x[start:]))
    parts = nm.concat([base[:5], base[start:], base[7:8]])
    np.testing.assert_array_equal(parts.numpy(), np.concatenate([x[:5], x[start:], x[7:8]]))


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_small_floats_round_as_on_the_host(kind):
    dtype = getattr(nm, kind)
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [
            rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 6, 4000),
            [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 465.0, 65504.0, 65520.0, 1e30],
        ]
    ).astype(np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(dtype.np)
    got = on_gpu(x).astype(dtype)
    assert got.numpy().tobytes() == want.tobytes()
    back = got.astype(nm.float32).numpy()
    np.testing.assert_array_equal(back, want.astype(np.float32))


def test_rounding_is_that_of_the_host():
    """Nothing is contracted, reassociated or folded, though WGSL would allow it."""
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal(20000).astype(np.float32) for _ in range(3))
    x, y, z = on_gpu(a), on_gpu(b), on_gpu(c)
    np.testing.assert_array_equal((x * y + z).numpy(), a * b + c)
    np.testing.assert_array_equal((y - ((x + y) - x)).numpy(), b - ((a + b) - a))
    np.testing.assert_array_equal((x * z + y * z).numpy(), a * c + b * c)
    np.testing.assert_array_equal((x / y).numpy(), a / b)
    np.testing.assert_array_equal(nm.sqrt(nm.abs(x)).numpy(), np.sqrt(np.abs(a)))


def test_emulated_division_and_square_root(device, monkeypatch):
    """The emulation for adapters whose own are not correctly rounded."""
    runtime = device.runtime
    emulated = dataclasses.replace(
        runtime.context.shader_target, exact_div32=False, exact_sqrt32=False
    )
    monkeypatch.setattr(runtime.context, "shader_target", emulated)
    runtime.pipelines.clear()
    rng = np.random.default_rng(5)
    sizes = 2.0 ** rng.integers(-148, 127, (2, 20000))
    a, b = (rng.uniform(1, 2, (2, 20000)) * sizes * rng.choice([-1, 1], (2, 20000))).astype("f4")
    if not emulated.subnormals:  # they are zero there, as operands and as results
        normal = np.minimum(np.abs(a), np.abs(b)) >= 2.0**-100
        a, b = a[normal], b[normal]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3e38, 2.0**-60], np.float32)
    a = np.concatenate([a, np.repeat(special, 8)])
    b = np.concatenate([b, np.tile(special, 8)])
    with np.errstate(all="ignore"):
        want = a / b
        got = (on_gpu(a) / on_gpu(b)).numpy()
        tiny = np.abs(want) < 2.0**-126  # these are rounded twice
        np.testing.assert_array_equal(got[~tiny], want[~tiny])
        bound = 2.0**-149 if emulated.subnormals else 2.0**-126
        np.testing.assert_allclose(got[tiny], want[tiny], rtol=0, atol=bound)
        np.testing.assert_array_equal(nm.sqrt(on_gpu(np.abs(a))).numpy(), np.sqrt(np.abs(a)))
    monkeypatch.undo()
    runtime.pipelines.clear()


@pytest.mark.parametrize("off", ["0.9999999f", "1.0f", "1.0000001f"])
def test_emulated_square_root_over_an_inexact_one(device, monkeypatch, off):
    runtime = device.runtime
    emulated = dataclasses.replace(runtime.context.shader_target, exact_sqrt32=False)
    worse = prelude._EXACT_SQRT.replace("sqrt(y)", f"sqrt(y) * {off}")
    assert off in worse
    monkeypatch.setattr(prelude, "_EXACT_SQRT", worse)
    flushing = prelude._FMA32_BY_64.replace("return", "let r =").replace(
        "}", "return select(r, 0.0f, abs(r) < 1.1754944e-38f); }"
    )
    monkeypatch.setattr(prelude, "_FMA32_BY_64", flushing)  # as most GPUs do
    monkeypatch.setattr(runtime.context, "shader_target", emulated)
    runtime.pipelines.clear()
    rng = np.random.default_rng(6)
    low = 1 if emulated.subnormals else 0x00800000
    x = rng.integers(low, 0x7F800000, 50000, dtype=np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, np.nan, 1e-30, 1e38, 3e38], np.float32)
    x = np.concatenate([x, special, np.float32([2.0**-126, np.finfo("f4").max])])
    np.testing.assert_array_equal(nm.sqrt(on_gpu(x)).numpy(), np.sqrt(x))
    monkeypatch.undo()
    runtime.pipelines.clear()


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_constants_are_not_folded_by_the_driver(device, kind):
    """A constant hidden twice came to light, and 0 / 0 was 0."""
    if device.runtime.missing_feature(kind):
        pytest.skip(f"the adapter has no {kind}")
    special = (0.0, -0.0, float("inf"))
    dtype = getattr(nm, kind)
    for a in special:
        for b in special:
            x, y = (nm.full((), v, dtype=dtype, device="webgpu") for v in (a, b))
            p, q = np.array(a, kind), np.array(b, kind)
            with np.errstate(all="ignore"):
                for op in ("subtract", "divide"):
                    got, want = getattr(nm, op)(x, y).numpy(), getattr(np, op)(p, q)
                    np.testing.assert_array_equal(got, want, err_msg=f"{op} {a} {b}")
                    if not np.isnan(want):
                        assert np.signbit(got) == np.signbit(want), (op, a, b)
        for op in ("subtract", "divide"):  # of a constant and itself
            with np.errstate(all="ignore"):
                got, want = getattr(nm, op)(x, x).numpy(), getattr(np, op)(p, p)
            np.testing.assert_array_equal(got, want, err_msg=f"{op} {a}")


def test_widened_integers_are_compared_with_their_sign(device):
    """A driver that knew a 64-bit number to be widened took it for one without a sign."""
    if device.runtime.missing_feature("int64"):
        pytest.skip("the adapter has no int64")
    for kind in ("int32", "int8", "uint32"):
        x = np.array([0, 1, 5, 100] if kind[0] == "u" else [-100, -2, -1, 0, 1, 5, 100]).astype(
            kind
        )
        wide, held = x.astype(np.int64), on_gpu(x).astype(nm.int64)
        for op in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
            for number in (0, -1, 5):
                got = getattr(nm, op)(held, number).numpy()
                np.testing.assert_array_equal(got, getattr(np, op)(wide, number), err_msg=op)
        np.testing.assert_array_equal(
            (on_gpu(wide + 7) // on_gpu(x + 101)).numpy(), (wide + 7) // (x + 101)
        )
    x = nm.asarray(1).to("webgpu") // nm.asarray(np.int32(-2)).to("webgpu")
    assert x.item() == -1
    assert (nm.full((), 1, device="webgpu") << nm.full((), 2, device="webgpu")).item() == 4


def test_special_values_are_what_ieee_says():
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0], np.float32)
    y = np.array([1.0, np.nan, np.inf, 0.0, -0.0, np.nan], np.float32)
    a, b = on_gpu(x), on_gpu(y)
    with np.errstate(all="ignore"):
        for op in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
            got, want = getattr(nm, op)(a, b).numpy(), getattr(np, op)(x, y)
            np.testing.assert_array_equal(got, want, err_msg=op)
        for op in ("less", "less_equal", "equal", "not_equal", "greater", "greater_equal"):
            np.testing.assert_array_equal(
                getattr(nm, op)(a, b).numpy(), getattr(np, op)(x, y), err_msg=op
            )
            inverse = nm.logical_not(getattr(nm, op)(a, b)).numpy()
            np.testing.assert_array_equal(inverse, ~getattr(np, op)(x, y), err_msg=op)
        np.testing.assert_array_equal((a - a).numpy(), x - x)
    np.testing.assert_array_equal(nm.isnan(a).numpy(), np.isnan(x))
    np.testing.assert_array_equal(np.signbit((a + 0.0).numpy()), np.signbit(x + np.float32(0)))


def test_more_groups_than_one_dimension_holds(device):
    rows = device.runtime.context.shader_target.max_workgroups + 7
    x = np.arange(rows * 20, dtype=np.float32).reshape(rows, 20) % 97
    np.testing.assert_array_equal(nm.sum(on_gpu(x), axis=1).numpy(), x.sum(1))


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_merged_bindings_beyond_the_binding_limit(device, monkeypatch, kind):
    """Buffers are copied into one, and results back out of it."""
    monkeypatch.setattr(
        device.runtime.context,
        "shader_target",
        dataclasses.replace(device.runtime.context.shader_target, max_buffers=8),
    )
    count = 13
    arrays = [np.arange(100 + i).astype(kind) for i in range(count)]
    tensors = [on_gpu(a) for a in arrays]
    parts = [x[i : i + 100] for i, x in enumerate(tensors)]
    total = sum(parts[1:], parts[0])
    rest = sum(parts[2:], parts[1])
    nm.eval([total, rest])
    want = [a[i : i + 100] for i, a in enumerate(arrays)]
    np.testing.assert_array_equal(total.numpy(), sum(want[1:], want[0]))
    np.testing.assert_array_equal(rest.numpy(), sum(want[2:], want[1]))
    assert any("pool0" in r.source for r in nm.compile_log("webgpu"))


def test_inputs_and_outputs_may_share_a_buffer():
    """Temporaries share one buffer: a kernel reads one part of it and writes another."""
    x = np.random.default_rng(3).standard_normal((70, 90)).astype(np.float32)
    y = on_gpu(x)
    z = nm.sort(nm.cumsum(nm.sort(y, axis=1), axis=0), axis=1)
    np.testing.assert_allclose(
        z.numpy(), np.sort(np.cumsum(np.sort(x, 1), 0), 1), rtol=1e-5, atol=1e-5
    )


def test_long_pending_graph_on_a_device_that_is_not_the_default():
    """The pending graph is evaluated when it grows too long; constants in it have no device."""
    x = on_gpu(np.zeros(5, np.float32))
    for _ in range(3 * config.MAX_PENDING_DEPTH):
        x = x + 1.0
    np.testing.assert_array_equal(x.numpy(), np.full(5, 3 * config.MAX_PENDING_DEPTH))


def test_buffers_are_reused(device):
    pool = device.runtime.pool
    x = on_gpu(np.zeros(3000, np.float32))
    nm.eval(x + 1)
    gc.collect()
    mapped, pooled = pool.stats()["mapped"], pool.stats()["pooled"]
    for _ in range(5):
        nm.eval(x + 1)
    assert pool.stats()["mapped"] == mapped
    del x
    gc.collect()
    assert pool.stats()["pooled"] > pooled
    assert all(size & (size - 1) == 0 for size in pool._free)


def test_memory_freed_in_a_reference_cycle_keeps_its_buffer(device):
    x = on_gpu(np.ones(1 << 12, np.float32))
    nm.eval(x)
    cycle = [x._node.view.storage.memory]
    cycle.append(cycle)
    del x, cycle
    gc.collect()
    y = on_gpu(np.ones(1 << 12, np.float32))
    np.testing.assert_array_equal((y + 1).numpy(), np.full(1 << 12, 2, np.float32))


def test_too_large_is_a_clear_error(device):
    limit = device.runtime.context.limits["max-buffer-size"]
    with pytest.raises(OutOfMemoryError, match="largest buffer"):
        device.runtime.allocate(limit + 4)
    np.testing.assert_array_equal((on_gpu(np.ones(3, np.float32)) + 1).numpy(), [2, 2, 2])


def test_64_bit_indices_for_large_sizes(device):
    """A kernel whose index arithmetic overflows 32 bits is rendered with 64."""
    x = on_gpu(np.arange(12, dtype=np.float32))
    nm.eval(x[::2] * 2)
    program = next(r.program for r in reversed(nm.compile_log("webgpu")) if r.name == "pointwise")
    slots = [slot for slot, _ in program.kernel.scalars]
    assert not program.variant_of(dict.fromkeys(slots, 64))[0]
    sizes = {slot: 1 << 33 if slot[0] == "n" else 64 for slot in slots}
    assert program.variant_of(sizes)[0]
    source = program.pipeline(Variant(wide=True)).shader.source
    assert "i64" in source


def test_unsupported_dtypes_are_rejected_at_the_call(device, monkeypatch):
    context = device.runtime.context
    lacking = context.target.dtypes - {"float64", "complex128", "int64", "uint64"}
    monkeypatch.setattr(context, "target", dataclasses.replace(context.target, dtypes=lacking))
    x = on_gpu(np.ones(3, np.float32))
    with pytest.raises(DTypeError, match=r"astype: webgpu .* has no float64: .*shader-f64"):
        x.astype(nm.float64)
    with pytest.raises(DTypeError, match=r"has no int64: .*shader-int64"):
        nm.ones(3, dtype=nm.int64, device="cpu").to("webgpu")


def test_kernels_without_64_bit_types(device):
    """Indices and the counters of sorts are 32-bit; no 64-bit type is in the source."""
    from numus.codegen.wgsl import renderer

    x = on_gpu(np.random.default_rng(4).standard_normal((20, 33)).astype(np.float32))
    nm.eval([nm.sort(x, axis=1), nm.softmax(x, axis=1), x @ x.T, nm.cumsum(x, axis=1)])
    plain = dataclasses.replace(
        device.runtime.context.shader_target, i64=False, f64=False, f16=False, subgroups=False
    )
    gpu = device.runtime.context.device
    for program in device.runtime.pipelines._programs.values():
        kernel = program.kernel
        if all(b.dtype.itemsize <= 4 for b in kernel.buffers if b.access != "scratch"):
            try:
                source = renderer.render(kernel, plain).source
            except DTypeError:  # it computes in float64
                continue
            assert not re.search(r"\b[iuf]64\b", source)
            gpu.create_shader_module(code=source)


def test_unknown_adapters_are_no_error():
    from numus.runtime.webgpu import GpuContext

    assert GpuContext.get(99) is None
    with pytest.raises(DeviceError, match="no device 'webgpu:99'"):
        nm.device("webgpu:99")


def _python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMUS_DEVICE": "cpu", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_a_driver_tensors_stay_on_the_cpu():
    code = (
        "import numus as nm, warnings\n"
        "from numus.errors import DeviceError\n"
        "warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    x = nm.ones(3).to_gpu(); y = nm.ones(3).to_gpu()\n"
        "print(x.device, y.device, sum('no GPU' in str(w.message) for w in told))\n"
        "try: nm.device('webgpu')\n"
        "except DeviceError as e: print(e)\n"
    )
    nothing = os.devnull
    done = _python(code, VK_ICD_FILENAMES=nothing, VK_DRIVER_FILES=nothing, CUDA_VISIBLE_DEVICES="")
    assert done.stdout.startswith("cpu cpu 1\n"), done.stdout + done.stderr
    assert "mesa-vulkan-drivers" in done.stdout


def test_wgpu_is_imported_only_when_it_is_used():
    code = (
        "import sys, numus as nm\n"
        "nm.eval(nm.ones(3) + 1)\n"
        "print('wgpu' in sys.modules, 'numus.runtime.webgpu' in sys.modules)\n"
    )
    assert _python(code).stdout.split() == ["False", "False"]


def test_failed_compilation_raises_again(device, monkeypatch):
    """A step whose compilation failed must not count as configured."""

    def reject(*_):
        raise CompileError("rejected")

    pipelines = device.runtime.pipelines
    pipelines.clear()
    monkeypatch.setattr(pipelines, "compile", reject)
    x = on_gpu(np.full(37, 2.0, np.float32))
    for _ in range(2):
        with pytest.raises(CompileError, match="rejected"):
            (x * x * x - 3).numpy()
    monkeypatch.undo()
    np.testing.assert_array_equal((x * x * x - 3).numpy(), np.full(37, 5.0, np.float32))


def test_a_lost_device_is_restarted():
    code = (
        "import numpy as np, numus as nm, warnings\n"
        "from numus.errors import DeviceError\n"
        "warnings.simplefilter('ignore')\n"
        "x = nm.asarray(np.ones(5, np.float32)).to('webgpu')\n"
        "nm.eval(x + 1)\n"
        "x.device.runtime.context.device.destroy()\n"
        "for attempt in range(2):\n"
        "    try: (x * 3).numpy(); print('no error')\n"
        "    except DeviceError as e: print('lost' in str(e), 'restarted' in str(e))\n"
        "y = nm.asarray(np.ones(5, np.float32)).to('webgpu')\n"
        "print((y + 1).numpy().tolist())\n"  # a structure that was evaluated before
    )
    done = _python(code)
    assert done.stdout.splitlines() == ["True True", "True True", "[2.0, 2.0, 2.0, 2.0, 2.0]"], (
        done.stdout + done.stderr
    )


def test_barrier_before_scratch_is_overwritten():
    """One thread may clear a row that another fills: attention pads its tiles so."""
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal(s).astype("f4") for s in ((1, 24, 33), (1, 40, 33), (1, 40, 20)))
    want = nm.scaled_dot_product_attention(*map(nm.asarray, (q, k, v))).numpy()
    got = nm.scaled_dot_product_attention(*map(on_gpu, (q, k, v))).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_training_steps_retain_no_memory():
    layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)]).to("webgpu")
    optimizer = optim.AdamW(layers.parameters(), lr=1e-3)
    x = on_gpu(np.ones((8, 16), np.float32))

    @nm.jit
    def step(x):
        optimizer.zero_grad()
        loss = nm.softmax(layers(x), axis=-1).max()
        loss.backward()
        optimizer.step()
        return loss

    used = []
    for _ in range(6):
        step(x).item()
        used.append(nm.memory_stats("webgpu")["in_use"])
    assert len(set(used[2:])) == 1


def test_steps_whose_buffers_change_places_are_not_configured_again(monkeypatch):
    """Buffers of a pool come back in ever new combinations, but a kernel knows its own."""
    values = [on_gpu(np.full(100, i, np.float32)) for i in range(7)]
    total = on_gpu(np.zeros(100, np.float32))

    @nm.jit
    def step(rate):
        for i, x in enumerate(values):
            x.assign(nm.cumsum(x * rate + i))  # a kernel of its own each
        total.assign(nm.cumsum(total + values[0]))
        return nm.sum(total)

    kept, counts = [], []
    configure = WebGpuLaunchList._configure

    def counted(*args):
        counts[-1] += 1
        return configure(*args)

    monkeypatch.setattr(WebGpuLaunchList, "_configure", counted)
    wanted = [np.full(100, i, np.float64) for i in range(7)]
    whole = np.zeros(100)
    for number in range(60):
        counts.append(0)
        rate = 0.5 if number % 2 else 0.25  # scalars change, too
        kept.append(step(rate))
        wanted = [np.cumsum(x * rate + i) for i, x in enumerate(wanted)]
        whole = np.cumsum(whole + wanted[0])
        if number % 5 == 4:
            for x, w in zip((*values, total), (*wanted, whole), strict=True):
                np.testing.assert_allclose(x.numpy(), w, rtol=1e-4)
                x.assign(on_gpu(w.astype(np.float32) / 1e6))
            wanted, whole = [w / 1e6 for w in wanted], whole / 1e6
            del kept[: number % 4]  # buffers of results go back out of order
    assert sum(counts[:5]) > 0
    assert sum(counts[30:]) < 0.2 * 30 * max(counts)
