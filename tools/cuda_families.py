"""Families of GPU workloads at many sizes: scatters, pooling, slices, sorts, norms, recurrences.

Each family has at least four sizes, odd ones included, in two dtypes. Both libraries run in turns
in one process on the same inputs, as in `tools/cuda_timing.py`; a ratio is the best time of PyTorch
(eager and, where it may fuse, `torch.compile`) over that of numus.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.cuda_timing import Bench, drawn, error_message, fitted

ABOUT = (
    "Ratios are the best time of PyTorch (eager and, where it may fuse, `torch.compile`) over "
    "numus's (`nm.jit` where PyTorch's is compiled), back to back."
)


@dataclass(frozen=True)
class Case:
    """A workload of a family: its inputs, and a function for each library."""

    family: str
    name: str
    inputs: Callable[[], Sequence[Any]]  # PyTorch tensors on the device
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    compiled: bool = False
    gradients: bool = False  # whether the results are compared loosely


def cases(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """All families, at their own sizes or at ones of `most`."""
    for family in (_scatters, _counts, _pairs, _pools, _slices, _maps, _sorts, _norms, _recurrent):
        yield from family(torch, nm, most)


def _scatters(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Sums of updates at random indices: `index_add`, embedding gradients, rows of a graph."""
    for updates, bins, width, dtype in fitted(
        most,
        (
            *((1 << 24, 1 << 20, 0, "float32"), (1 << 24, 1 << 20, 0, "bfloat16")),
            *((10_000_019, 1_000_003, 0, "float32"), (1 << 20, 100, 0, "float32")),
            *((1 << 16, 50257, 768, "float32"), (1 << 16, 50257, 768, "bfloat16")),
            *((1 << 20, 100_003, 64, "float32"), (99_991, 1000, 127, "bfloat16")),
        ),
    ):
        tail = (width,) if width else ()

        def inputs(n: int = updates, bins: int = bins, tail: Any = tail, d: str = dtype) -> Any:
            where = torch.randint(0, bins, (n,))
            values = torch.randn(n, *tail).to(getattr(torch, d))
            return [torch.zeros(bins, *tail, dtype=values.dtype), where, values]

        shape = f"{updates}{'x' + str(width) if width else ''} into {bins} {dtype}"
        yield Case(
            *("scatter", f"index_add {shape}", inputs, lambda x, i, v: x.at[i].add(v)),
            *(lambda x, i, v: x.index_add(0, i, v), False, True),
        )


def _counts(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Histograms, `bincount`, `unique`."""
    for n, bins in fitted(
        most, ((1 << 26, 256), (1 << 24, 64), (10_000_019, 1000), (1 << 22, 65_536))
    ):
        yield Case(
            *("histogram", f"histogram {n} in {bins}"),
            lambda n=n: [torch.rand(n)],
            lambda x, b=bins: nm.histogram(x, bins=b, range=(0.0, 1.0))[0],
            lambda x, b=bins: torch.histc(x, bins=b, min=0.0, max=1.0),
        )
        yield Case(
            *("histogram", f"bincount {n} in {bins}"),
            lambda n=n, b=bins: [torch.randint(0, b, (n,))],
            lambda x, b=bins: nm.bincount(x, minlength=b),
            lambda x, b=bins: torch.bincount(x, minlength=b),
        )
    for n, bins, dtype in fitted(
        most,
        (
            *((1 << 24, 1 << 20, "int64"), (1 << 22, 1000, "int32")),
            *((10_000_019, 1 << 30, "int64"), (1 << 16, 300, "int32")),
        ),
    ):
        yield Case(
            *("unique", f"unique {n} of {bins} {dtype}"),
            lambda n=n, b=bins, d=dtype: [torch.randint(0, b, (n,)).to(getattr(torch, d))],
            *(lambda x: nm.unique(x), lambda x: torch.unique(x)),
        )


def _pairs(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Broadcast-reduce without an intermediate: forces, distances, kernel matrices."""

    def forces(sqrt: Any, x: Any) -> Any:
        d = x[None, :, :] - x[:, None, :]
        square = (d * d).sum(-1) + 1e-3
        return (d / (square * sqrt(square))[..., None]).sum(1)

    for n, dtype in fitted(
        most, ((16384, "float32"), (4096, "float32"), (5003, "float32"), (2048, "float64"))
    ):
        yield Case(
            *("pairs", f"n-body forces {n} {dtype}", drawn(torch, dtype, (n, 3))),
            lambda x: forces(nm.sqrt, x),
            *(lambda x: forces(torch.sqrt, x), True, True),
        )
    for n, m, d, dtype in fitted(
        most,
        (
            *((8192, 8192, 16, "float32"), (4096, 4096, 64, "float32")),
            *((5003, 3001, 7, "float32"), (2048, 2048, 3, "float64")),
        ),
    ):
        yield Case(
            *("pairs", f"nearest of {n}x{m}x{d} {dtype}", drawn(torch, dtype, (n, d), (m, d))),
            lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).min(1),
            *(lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).amin(1), True, True),
        )
        yield Case(
            *("pairs", f"kernel sums {n}x{m}x{d} {dtype}", drawn(torch, dtype, (n, d), (m, d))),
            lambda x, y: nm.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2).sum(1),
            lambda x, y: torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / 2).sum(1),
            *(True, True),
        )


