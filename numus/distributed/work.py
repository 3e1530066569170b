"""Collectives that run outside of a trace: at once, or under way behind a handle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from numus.distributed.calls import Collective, StartedCollective
from numus.evaluation import storage_lock
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, Nodes, View, current_trace
from numus.primitives import control
from numus.primitives.source import value
from numus.runtime.devices import Device, default
from numus.tensor import Tensor
from numus.transforms import tree

__all__ = ["Work", "start"]


class _Scope(threading.local):
    started: list[StartedCollective] | None = None  # a list: collectives are not waited for


_scope = _Scope()


class _Arrival:
    """The results of a collective under way, as a call that waits for them."""

    name = "arrival"
    batch_axes = (0,)

    def __init__(self, call: Collective, started: StartedCollective) -> None:
        self.results = call.results
        self._started = started

    def run(self, device: Device, operands: Nodes) -> list[View]:
        return self._started.views()


def run_now(call: Collective, x: Node) -> Node:
    """Run a collective of a concrete node; between `start` and its end, only begin it."""
    if x.view is None:
        evaluate((x,))
    device = x.device or default.device
    with storage_lock.lock:
        if storage_lock.writers and x.view is not None:
            storage_lock.wait_for_writers((x.view.storage,))
        if _scope.started is None and x.view is not None and x.device is device:
            found = call.run_at(device, x.view)
            if found is not None:
                return value(found, *call.result, device)
        started = call.start(device, (x,))
        if _scope.started is None:
            (view,) = started.views()
            return value(view, *call.result, device)
    _scope.started.append(started)
    whole: Any = _Arrival(call, started)
    (y,) = control.call(whole, ())
    y.inputs[0].device = y.device = device
    return y


class Work:
    """A collective under way."""

    def __init__(self, result: Any, started: list[StartedCollective]) -> None:
        self.result = result  # waits when it is read
        self._started = started

    def is_completed(self) -> bool:
        """Whether the result is there, without waiting."""
        return all(s.done() for s in self._started)

    def wait(self) -> Any:
        """The result."""
        evaluate([x._node for x in tree.leaves(self.result) if isinstance(x, Tensor)])
        self._started.clear()
        return self.result


def start(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Work:
    """Begin a collective and go on without its result, which the handle's `wait()` gives.

    All ranks begin their collectives in the same order. Inside of `nm.jit`, collectives are under
    way until their results are used in any case.

    >>> work = nm.distributed.start(nm.distributed.all_reduce, nm.asarray([1.0, 2.0]), "mean")
    >>> work.wait()
    tensor([1., 2.])
    """
    if current_trace() is not None:
        return Work(function(*args, **kwargs), [])
    before = _scope.started
    started: list[StartedCollective] = []
    _scope.started = started
    try:
        return Work(function(*args, **kwargs), started)
    finally:
        _scope.started = before
