"""The memory plan: offsets of temporaries, and the peak."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler import plan as plan_module
from numus.compiler.hooks import before_run
from numus.compiler.schedule.memory_plan import aligned
from numus.compiler.schedule.tuning import TUNING
from numus.kernels.matmul.cpu import blocking
from numus.runtime.devices import BACKENDS
from numus.runtime.null import NullRuntime

NULL = nm.device("null")


def plan_of(function, *args):
    """The plan with the most kernels that a function runs."""
    found = []

    def watch(place, plan, leaves, constants):
        found.append(plan)

    before_run.append(watch)
    try:
        nm.eval(function(*args))
    finally:
        before_run.remove(watch)
    return max(found, key=lambda plan: len(plan.steps))


def given(*shape, device="null"):
    x = nm.zeros(shape, device=device)
    nm.eval(x)
    return x


def lives(plan):
    """The first and the last wave of each temporary."""
    found, steps = {}, iter(plan.steps)
    for wave, count in enumerate(plan.waves):
        for _ in range(count):
            for v in next(steps).buffers:
                if v in plan.offset:
                    found[v] = (found.get(v, (wave,))[0], wave)
    return found


def network(n=512):
    """The gradients of a small network; its layers' inputs are inlined where they are read."""
    x, ws = given(n, n), [given(n, n) for _ in range(4)]

    def loss(*ws):
        y = x
        for w in ws:
            y = nm.layer_norm(nm.gelu(y @ w)) + y
        return y.square().sum()

    return plan_of(lambda: nm.grad(loss, tuple(range(4)))(*ws))


def test_scratch_is_that_of_the_largest_kernel():
    x, ws = given(256, 256), [given(256, n) for n in (256, 192, 128)]
    plan = plan_of(lambda: [nm.tanh(x) @ w for w in ws])
    steps = iter(plan.steps)
    several = 0
    for (start, pitch), count in zip(plan.scratch, plan.waves, strict=True):
        needs = [sum(map(aligned, next(steps).scratch)) for _ in range(count)]
        assert pitch == max(needs)
        several += len([n for n in needs if n]) > 1
        assert start + NULL.runtime.target.num_cores * pitch <= plan.arena
    assert several  # waves in which more than one kernel has scratch memory


def test_scratch_overlaps_no_live_value():
    plan = network()
    workers = NULL.runtime.target.num_cores
    for wave, (start, pitch) in enumerate(plan.scratch):
        end = start + workers * pitch
        for v, (first, last) in lives(plan).items():
            if pitch and first <= wave <= last:
                at = plan.offset[v]
                assert at >= end or at + v.size * v.dtype.itemsize <= start


def test_packed_operands_reuse_dead_memory():
    plan = network()
    life = lives(plan)
    packed = [v for v in life if v.op == "packed"]
    assert packed
    places = {v: range(plan.offset[v], plan.offset[v] + v.size * v.dtype.itemsize) for v in life}
    later = [p for p in packed if any(end < life[p][0] for _, end in life.values())]
    assert len(later) >= 3
    for p in later:
        first, last = life[p]
        assert last - first <= TUNING.wave_lookback  # live only where they are read
        dead = [places[v] for v in life if life[v][1] < first]
        assert any(x.start < places[p].stop and places[p].start < x.stop for x in dead)


@pytest.mark.parametrize("device", ["null", "cpu"])
def test_parameters_are_updated_in_place_after_their_last_use(device):
    """The cotangent of a layer's input reads its weights after their gradient is computed."""
    n = 96
    x, ws = given(64, n, device=device), [given(n, n, device=device) for _ in range(4)]
    for w in ws:
        w.requires_grad_()

    @nm.jit
    def step():
        y = x
        for w in ws:
            y = nm.tanh(y @ w)
        y.sum().backward()
        with nm.no_grad():
            for w in ws:
                w.assign(w - 0.1 * w.grad)
                w.grad = None

    def addresses():
        nm.eval(ws)
        return [w._node.view.storage.memory.address for w in ws]

    step()
    before = addresses()
    for _ in range(2):
        step()
        assert addresses() == before


