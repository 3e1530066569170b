"""Maps that cross memory, on groups of threads: tiles are turned in the group's own memory."""

import dataclasses

import group_machine
import ml_dtypes
import numpy as np
import pytest

import numus as nm
from numus.compiler.program import clear_plans
from numus.runtime import devices

group_machine.install()

FACTS = dataclasses.replace(group_machine.FACTS, group_memory=227 << 10)


@pytest.fixture(params=[64, 256])
def machine(request):
    """In large groups, threads have so few elements that all are under way before they meet."""
    facts = dataclasses.replace(FACTS, group=request.param)
    name = f"turning{request.param}"
    devices.STARTS[name] = lambda index: group_machine.Machine(facts)
    runtime = nm.device(name).runtime
    runtime.programs.clear()  # what one test makes is no other's
    clear_plans()
    return nm.device(name)


CASES = {
    "odd number of tiles": ((130, 130), "f4", lambda x: x + x.T),
    "even number of tiles": ((200, 200), "f4", lambda x: x + x.T),
    "whole tiles": ((128, 128), "f4", lambda x: x * 2 - x.T),
    "more columns": ((70, 150), "f4", lambda x: x.T * 2 + 1),
    "two bytes": ((140, 140), ml_dtypes.bfloat16, lambda x: x - x.T),
    "integers": ((66, 129), "i8", lambda x: x.T + 1),
    "batches": ((2, 70, 66), "f4", lambda x: x.swapaxes(1, 2) * 2 + 1),
    "batches of batches": ((2, 3, 70, 5, 64), "f4", lambda x: x.swapaxes(2, 4) - 1),
    "backwards": ((96, 100), "f4", lambda x: x.T[::-1] + x.T),
}


@pytest.mark.parametrize("name", CASES)
def test_turned_maps(name, machine):
    shape, dtype, f = CASES[name]
    x = (np.random.default_rng(0).standard_normal(shape) * 8).astype(dtype)
    got = f(nm.asarray(x, device=machine)).numpy()
    np.testing.assert_array_equal(got, f(x))
    made = [p.kernel for p in machine.runtime.programs.values()]
    (kernel,) = [k for k in made if k.name == "tiled_map"]
    assert any(b.access == "scratch" for b in kernel.buffers)


@pytest.mark.parametrize(
    "device", ["lockstep8", *(["webgpu"] if group_machine.has_software_adapter() else [])]
)
def test_lanes_turn_runs_among_themselves(device):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 72, 40)).astype(np.float32)
    square, w = rng.standard_normal((80, 80)).astype(np.float32), np.arange(72, dtype=np.int32)
    a, b, c = (nm.asarray(t).to(device) for t in (x, square, w))
    turned = np.swapaxes(x, 1, 2)
    np.testing.assert_array_equal(a.mT.copy().numpy(), turned)
    np.testing.assert_array_equal((b + b.T).numpy(), square + square.T)
    got = nm.where(c > 30, a.mT * 2, c.astype(nm.float32)).numpy()
    np.testing.assert_array_equal(got, np.where(w > 30, turned * np.float32(2), w))
    got = nm.permute_dims(a, (2, 0, 1)).copy().numpy()
    np.testing.assert_array_equal(got, x.transpose(2, 0, 1))
    if device != "webgpu":
        assert nm.device(device).runtime.launched[-1].name == "turned_map"
    for part in (np.s_[:, 1:], np.s_[:, :, 3:], np.s_[:, ::-1]):
        np.testing.assert_array_equal(a[part].mT.copy().numpy(), np.swapaxes(x[part], 1, 2))
