"""Report on a WebGPU adapter: conformance, speed and endurance.

python -m tools.webgpu_report [--out docs/results/webgpu.md] [--only tests|bench|steps]

The op table (values, gradients, replays) runs in several processes, each with a share of the rows.
The benchmark is of numus alone: rates are to be compared with the device's peak. `--only steps`
trains a small network for many steps, and fails if memory grows, on the host or in the pool, or if
wgpu logs a warning. Other sections of the report are kept.
"""

from __future__ import annotations

import argparse
import gc
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.cuda_timing import by_clock, measure
from tools.device_tests import run_tests

Workload = tuple[
    str, Callable[[], Any], float, str
]  # name, function, amount of work, unit of the rate


def workloads(nm: Any, scale: int) -> Iterator[Workload]:
    """Memory-bound workloads, then compute-bound ones. `scale` divides every extent."""
    rows, columns, side, length = 16384 // scale, 8192, 4096 // scale, (1 << 28) // scale
    line = nm.random.normal((length,))
    yield "relu(x * 2 + 1), 2^28 float32", lambda: nm.relu(line * 2 + 1), 8 * length, "TB/s"
    yield "sum, 2^28 float32", lambda: nm.sum(line), 4 * length, "TB/s"
    yield "x > 0, 2^28 float32", lambda: line > 0, 5 * length, "TB/s"
    x, w, b = (nm.random.normal(s) for s in ((rows, columns), (columns,), (columns,)))
    nm.eval([x, w, b])
    both = 8 * rows * columns
    yield "softmax, 16384 x 8192", lambda: nm.softmax(x, axis=-1), both, "TB/s"
    yield "layer_norm, 16384 x 8192", lambda: nm.layer_norm(x, w, b), both, "TB/s"
    yield "layer_norm without weights, 16384 x 8192", lambda: nm.layer_norm(x), both, "TB/s"
    yield "softmax(x) * w, 16384 x 8192", lambda: nm.softmax(x, axis=-1) * w, both, "TB/s"
    yield "sum over the first axis, 16384 x 8192", lambda: nm.sum(x, axis=0), both / 2, "TB/s"
    for kind in (nm.float32, nm.float16):
        p, q = (nm.random.normal((side, side)).astype(kind) for _ in range(2))
        flops = 2 * side**3
        yield f"GEMM, 4096, {kind.name}", lambda p=p, q=q: p @ q, flops, "TFLOP/s"
        bias = nm.zeros(side, dtype=kind)
        yield (
            f"GEMM with bias and GELU, 4096, {kind.name}",
            lambda p=p, q=q, bias=bias: nm.gelu(p @ q + bias),
            flops,
            "TFLOP/s",
        )


def run_bench(nm: Any, scale: int, seconds: float) -> list[str]:
    runtime = nm.device("webgpu").runtime
    nm.set_default_device("webgpu")
    lines = ["| workload | ms | rate |", "|---|---:|---:|"]
    for name, work, amount, unit in workloads(nm, scale):

        def once(work: Callable[[], Any] = work) -> None:
            nm.eval(work())

        ms = _measured(once, runtime.synchronize, seconds)
        lines.append(f"| {name} | {ms:.3f} | {amount / ms / 1e9:.2f} {unit} |")
        print(lines[-1], flush=True)
    ms = _measured(_gpt_step("webgpu"), runtime.synchronize, 3 * seconds)
    lines.append(f"| training step of a GPT (4 layers, 128 wide, 8 x 64 tokens) | {ms:.3f} | |")
    print(lines[-1], flush=True)
    if any(d.name == "cuda" for d in nm.devices()):
        other = _measured(_gpt_step("cuda"), nm.device("cuda").runtime.synchronize, 3 * seconds)
        lines.append(
            f"| the same on cuda | {other:.3f} | webgpu takes {ms / other:.1f} times as long |"
        )
        print(lines[-1], flush=True)
    return lines


def _measured(once: Callable[[], None], wait: Callable[[], None], seconds: float) -> float:
    """The time of one call, in ms, after a warm-up: clocks fall while kernels are compiled."""
    once()
    wait()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds / 2:
        once()
        wait()
    return measure(once, by_clock(wait), seconds)


