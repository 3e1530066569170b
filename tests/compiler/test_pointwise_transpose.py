"""Pointwise kernels with transposed operands, through shared memory, on an emulated GPU."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.plan import clear_plans
from numus.runtime import devices

simt_machine.install()

TARGET = dataclasses.replace(simt_machine.TARGET, shared_bytes=227 << 10)


@pytest.fixture(params=[64, 256])
def machine(request):
    """In large blocks, threads have so few elements that all are in flight before the barrier."""
    target = dataclasses.replace(TARGET, block_size=request.param)
    name = f"transpose{request.param}"
    devices.BACKENDS[name] = lambda index: simt_machine.Machine(target)
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
def test_transposes(name, machine):
    shape, dtype, f = CASES[name]
    x = (np.random.default_rng(0).standard_normal(shape) * 8).astype(dtype)
    got = f(nm.asarray(x, device=machine)).numpy()
    np.testing.assert_array_equal(got, f(x))
    made = [p.kernel for p in machine.runtime.programs.values()]
    (kernel,) = [k for k in made if k.name == "pointwise_transpose"]
    assert any(b.access == "scratch" for b in kernel.buffers)
