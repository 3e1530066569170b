"""On CPUs, lanes across rows prefetch the lines that they store to, where these are far apart;
lanes along results prefetch those ahead, where that pays off."""

from dataclasses import replace

import numpy as np
import pytest

import numus as nm
from numus import ir
from numus.codegen.cpu.renderer import render
from numus.codegen.cpu.target import LlvmTarget, host
from numus.compiler import hooks
from numus.compiler import plan as plans
from numus.runtime.cpu.runtime import CpuRuntime
from numus.runtime.devices import Device


@pytest.fixture
def cpu():
    """CPUs that prefetch results along lanes, or do not."""
    made = {}
    for prefetches_results in (False, True):
        device = Device("cpu", 8 + prefetches_results)
        device._runtime = runtime = CpuRuntime()
        runtime.target = replace(runtime.target, prefetches_results=prefetches_results)
        made[prefetches_results] = device
    yield made
    plans.clear_plans()  # they hold the other runtimes


def prefetches(function):
    """Prefetches of the kernels that evaluating a result takes, and the result."""
    found = []

    def watch(device, plan, leaves, constants):
        for step in plan.steps:
            found.extend(s for s in ir.statements(step.kernel.body) if isinstance(s, ir.Prefetch))

    hooks.before_run.append(watch)
    try:
        y = function().numpy()
    finally:
        hooks.before_run.remove(watch)
    return found, y


@pytest.mark.parametrize(
    ("shape", "far"), [((103, 777), True), ((333, 518), True), ((1003, 70), False)]
)
def test_softmax_of_columns(shape, far, cpu):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found, y = prefetches(lambda: nm.softmax(nm.asarray(x, device=cpu[False]), axis=0))
    assert all(s.write for s in found)
    assert bool(found) == far
    e = np.exp(x.astype(np.float64) - x.max(0))
    np.testing.assert_allclose(y, e / e.sum(0), rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 - 1,
        lambda x: x[:, 1:] - x[:, :-1],
        lambda x: nm.softmax(x),
        lambda x: nm.softmax(nm.repeat(x, 200, axis=0), axis=0),
        lambda x: x * (1 + 2j),
    ],
    ids=["line", "rows", "softmax", "columns", "complex"],
)
def test_results_along_lanes(function, cpu):
    """Prefetches ahead of results, past their end as well, change no bits."""
    x = np.random.default_rng(0).standard_normal((301, 67)).astype(np.float32)
    none, plain = prefetches(lambda: function(nm.asarray(x, device=cpu[False])))
    found, y = prefetches(lambda: function(nm.asarray(x, device=cpu[True])))
    assert all(s.write and s.lanes for s in found)
    assert found
    assert not none
    np.testing.assert_array_equal(y, plain)


def test_results_that_are_prefetched_are_not_stored_around_the_caches(cpu):
    kernels = []
    hooks.before_run.append(lambda device, plan, *_: kernels.extend(s.kernel for s in plan.steps))
    try:
        for k in (False, True):
            nm.eval(nm.ones(1 << 15, device=cpu[k]) * 2)
    finally:
        hooks.before_run.pop()
    texts = [render(kernel, host()) for kernel in kernels]
    assert [text.count("llvm.prefetch.p0(ptr %") > 0 for text in texts] == [False, True]
    if host().arch == "x86":
        assert ["!nontemporal !" in text for text in texts] == [True, False]


def test_cpus_that_prefetch_results():
    x86 = [LlvmTarget("x86_64-unknown-linux-gnu", c, "") for c in ("cascadelake", "emeraldrapids")]
    assert [target.prefetches_results for target in x86] == [True, False]
