"""The native launch loop, with a driver that records its calls."""

import ctypes
import types

import ml_dtypes
import numpy as np
import pytest
import simt_machine
import simt_tensor_core

import numus as nm
from numus import dtypes as dt
from numus import ir
from numus.codegen.nvptx import renderer
from numus.compiler.plan import clear_plans
from numus.ir.early_loads import buffers_before_wait
from numus.runtime import devices
from numus.runtime.contract import LaunchStep
from numus.runtime.cuda import launch as launching
from numus.runtime.cuda import launch_source
from numus.runtime.cuda.hazards import WrittenMemory
from numus.runtime.null import NullRuntime

WORD, INT = ctypes.c_void_p, ctypes.c_int32
ENCODE = ctypes.CFUNCTYPE(INT, WORD, INT, INT, WORD, WORD, WORD, WORD, WORD, *[INT] * 4)
PIXELS = ctypes.CFUNCTYPE(
    INT, WORD, INT, INT, WORD, WORD, WORD, WORD, WORD, INT, INT, WORD, *[INT] * 4
)
LAUNCH = ctypes.CFUNCTYPE(INT, WORD, WORD, WORD, WORD)
SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int64, WORD, WORD, WORD, ctypes.c_int64, WORD, WORD
)  # of the loop


def words(kind, count, address):
    return list((kind * count).from_address(address))


class Driver:
    """Fakes of the driver functions that the loop calls."""

    def __init__(self, parameters):
        self.encoded, self.launched, self.overlaps = [], [], []
        self.parameters = parameters
        self.functions = ENCODE(self.encode), LAUNCH(self.launch), PIXELS(self.pixels)

    def encode(self, out, kind, rank, address, extents, strides, box, steps, *rest):
        assert out % 64 == 0
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        self.encoded.append(
            (
                *(kind, rank, address, words(u64, 3, extents), words(u64, 2, strides)),
                *(words(u32, 3, box), words(u32, 3, steps), rest),
            )
        )
        ctypes.c_uint64.from_address(out).value = address
        return 0

    def pixels(
        self, out, kind, rank, address, extents, strides, low, high, channels, column, steps, *rest
    ):
        i32, u32, u64 = ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64
        corners = words(i32, rank - 2, low), words(i32, rank - 2, high)
        self.encoded.append(
            (
                *(kind, rank, address, words(u64, rank, extents), words(u64, rank - 1, strides)),
                *((channels, column), words(u32, rank, steps), (*corners, *rest)),
            )
        )
        ctypes.c_uint64.from_address(out).value = address
        return 0

    def launch(self, config, function, parameters, _):
        sizes = words(ctypes.c_uint32, 7, config)
        stream, attributes, count = words(ctypes.c_uint64, 3, config + 32)
        if count:
            assert words(ctypes.c_uint32, 1, attributes) == [6]
            assert words(ctypes.c_uint32, 1, attributes + 8) == [1]
        self.overlaps.append(bool(count))
        places = words(ctypes.c_uint64, self.parameters, parameters)
        values = [ctypes.c_uint64.from_address(p).value for p in places]
        self.launched.append((function, sizes, stream, values))
        return 0


@pytest.fixture(scope="module")
def made():
    """Kernels for a GPU with TMA, in order."""
    runtime = NullRuntime()
    runtime.target = simt_tensor_core.target_of(simt_machine.TARGET, 90)
    found = []
    runtime.compile = lambda kernel: (found.append(kernel), NullRuntime.compile(runtime, kernel))[1]
    devices.BACKENDS["launches"] = lambda index: runtime
    clear_plans()
    return found


@pytest.fixture(scope="module")
def kernel(made):
    """Of a product, with operands that TMA reads."""
    a, b = (np.zeros(s, ml_dtypes.bfloat16) for s in ((256, 192), (192, 512)))
    nm.eval(nm.asarray(a, device="launches") @ nm.asarray(b, device="launches"))
    return made[-1]


def launch_list(kernel, count=1, loads_early=False, nbytes=None):
    """Launches of a kernel, with their driver."""
    _, near = renderer.static_scratch(kernel)
    static = frozenset(i for i, b in enumerate(kernel.buffers) if b in near)
    program = types.SimpleNamespace(
        kernel=kernel,
        dynamic_scratch=(),
        formats="q" * len(kernel.scalars),
        shared_bytes=1000,
        block_size=288,
        address=77,
        num_buffers=len(kernel.buffers),
        static_scratch=static,
        tensor_maps=renderer.tensor_maps(kernel),
        allow_shared=lambda nbytes: None,
        label="a matmul",
        programmatic_launch=True,
        loads_early=loads_early,
        carveouts=(carveouts := []),
        prefer_carveout=carveouts.append,
    )
    given = len(kernel.buffers) - len(static)
    driver = Driver(given + len(kernel.scalars) + len(program.tensor_maps))
    encode, launch, pixels = (ctypes.cast(f, WORD).value for f in driver.functions)
    address, _ = nm.device("cpu").runtime.compiler.native(
        launch_source.SOURCE, launch_source.SYMBOLS
    )
    runtime = types.SimpleNamespace(
        written=WrittenMemory(),
        max_dynamic_shared=1 << 20,
        activate=lambda: None,
        stream_id=5,
        last_launched=None,
        retired_graphs=[],
        recording=None,
        free_events=[],
        last_call=ctypes.c_int64(0),
        run_launches=SIGNATURE(address),
        launch_address=launch,
        encode_address=encode,
        im2col_address=pixels,
    )
    places = [(i, 0) if b.access != "scratch" else None for i, b in enumerate(kernel.buffers)]
    steps = [LaunchStep(program, places, nbytes)] * count
    return driver, launching.CudaLaunchList(runtime, steps, given), program


