"""Benchmarks against NumPy, PyTorch and JAX, interleaved in one process.

    python -m bench                       every workload
    python -m bench gemm softmax          those whose name contains one of the words
    python -m bench --jit                 with numus inside nm.jit
    python -m bench train                 whole training steps (always inside nm.jit)
    python -m bench train --nn            the same with modules, an optimiser and a Trainer
    python -m bench adamw                 one AdamW step over two hundred parameters
    python -m bench loading               data loader, against PyTorch's
    python -m bench loading 4096          records of this size only
    python -m bench memory                peak memory of training steps, against PyTorch
    python -m bench memory --large        of larger models
    python -m bench overhead              Python overhead: building, evaluating, importing
    python -m bench fft_ filter_ stft     transforms and filters
    python -m bench family_               families of kernels, at odd sizes and two dtypes
    python -m bench first                 first calls, in processes of their own
    python -m bench first generate        one of them

The last column is the time of the best peer over that of numus: above 1, numus is faster.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import numus as nm


def compare(
    words: list[str],
    *,
    torch_compile: bool,
    jitted: bool,
    modules: bool,
    seconds: float,
    markdown: bool,
) -> None:
    """Print one line for each workload whose name contains one of `words`."""
    # Imported here: the peers take seconds to load and the other reports do not need them.
    from . import (
        families,  # noqa: F401  adds its rows
        linalg,  # noqa: F401
        spectral,  # noqa: F401
        statistics,  # noqa: F401
        training,
    )
    from .libraries import available
    from .table import Table
    from .timing import best_times
    from .workloads import TABLE

    libraries = available(torch_compile=torch_compile, jitted=jitted)
    columns = ["numus", "numpy", "torch", *(["torch.compile"] if torch_compile else []), "jax"]
    widths = [28, *[13] * len(columns), 12]
    table = Table(["ms", *columns, "peer/numus"], widths, markdown)

    def chosen(name: str) -> bool:
        return not words or any(word in name for word in words)

    ratios = []

    def report(name: str, makers: dict[str, Callable[[], Callable[[], Any]]]) -> None:
        calls: dict[str, Callable[[], Any]] = {}
        failures: dict[str, str] = {}
        for library, make in makers.items():
            try:
                call = make()
                call()
            except Exception as error:  # one library that fails must not hide the others' times
                failures[library] = type(error).__name__[:13]
            else:
                calls[library] = call
        times = best_times(calls, seconds=seconds)

        cells = {name: f"{time * 1e3:.3f}" for name, time in times.items()} | failures
        peers = [time for name, time in times.items() if name != "numus"]
        ratio = min(peers) / times["numus"] if peers and "numus" in times else None
        if ratio is not None:
            ratios.append(ratio)
        shown = "-" if ratio is None else f"{ratio:.2f}"
        table.row(name, *(cells.get(column, "-") for column in columns), shown)

    for workload in TABLE:
        if chosen(workload.name):
            inputs = workload.inputs(np.random.default_rng(0))
            functions = workload.functions
            report(
                workload.name,
                {
                    library.name: partial(library.bind, functions[library.dialect], inputs)
                    for library in libraries
                    if library.dialect in functions
                },
            )
    for model in training.MODELS:
        if chosen(model.name):
            steps = training.steps(model, torch_compile=torch_compile, modules=modules)
            report(model.name, steps)
    if chosen("adamw_200_tensors"):
        report("adamw_200_tensors", training.optimizer_steps())
    if len(ratios) > 1:
        mean = float(np.exp(np.mean(np.log(ratios))))
        ahead = f"numus is ahead in {sum(r > 1 for r in ratios)} of {len(ratios)}"
        table.note(f"{ahead}; geometric mean of the ratios {mean:.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="parts of workload names, or overhead, or memory")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    parser.add_argument(
        "--prefer", default="auto", help="kernels of numus: native, vendor or auto (default)"
    )
    parser.add_argument("--jit", action="store_true", help="run numus's workloads inside nm.jit")
    parser.add_argument("--nn", action="store_true", help="train with numus.nn and a Trainer")
    parser.add_argument("--large", action="store_true", help="memory: of larger models, with --nn")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time for each library and workload (default 1)"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()

    nm.kernels.prefer(options.prefer)
    match options.names:
        case ["overhead"]:
            from . import overhead

            return 0 if overhead.report(options.markdown) else 1
        case ["loading", *sizes]:
            from . import loading

            chosen = [int(size) for size in sizes] or list(loading.SIZES)
            loading.report(chosen, options.markdown)
        case ["first", *rows]:
            from . import first_calls

            return 0 if first_calls.report(options.markdown, rows) else 1
        case ["memory"]:
            from . import memory

            return 0 if memory.report(options.nn, options.large, options.markdown) else 1
        case words:
            compare(
                words,
                torch_compile=options.compile,
                jitted=options.jit,
                modules=options.nn,
                seconds=options.seconds,
                markdown=options.markdown,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
