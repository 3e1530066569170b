"""`numus bench`: what this machine reaches with numus, beside what its memory and units allow.

The repository's `python -m bench` measures numus beside other libraries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numus as nm
from numus import nn, optim
from numus.functions.inspect import limits
from numus.terminal import table

__all__ = ["run"]


def _workloads(dev: str) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    x, y = (nm.random.normal((1024, 4096)).to(dev) for _ in range(2))
    a, b = (nm.random.normal((1024, 1024)).to(dev) for _ in range(2))
    image = nm.random.normal((8, 64, 32, 32)).to(dev)
    kernel = nm.random.normal((64, 64, 3, 3)).to(dev)
    q, k, v = (nm.random.normal((4, 8, 512, 64)).to(dev) for _ in range(3))
    attention = lambda q, k, v: nm.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    return {
        "add": (lambda x, y: x + y, (x, y)),
        "gelu(x * y + 1)": (lambda x, y: nm.gelu(x * y + 1), (x, y)),
        "sum": (lambda x: x.sum(axis=-1), (x,)),
        "softmax": (lambda x: nm.softmax(x, axis=-1), (x,)),
        "layer_norm": (lambda x: nn.layer_norm(x, (4096,)), (x,)),
        "sort": (lambda x: nm.sort(x, axis=-1), (x,)),
        "matmul": (lambda a, b: a @ b, (a, b)),
        "conv2d 3x3": (lambda x, w: nm.conv2d(x, w, padding=1), (image, kernel)),
        "attention, causal": (attention, (q, k, v)),
        "training step, mlp": _step(dev),
    }


def _step(dev: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).to(dev)
    trainer = optim.Trainer(optim.AdamW(model.parameters()))
    x = nm.random.normal((128, 784)).to(dev)
    y = nm.zeros((128,), dtype=nm.int64).to(dev)
    return lambda x, y: trainer.train_step(lambda: nn.cross_entropy(model(x), y)), (x, y)


def run(names: list[str], device: str | None, seconds: float) -> None:
    """Measure the workloads whose names have one of some words in them."""
    dev = device or "cpu"
    bandwidth, flops = limits(dev)
    title = f"{dev}: copies at {bandwidth / 1e9:.1f} GB/s, products at {flops / 1e9:.0f} GFLOP/s"
    columns = ["what", "ms", "GB/s", "GFLOP/s", "of what the device allows"]
    rows = []
    runtime = nm.device(dev).runtime
    workloads = _workloads(dev)
    chosen = [n for n in workloads if not names or any(word in n for word in names)]
    if not chosen:
        raise SystemExit(f"numus bench: none of {', '.join(workloads)} has {' or '.join(names)}")
    for name in chosen:
        function, args = workloads[name]
        steps = name.startswith("training")
        call = function if steps else nm.jit(function)
        nm.eval(call(*args))
        kernels = nm.explain(function, *args, timed=False).kernels
        moved = sum(k.bytes_read + k.bytes_written for k in kernels)
        operations = sum(k.flops for k in kernels)
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            nm.eval(call(*args))
            runtime.synchronize()
            best = min(best, time.perf_counter() - began)
        share = max(moved / bandwidth, operations / flops) / best
        numbers = [f"{moved / best / 1e9:.1f}", f"{operations / best / 1e9:.0f}", f"{share:.0%}"]
        rows.append([name, f"{best * 1e3:.3f}", *numbers])
    print(table(title, columns, rows, numbers=columns[1:]))
