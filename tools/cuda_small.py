"""Host overhead of small computations on an NVIDIA GPU, against PyTorch.

Each takes the device a few microseconds; measured is the time that Python, numus and the driver
take to build, recognise and launch it. `tools.cuda_report` writes the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tools.cuda_timing import Bench, Row, error_message

ABOUT = (
    "Host-bound: evaluated back to back, with one synchronisation at the end. Ratios are PyTorch's "
    "time (eager) over numus's."
)


def rows(torch: Any, nm: Any) -> Iterator[Row]:
    """Matmuls with their epilogues, views, batches, single compositions."""
    F = torch.nn.functional
    activations: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "relu": (nm.relu, F.relu),
        "gelu": (nm.gelu, F.gelu),
        "silu": (nm.silu, F.silu),
        "tanh": (nm.tanh, torch.tanh),
    }

    def linear(x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def activated(f: Callable[..., Any], matmul: Callable[..., Any], *xs: Any) -> Any:
        return f(matmul(*xs))

    def residual(matmul: Callable[..., Any], x: Any, w: Any, b: Any) -> Any:
        return x + matmul(x, w, b)

    def perceptron(
        f: Callable[..., Any], matmul: Callable[..., Any], x: Any, w: Any, b: Any, v: Any, c: Any
    ) -> Any:
        return matmul(f(matmul(x, w, b)), v, c)

    for dtype in ("bfloat16", "float32"):
        for n in (64, 256, 512, 1000):
            square, line = (n, n), (n,)
            name, layer = f"{dtype} {n}", [square, square, line]
            both = lambda x, w: x @ w  # noqa: E731
            yield Row(f"{name} x @ w", [square, square], dtype, both, both)
            yield Row(f"{name} x @ w.T + b", layer, dtype, linear, F.linear)
            for called, (f, g) in activations.items():
                if called == "gelu" or n == 512:
                    yield Row(
                        *(f"{name} {called}(x @ w.T + b)", layer, dtype),
                        *(partial(activated, f, linear), partial(activated, g, F.linear)),
                    )
        n = 512
        square, line = (n, n), (n,)
        yield Row(
            *(f"{dtype} 512 x + (x @ w.T + b)", [square, square, line], dtype),
            *(partial(residual, linear), partial(residual, F.linear)),
        )
        yield Row(
            *(f"{dtype} 512 two layers", [square, square, line, square, line], dtype),
            *(partial(perceptron, nm.relu, linear), partial(perceptron, F.relu, F.linear)),
        )
        yield Row(
            *(f"{dtype} 512 softmax(x @ w)", [square, square], dtype),
            *(lambda x, w: nm.softmax(x @ w), lambda x, w: torch.softmax(x @ w, -1)),
        )
        total = lambda x: ((x * 2 + 1) @ x.T).sum()  # noqa: E731
        yield Row(f"{dtype} 512 ((x * 2 + 1) @ x.T).sum()", [square], dtype, total, total)
        views = lambda x, y: x[::2] @ y[:, :512]  # noqa: E731
        yield Row(f"{dtype} x[::2] @ y[:, :512]", [(1024, 512), (512, 1024)], dtype, views, views)
        for name, shapes in {
            "batch 8x16 of 128x128x64": [(8, 16, 128, 64), (8, 16, 64, 128)],
            "batch 16x1 @ 8 of 256x256x64": [(16, 1, 256, 64), (8, 64, 256)],
            "256 x @ v": [(256, 256), (256,)],
        }.items():
            yield Row(f"{dtype} {name}", shapes, dtype, both, both)
        yield Row(
            *(f"{dtype} 4x128x256 x @ w.T + b", [(4, 128, 256), (512, 256), (512,)], dtype),
            *(linear, F.linear),
        )
        yield Row(f"{dtype} 512 gelu(x)", [square], dtype, nm.gelu, F.gelu)
        yield Row(
            *(f"{dtype} 512 layer_norm", [square, line, line], dtype, nm.layer_norm),
            lambda x, w, b: F.layer_norm(x, (512,), w, b),
        )
    for n in (512, 1024):
        yield Row(
            *(f"int8 {n} nt", [(n, n), (n, n)], "int8"),
            *(lambda a, b: nm.matmul(a, b.T, dtype=nm.int32), lambda a, b: torch._int_mm(a, b.T)),
        )


def table(bench: Bench, found: Iterator[Row]) -> None:
    """One line per row; at the end, those below 0.95 of PyTorch's speed."""
    bench.say("| workload | numus µs | PyTorch µs | ratio | error |\n|---|---:|---:|---:|---:|")
    below: list[str] = []
    for row in found:
        if not re.search(bench.only, row.name):
            continue
        try:
            xs, ts = bench.inputs(row)
            error = bench.error(row, xs, ts)
            calls = {"numus": lambda row=row, xs=xs: bench.nm.eval(row.ours(*xs))}
            calls["torch"] = partial(row.theirs, *ts)
            own, other = bench.in_turns(calls).values()
            error = max(error, bench.error(row, xs, ts))  # of the cached launch
            ratio = other / own
            bench.say(
                f"| {row.name} | {own * 1e3:.1f} | {other * 1e3:.1f} | {ratio:.2f} | {error:.1e} |"
            )
            if ratio < 0.95:
                below.append(f"{row.name} ({ratio:.2f})")
        except Exception as problem:
            bench.say(f"| {row.name} | {error_message(problem)} | | | |")
            below.append(f"{row.name} (failed)")
    bench.say(f"\nBelow 0.95 of PyTorch: {'; '.join(below) or 'none'}.")
