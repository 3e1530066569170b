"""nonzero and top-k: blocks of rows, empty rows, fewer hits than wanted, ties."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.functions._base import wrap
from numus.primitives.indexing import nonzero

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("count", [1, 5, 100, 8_192, 8_193, 50_001])
def test_indices_and_elements(count):
    x = RNG.standard_normal(count).astype(np.float32)
    for share in (0, 0.01, 0.3, 1):
        mask = RNG.random(count) < share
        wanted = np.flatnonzero(mask)
        np.testing.assert_array_equal(nm.flatnonzero(nm.asarray(mask)).numpy(), wanted)
        np.testing.assert_array_equal(nm.asarray(x)[nm.asarray(mask)].numpy(), x[mask])


def test_indices_are_per_row():
    mask = RNG.random((5, 20_000)) < 0.3
    mask[2] = False
    for count in (1, 6_000, 20_000):
        found = wrap(nonzero(nm.asarray(mask)._node, count)).numpy()
        for row, line in zip(found, mask, strict=True):
            hits = np.flatnonzero(line)[:count]
            np.testing.assert_array_equal(row[: hits.size], hits)
            assert (row[hits.size :] == line.size).all()


@pytest.mark.parametrize("shape", [(3000,), (3, 70), (2, 2, 31)])
def test_gpus_store_indices_at_their_ranks(shape):
    simt_machine.install()
    for share in (0, 0.3, 1):
        mask = RNG.random(shape) < share
        for count in (1, shape[-1], shape[-1] + 5):
            ours, cpu = (
                wrap(nonzero(nm.asarray(mask, device=d)._node, count)).numpy()
                for d in ("simt_ordered", "cpu")
            )
            np.testing.assert_array_equal(ours, cpu)


def test_topk_of_equal_or_sorted_elements():
    most = np.iinfo(np.uint64).max
    for a in (
        np.full(40_000, most, np.uint64),
        np.arange(40_000),
        np.arange(40_000)[::-1].copy(),
        np.full(300, np.nan),
    ):
        up = np.argsort(a, kind="stable")[:9]
        np.testing.assert_array_equal(nm.topk(nm.asarray(a), 9, largest=False).indices.numpy(), up)
        down = (a.size - 1 - np.argsort(a[::-1], kind="stable"))[::-1][:9]
        np.testing.assert_array_equal(nm.topk(nm.asarray(a), 9).indices.numpy(), down)
