"""Scatters by sorted updates on an interpreted GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.functions._base import wrap
from numus.primitives.indexing import scatter
from numus.runtime import devices


@pytest.fixture(scope="module", autouse=True)
def machine():
    devices.BACKENDS["scattering"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
    return nm.device("scattering").runtime


def on(device, array):
    return nm.asarray(array, device=device)


def scattered(base, index, updates, mode):
    return wrap(scatter(base._node, (index._node,), updates._node, (0,), mode))


@pytest.mark.parametrize("columns", [31, 32, 33, 130, 256, 768])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "complex64"])
def test_rows_are_added_to(columns, dtype):
    rng = np.random.default_rng(columns)
    index = rng.integers(-1, 12, (4, 16))  # some of them twice, others outside
    updates = rng.integers(-9, 9, (4, 16, columns)).astype(np.float32)

    def added(device):
        base = on(device, np.ones((12, columns), np.float32)).astype(dtype)
        return scattered(base, on(device, index), on(device, updates).astype(dtype), "add")

    ours = added("scattering").astype("complex64").numpy()
    np.testing.assert_array_equal(ours, added("cpu").astype("complex64").numpy())


@pytest.mark.parametrize("mode", ["set", "mul", "min", "max"])
@pytest.mark.parametrize(("places", "columns"), [(3, (36,)), (66_000, ())])
def test_other_modes_and_many_destinations(mode, places, columns):
    rng = np.random.default_rng(0)
    index, updates = rng.integers(0, places, 90), rng.random((90, *columns)).astype(np.float32)

    def updated(device):
        base = on(device, np.full((places, *columns), 0.5, np.float32))
        return scattered(base, on(device, index), on(device, updates), mode).numpy()

    np.testing.assert_array_equal(updated("scattering"), updated("cpu"))


def test_updates_of_other_strides():
    rng = np.random.default_rng(1)
    index, updates = rng.integers(0, 5, (6, 7)), rng.random((7, 6, 40)).astype(np.float32)

    def added(device):
        transposed = on(device, updates).swapaxes(0, 1)
        base = nm.zeros((5, 40), device=device)
        return scattered(base, on(device, index), transposed, "add").numpy()

    np.testing.assert_allclose(added("scattering"), added("cpu"), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 1), (1, 3, 1), (3, 1, 2), (1, 1), (4, 1, 1), (5, 1, 3)])
@pytest.mark.parametrize("columns", [(), (40,)])
def test_indices_along_axes_of_one(shape, columns):
    """Axes of extent 1 anywhere in the index shape."""
    index = np.zeros(shape, np.int64)
    updates = np.arange(1.0, index.size * int(np.prod(columns)) + 1).reshape(*shape, *columns)

    def added(device):
        base = nm.zeros((1, *columns), dtype="float64", device=device)
        return scattered(base, on(device, index), on(device, updates), "add").numpy()

    np.testing.assert_array_equal(added("scattering"), added("cpu"))


@pytest.mark.parametrize("mode", ["set", "add", "max"])
@pytest.mark.parametrize("columns", [(), (40,), (128,)])
def test_few_updates_are_compared(mode, columns):
    index = np.array([3, 1, 3, -1, 9, 0])  # one of them twice, two outside
    updates = np.arange(1.0, 6 * int(np.prod(columns)) + 1).reshape(6, *columns)

    def updated(device):
        base = nm.ones((5, *columns), dtype="float32", device=device)
        values = on(device, updates.astype(np.float32))
        return scattered(base, on(device, index), values, mode).numpy()

    np.testing.assert_array_equal(updated("scattering"), updated("cpu"))


@pytest.mark.parametrize("mode", ["set", "add", "max"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_few_updates_are_written_to_a_copy(mode, dtype):
    if (mode, dtype) == ("max", "complex64"):
        return
    rng = np.random.default_rng(2)
    index = np.array([5, 5, -40, 2, 5, 300, 2])  # repeated, and outside
    updates = rng.integers(-9, 9, (7, 33)).astype(np.float32)

    def updated(device):
        base = on(device, np.ones((260, 33), np.float32)).astype(dtype)
        new = scattered(base, on(device, index), on(device, updates).astype(dtype), mode)
        return new.astype("complex64").numpy(), base.astype("complex64").numpy()

    for ours, theirs in zip(updated("scattering"), updated("cpu"), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_cache_is_updated_in_place(machine):
    cache = nm.zeros((2, 300, 16), device="scattering")
    nm.eval(cache)

    @nm.jit
    def step(new, at):
        cache[:, at] = new
        return cache.sum(axis=1)

    for n in range(4):
        memory = cache._node.view.storage.memory.address
        machine.launched.clear()
        total = step(
            on("scattering", np.full((2, 1, 16), n + 1.0)), on("scattering", np.array([n]))
        )
        np.testing.assert_array_equal(total.numpy(), np.full((2, 16), (n + 1) * (n + 2) / 2))
    names = [program.name for program in machine.launched]
    assert "scatter_set" in names
    assert "pointwise" not in names
    assert cache._node.view.storage.memory.address == memory


def test_destinations_of_many_updates_are_combined_in_chunks(machine):
    """Some destinations have more updates than a chunk, others none; some updates are outside."""
    rng = np.random.default_rng(2)
    index = np.where(rng.random(250) < 0.8, rng.choice([2, 5], 250), rng.integers(-1, 12, 250))
    updates = rng.integers(-9, 9, (250, 36)).astype(np.float32)

    def updated(device):
        base = nm.ones((12, 36), device=device)
        return scattered(base, on(device, index), on(device, updates), "add").numpy()

    machine.launched.clear()
    ours = updated("scattering")
    assert "scatter_chunks" in [p.name for p in machine.launched]
    np.testing.assert_array_equal(ours, updated("cpu"))


def test_updated_copies_scatter_rows():
    x, i = nm.zeros((5, 40)), nm.asarray([1, 1, 3])
    node = x.at[i].add(nm.ones((3, 40)))._node
    assert node.prim.name == "scatter"
    assert [n.shape for n in node.inputs] == [(5, 40), (3, 40), (3,)]
