"""Every figure asked of numus on one H200: measured, and compared with what was asked.

    python -m tools.cuda_bars --minutes 9 --out bars.jsonl
    python -m tools.cuda_bars --minutes 9 --resume bars.jsonl     # goes on with the rest
    python -m tools.cuda_bars --only "fft rows" --dry             # small sizes, on the CPU

Results are lines of JSON, written as they come, so that a run that is cut off keeps what it
measured; the most telling rows come first. A row that fails says why, and the next one runs. With
`--dry`, numus and PyTorch run on the CPU: that proves the programs, and says nothing of speed.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.cuda_bars import (
    decoding,
    fft,
    graphs,
    kernels,
    linalg,
    quant,
    sparse,
    training,
    webgpu,
)
from tools.cuda_bars.bars import Bar
from tools.cuda_timing import Bench, error_message

# In the order in which rows of one `order` are measured.
FAMILIES = (decoding, quant, training, kernels, sparse, fft, linalg, graphs, webgpu)
DRY_EXTENT = 64  # the largest extent of programs that are tried on a CPU


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def all_bars(bench: Bench, words: list[str]) -> list[Bar]:
    """All rows with one of the words, the most telling first."""
    found = [bar for family in FAMILIES for bar in family.bars(bench)]
    if words:
        found = [b for b in found if any(w in f"{b.family} {b.name}" for w in words)]
    return sorted(found, key=lambda bar: bar.order)


def lines_of(bench: Bench, bar: Bar, seconds: float) -> list[dict[str, Any]]:
    """What a row measured, or why it did not."""
    began, lines = time.perf_counter(), []
    about = {"family": bar.family, "row": bar.name}
    try:
        with limit(seconds):
            for f in bar.run(bench):
                ms = {k: round(v, 5) for k, v in f.ms.items()}
                told = {"value": round(f.value, 4), "asked": f.asked, "unit": f.unit}
                bound = {"at_most": f.at_most, "reached": f.is_reached}
                lines.append({**about, "name": f.name, **told, **bound, "ms": ms, "error": f.error})
    except Exception as problem:
        lines.append({**about, "name": bar.name, "failed": error_message(problem)})
    lines[-1]["seconds"] = round(time.perf_counter() - began, 1)
    return lines


def shown(line: dict[str, Any]) -> str:
    """A line of the table."""
    if "failed" in line:
        return f"| {line['family']} | {line['name']} | | | {line['failed']} |"
    unit = {"x": "", "": ""}.get(line["unit"], f" {line['unit']}")
    bound = "≤" if line["at_most"] else "≥"
    verdict = "pass" if line["reached"] else "**miss**"
    value = f"{line['value']:.3g}{unit}"
    name = f"{line['family']} | {line['name']}"
    return f"| {name} | {value} | {bound} {line['asked']:g} | {verdict} |"


def table(lines: list[dict[str, Any]]) -> list[str]:
    """All lines by family, then how many of each reach what was asked."""
    order = list(dict.fromkeys(line["family"] for line in lines))
    by_family = {f: [x for x in lines if x["family"] == f] for f in sorted(order)}
    found = ["| family | row | measured | asked | |", "|---|---|---:|---:|---|"]
    found += [shown(line) for own in by_family.values() for line in own]
    for family, own in by_family.items():
        passed = sum(line.get("reached", False) for line in own)
        failed = sum("failed" in line for line in own)
        found.append(f"{family}: {passed} of {len(own)} reached, {failed} did not run")
    return found


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="words, one of which a row has in its name")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all rows")
    parser.add_argument("--row-seconds", type=float, default=120.0, help="for one row at most")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each measurement")
    parser.add_argument("--out", type=Path, help="a file for lines of JSON")
    parser.add_argument("--resume", type=Path, help="such a file, to be continued")
    parser.add_argument("--dry", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--list", action="store_true", help="name the rows alone")
    given = parser.parse_args(arguments)
    end = time.monotonic() + 60 * given.minutes
    device, most = ("cpu", DRY_EXTENT) if given.dry else ("cuda", 0)
    bench = Bench(0.0 if given.dry else given.seconds, print, device=device, most=most)
    rows = all_bars(bench, given.only.split())
    if given.list:
        print("\n".join(f"{bar.order} {bar.family}: {bar.name}" for bar in rows))
        return []
    out, lines = given.resume or given.out, []
    if given.resume and given.resume.exists():
        lines = [json.loads(line) for line in given.resume.read_text().splitlines()]
    done = {(line["family"], line["row"]) for line in lines}
    for bar in rows:
        left = end - time.monotonic()
        if (bar.family, bar.name) in done or left < 1:
            continue
        fresh = lines_of(bench, bar, min(given.row_seconds, left))
        if "TimeoutError" in fresh[-1].get("failed", "") and left < given.row_seconds:
            continue  # it begins again in the next run
        for line in fresh:
            print(shown(line), flush=True)
        lines += fresh
        if out:
            with out.open("a") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in fresh)
        gc.collect()
        if not given.dry:
            bench.torch.cuda.empty_cache()
    print("\n".join(["", *table(lines)]))
    return lines


if __name__ == "__main__":
    main()
