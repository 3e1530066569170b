"""Graph networks against PyTorch Geometric: an epoch of each model of `bench/graphs.py`.

Each library has a process of its own, so that its peak of memory is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.graphs import MODELS
from tools.cuda_bars.bars import Bar, Figure
from tools.cuda_bars.processes import answer
from tools.cuda_timing import Bench

EPOCHS = 5


def _measured(library: str, model: str, bench: Bench) -> dict[str, Any]:
    scale = "0.002" if bench.most else "1"
    return answer("bench.graphs", "--one", library, model, scale, bench.device, str(EPOCHS))


def _epoch(model: str, bench: Bench) -> Iterator[Figure]:
    ours, theirs = (_measured(library, model, bench) for library in ("numus", "pyg"))
    ms = {"numus": 1e3 * ours["seconds"], "torch": 1e3 * theirs["seconds"]}
    told = f"epoch of {model}, 200,000 nodes, 4M edges"
    yield Figure(told, ms["torch"] / ms["numus"], 1.5, ms=ms)
    if model == "gcn":
        name = f"{told}: peak memory of PyTorch Geometric's"
        yield Figure(name, ours["peak_gb"] / theirs["peak_gb"], 0.5, "", at_most=True)


def bars(bench: Bench) -> Iterator[Bar]:
    for model in MODELS:
        yield Bar("graphs", f"epoch of {model}", partial(_epoch, model), order=1)
