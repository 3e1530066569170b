"""Tests on a device, in parallel processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OPS = ("tests/test_ops.py",)
_PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider")
_GRACE = 30.0  # seconds to finish a test that has started
_WORST = ("begun", "passed", "skipped", "failed")


@dataclass
class _Result:
    outcome: str = "begun"
    seconds: float = 0.0
    why: str = ""


def _environment(device: str, default: bool) -> dict[str, str]:
    """One thread per process; JAX, as a reference, on the CPU: it would take most of a GPU's
    memory."""
    which = "NUMUS_DEVICE" if default else "NUMUS_TEST_DEVICES"
    single = dict.fromkeys(("NUMUS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **single, which: device, "JAX_PLATFORMS": "cpu"}


def run_tests(
    workers: int,
    limit: float,
    device: str,
    tests: Sequence[str] = OPS,
    also: str = "",
    what: str = "of the op table (values, gradients)",
    default: bool = False,
) -> tuple[list[str], str]:
    """Run tests; the report's lines, and the whole output. `also`: pattern of tests to add to those
    that name the device. `default`: run all tests, with it as the default device."""
    chosen = () if default else ("-k", device + also)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shared = ("-p", "tools.shares", "--shares", folder, "--until", str(time.time() + limit))
        logs = [Path(folder) / f"log.{w}" for w in range(workers)]
        running = []
        for w, log in enumerate(logs):
            command = [*_PYTEST, "--tb=short", *shared, f"--share={w}/{workers}", *tests, *chosen]
            with log.open("w") as out:
                running.append(
                    subprocess.Popen(
                        command,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        env=_environment(device, default),
                    )
                )
        for process in running:
            try:
                process.wait(max(1.0, limit + _GRACE - (time.perf_counter() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        results = _results(Path(folder))
        text = "\n".join(log.read_text() for log in logs)
    seconds = time.perf_counter() - began
    done = Counter(result.outcome for result in results.values())
    lines = [
        f"- {len(results)} tests {what} on the device: {done['passed']} passed, {done['failed']} "
        f"failed, {done['skipped']} skipped, {done['begun']} not run, in {seconds:.0f} s with "
        f"{workers} processes"
    ]
    lines += [f"  - {line}" for line in _failures(results)]
    if not results:
        lines.append(f"  - collection failed: {text[-300:]}")
    return lines, "\n".join([text, *_details(results)])


def _results(folder: Path) -> dict[str, _Result]:
    """The outcome of each test; tests that were not reached count as not finished."""
    names = folder / "names"
    found = {name: _Result() for name in json.loads(names.read_text())} if names.exists() else {}
    for path in sorted(folder.glob("notes.*")):
        for line in path.read_text().splitlines():
            name, outcome, seconds, why = json.loads(line)
            result = found.setdefault(name, _Result())
            result.seconds += seconds
            if _WORST.index(outcome) > _WORST.index(result.outcome):
                result.outcome, result.why = outcome, why
            if outcome == "begun" and not result.why:
                result.why = "did not finish"
    return found


def _failures(results: dict[str, _Result]) -> list[str]:
    """Tests that failed or did not finish; the number of tests not run, by file."""
    lines = []
    for name, result in sorted(results.items()):
        if result.outcome == "failed" or (result.outcome == "begun" and result.why):
            lines.append(" ".join(f"{name}: {result.why}".split())[:300])
    rest = [n for n, r in results.items() if r.outcome == "begun" and not r.why]
    missed = Counter(name.split("::")[0] for name in rest)
    return lines + [f"{name}: {count} not run" for name, count in missed.most_common()]


def _details(results: dict[str, _Result]) -> list[str]:
    """For the log: reasons of skips, and the slowest tests."""
    lines = ["", "skipped:"]
    skipped = [(n, r) for n, r in results.items() if r.outcome == "skipped"]
    for why, count in Counter(r.why for _, r in skipped).most_common():
        lines.append(f"{count:5d}  {why}")
    for name, result in skipped:
        lines.append(f"  {name}: {result.why}")
    files: Counter[str] = Counter()
    for name, result in results.items():
        files[name.split("::")[0]] += result.seconds
    lines += ["", "seconds by file:"]
    lines += [f"{seconds:8.1f}  {name}" for name, seconds in files.most_common()]
    lines += ["", "the slowest:"]
    slow = sorted(results.items(), key=lambda pair: -pair[1].seconds)[:150]
    return lines + [f"{result.seconds:8.2f}  {name}" for name, result in slow]
