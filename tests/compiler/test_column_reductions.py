"""Column reductions of several stages on an emulated GPU: one kernel, or several."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices

RNG = np.random.default_rng(5)


@pytest.fixture(scope="module", autouse=True)
def machine():
    target = replace(simt_machine.HOPPER, forward_progress=True)
    devices.BACKENDS["columns"] = lambda index: simt_machine.Machine(target)
    return nm.device("columns").runtime


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def kernels(machine, function, x):
    """The names of the kernels, and the result."""
    t = nm.asarray(x, device="columns")
    nm.eval(t)
    machine.launched.clear()
    found = function(t).numpy()
    return [p.name for p in machine.launched], found


def test_long_columns_are_reduced_first(machine):
    x = RNG.standard_normal((700, 100)).astype(np.float32)
    names, found = kernels(machine, lambda x: nm.softmax(x, axis=0), x)
    assert names == [*["split_reduction", "combine_partials"] * 2, "pointwise"]
    np.testing.assert_allclose(found, softmax(x, 0), rtol=2e-5)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_first_of_equal_elements_is_found_whichever_thread_met_it(name):
    """Threads combine every n-th split of a column; ties go to the first row."""
    target = replace(simt_machine.HOPPER, forward_progress=True, num_cores=132)
    devices.BACKENDS["many_cores"] = lambda index: simt_machine.Machine(target)
    x = RNG.integers(0, 3, (5000, 20)).astype(np.float16)
    x[:40] = 1
    found = getattr(nm, name)(nm.asarray(x, device="many_cores"), axis=0).numpy()
    np.testing.assert_array_equal(found, getattr(np, name)(x, axis=0))


def normalised(x):
    return (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)


def test_normalisation_ends_pointwise(machine):
    x = (RNG.standard_normal((3, 300, 80)) + 4).astype(np.float32)
    names, found = kernels(machine, normalised, x)
    assert len(names) > 1
    assert names[-1] == "pointwise"
    np.testing.assert_allclose(found, normalised(x.astype(np.float64)), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(60, 1200), (100, 600), (70, 2100)])
def test_short_few_or_many_columns_are_one_kernel(shape, machine):
    x = RNG.standard_normal(shape).astype(np.float32)
    names, found = kernels(machine, lambda x: nm.softmax(x, axis=0), x)
    assert len(names) == 1
    np.testing.assert_allclose(found, softmax(x, 0), rtol=2e-5)


@pytest.mark.slow
def test_transposed_rows_are_one_kernel(machine):
    x = RNG.standard_normal((100, 700)).astype(np.float32)
    for function in (
        lambda x: nm.softmax(x.T, axis=0),
        lambda x: nm.softmax((x * 2).T + 1, axis=0).T,
    ):
        names, _ = kernels(machine, function, x)
        assert len(names) == 1
    transposed = nm.asarray(x, device="columns").T
    nm.eval(transposed)
    machine.launched.clear()
    nm.eval(nm.softmax(transposed, axis=0))
    assert len(machine.launched) == 1


@pytest.mark.parametrize(("rows", "stored"), [(2000, True), (4096, False)])
def test_exponentials_of_large_columns_are_computed_again(rows, stored):
    """Where a CPU's caches do not hold them, memory takes longer than a second exponential."""
    given = np.random.default_rng(0).standard_normal((rows, 1024), dtype=np.float32)
    x = nm.asarray(given, device="cpu")
    kernels = str(nm.explain(lambda x: nm.softmax(x, axis=0), x)).splitlines()
    assert ("exp" in kernels[-1]) is not stored
    if not stored:
        wide = np.exp(np.float64(x.numpy()))
        np.testing.assert_allclose(nm.softmax(x, axis=0).numpy(), wide / wide.sum(0), rtol=2e-6)
