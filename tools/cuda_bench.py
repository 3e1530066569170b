"""Workloads on an NVIDIA GPU, numus beside PyTorch: what `tools.cuda_report` measures.

Both run in turns in one process, on the same numbers. Times are wall-clock times of many calls that
are waited for together, the best of several batches. A ratio is the time of the best of PyTorch's
ways (eager, `torch.compile`) over that of numus.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

ABOUT = {
    "rows": "Ratios are the best time of PyTorch (eager, or `torch.compile`) over numus's: above "
    "1, numus is quicker. Errors are relative differences from PyTorch's results.",
    "products": 'By numus\'s own kernels (`nm.kernels.prefer("native")`) and by whichever `auto` '
    "takes (the default), each called by itself and, if square, as a chain of eight in a graph. "
    "Ratios are PyTorch's time over numus's. `nt`, `tn`, `tt`: operands that are turned over, as "
    "the weights of a linear layer are.",
    "attention": "Causal attention beside what `scaled_dot_product_attention` takes by itself "
    "(cuDNN's kernels for 16 bits); convolutions beside cuDNN; `float32` without TF32.",
}


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
    compiled: bool = False  # whether PyTorch's compiler is asked as well


def measure(function: Callable[[], Any], wait: Callable[[], None], seconds: float) -> float:
    """The time of one call, in ms: the best of several batches, each waited for as a whole."""
    function()
    function()
    wait()
    began = time.perf_counter()
    function()
    wait()
    once = time.perf_counter() - began
    count = max(1, min(300, int(seconds / 4 / max(once, 1e-6))))
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        for _ in range(count):
            function()
        wait()
        best = min(best, (time.perf_counter() - began) / count)
    return best * 1e3


def rows(torch: Any, nm: Any) -> Iterator[Row]:
    """Elementwise operations, reductions, scans, sorts."""
    import torch.nn.functional as F

    n, wide = 1 << 28, (16384, 8192)
    size = 4 * wide[0] * wide[1]
    yield Row(
        *("relu(x*2+1) 2^28", [(n,)], "float32"),
        *(lambda x: nm.relu(x * 2 + 1), lambda x: torch.relu(x * 2 + 1)),
        *(8 * n, 0, True),
    )
    yield Row(
        *("sum relu(x*2+1) 2^28", [(n,)], "float32"),
        *(lambda x: nm.relu(x * 2 + 1).sum(), lambda x: torch.relu(x * 2 + 1).sum()),
        *(4 * n, 0, True),
    )
    yield Row("sum 2^28", [(n,)], "float32", lambda x: x.sum(), lambda x: x.sum(), 4 * n)
    yield Row(
        *("cumsum 2^28", [(n,)], "float32"),
        *(lambda x: nm.cumsum(x, axis=0), lambda x: x.cumsum(0), 8 * n),
    )
    yield Row("sort 2^24", [(1 << 24,)], "float32", nm.sort, lambda x: torch.sort(x)[0], 8 << 24)
    yield Row(
        *("softmax 16384x8192", [wide], "float32"),
        *(lambda x: nm.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), 2 * size, 0, True),
    )
    yield Row(
        *("layer_norm 16384x8192", [wide, (8192,), (8192,)], "float32", nm.layer_norm),
        *(lambda x, w, b: F.layer_norm(x, (8192,), w, b), 2 * size, 0, True),
    )
    yield Row(
        *("sum axis 0 16384x8192", [wide], "float32"),
        *(lambda x: nm.sum(x, axis=0), lambda x: x.sum(0), size, 0, True),
    )
    yield Row(
        *("x + x.T 8192", [(8192, 8192)], "float32"),
        *(lambda x: x + x.T, lambda x: x + x.T, 8 * 8192**2, 0, True),
    )
    yield Row(
        *("gelu(x + b) 16384x8192", [wide, (8192,)], "bfloat16"),
        *(lambda x, b: nm.gelu(x + b), lambda x, b: F.gelu(x + b), size, 0, True),
    )


def attention(torch: Any, nm: Any) -> Iterator[Row]:
    """Causal attention, forwards and with its gradients; convolutions."""
    import torch.nn.functional as F

    attend = partial(nm.scaled_dot_product_attention, is_causal=True)

    def ours(q: Any, k: Any, v: Any, g: Any) -> Any:
        return nm.stack(list(nm.vjp(attend, q, k, v)[1](g)))

    def theirs(q: Any, k: Any, v: Any, g: Any) -> Any:
        xs = [x.detach().requires_grad_() for x in (q, k, v)]
        F.scaled_dot_product_attention(*xs, is_causal=True).backward(g)
        return torch.stack([x.grad for x in xs])

    for dtype, shape in (
        ("bfloat16", (4, 16, 4096, 128)),
        ("bfloat16", (4, 16, 4096, 64)),
        ("float32", (4, 16, 2048, 64)),
    ):
        flops = 2 * shape[0] * shape[1] * shape[2] ** 2 * shape[3]  # half of the scores count
        name = f"attention {'x'.join(map(str, shape))} {dtype}"
        plain = partial(F.scaled_dot_product_attention, is_causal=True)
        yield Row(name, [shape] * 3, dtype, attend, plain, 0, flops)
        yield Row(f"{name}, and gradients", [shape] * 4, dtype, ours, theirs, 0, 3.5 * flops)
    for dtype, channels, space in (
        *(("bfloat16", 64, 56), ("bfloat16", 256, 28), ("bfloat16", 256, 56)),
        ("float32", 256, 28),
    ):
        yield Row(
            f"conv2d 64x{channels}x{space}x{space} 3x3 {dtype}",
            *([(64, channels, space, space), (channels, channels, 3, 3)], dtype),
            *(lambda x, w: nm.conv2d(x, w, padding=1), lambda x, w: F.conv2d(x, w, padding=1)),
            *(0, 2 * 64 * (channels * space * 3) ** 2),
        )


def products(torch: Any, nm: Any) -> Iterator[Row]:
    """Products of many shapes and dtypes."""
    import torch.nn.functional as F

    def product(a: Any, b: Any) -> Any:
        return a @ b

    squares = {
        "bfloat16": (1024, 2048, 4096, 8192),
        "float16": (1024, 4096),
        "float32": (1024, 2048, 4096, 8192),
        "float64": (1024, 4096),
        "complex64": (1024,),
    }
    for dtype, sizes in squares.items():
        for k in sizes:
            name, shapes = f"{dtype} {k}", [(k, k), (k, k)]
            yield Row(name, shapes, dtype, product, product, 0, 2 * k**3)
    others = {
        "64 of 512": ((64, 512, 512), (64, 512, 512)),
        "64x8192x8192": ((64, 8192), (8192, 8192)),
        "128x16384x256": ((128, 16384), (16384, 256)),
        "300x1000x700": ((300, 1000), (1000, 700)),
    }
    for dtype in ("bfloat16", "float32", "float64"):
        for name, (left, right) in others.items():
            flops = 2 * right[-1] * left[-1] * left[-2] * (left[0] if len(left) == 3 else 1)
            yield Row(f"{dtype} {name}", [left, right], dtype, product, product, 0, flops)
    turns = {
        "nt": lambda a, b: a @ b.T,
        "tn": lambda a, b: a.T @ b,
        "tt": lambda a, b: a.T @ b.T,
    }
    for dtype, k in (("bfloat16", 4096), ("float32", 4096), ("float64", 2048)):
        for name, f in turns.items():
            yield Row(f"{dtype} {k} {name}", [(k, k), (k, k)], dtype, f, f, 0, 2 * k**3)

    def by_tf32(f: Callable[..., Any], a: Any, b: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        y = f(a, b)
        torch.backends.cuda.matmul.allow_tf32 = False
        return y

    def ours_by_tf32(f: Callable[..., Any], a: Any, b: Any) -> Any:
        with nm.matmul_precision("tf32"):
            return f(a, b)

    for name, f, k in (("", product, 1024), ("", product, 4096), (" nt", turns["nt"], 4096)):
        both = partial(ours_by_tf32, f), partial(by_tf32, f)
        yield Row(f"tf32 {k}{name}", [(k, k), (k, k)], "float32", *both, 0, 2 * k**3)
    k = 4096
    one = torch.ones((), device="cuda")
    yield Row(
        *(f"float8_e4m3fn {k} nt", [(k, k), (k, k)], "float8_e4m3fn"),
        lambda a, b: nm.matmul(a, b.T, dtype=nm.bfloat16),
        lambda a, b: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16),
        *(0, 2 * k**3),
    )
    for dtype in ("bfloat16", "float32"):
        yield Row(
            *(f"{dtype} {k} x @ w.T + b", [(k, k), (k, k), (k,)], dtype),
            *(lambda x, w, b: x @ w.T + b, F.linear, 0, 2 * k**3),
        )
        yield Row(
            *(f"{dtype} {k} gelu(x @ w.T + b)", [(k, k), (k, k), (k,)], dtype),
            *(lambda x, w, b: nm.gelu(x @ w.T + b), lambda x, w, b: F.gelu(F.linear(x, w, b))),
            *(0, 2 * k**3),
        )


class Bench:
    """Measures rows and writes them as a table."""

    def __init__(self, seconds: float, say: Callable[[str], None], only: str = "") -> None:
        import torch

        import numus as nm

        self.torch, self.nm = torch, nm
        self.runtime = nm.device("cuda").runtime
        self.seconds, self.say, self.only = seconds, say, only

    def inputs(self, row: Row) -> tuple[list[Any], list[Any]]:
        torch = self.torch
        torch.cuda.empty_cache()
        kind = getattr(torch, row.dtype)
        first = torch.complex64 if row.dtype.startswith("complex") else torch.float32
        ts = [torch.randn(*s, device="cuda", dtype=first).to(kind) for s in row.shapes]
        return [self.taken(t) for t in ts], ts

    def taken(self, t: Any) -> Any:
        """A tensor of PyTorch's, as one of numus's own."""
        torch, nm = self.torch, self.nm
        if t.dtype is torch.float8_e4m3fn:  # which PyTorch does not share
            return nm.asarray(t.view(torch.uint8).cpu().numpy().view(nm.float8_e4m3fn.np)).to(
                "cuda"
            )
        return nm.from_dlpack(t)

    def error(self, row: Row, xs: list[Any], ts: list[Any]) -> float:
        wide = self.torch.complex128 if row.dtype.startswith("complex") else self.torch.float64
        got = self.torch.from_dlpack(row.ours(*xs)).to(wide).flatten()
        want = row.theirs(*ts).to(wide).flatten()
        return float((got - want).norm() / want.norm().clamp_min(1e-30))

    def ours(self, row: Row, xs: list[Any]) -> float:
        nm = self.nm
        call = lambda: nm.eval(row.ours(*xs))  # noqa: E731
        return measure(call, self.runtime.synchronize, self.seconds)

    def theirs(self, f: Callable[..., Any], ts: list[Any]) -> float:
        return measure(lambda: f(*ts), self.torch.cuda.synchronize, self.seconds)

    def table(self, found: Iterator[Row]) -> None:
        """One row each: eager calls of both, and PyTorch's compiler where it is asked."""
        self.say("| workload | numus ms | PyTorch ms | compiled ms | ratio | numus | error |")
        self.say("|---|---:|---:|---:|---:|---:|---:|")
        for row in found:
            if not re.search(self.only, row.name):
                continue
            try:
                xs, ts = self.inputs(row)
                error = self.error(row, xs, ts)
                ways = [row.theirs]
                if row.compiled:
                    ways.append(self.torch.compile(row.theirs))
                own, others = float("inf"), [float("inf")] * len(ways)
                for _ in range(2):  # in turns
                    own = min(own, self.ours(row, xs))
                    others = [min(t, self.theirs(f, ts)) for t, f in zip(others, ways, strict=True)]
                rate = f"{row.nbytes / own / 1e9:.2f} TB/s" if row.nbytes else ""
                rate = f"{row.flops / own / 1e9:.0f} TFLOP/s" if row.flops else rate
                second = f"{others[1]:.3f}" if row.compiled else ""
                self.say(
                    f"| {row.name} | {own:.3f} | {others[0]:.3f} | {second} "
                    f"| {min(others) / own:.2f} | {rate} | {error:.1e} |"
                )
            except Exception as problem:
                self.say(f"| {row.name} | {_told(problem)} | | | | | |")

    def product_table(self, found: Iterator[Row]) -> None:
        """Each way by itself: numus's own kernels, and what `auto` takes, called one by one and in
        a graph of eight."""
        self.say(
            "| product | native ms | auto ms | PyTorch ms | native | auto | in graphs: native ms "
            "| auto ms | PyTorch ms | native | auto | error |"
        )
        self.say("|---|" + "---:|" * 11)
        for row in found:
            if not re.search(self.only, row.name):
                continue
            try:
                self._product(row)
            except Exception as problem:
                self.say(f"| {row.name} | {_told(problem)} |" + " |" * 10)

    def _product(self, row: Row) -> None:
        xs, ts = self.inputs(row)
        prefer = self.nm.kernels.prefer
        times: dict[str, float] = {}
        errors = []
        for which in ("native", "auto"):
            with prefer(which):
                errors.append(self.error(row, xs, ts))
        for _ in range(2):
            for which in ("native", "auto"):
                with prefer(which):
                    times[which] = min(times.get(which, 9e9), self.ours(row, xs))
            times["torch"] = min(times.get("torch", 9e9), self.theirs(row.theirs, ts))
        cells = [f"{times[w]:.4f}" for w in ("native", "auto", "torch")]
        cells += [f"{times['torch'] / times[w]:.2f}" for w in ("native", "auto")]
        graphs = [""] * 5
        rows, columns = row.shapes[0][-2:]
        square = list(row.shapes) == [row.shapes[0]] * 2 and rows == columns
        if square and "float8" not in row.dtype and max(times.values()) < 0.5:
            alone = {which: self._in_graph(row, ts, which) for which in ("native", "auto", "torch")}
            graphs = [f"{t:.4f}" for t in alone.values()]
            graphs += [f"{alone['torch'] / alone[w]:.2f}" for w in ("native", "auto")]
        self.say(f"| {row.name} | {' | '.join([*cells, *graphs])} | {max(errors):.1e} |")

    def _in_graph(self, row: Row, ts: list[Any], which: str, many: int = 8) -> float:
        """The time of one of several products, each of the one before, replayed together."""
        torch, nm = self.torch, self.nm
        first, factor = ts[0], ts[1] / ts[1].shape[-1] ** 0.5  # so that results stay as large
        factors = [factor.clone() for _ in range(many)]

        def chain(f: Callable[..., Any], x: Any, *others: Any) -> Any:
            for y in others:
                x = f(x, y)
            return x

        if which != "torch":
            given = [self.taken(t) for t in (first, *factors)]
            with nm.kernels.prefer(which):
                step = nm.jit(partial(chain, row.ours))
                call = lambda: nm.eval(step(*given))  # noqa: E731
                return measure(call, self.runtime.synchronize, self.seconds) / many
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            chain(row.theirs, first, *factors)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                kept = chain(row.theirs, first, *factors)
        found = measure(graph.replay, torch.cuda.synchronize, self.seconds) / many
        del kept
        return found


def _told(problem: Exception) -> str:
    text = str(problem).splitlines()[0] if str(problem) else repr(problem)
    return f"failed: {type(problem).__name__}: {text[:200]}"
