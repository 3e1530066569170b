"""Python overhead: building an operation, evaluating a cached graph, gradients, importing.

Each figure is relative to NumPy's on the same machine, which makes it comparable across machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import numus as nm

from .table import Table

COUNT = 1000  # operations in a sample
ROUNDS = 20
IMPORTS = 7


class Figure(NamedTuple):
    name: str
    seconds: float
    numpy_seconds: float
    budget: float  # maximum ratio

    @property
    def ratio(self) -> float:
        return self.seconds / self.numpy_seconds


def _per_operation(sample: Callable[[], float]) -> float:
    return min(sample() for _ in range(ROUNDS)) / COUNT


def _loop(operation: Callable[[], Any]) -> Callable[[], float]:
    """A sample that runs `operation` COUNT times."""

    def sample() -> float:
        start = time.perf_counter()
        for _ in range(COUNT):
            operation()
        return time.perf_counter() - start

    return sample


def _import_seconds(module: str) -> float:
    """Import time of `module` in a fresh interpreter."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    # cache byte code between starts, as for users
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    return float(answer.stdout)


def measure() -> list[Figure]:
    a = np.ones(4, np.float32)
    x = nm.asarray(a)
    nm.eval(x, x + x)  # realises x and compiles the kernel

    def evaluate() -> float:
        pending = [x + x for _ in range(COUNT)]
        start = time.perf_counter()
        for y in pending:
            nm.eval(y)
        return time.perf_counter() - start

    double = nm.jit(lambda x: x + x)
    double(x)
    add = _per_operation(_loop(lambda: a + a))
    build = _per_operation(_loop(lambda: x + x))
    cached = _per_operation(evaluate)
    jitted = _per_operation(_loop(lambda: double(x)))
    normalised = nm.ones((8, 16)) + 1, nm.ones(16) + 1, nm.ones(16) + 1
    nm.eval(normalised)
    gradients = _per_operation(
        _loop(lambda: nm.eval(nm.vjp(nm.layer_norm, *normalised)[1](normalised[0])))
    )

    _import_seconds("numus")  # writes the byte code
    pairs = [(_import_seconds("numpy"), _import_seconds("numus")) for _ in range(IMPORTS)]
    numpy_import, numus_import = (min(column) for column in zip(*pairs, strict=True))

    return [
        Figure("build one operation", build, add, 4),
        Figure("evaluate a cached one-kernel graph", cached, add, 12),
        Figure("call a jitted one-kernel function", jitted, add, 6),
        Figure("get the gradients of a layer norm", gradients, add, 300),
        Figure("import", numus_import, numpy_import, 2.5),
    ]


def report(markdown: bool) -> bool:
    """Print the table; False if a budget is exceeded."""
    head = ("time to", "numus", "numpy", "numus/numpy", "budget")
    table = Table(head, (36, 11, 11, 11, 12), markdown)
    passed = True
    for figure in measure():
        within = figure.ratio <= figure.budget
        passed &= within
        times = (_readable(figure.seconds), _readable(figure.numpy_seconds))
        budget = f"<= {figure.budget:g}" if within else f"over {figure.budget:g}"
        table.row(figure.name, *times, f"{figure.ratio:.1f}", budget)
    return passed


def _readable(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
