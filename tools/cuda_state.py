"""Endurance tests of the CUDA runtime, for `tools.cuda_report`.

No leaks over many steps; fast replay of many small kernels; recovery from out-of-memory errors;
no findings of compute-sanitizer.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import numus as nm
from numus import nn, optim
from numus.errors import OutOfMemoryError

STEPS = 10_000
CHECKS = ("memcheck", "racecheck", "initcheck", "synccheck")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _free() -> int:
    from numus.runtime.cuda import driver

    return int(driver.call("cuMemGetInfo")[0])


def leaks(say: Any) -> None:
    """Growth of host and device memory in the second half of many steps."""
    runtime = nm.device("cuda").runtime
    layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model: Any = nn.Sequential(*layers).to("cuda")
    optimizer: Any = optim.AdamW(model.parameters(), 1e-3)
    x = nm.random.normal((32, 64)).to("cuda")
    y = nm.asarray(np.arange(32) % 10).to("cuda")

    def step() -> Any:
        optimizer.zero_grad()
        loss = nn.cross_entropy_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def run(function: Any, count: int) -> None:
        for i in range(count):
            value = function()
            nm.eval(value)
            if i % 500 == 499:
                runtime.synchronize()
        runtime.synchronize()

    jitted = nm.jit(step)
    say("| workload | steps | µs each | host growth, KiB | device growth, KiB |")
    say("|---|---:|---:|---:|---:|")
    for name, function, count in (
        ("training step, jitted", jitted, STEPS),
        ("training step, eager", step, STEPS // 20),
        ("matmul and sum, eager", lambda: ((x * 2 + 1) @ x.T).sum(), STEPS),
    ):
        run(function, count // 2)
        gc.collect()
        host, device, began = _resident(), _free(), time.perf_counter()
        run(function, count - count // 2)
        each = (time.perf_counter() - began) / (count - count // 2) * 1e6
        gc.collect()
        say(
            f"| {name} | {count} | {each:.1f} | {(_resident() - host) / 1024:.0f} "
            f"| {(device - _free()) / 1024:.0f} |"
        )


def small_kernels(say: Any) -> None:
    """A jitted function of many small, dependent kernels."""
    runtime = nm.device("cuda").runtime
    x = nm.asarray(np.random.default_rng(0).random((64, 64), np.float32), device="cuda")

    def centred(x: Any) -> Any:
        for _ in range(100):
            x = x - nm.mean(x, axis=0)
            x = x - nm.mean(x, axis=1, keepdims=True)
        return x

    many = nm.jit(centred)
    best = 9e9
    for _ in range(5):
        many(x)
        runtime.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            y = many(x)
        nm.eval(y)
        runtime.synchronize()
        best = min(best, (time.perf_counter() - began) / 20)
    kernels = len(nm.explain(centred, x).kernels)
    say(
        f"- a jitted function of {kernels} small kernels takes {best / kernels * 1e6:.2f} µs per "
        "kernel, replayed as a CUDA graph"
    )


def out_of_memory(say: Any) -> None:
    x = nm.ones((1 << 20,), device="cuda") + 1
    nm.eval(x)
    try:
        nm.eval(nm.ones((1 << 40,), dtype=nm.float64, device="cuda") * 2)
        told = "NO ERROR"
    except OutOfMemoryError as error:
        told = str(error)
    fine = float(x.sum()) == 2 << 20
    say(f"- out of memory: `{told}`; afterwards the device {'works' if fine else 'IS BROKEN'}")


class Sanitizer:
    """compute-sanitizer on kernels of every family (`tools.cuda_sanitized`), in the background."""

    def __init__(self) -> None:
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        self._running: dict[str, subprocess.Popen[str]] = {}
        for check in CHECKS if Path(tool).exists() else ():
            command = [tool, "--tool", check, "--error-exitcode", "9"]
            command += [sys.executable, "-m", "tools.cuda_sanitized"]
            self._running[check] = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

    def report(self, say: Any, seconds: float) -> str:
        """Write a line for each check; return the whole output."""
        said = []
        if not self._running:
            say("- compute-sanitizer is not installed here")
        for check, process in self._running.items():
            try:
                out, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
                out += "\nstopped: out of time"
            said.append(out)
            last = " ".join(x.strip("= ") for x in out.strip().splitlines()[-2:])
            say(f"- compute-sanitizer, {check}: exit code {process.returncode}: {last[:300]}")
        return "\n".join(said)
