"""The CPU's memory pool."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
from in_threads import in_threads

from numus.errors import OutOfMemoryError
from numus.runtime.cpu.memory import MemoryPool, wrap

MIB = 1 << 20
size_class = MemoryPool.size_class


def test_size_classes_waste_little():
    for n in [0, 1, 64, 65, 500, 513, 1000, 4097, 10**6, 10**9 + 7]:
        size = size_class(n)
        assert size >= max(n, 1)
        assert size % 64 == 0
        assert size <= max(n * 1.25 + 1, 512, n + 64)
    assert size_class(size_class(777777)) == size_class(777777)
    assert size_class(9 << 30) == 9 << 30
    assert size_class((9 << 30) + 1) == (9 << 30) + 64 * MIB


@pytest.mark.parametrize("n", [0, 1, 100, 5000, 200_000, 3 * MIB, 20 * MIB])
def test_blocks_are_aligned_and_reused(n):
    pool = MemoryPool()
    first = pool.allocate(n)
    assert first.address % 64 == 0
    assert first.nbytes == n
    view = first.view()
    assert view.size == n
    view[:] = 7
    other = pool.allocate(n)
    assert abs(other.address - first.address) >= n
    address = first.address
    del first
    assert n == 0 or pool.allocate(n).address != address  # the view still holds it
    del view
    assert pool.allocate(n).address == address
    assert pool.mapped <= 3


def test_statistics():
    pool = MemoryPool()
    a, b = pool.allocate(1000), pool.allocate(2 * MIB)
    stats = pool.stats()
    assert stats["in_use"] == size_class(1000) + 2 * MIB
    assert stats["peak"] == stats["in_use"]
    assert stats["allocations"] == 2
    del a, b
    gc.collect()
    stats = pool.stats()
    assert (stats["in_use"], stats["pooled"]) == (0, size_class(1000) + 2 * MIB)
    assert stats["peak"] == size_class(1000) + 2 * MIB
    pool.empty()
    assert pool.stats()["pooled"] == size_class(1000)  # small ones are cut from larger pieces


def test_counts_are_exact_after_every_allocation():
    """Destructors count nothing: what they leave behind must not show."""
    random = np.random.default_rng(0)
    sizes = [1, 64, 100, 1000, 4096, 100_000, MIB]
    pool = MemoryPool()
    blocks: list = []
    peak = in_use = 0
    for _ in range(2000):
        if blocks and random.random() < 0.55:
            in_use -= size_class(blocks.pop(random.integers(len(blocks))).nbytes)
        else:
            blocks.append(pool.allocate(sizes[random.integers(len(sizes))]))
            in_use += size_class(blocks[-1].nbytes)
            peak = max(peak, in_use)
            assert pool.peak == peak
        if random.random() < 0.05:
            assert pool.in_use == in_use
        if random.random() < 0.01:
            pool.empty()
    assert pool.in_use == in_use
    assert pool.mapped < pool.allocations


def test_the_pool_is_bounded():
    pool = MemoryPool()
    pool.max_pooled_bytes = 4 * MIB
    blocks = [pool.allocate(MIB) for _ in range(10)]
    del blocks
    assert pool.pooled <= 4 * MIB


def test_out_of_memory_is_an_error_and_nothing_breaks():
    pool = MemoryPool()
    pool.limit = 16 * MIB
    kept = pool.allocate(8 * MIB)
    kept.view()[:] = 3
    spare = pool.allocate(4 * MIB)
    del spare  # in the pool
    with pytest.raises(OutOfMemoryError, match="in use by tensors"):
        pool.allocate(12 * MIB)
    again = pool.allocate(8 * MIB)  # fits only because the pool was emptied
    assert (kept.view() == 3).all()
    del again
    with pytest.raises(OutOfMemoryError):
        MemoryPool().allocate(1 << 60)
    with pytest.raises(ValueError, match="cannot allocate"):
        pool.allocate(-1)


def test_views_share_and_keep_alive():
    pool = MemoryPool()
    memory = pool.allocate(4000)
    floats = memory.view(np.float32, 1000)
    floats[:] = np.arange(1000)
    halves = memory.view(ml_dtypes.bfloat16, 10)
    assert halves.dtype == ml_dtypes.bfloat16
    del memory
    pool.allocate(4000).view()[:] = 255
    assert floats[999] == 999
    assert pool.allocate(0).view(np.float32, 0).size == 0


def test_foreign_arrays_are_wrapped_without_a_copy():
    array = np.arange(10.0)
    memory = wrap(array)
    array[3] = 99
    assert memory.view(np.float64)[3] == 99
    assert memory.nbytes == 80
    with pytest.raises(ValueError, match="contiguous"):
        wrap(array[::2])


def test_threads_never_share_a_block():
    pool = MemoryPool()

    def work(mark):
        for k in range(300):
            block = pool.allocate(64 * (k % 7 + 1)).view()
            block[:] = mark
            big = pool.allocate(300_000 + k)
            big.view()[:100] = mark
            assert (block == mark).all()
            assert (big.view()[:100] == mark).all()

    in_threads(work, 4)
    assert pool.in_use == 0
