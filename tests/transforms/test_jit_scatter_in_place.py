"""Elements written by index inside nm.jit: a tensor that nobody else reads keeps its memory."""

import numpy as np
import pytest

import numus as nm

pytestmark = pytest.mark.on_cpu("memory is reused there")


def address(x):
    return x._node.view.storage.memory.address


def cache_and_step(read=None):
    """A cache (heads, slots, size) and a program that writes rows of it."""
    cache = nm.zeros((3, 700, 16))
    nm.eval(cache)

    @nm.jit
    def step(rows, slots):
        old = None if read is None else read(cache)
        cache[:, slots] = rows
        return cache[:, :8].sum() if old is None else (old, cache[:, :8].sum())

    return cache, step


def test_memory_stays_and_values_are_written():
    cache, step = cache_and_step()
    wanted = np.zeros(cache.shape, np.float32)
    places = []
    for number in range(6):
        slots = np.array([number, 2 * number + 1], np.int32)
        rows = np.full((3, 2, 16), number + 1.0, np.float32)
        wanted[:, slots] = rows
        total = step(nm.asarray(rows), nm.asarray(slots))
        assert total.item() == wanted[:, :8].sum()
        places.append(address(cache))
    assert np.array_equal(cache.numpy(), wanted)
    assert len(set(places[1:])) == 1


def test_others_keep_what_they_had():
    cache, step = cache_and_step()
    slot, ones = nm.asarray(np.array([5], np.int32)), nm.ones((3, 1, 16))
    step(ones, slot)
    before = cache.clone()
    step(ones * 2, slot)
    assert (before.numpy()[:, 5] == 1).all()
    assert (cache.numpy()[:, 5] == 2).all()


def test_old_values_are_read_before_they_are_replaced():
    _, step = cache_and_step(lambda cache: (cache * cache).sum(axis=0))
    slot = nm.asarray(np.array([5], np.int32))
    for number in range(1, 5):
        old, new = step(nm.full((3, 1, 16), float(number)), slot)
        assert old.numpy()[5].tolist() == [3.0 * (number - 1) ** 2] * 16
        assert new.item() == 48 * number
