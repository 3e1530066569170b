"""Graphs that a compiler is tempted to fuse wrongly."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import CPU, REFERENCE, check, sample

import numus as nm
from numus import dtypes as dt
from numus.compiler.plan import clear_plans
from numus.errors import OutOfMemoryError
from numus.evaluation.evaluate import evaluate, from_host, host_array
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.reduce import argmax, reduce_max
from numus.primitives.source import constant
from numus.primitives.structure import copy, transfer


@pytest.mark.parametrize("axis", [0, 1])
def test_a_value_kept_for_the_next_stage_is_kept_for_its_own_place(axis):
    def build(x):
        e = ew.exp(x)
        total = views.reshape(reduce_sum(e, (1,)), (32, 1))
        return ew.add(e, ew.div(views.flip(e, (axis,)), total))

    check(build, sample((32, 100), dt.float32))


def test_reductions_over_single_elements_beside_others():
    def build(x):
        rows = reduce_sum(x, (1,))
        return rows, reduce_sum(ew.mul(rows, rows), (1,)), reduce_max(rows, (0,)), argmax(x, 1)

    check(build, sample((5, 1, 7), dt.float32))
    check(lambda x: build(x)[1], sample((5, 1, 7), dt.float32))


def test_a_backward_slice_that_starts_at_a_multiple_of_an_extent():
    def build(x):
        flat = views.reshape(views.permute(x, (1, 0)), (6,))
        return copy(views.slice_(flat, (2,), (-1,), (3,)))

    check(build, sample((2, 3), dt.float32))


def test_a_shear_divided_by_a_negative_number():
    check(lambda x: views.shear(x, 0, 1, 5, 1, 0, -3, -1), sample((6, 4), dt.float32))


def start():
    x = from_host(np.arange(4, dtype=np.float32), dt.float32, CPU)
    return ew.add(x, x)


def there_and_back(x):
    return transfer(transfer(x, REFERENCE), CPU)


def test_transfers_below_what_is_evaluated():
    y = start()
    assert host_array(ew.add(y, there_and_back(y))).tolist() == [0, 4, 8, 12]
    y = start()
    assert host_array(ew.add(there_and_back(y), y)).tolist() == [0, 4, 8, 12]
    y = start()
    assert host_array(ew.add(ew.mul(y, y), there_and_back(y))).tolist() == [0, 6, 20, 42]


def test_a_value_and_its_transfer_together():
    for backwards in (False, True):
        y = start()
        z = transfer(y, REFERENCE)
        evaluate((z, y) if backwards else (y, z))
        assert host_array(y).tolist() == host_array(z).tolist() == [0, 2, 4, 6]


def test_each_device_computes_its_own_part():
    y = start()
    z = transfer(y, REFERENCE)
    assert host_array(ew.add(z, z)).tolist() == [0, 4, 8, 12]
    assert type(y.view.storage.memory) is type(CPU.runtime.allocate(1))
    assert host_array(ew.add(y, y)).tolist() == [0, 4, 8, 12]


def test_what_is_broadcast_takes_no_memory_of_its_own():
    row = broadcast(from_host(np.ones(1, np.int64), dt.int64, CPU), (3, 1 << 32))
    twice = reduce_max(ew.add(ew.add(row, row), row), (1,))  # 96 GiB, were it ever in memory
    assert twice.depth == 3
    assert twice.retained_bytes < 100


def test_complex_numbers_times_one():
    x = np.array([np.inf, 1j * np.inf, np.nan, 1 - 2j], np.complex64)
    check(lambda x: ew.mul(x, constant(1, dt.complex64)), x)
    check(lambda x: ew.mul(constant(1, dt.complex64), x), x)


def test_a_negative_zero_stays_negative():
    for number in (-0.0, np.float32(-0.0)):
        node = copy(constant(number, dt.float32))
        assert np.signbit(host_array(node))


def test_after_a_failure_all_is_as_before(monkeypatch):
    x = from_host(np.arange(6, dtype=np.float32), dt.float32, CPU)
    y = ew.sin(ew.add(x, x))
    z = reduce_sum(ew.mul(y, y), (0,))
    compile_all = CPU.runtime.compile_all
    calls = []

    def failing(kernels):
        calls.extend(kernels)
        raise OSError("no compiler today")

    clear_plans()
    monkeypatch.setattr(CPU.runtime, "compile_all", failing)
    with pytest.raises(OSError, match="today"):
        evaluate((y, z))
    assert calls
    assert y.view is None
    assert z.view is None
    monkeypatch.setattr(CPU.runtime, "compile_all", compile_all)
    evaluate((y, z))
    np.testing.assert_allclose(host_array(z), np.sum(np.sin(2 * np.arange(6)) ** 2), rtol=1e-6)


def test_what_does_not_fit_in_memory_is_an_error_and_no_more():
    x = from_host(np.ones(1, np.float32), dt.float32, CPU)
    small = ew.add(x, x)
    huge = ew.add(broadcast(small, (1 << 45,)), x)
    with pytest.raises(OutOfMemoryError):
        evaluate((small, huge))
    assert host_array(small).tolist() == [2]


def test_what_is_at_home_on_every_device_stays_so():
    numbers = ew.cos(broadcast(constant(2.0, dt.float32), (4,)))
    for place in (REFERENCE, CPU, REFERENCE):
        x = from_host(np.arange(4, dtype=np.float32), dt.float32, place)
        y = ew.mul(ew.add(x, numbers), numbers)
        np.testing.assert_allclose(host_array(y), (np.arange(4) + np.cos(2)) * np.cos(2), rtol=1e-6)
        assert numbers.device is None


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_what_follows_a_reduction_of_complex_numbers(dtype):
    z = (np.arange(6) + 1j * np.arange(6)[::-1]).astype(dtype).reshape(3, 2)
    for axis in (None, 0, 1):
        total = z.sum(axis=axis)
        found = nm.sum(nm.asarray(z), axis=axis)
        np.testing.assert_allclose(nm.abs(found).numpy(), np.abs(total), rtol=1e-6)
        np.testing.assert_allclose(nm.sign(found).numpy(), np.sign(total), rtol=1e-6)
    slope = nm.grad(lambda z: nm.abs(z.sum()) ** 2)(nm.asarray(z))
    np.testing.assert_allclose(slope.numpy(), np.full(z.shape, 2 * z.sum()), rtol=1e-5)
