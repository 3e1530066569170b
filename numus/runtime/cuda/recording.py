"""Whole runs as one CUDA graph: launch lists, and the calls of libraries between them.

Stream capture (CUDA graphs) over several launch lists: a run with collectives between its programs
is recorded first, while its memory is allocated, and launched at its end. A run that recurs with
the same work at the same addresses is captured, NCCL's kernels included, and replayed from then on.
Recording changes no order: all work of a device is on one stream, and the launch lock is held from
the beginning of a run to its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from numus.runtime.cuda import driver

if TYPE_CHECKING:
    from numus.runtime.cuda.context import CudaContext

_MAX_GRAPHS = 8  # of a run: memory that it allocates alternates between a few addresses

Launch = Callable[[], None]


class RunRecorder:
    """Records the runs of one program: `with recorder:` around each of them."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._graphs: OrderedDict[Hashable, tuple[Any, list[Launch]]] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()  # contents that came once
        self._capturable = True
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
        graph = self._graph() if replays and self._capturable else None
        if graph is not None:
            driver.call("cuGraphLaunch", graph, self._context.stream)
            self._context.written.forget()
            return
        for work in self._work:
            work()

    def _graph(self) -> Any:
        """The graph of this run, captured when it comes a second time."""
        key = tuple(self._keys)
        found = self._graphs.get(key)
        if found is not None:
            return found[0]
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > _MAX_GRAPHS:
                self._seen.popitem(last=False)
            return None
        graph = self._captured()
        if graph is not None:
            self._graphs[key] = graph, self._work  # which keeps alive what keys name
            if len(self._graphs) > _MAX_GRAPHS:
                _, (oldest, _) = self._graphs.popitem(last=False)
                driver.call("cuGraphExecDestroy", oldest)
        return graph

    def _captured(self) -> Any:
        """A graph of the work; None where a library does not let its calls be captured: it is not
        tried again."""
        context, captured = self._context, None
        mode = driver.constant("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
        try:
            driver.call("cuStreamBeginCapture", context.stream, mode)
            context.capturing = True
            try:
                for work in self._work:
                    work()
            finally:
                context.capturing = False
                captured = driver.call("cuStreamEndCapture", context.stream)
            return driver.call("cuGraphInstantiate", captured, 0)
        except Exception:
            self._capturable = False
            return None
        finally:
            if captured is not None:
                driver.call("cuGraphDestroy", captured)

    def __del__(self) -> None:
        self._context.retired_graphs += [graph for graph, _ in self._graphs.values()]
