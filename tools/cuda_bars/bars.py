"""Bars: a figure that is asked for, and how it is measured.

A `Comparison` gives numus and PyTorch the same inputs, holds numus's results to PyTorch's (or to a
check of its own), and only then times both in turns (`tools/cuda_timing.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.cuda_timing import Bench

BANDWIDTH = 4.3e12  # bytes/s that a copy reaches on one H200


@dataclass(frozen=True)
class Figure:
    """What was measured, and what was asked: at least that, or at most."""

    name: str
    value: float
    asked: float
    unit: str = "x"
    at_most: bool = False
    ms: dict[str, float] = field(default_factory=dict)
    error: float = 0.0

    @property
    def is_reached(self) -> bool:
        return self.value <= self.asked if self.at_most else self.value >= self.asked


@dataclass(frozen=True)
class Bar:
    """A row: it yields one figure or several. Rows of a smaller `order` are measured before."""

    family: str
    name: str
    run: Callable[[Bench], Iterator[Figure]]
    order: int = 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """numus and PyTorch on the same inputs.

    Args:
        asked: the least ratio of PyTorch's best time to that of `auto` kernels.
        native: the least ratio of numus's own kernels, where `auto` may take a vendor's.
        prepared, prepared_theirs: operands as each library keeps them, from its inputs.
        check: the error of numus's results, as PyTorch's tensors, given the inputs; left out, it is
            their distance from PyTorch's results.
        nbytes, share: the bytes that must be moved, and the share of memory's speed asked.
        copies: sets of inputs that take turns, so that each comes from memory and not from a cache.
        captured: calls are timed in a CUDA graph, where the host is no part of it.
    """

    family: str
    name: str
    inputs: Callable[[], Sequence[Any]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    asked: float = 1.0
    native: float = 0.0
    prepared: Callable[..., Sequence[Any]] | None = None
    prepared_theirs: Callable[..., Sequence[Any]] | None = None
    check: Callable[[list[Any], Sequence[Any]], float] | None = None
    tolerance: float = 1e-3
    compiled: bool = False
    jitted: bool = True
    nbytes: float = 0.0
    share: float = 0.0
    copies: int = 1
    captured: bool = False
    order: int = 1

    def bar(self) -> Bar:
        return Bar(self.family, self.name, self.figures, self.order)

    def figures(self, bench: Bench) -> Iterator[Figure]:
        torch, nm = bench.torch, bench.nm
        ts, xs, ps = [], [], []
        for _ in range(1 if bench.most else self.copies):
            given = self.inputs()
            own = [bench.from_torch(t) if isinstance(t, torch.Tensor) else t for t in given]
            ts.append(given)
            xs.append(self.prepared(*own) if self.prepared else own)
            ps.append(self.prepared_theirs(*given) if self.prepared_theirs else given)
        nm.eval(xs)
        kinds = ("numus", "native") if self.native else ("numus",)
        functions = {k: nm.jit(self.ours) if self.jitted else self.ours for k in kinds}
        error = 0.0
        for kind, function in functions.items():
            with nm.kernels.prefer("native" if kind == "native" else "auto"):
                error = max(error, self._error(bench, function(*xs[0]), ts[0], ps[0]))
        if not error <= self.tolerance:
            raise AssertionError(f"wrong: an error of {error:.1e}, above {self.tolerance:.0e}")
        peers = {"torch": self.theirs}
        if self.compiled and not bench.most:
            peers["torch.compile"] = torch.compile(self.theirs, dynamic=False)
        calls = {k: _in_order(lambda *a, f=f: nm.eval(f(*a)), xs) for k, f in functions.items()}
        calls |= {k: _in_order(f, ps) for k, f in peers.items()}
        times = self._captured(bench, calls) if self.captured else bench.in_turns(calls)
        best = min(times[k] for k in peers)
        yield Figure(self.name, best / times["numus"], self.asked, ms=times, error=error)
        if self.native:
            yield Figure(f"{self.name}, native", best / times["native"], self.native, ms=times)
        if self.share:
            reached = self.nbytes / (times["numus"] * 1e-3) / BANDWIDTH
            yield Figure(f"{self.name}, of memory's speed", reached, self.share, "", ms=times)

    def _error(self, bench: Bench, got: Any, ts: Sequence[Any], ps: Sequence[Any]) -> float:
        found = [bench.torch.from_dlpack(x) for x in leaves(got)]
        if self.check is not None:
            return float(self.check(found, ts))
        wanted = leaves(self.theirs(*ps))
        if len(found) != len(wanted):
            raise AssertionError(f"{len(found)} results, where PyTorch has {len(wanted)}")
        return max(map(distance, found, wanted))

    def _captured(self, bench: Bench, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
        if bench.device != "cuda":
            return bench.in_turns(calls)
        many = self.copies * max(1, 16 // self.copies)
        replays = {}
        for kind, call in calls.items():
            with bench.nm.kernels.prefer("native" if kind == "native" else "auto"):
                capture = bench.captured_by_torch if kind.startswith("torch") else bench.captured
                replays[kind] = capture(call, many)
        return {kind: ms / many for kind, ms in bench.in_turns(replays, 3).items()}


def leaves(x: Any) -> list[Any]:
    """The tensors of a result."""
    if isinstance(x, list | tuple):
        return [leaf for part in x for leaf in leaves(part)]
    return [] if x is None else [x]


def distance(got: Any, want: Any) -> float:
    """The norm of the difference of finite elements, relative to what is wanted; inf where shapes,
    NaNs or infinities differ."""
    if got.shape != want.shape:
        return float("inf")
    wide = got.cdouble if got.is_complex() else got.double
    found, exact = wide(), want.cdouble() if want.is_complex() else want.double()
    finite = exact.isfinite()
    if not finite.all():
        if not ((found == exact) | finite | (found.isnan() & exact.isnan())).all():
            return float("inf")
        found, exact = found[finite], exact[finite]
    error = float((found - exact).norm() / exact.norm().clamp_min(1e-30))
    return error if error == error else float("inf")


def _in_order(call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Callable[[], Any]:
    turns = itertools.cycle(sets)
    return lambda: call(*next(turns))
