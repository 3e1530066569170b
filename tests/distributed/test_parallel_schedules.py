"""Pipeline schedules: complete, free of deadlocks, with the bubbles of their papers."""

from types import SimpleNamespace

import numpy as np
import pytest

from numus.distributed.parallel import Action, Schedule, make_schedule
from numus.distributed.parallel.ring import _block, _Options
from numus.errors import DistributedError


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_schedules(kind):
    for ranks in (1, 2, 3, 4, 8):
        for microbatches in (1, 2, 3, 4, 8, 12):
            for chunks in (1, 2, 3) if kind == "interleaved" else (1,):
                if kind == "interleaved" and microbatches % ranks:
                    continue
                made = make_schedule(kind, ranks=ranks, microbatches=microbatches, chunks=chunks)
                made.check()
                bubble = (ranks - 1) / (chunks * microbatches + ranks - 1)
                assert made.bubble() == pytest.approx(bubble)
                if kind == "1f1b":
                    kept = [min(ranks - rank, microbatches) for rank in range(ranks)]
                    assert made.in_flight() == kept
                elif kind == "gpipe":
                    assert made.in_flight() == [microbatches] * ranks


def test_messages():
    made = make_schedule("interleaved", ranks=2, microbatches=2, chunks=2)
    actions = made.actions()
    for me, other in ((0, 1), (1, 0)):  # sent and received in the same order
        sent = [a[1:4] for a in actions[me] if a.kind == "send" and a.peer == other]
        got = [a[1:4] for a in actions[other] if a.kind == "recv" and a.peer == me]
        assert sent == got
        assert {what for *_, what in sent} == {"forward", "backward"}
    assert str(actions[0][1]) == "f0.0→1"


def schedule(*orders):
    """A schedule of two stages, from text."""
    kinds = {"F": "forward", "B": "backward"}
    computes = tuple(
        tuple(Action(kinds[w[0]], int(w[1]), int(w[3])) for w in order.split()) for order in orders
    )
    return Schedule(2, 2, 2, computes)


def test_schedules_that_cannot_run():
    schedule("F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1").check()
    with pytest.raises(DistributedError, match=r"deadlock: rank 0 waits for b1\.0←1; rank 1 waits"):
        schedule("F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1").check()
    with pytest.raises(DistributedError, match=r"rank 1 does B1.0 before F1.0"):
        schedule("F0.0 F0.1 B0.0 B0.1", "B1.0 F1.0 F1.1 B1.1").check()
    with pytest.raises(DistributedError, match=r"rank 0 does not do once each .* F0\.1"):
        schedule("F0.0 F0.0 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1").check()


def test_arguments():
    with pytest.raises(ValueError, match="'zero' must be one of gpipe, 1f1b, interleaved"):
        make_schedule("zero", ranks=2, microbatches=2)
    with pytest.raises(ValueError, match="a multiple of 2 microbatches"):
        make_schedule("interleaved", ranks=2, microbatches=3, chunks=2)
    with pytest.raises(ValueError, match="one stage per rank, not 2; take 'interleaved'"):
        make_schedule("1f1b", ranks=2, microbatches=3, chunks=2)
    with pytest.raises(ValueError, match="at least 1"):
        make_schedule("1f1b", ranks=0, microbatches=3)


@pytest.mark.parametrize("zigzag", [True, False])
def test_rounds_of_causal_ring_attention(zigzag):
    """All rounds of all ranks together see the triangle, and each pair once."""
    ranks, each = 4, 6
    half, length = each // 2, ranks * each
    parts = 2 * ranks - 1

    def positions(rank):
        if not zigzag:
            return np.arange(rank * each, (rank + 1) * each)
        chunks = [np.arange(c * half, (c + 1) * half) for c in (rank, parts - rank)]
        return np.concatenate(chunks)

    seen = np.zeros((length, length), int)
    work = np.zeros((ranks, ranks), int)
    for me in range(ranks):
        options = _Options(SimpleNamespace(rank=me, size=ranks), 1.0, True, zigzag, 1)
        for source in range(ranks):
            block = _block(options, source, each)
            if block is None:
                continue
            mask = np.zeros((each, each), int)
            mask[block.queries, block.keys] = 1
            if block.causal:
                mask = np.tril(mask)
            seen[np.ix_(positions(me), positions(source))] += mask
            work[me, (me - source) % ranks] = mask.sum()
    assert (seen == np.tri(length)).all()
    if zigzag:  # in each round all ranks do the same amount of work
        assert (work == work[0]).all()