def _gpt_step(device: str) -> Callable[[], Any]:
    import numus as nm
    from bench import training

    nm.set_default_device(device)
    (model,) = (m for m in training.MODELS if "gpt" in m.name)
    step = training.numus_step(model)
    for _ in range(5):  # trace, compile and fill the pool
        step()
    return step


# -- endurance ------------------------------------------------------------------------------------


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def resident() -> int:
    """Resident memory of this process in bytes (Linux)."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def run_steps(nm: Any, count: int, warm: int = 100) -> list[str]:
    """Train for many steps; an error if memory grows or wgpu logs a warning."""
    import numpy as np

    pool = nm.device("webgpu").runtime.pool
    warnings = _Warnings()
    logging.getLogger("wgpu").addHandler(warnings)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 16), dtype=np.float32), rng.integers(0, 4, 64)
    model = nm.nn.Sequential(nm.nn.Linear(16, 32), nm.nn.ReLU(), nm.nn.Linear(32, 4)).to("webgpu")
    optimiser = nm.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = nm.asarray(x).to("webgpu"), nm.asarray(y).to("webgpu")

    @nm.jit
    def step(x: Any, y: Any) -> Any:
        optimiser.zero_grad()
        loss = nm.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        return loss

    first = last = 0.0
    before: tuple[int, int] = (0, 0)
    for i in range(count):
        # another batch each time, by an operation outside the trace
        loss = step(inputs + float(i % 7) * 0.01, targets)
        if i == 0:
            first = loss.item()
        if i % 10 == 0:
            last = loss.item()
        if i == warm:
            gc.collect()
            before = resident(), pool.stats()["in_use"] + pool.stats()["pooled"]
    gc.collect()
    after = resident(), pool.stats()["in_use"] + pool.stats()["pooled"]
    grown = [b - a for a, b in zip(before, after, strict=True)]
    lines = [
        f"- {count} training steps: loss from {first:.3f} to {last:.3f}; the process grew by "
        f"{grown[0] / 1e6:.1f} MB after the first {warm} steps, the pool by {grown[1]} bytes; wgpu "
        f"logged {len(warnings.messages)} warnings"
    ]
    logging.getLogger("wgpu").removeHandler(warnings)
    if not last < first:
        raise SystemExit(f"the loss did not decrease: {lines[0]}")
    if grown[1] > 0 or grown[0] > 16e6 or warnings.messages:
        raise SystemExit("\n".join([*lines, *warnings.messages[:5]]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/results/webgpu.md")
    parser.add_argument("--log", default="")
    parser.add_argument("--only", choices=("tests", "bench", "steps"))
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each measurement")
    parser.add_argument("--limit", type=float, default=400, help="seconds for the tests")
    parser.add_argument("--scale", type=int, default=1, help="divides the benchmark's extents")
    parser.add_argument("--steps", type=int, default=10000)
    given = parser.parse_args()
    import numus as nm

    target = nm.device("webgpu").runtime.target
    features = ", ".join(sorted(target.features))
    title = ["# numus on a GPU through WebGPU", ""]
    title += [f"Written by `python -m tools.webgpu_report` on one {target.description}, with ", ""]
    title[-2] += f"{features}."
    parts: dict[str, list[str]] = {"": title}
    if given.only in (None, "tests"):
        parts["Conformance"], text = run_tests(given.workers, given.limit, "webgpu")
        print("\n".join(parts["Conformance"]), flush=True)
        if given.log:
            Path(given.log).write_text(text)
    if given.only in (None, "bench"):
        parts["Speed"] = run_bench(nm, given.scale, given.seconds)
    if given.only in (None, "steps"):
        parts["Endurance"] = run_steps(nm, given.steps)
        print(parts["Endurance"][0], flush=True)
    if given.only is None:
        out = Path(given.out)
        out.write_text(merged(out.read_text() if out.exists() else "", parts))


def merged(old: str, parts: dict[str, list[str]]) -> str:
    """A report with new sections, by heading, replacing old ones; others are kept."""
    first, *rest = re.split(r"^## ", old, flags=re.MULTILINE)
    found = {"": first.splitlines()}
    for part in rest:
        heading, *lines = part.splitlines()
        found[heading] = lines
    found.update(parts)
    texts = []
    for heading, lines in found.items():
        text = "\n".join(lines).strip("\n")
        texts.append(f"## {heading}\n\n{text}" if heading else text)
    return "\n\n".join(texts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
