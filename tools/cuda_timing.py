"""Timing of numus and PyTorch in turns, in one process, on the same inputs: `Bench`.

Throughput is the time of many back-to-back calls between two CUDA events, the best of several
batches. Latency is that of calls synchronised one by one, launch overhead included. A ratio is the
best time of PyTorch (eager, `torch.compile`) over that of numus. Without a GPU, programs run with
small sizes on the CPU, by the host's clock: that proves that they run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Row:
    """A workload: its inputs' shapes, and a function for each library."""

    name: str
    shapes: Sequence[tuple[int, ...]]
    dtype: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    nbytes: int = 0
    flops: float = 0
    compiled: bool = False  # whether torch.compile is measured as well


Elapsed = Callable[[Callable[[], Any], int], float]  # seconds that so many calls take


def by_clock(wait: Callable[[], None]) -> Elapsed:
    """The host's clock, from the first call to the end of all work."""

    def elapsed(function: Callable[[], Any], count: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(count):
            function()
        wait()
        return time.perf_counter() - began

    return elapsed


def by_events(torch: Any, stream: Any) -> Elapsed:
    """CUDA events, recorded on the stream that the calls launch on."""

    def elapsed(function: Callable[[], Any], count: int) -> float:
        begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begins.record(stream)
        for _ in range(count):
            function()
        ends.record(stream)
        ends.synchronize()
        return float(begins.elapsed_time(ends)) * 1e-3

    return elapsed


def measure(function: Callable[[], Any], elapsed: Elapsed, seconds: float) -> float:
    """Throughput: ms per call, the best of several batches, each synchronised once. A call that
    takes longer than `seconds` is timed once."""
    function()
    once = elapsed(function, 1)
    if once > seconds:
        return once * 1e3
    function()
    count = max(1, min(300, int(seconds / 4 / max(once, 1e-6))))
    return min(elapsed(function, count) / count for _ in range(4)) * 1e3


def measure_latency(torch: Any, function: Callable[[], Any], stream: Any) -> float:
    """Latency: the median time of a synchronised call, in ms, between events on its stream."""
    times = []
    for _ in range(17):
        begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begins.record(stream)
        function()
        ends.record(stream)
        ends.synchronize()
        times.append(begins.elapsed_time(ends))
    return sorted(times[2:])[7]


def fitted(most: int, sizes: Any) -> Any:
    """Sizes, however nested, of at most `most`, odd ones odd; 0: as they are."""
    if isinstance(sizes, tuple):
        return tuple(fitted(most, size) for size in sizes)
    if not isinstance(sizes, int) or not most or sizes <= most:
        return sizes
    return most - 1 + (sizes + 1) % 2


def drawn(torch: Any, dtype: str, *shapes: tuple[int, ...]) -> Callable[[], list[Any]]:
    """Random inputs on the default device."""
    kind = getattr(torch, dtype)
    if dtype == "int8":
        return lambda: [torch.randint(-9, 9, s, dtype=kind) for s in shapes]
    wide = kind if kind in (torch.float64, torch.complex128) else torch.float32
    first = torch.complex64 if dtype == "complex64" else wide
    return lambda: [torch.randn(*s, dtype=first).to(kind) for s in shapes]


class Bench:
    """Measures rows and writes them as a table."""

    def __init__(
        self,
        seconds: float,
        say: Callable[[str], None],
        only: str = "",
        device: str = "cuda",
        most: int = 0,  # the largest extent of a trial; 0: sizes as they are
    ) -> None:
        import torch

        import numus as nm

        self.torch, self.nm, self.device = torch, nm, device
        self.runtime = nm.device(device).runtime
        self.seconds, self.say, self.only, self.most = seconds, say, only, most
        torch.set_default_device(device)
        nm.set_default_device(device)

    def fit(self, sizes: Any) -> Any:
        """Sizes, or those of a trial."""
        return fitted(self.most, sizes)

    def inputs(self, row: Row) -> tuple[list[Any], list[Any]]:
        self.torch.cuda.empty_cache()
        ts = drawn(self.torch, row.dtype, *row.shapes)()
        return [self.from_torch(t) for t in ts], ts

    def from_torch(self, t: Any) -> Any:
        """A PyTorch tensor as a numus tensor."""
        torch, nm = self.torch, self.nm
        if t.dtype is torch.float8_e4m3fn:  # not supported by PyTorch's DLPack export
            codes = t.view(torch.uint8).cpu().numpy().view(nm.float8_e4m3fn.np)
            return nm.asarray(codes).to(self.device)
        return nm.from_dlpack(t)

    def error(self, row: Row, xs: list[Any], ts: list[Any]) -> float:
        wide = self.torch.complex128 if row.dtype.startswith("complex") else self.torch.float64
        got = self.torch.from_dlpack(row.ours(*xs)).to(wide).flatten()
        want = row.theirs(*ts).to(wide).flatten()
        return float((got - want).norm() / want.norm().clamp_min(1e-30))

    def elapsed(self, which: str) -> Elapsed:
        """How calls are timed: those of PyTorch by events on its stream, others on numus's."""
        if self.device != "cuda":
            return by_clock(self.runtime.synchronize)
        cuda = self.torch.cuda
        own = cuda.ExternalStream(self.runtime.stream_id)
        return by_events(self.torch, cuda.current_stream() if which.startswith("torch") else own)

    def in_turns(
        self, calls: Mapping[str, Callable[[], Any]], rounds: int = 2, seconds: float = 0.0
    ) -> dict[str, float]:
        """The best time of each call in ms. Calls named `torch…` are PyTorch's; `native` prefers
        numus's own kernels."""
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(rounds):
            for which, call in calls.items():
                with self.nm.kernels.prefer("native" if which == "native" else "auto"):
                    once = measure(call, self.elapsed(which), seconds or self.seconds)
                best[which] = min(best[which], once)
        return best

    def latency(self, row: Row, xs: list[Any], functions: list[Any], ts: list[Any]) -> list[float]:
        """Latencies: eager numus, jitted numus, the best of PyTorch."""
        torch, nm = self.torch, self.nm
        ours = torch.cuda.ExternalStream(self.runtime.stream_id)
        jitted = nm.jit(row.ours)
        calls = [
            (lambda: nm.eval(row.ours(*xs)), ours),
            (lambda: nm.eval(jitted(*xs)), ours),
            *((partial(f, *ts), torch.cuda.current_stream()) for f in functions),
        ]
        best = [float("inf")] * len(calls)
        for _ in range(2):  # interleaved
            best = [
                min(t, measure_latency(torch, call, stream))
                for t, (call, stream) in zip(best, calls, strict=True)
            ]
        return [*best[:2], min(best[2:])]

    def table(self, found: Iterator[Row]) -> None:
        """One line per row: throughput, latency and error."""
        self.say(
            "| workload | numus ms | PyTorch ms | compiled ms | ratio | numus "
            "| synchronised: numus ms | in jit ms | PyTorch's best ms | ratio | in jit | error |"
        )
        self.say("|---|" + "---:|" * 11)
        for row in found:
            if not re.search(self.only, row.name):
                continue
            try:
                xs, ts = self.inputs(row)
                error = self.error(row, xs, ts)
                functions = [row.theirs]
                if row.compiled:
                    functions.append(self.torch.compile(row.theirs))
                calls = {"numus": lambda row=row, xs=xs: self.nm.eval(row.ours(*xs))}
                for which, f in zip(("torch", "torch.compile"), functions, strict=False):
                    calls[which] = partial(f, *ts)
                own, *others = self.in_turns(calls).values()
                plain, jitted, theirs = self.latency(row, xs, functions, ts)
                rate = f"{row.nbytes / own / 1e9:.2f} TB/s" if row.nbytes else ""
                rate = f"{row.flops / own / 1e9:.0f} TFLOP/s" if row.flops else rate
                second = f"{others[1]:.3f}" if row.compiled else ""
                self.say(
                    f"| {row.name} | {own:.3f} | {others[0]:.3f} | {second} "
                    f"| {min(others) / own:.2f} | {rate} | {plain:.3f} | {jitted:.3f} "
                    f"| {theirs:.3f} | {theirs / plain:.2f} | {theirs / jitted:.2f} | {error:.1e} |"
                )
            except Exception as problem:
                self.say(f"| {row.name} | {error_message(problem)} |" + " |" * 10)

    def gemm_table(self, found: Iterator[Row]) -> None:
        """One line per row: native kernels and `auto`, as single calls and in a CUDA graph."""
        self.say(
            "| GEMM | native ms | auto ms | PyTorch ms | native | auto | CUDA graphs: native ms "
            "| auto ms | PyTorch ms | native | auto | error |"
        )
        self.say("|---|" + "---:|" * 11)
        below: list[str] = []
        for row in found:
            if not re.search(self.only, row.name):
                continue
            try:
                ratios = self._gemm(row)
            except Exception as problem:
                self.say(f"| {row.name} | {error_message(problem)} |" + " |" * 10)
                ratios = [0.0]
            if min(ratios) < 0.95:
                below.append(f"{row.name} ({', '.join(f'{r:.2f}' for r in ratios)})")
        told = "; ".join(below) or "none"
        self.say(f"\n`auto` below 0.95 of PyTorch, in single calls or in graphs: {told}.")

    def _gemm(self, row: Row) -> list[float]:
        """Write a line; return the ratios of `auto`, in single calls and in a graph."""
        xs, ts = self.inputs(row)
        prefer, evaluate = self.nm.kernels.prefer, self.nm.eval

        def ours() -> None:
            evaluate(row.ours(*xs))

        def theirs() -> None:
            row.theirs(*ts)

        errors = []
        for which in ("native", "auto"):
            with prefer(which):
                errors.append(self.error(row, xs, ts))

        turns = partial(self.in_turns, rounds=3, seconds=self.seconds / 2)
        single = turns({"native": ours, "auto": ours, "torch": theirs})
        many = max(1, min(20, int(4 / single["torch"])))
        replays: dict[str, Callable[[], Any]] = {}
        try:
            for which in ("native", "auto"):
                with prefer(which):
                    replays[which] = self.captured(ours, many)
            replays["torch"] = self.captured_by_torch(theirs, many)
        except Exception as problem:
            print(f"{row.name}, in a graph: {error_message(problem)}", flush=True)
            replays = {}
        graphs = {which: t / many for which, t in turns(replays).items()}
        cells, ratios = [], []
        for times in (single, graphs) if graphs else (single,):
            cells += [f"{times[w]:.4f}" for w in ("native", "auto", "torch")]
            cells += [f"{times['torch'] / times[w]:.2f}" for w in ("native", "auto")]
            ratios.append(times["torch"] / times["auto"])
        cells += [""] * (10 - len(cells))
        self.say(f"| {row.name} | {' | '.join(cells)} | {max(errors):.1e} |")
        return ratios

    def captured(self, call: Callable[[], None], many: int) -> Callable[[], None]:
        """A function that launches a CUDA graph of `many` calls."""
        from numus.compiler.plan import clear_plans
        from numus.runtime.cuda import driver, launch

        runtime = self.runtime
        mode = driver.constant("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
        # no nested graphs, neither of programs nor of single launches
        before = launch.TUNING, runtime.graph_functions
        launch.TUNING = replace(launch.TUNING, min_graph_steps=1000)
        runtime.graph_functions = 0
        clear_plans()
        for _ in range(4):
            call()
        runtime.synchronize()
        driver.call("cuStreamBeginCapture", runtime.stream, mode)
        try:
            for _ in range(many):
                call()
        finally:
            graph = driver.call("cuStreamEndCapture", runtime.stream)
            launch.TUNING, runtime.graph_functions = before
            clear_plans()
        ready = driver.call("cuGraphInstantiate", graph, 0)
        driver.call("cuGraphDestroy", graph)
        return lambda: driver.call("cuGraphLaunch", ready, runtime.stream)

    def captured_by_torch(self, call: Callable[[], Any], many: int) -> Callable[[], None]:
        torch = self.torch
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(many):
                    call()
        return graph.replay  # type: ignore[no-any-return]


def error_message(problem: Exception) -> str:
    text = str(problem).splitlines()[0] if str(problem) else repr(problem)
    return f"failed: {type(problem).__name__}: {text[:200]}"
