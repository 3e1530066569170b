"""Runs with collectives in one CUDA graph, on a fake driver and a fake NCCL."""

import ctypes
import gc

import pytest

import numus as nm
from numus.distributed import groups, nccl
from numus.errors import DistributedError


class Library:
    """NCCL of a group of one: an all-reduce is a copy; `captured` says during a capture or not."""

    def __init__(self):
        self.captured, self.runtime, self.fails = [], None, False

    def ncclGetErrorString(self, status):
        return b"a fault"

    def ncclAllReduce(self, source, target, count, kind, operation, comm, stream):
        if self.fails:
            return 5
        self.captured.append(self.runtime.capturing)
        ctypes.memmove(target, source, 4 * count)
        return 0

    def __getattr__(self, name):
        return lambda *args: 0


@pytest.fixture
def library(driver, monkeypatch):
    """The world by NCCL on the fake driver's device."""
    found = Library()
    device = nm.device(driver.device)
    found.runtime = device.runtime
    monkeypatch.setattr(nccl, "_library", lambda: found)
    world = groups.Group((0,), 0, None, "world")
    world._transports["host"] = nccl.NcclTransport(world, device, None, None, lambda *_: None)
    monkeypatch.setattr(groups._state, "world", world)
    return found


def test_a_run_that_recurs_is_one_graph(driver, library):
    @nm.jit
    def step(x):
        y = nm.distributed.all_reduce(nm.tanh(x)) + 1
        return nm.distributed.all_reduce(nm.sin(y)) * 2

    x = nm.ones(8)
    step(x)
    assert library.captured == [False, False]
    launches = []
    for _ in range(4):
        before = driver.launched
        step(x)
        launches.append(driver.launched - before)
    kernels = launches[0]
    assert kernels >= 3
    # recorded, captured and then replayed
    assert launches == [kernels, kernels, 0, 0]
    assert library.captured == [False] * 4 + [True] * 2
    assert driver.calls["cuGraphLaunch"] == 3
    assert driver.calls["cuStreamBeginCapture"] == driver.calls["cuStreamEndCapture"] == 1
    other = nm.ones(8)  # at another address: another graph, when it comes again
    step(other)
    assert library.captured[-1] is False
    step(other)
    assert library.captured[-1] is True
    del step
    gc.collect()
    nm.jit(lambda x: x + 2)(nm.ones(3))
    assert driver.calls["cuGraphExecDestroy"] == 2


def test_memory_is_not_kept_by_graphs(driver, library):
    step = nm.jit(lambda x: nm.distributed.all_reduce(x * 2) + 1)
    for _ in range(4):
        step(nm.ones(1000))
    gc.collect()
    in_use = nm.memory_stats(driver.device)["in_use"]
    for _ in range(4):
        step(nm.ones(1000))
    gc.collect()
    assert nm.memory_stats(driver.device)["in_use"] == in_use


def test_new_layouts_and_errors_leave_the_record(driver, library):
    step = nm.jit(lambda x: nm.distributed.all_reduce(x * 2) + 1)
    for shape in ((2, 3), (3, 2)):
        for _ in range(2):
            step(nm.ones(shape))
            step(nm.ones(shape).T)
    runtime = library.runtime
    assert runtime.recording is None
    library.fails = True
    with pytest.raises(DistributedError, match="ncclAllReduce: a fault"):
        step(nm.ones((2, 3)))
    assert runtime.recording is None
    library.fails = False
    before = len(library.captured)
    step(nm.ones((2, 3)))
    assert len(library.captured) == before + 1


def test_ranks_that_share_a_gpu(driver):
    class Communicator:
        def allgather(self, mine):
            return [mine, b"another", mine]

    driver.cuDeviceGetUuid = lambda device: (0, type("UUID", (), {"bytes": b"a gpu"}))
    group = groups.Group((4, 5, 6), 0, None, "some")
    device = nm.device(driver.device)
    assert nccl.ranks_that_share(device, group, Communicator()) == [4, 6]
