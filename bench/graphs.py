"""An epoch of full-batch training of graph networks: `python -m bench.graphs [gcn sage gat]`.

Two layers on a random graph of 200,000 nodes and 4 million edges with 128 features, against PyTorch
Geometric where it is installed, with what is its fastest form of edges for each: a CSR matrix for
GCN and GraphSAGE, sorted edges for GAT. One process per measurement, which also tells its peak of
memory, on a GPU that of the library on the device.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

NODES, EDGES, FEATURES, HIDDEN, CLASSES, HEADS = 200_000, 4_000_000, 128, 128, 40, 8
MODELS = ("gcn", "sage", "gat")


def data(scale: float) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    nodes, edges = int(NODES * scale), int(EDGES * scale)
    pairs = rng.integers(0, nodes, (2, edges))
    x = rng.standard_normal((nodes, FEATURES), np.float32)
    return pairs, x, rng.integers(0, CLASSES, nodes)


def layers(model: str, library: Any) -> list[Any]:
    """The two layers of a model, by either library's classes."""
    if model == "gcn":
        first, second = library.GCNConv(FEATURES, HIDDEN), library.GCNConv(HIDDEN, CLASSES)
    elif model == "sage":
        first, second = library.SAGEConv(FEATURES, HIDDEN), library.SAGEConv(HIDDEN, CLASSES)
    else:
        first = library.GATConv(FEATURES, HIDDEN // HEADS, heads=HEADS)
        second = library.GATConv(HIDDEN, CLASSES)
    return [first, second]


def of_numus(model: str, scale: float, device: str) -> Callable[[], float]:
    import numus as nm
    from numus import graphs, nn, optim

    nm.set_default_device(device)
    pairs, features, classes = data(scale)
    edges = graphs.EdgeIndex(pairs, len(features))
    x, y = nm.asarray(features), nm.asarray(classes)
    first, second = layers(model, graphs)
    parameters = [*first.parameters(), *second.parameters()]
    opt = optim.Adam(parameters, lr=0.01)

    @nm.jit
    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = nn.cross_entropy(second(first(x, edges).relu(), edges), y)
        loss.backward()
        opt.step()
        return loss

    return lambda: float(step(x, y).item())


def of_pyg(model: str, scale: float, device: str) -> Callable[[], float]:
    import torch
    from torch_geometric import EdgeIndex
    from torch_geometric import nn as pyg

    pairs, features, classes = data(scale)
    n = len(features)
    index = torch.from_numpy(pairs)
    if model == "gat":
        edges = EdgeIndex(index, sparse_size=(n, n)).sort_by("col")[0]
    else:
        ones = torch.ones(index.shape[1])
        edges = torch.sparse_coo_tensor(index.flip(0), ones, (n, n)).coalesce().to_sparse_csr()
    x, y, edges = (
        t.to(device) for t in (torch.from_numpy(features), torch.from_numpy(classes), edges)
    )
    first, second = layers(model, pyg)
    if model == "gcn":
        first.cached = second.cached = True
    first, second = first.to(device), second.to(device)
    opt = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)

    def step() -> float:
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(second(first(x, edges).relu(), edges), y)
        loss.backward()
        opt.step()
        return loss.item()

    return step


LIBRARIES = {"numus": of_numus, "pyg": of_pyg}


def _peak_bytes(library: str, device: str) -> float:
    """Of the process on a CPU, else of the library's memory on the device."""
    if device == "cpu":
        return 1e3 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if library == "numus":
        import numus as nm

        return float(nm.memory_stats(device)["peak"])
    import torch

    return float(torch.cuda.max_memory_allocated())


def measure(library: str, model: str, scale: float, device: str, epochs: int) -> dict[str, Any]:
    step = LIBRARIES[library](model, scale, device)
    first = step()
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        last = step()
        seconds.append(time.perf_counter() - start)
    peak = _peak_bytes(library, device) / 1e9
    return {
        "model": model, "library": library, "seconds": round(min(seconds), 3),
        "peak_gb": round(peak, 2), "loss": [round(first, 4), round(last, 4)],
    }  # fmt: skip


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--one"]:
        library, model, scale, device, epochs = arguments[1:]
        print(json.dumps(measure(library, model, float(scale), device, int(epochs))))
        return
    models = arguments or MODELS
    for model in models:
        for library in LIBRARIES:
            command = [
                sys.executable,
                "-m",
                "bench.graphs",
                "--one",
                library,
                model,
                "1",
                "cpu",
                "3",
            ]
            answer = subprocess.run(command, capture_output=True, text=True)
            print(answer.stdout.strip() or answer.stderr.strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
