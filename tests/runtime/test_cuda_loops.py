"""Loops whose runs are launched ahead of the flag that ends them."""

import sys

import fake_cuda_driver
import pytest

import numus as nm
from numus.runtime.cuda import loops
from numus.runtime.cuda.loops import repeat_ahead


class Flags:
    """Flags of runs: True before the last one."""

    def __init__(self, last, log):
        self.last, self.log = last, log

    def address(self, run):
        return 1000 + run % 2

    def record(self, run, stream):
        self.log.append(("record", run))

    def wait(self, run, doing):
        assert ("record", run) in self.log
        self.log.append(("wait", run))
        return run < self.last


class Context:
    stream = None

    def __init__(self, flags):
        self.free_flags = [flags]

    def last_kernels(self):
        return "waiting"


@pytest.mark.parametrize(
    ("last", "count", "runs", "launched", "more"),
    [(0, 5, 1, 2, False), (3, 5, 4, 5, False), (4, 5, 5, 5, False), (9, 5, 5, 5, True)],
)
def test_one_run_is_ahead(last, count, runs, launched, more):
    log = []
    flags = Flags(last, log)
    context = Context(flags)

    def launch(addresses, changed):
        log.append(("launch", tuple(addresses)))

    found = repeat_ahead(context, launch, [10, 20, 5], count, [(0, 1)], 2)
    assert found == (runs, more)
    states = [entry[1] for entry in log if entry[0] == "launch"]
    wanted = [((10, 20) if run % 2 == 0 else (20, 10)) + (1000 + run % 2,) for run in range(5)]
    assert states == wanted[:launched]
    order = [entry[0] for entry in log if entry[0] != "record"]
    assert order[:2] == ["launch", "launch"]  # the second one before any flag is read
    assert context.free_flags == [flags]


def test_no_runs():
    context = Context(Flags(0, []))
    assert repeat_ahead(context, None, [1], 0, (), 0) == (0, True)


@pytest.mark.parametrize(("size", "ahead"), [(8, True), (1 << 15, False)])
def test_loops_that_write_much_in_place_wait(monkeypatch, size, ahead):
    """On a driver that runs nothing: flags are made up."""
    _, name = fake_cuda_driver.install(monkeypatch)
    loop = sys.modules["numus.transforms.control.while_loop"]
    monkeypatch.setattr(loop, "elements", lambda node: True)
    monkeypatch.setattr(loops.HostFlags, "wait", lambda flags, run, doing: run < 3)
    found = []

    def spy(*arguments):
        found.append(repeat_ahead(*arguments))
        return found[-1]

    monkeypatch.setattr("numus.runtime.cuda.launch.repeat_ahead", spy)
    state = (nm.zeros(size, device=name), nm.zeros((), dtype=nm.int32, device=name))

    def body(s):
        at = s[1].reshape(1).astype(nm.int64)
        return nm.index_copy(s[0], 0, at, nm.ones(1, device=name)), s[1] + 1

    nm.eval(nm.while_loop(lambda s: s[1] < 9, body, state))
    assert found == ([(4, False)] if ahead else [])


def test_runs_of_a_loop_are_one_graph(monkeypatch):
    """On a driver that runs nothing. After a few calls, memory is that of earlier ones."""
    driver, name = fake_cuda_driver.install(monkeypatch)
    x = nm.asarray([[0.5] * 8] * 8, device=name)
    nm.eval(x)

    def run():
        nm.eval(nm.fori_loop(0, 6, lambda i, x: nm.cumsum(nm.cumsum(x, axis=0), axis=1), x))

    for _ in range(4):
        run()
    launched, replayed = driver.launched, driver.calls["cuGraphLaunch"]
    run()
    assert driver.launched <= launched + 2  # beside the loop
    assert driver.calls["cuGraphLaunch"] == replayed + 1
    assert driver.calls["cuGraphInstantiate"] == 1


def test_addresses_of_a_run():
    words = [0] * 6
    place = loops.placed_by_run(words, [10, 20, 30, 40, 50, 60], [(1, 8), (4, -4)], [(0, 5)])
    for run, wanted in (
        (0, [10, 20, 0, 0, 50, 60]),
        (3, [60, 44, 0, 0, 38, 10]),
        (2, [10, 36, 0, 0, 42, 60]),
    ):
        place(run)
        assert words == wanted
