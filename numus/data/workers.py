"""Workers: threads or processes that make batches while the caller uses others.

Batch i is made by worker i modulo their number, and each worker makes its batches in order, so that
the order of batches does not depend on timing. Exceptions of a worker are raised in the caller,
in the position of their batch. A worker that is stuck does not hold up the caller: past the timeout
its batch is an error, and closing waits for a bounded time, after which a process is killed and a
thread is left to itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numus
from numus.data.sharing import Receiver, Sender
from numus.runtime.devices import Device, default, device

__all__ = ["WorkerInfo", "get_worker_info"]


_CLOSE_SECONDS = 5.0  # for workers to come to the end of their batch
_KILL_SECONDS = 1.0  # for the system to end a process


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this is, for datasets that give each of them a part."""

    id: int
    num_workers: int
    dataset: Any


class _Current(threading.local):
    info: WorkerInfo | None = None


_current = _Current()


def get_worker_info() -> WorkerInfo | None:
    """The worker of a loader that is running; None outside of workers."""
    return _current.info


@dataclass
class Failure:
    """An exception on its way from a worker to the caller."""

    error: BaseException
    text: str


class Exhausted:
    """A worker's iterable dataset has come to its end."""


class Begin:
    """The task that an epoch begins with."""


Make = Callable[[Any], Any]  # a batch from a task


@dataclass(frozen=True)
class Job:
    """How a worker makes batches."""

    dataset: Any
    make: Callable[[Any], Make]  # from the dataset, in the worker
    init: Callable[[int], None] | None
    count: int
    device: Device  # where tensors are made

    def run(self, number: int, tasks: Iterator[Any], give: Callable[[Any], None]) -> None:
        """The loop of a worker: a result for each task but `Begin`."""
        _current.info = WorkerInfo(number, self.count, self.dataset)
        default.device = self.device
        new, make = True, None
        for task in tasks:
            if isinstance(task, Begin):
                make = None
                continue
            try:
                if new and self.init is not None:
                    self.init(number)
                new = False
                if make is None:
                    make = self.make(self.dataset)
                give(make(task))
            except BaseException as error:
                give(Failure(error, traceback.format_exc()))


class ThreadWorker:
    """A worker in this process."""

    def __init__(self, job: Job, number: int) -> None:
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=job.run,
            args=(number, iter(self._tasks.get, None), self._results.put),
            name=f"numus-loader-{number}",
            daemon=True,
        )
        self._thread.start()

    def ask(self, task: Any, timeout: float | None) -> None:
        self._tasks.put(task)

    def answer(self, timeout: float | None) -> Any:
        try:
            return self._results.get(timeout=timeout)
        except queue.Empty:
            raise _overdue(self._thread.name, timeout) from None

    def stop(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:  # tasks that nobody waits for
                self._tasks.get_nowait()
        self._tasks.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the end; a thread cannot be ended from outside, and goes with the process."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)


def _overdue(name: str, timeout: float | None) -> TimeoutError:
    return TimeoutError(
        f"DataLoader: no batch from {name} within {timeout} s; timeout=0 waits as long as it takes"
    )


def _process(job: Job, number: int, pipe: Any) -> None:
    """The main function of a worker process."""
    numus.set_num_threads(1)  # there is a process per core
    sender = Sender(pipe)

    def tasks() -> Iterator[Any]:
        while (message := pipe.recv()) is not None:
            task, free = message
            sender.take_back(free)
            yield task

    def give(result: Any) -> None:
        try:
            if isinstance(result, (Failure, Exhausted)):
                pipe.send(result)
            else:
                sender.send(result)
        except (TypeError, AttributeError, ValueError) as error:  # it cannot be pickled
            text = result.text if isinstance(result, Failure) else traceback.format_exc()
            pipe.send(Failure(RuntimeError(f"what a worker made cannot be sent: {error}"), text))

    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):  # the caller is gone
        job.run(number, tasks(), give)