def _pools(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Max and average pooling, and their gradients."""
    F = torch.nn.functional
    for shape, dtype in fitted(
        most,
        (
            *(((32, 512, 56, 56), "bfloat16"), ((64, 64, 112, 112), "float32")),
            *(((64, 64, 112, 112), "bfloat16"), ((16, 33, 57, 61), "float32")),
        ),
    ):
        told = f"{'x'.join(map(str, shape))} {dtype}"
        for name, ours, theirs in (
            (
                "max_pool 3x3/2",
                lambda x: nm.max_pool2d(x, 3, stride=2, padding=1),
                lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
            ),
            (
                "avg_pool 3x3/2",
                lambda x: nm.avg_pool2d(x, 3, stride=2, padding=1),
                lambda x: F.avg_pool2d(x, 3, stride=2, padding=1),
            ),
        ):
            yield Case("pooling", f"{name} {told}", drawn(torch, dtype, shape), ours, theirs, True)
            out = (*shape[:2], *((n + 1) // 2 for n in shape[2:]))

            def gradient(x: Any, g: Any, f: Any = theirs) -> Any:
                x = x.detach().requires_grad_()
                return torch.autograd.grad(f(x), x, g)[0]

            yield Case(
                *("pooling", f"{name} gradient {told}", drawn(torch, dtype, shape, out)),
                *(lambda x, g, f=ours: nm.vjp(f, x)[1](g)[0], gradient, False, True),
            )


def _slices(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Slices along the last axis, gathers of rows, permutations."""
    for shape, dtype in fitted(
        most,
        (
            *(((16384, 8192), "float32"), ((16384, 8193), "float32")),
            *(((16384, 8191), "bfloat16"), ((100_003, 257), "float32")),
        ),
    ):
        told = f"{'x'.join(map(str, shape))} {dtype}"
        difference = lambda x: x[:, 1:] - x[:, :-1]  # noqa: E731
        yield Case(
            *("slices", f"x[:, 1:] - x[:, :-1] {told}", drawn(torch, dtype, shape)),
            *(difference, difference, True),
        )

        def rows(shape: Any = shape, d: str = dtype) -> Any:
            x = torch.randn(*shape).to(getattr(torch, d))
            return [x, torch.randint(0, shape[0], (shape[0],))]

        yield Case(
            *("slices", f"rows {told}", rows, lambda x, i: x[i], lambda x, i: x[i]),
        )
    for shape, order, dtype in fitted(
        most,
        (
            *(((256, 512, 512), (2, 0, 1), "float32"), ((256, 512, 512), (2, 1, 0), "bfloat16")),
            *(((255, 513, 511), (1, 2, 0), "float32"), ((64, 1000, 777), (2, 1, 0), "float32")),
        ),
    ):
        told = f"{'x'.join(map(str, shape))} to {order} {dtype}"
        yield Case(
            *("permutations", f"permute {told}", drawn(torch, dtype, shape)),
            lambda x, o=order: nm.copy(nm.permute_dims(x, o)),
            *(lambda x, o=order: x.permute(*o).contiguous(), True),
        )


def _maps(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Long elementwise maps."""
    for n, dtype in fitted(
        most,
        (
            (1 << 26, "float32"),
            (1 << 24, "float32"),
            (10_000_019, "float32"),
            (1 << 26, "bfloat16"),
            (1 << 22, "float64"),
        ),
    ):
        for name, ours, theirs in (
            (
                "erf + lgamma",
                lambda x: nm.special.erf(x) + nm.special.gammaln(x),
                lambda x: torch.erf(x) + torch.lgamma(x),
            ),
            (
                "sin * exp + tanh",
                lambda x: nm.sin(x) * nm.exp(x) + nm.tanh(x),
                lambda x: torch.sin(x) * torch.exp(x) + torch.tanh(x),
            ),
            (
                "log1p / digamma",
                lambda x: nm.log1p(abs(x)) / nm.special.digamma(abs(x) + 1),
                lambda x: torch.log1p(abs(x)) / torch.digamma(abs(x) + 1),
            ),
        ):
            yield Case(
                *("maps", f"{name} {n} {dtype}", drawn(torch, dtype, (n,)), ours, theirs, True),
                gradients=True,
            )


def _sorts(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Sorts of many rows, `argsort`, `topk`."""
    for rows, length, dtype in fitted(
        most,
        (
            *((8192, 2000, "float32"), (65536, 100, "float32"), (4096, 1000, "bfloat16")),
            *((1 << 20, 16, "float32"), (100, 100_003, "float32"), (1, 1 << 22, "int64")),
        ),
    ):

        def inputs(shape: Any = (rows, length), d: str = dtype) -> Any:
            if d == "int64":
                return [torch.randint(0, 1 << 40, shape)]
            return [torch.randn(*shape).to(getattr(torch, d))]

        told = f"{rows}x{length} {dtype}"
        yield Case(
            *("sorts", f"argsort {told}", inputs, lambda x: nm.argsort(x)),
            lambda x: torch.argsort(x, stable=True),
        )
        yield Case(
            *("sorts", f"sort {told}", inputs, lambda x: nm.sort(x)),
            lambda x: torch.sort(x)[0],
        )
        k = min(50, length // 2)
        yield Case(
            *("sorts", f"topk {k} of {told}", inputs, lambda x, k=k: nm.topk(x, k).values),
            lambda x, k=k: torch.topk(x, k).values,
        )


def _norms(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """Group norm, batch norm in training."""
    F = torch.nn.functional
    for shape, groups, dtype in fitted(
        most,
        (
            *(((32, 256, 56, 56), 32, "bfloat16"), ((32, 256, 56, 56), 32, "float32")),
            *(((8, 320, 64, 64), 32, "bfloat16"), ((16, 33, 57, 61), 3, "float32")),
        ),
    ):
        told = f"{'x'.join(map(str, shape))} {dtype}"
        c = shape[1]
        inputs = drawn(torch, dtype, shape, (c,), (c,))
        yield Case(
            *("norms", f"group_norm {groups} {told}", inputs),
            lambda x, w, b, g=groups: nm.group_norm(x, g, w, b),
            *(lambda x, w, b, g=groups: F.group_norm(x, g, w, b), True, True),
        )

        def ours(x: Any, w: Any, b: Any) -> Any:
            axes = (0, 2, 3)
            mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
            wide = (1, -1, 1, 1)
            return (x - mean) * nm.rsqrt(var + 1e-5) * w.reshape(wide) + b.reshape(wide)

        yield Case(
            *("norms", f"batch_norm {told}", inputs, ours),
            *(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), True, True),
        )


def _recurrent(torch: Any, nm: Any, most: int = 0) -> Iterator[Case]:
    """LSTM and GRU, a training step without the optimiser."""
    for kind, batch, steps, size, dtype in fitted(
        most,
        (
            *(("LSTM", 64, 128, 512, "float32"), ("LSTM", 32, 100, 256, "bfloat16")),
            *(("GRU", 64, 128, 512, "float32"), ("LSTM", 17, 61, 203, "float32")),
        ),
    ):
        layer = getattr(torch.nn, kind)(size, size, batch_first=True)
        layer = layer.to(getattr(torch, dtype))
        mine = getattr(nm.nn, kind)(size, size, batch_first=True)
        mine = mine.to(getattr(nm, dtype))
        mine.load_state_dict({k: nm.from_dlpack(v) for k, v in layer.state_dict().items()})

        def theirs(x: Any, layer: Any = layer) -> Any:
            layer.zero_grad(set_to_none=True)
            x = x.detach().requires_grad_()
            layer(x)[0].square().mean().backward()
            return x.grad, [p.grad for p in layer.parameters()]

        @nm.jit
        def step(x: Any, mine: Any = mine) -> Any:
            mine.zero_grad()
            x = x.detach().requires_grad_()
            (mine(x)[0] ** 2).mean().backward()
            return x.grad, [p.grad for p in mine.parameters()]

        yield Case(
            *("recurrent", f"{kind} {batch}x{steps}x{size} {dtype}"),
            drawn(torch, dtype, (batch, steps, size)),
            *(step, theirs, False, True),
        )


def table(bench: Bench, found: Iterator[Case]) -> None:
    """One line per case, then the geometric mean and the least ratio of each family."""
    torch, nm = bench.torch, bench.nm
    ratios: dict[str, list[tuple[float, str]]] = {}
    bench.say("| workload | numus ms | PyTorch ms | compiled ms | ratio | error |")
    bench.say("|---|" + "---:|" * 5)
    for case in found:
        if not re.search(bench.only, f"{case.family} {case.name}"):
            continue
        try:
            torch.cuda.empty_cache()
            ts = list(case.inputs())
            xs = [nm.from_dlpack(t) for t in ts]
            mine = nm.jit(case.ours) if case.compiled else case.ours
            error = _error(torch, case, xs, ts)
            calls = {"numus": lambda f=mine, xs=xs: nm.eval(f(*xs))}
            calls["torch"] = lambda f=case.theirs, ts=ts: f(*ts)
            if case.compiled:
                fused = torch.compile(case.theirs, dynamic=False)
                calls["torch.compile"] = lambda f=fused, ts=ts: f(*ts)
            best = bench.in_turns(calls)
            ratio = min(best["torch"], best.get("torch.compile", math.inf)) / best["numus"]
            ratios.setdefault(case.family, []).append((ratio, case.name))
            second = f"{best['torch.compile']:.3f}" if case.compiled else ""
            bench.say(
                f"| {case.name} | {best['numus']:.3f} | {best['torch']:.3f} | {second} "
                f"| {ratio:.2f} | {error} |"
            )
        except Exception as problem:
            bench.say(f"| {case.name} | {error_message(problem)} |" + " |" * 4)
            ratios.setdefault(case.family, []).append((0.0, case.name))
    bench.say("\n| family | rows | geometric mean | least | which |\n|---|---:|---:|---:|---|")
    for family, rows in ratios.items():
        mean = math.exp(sum(math.log(max(r, 1e-3)) for r, _ in rows) / len(rows))
        least, which = min(rows)
        bench.say(f"| {family} | {len(rows)} | {mean:.2f} | {least:.2f} | {which} |")


def _error(torch: Any, case: Case, xs: list[Any], ts: list[Any]) -> str:
    """The relative difference of the results, where both give a tensor."""
    got, want = case.ours(*xs), case.theirs(*ts)
    if isinstance(got, tuple):
        return ""
    got = torch.from_dlpack(got).double().flatten()
    want = want.double().flatten()
    if got.shape != want.shape:
        return "shapes differ"
    return f"{float((got - want).norm() / want.norm().clamp_min(1e-30)):.1e}"
