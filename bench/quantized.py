"""Products with quantised weights on a CPU against ggml's: `pip install llama-cpp-python`.

    python -m bench.quantized                       # vectors and prompts, as a table of times
    python -m bench.quantized --model file.gguf     # tokens of a model

Weights of one row take turns, so that they come from memory; a copy shows how fast that is. ggml
rounds activations to 8 bits, as `activations="int8"` does; `repacked`: its own order of blocks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np

import numus as nm
from bench.ggml import Ggml, Product
from bench.table import Table
from bench.timing import best_times, wait_until_idle
from numus.quant.formats import as_format

SIZE = 4096  # rows and columns of weights
MEMORY_BYTES = 80_000_000  # of weights that take turns
COPY_VALUES = 1 << 25
REPACKED = ("q4_k",)  # formats that ggml has an order of its own for on x86-64
PROMPT = list(range(1, 17))
NEW_TOKENS = 64
ROUNDS = 5


def weights(kind: str) -> np.ndarray[Any, Any]:
    """Blocks of a matrix: a few rows, again and again."""
    rows = np.random.default_rng(0).standard_normal((64, SIZE), dtype=np.float32)
    q = nm.quant.quantize(nm.asarray(rows), kind)
    return np.tile(q.parts[0].numpy(), (SIZE // 64, 1))


def in_turn(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    def endless() -> Iterator[Callable[[], Any]]:
        while True:
            yield from calls

    turns = endless()
    return lambda: next(turns)()


def own_product(x: Any, q: Any, activations: str | None) -> Callable[[], Any]:
    return lambda: nm.eval(nm.quant.matmul(x, q.T, activations=activations))


def products(kind: str, m: int, ggml: Ggml, seconds: float) -> dict[str, float]:
    """Times of m rows times a matrix."""
    blocks = weights(kind)
    x = np.random.default_rng(1).standard_normal((m, SIZE), dtype=np.float32)
    count = MEMORY_BYTES // blocks.nbytes + 1 if m == 1 else 1
    shape, held = (SIZE, SIZE), [nm.asarray(blocks.copy()) for _ in range(count)]
    own = [nm.quant.QTensor(as_format(kind), shape, (part,), nm.float32, -1) for part in held]
    vectors, calls = nm.asarray(x), dict[str, Callable[[], Any]]()
    for name, activations in (("all bits", None), ("int8", "int8")):
        calls[name] = in_turn([own_product(vectors, q, activations) for q in own])
    for name, repacked in (("ggml", False), ("repacked", True)):
        if not repacked or kind in REPACKED:
            calls[name] = in_turn([Product(ggml, kind, blocks, x, repacked) for _ in range(count)])
    return best_times(calls, seconds=seconds)


def copy_bandwidth(seconds: float) -> float:
    """Bytes that two threads read and write in a second, by NumPy."""
    source, target = np.ones(COPY_VALUES, np.float32), np.ones(COPY_VALUES, np.float32)
    middle = COPY_VALUES // 2
    halves = [(target[:middle], source[:middle]), (target[middle:], source[middle:])]

    def copy() -> None:
        threads = [Thread(target=np.copyto, args=half) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return 2 * source.nbytes / best_times({"copy": copy}, seconds=seconds)["copy"]


def own_tokens(path: str, activations: str | None) -> Callable[[], float]:
    """Seconds that a token takes."""
    model = nm.models.load(path)
    for layer in model.modules():
        if isinstance(layer, nm.nn.QLinear):
            layer.activations = activations

    def run() -> float:
        how: dict[str, Any] = {"stream": True, "eos_token_id": False}
        tokens = nm.models.generate(model, [PROMPT], max_new_tokens=NEW_TOKENS + 1, **how)
        next(tokens)
        start = time.perf_counter()
        for token in tokens:
            int(token[0])
        return (time.perf_counter() - start) / NEW_TOKENS

    return run


def peer_tokens(path: str, threads: int) -> Callable[[], float]:
    import llama_cpp

    how = {"n_threads": threads, "n_threads_batch": threads, "verbose": False}
    model = llama_cpp.Llama(path, n_ctx=512, **how)
    count = model.n_vocab()

    def choose() -> int:
        scores = llama_cpp.llama_get_logits(model.ctx)
        return int(np.argmax(np.ctypeslib.as_array(scores, (count,))))

    def run() -> float:
        model.reset()
        model.eval(PROMPT)
        start = time.perf_counter()
        for _ in range(NEW_TOKENS):
            model.eval([choose()])
        return (time.perf_counter() - start) / NEW_TOKENS

    return run


def tokens(path: str, threads: int) -> None:
    runs = {
        "llama.cpp": peer_tokens(path, threads),
        "all bits": own_tokens(path, None),
        "int8": own_tokens(path, "int8"),
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            wait_until_idle()
            best[name] = min(best[name], run())
    for name, found in best.items():
        print(f"{name:10} {found * 1e3:8.2f} ms a token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a GGUF file of a language model")
    parser.add_argument("--threads", type=int, default=nm.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    if given.model:
        tokens(given.model, given.threads)
        return
    ggml, head = Ggml(given.threads), ("all bits", "int8", "ggml", "repacked")
    table = Table(("ms", *head), (10, 9, 9, 9, 9), markdown=False)
    for kind in ("q4_k", "q8_0"):
        for m in (1, 512):
            found = products(kind, m, ggml, given.seconds)
            cells = [f"{found[name] * 1e3:.3f}" if name in found else "" for name in head]
            table.row(f"{kind}, {m}", *cells)
    table.note(f"a copy moves {copy_bandwidth(given.seconds) / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