class ProcessWorker:
    """A worker in a process of its own, started fresh: threads and locks are not forked. It makes
    tensors on the CPU; arrays come through memory that both processes map.
    """

    def __init__(self, job: Job, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._receiver = Receiver(self._pipe)
        self._busy: threading.Thread | None = None  # it reads or writes for the caller
        job = dataclasses.replace(job, device=device("cpu"))
        self._process = context.Process(
            target=_process, args=(job, number, theirs), name=f"numus-loader-{number}", daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, task: Any, timeout: float | None) -> None:
        try:
            self._within(timeout, lambda: self._pipe.send((task, self._receiver.returned())))
        except TimeoutError:
            raise
        except OSError:  # the pipe is broken
            raise self._death() from None

    def answer(self, timeout: float | None) -> Any:
        try:
            return self._within(timeout, self._receiver.receive)
        except (EOFError, ConnectionResetError):
            raise self._death() from None

    def _within(self, timeout: float | None, call: Callable[[], Any]) -> Any:
        """The result of a call that the other end of the pipe may hold up in its middle."""
        if timeout is None:
            return call()
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def run() -> None:
            try:
                results.put((call(), None))
            except BaseException as error:
                results.put((None, error))

        self._busy = threading.Thread(target=run, name=f"{self._process.name}-pipe", daemon=True)
        self._busy.start()
        try:
            result, error = results.get(timeout=timeout)
        except queue.Empty:
            raise _overdue(self._process.name, timeout) from None
        if error is not None:
            raise error
        return result

    def _death(self) -> RuntimeError:
        self._process.join(1)
        return RuntimeError(
            f"DataLoader: {self._process.name} died (exit code {self._process.exitcode}); what it "
            "wrote stands above"
        )

    def stop(self) -> None:
        """Close the pipe, of which a worker that waits for tasks learns."""
        if self._busy is not None and self._busy.is_alive():  # it uses the pipe until it is broken
            self._process.kill()
            self._busy.join(_KILL_SECONDS)
            if self._busy.is_alive():
                return
        self._pipe.close()

    def join(self, seconds: float) -> None:
        """Wait for the end, and bring it about where it does not come."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_KILL_SECONDS)


KINDS = {"thread": ThreadWorker, "process": ProcessWorker}


class Crew:
    """Workers, each asked in turn; `results` gives their answers in the order of the tasks."""

    def __init__(self, kind: str, job: Job, timeout: float | None) -> None:
        self._workers: list[Any] = []
        self._timeout = timeout
        try:
            for number in range(job.count):
                self._workers.append(KINDS[kind](job, number))
        except BaseException:
            self.close()
            raise

    def results(self, tasks: Iterator[Any], ahead: int) -> Iterator[Any]:
        """Results of tasks, of which `ahead` are in flight for each worker; once exhausted, the
        crew is ready for more."""
        for worker in self._workers:
            worker.ask(Begin(), self._timeout)
        alive = list(range(len(self._workers)))
        waiting: list[int] = []  # workers in the order in which they were asked
        turn = 0
        while True:
            wanted = max(ahead * len(alive) - len(waiting), 0) if alive else 0
            for task in itertools.islice(tasks, wanted):
                worker = alive[turn % len(alive)]
                turn += 1
                self._workers[worker].ask((task,), self._timeout)
                waiting.append(worker)
            if not waiting:
                return
            worker = waiting.pop(0)
            result = self._workers[worker].answer(self._timeout)
            if isinstance(result, Failure):
                result.error.add_note(f"in worker {worker} of a DataLoader:\n{result.text}")
                raise result.error
            if isinstance(result, Exhausted):
                if worker in alive:
                    turn = alive.index(worker)
                    alive.remove(worker)
                continue
            yield result

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Let all workers go, and wait until they have, for a bounded time."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.stop()
        until = time.monotonic() + seconds
        for worker in workers:
            worker.join(max(until - time.monotonic(), 0.0))
