"""One call on a machine with an NVIDIA GPU: conformance, gradients, and speed beside PyTorch.

python -m tools.cuda_report [--out docs/results/cuda.md] [--only tests|bench] [--workers 12]

Tests of the op table run in several processes, each with a share of the rows. The benchmark runs
numus and PyTorch in turns in one process; a ratio above 1 means that numus is faster.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

TESTS = "tests/test_ops.py"


# -- tests ----------------------------------------------------------------------------------------


def collect(device: str = "cuda") -> list[str]:
    """The tests of the op table that run on a device."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", TESTS, "--collect-only", "-q", "-k", device],
        capture_output=True,
        text=True,
        env={**os.environ, "NUMUS_TEST_DEVICES": device},
        check=False,
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


def run_tests(workers: int, limit: float, device: str = "cuda") -> tuple[list[str], str]:
    """What the tests say, as lines of the report; and all that they wrote."""
    names = collect(device)
    began = time.perf_counter()
    running = []
    for w in range(workers):
        share = names[w::workers]
        if share:
            running.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "pytest",
                        "-q",
                        "--no-header",
                        "--tb=short",
                        "-p",
                        "no:cacheprovider",
                        *share,
                    ],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env={**os.environ, "NUMUS_TEST_DEVICES": device, "NUMUS_NUM_THREADS": "1"},
                )
            )
    log = []
    for process in running:
        try:
            out, _ = process.communicate(timeout=max(1.0, limit - (time.perf_counter() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            out += "\nERROR stopped: out of time"
        log.append(out)
    text = "\n".join(log)
    passed, failed, skipped = (
        sum(int(n) for n in re.findall(rf"(\d+) {word}", text))
        for word in ("passed", "failed", "skipped")
    )
    lines = [
        f"- {len(names)} tests of the op table (values, gradients) on the device: {passed} passed, "
        f"{failed} failed, {skipped} skipped, in {time.perf_counter() - began:.0f} s with "
        f"{workers} processes"
    ]
    for line in sorted(set(re.findall(r"^(?:FAILED|ERROR) (.*)$", text, re.MULTILINE))):
        lines.append(f"  - {line[:300]}")
    return lines, text


# -- speed ----------------------------------------------------------------------------------------


def measure(function: Callable[[], Any], wait: Callable[[], None], seconds: float) -> float:
    """The time of one call, in ms: the best of several batches, each waited for as a whole."""
    function()
    wait()
    began = time.perf_counter()
    function()
    wait()
    once = time.perf_counter() - began
    count = max(1, min(200, int(seconds / 5 / max(once, 1e-6))))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            function()
        wait()
        best = min(best, (time.perf_counter() - began) / count)
    return best * 1e3


def workloads(torch: Any, nm: Any) -> Any:
    """(name, the inputs, a function on numus, one on PyTorch, bytes, floating-point operations)."""
    import torch.nn.functional as F

    n = 1 << 28
    softmax_like = (16384, 8192)
    size = 4 * softmax_like[0] * softmax_like[1]
    yield (
        "relu(x*2+1) 2^28 f32",
        [(n,)],
        "float32",
        lambda x: nm.relu(x * 2 + 1),
        lambda x: torch.relu(x * 2 + 1),
        8 * n,
        0,
    )
    yield "sum 2^28 f32", [(n,)], "float32", lambda x: x.sum(), lambda x: x.sum(), 4 * n, 0
    yield (
        "sum relu(x*2+1) 2^28 f32",
        [(n,)],
        "float32",
        lambda x: nm.relu(x * 2 + 1).sum(),
        lambda x: torch.relu(x * 2 + 1).sum(),
        4 * n,
        0,
    )
    yield (
        "cumsum 2^28 f32",
        [(n,)],
        "float32",
        lambda x: nm.cumsum(x, axis=0),
        lambda x: x.cumsum(0),
        8 * n,
        0,
    )
    yield (
        "sort 2^24 f32",
        [(1 << 24,)],
        "float32",
        lambda x: nm.sort(x),
        lambda x: torch.sort(x)[0],
        8 << 24,
        0,
    )
    yield (
        "softmax 16384x8192",
        [softmax_like],
        "float32",
        lambda x: nm.softmax(x, axis=-1),
        lambda x: torch.softmax(x, -1),
        2 * size,
        0,
    )
    yield (
        "layer_norm 16384x8192",
        [softmax_like, (8192,), (8192,)],
        "float32",
        lambda x, w, b: nm.layer_norm(x, w, b),
        lambda x, w, b: F.layer_norm(x, (8192,), w, b),
        2 * size,
        0,
    )
    yield (
        "sum axis 0 16384x8192",
        [softmax_like],
        "float32",
        lambda x: nm.sum(x, axis=0),
        lambda x: x.sum(0),
        size,
        0,
    )
    yield (
        "x + x.T 8192",
        [(8192, 8192)],
        "float32",
        lambda x: x + x.T,
        lambda x: x + x.T,
        8 * 8192**2,
        0,
    )
    yield (
        "bias + gelu 16384x8192 bf16",
        [softmax_like, (8192,)],
        "bfloat16",
        lambda x, b: nm.gelu(x + b),
        lambda x, b: F.gelu(x + b),
        size,
        0,
    )
    for dtype, sizes in (
        ("bfloat16", (1024, 4096, 8192)),
        ("float32", (1024, 4096, 8192)),
        ("float64", (4096,)),
        ("float16", (4096,)),
    ):
        for k in sizes:
            yield (
                f"matmul {dtype} {k}",
                [(k, k), (k, k)],
                dtype,
                lambda a, b: a @ b,
                lambda a, b: a @ b,
                0,
                2 * k**3,
            )

    def by_tf32(a: Any, b: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        y = a @ b
        torch.backends.cuda.matmul.allow_tf32 = False
        return y

    for turned in (False, True):
        yield (
            f"matmul float32 4096, tf32{' nt' if turned else ''}",
            [(4096, 4096), (4096, 4096)],
            "float32",
            lambda a, b, t=turned: nm.matmul(a, b.T if t else b, precision="tf32"),
            lambda a, b, t=turned: by_tf32(a, b.T if t else b),
            0,
            2 * 4096**3,
        )
    for dtype in ("bfloat16", "float32"):
        channels, space = 256, 28
        yield (
            f"conv2d 64x{channels}x{space}x{space} 3x3 {dtype}",
            [(64, channels, space, space), (channels, channels, 3, 3)],
            dtype,
            lambda x, w: nm.conv2d(x, w, padding=1),
            lambda x, w: F.conv2d(x, w, padding=1),
            0,
            2 * 64 * (channels * space * 3) ** 2,
        )
    for size in (64, 128):
        shape = (4, 16, 4096, size)
        flops = 2 * 4 * 16 * 4096**2 * size  # half of the scores count
        name = f"attention causal {'x'.join(map(str, shape))} bf16"
        yield (
            name,
            [shape] * 3,
            "bfloat16",
            lambda q, k, v: nm.scaled_dot_product_attention(q, k, v, is_causal=True),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            0,
            flops,
        )

        def ours(q: Any, k: Any, v: Any, g: Any) -> Any:
            attend = partial(nm.scaled_dot_product_attention, is_causal=True)
            _, pull = nm.vjp(attend, q, k, v)
            return nm.stack(list(pull(g)))

        def theirs(q: Any, k: Any, v: Any, g: Any) -> Any:
            xs = [x.detach().requires_grad_() for x in (q, k, v)]
            F.scaled_dot_product_attention(*xs, is_causal=True).backward(g)
            return torch.stack([x.grad for x in xs])

        yield f"{name} and gradients", [shape] * 4, "bfloat16", ours, theirs, 0, 3.5 * flops


def run_bench(seconds: float, only: str) -> list[str]:
    import torch

    import numus as nm

    runtime = nm.device("cuda").runtime
    lines = [
        "| workload | numus ms | PyTorch ms | ratio | numus | error |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, shapes, dtype, ours, theirs, nbytes, flops in workloads(torch, nm):
        if only and not re.search(only, name):
            continue
        try:
            torch.cuda.empty_cache()
            kind = getattr(torch, dtype)
            ts = [torch.randn(*s, device="cuda", dtype=torch.float32).to(kind) for s in shapes]
            xs = [nm.from_dlpack(t) for t in ts]

            def once(ours: Any = ours, xs: Any = xs) -> None:
                nm.eval(ours(*xs))

            got = torch.from_dlpack(ours(*xs)).double().flatten()
            want = theirs(*ts).double().flatten()
            error = float((got - want).norm() / want.norm().clamp_min(1e-30))
            del got, want
            times = [0.0, 0.0]
            for _ in range(2):  # in turns
                a = measure(once, runtime.synchronize, seconds)
                b = measure(lambda: theirs(*ts), torch.cuda.synchronize, seconds)  # noqa: B023
                times = [min(x, y) if x else y for x, y in zip(times, (a, b), strict=True)]
            rate = f"{nbytes / times[0] / 1e9:.2f} TB/s" if nbytes else ""
            rate = f"{flops / times[0] / 1e9:.0f} TFLOP/s" if flops else rate
            lines.append(
                f"| {name} | {times[0]:.3f} | {times[1]:.3f} | {times[1] / times[0]:.2f} | {rate} "
                f"| {error:.1e} |"
            )
        except Exception as problem:
            text = str(problem).splitlines()[0] if str(problem) else repr(problem)
            lines.append(f"| {name} | failed: {type(problem).__name__}: {text[:200]} | | | | |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/results/cuda.md")
    parser.add_argument("--log", default="")
    parser.add_argument("--only", choices=("tests", "bench"))
    parser.add_argument("--rows", default="", help="workloads by a pattern")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each measurement")
    parser.add_argument("--limit", type=float, default=400, help="seconds for the tests")
    given = parser.parse_args()
    import numus as nm

    facts = nm.device("cuda").runtime.facts
    lines = ["# numus on an NVIDIA GPU", ""]
    lines += [f"Written by `python -m tools.cuda_report` on one {facts.description}.", ""]
    if given.only != "bench":
        report, text = run_tests(given.workers, given.limit)
        print("\n".join(report), flush=True)
        if given.log:
            Path(given.log).write_text(text)
        lines += ["## Conformance", "", *report, ""]
    if given.only != "tests":
        lines += ["## Speed beside PyTorch", "", *run_bench(given.seconds, given.rows), ""]
    Path(given.out).write_text("\n".join(lines))


if __name__ == "__main__":
    main()
