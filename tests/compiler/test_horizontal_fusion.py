"""Independent small kernels that share a launch, and prefetches before a dependent launch."""

import dataclasses

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir
from numus.codegen.nvptx import renderer
from numus.compiler.schedule import horizontal
from numus.errors import CompileError
from numus.ir.early_loads import buffers_before_wait
from numus.runtime import devices


@pytest.fixture(scope="module")
def machine():
    devices.BACKENDS["joining"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
    return nm.device("joining").runtime


def test_projections_of_one_vector_share_a_launch(machine):
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(s).astype(np.float32) for s in ((1, 64), (96, 64), (7, 64), (96, 64))
    ]

    def projections(x, *weights):
        scaled = x / nm.sqrt((x * x).mean(axis=-1, keepdims=True))
        return [scaled @ w.T for w in weights]

    want = projections(*map(nm.asarray, arrays))
    given = [nm.asarray(a, device="joining") for a in arrays]
    nm.eval(*given)
    machine.launched.clear()
    got = nm.jit(projections)(*given)
    nm.eval(*got)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-5, atol=2e-5)
    blocks = [p.kernel.body[0].var.attr for p in machine.launched]
    assert blocks.count("joint_block") == 1
    assert len(blocks) == 3


def test_one_more_block_is_resident_where_many_would_load_late():
    target = dataclasses.replace(simt_machine.HOPPER, num_cores=8)
    devices.BACKENDS["joining_five"] = lambda index: simt_machine.Machine(target)
    rng = np.random.default_rng(4)

    def resident(*rows):
        """Of the kernel of products with matrices of so many rows, of which a block has four."""
        shapes = ((1, 256), *((n, 256) for n in rows))
        given = [nm.asarray(rng.random(s), "float32", device="joining_five") for s in shapes]
        nm.eval(*given)
        launched = nm.device("joining_five").runtime.launched
        launched.clear()
        got = nm.jit(lambda x, *ws: tuple(x @ w.T for w in ws))(*given)
        nm.eval(*got)
        (program,) = launched
        for y, w in zip(got, given[1:], strict=True):
            np.testing.assert_allclose(y.numpy(), given[0].numpy() @ w.numpy().T, rtol=1e-5)
        return program.kernel.resident_blocks

    assert resident(96, 64) == 5  # 8 blocks more than four of each multiprocessor
    assert resident(64, 64, 65) == 0  # as many as begin at once, and one
    assert resident(64, 68) == 0  # one more
    assert resident(128, 64) == 0  # too many for five


def test_packed_blocks_are_not_joined_with_blocks_that_share_memory():
    """Packed blocks of a warp are one CTA: they would overwrite each other's shared memory."""
    target = dataclasses.replace(simt_machine.HOPPER, num_cores=132)
    devices.BACKENDS["joining_packed"] = lambda index: simt_machine.Machine(target)
    rng = np.random.default_rng(2)
    shapes = ((26, 10, 16), (26, 2, 16), (26, 10, 1, 16))
    arrays = [rng.integers(-4, 5, s).astype(np.float32) for s in shapes]

    def rows_and_a_scan(x, rows, y):
        return nm.index_add(x, 1, [2, 5], rows), nm.cumsum(y, axis=2)

    want = [x.numpy() for x in rows_and_a_scan(*map(nm.asarray, arrays))]
    given = [nm.asarray(a, device="joining_packed") for a in arrays]
    nm.eval(*given)
    launched = nm.device("joining_packed").runtime.launched
    launched.clear()
    got = nm.jit(rows_and_a_scan)(*given)
    nm.eval(*got)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x.numpy(), y)
    kernels = {p.kernel.name: p.kernel for p in launched}
    packed, scan = kernels["scatter_add"], kernels["scan_sum"]
    assert packed.packed_blocks > 1
    assert packed.block_size == scan.block_size == 32
    with pytest.raises(CompileError, match="packed blocks"):
        renderer.render(horizontal._joined([packed, scan]), renderer.NvptxTarget(90))


def test_large_inputs_are_prefetched_before_the_wait(machine):
    x, w = nm.ones((1, 1024), device="joining"), nm.ones((40, 1024), device="joining")
    nm.eval(x, w)
    machine.launched.clear()
    y = x @ w.T
    assert y.numpy().tolist() == [[1024.0] * 40]
    (program,) = machine.launched
    found = [type(s) for s in ir.statements(program.kernel.body)]
    wait = found.index(ir.DependencyWait)
    assert ir.Prefetch in found[:wait]
    assert ir.Set not in found[:wait]


def test_kernels_that_wait_for_flags_can_be_joined():
    target = dataclasses.replace(simt_machine.HOPPER, forward_progress=True)
    devices.BACKENDS["joining_in_order"] = lambda index: simt_machine.Machine(target)
    machine = nm.device("joining_in_order").runtime
    x = nm.asarray(np.arange(9000, dtype=np.int32), device="joining_in_order")
    nm.eval(nm.argsort(x))
    kernels = [p.kernel for p in machine.launched]
    (waits, *_) = [
        k for k in kernels if any(isinstance(s, ir.SpinWait) for s in ir.statements(k.body))
    ]
    joined = horizontal._joined([waits, waits])
    assert renderer.render(joined, renderer.NvptxTarget(90))  # with variables of its own


def test_small_kernels_join_a_product_beyond_the_share_of_the_cache(machine, monkeypatch):
    """A large product with one vector and the write to a cache of the same wave are one launch."""
    rng = np.random.default_rng(1)
    shapes = ((1, 128), (128, 128), (256, 128), (8200, 1))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    monkeypatch.setattr(horizontal, "TUNING", dataclasses.replace(horizontal.TUNING, l2_divisor=1))
    target = dataclasses.replace(simt_machine.HOPPER, l2_bytes=1 << 17)
    devices.BACKENDS["joining_large"] = lambda index: simt_machine.Machine(target)
    found = []
    for device in ("joining_large", "cpu"):
        x, v, w, cache = (nm.asarray(a, device=device) for a in arrays)
        nm.eval(x, v, w, cache)

        @nm.jit
        def step(x, slot, v=v, w=w, cache=cache):
            cache[slot] = 3.0
            return (x @ v.T) @ w.T

        found.append([step(x, nm.asarray([7], device=device)).numpy(), cache.numpy()])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    launched = nm.device("joining_large").runtime.launched
    assert [p.kernel.body[0].var.attr for p in launched].count("joint_block") == 1


def test_joined_kernels_tell_what_they_load_early(machine):
    """Each has a wait of its own, ahead of which it may load."""

    def kernel(name, *body):
        block = ir.var("b")
        loop = ir.For(block, ir.const(0), ir.const(1), "grid", list(body))
        return ir.Kernel(name, (), (), [loop], block_size=128)

    given = ir.Buffer("given", nm.float32, "read", ir.const(8))
    first = kernel("waits", ir.DependencyWait())
    early = ir.Let(ir.var("x", nm.float32), ir.load(given, ir.const(0)))
    later = ir.Let(ir.var("y", nm.float32), ir.load(given, ir.const(1)))
    second = kernel("loads", early, ir.DependencyWait(loads_before=True), later)
    second = dataclasses.replace(second, buffers=(given,))
    for together in ([first, second], [second, first]):
        joined = horizontal._joined(together)
        assert buffers_before_wait(joined) == set(joined.buffers)
    assert not buffers_before_wait(first)
