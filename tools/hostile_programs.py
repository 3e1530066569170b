"""Programs that `tools.hostile` runs in processes of their own.

python -m tools.hostile_programs NAME ARGUMENT…
"""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus import nn

_UNARY = (nm.sin, nm.cos, nm.exp, nm.tanh, nm.square, nm.abs, nm.negative, nm.expm1)
_QUICK = (nm.square, nm.abs, nm.negative, nm.sqrt, nm.floor, nm.ceil, nm.sign, nm.reciprocal)


def _chain(number: int, x: Any, length: int = 6, functions: Any = _UNARY) -> Any:
    """A structure of its own for every number below 8**length."""
    for _ in range(length):
        x = functions[number % 8](x)
        number //= 8
    return x


def _in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    together = threading.Barrier(count)
    found: list[Any] = [None] * count

    def run(i: int) -> None:
        together.wait()
        found[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def first_use(threads: str) -> None:
    """The first operation, by many threads at once."""
    count = int(threads)
    found = _in_threads(lambda i: (nm.full((50, 50), i) * 2).sum().item(), count)
    assert found == [5000 * i for i in range(count)], found


def compute(*seeds: str) -> None:
    """Print a digest of results: equal in every process."""
    x = nm.asarray(np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6))
    total = 0.0
    for seed in map(int, seeds):
        total += float(nm.sum(_chain(seed, x) @ x.T).item())
        total += float(nm.max(nm.softmax(_chain(seed + 1, x, 3), axis=-1)).item())
    print(repr(total))


def interrupts(seed: str, times: str) -> None:
    """Interrupts at random moments: none is lost, nothing stays locked, results are right."""
    rng, lost, caught = random.Random(int(seed)), [], 0
    again = 20.0  # seconds to the next interrupt, which ends the work if one is lost
    x = nm.asarray(np.linspace(0, 1, 100, dtype=np.float32).reshape(10, 10))
    f = nm.jit(lambda x: nm.sin(x) * 2 + x @ x)
    expected = f(x).numpy()

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def note(error: Any) -> None:
        if not issubclass(error.exc_type, Warning):
            lost.append((error.exc_type, error.object))

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = note
    for _ in range(int(times)):
        begun = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + rng.random() * 0.05, again)
            while True:
                y = _chain(rng.randrange(8**4), x, 4) * 0.1
                nm.grad(lambda w: nm.sum(nm.tanh(x @ w)))(y).numpy()
                f(y)
                with y.data_write() as a:
                    a[0] = 1
        except KeyboardInterrupt:
            caught += 1
        except RuntimeError as error:  # Python 3.11 wraps those that come while a class is made
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            caught += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert not lost, lost
        assert time.monotonic() - begun < again, "an interrupt was lost, and nobody told of it"
    # After an interrupt of an `exec(text)`, as those of dataclasses in modules that are imported
    # late, Python ends the process as interrupted unless another text runs to its end.
    exec("")
    assert caught == int(times)
    (found,) = _in_threads(lambda i: f(x).numpy(), 1)
    assert np.array_equal(found, expected)


def forks(seed: str, times: str) -> None:
    """Forks while other threads compile, compute, read and write."""
    stop = threading.Event()
    shared = nm.arange(10) * 1.0

    def busy(i: int) -> None:
        rng = random.Random(f"{seed} {i}")
        while not stop.is_set():
            x = nm.ones((rng.randrange(1, 30), 5))
            _chain(rng.randrange(8**4), x, 4).numpy()
            with shared.data_write() as a:
                a[:] = np.arange(10)

    def fork(_: int) -> list[int]:
        codes = []
        try:
            for _ in range(int(times)):
                child = os.fork()
                if child == 0:
                    threading.Timer(60, os._exit, (3,)).start()
                    good = (nm.ones((3, 4)) * 2).sum().item() == 24
                    with shared.data_write() as a:
                        a[0] = 5
                    good &= float(shared.numpy()[0]) == 5
                    os._exit(0 if good else 2)
                codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        finally:
            stop.set()
        return codes

    found = _in_threads(lambda i: fork(i) if i == 0 else busy(i), 3)
    assert found[0] == [0] * int(times), found[0]