def test_tensor_maps_are_encoded_at_every_launch(kernel):
    assert kernel.name == "wgmma_gemm"
    driver, prepared, program = launch_list(kernel)
    numbers = {slot: 100 + i for i, (slot, _) in enumerate(kernel.scalars)}
    addresses = [0x10000, 0x20000, 0x30000]
    prepared.run(addresses, [33, *numbers.values()])
    assert len(driver.encoded) == len(program.tensor_maps) == 2
    for told, source in zip(driver.encoded, program.tensor_maps, strict=True):
        kind, rank, where, extents, strides, box, steps, rest = told
        assert (kind, rank, where) == (1, 3, addresses[source.buffer])  # 2 bytes each
        assert extents == [numbers.get(e, e) for e in source.extents]
        assert strides == [2 * numbers.get(e, e) for e in source.strides]
        assert (box, steps, rest) == (list(source.box), [1, 1, 1], (0, 3, 3, 0))
    ((function, sizes, stream, values),) = driver.launched
    assert (function, sizes, stream) == (77, [33, 1, 1, 288, 1, 1, 1000], 5)
    assert values == [*addresses, *numbers.values(), *(m[2] for m in driver.encoded)]
    # unaligned operands are not encoded: the kernel does without TMA
    prepared.run([0x10002, *addresses[1:]], [33, *numbers.values()])
    assert [told[2] for told in driver.encoded[2:]] == [0x20000]
    assert len(driver.launched) == 2


def test_images_are_encoded_with_the_corners_of_their_windows(made):
    shapes = (32, 64, 30, 28), (64, 64, 3, 5)
    x, w = (np.zeros(s, ml_dtypes.bfloat16) for s in shapes)
    x, w = (nm.asarray(v, device="launches").requires_grad_(True) for v in (x, w))
    nm.eval(nm.grad(lambda w: nm.conv2d(x, w, stride=(2, 1), padding=(1, 2)).sum())(w))
    kernel = next(k for k in made if k.name == "im2col_gemm")
    driver, prepared, program = launch_list(kernel)
    values = {slot: 100 + i for i, (slot, _) in enumerate(kernel.scalars)}
    prepared.run([0x10000, 0x20000, 0x30000], [33, *values.values()])
    told, source = driver.encoded[0], program.tensor_maps[0]
    kind, rank, where, extents, strides, box, steps, rest = told
    assert (kind, rank, box) == (1, 4, source.box)
    assert where in (0x10000, 0x20000)
    assert extents == [values.get(e, e) for e in source.extents]
    assert strides == [2 * values.get(e, e) for e in source.strides]
    assert steps == [1, 1, 2, 1]
    assert rest == ([-2, -1], [-2, -2], 0, 3, 3, 0)  # the last of 15 rows begins at 27 of 29
    assert len(driver.encoded[1][3]) == 3  # of the other operand


def test_lists_that_load_early_begin_alone(kernel):
    """What writes their inputs may still run otherwise."""
    values = [33, *range(100, 100 + len(kernel.scalars))]
    for loads_early in (False, True):
        driver, prepared, program = launch_list(kernel, 3, loads_early)
        prepared.run([0x10000, 0x20000, 0x30000], values * 3)
        assert driver.overlaps == [not loads_early, True, True]
        assert bool(program.carveouts) == loads_early  # one for all: they run side by side


def early_kernel():
    """It loads one of its inputs before it waits."""
    access = {"weight": "read", "x": "read", "result": "write"}
    buffers = [ir.Buffer(name, dt.float32, how) for name, how in access.items()]
    weight, x, result = buffers
    name, block = ir.var("weight", dt.float32), ir.var("block")
    lanes = [ir.var(f"lane{i}") for i in range(2)]
    kept = ir.Register("kept", dt.float32, lanes=True)
    loads = [ir.Let(name, ir.load(weight, lanes[0])), ir.Set(kept, name)]
    store = ir.Store(result, lanes[1], ir.read(kept) * ir.load(x, lanes[1]))
    body = [
        ir.For(lanes[0], ir.const(0), ir.const(32), "lanes", loads),
        ir.DependencyWait(loads_before=True),
        ir.For(lanes[1], ir.const(0), ir.const(32), "lanes", [store]),
    ]
    grid = ir.For(block, ir.const(0), ir.scalar("blocks"), "grid", body)
    return ir.Kernel("early", tuple(buffers), (), [grid], block_size=32)


def test_early_loads_overlap_what_writes_other_memory():
    kernel = early_kernel()
    assert {b.name for b in buffers_before_wait(kernel)} == {"weight"}
    driver, prepared, _ = launch_list(kernel, loads_early=True, nbytes=[128] * 3)

    def overlaps(weight, x, result):
        prepared.run([weight, x, result], [1])
        return driver.overlaps[-1]

    first, second, third = 0x10000, 0x20000, 0x30000
    assert not overlaps(first, second, third)  # nothing is known yet
    assert overlaps(first, second, third)
    assert overlaps(second, third, first)  # what the one before wrote it loads after its wait
    assert not overlaps(first + 64, third, second)  # a part was written two launches ago
    assert overlaps(first, third, second)
    assert not overlaps(second, third, first)
    prepared._context.written.forget()
    assert not overlaps(third + 128, first, second)
    found = [overlaps(third, first, 0x100000 + 256 * n) for n in range(40)]
    assert found.count(False) == 1  # after more ranges than are told apart
