"""Rendered GPU kernels on host threads (`simt_threads`), against the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_threads

import numus as nm
from numus.compiler import plan as plans
from numus.compiler.lower.loops import reduce_rows_registers
from numus.runtime import devices


@pytest.fixture(scope="module")
def machine():
    made = simt_threads.Machine()
    devices.BACKENDS["blocks"] = lambda index: made
    return nm.device("blocks").runtime


def gradients(x, w, b, g):
    return nm.concat([y.reshape(-1) for y in nm.vjp(nm.layer_norm, x, w, b)[1](g)])


CASES = {
    "full rows": (nm.layer_norm, [(3, 256), (256,), (256,)]),
    "partial rows": (nm.layer_norm, [(3, 300), (300,), (300,)]),
    "odd rows": (nm.layer_norm, [(2, 333), (333,), (333,)]),
    "shifted rows": (
        lambda x, w, b: nm.layer_norm(x[:, 1:257], w, b),
        [(2, 260), (256,), (256,)],
    ),
    "rows of several warps": (lambda x: nm.softmax(x, axis=-1), [(2, 1000)]),
    "rows of a packed block": (lambda x: x.sum(axis=-1), [(257, 300)]),
    "gradients": (gradients, [(4, 300), (300,), (300,), (4, 300)]),
    "a map": (lambda x: nm.gelu(x * 2 + 1), [(3000,)]),
    "broadcast rows": (lambda x, b: nm.tanh(x + b), [(2, 4096), (4096,)]),
    "an unaligned map": (lambda x: nm.sigmoid(x[1:]), [(1001,)]),
    "short rows in vectors": (
        lambda x, b: nm.permute_dims(x, (0, 2, 1, 3)) * 2 + b,
        [(3, 17, 5, 24), (5, 1, 24)],
    ),
    "short rows in full blocks": (lambda x: nm.permute_dims(x, (1, 0, 2)) - 1, [(4, 16, 64)]),
    "unaligned short rows": (lambda x: x[::2, 1:25] * 2 + 1, [(99, 32)]),
    "rsqrt": (lambda x: nm.rsqrt(nm.abs(x) * 1e-30), [(500,)]),
    "column sums": (lambda x: x.sum(axis=0), [(100, 1024)]),
    "short middle axes": (lambda x: nm.softmax(x, axis=1) + x.max(axis=1)[:, None], [(70, 5, 4)]),
    "small matrices": (lambda x, y: x @ y + 1, [(90, 3, 3), (90, 3, 3)]),
    "column variance": (lambda x: x.var(axis=0) + x.mean(axis=0), [(300, 520)]),
    "narrow column variance": (lambda x: x.var(axis=0), [(2048, 3)]),
    "row variance": (lambda x: x.var(axis=1), [(2, 40_000)]),
}


SLOW = {"rows of a packed block", "row variance"}  # thousands of threads, one by one


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_as_rendered(name, machine):
    function, shapes = CASES[name]
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    machine.rendered.clear()
    got = function(*(nm.asarray(x, device="blocks") for x in given)).numpy()
    want = function(*map(nm.asarray, given)).numpy()
    assert machine.rendered
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * np.abs(want).max())
    if "packed" in name:
        assert machine.rendered[0].packed_blocks > 1


SHARED_MEMORY = {
    "a column scan": (lambda x: nm.cumsum(x, axis=0, dtype=nm.int32), (40, 33), "scan_sum"),
    "a split column scan": (
        *(lambda x: nm.cumsum(x, axis=0, dtype=nm.int32), (170, 32)),
        "scan_sum_totals",
    ),
    "a row scan": (lambda x: nm.cumsum(x, axis=1, dtype=nm.int32), (3, 77), "scan_sum"),
    "a sub-warp row scan": (
        *(lambda x: nm.cumsum(x, axis=1, dtype=nm.int32), (90, 36)),
        "scan_sum_subwarp",
    ),
    "top k": (lambda x: nm.topk(x, 9).indices, (1, 2100), "topk"),
    "a batched transpose": (
        lambda x: nm.copy(x.swapaxes(1, 2)),
        (2, 64, 70),
        "pointwise_transpose",
    ),
}


@pytest.mark.parametrize("name", SHARED_MEMORY)
def test_shared_memory(name, machine, monkeypatch):
    function, shape, kind = SHARED_MEMORY[name]
    target = replace(machine.target, forward_progress=True, num_cores=2)
    monkeypatch.setattr(machine, "target", target)
    monkeypatch.setattr(machine, "with_scratch", True)
    x = np.random.default_rng(0).integers(-40, 40, shape).astype(np.int32)
    machine.rendered.clear()
    plans.clear_plans()
    got = function(nm.asarray(x, device="blocks")).numpy()
    assert kind in {k.name for k in machine.rendered}
    np.testing.assert_array_equal(got, function(nm.asarray(x)).numpy())


CLUSTER = {
    "sums": lambda x: nm.softmax(x, axis=-1),
    "means": lambda x: nm.layer_norm(x, x[0], x[1]),
    "argmax": lambda x: nm.argmax(x - nm.mean(x, axis=1, keepdims=True), axis=1),
    "doubles": lambda x: nm.softmax(x.astype(nm.float64), axis=-1),
    "any": lambda x: nm.where(nm.any(x > 2.8, axis=1, keepdims=True), x, -x),
}


@pytest.mark.parametrize("length", [1024, 1001])
@pytest.mark.parametrize(("blocks", "threads", "flags"), [(2, 32, False), (4, 64, True)])
@pytest.mark.parametrize("name", CLUSTER)
def test_rows_of_several_ctas(name, blocks, threads, flags, length, machine, monkeypatch):
    """Through distributed shared memory of a cluster, and through flags."""
    size = 1 if flags else 8
    target = replace(machine.target, forward_progress=True, num_cores=8, max_cluster_size=size)
    monkeypatch.setattr(machine, "target", target)
    tilings = reduce_rows_registers.register_tilings

    def one_tiling(problem, ctas=1):
        found = tilings(problem, ctas)
        return [tiling for tiling in found if (ctas, tiling.threads) == (blocks, threads)]

    monkeypatch.setattr(reduce_rows_registers, "register_tilings", one_tiling)
    x = np.random.default_rng(0).standard_normal((3, length)).astype(np.float32)
    machine.rendered.clear()
    plans.clear_plans()
    got = CLUSTER[name](nm.asarray(x, device="blocks")).numpy()
    (kernel,) = (k for k in machine.rendered if k.cluster_size > 1)
    assert (kernel.cluster_size, kernel.block_size) == (blocks, blocks * threads)
    assert (kernel.flags is not None) == flags
    want = CLUSTER[name](nm.asarray(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * np.abs(want).max())
    plans.clear_plans()