def limited(mebibytes: str, seed: str) -> None:
    """A limit on the address space raises MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (int(mebibytes) << 20), before[1]))
    held, rng, errors = [], random.Random(int(seed)), 0
    for i in range(25):
        try:
            held.append(nm.ones(1 << 20) + i)
            nm.eval(held[-1])
            held.append(_chain(rng.randrange(8**4), nm.ones(1 << 16), 4).numpy())
        except MemoryError:
            errors += 1
            held.clear()
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert (nm.ones(10) + 1).sum().item() == 20
    print(errors)


def full_disk(folder: str, limit: str) -> None:
    """A save that does not fit raises, and the file before it stays."""
    path = Path(folder) / "weights.safetensors"
    nn.save_safetensors({"w": nm.ones(1000)}, path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    for save in (nn.save_safetensors, lambda x, path: nn.save_checkpoint(path, model=x)):
        try:
            save({"w": nm.zeros(100_000)}, path)
        except OSError:
            continue
        raise AssertionError(f"{save} did not notice that the disk is full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert (nn.load_safetensors(path)["w"].numpy() == 1).all()
    assert [p.name for p in Path(folder).iterdir()] == [path.name], list(Path(folder).iterdir())


def inputs() -> None:
    """Inputs that refer to themselves, or are larger than any memory."""
    endless: list[Any] = []
    endless.append(endless)
    mapping: dict[str, Any] = {}
    mapping["x"] = mapping
    deep: Any = 1.0
    for _ in range(100_000):
        deep = [deep]
    cases: dict[str, Callable[[], Any]] = {
        "list of itself": lambda: nm.asarray(endless),
        "deep list": lambda: nm.asarray(deep),
        "argument of itself": lambda: nm.jit(lambda x: x)(endless),
        "gradient of itself": lambda: nm.grad(lambda x: nm.sum(x["x"]))(mapping),
        "stack of itself": lambda: nm.stack(endless),
        "zeros": lambda: nm.eval(nm.zeros(1 << 45)),
        "product of sizes": lambda: nm.eval(nm.ones((1 << 31, 1 << 31, 1 << 31))),
        "outer": lambda: nm.eval(nm.ones((1 << 22, 1)) * nm.ones((1, 1 << 22)) + 1),
        "arange": lambda: nm.eval(nm.arange(1 << 50)),
        "repeat": lambda: nm.eval(nm.repeat(nm.ones(10), 1 << 45)),
        "eye": lambda: nm.eval(nm.eye(1 << 24) + 1),
    }
    for name, case in cases.items():
        try:
            case()
        except (ValueError, TypeError, MemoryError, RecursionError, OverflowError):
            continue
        raise AssertionError(f"{name}: no error")


def structures(count: str, seconds: str) -> None:
    """Many structures, within a bounded amount of memory."""
    x = nm.asarray(np.linspace(0, 1, 10, dtype=np.float32))

    def step(i: int) -> None:  # most are quick to compile: one instruction for each function
        _chain(i, x, functions=_QUICK if i % 20 else _UNARY).numpy()

    _grow(step, int(count), float(seconds))


def sizes(count: str, seconds: str) -> None:
    """Many sizes and static values of jitted functions."""
    f = nm.jit(lambda x: nm.sum(nm.sin(x) * 2))
    g = nm.jit(lambda x, k: x * k, static_argnums=1)
    x = nm.ones(3)
    _grow(lambda i: (f(nm.ones(i + 1)).item(), g(x, i).numpy()), int(count), float(seconds))


def _grow(step: Callable[[int], Any], count: int, seconds: float) -> None:
    """Print how many steps were done, and the growth in MB."""

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

    for i in range(20):
        step(i)
    before, end, done = resident(), time.monotonic() + seconds, 20
    while done < count and time.monotonic() < end:
        step(done)
        done += 1
    growth = resident() - before
    print(f"{done} {growth:.0f}")
    assert growth < 200, f"{growth:.0f} MB after {done}"


if __name__ == "__main__":
    faulthandler.enable()
    globals()[sys.argv[1]](*sys.argv[2:])
