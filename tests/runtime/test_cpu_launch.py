"""Launches on the CPU: prepared and not, on several threads, from several threads, after a fork."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
import warnings

import kernels_by_hand as kernels
import numpy as np
import pytest
from in_threads import in_threads

from numus import runtime as runtimes
from numus.runtime.contract import Launch, LaunchStep
from numus.runtime.cpu import thread_pool_source


@pytest.fixture(scope="module")
def cpu():
    return runtimes.get("cpu")


@pytest.fixture(params=[1, 2, 5])
def threads(request, cpu):
    before = cpu.get_num_threads()
    cpu.set_num_threads(request.param)
    yield request.param
    cpu.set_num_threads(before)


def memory_of(cpu, array):
    memory = cpu.allocate(array.nbytes)
    cpu.upload(memory, array)
    return memory


def floats(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_the_registry_gives_one_runtime():
    assert runtimes.get("cpu") is runtimes.get("cpu")
    assert runtimes.get("cpu").target.name == "cpu"


@pytest.mark.parametrize("n", [0, 1, 63, 64, 1000, 20001])
def test_a_launch(cpu, threads, n):
    program = cpu.compile(kernels.affine())
    x = floats(n)
    a, b = memory_of(cpu, x), cpu.allocate(4 * n)
    cpu.run([Launch(program, [a, b], [n], kernels.blocks(n))])
    cpu.synchronize()
    y = b.view(np.float32, n)
    assert np.array_equal(y, x * np.float32(2) + np.float32(1))


def test_launches_wait_for_each_other(cpu, threads):
    """A chain through the same two buffers is only right if each launch sees all of the last."""
    n = 64 * 40
    program = cpu.compile(kernels.affine(1.0, 1.0))
    swap = cpu.compile(kernels.scratch_reverse())
    x = floats(n)
    a, b = memory_of(cpu, x), cpu.allocate(4 * n)
    grid = kernels.blocks(n)
    for _ in range(20):
        launches = []
        for _ in range(10):
            launches.append(Launch(program, [a, b], [n], grid))
            launches.append(Launch(swap, [b, a], [n // 4, 4], 4))
        cpu.upload(a, x)
        cpu.run(launches)
        want = x.copy()
        for _ in range(10):
            want = (want + np.float32(1)).reshape(4, -1)[:, ::-1].reshape(-1)
        assert np.array_equal(a.view(np.float32), want)


def test_scratch_is_found_by_the_runtime(cpu, threads):
    program = cpu.compile(kernels.scratch_reverse())
    x = floats(64 * 33)
    a, b = memory_of(cpu, x), cpu.allocate(x.nbytes)
    want = x.reshape(33, 64)[:, ::-1].reshape(-1)
    cpu.run([Launch(program, [a, b], [64, 33], 33)])  # no memory for scratch
    assert np.array_equal(b.view(np.float32), want)
    assert program.scratch_nbytes([65, 33]) == [320]


def test_scratch_may_lie_in_a_slot(cpu, threads):
    """There it is for as many workers as there are cores; for more, the runtime finds some."""
    program = cpu.compile(kernels.scratch_reverse())
    x = floats(64 * 33)
    a, b = memory_of(cpu, x), cpu.allocate(x.nbytes)
    workers, pitch = cpu.target.num_cores, 448
    own = cpu.allocate(64 + workers * pitch)
    step = LaunchStep(program, [(0, 0), (1, 0), (2, 64)], scratch=[256], scratch_pitch=pitch)
    # a wave of two kernels that share the scratch memory, and a kernel by itself
    steps = [step, dataclasses.replace(step, buffers=[(0, 0), (3, 0), (2, 64)], concurrent=True)]
    prepared = cpu.prepare([*steps, step], slots=4)
    again = cpu.allocate(x.nbytes)
    addresses = [m.address for m in (a, b, own, again)]
    want = x.reshape(33, 64)[:, ::-1].reshape(-1)
    values = [33, 64, 33] * 3
    fixed = prepared.bind_values(values, [])
    runs = [
        lambda: prepared.run(addresses, values),
        lambda: fixed(addresses, []),
        lambda: prepared.repeat(values, addresses, 1, [], [], None),
    ]
    for run in runs:
        b.view(np.float32)[:] = again.view(np.float32)[:] = 0
        own.view(np.uint8)[:] = 0
        before = cpu.memory_stats()["allocations"]
        run()
        assert np.array_equal(b.view(np.float32), want)
        assert np.array_equal(again.view(np.float32), want)
        provided = threads > workers
        assert own.view(np.uint8).any() != provided
        assert (cpu.memory_stats()["allocations"] > before) == provided


def test_prepared_steps_take_offsets_and_values(cpu, threads):
    program = cpu.compile(kernels.affine())
    n = 300
    x = floats(n)
    # input in slot 0; both results in slot 1, the second behind the first
    prepared = cpu.prepare(
        [LaunchStep(program, [(0, 0), (1, 0)]), LaunchStep(program, [(1, 0), (1, 4 * 1000)])],
        slots=2,
    )
    for count in (n, 100, 1):
        a, b = memory_of(cpu, x), cpu.allocate(8000)
        grid = kernels.blocks(count)
        prepared.run((a.address, b.address), (grid, count, grid, count))
        one = x[:count] * np.float32(2) + np.float32(1)
        y = b.view(np.float32)
        assert np.array_equal(y[:count], one)
        assert np.array_equal(y[1000 : 1000 + count], one * np.float32(2) + np.float32(1))


def test_several_python_threads_launch_at_once(cpu, threads):
    program = cpu.compile(kernels.affine())
    prepared = cpu.prepare([LaunchStep(program, [(0, 0), (1, 0)])], slots=2)

    def work(seed):
        x = floats(5000, seed)
        a, b = memory_of(cpu, x), cpu.allocate(x.nbytes)
        want = x * np.float32(2) + np.float32(1)
        for k in range(200):
            n = 5000 - k
            prepared.run((a.address, b.address), (kernels.blocks(n), n))
            cpu.run([Launch(program, [a, b], [n], kernels.blocks(n))])
            assert np.array_equal(b.view(np.float32)[:n], want[:n]), (seed, k)

    in_threads(work, 4)


def test_results_do_not_depend_on_the_number_of_threads(cpu):
    program = cpu.compile(kernels.affine(1.1, 0.3))
    x = floats(64 * 101)
    a = memory_of(cpu, x)
    results = []
    before = cpu.get_num_threads()
    for count in (1, 2, 3, 7, 1, 4):
        cpu.set_num_threads(count)
        assert cpu.get_num_threads() == count
        b = cpu.allocate(x.nbytes)
        cpu.run([Launch(program, [a, b], [x.size], kernels.blocks(x.size))])
        results.append(b.view(np.float32).tobytes())
    cpu.set_num_threads(before)
    assert len(set(results)) == 1
    with pytest.raises(ValueError, match="at least 1"):
        cpu.set_num_threads(0)


def test_work_is_shared(cpu):
    """With two threads, a long launch is taken up by a worker too."""
    before = cpu.get_num_threads()
    cpu.set_num_threads(2)
    names = [t.name for t in threading.enumerate()]
    program = cpu.compile(kernels.affine())
    x = floats(1 << 16)
    a, b = memory_of(cpu, x), cpu.allocate(x.nbytes)
    cpu.run([Launch(program, [a, b], [x.size], kernels.blocks(x.size))])
    names = [t.name for t in threading.enumerate()]
    cpu.set_num_threads(before)
    assert "numus-worker-1" in names


def test_a_burst_of_short_launches_wakes_workers(cpu):
    """None of them is worth it, but together they are; estimates count the work of all threads."""
    before = cpu.get_num_threads()
    cpu.set_num_threads(2)
    program = cpu.compile(kernels.affine())
    n = 1 << 16
    a, b = memory_of(cpu, floats(n)), cpu.allocate(4 * n)
    prepared = cpu.prepare([LaunchStep(program, [(0, 0), (1, 0)])], slots=2)
    values = (kernels.blocks(n), n)
    state, job = cpu.pool._state, thread_pool_source.POOL["job"]
    worked = job + thread_pool_source.OPEN.index("worked")
    end = time.monotonic() + 10
    joined = 0
    while joined < 3 and time.monotonic() < end:
        time.sleep(1e-3)  # workers sleep by now
        for _ in range(100):
            prepared.run((a.address, b.address), values)
            joined += state[worked] > 0
    cpu.set_num_threads(before)
    assert joined >= 3


def test_idle_workers_use_no_time(cpu):
    program = cpu.compile(kernels.affine())
    a, b = cpu.allocate(64 * 16 * 4), cpu.allocate(64 * 16 * 4)
    cpu.run([Launch(program, [a, b], [64 * 16], 16)])
    time.sleep(0.02)
    began = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - began < 0.05


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_pool_of_its_own(cpu):
    program = cpu.compile(kernels.affine())
    x = floats(64 * 200)
    a, b = memory_of(cpu, x), cpu.allocate(x.nbytes)
    launch = [Launch(program, [a, b], [x.size], 200)]
    cpu.run(launch)  # workers are there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's and JAX's, where a test has imported it
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            b.view(np.float32)[:] = 0
            cpu.run(launch)
            good = np.array_equal(b.view(np.float32), x * np.float32(2) + np.float32(1))
            second = cpu.compile(kernels.affine(3.0))
            cpu.run([Launch(second, [a, b], [x.size], 200)])
            good &= np.array_equal(b.view(np.float32), x * np.float32(3) + np.float32(1))
            status = 0 if good else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    cpu.run(launch)
    assert np.array_equal(b.view(np.float32), x * np.float32(2) + np.float32(1))


def test_the_interpreter_ends_cleanly():
    code = """
import atexit, sys
sys.path.insert(0, sys.argv[1])
import kernels_by_hand as kernels
from numus import runtime
from numus.runtime.contract import Launch
cpu = runtime.get("cpu")
cpu.set_num_threads(3)
program = cpu.compile(kernels.affine())
a, b = cpu.allocate(1 << 20), cpu.allocate(1 << 20)
launch = [Launch(program, [a, b], [1 << 18], kernels.blocks(1 << 18))]
atexit.register(lambda: (cpu.run(launch), print("late")))
for _ in range(50):
    cpu.run(launch)
print("done")
"""
    here = os.path.dirname(__file__)
    result = subprocess.run(
        [sys.executable, "-c", code, here], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.split() == ["done", "late"]
    assert result.stderr == ""
    assert result.returncode == 0
