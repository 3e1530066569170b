"""Broadcast reductions: nested sums in registers, terms split between blocks."""

import dataclasses

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.fusion import nested
from numus.compiler.lower.loops import reduce_pairs, reduce_pairs_stored
from numus.compiler.plan import clear_plans
from numus.runtime import devices

devices.BACKENDS.setdefault("simt_pairs", lambda index: simt_machine.Machine(simt_machine.HOPPER))
rng = np.random.default_rng(0)


def draw(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


@pytest.fixture
def machine(monkeypatch):
    """A machine on which small problems are large."""
    monkeypatch.setattr(
        nested, "TUNING", dataclasses.replace(nested.TUNING, nested_min_results=1 << 10)
    )
    small = dataclasses.replace(reduce_pairs.TUNING, pair_min_elements=1 << 10, pair_threads=32)
    monkeypatch.setattr(reduce_pairs, "TUNING", small)
    monkeypatch.setattr(reduce_pairs_stored, "TUNING", small)
    clear_plans()
    found = nm.device("simt_pairs").runtime
    found.launched.clear()
    yield found
    clear_plans()


def run(machine, function, *arrays):
    """The result, and the names of the kernels."""
    xs = [nm.asarray(a, device="simt_pairs") for a in arrays]
    machine.launched.clear()
    out = nm.jit(function)(*xs)
    nm.eval(out)
    return out.numpy(), [program.name for program in machine.launched]


def forces(x):
    d = x[None, :, :] - x[:, None, :]
    square = (d * d).sum(-1) + 1e-3
    return (d / (square * square**0.5)[..., None]).sum(1)


def test_sums_of_kernel_functions(machine):
    x, y = draw(67, 3), draw(131, 3)
    got, names = run(
        machine, lambda x, y: nm.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2).sum(1), x, y
    )
    square = ((x[:, None].astype(np.float64) - y[None]) ** 2).sum(-1)
    np.testing.assert_allclose(got, np.exp(-square / 2).sum(1), rtol=1e-5)
    assert names[0] == "pair_reduction"
    assert set(names[1:]) <= {"combine_partials"}


@pytest.mark.parametrize("name", ["min", "argmin"])
def test_nearest(machine, name):
    x, y = draw(60, 3), draw(70, 3)
    y[40] = y[7]  # the first of equals
    x[3] = y[7]
    got, names = run(
        machine, lambda x, y: getattr(((x[:, None] - y[None]) ** 2).sum(-1), name)(1), x, y
    )
    want = getattr(((x[:, None] - y[None]) ** 2).sum(-1), name)(1)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert names[0] == "pair_reduction"


def test_forces_compute_each_distance_once(machine):
    x = draw(80, 3)
    got, names = run(machine, forces, x)
    np.testing.assert_allclose(got, forces(x.astype(np.float64)), rtol=1e-4, atol=1e-4)
    assert names[0] == "pair_reduction"
    text = machine.launched[0].text
    assert text.count("sqrt(") in (1, 2, 4)  # of each row of a thread, not of each axis


def test_batches_of_pairs(machine):
    x, y = draw(3, 80, 4), draw(3, 70, 4)

    def total(x, y):
        return abs(x[:, :, None] - y[:, None]).max(-1).mean(2)

    got, names = run(machine, total, x, y)
    np.testing.assert_allclose(got, total(x.astype(np.float64), y), rtol=1e-5)
    assert names[0] == "pair_reduction"


def test_gathered_rows_are_no_broadcast_reductions(machine):
    table, at = draw(50, 100), rng.integers(0, 50, 64)
    sums, names = run(machine, lambda t, i: t[i].sum(1), table, at)
    np.testing.assert_allclose(sums, table[at].sum(1), rtol=1e-4, atol=1e-5)
    assert "pair_reduction" not in names


def test_matrices_of_pairs(machine):
    x, y = draw(35, 5), draw(41, 5)
    got, names = run(machine, lambda x, y: nm.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2), x, y)
    square = ((x[:, None].astype(np.float64) - y[None]) ** 2).sum(-1)
    np.testing.assert_allclose(got, np.exp(-square / 2), rtol=1e-5)
    assert names == ["pair_matrix"]


@pytest.mark.parametrize("columns", [32, 45, 130])
def test_small_matrices_of_pairs_take_few_threads(machine, monkeypatch, columns):
    wide = dataclasses.replace(reduce_pairs_stored.TUNING, pair_threads=128)
    monkeypatch.setattr(reduce_pairs_stored, "TUNING", wide)
    x, y = draw(3, 33, 4), draw(3, columns, 4)
    got, names = run(machine, lambda x, y: (x[:, :, None] * y[:, None]).sum(-1), x, y)
    np.testing.assert_allclose(got, x @ y.swapaxes(1, 2), rtol=1e-4, atol=1e-5)
    assert names == ["pair_matrix"]
    assert machine.launched[0].kernel.block_size == {32: 32, 45: 64, 130: 128}[columns]