def test_updates_that_cannot_be_in_place_are_right():
    """A reader of the old value may need the new one."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((40, 40)).astype("f")
    w = nm.asarray(a)

    @nm.jit
    def step():
        old = w + 0
        w.assign(nm.tanh(w @ w))
        return (w @ old).sum(axis=0)

    for _ in range(3):
        found = step()
        new = np.tanh(a @ a)
        np.testing.assert_allclose(found.numpy(), (new @ a).sum(0), rtol=2e-3, atol=2e-4)
        np.testing.assert_allclose(w.numpy(), new, rtol=2e-3, atol=2e-4)
        a = new


# -- GEMMs -----------------------------------------------------------------------------------------


def test_a_sum_of_many_gemms_accumulates_in_place():
    """The gradient of weights used several times is one accumulator."""
    n, times = 256, 24
    x, w = given(32, n), given(n, n)

    def loss(w):
        y = x
        for _ in range(times):
            y = nm.tanh(y @ w)
        return y.sum()

    plan = plan_of(lambda: nm.grad(loss)(w))
    assert plan.arena < 4 * n * n * 4 + 2 * times * 32 * n * 4


def test_sums_of_gemms_are_right():
    rng = np.random.default_rng(5)
    sizes = (7, 30, 64, 3, 9)
    pairs = [(rng.standard_normal((40, k)), rng.standard_normal((k, 50))) for k in sizes]
    tensors = [(nm.asarray(a.astype("f")), nm.asarray(b.astype("f"))) for a, b in pairs]
    total = tensors[0][0] @ tensors[0][1]
    for a, b in tensors[1:]:
        total = total + a @ b
    twice = total * 2
    want = sum(a @ b for a, b in pairs)
    np.testing.assert_allclose(twice.numpy(), 2 * want, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(total.numpy(), want, rtol=1e-4, atol=1e-3)


def test_gemms_at_the_peak_pack_one_operand():
    """Unless the peak fits into the cache."""
    for n, low_memory in ((4096, True), (192, False)):
        x, y = given(n, 256), given(n, 256)
        plan = plan_of(lambda x, y: ((x * 2).T @ (y + 1)).sum(), x, y)
        (group,) = [g for g in plan.groups if g.kind == "contract"]
        assert group.low_memory == low_memory
        assert sum(step.kernel.name == "pack" for step in plan.steps) <= 1 + (not low_memory)


def test_low_memory_gemms_are_right(monkeypatch):
    usual = blocking.choose_blocking
    rng = np.random.default_rng(6)
    for m, k, n in ((700, 500, 300), (300, 500, 700), (513, 257, 511)):
        a, b = (rng.standard_normal(s).astype("f") for s in ((k, m), (k, n)))
        want = (a * 2.0).T @ (b + 1.0)
        for low_memory in (False, True):
            choose = lambda *a, f=low_memory: usual(*a[:-2], f, a[-1])
            monkeypatch.setattr(blocking, "choose_blocking", choose)
            found = nm.jit(lambda a, b: (a * 2).T @ (b + 1))(nm.asarray(a), nm.asarray(b))
            np.testing.assert_allclose(found.numpy(), want, rtol=1e-3, atol=1e-2)


class NullTarget(NullRuntime):
    """Another machine on which nothing runs."""

    def __init__(self, target):
        super().__init__()
        self.target = target


# -- rematerialisation ----------------------------------------------------------------------------


def blocks(depth, size=256, device="null"):
    """A step of training a stack of gelu layers, as a function of its data."""
    ws = [
        [given(*s, device=device).requires_grad_() for s in ((size, 4 * size), (4 * size, size))]
        for _ in range(depth)
    ]
    flat = [w for pair in ws for w in pair]

    def step(x):
        y = x
        for up, down in ws:
            y = y + nm.gelu(y @ up) @ down
        y.square().mean().backward()
        with nm.no_grad():
            for w in flat:
                w.assign(w - 0.1 * w.grad)
                w.grad = None

    return step


def rematerialised(plan):
    return [g for g in plan.group_of_step if g not in plan.groups]


def test_activations_are_rematerialised():
    """At the peak each layer but the last has left one large value, not two."""
    depth, size = 6, 256
    step, x = blocks(depth, size), given(256, size)
    plan = plan_of(nm.jit(step), x)
    large, small = 256 * 4 * size * 4, 256 * size * 4
    assert plan.arena < (depth + 3) * large + 2 * depth * small
    again = rematerialised(plan)
    assert 3 <= len(again) < depth
    assert {g.kind for g in again} == {"loop"}


def test_peaks_that_fit_into_the_cache_are_ignored():
    """Nothing is computed twice for a peak that fits into the cache."""
    plan = plan_of(nm.jit(blocks(6, 32)), given(32, 32))
    assert plan.arena < NULL.runtime.target.l2_bytes
    assert not rematerialised(plan)


@pytest.mark.slow
def test_gpus_recompute_for_large_temporaries_alone():
    """Within a part of the bytes that the step moves."""
    arenas, counts = [], []
    for memory in (8 << 20, 1 << 40, 0):
        target = replace(simt_machine.HOPPER, memory_bytes=memory)
        name = f"null_gpu_{memory}"
        BACKENDS[name] = lambda index, target=target: NullTarget(target)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan_module, "TUNING", replace(TUNING, remat_traffic_fraction=8))
            plan = plan_of(nm.jit(blocks(6, device=name)), given(256, 256, device=name))
        arenas.append(plan.arena)
        counts.append(len(rematerialised(plan)))
    assert arenas[0] < arenas[1] == arenas[2]
    assert counts[0] > 0 == counts[1] == counts[2]


@pytest.mark.on_cpu("what programs do where memory is short is chosen by its cache")
def test_rematerialised_values_have_the_same_bits():
    """The same step, with and without: the same bits."""
    results = []
    for fraction in (TUNING.remat_flops_fraction, 1 << 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan_module, "TUNING", replace(TUNING, remat_flops_fraction=fraction))
            rng = np.random.default_rng(0)
            shapes = [(192, 768), (768, 192)] * 3
            ws = [nm.asarray(rng.standard_normal(s).astype("f") / s[0] ** 0.5) for s in shapes]
            x = nm.asarray(rng.standard_normal((256, 192)).astype("f"))

            def loss(ws, x):
                y = x
                for up, down in zip(ws[::2], ws[1::2], strict=True):
                    y = y + nm.gelu(y @ up) @ down
                return y.square().mean()

            step = nm.jit(nm.grad(loss))
            plan = plan_of(step, ws, x)
            results.append((rematerialised(plan), [g.numpy() for g in step(ws, x)]))
    (again, found), (none, want) = results
    assert again
    assert not none
    for a, b in zip(found, want, strict=True):
        assert np.array_equal(a, b)
