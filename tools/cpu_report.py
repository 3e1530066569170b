"""What numus takes on a CPU beside its peers, as a page.

python -m tools.cpu_report [--out docs/results/cpu.md] [--only eager,jit,...] [--seconds 0.5]

Every part is a process of `python -m bench`. Parts that are not asked for stay in the page as they
are. On a machine that does nothing else all of it takes about ten minutes.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import numus as nm
from bench.workloads import TABLE

_NAMES = tuple(workload.name for workload in TABLE)
_RATIOS = "The last column is the time of the best peer over numus's: above 1, numus is quicker."

# Of each part its title, what `python -m bench` is called with, and what is told about it.
PARTS = {
    "eager": (
        "Array functions",
        ("--compile", *_NAMES),
        "Each function evaluated as it is called, beside NumPy, PyTorch (eager and compiled) and "
        f"JAX (jitted); `off` are sizes that fit no tile. {_RATIOS}",
    ),
    "jit": (
        "The same inside `nm.jit`",
        ("--jit", *_NAMES),
        f"numus's side is one replayed program. {_RATIOS}",
    ),
    "training": (
        "Training steps",
        ("--compile", "train", "adamw"),
        "Forward, backward and the optimiser; the last row is one step of AdamW over two hundred "
        f"parameters. {_RATIOS}",
    ),
    "overhead": (
        "What Python costs",
        ("overhead",),
        "Of operations on four numbers, so that nothing counts but the way to a kernel and back.",
    ),
    "memory": (
        "Memory of training steps",
        ("memory",),
        "Bytes at the peak, above parameters, moments and the batch: what both allocators are "
        "asked for.",
    ),
    "loading": (
        "Loading records",
        ("loading",),
        "From one warm file, beside PyTorch's loader on the same file.",
    ),
}


def table(arguments: tuple[str, ...], seconds: float) -> str:
    """What one call of the benchmark prints."""
    command = [sys.executable, "-m", "bench", "--markdown", "--seconds", str(seconds), *arguments]
    # the benchmark of overhead says by its exit status whether budgets are kept
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(command)} printed nothing")
    return done.stdout.strip()


def kept(page: Path) -> dict[str, str]:
    """The parts of a page that is there, by their titles."""
    if not page.exists():
        return {}
    parts = re.split(r"^## (.*)\n", page.read_text(), flags=re.MULTILINE)[1:]
    return {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def head() -> str:
    target = nm.device("cpu").runtime.target
    versions = []
    for name in ("numpy", "torch", "jax"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    today = datetime.date.today()
    return (
        "# numus on a CPU\n\n"
        f"Written by `python -m tools.cpu_report` on {os.cpu_count()} cores of "
        f"{target.description}, {today.day} {today:%B %Y}, with {', '.join(versions)}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/results/cpu.md")
    parser.add_argument("--only", default=",".join(PARTS), help="parts of the page")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each library and row")
    given = parser.parse_args()
    page = Path(given.out)
    known = kept(page)
    chosen = given.only.split(",")
    unknown = set(chosen) - PARTS.keys()
    if unknown:
        parser.error(f"no such parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for part, (title, arguments, about) in PARTS.items():
        if part in chosen:
            known[title] = f"{about}\n\n{table(arguments, given.seconds)}"
            print(f"\n## {title}\n\n{known[title]}", flush=True)
        bodies = [f"## {t}\n\n{known[t]}" for t, _, _ in PARTS.values() if t in known]
        page.write_text("\n\n".join([head(), *bodies]) + "\n")


if __name__ == "__main__":
    main()
