"""Loaders: order, batches, workers and what goes wrong in them."""

import multiprocessing
import os
import threading
import time
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from loader_datasets import Pages, Squares, Stuck, die, released

import numus as nm
from numus import data
from numus.data import workers
from numus.errors import ShapeError

Pair = namedtuple("Pair", "x y")


@dataclass
class Example:
    x: Any
    label: int


class Stream(data.IterableDataset):
    """Each worker gives its own part."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        info = data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, self.count, step))


def places(loader):
    return [batch["i"].tolist() for batch in loader]


def flat(batches):
    return [place for batch in batches for place in batch]


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("numus-loader")]


@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (3, "thread"), (2, "process")])
def test_batches_in_order(workers, kind):
    loader = data.DataLoader(Squares(), 4, num_workers=workers, worker_type=kind)
    assert len(loader) == 3
    batches = list(loader)
    assert [b["i"].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert isinstance(batches[0]["x"], nm.Tensor)
    assert batches[1]["x"].tolist()[0] == [16.0, 16.0]
    assert not threads()
    last = data.DataLoader(Squares(), 4, drop_last=True)
    assert len(list(last)) == len(last) == 2


def test_shuffling_is_a_function_of_the_key():
    def epochs(workers):
        loader = data.DataLoader(
            Squares(), 4, shuffle=True, key=nm.random.key(7), num_workers=workers
        )
        return [places(loader), places(loader)]

    first, second = epochs(0)
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(10))
    assert epochs(3) == [first, second]
    nm.random.seed(5)
    a = places(data.DataLoader(Squares(), 4, shuffle=True))
    nm.random.seed(5)
    assert a == places(data.DataLoader(Squares(), 4, shuffle=True))


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_what_goes_wrong_in_a_worker_reaches_the_caller(kind):
    loader = data.DataLoader(Squares(bad=5), 2, num_workers=2, worker_type=kind)
    batches = iter(loader)
    assert [next(batches)["i"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="example 5 is missing") as caught:
        next(batches)
    assert "in worker 0" in caught.value.__notes__[0]
    assert not threads()


def test_leaving_early_lets_the_workers_go():
    for batch in data.DataLoader(Squares(1000), 2, num_workers=3):
        assert batch["i"].tolist() == [0, 1]
        break
    assert not threads()


def test_a_dead_process_is_told():
    loader = data.DataLoader(Squares(), 2, num_workers=1, worker_type="process", worker_init_fn=die)
    with pytest.raises(RuntimeError, match=r"died \(exit code 3\)"):
        list(loader)


class StuckAtOnce(Stuck):
    def get_batch(self, indices):
        return np.asarray([self[i] for i in indices])


@pytest.fixture
def release():
    released.clear()
    yield
    released.set()
    while threads():
        time.sleep(0.01)


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize(
    ("kind", "dataset"), [("thread", Stuck), ("thread", StuckAtOnce), ("process", Stuck)]
)
def test_a_stuck_worker_is_not_waited_for(kind, dataset):
    options = {"num_workers": 2, "worker_type": kind, "persistent_workers": True}
    loader = data.DataLoader(dataset(), 2, timeout=1, **options)
    began = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"no batch from numus-loader-\d within 1 s"):
        list(loader)
    assert time.perf_counter() - began < 4


def test_a_slow_worker_is_told():
    class Slow(Squares):
        def __getitem__(self, i):
            threading.Event().wait(0.3)
            return i

    with pytest.raises(TimeoutError, match=r"within 0.01 s"):
        list(data.DataLoader(Slow(), 2, num_workers=1, timeout=0.01))
    for bad in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout is in seconds"):
            data.DataLoader(Squares(), timeout=bad)


@pytest.mark.usefixtures("release")
def test_leaving_a_stuck_worker_takes_a_bounded_time(monkeypatch):
    monkeypatch.setattr(workers.Crew.close, "__defaults__", (0.2,))
    batches = iter(data.DataLoader(Stuck(), 2, num_workers=2))
    next(batches)
    next(batches)
    began = time.perf_counter()
    batches.close()
    assert time.perf_counter() - began < 3


@pytest.mark.parametrize("call", ["answer", "ask"])
def test_half_of_a_message_is_not_waited_for(call):
    """A worker that is stopped while it sends or receives: the pipe has a part of a message."""

    class Process:
        name = "numus-loader-0"
        alive = True

        def kill(self):
            self.alive = False
            theirs.close()

        def is_alive(self):
            return self.alive

        def join(self, seconds):
            pass

    ours, theirs = multiprocessing.Pipe()
    worker = object.__new__(workers.ProcessWorker)
    worker._pipe, worker._process, worker._busy = ours, Process(), None
    worker._receiver = workers.Receiver(ours)
    os.write(theirs.fileno(), (1000).to_bytes(4, "big") + b"half")
    began = time.perf_counter()
    with pytest.raises(TimeoutError, match="no batch from"):
        worker.answer(0.1) if call == "answer" else worker.ask(b"x" * 10_000_000, 0.1)
    worker.stop()
    worker.join(0.1)
    assert ours.closed
    assert time.perf_counter() - began < 3


@pytest.mark.parametrize("workers", [0, 2])
def test_streams(workers):
    loader = data.DataLoader(Stream(7), 2, num_workers=workers)
    found = [b.tolist() for b in loader]
    assert sorted(flat(found)) == list(range(7))
    if workers:
        assert found == [[0, 2], [1, 3], [4, 6], [5]]
    else:
        assert found == [[0, 1], [2, 3], [4, 5], [6]]
    assert [b.tolist() for b in data.DataLoader(Stream(5), 2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(data.DataLoader(Stream(3), None)) == [0, 1, 2]
    with pytest.raises(TypeError, match="how long"):
        len(loader)
    with pytest.raises(ValueError, match="own order"):
        data.DataLoader(Stream(3), shuffle=True)


def test_nested_batches():
    examples = [{"p": Pair(nm.ones(2) * i, (i, 0.5)), "s": f"n{i}", "b": [True]} for i in range(3)]
    batch = data.default_collate(examples)
    assert isinstance(batch["p"], Pair)
    assert batch["p"].x.shape == (3, 2)
    assert batch["p"].y[0].dtype is nm.int64
    assert batch["p"].y[1].dtype is nm.float32
    assert batch["s"] == ["n0", "n1", "n2"]
    assert batch["b"][0].dtype is nm.bool
    made = data.default_collate([Example(np.zeros(3), 1), Example(np.ones(3), 2)])
    assert made.label.tolist() == [1, 2]
    with pytest.raises(ShapeError, match=r"\['x'\] of shapes \(2,\), \(3,\) do not stack"):
        data.default_collate([{"x": np.zeros(2)}, {"x": np.zeros(3)}])
    with pytest.raises(TypeError, match=r"\[0\] is a object"):
        data.default_collate([(object(),)])


def test_tensors_are_gathered_where_they_are():
    x = nm.arange(20).reshape((10, 2))
    loader = data.DataLoader(data.TensorDataset(x, x[:, 0]), 4, device="cpu", num_workers=1)
    batches = list(loader)
    assert [b[0].shape for b in batches] == [(4, 2), (4, 2), (2, 2)]
    assert batches[1][1].tolist() == [8, 10, 12, 14]
    with pytest.raises(ShapeError, match="one length"):
        data.TensorDataset(nm.zeros(2), nm.zeros(3))


def test_records_through_processes(tmp_path):
    with data.RecordWriter.create(tmp_path / "a.rrec") as writer:
        for i in range(9):
            writer.write_record({"x": np.full(3, i, np.float32), "i": i})
    records = data.RecordDataset.open(tmp_path / "a.rrec")
    loader = data.DataLoader(records, 4, num_workers=2, worker_type="process")
    assert places(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_going_on_where_it_was():
    def made():
        return data.DataLoader(Squares(), 2, shuffle=True, key=nm.random.key(3))

    whole = made()
    epochs = [places(whole), places(whole)]
    loader = made()
    list(loader)
    seen = []
    for batch in loader:
        seen.append(batch["i"].tolist())
        if len(seen) == 2:
            state = loader.state_dict()
            break
    again = made()
    again.load_state_dict(state)
    assert seen + places(again) == epochs[1]
    again.load_state_dict(whole.state_dict())  # between epochs
    assert places(again) == places(whole)


def test_splits_and_samplers():
    parts = data.random_split(Squares(), [0.5, 0.3, 0.2], key=nm.random.key(1))
    assert [len(p) for p in parts] == [5, 3, 2]
    assert sorted(i["i"] for p in parts for i in p) == list(range(10))
    with pytest.raises(ValueError, match="do not make up 10"):
        data.random_split(Squares(), [3, 3])
    key = nm.random.key(2)
    drawn = list(data.RandomSampler(range(4), replacement=True, num_samples=50, key=key))
    assert len(drawn) == 50
    assert set(drawn) == set(range(4))
    assert len(list(data.RandomSampler(range(4), num_samples=10, key=key))) == 10
    heavy = list(data.WeightedRandomSampler([0.0, 1.0, 3.0], 400, key=key))
    assert heavy.count(0) == 0
    assert 2 < heavy.count(2) / heavy.count(1) < 4.5
    assert sorted(data.SubsetRandomSampler([3, 5, 8], key=key)) == [3, 5, 8]
    shares = [list(data.DistributedSampler(range(10), 3, r)) for r in range(3)]
    assert [len(s) for s in shares] == [4, 4, 4]
    assert set(flat(shares)) == set(range(10))
    assert len(data.DistributedSampler(range(10), 3, 0, drop_last=True)) == 3
    sampler = data.RandomSampler(range(20), key=key)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)
    assert [list(sampler), list(sampler)] == [first, second]
    assert first != second
    both = data.ConcatDataset([Squares(3), Squares(2)])
    assert [e["i"] for e in both] == [0, 1, 2, 0, 1]
    assert both[-1]["i"] == 1
    assert [e["i"] for e in Squares(2) + Squares(1)] == [0, 1, 0]
    assert list(data.ChainDataset([Stream(2), Stream(1)])) == [0, 1, 0]
    batches = data.BatchSampler(data.SequentialSampler(range(5)), 2)
    assert list(data.DataLoader(Squares(), batch_sampler=batches))[1]["i"].tolist() == [2, 3]
    padded = data.DataLoader(Squares(3), 3, collate_fn=len)
    assert list(padded) == [3]


class Slow(Squares):
    """Gives many at once, some of them slowly."""

    def get_batch(self, indices):
        if indices[0] >= 8:
            time.sleep(2e-3)
        return {"i": np.asarray(indices), "by": [threading.current_thread().name] * len(indices)}


def test_workers_are_there_for_what_takes_time():
    batches = list(data.DataLoader(Slow(40), 2, num_workers=2))
    assert [b["i"].tolist() for b in batches] == [[i, i + 1] for i in range(0, 40, 2)]
    makers = [b["by"][0] for b in batches]
    assert not any("numus-loader" in name for name in makers[:4])
    assert all("numus-loader" in name for name in makers[8:])
    assert threads() == []


class Backwards(data.RandomSampler):
    def __iter__(self):
        return iter(range(len(self) - 1, -1, -1))


def test_a_sampler_of_ones_own_is_asked():
    x = data.TensorDataset(nm.arange(5))
    loader = data.DataLoader(x, 2, sampler=Backwards(x))
    assert [b[0].tolist() for b in loader] == [[4, 3], [2, 1], [0]]
    loader = data.DataLoader(x, 2, sampler=[3, 1, 4], drop_last=True)
    assert [b[0].tolist() for b in loader] == [[3, 1]]


class Listed(Squares):
    def __getitems__(self, indices):
        assert isinstance(indices, list)
        return [{"i": -i} for i in indices]


def test_many_examples_at_once():
    assert places(data.DataLoader(Listed(5), 2)) == [[0, -1], [-2, -3], [-4]]
    assert places(data.DataLoader(data.Subset(Listed(5), [4, 2]), 2)) == [[-4, -2]]


def test_processes_share_their_batches():
    loader = data.DataLoader(
        Pages(), 4, num_workers=2, worker_type="process", persistent_workers=True
    )
    kept = list(loader)  # memory that somebody holds is not filled again
    again = [(b["x"].sum().item(), b["t"].mean().item(), b["i"].tolist()) for b in loader]
    for first, (total, mean, numbers) in zip(kept, again, strict=True):
        assert first["x"].shape == (4, 5000)
        assert first["x"].dtype == nm.int16
        np.testing.assert_array_equal(first["x"].numpy()[:, -1], numbers)
        np.testing.assert_array_equal(first["t"].numpy()[:, 0], numbers)
        assert total == 5000 * sum(numbers)
        assert mean == sum(numbers) / 4


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_that_stay(kind):
    loader = data.DataLoader(
        Squares(8), 2, num_workers=2, worker_type=kind, persistent_workers=True
    )
    everything = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert places(loader) == everything
    crew = loader._crew
    assert places(loader) == everything
    assert loader._crew is crew
    for batch in loader:
        assert batch["i"].tolist() == [0, 1]
        break
    assert loader._crew is None  # it was left with answers under way
    assert places(loader) == everything
    stream = data.DataLoader(Stream(7), 2, num_workers=2, persistent_workers=True)
    assert [b.tolist() for b in stream] == [b.tolist() for b in stream]
    del loader, stream
    assert threads() == []


def test_workers_make_tensors_where_the_caller_would():
    class Made(Squares):
        def __getitem__(self, i):
            return nm.zeros(2)

    before = nm.default_device()
    nm.set_default_device("reference")
    try:
        batch = next(iter(data.DataLoader(Made(), 2, num_workers=1)))
    finally:
        nm.set_default_device(before)
    assert batch.device == "reference"
