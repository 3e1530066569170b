"""First calls: what is slow only because it is new, in processes of their own.

    python -m bench first                 all of them
    python -m bench.first_calls generate numus        one, in this process: prints seconds

`cold` rows start with an empty kernel cache on disk, the others with that of an earlier process.
Times are those of the calls, without imports and the construction of models.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .gpt import LENGTH, WORDS, gpt_module
from .table import Table

TOKENS = 80
BATCH = 12
ROUNDS = 3


def _weights(model: Any) -> dict[str, Any]:
    """Small weights for each parameter, the same for every library."""
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(tuple(p.shape), dtype=np.float32) * np.float32(0.3)
        for name, p in model.state_dict().items()
    }


def _generate(library: str) -> float:
    """80 tokens of a GPT of 0.8 million parameters without a cache: each is another length."""
    start = np.zeros((1, 1), np.int64)
    if library == "torch":
        import torch

        model = gpt_module(torch.nn, length=TOKENS)
        model.load_state_dict({k: torch.from_numpy(v) for k, v in _weights(model).items()})
        tokens = torch.from_numpy(start)
        began = time.perf_counter()
        with torch.no_grad():
            for _ in range(TOKENS):
                following = model(tokens)[:, -1].argmax(-1)
                tokens = torch.cat([tokens, following[:, None]], 1)
    else:
        import numus as nm
        from numus import nn

        model = gpt_module(nn, length=TOKENS)
        model.load_state_dict({k: nm.asarray(v) for k, v in _weights(model).items()})
        tokens = nm.asarray(start)
        nm.eval(tokens, list(model.parameters()))
        began = time.perf_counter()
        with nm.no_grad():
            for _ in range(TOKENS):
                following = nm.argmax(model(tokens)[:, -1], axis=-1)
                tokens = nm.concat([tokens, following[:, None]], axis=1)
                nm.eval(tokens)
    seconds = time.perf_counter() - began
    print(",".join(map(str, tokens[0].tolist())), file=sys.stderr)
    return seconds


def _training_step() -> Callable[[], float]:
    """A step of AdamW as nanoGPT trains on a CPU: 12 sequences of 64 characters."""
    import numus as nm
    from numus import nn, optim

    model = gpt_module(nn)
    optimizer = optim.AdamW(model.parameters(), 1e-3)
    rng = np.random.default_rng(0)
    x, y = (nm.asarray(rng.integers(0, WORDS, (BATCH, LENGTH))) for _ in range(2))
    nm.eval(x, y, list(model.parameters()))

    def step() -> Any:
        logits = model(x)
        loss = nn.cross_entropy(logits.reshape((-1, WORDS)), y.reshape((-1,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def _eager_steps(library: str) -> float:
    step = _training_step()
    began = time.perf_counter()
    for _ in range(3):
        float(step())
    return time.perf_counter() - began


def _jitted_step(library: str) -> float:
    import numus as nm

    step = nm.jit(_training_step())
    began = time.perf_counter()
    float(step())
    return time.perf_counter() - began


def _first_operation(library: str) -> float:
    import numus as nm

    began = time.perf_counter()
    float((nm.ones((50, 50)) * 2).sum())
    return time.perf_counter() - began


def _turns(library: str) -> float:
    """A loop that builds a graph of hundreds of operations."""
    import numus as nm

    x = nm.ones(1000) * 1
    nm.eval(x)
    began = time.perf_counter()
    for _ in range(300):
        x = x * 0.99 + nm.sin(x) * 0.01
    float(x[0])
    return time.perf_counter() - began


def _import(library: str) -> float:
    began = time.perf_counter()
    import numus  # noqa: F401

    return time.perf_counter() - began


class Row(NamedTuple):
    measure: Callable[[str], float]
    title: str
    cold: bool  # with an empty kernel cache
    libraries: tuple[str, ...]
    budget: float  # seconds, or times the peer's


ROWS = {
    "generate": Row(_generate, "80 tokens of a GPT", False, ("numus", "torch"), 2),
    "eager": Row(_eager_steps, "three eager steps of nanoGPT, cold", True, ("numus",), 6),
    "jit": Row(_jitted_step, "jitted step of nanoGPT, cold", True, ("numus",), 5),
    "operation": Row(_first_operation, "operation after import, cold", True, ("numus",), 0.3),
    "turns": Row(_turns, "300 turns of a loop, cold", True, ("numus",), 0.5),
    "import": Row(_import, "import", False, ("numus",), 0.25),
}


def _seconds(name: str, library: str, cache: str | None) -> float:
    """The least of some processes' times."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for turn in range(ROUNDS + (cache is not None)):
        with tempfile.TemporaryDirectory() as empty:
            environment["NUMUS_CACHE_DIR"] = empty if cache is None else cache
            command = [sys.executable, "-m", "bench.first_calls", name, library]
            answer = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment
            )
        times.append(float(answer.stdout))
        if turn == 0 and cache is not None:
            times.clear()  # it filled the cache
    return min(times)


def report(markdown: bool, words: Sequence[str] = ()) -> bool:
    """Print the table; False if a budget is exceeded."""
    head = ("seconds to", "numus", "torch", "numus/torch", "budget")
    table = Table(head, (36, 11, 11, 11, 12), markdown)
    passed = True
    for name, row in ROWS.items():
        if words and name not in words:
            continue
        with tempfile.TemporaryDirectory() as folder:
            times = {
                library: _seconds(name, library, None if row.cold else folder)
                for library in row.libraries
                if library == "numus" or importlib.util.find_spec(library)
            }
        ours, peer = times["numus"], times.get("torch")
        figure = ours / peer if peer else ours
        compared = len(row.libraries) > 1
        within = figure <= row.budget or (compared and not peer)
        passed &= within
        shown = f"{row.budget:g}{' x' if compared else ' s'}"
        table.row(
            row.title,
            f"{ours:.3f}",
            f"{peer:.3f}" if peer else "-",
            f"{figure:.2f}" if peer else "-",
            f"<= {shown}" if within else f"over {shown}",
        )
    return passed


if __name__ == "__main__":
    print(ROWS[sys.argv[1]].measure(sys.argv[2]))
