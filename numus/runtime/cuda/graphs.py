"""CUDA graphs of work that recurs: of a launch list, of many runs of a loop, of a whole run with
calls of libraries between its launch lists.

Such a run, with collectives between its programs, is recorded first, while its memory is allocated,
and launched at its end. When it recurs with the same work at the same addresses, NCCL's kernels are
captured with the others. Recording changes no order: all work of a device is on one stream, and the
launch lock is held from the beginning of a run to its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from numus.runtime.cuda import driver

if TYPE_CHECKING:
    from numus.runtime.cuda.context import CudaContext

_MAX_GRAPHS = 8  # of a run

Launch = Callable[[], None]


class GraphCache:
    """Graphs of work that came before. Memory that a program allocates alternates between a few
    addresses, and so does what it does with it."""

    def __init__(self, context: CudaContext, most: int, capturable: bool = True) -> None:
        self.capturable = capturable
        self._context, self._most = context, most
        self._graphs: OrderedDict[Hashable, tuple[Any, Any]] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()  # what came once

    def replay(self, key: Hashable, work: Launch, alive: Any = None) -> bool:
        """Replay work, which is captured when its key comes a second time; False where it is to be
        launched without a graph. What a key names has to be `alive` as long as it is kept."""
        if not self.capturable:
            return False
        found = self._graphs.get(key)
        if found is None:
            if key not in self._seen:
                self._seen[key] = None
                if len(self._seen) > self._most:
                    self._seen.popitem(last=False)
                return False
            graph = self._captured(work)
            if graph is None:
                return False
            found = self._graphs[key] = graph, alive
            if len(self._graphs) > self._most:
                _, (oldest, _) = self._graphs.popitem(last=False)
                driver.call("cuGraphExecDestroy", oldest)
        driver.call("cuGraphLaunch", found[0], self._context.stream)
        self._context.written.forget()
        return True

    def _captured(self, work: Launch) -> Any:
        """A graph of the work; None where some of it cannot be captured, as a user's kernel or a
        library may not let it: it is not tried again, and its errors show without a graph."""
        context, captured = self._context, None
        mode = driver.constant("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
        try:
            driver.call("cuStreamBeginCapture", context.stream, mode)
            context.capturing = True
            try:
                work()
            finally:
                context.capturing = False
                captured = driver.call("cuStreamEndCapture", context.stream)
            return driver.call("cuGraphInstantiate", captured, 0)
        except Exception:
            self.capturable = False
            return None
        finally:
            if captured is not None:
                driver.call("cuGraphDestroy", captured)

    def __del__(self) -> None:
        self._context.retired_graphs += [graph for graph, _ in self._graphs.values()]


class RunRecorder:
    """Records the runs of one program: `with recorder:` around each of them."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._graphs = GraphCache(context, _MAX_GRAPHS)
        self._keys: list[Hashable] = []
        self._work: list[Launch] = []
        self._done: list[Callable[[], None]] = []

    def __enter__(self) -> RunRecorder:
        self._clear()
        self._context.recording = self
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._context.recording is not self:
            return  # it has stopped
        self._context.recording = None
        try:
            if error is None:
                self._launch(replays=True)
        finally:
            self._clear()

    def add(self, key: Hashable, work: Launch, done: Callable[[], None] | None = None) -> None:
        """Record work on the stream. The same key stands for the same work, as long as the work
        keeps what the key names alive; `done` is called once it was launched."""
        self._keys.append(key)
        self._work.append(work)
        if done is not None:
            self._done.append(done)

    def stop(self) -> None:
        """Launch what there is, and record no more of this run: what follows is compiled first."""
        self._context.recording = None
        self._launch(replays=False)
        self._clear()

    def _clear(self) -> None:
        for done in self._done:
            done()
        self._keys, self._work, self._done = [], [], []

    def _launch(self, replays: bool) -> None:
        self._context.activate()
        self._context.early_results = {}
        whole = self._work  # which keeps alive what keys name

        def launch_all() -> None:
            for work in whole:
                work()

        if not replays or not self._graphs.replay(tuple(self._keys), launch_all, whole):
            launch_all()
