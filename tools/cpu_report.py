"""CPU benchmarks against NumPy, PyTorch and JAX, as a page.

python -m tools.cpu_report [--out docs/results/cpu.md] [--only eager,jit,...] [--seconds 0.5]

Every section is a process of `python -m bench`; sections that are not selected are kept. On an idle
machine a full run takes about ten minutes.
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
_RATIOS = "The last column is the time of the best peer over numus's: above 1, numus is faster."

# Of each section: title, arguments of `python -m bench`, introduction.
SECTIONS = {
    "eager": (
        "Array functions",
        ("--compile", *_NAMES),
        "Eager evaluation, against NumPy, PyTorch (eager and compiled) and JAX (jitted); `off` are "
        f"sizes that are no multiple of a tile. {_RATIOS}",
    ),
    "jit": (
        "Array functions inside `nm.jit`",
        ("--jit", *_NAMES),
        f"numus runs one compiled program. {_RATIOS}",
    ),
    "families": (
        "Families of kernels",
        ("--compile", "family_"),
        f"Sizes that no schedule was tuned for, odd ones, in two dtypes. {_RATIOS}",
    ),
    "training": (
        "Training steps",
        ("--compile", "train", "adamw"),
        "Forward, backward and optimiser; the last row is one AdamW step over two hundred "
        f"parameters. {_RATIOS}",
    ),
    "overhead": (
        "Python overhead",
        ("overhead",),
        "Operations on four numbers, where only the overhead around the kernel counts.",
    ),
    "first": (
        "First calls",
        ("first",),
        "Processes of their own: `cold` ones have no kernels on disk, the others those of an "
        "earlier process.",
    ),
    "memory": (
        "Memory of training steps",
        ("memory",),
        "Peak bytes requested from each allocator, above parameters, moments and the batch.",
    ),
    "loading": (
        "Loading records",
        ("loading",),
        "From one warm file, against PyTorch's loader on the same file.",
    ),
}


def table(arguments: tuple[str, ...], seconds: float) -> str:
    """The output of one benchmark process."""
    command = [sys.executable, "-m", "bench", "--markdown", "--seconds", str(seconds), *arguments]
    # the overhead benchmark fails if a budget is exceeded
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(command)} printed nothing")
    return done.stdout.strip()


def sections(page: Path) -> dict[str, str]:
    """The sections of an existing page, by title."""
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
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections of the page")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each library and row")
    given = parser.parse_args()
    page = Path(given.out)
    known = sections(page)
    chosen = given.only.split(",")
    unknown = set(chosen) - SECTIONS.keys()
    if unknown:
        parser.error(
            f"no such sections: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}"
        )
    for part, (title, arguments, about) in SECTIONS.items():
        if part in chosen:
            known[title] = f"{about}\n\n{table(arguments, given.seconds)}"
            print(f"\n## {title}\n\n{known[title]}", flush=True)
        bodies = [f"## {t}\n\n{known[t]}" for t, _, _ in SECTIONS.values() if t in known]
        page.write_text("\n\n".join([head(), *bodies]) + "\n")


if __name__ == "__main__":
    main()
