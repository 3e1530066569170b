"""Steps of an integration, collected chunk by chunk; dense output and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import numus as nm
from numus.integrate.stepping import Problem, attempt, choose, goes_on, start
from numus.optimize.bracketing import brent
from numus.optimize.casting import cast
from numus.tensor import Tensor

_CHUNK = 64  # attempts that are one program


class OdeSolution:
    """A solution as a function of time: `sol(t)` has the shape of a state, or, for a vector of
    times, a column for each. Beyond the ends the outer steps go on."""

    def __init__(self, problem: Problem, ts: Tensor, saved: Any) -> None:
        self._problem, self._saved = problem, saved
        self.ts = ts
        self.t_min, self.t_max = nm.min(ts), nm.max(ts)

    def __call__(self, t: Any) -> Tensor:
        times = cast(nm.asarray(t), self.ts.dtype)
        flat = nm.reshape(times, -1)
        ts, p = self.ts, self._problem
        forward = bool(ts[-1] >= ts[0])
        ascending, at = (ts, flat) if forward else (-ts, -flat)
        piece = nm.clip(nm.searchsorted(ascending, at, side="left") - 1, 0, ts.shape[0] - 2)
        begin, end = ts[piece], ts[piece + 1]

        def one(saved: Any, begin: Tensor, end: Tensor, t: Tensor) -> Tensor:
            h = end - begin
            x = nm.where(h == 0, 0.0, (t - begin) / nm.where(h == 0, 1.0, h))
            return p.method.interpolate(p, saved, begin, h, cast(x, t.dtype))

        rows = nm.tree.map(lambda x: x[piece], self._saved)
        ys = nm.vmap(one)(rows, begin, end, flat)
        return ys[0] if times.ndim == 0 else nm.swapaxes(ys, 0, 1)


class Collected(NamedTuple):
    """What was found on the way."""

    ts: Tensor
    ys: Tensor
    sol: OdeSolution
    t_events: list[Tensor]
    y_events: list[Tensor]
    status: Tensor
    nfev: Tensor
    njev: Tensor
    nlu: Tensor


def collect(
    p: Problem, first: Tensor, last: Tensor, y: Tensor, events: Sequence[Callable[..., Any]]
) -> Collected:
    """All steps from the first time to the last, or to a terminal event."""
    direction = nm.sign(last - first)

    def step(s: Any, _: Any) -> Any:
        active = goes_on(p, s, last, direction)
        new = choose(active, attempt(p, s, last), s)
        return new, (active & nm.logical_not(new.retrying), new.t, new.y, new.saved)

    chunk = nm.jit(lambda s: nm.scan(step, s, None, _CHUNK))
    s = start(p, first, y, last)
    watch = _Watch(p, events, first, y)
    rows: list[Any] = [(nm.stack([first]), nm.expand_dims(y, 0), None)]
    status = 0
    while bool(goes_on(p, s, last, direction)) and status == 0:
        s, (taken, *found) = chunk(s)
        kept = nm.asarray(np.flatnonzero(taken.numpy()))
        if kept.shape[0] == 0:
            continue
        ts, ys, saved = nm.tree.map(lambda x, kept=kept: x[kept], tuple(found))
        stop = watch.look(rows[-1][0][-1], ts, ys, saved)
        if stop is not None:
            at, t_end, y_end = stop
            ts, ys, saved = nm.tree.map(lambda x, at=at: x[: at + 1], (ts, ys, saved))
            watch.cut_from = ts[-1]
            ends = nm.stack([t_end])
            ys = nm.concat([ys[:-1], nm.expand_dims(y_end, 0)])
            ts, status = nm.concat([ts[:-1], ends]), 1
        rows.append((ts, ys, saved))
    if status == 0 and bool(direction * (last - s.t) > 0):
        status = -1
    blank = nm.tree.map(lambda x: nm.expand_dims(x, 0), p.method.blank(y))
    ts = nm.concat([row[0] for row in rows])
    ys = nm.concat([row[1] for row in rows])
    parts = [row[2] for row in rows[1:]] or [blank]
    saved = nm.tree.map(lambda *x: nm.concat(list(x)), *parts)
    ends = ts if len(rows) > 1 else nm.concat([ts, ts])
    if status == 1:  # the last step is interpolated as the whole that it was
        ends = nm.concat([ts[:-1], nm.stack([watch.cut_from])])
    sol = OdeSolution(p, ends, saved)
    return Collected(
        ts, ys, sol, [nm.asarray(t, dtype=ts.dtype) for t in watch.times],
        [nm.stack(y) if y else nm.zeros((0,), dtype=ys.dtype) for y in watch.states],
        nm.asarray(status, dtype=nm.int32), s.nfev, s.njev, s.nlu,
    )  # fmt: skip


class _Watch:
    """The events of an integration, and where they happened."""

    def __init__(
        self, p: Problem, events: Sequence[Callable[..., Any]], t: Tensor, y: Tensor
    ) -> None:
        self._problem, self._events = p, events
        self._before = [event(t, y).item() for event in events]
        self.times: list[list[float]] = [[] for _ in events]
        self.states: list[list[Tensor]] = [[] for _ in events]
        self.cut_from: Any = None  # the end of the last step, before it was cut

    def look(
        self, begin: Tensor, ts: Tensor, ys: Tensor, saved: Any
    ) -> tuple[int, Tensor, Tensor] | None:
        """Find the events of some steps; where one is terminal: its step, time and state."""
        hits = []  # (step, event)
        for number, event in enumerate(self._events):
            after = nm.vmap(event)(ts, ys).numpy()
            before = np.concatenate([[self._before[number]], after[:-1]])
            rising, falling = (before <= 0) & (after >= 0), (before >= 0) & (after <= 0)
            sign = getattr(event, "direction", 0)
            crossed = (rising & (sign >= 0)) | (falling & (sign <= 0))
            hits += [(int(i), number) for i in np.flatnonzero(crossed)]
            self._before[number] = float(after[-1])
        starts = nm.concat([nm.expand_dims(begin, 0), ts[:-1]])
        for i in sorted({step for step, _ in hits}):
            here = nm.tree.map(lambda x, i=i: x[i], saved)
            numbers = [number for step, number in hits if step == i]
            roots = [(self._root(n, here, starts[i], ts[i]), n) for n in numbers]
            forward = ts[i].item() >= starts[i].item()
            for t, number in sorted(roots, key=lambda r: r[0].item() if forward else -r[0].item()):
                y = self._at(here, starts[i], ts[i], t)
                self.times[number].append(t.item())
                self.states[number].append(y)
                terminal = getattr(self._events[number], "terminal", False)
                if terminal and len(self.times[number]) >= int(terminal):
                    return i, t, y
        return None

    def _at(self, saved: Any, begin: Tensor, end: Tensor, t: Tensor) -> Tensor:
        h = end - begin
        return self._problem.method.interpolate(self._problem, saved, begin, h, (t - begin) / h)

    def _root(self, number: int, saved: Any, begin: Tensor, end: Tensor) -> Tensor:
        event = self._events[number]
        least = 4 * float(nm.finfo(begin.dtype).eps)
        return brent(
            lambda t: event(t, self._at(saved, begin, end, t)), begin, end, least, least, 100
        ).root
